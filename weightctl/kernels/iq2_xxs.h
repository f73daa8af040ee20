/* IQ2_XXS: 256 values in sub-blocks of 32, groups of 8 levels, seven of eight signs.

   The float16 scale is followed by two words for each sub-block: the indices of four groups, and
   seven signs of each with the scale above them. */
#include "signed_grids.h"

#define IQ2_XXS_SIZE 66

static const struct grid_type iq2_xxs = {
    .length = 32, .bits = 2, .most = 2, .step = 0.1f, .steps = 6, .refitted = ALWAYS,
    .share = 1, .negligible = NEGLIGIBLE, .fudge = 1, .fits_first = 1,
};

INLINE void iq2_xxs_pack(const struct grid_levels *levels, uint8_t *out)
{
    for (size_t s = 0; s < 8; s++, out += 8) {
        for (size_t g = 0; g < 4; g++)
            out[g] = (uint8_t)levels->index[4 * s + g];
        pack_sevens(levels->signs + 4 * s, levels->scale[s], out + 4);
    }
}

INLINE void iq2_xxs_unpack(const uint8_t *from, struct grid_levels *levels)
{
    for (size_t s = 0; s < 8; s++, from += 8) {
        for (size_t g = 0; g < 4; g++)
            levels->index[4 * s + g] = from[g];
        unpack_sevens(from + 4, levels->signs + 4 * s, levels->scale + s);
    }
}

static void iq2_xxs_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    encode_grid_rows(&iq2_xxs, &grid_iq2_xxs, IQ2_XXS_SIZE, iq2_xxs_pack, rows, count, columns, importance,
                     out);
}

static void iq2_xxs_decode(const uint8_t *blocks, size_t count, float *out)
{
    decode_grid_blocks(&iq2_xxs, &grid_iq2_xxs, IQ2_XXS_SIZE, iq2_xxs_unpack, 0.25f, two_bit_magnitudes, blocks,
                       count, out);
}
