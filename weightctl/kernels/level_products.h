/* Products of rows of Q4_K with a few vectors, from the levels of the blocks.

   A value is a scale times a level, less a min. For a sub-block, the sum of the products with a
   vector is the scale times the sum of the products of the levels, less the min times the sum of the
   vector's values. These sums are the same for all rows. */
#ifndef WEIGHTCTL_LEVEL_PRODUCTS_H
#define WEIGHTCTL_LEVEL_PRODUCTS_H

#include "lanes.h"
#include "nibbles.h"
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

INLINE void add_sub_blocks(struct operands *given, size_t blocks, size_t count)
{
    for (size_t n = 0; n < count; n++)
        for (size_t j = 0; j < 8 * blocks; j++) {
            f32v sum = {0};
            for (size_t i = 0; i < 32; i += LANES)
                sum += f32v_load(given->values + n * given->columns + 32 * j + i);
            given->sums[n][j] = f32v_sum(sum);
        }
}

/* Add the products of a row's blocks with `count` vectors to `out`. */
INLINE void add_row(const uint8_t *block, size_t blocks, const struct operands *given,
                    const size_t count, size_t stride, float *out)
{
    f32v all[VECTORS][2] = {{{0}}};
    float less[VECTORS][8] = {{0}};
    for (size_t b = 0; b < blocks; b++, block += Q4_K_SIZE) {
        float scale[8], min[8];
        load_scales_and_mins(block, scale, min);
        for (size_t n = 0; n < count; n++)
            for (size_t j = 0; j < 8; j++)
                less[n][j] += min[j] * given->sums[n][8 * b + j];
        for (size_t j = 0; j < 8; j += 2) {
            f32v sums[VECTORS][2] = {{{0}}};
            for (size_t i = 0; i < 32; i += LANES) {
                i32v bytes = i32v_from_bytes(block + 16 + 16 * j + i);
                f32v low = __builtin_convertvector(bytes & 15, f32v);
                f32v high = __builtin_convertvector(bytes >> 4, f32v);
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

/* `multiply_rows` for Q4_K. */
static void multiply_levels(const uint8_t *blocks, size_t rows, size_t columns,
                            const float *vectors, size_t count, size_t stride, float *out)
{
    const size_t row = columns / 256 * Q4_K_SIZE;
    for (size_t n = 0; n < count; n++)
        for (size_t r = 0; r < rows; r++)
            out[n * stride + r] = 0;
    for (size_t first = 0; first < count; first += VECTORS)
        for (size_t start = 0; start < columns; start += COLUMNS) {
            size_t some = (columns - start < COLUMNS ? columns - start : COLUMNS) / 256;
            size_t wide = count - first < VECTORS ? count - first : VECTORS;
            struct operands given = {.values = vectors + first * columns + start,
                                     .columns = columns};
            add_sub_blocks(&given, some, wide);
            const uint8_t *block = blocks + start / 256 * Q4_K_SIZE;
            float *to = out + first * stride;
            for (size_t r = 0; r < rows; r++, block += row, to++)
                switch (wide) {
                case 1:
                    add_row(block, some, &given, 1, stride, to);
                    break;
                case 2:
                    add_row(block, some, &given, 2, stride, to);
                    break;
                case 3:
                    add_row(block, some, &given, 3, stride, to);
                    break;
                default:
                    add_row(block, some, &given, 4, stride, to);
                }
        }
}

#undef COLUMNS
#undef VECTORS

#endif
