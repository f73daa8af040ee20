/* IQ1_M: 256 values in sub-blocks of 16, groups of 8 levels, each shifted up or down.

   A byte for the index of each group is followed by four bits for each, its index above eight bits
   and whether it is shifted down, and by four words with the scales of four sub-blocks. The upper
   four bits of these words are the float16 scale of the block. */
#include "ternary_grids.h"

#define IQ1_M_SIZE 56

/* The scale of a block that fits the rounded scales of its sub-blocks. */
INLINE float iq1_m_fit_scale(const float *rows, const float *weights,
                             const struct ternary_levels *levels, const uint8_t *whole,
                             float of_scales)
{
    float sum_xl = 0, sum_l2 = 0;
    for (size_t i = 0; i < 256; i++) {
        const float *values = shifted_values[is_shifted_down(levels->shifts[i / 16], i / 8 % 2)];
        uint32_t code = grid_iq1.codes[levels->index[i / 8]];
        float value = values[code >> 2 * (i % 8) & 3] * (float)(2 * whole[i / 16] + 1);
        float weighted = weights[i] * value;
        sum_xl += weighted * rows[i];
        sum_l2 += weighted * value;
    }
    return sum_l2 > 0 ? sum_xl / sum_l2 : of_scales;
}

static void iq1_m_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    for (size_t n = 0; n < count * columns; n += 256, out += IQ1_M_SIZE) {
        float weights[256];
        struct ternary_levels levels;
        uint8_t whole[16];
        weigh_ternary_block(rows + n, importance == NULL ? NULL : importance + n % columns,
                            weights);
        fit_ternary_block(rows + n, weights, 16, 1e-7f, &levels);
        float of_scales = round_ternary_scales(levels.scale, 16, whole);
        if (of_scales != 0) {
            of_scales = iq1_m_fit_scale(rows + n, weights, &levels, whole, of_scales);
        } else {
            memset(whole, 0, sizeof whole);
            memset(levels.shifts, 0, sizeof levels.shifts);
        }
        uint32_t half = half_from_f32(of_scales * 1.1125f);
        memset(out + 32, 0, IQ1_M_SIZE - 32);
        for (size_t g = 0; g < 32; g++) {
            uint32_t high = (uint32_t)levels.index[g] >> 8;
            high |= (uint32_t)is_shifted_down(levels.shifts[g / 2], g % 2) << 3;
            out[g] = (uint8_t)levels.index[g];
            out[32 + g / 2] |= (uint8_t)(high << 4 * (g % 2));
        }
        for (size_t i = 0; i < 4; i++) {
            uint32_t word = (half >> 4 * i & 15) << 12;
            for (size_t s = 0; s < 4; s++)
                word |= (uint32_t)whole[4 * i + s] << 3 * s;
            out[48 + 2 * i] = (uint8_t)word;
            out[49 + 2 * i] = (uint8_t)(word >> 8);
        }
    }
}

static void iq1_m_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += IQ1_M_SIZE) {
        uint32_t words[4], half = 0;
        for (size_t i = 0; i < 4; i++) {
            words[i] = blocks[48 + 2 * i] | (uint32_t)blocks[49 + 2 * i] << 8;
            half |= words[i] >> 12 << 4 * i;
        }
        for (size_t g = 0; g < 32; g++, out += 8) {
            uint32_t high = blocks[32 + g / 2] >> 4 * (g % 2) & 15;
            uint32_t whole = words[g / 8] >> 3 * (g / 2 % 4) & 7;
            float scale = f32_from_half((uint16_t)half) * (float)(2 * whole + 1);
            decode_ternary_group(blocks[g] | (high & 7) << 8, scale, (int)(high >> 3), out);
        }
    }
}
