/* Sums of squares of blocks, one block per lane. */
#ifndef WEIGHTCTL_SQUARES_H
#define WEIGHTCTL_SQUARES_H

#include "lanes.h"
#include "transpose.h"

/* Fill `sums` with the sum of the squares of each of `count` blocks of 256 values, added from
   first to last; `count` is at most LANES. */
INLINE void sum_squares(const float *x, size_t count, float *sums)
{
    if (count == LANES) {
        f32v sum = {0}, lanes[16];
        for (size_t i = 0; i < 256; i += 16) {
            transpose_rows(x + i, 256, 16, lanes);
            for (size_t k = 0; k < 16; k++)
                sum += lanes[k] * lanes[k];
        }
        f32v_store(sums, sum);
        return;
    }
    for (size_t b = 0; b < count; b++, x += 256) {
        float sum = 0;
        for (size_t i = 0; i < 256; i++)
            sum += x[i] * x[i];
        sums[b] = sum;
    }
}

#endif
