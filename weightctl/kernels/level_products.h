/* Products of rows of blocks with a few vectors, from the levels of the blocks, for some encodings. */
#ifndef WEIGHTCTL_LEVEL_PRODUCTS_H
#define WEIGHTCTL_LEVEL_PRODUCTS_H

#include "codec.h"
#include "row_levels.h"

enum of_levels { NOT_OF_LEVELS, OF_Q4_K, OF_Q5_K, OF_Q6_K, OF_Q8_0 };

static enum of_levels find_levels_of(const struct codec *codec)
{
    return codec->decode == q4_k_decode   ? OF_Q4_K
           : codec->decode == q5_k_decode ? OF_Q5_K
           : codec->decode == q6_k_decode ? OF_Q6_K
           : codec->decode == q8_0_decode ? OF_Q8_0
                                          : NOT_OF_LEVELS;
}

INLINE void add_sub_blocks(struct operands *given, size_t count, size_t columns)
{
    for (size_t n = 0; n < count; n++)
        for (size_t j = 0; j < columns / 32; j++) {
            f32v sum = {0};
            for (size_t i = 0; i < 32; i += LANES)
                sum += f32v_load(given->values + n * given->columns + 32 * j + i);
            given->sums[n][j] = f32v_sum(sum);
        }
}

INLINE void add_row(const enum of_levels kind, const uint8_t *block, size_t blocks,
                    const struct operands *given, const size_t count, size_t stride, float *out)
{
    switch (kind) {
    case OF_Q6_K:
        add_row_of_q6_k(block, blocks, given, count, stride, out);
        break;
    case OF_Q8_0:
        add_row_of_q8_0(block, blocks, given, count, stride, out);
        break;
    default:
        add_row_with_mins(block, blocks, given, kind == OF_Q5_K, count, stride, out);
    }
}

INLINE void add_rows(const enum of_levels kind, const uint8_t *block, size_t row_size,
                     size_t rows, size_t blocks, const struct operands *given, size_t count,
                     size_t stride, float *out)
{
    for (size_t r = 0; r < rows; r++, block += row_size, out++)
        switch (count) {
        case 1:
            add_row(kind, block, blocks, given, 1, stride, out);
            break;
        case 2:
            add_row(kind, block, blocks, given, 2, stride, out);
            break;
        case 3:
            add_row(kind, block, blocks, given, 3, stride, out);
            break;
        default:
            add_row(kind, block, blocks, given, 4, stride, out);
        }
}

/* `multiply_rows` for encodings of levels. */
static void multiply_levels(const struct codec *codec, const uint8_t *blocks, size_t rows,
                            size_t columns, const float *vectors, size_t count, size_t stride,
                            float *out)
{
    const enum of_levels kind = find_levels_of(codec);
    const size_t row = columns / codec->block * codec->size;
    for (size_t n = 0; n < count; n++)
        for (size_t r = 0; r < rows; r++)
            out[n * stride + r] = 0;
    for (size_t first = 0; first < count; first += VECTORS)
        for (size_t start = 0; start < columns; start += COLUMNS) {
            size_t width = columns - start < COLUMNS ? columns - start : COLUMNS;
            size_t some = count - first < VECTORS ? count - first : VECTORS;
            struct operands given = {.values = vectors + first * columns + start,
                                     .columns = columns};
            const uint8_t *from = blocks + start / codec->block * codec->size;
            size_t number = width / codec->block;
            float *to = out + first * stride;
            if (kind == OF_Q4_K || kind == OF_Q5_K)
                add_sub_blocks(&given, some, width);
            switch (kind) {
            case OF_Q4_K:
                add_rows(OF_Q4_K, from, row, rows, number, &given, some, stride, to);
                break;
            case OF_Q5_K:
                add_rows(OF_Q5_K, from, row, rows, number, &given, some, stride, to);
                break;
            case OF_Q6_K:
                add_rows(OF_Q6_K, from, row, rows, number, &given, some, stride, to);
                break;
            default:
                add_rows(OF_Q8_0, from, row, rows, number, &given, some, stride, to);
            }
        }
}

#undef COLUMNS
#undef VECTORS

#endif
