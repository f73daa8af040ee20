/* Blocks of 32 values, one in each lane, and ggml's weights of the values: the importance of the
   column times the root of the value's square plus the mean square of the row. */
#ifndef WEIGHTCTL_WEIGHTED_BLOCKS_H
#define WEIGHTCTL_WEIGHTED_BLOCKS_H

#include "lanes.h"
#include "nibbles.h"
#include "transpose.h"

/* At most LANES rows; `variance` has the mean square of each. */
struct weighted_rows {
    const float *numbers, *importance;
    size_t blocks, blocks_per_row;
    float variance[LANES];
};

INLINE struct weighted_rows weight_rows(const float *numbers, size_t count, size_t columns,
                                        const float *importance)
{
    struct weighted_rows rows = {numbers, importance, count * (columns / 32), columns / 32, {0}};
    f32v sum = {0};
    if (count == LANES) {
        for (size_t i = 0; i < columns; i += 4) {
            f32v x[4];
            transpose_rows(numbers + i, columns, 4, x);
            for (size_t j = 0; j < 4; j++)
                sum += x[j] * x[j];
        }
    } else {
        for (size_t row = 0; row < count; row++)
            for (size_t i = 0; i < columns; i++) {
                float x = numbers[row * columns + i];
                sum[row] += x * x;
            }
    }
    f32v_store(rows.variance, sum / (float)columns);
    return rows;
}

/* Fill x[i] with value i of the blocks from `first`, and weights[i] with its weights, for i < 32.
   Lanes beyond the last block are zero. */
INLINE void weighted_blocks(const struct weighted_rows *rows, size_t first, f32v *x, f32v *weights)
{
    float numbers[LANES * 32] = {0}, columns[LANES * 32] = {0}, variance[LANES] = {0};
    for (size_t i = 0; i < LANES && first + i < rows->blocks; i++) {
        size_t row = (first + i) / rows->blocks_per_row;
        size_t place = (first + i) % rows->blocks_per_row;
        memcpy(numbers + 32 * i, rows->numbers + 32 * (first + i), 32 * sizeof *numbers);
        memcpy(columns + 32 * i, rows->importance + 32 * place, 32 * sizeof *columns);
        variance[i] = rows->variance[row];
    }
    transpose_rows(numbers, 32, 32, x);
    transpose_rows(columns, 32, 32, weights);
    for (size_t i = 0; i < 32; i++)
        weights[i] *= f32v_sqrt(f32v_load(variance) + x[i] * x[i]);
}

/* Levels packed as by `nibbles_pack`: four words of low bits, and one of fifth bits. */
struct packed_lanes {
    i32v low[4];
    i32v high;
};

INLINE struct packed_lanes pack_lanes(const i32v *levels)
{
    struct packed_lanes packed = {{{0}}, {0}};
    for (int i = 0; i < 16; i++) {
        i32v byte = (levels[i] & 15) | (levels[i + 16] & 15) << 4;
        packed.low[i / 4] |= byte << 8 * (i % 4);
    }
    for (int i = 0; i < 32; i++)
        packed.high |= (levels[i] >> 4 & 1) << i;
    return packed;
}

INLINE void store_lane(const struct packed_lanes *packed, size_t lane, uint8_t *high, uint8_t *low)
{
    int32_t words[4], bits = packed->high[lane];
    for (int i = 0; i < 4; i++)
        words[i] = packed->low[i][lane];
    memcpy(low, words, sizeof words);
    if (high != NULL)
        memcpy(high, &bits, sizeof bits);
}

#endif
