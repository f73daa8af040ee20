/* IQ3_S: 256 values in sub-blocks of 32, groups of 4 levels, all signs.

   The float16 scale is followed by a byte for the index of each group, the ninth bits of indices,
   a byte for the signs of each eight values, and the scales of sub-blocks in pairs. */
#include "signed_grids.h"

#define IQ3_S_SIZE 110

static const float iq3_s_magnitudes[8] = {1, 3, 5, 7, 9, 11, 13, 15};

static const struct grid_type iq3_s = {
    .length = 32, .bits = 3, .most = 7, .step = 0.2f, .steps = 9, .refitted = ALL,
    .share = 2, .negligible = 1e-45f, .fudge = 1.033f, .has_all_signs = 1,
};

INLINE void iq3_s_pack(const struct grid_levels *levels, uint8_t *out)
{
    memset(out + 64, 0, 8);
    for (size_t g = 0; g < 64; g++) {
        out[g] = (uint8_t)levels->index[g];
        out[64 + g / 8] |= (uint8_t)(levels->index[g] >> 8 << g % 8);
    }
    memcpy(out + 72, levels->signs, 32);
    pack_scale_pairs(levels->scale, 8, out + 104);
}

INLINE void iq3_s_unpack(const uint8_t *from, struct grid_levels *levels)
{
    for (size_t g = 0; g < 64; g++)
        levels->index[g] = (uint16_t)(from[g] | (from[64 + g / 8] >> g % 8 & 1) << 8);
    memcpy(levels->signs, from + 72, 32);
    unpack_scale_pairs(from + 104, 8, levels->scale);
}

static void iq3_s_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    encode_grid_rows(&iq3_s, &grid_iq3_s, IQ3_S_SIZE, iq3_s_pack, rows, count, columns, importance,
                     out);
}

static void iq3_s_decode(const uint8_t *blocks, size_t count, float *out)
{
    decode_grid_blocks(&iq3_s, &grid_iq3_s, IQ3_S_SIZE, iq3_s_unpack, 2, iq3_s_magnitudes, blocks,
                       count, out);
}
