/* IQ1_S: 256 values in sub-blocks of 32, groups of 8 levels, shifted together.

   The float16 scale is followed by a byte for the index of each group, and a word for each
   sub-block: for each of four groups the index above eight bits, then the scale, and in the top bit
   whether the sub-block is shifted down. */
#include "ternary_grids.h"

#define IQ1_S_SIZE 50

static void iq1_s_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    for (size_t n = 0; n < count * columns; n += 256, out += IQ1_S_SIZE) {
        float weights[256];
        struct ternary_levels levels;
        uint8_t whole[8];
        weigh_ternary_block(rows + n, importance + n % columns, weights);
        fit_ternary_block(rows + n, weights, 32, 1e-12f, &levels);
        float of_scales = round_ternary_scales(levels.scale, 8, whole);
        half_store(out, of_scales * 1.125f);
        for (size_t s = 0; s < 8; s++) {
            uint32_t word = 0;
            if (of_scales != 0)
                word = (uint32_t)whole[s] << 12 | (uint32_t)(levels.shifts[s] > 0) << 15;
            for (size_t g = 0; g < 4; g++) {
                out[2 + 4 * s + g] = (uint8_t)levels.index[4 * s + g];
                word |= (uint32_t)levels.index[4 * s + g] >> 8 << 3 * g;
            }
            out[34 + 2 * s] = (uint8_t)word;
            out[35 + 2 * s] = (uint8_t)(word >> 8);
        }
    }
}

static void iq1_s_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += IQ1_S_SIZE)
        for (size_t s = 0; s < 8; s++) {
            uint32_t word = blocks[34 + 2 * s] | (uint32_t)blocks[35 + 2 * s] << 8;
            float scale = half_load(blocks) * (float)(2 * (word >> 12 & 7) + 1);
            for (size_t g = 0; g < 4; g++, out += 8) {
                size_t index = blocks[2 + 4 * s + g] | (word >> 3 * g & 7) << 8;
                decode_ternary_group(index, scale, (int)(word >> 15), out);
            }
        }
}
