/* IQ2_XS: 256 values in sub-blocks of 16, groups of 8 levels, seven of eight signs.

   The float16 scale is followed by 16 bits for each group, nine of them for its index and seven
   for signs, and by the scales of sub-blocks in pairs. */
#include "signed_grids.h"

#define IQ2_XS_SIZE 74

static const struct grid_type iq2_xs = {
    .length = 16, .bits = 2, .most = 2, .step = 0.1f, .steps = 9, .refitted = THOSE,
    .share = 1, .negligible = NEGLIGIBLE, .fudge = 1,
};

INLINE void iq2_xs_pack(const struct grid_levels *levels, uint8_t *out)
{
    for (size_t g = 0; g < 32; g++, out += 2) {
        uint32_t word = levels->index[g] | (uint32_t)levels->signs[g] << 9;
        out[0] = (uint8_t)word;
        out[1] = (uint8_t)(word >> 8);
    }
    pack_scale_pairs(levels->scale, 16, out);
}

INLINE void iq2_xs_unpack(const uint8_t *from, struct grid_levels *levels)
{
    for (size_t g = 0; g < 32; g++, from += 2) {
        levels->index[g] = (uint16_t)(from[0] | (from[1] & 1) << 8);
        levels->signs[g] = from[1] >> 1;
    }
    unpack_scale_pairs(from, 16, levels->scale);
}

static void iq2_xs_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    encode_grid_rows(&iq2_xs, &grid_iq2_xs, IQ2_XS_SIZE, iq2_xs_pack, rows, count, columns, importance,
                     out);
}

static void iq2_xs_decode(const uint8_t *blocks, size_t count, float *out)
{
    decode_grid_blocks(&iq2_xs, &grid_iq2_xs, IQ2_XS_SIZE, iq2_xs_unpack, 0.25f, two_bit_magnitudes, blocks,
                       count, out);
}
