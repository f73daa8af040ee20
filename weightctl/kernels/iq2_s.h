/* IQ2_S: 256 values in sub-blocks of 16, groups of 8 levels, all signs.

   The float16 scale is followed by a byte for the index of each group, a byte for its signs, the
   upper two bits of indices, and the scales of sub-blocks in pairs. */
#include "signed_grids.h"

#define IQ2_S_SIZE 82

static const struct grid_type iq2_s = {
    .length = 16, .bits = 2, .most = 2, .step = 0.1f, .steps = 9, .refitted = THOSE,
    .share = 2, .unweighted = 0.25f, .negligible = 1e-8f, .fudge = 0.9875f, .has_all_signs = 1,
};

INLINE void iq2_s_pack(const struct grid_levels *levels, uint8_t *out)
{
    memset(out + 64, 0, 8);
    for (size_t g = 0; g < 32; g++) {
        out[g] = (uint8_t)levels->index[g];
        out[32 + g] = levels->signs[g];
        out[64 + g / 4] |= (uint8_t)(levels->index[g] >> 8 << 2 * (g % 4));
    }
    pack_scale_pairs(levels->scale, 16, out + 72);
}

INLINE void iq2_s_unpack(const uint8_t *from, struct grid_levels *levels)
{
    for (size_t g = 0; g < 32; g++) {
        levels->index[g] = (uint16_t)(from[g] | (from[64 + g / 4] >> 2 * (g % 4) & 3) << 8);
        levels->signs[g] = from[32 + g];
    }
    unpack_scale_pairs(from + 72, 16, levels->scale);
}

static void iq2_s_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    encode_grid_rows(&iq2_s, &grid_iq2_s, IQ2_S_SIZE, iq2_s_pack, rows, count, columns, importance,
                     out);
}

static void iq2_s_decode(const uint8_t *blocks, size_t count, float *out)
{
    decode_grid_blocks(&iq2_s, &grid_iq2_s, IQ2_S_SIZE, iq2_s_unpack, 0.25f, two_bit_magnitudes, blocks,
                       count, out);
}
