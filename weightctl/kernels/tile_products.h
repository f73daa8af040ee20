/* Products of rows of blocks with many vectors, from tiles of decoded values.

   The vectors are arranged so that LANES of them are read at a time: a value of each, then the next
   value of each. A value of a row is multiplied with those. The values of a tile stay in the
   second-level cache, and the sums of a few of its rows with a few vectors in registers. */
#ifndef WEIGHTCTL_TILE_PRODUCTS_H
#define WEIGHTCTL_TILE_PRODUCTS_H

#include "codec.h"
#include "lanes.h"
#include "transpose.h"

/* Rows and vectors of lanes whose sums are in registers: there are 32 registers, or 16. */
#if LANES == 16 || defined(__aarch64__)
#define HEIGHT 12
#else
#define HEIGHT 6
#endif
#define WIDTH 2
/* The columns whose products are added up in a register, and then to a sum: a sum of all of them in
   one order is less exact. */
#define ADDED 64

/* Arrange the values of `count` vectors, of at most ARRANGED, as if others were zero. */
static void arrange_vectors(const float *vectors, size_t count, size_t columns, float *to)
{
    for (size_t first = 0; first < ARRANGED; first += LANES, to += LANES * columns) {
        size_t some = first < count ? count - first : 0, done = 0;
        const float *from = vectors + first * columns;
        if (some < LANES)
            memset(to, 0, LANES * columns * sizeof *to);
        else
            some = LANES;
        for (; some == LANES && done + 16 <= columns; done += 16) {
            f32v lanes[16];
            transpose_rows(from + done, columns, 16, lanes);
            memcpy(to + LANES * done, lanes, sizeof lanes);
        }
        for (size_t n = 0; n < some; n++)
            for (size_t c = done; c < columns; c++)
                to[LANES * c + n] = from[n * columns + c];
    }
}

/* Add the products of HEIGHT rows of a tile with `width` times LANES vectors to sums. `next` is the
   distance of the values of LANES vectors, and `pitch` that of the sums of a row. */
INLINE void add_products_of_rows(const float *rows, const float *x, size_t next, size_t depth,
                                 const size_t width, float *sums, size_t pitch)
{
    for (size_t c = 0; c < depth;) {
        const size_t end = c + ADDED < depth ? c + ADDED : depth;
        f32v all[HEIGHT][WIDTH] = {{{0}}};
        for (; c < end; c++) {
            f32v of_vectors[WIDTH];
            for (size_t v = 0; v < width; v++)
                of_vectors[v] = f32v_load(x + v * next + LANES * c);
#pragma GCC unroll 12
            for (size_t r = 0; r < HEIGHT; r++) {
                f32v value = f32v_all(rows[TILE_DISTANCE * r + c]);
                for (size_t v = 0; v < width; v++)
                    all[r][v] = f32v_add_product(all[r][v], value, of_vectors[v]);
            }
        }
        for (size_t r = 0; r < HEIGHT; r++)
            for (size_t v = 0; v < width; v++) {
                float *sum = sums + r * pitch + v * LANES;
                f32v_store(sum, f32v_load(sum) + all[r][v]);
            }
    }
}

/* Set out[n * stride + r] to the sum of row r and vector n. */
INLINE void store_sums(const float *sums, size_t pitch, size_t rows, size_t count, size_t stride,
                       float *out)
{
    size_t r = 0;
    for (; r + LANES <= rows; r += LANES)
        for (size_t n = 0; n < count; n += 16) {
            f32v lanes[16];
            transpose_rows(sums + r * pitch + n, pitch, 16, lanes);
            for (size_t i = 0; i < 16 && n + i < count; i++)
                f32v_store(out + (n + i) * stride + r, lanes[i]);
        }
    for (; r < rows; r++)
        for (size_t n = 0; n < count; n++)
            out[n * stride + r] = sums[r * pitch + n];
}

static void multiply_tile(const struct codec *codec, const uint8_t *blocks, size_t rows,
                          size_t columns, const float *arranged, size_t count, size_t stride,
                          float *out, float *space)
{
    const size_t padded = (count + ARRANGED - 1) / ARRANGED * ARRANGED, pitch = padded + 16;
    const size_t row_size = columns / codec->block * codec->size;
    float *sums = space, *tile = space + TILE_ROWS * pitch;
    memset(space, 0, TILE_SPACE(count) * sizeof *space);
    for (size_t start = 0; start < columns; start += TILE_COLUMNS) {
        size_t depth = columns - start < TILE_COLUMNS ? columns - start : TILE_COLUMNS;
        const uint8_t *from = blocks + start / codec->block * codec->size;
        for (size_t r = 0; r < rows; r++)
            codec->decode(from + r * row_size, depth / codec->block, tile + r * TILE_DISTANCE);
        for (size_t n = 0; n < padded; n += WIDTH * LANES) {
            const float *x = arranged + n * columns + LANES * start;
            for (size_t r = 0; r < rows; r += HEIGHT)
                if (n + LANES < padded)
                    add_products_of_rows(tile + r * TILE_DISTANCE, x, LANES * columns, depth, WIDTH,
                                         sums + r * pitch + n, pitch);
                else
                    add_products_of_rows(tile + r * TILE_DISTANCE, x, LANES * columns, depth, 1,
                                         sums + r * pitch + n, pitch);
        }
    }
    store_sums(sums, pitch, rows, count, stride, out);
}

#undef HEIGHT
#undef WIDTH
#undef ADDED

#endif
