/* The product of a row of blocks with a few vectors, from the levels of the blocks.

   A value of Q4_K or Q5_K is a scale times a level, less a min. For a sub-block, the sum of the
   products with a vector is the scale times the sum of the products of the levels, less the min times
   the sum of the vector's values. These sums are the same for all rows. A value of Q6_K or Q8_0 is a
   scale times a signed level. */
#ifndef WEIGHTCTL_ROW_LEVELS_H
#define WEIGHTCTL_ROW_LEVELS_H

#include "lanes.h"
#include "nibbles.h"
#include "q8_0.h"
#include "scales_and_mins.h"

/* Columns and vectors at a time. The values stay in the caches near the core. */
#define COLUMNS 4096
#define VECTORS 4

/* A part of some vectors, each of `columns` values, and the sums of its values in sub-blocks. */
struct operands {
    const float *values;
    size_t columns;
    float sums[VECTORS][COLUMNS / 32];
};

/* Add the products of a row's blocks of Q4_K, or of Q5_K, with `count` vectors to `out`. */
INLINE void add_row_with_mins(const uint8_t *block, size_t blocks, const struct operands *given,
                              const int has_fifth_bits, const size_t count, size_t stride,
                              float *out)
{
    const size_t start = has_fifth_bits ? 48 : 16, size = start + 128;
    f32v all[VECTORS][2] = {{{0}}};
    float less[VECTORS][8] = {{0}};
    for (size_t b = 0; b < blocks; b++, block += size) {
        float scale[8], min[8];
        i32v fifth[32 / LANES] = {{0}};
        load_scales_and_mins(block, scale, min);
        for (size_t i = 0; has_fifth_bits && i < 32; i += LANES)
            fifth[i / LANES] = i32v_from_bytes(block + 16 + i) << 4;
        for (size_t n = 0; n < count; n++)
            for (size_t j = 0; j < 8; j++)
                less[n][j] += min[j] * given->sums[n][8 * b + j];
        for (size_t j = 0; j < 8; j += 2) {
            f32v sums[VECTORS][2] = {{{0}}};
            for (size_t i = 0; i < 32; i += LANES) {
                i32v bytes = i32v_from_bytes(block + start + 16 * j + i);
                i32v first = bytes & 15, second = bytes >> 4;
                if (has_fifth_bits) {
                    first |= fifth[i / LANES] & 16;
                    second |= fifth[i / LANES] >> 1 & 16;
                    fifth[i / LANES] >>= 2;
                }
                f32v low = __builtin_convertvector(first, f32v);
                f32v high = __builtin_convertvector(second, f32v);
                for (size_t n = 0; n < count; n++) {
                    const float *x = given->values + n * given->columns + 256 * b + 32 * j + i;
                    sums[n][0] = f32v_add_product(sums[n][0], low, f32v_load(x));
                    sums[n][1] = f32v_add_product(sums[n][1], high, f32v_load(x + 32));
                }
            }
            for (size_t n = 0; n < count; n++) {
                all[n][0] = f32v_add_product(all[n][0], sums[n][0], f32v_all(scale[j]));
                all[n][1] = f32v_add_product(all[n][1], sums[n][1], f32v_all(scale[j + 1]));
            }
        }
    }
    for (size_t n = 0; n < count; n++) {
        float sum = f32v_sum(all[n][0] + all[n][1]);
        for (size_t j = 0; j < 8; j++)
            sum -= less[n][j];
        out[n * stride] += sum;
    }
}

/* The same for Q6_K. */
INLINE void add_row_of_q6_k(const uint8_t *block, size_t blocks, const struct operands *given,
                            const size_t count, size_t stride, float *out)
{
    f32v all[VECTORS][2] = {{{0}}};
    for (size_t b = 0; b < blocks; b++, block += Q6_K_SIZE) {
        float scales[16];
        int8_t levels[256];
        for (size_t h = 0; h < 2; h++)
            q6_k_unpack(block + 64 * h, block + 128 + 32 * h, levels + 128 * h);
        q6_k_load_scales(block, scales);
        for (size_t j = 0; j < 16; j += 2)
            for (size_t i = 16 * j; i < 16 * j + 16; i += LANES) {
                f32v low = f32v_from_signed_bytes(levels + i) * scales[j];
                f32v high = f32v_from_signed_bytes(levels + i + 16) * scales[j + 1];
                for (size_t n = 0; n < count; n++) {
                    const float *x = given->values + n * given->columns + 256 * b + i;
                    all[n][0] = f32v_add_product(all[n][0], low, f32v_load(x));
                    all[n][1] = f32v_add_product(all[n][1], high, f32v_load(x + 16));
                }
            }
    }
    for (size_t n = 0; n < count; n++)
        out[n * stride] += f32v_sum(all[n][0] + all[n][1]);
}

/* The same for Q8_0. */
INLINE void add_row_of_q8_0(const uint8_t *block, size_t blocks, const struct operands *given,
                            const size_t count, size_t stride, float *out)
{
    f32v all[VECTORS][2] = {{{0}}};
    for (size_t b = 0; b < blocks; b++, block += Q8_0_SIZE) {
        const int8_t *levels = (const int8_t *)block + 2;
        float scale = half_load(block);
        for (size_t i = 0; i < 16; i += LANES) {
            f32v low = f32v_from_signed_bytes(levels + i) * scale;
            f32v high = f32v_from_signed_bytes(levels + i + 16) * scale;
            for (size_t n = 0; n < count; n++) {
                const float *x = given->values + n * given->columns + 32 * b + i;
                all[n][0] = f32v_add_product(all[n][0], low, f32v_load(x));
                all[n][1] = f32v_add_product(all[n][1], high, f32v_load(x + 16));
            }
        }
    }
    for (size_t n = 0; n < count; n++)
        out[n * stride] += f32v_sum(all[n][0] + all[n][1]);
}

#endif
