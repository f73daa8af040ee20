/* Words of 32 bits in the order of GPTQ and AWQ: rows of words that were columns of a table. */
#ifndef WEIGHTCTL_WORDS_H
#define WEIGHTCTL_WORDS_H

#include "transpose.h"

#include <stddef.h>

/* The numbers of rows and of columns of words that are exchanged at a time: lines of a cache have
   16 words. */
#define ACROSS 16
#define DOWN 64

INLINE size_t least_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void transpose_words(const uint32_t *restrict from, size_t rows, size_t columns,
                            uint32_t *restrict to)
{
    f32v lanes[ACROSS]; /* of any bits: they are only moved */
    for (size_t left = 0; left < columns; left += ACROSS) {
        size_t right = least_of(left + ACROSS, columns), top = 0;
        for (; right - left == ACROSS && top + LANES <= rows; top += LANES) {
            transpose_rows((const float *)(from + top * columns + left), columns, ACROSS, lanes);
            for (size_t i = 0; i < ACROSS; i++)
                memcpy(to + (left + i) * rows + top, &lanes[i], sizeof lanes[i]);
        }
        for (; top < rows; top++)
            for (size_t c = left; c < right; c++)
                to[c * rows + top] = from[top * columns + c];
    }
}

/* The words of `width` columns of eight rows of codes, whose places in a word `order` has. */
INLINE void pack_words(const uint8_t *restrict rows, size_t columns, const uint8_t *order,
                       size_t width, uint32_t *restrict words)
{
    const uint8_t *row[8];
    for (size_t k = 0; k < 8; k++)
        row[k] = rows + order[k] * columns;
    for (size_t c = 0; c < width; c++) {
        uint8_t a = (uint8_t)(row[0][c] | row[1][c] << 4), b = (uint8_t)(row[2][c] | row[3][c] << 4);
        uint8_t d = (uint8_t)(row[4][c] | row[5][c] << 4), e = (uint8_t)(row[6][c] | row[7][c] << 4);
        words[c] = (uint32_t)a | (uint32_t)b << 8 | (uint32_t)d << 16 | (uint32_t)e << 24;
    }
}

static void pack_row_groups(const uint8_t *codes, size_t groups, size_t columns,
                            const uint8_t *order, uint32_t *restrict to)
{
    uint32_t words[ACROSS][DOWN];
    for (size_t first = 0; first < groups; first += ACROSS) {
        size_t some = least_of(ACROSS, groups - first);
        for (size_t left = 0; left < columns; left += DOWN) {
            size_t width = least_of(DOWN, columns - left);
            for (size_t g = 0; g < some; g++)
                pack_words(codes + (first + g) * 8 * columns + left, columns, order, width,
                           words[g]);
            for (size_t c = 0; c < width; c++)
                for (size_t g = 0; g < some; g++)
                    to[(left + c) * groups + first + g] = words[g][c];
        }
    }
}

#undef ACROSS
#undef DOWN

#endif
