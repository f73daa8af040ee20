/* IQ3_XXS: 256 values in sub-blocks of 32, groups of 4 levels, seven of eight signs.

   The float16 scale is followed by a byte for the index of each group, and a word for each
   sub-block with seven signs of each eight values and the scale above them. */
#include "signed_grids.h"

#define IQ3_XXS_SIZE 98

static const float iq3_xxs_magnitudes[8] = {4, 12, 20, 28, 36, 44, 52, 62};

static const struct grid_type iq3_xxs = {
    .length = 32, .bits = 3, .most = 7, .step = 0.2f, .steps = 15, .refitted = THOSE,
    .share = 2, .negligible = 1e-8f, .fudge = 1.0125f,
};

INLINE void iq3_xxs_pack(const struct grid_levels *levels, uint8_t *out)
{
    for (size_t g = 0; g < 64; g++)
        out[g] = (uint8_t)levels->index[g];
    for (size_t s = 0; s < 8; s++)
        pack_sevens(levels->signs + 4 * s, levels->scale[s], out + 64 + 4 * s);
}

INLINE void iq3_xxs_unpack(const uint8_t *from, struct grid_levels *levels)
{
    for (size_t g = 0; g < 64; g++)
        levels->index[g] = from[g];
    for (size_t s = 0; s < 8; s++)
        unpack_sevens(from + 64 + 4 * s, levels->signs + 4 * s, levels->scale + s);
}

static void iq3_xxs_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    encode_grid_rows(&iq3_xxs, &grid_iq3_xxs, IQ3_XXS_SIZE, iq3_xxs_pack, rows, count, columns, importance,
                     out);
}

static void iq3_xxs_decode(const uint8_t *blocks, size_t count, float *out)
{
    decode_grid_blocks(&iq3_xxs, &grid_iq3_xxs, IQ3_XXS_SIZE, iq3_xxs_unpack, 0.5f, iq3_xxs_magnitudes, blocks,
                       count, out);
}
