/* Products of rows of blocks with a few vectors, without a table of decoded values. */
#ifndef WEIGHTCTL_PRODUCT_H
#define WEIGHTCTL_PRODUCT_H

#include "codec.h"
#include "lanes.h"
#include "level_products.h"

/* Values that are decoded at a time, a multiple of every block. They stay in the first-level cache. */
#define DECODED 1024
/* Vectors of sums, so that additions do not wait for each other. */
#define SUMS 4

/* The sum of the products of `count` pairs of values; `count` is a multiple of LANES, or less. */
INLINE float add_products(const float *x, const float *y, size_t count)
{
    f32v sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + SUMS * LANES <= count; i += SUMS * LANES)
        for (size_t s = 0; s < SUMS; s++)
            sums[s] = f32v_add_product(sums[s], f32v_load(x + i + s * LANES),
                                       f32v_load(y + i + s * LANES));
    float sum = 0;
    for (; i < count; i++)
        sum += x[i] * y[i];
    return sum + f32v_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/* `multiply_rows` for any encoding. */
static void multiply_decoded(const struct codec *codec, const uint8_t *blocks, size_t rows,
                             size_t columns, const float *vectors, size_t count, size_t stride,
                             float *out)
{
    float values[DECODED] __attribute__((aligned(64)));
    for (size_t r = 0; r < rows; r++) {
        for (size_t n = 0; n < count; n++)
            out[n * stride + r] = 0;
        for (size_t start = 0; start < columns; start += DECODED) {
            size_t size = columns - start < DECODED ? columns - start : DECODED;
            codec->decode(blocks, size / codec->block, values);
            blocks += size / codec->block * codec->size;
            for (size_t n = 0; n < count; n++)
                out[n * stride + r] += add_products(values, vectors + n * columns + start, size);
        }
    }
}

/* Set out[n * stride + r] to the product of row r with vector n, of `count` vectors. */
static void multiply_rows(const struct codec *codec, const uint8_t *blocks, size_t rows,
                          size_t columns, const float *vectors, size_t count, size_t stride,
                          float *out)
{
    if (find_levels_of(codec) != NOT_OF_LEVELS)
        multiply_levels(codec, blocks, rows, columns, vectors, count, stride, out);
    else
        multiply_decoded(codec, blocks, rows, columns, vectors, count, stride, out);
}

#endif
