/* IQ1_S and IQ1_M: values as -1, 0 or 1, shifted by 1/8, at points of a grid, and scales.

   The same as weightctl/codecs/ternary_grids.py, which describes the search. The splits of the
   sorted values of a sub-block are compared many at a time, one in each lane. */
#ifndef WEIGHTCTL_TERNARY_GRIDS_H
#define WEIGHTCTL_TERNARY_GRIDS_H

#include <float.h>
#include <math.h>

#include "grid_search.h"
#include "half.h"
#include "rounding.h"

/* What is stored of a block: an index for each group, and for each sub-block its scale, and which
   halves are shifted down: none, the second, the first, or both. */
struct ternary_levels {
    uint16_t index[32];
    float scale[16];
    uint8_t shifts[16];
};

#define UP(x) (x) + 0.125f
#define DOWN(x) (x) - 0.125f
#define EIGHT_TIMES(a, b, c) \
    a, b, c, 0, a, b, c, 0, a, b, c, 0, a, b, c, 0, a, b, c, 0, a, b, c, 0, a, b, c, 0, a, b, c, 0
/* The values of levels, shifted up and shifted down, for each coordinate. */
static const float shifted_values[2][GROUP_TABLES] = {
    {EIGHT_TIMES(UP(-1), UP(0), UP(1))}, {EIGHT_TIMES(DOWN(-1), DOWN(0), DOWN(1))}};
#undef UP
#undef DOWN
#undef EIGHT_TIMES

/* Whether a group of a sub-block is shifted down. */
INLINE int is_shifted_down(int shifts, size_t group)
{
    return group == 0 ? shifts >> 1 : shifts & 1;
}

/* Set the weights of a block of 256 values; `importance` may be NULL. */
INLINE void weigh_ternary_block(const float *rows, const float *importance, float *weights)
{
    float sum = 0;
    for (size_t i = 0; i < 256; i++)
        sum += rows[i] * rows[i];
    float mean = 2 * sum / 256;
    for (size_t i = 0; i < 256; i += LANES) {
        f32v x = f32v_load(rows + i), squares = x * x;
        if (importance != NULL)
            squares = f32v_load(importance + i) * f32v_sqrt(mean + squares);
        f32v_store(weights + i, squares);
    }
}

/* Set place[i] to the place of value i of n in ascending order; equal values keep their order. */
INLINE void rank_values(const float *x, size_t n, uint8_t *place)
{
    for (size_t j = 0; j < n; j += LANES) {
        f32v here = f32v_load(x + j);
        i32v number, less = {0};
        for (size_t i = 0; i < LANES; i++)
            number[i] = (int32_t)(j + i);
        for (size_t i = 0; i < n; i++)
            less -= (x[i] < here) | ((x[i] == here) & ((int32_t)i < number));
        for (size_t i = 0; i < LANES; i++)
            place[j + i] = (uint8_t)less[i];
    }
}

/* The best split so far: sorted values before `first` have level 0, those from `second` on 2. */
struct split {
    float score, scale;
    int first, second, shifts;
};

/* Sums of the first 0, 1, 2 ... sorted values, followed by NaN for lanes beyond the last. */
#define MOST_SUMS (33 + LANES)

/* Splits with the same `first`, and `second` from `start` on, one in each lane: their sums of
   values times numbers, and of values squared, for each kind of shifts. */
struct splits {
    int first, start;
    f32v xl[4], l2[4];
};

#define MOST_SPLITS (33 * (33 + 2 * LANES) / (2 * LANES))

/* A split that scores less than this cannot be the best: a bit less than the highest score.

   Splits are compared in float32, and of splits that are equal but for rounding, the best depends
   on the order. But a split whose score is above a gap between scores, of a few units in the last
   place, replaces any below the gap. Between this limit and the highest score there is room for ten
   times as many such gaps as there are splits. If products could underflow or overflow, this is
   the least float. */
INLINE float least_score(const struct splits *splits, size_t count, size_t kinds, float weights)
{
    f32v squares[4], divisors[4], scores = {0};
    for (size_t k = 0; k < kinds; k++) {
        squares[k] = (f32v){0};
        divisors[k] = f32v_all(1);
    }
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < kinds; k++) {
            f32v square = splits[i].xl[k] * splits[i].xl[k], l2 = splits[i].l2[k];
            i32v higher = (l2 > 0) & (square * divisors[k] > squares[k] * l2);
            squares[k] = f32v_select(higher, square, squares[k]);
            divisors[k] = f32v_select(higher, l2, divisors[k]);
        }
    for (size_t k = 0; k < kinds; k++)
        scores = f32v_max(squares[k] / divisors[k], scores);
    float score = 0;
    for (size_t i = 0; i < LANES; i++)
        score = scores[i] > score ? scores[i] : score;
    int is_usual = score > 0x1p-80f && score < 0x1p80f && weights > 0x1p-40f && weights < 0x1p40f;
    return is_usual && score * weights > 0x1p-80f ? score * (1 - 1.0f / 64) : -FLT_MAX;
}

/* Find the best split, as if each that scores higher replaced the one before it. */
INLINE void find_best_split(const struct splits *splits, size_t count, size_t kinds, float weights,
                            const int *shifts, struct split *best)
{
    best->score = least_score(splits, count, kinds, weights);
    for (size_t i = 0; i < count; i++) {
        i32v higher = {0};
        for (size_t k = 0; k < kinds; k++) {
            f32v xl = splits[i].xl[k], l2 = splits[i].l2[k];
            higher |= (l2 > 0) & (xl * xl > best->score * l2);
        }
        for (uint32_t lanes = lanes_of(higher); lanes != 0; lanes &= lanes - 1) {
            size_t lane = (size_t)__builtin_ctz(lanes);
            for (size_t k = 0; k < kinds; k++) {
                float xl = splits[i].xl[k][lane], l2 = splits[i].l2[k][lane];
                if (!(l2 > 0 && xl * xl > best->score * l2))
                    continue;
                best->scale = xl / l2;
                best->score = best->scale * xl;
                best->first = splits[i].first;
                best->second = splits[i].start + (int)lane;
                best->shifts = shifts[k];
            }
        }
    }
}

/* Set sums[i] to the sum of the first i of n terms. */
INLINE void accumulate(const float *terms, size_t n, float *sums)
{
    sums[0] = 0;
    for (size_t i = 0; i < n; i++)
        sums[i + 1] = sums[i] + terms[i];
    for (size_t i = n + 1; i < MOST_SUMS; i++)
        sums[i] = NAN;
}

/* Find the best split of 32 values whose halves are both shifted up or both down. */
INLINE void split_whole(const float *x, const float *weights, const uint8_t *place,
                        struct split *best)
{
    static const int shifts[2] = {0, 3};
    float sorted_x[32], sorted_w[32], sum_x[MOST_SUMS], sum_w[MOST_SUMS];
    for (size_t i = 0; i < 32; i++) {
        sorted_x[place[i]] = weights[i] * x[i];
        sorted_w[place[i]] = weights[i];
    }
    accumulate(sorted_x, 32, sum_x);
    accumulate(sorted_w, 32, sum_w);
    struct splits splits[MOST_SPLITS];
    size_t count = 0;
    for (int first = 0; first <= 32; first++)
        for (int start = first; start <= 32; start += LANES, count++) {
            f32v second_x = f32v_load(sum_x + start), second_w = f32v_load(sum_w + start);
            f32v middle_x = second_x - sum_x[first], high_x = sum_x[32] - second_x;
            f32v middle_w = second_w - sum_w[first], high_w = sum_w[32] - second_w;
            splits[count].first = first;
            splits[count].start = start;
            for (size_t k = 0; k < 2; k++) {
                const float *value = shifted_values[k];
                splits[count].xl[k] = sum_x[first] * value[0] + middle_x * value[1] + high_x * value[2];
                splits[count].l2[k] = sum_w[first] * value[0] * value[0] +
                                      middle_w * value[1] * value[1] +
                                      high_w * value[2] * value[2];
            }
        }
    find_best_split(splits, count, 2, sum_w[32], shifts, best);
}

/* Find the best split of 16 values whose halves are each shifted up or down. */
INLINE void split_halves(const float *x, const float *weights, const uint8_t *place,
                         struct split *best)
{
    static const int shifts[4] = {0, 1, 2, 3};
    float sum_x[2][MOST_SUMS], sum_w[2][MOST_SUMS];
    for (size_t half = 0; half < 2; half++) {
        float sorted_x[16] = {0}, sorted_w[16] = {0};
        for (size_t i = 8 * half; i < 8 * half + 8; i++) {
            sorted_x[place[i]] = weights[i] * x[i];
            sorted_w[place[i]] = weights[i];
        }
        accumulate(sorted_x, 16, sum_x[half]);
        accumulate(sorted_w, 16, sum_w[half]);
    }
    struct splits splits[MOST_SPLITS];
    size_t count = 0;
    for (int first = 0; first <= 16; first++)
        for (int start = first; start <= 16; start += LANES, count++) {
            f32v half_xl[2][2], half_l2[2][2];
            for (size_t half = 0; half < 2; half++) {
                f32v outside = sum_x[half][first] + f32v_load(sum_x[half] + start);
                f32v second_w = f32v_load(sum_w[half] + start);
                float all_x = sum_x[half][16], all_w = sum_w[half][16];
                for (size_t k = 0; k < 2; k++) {
                    const float *value = shifted_values[k];
                    float low = value[0] * value[0] - value[1] * value[1];
                    float high = value[1] * value[1] - value[2] * value[2];
                    half_xl[half][k] = all_x * value[2] - outside;
                    half_l2[half][k] = all_w * value[2] * value[2] + sum_w[half][first] * low +
                                       second_w * high;
                }
            }
            splits[count].first = first;
            splits[count].start = start;
            for (size_t k = 0; k < 4; k++) {
                splits[count].xl[k] = half_xl[0][k >> 1] + half_xl[1][k & 1];
                splits[count].l2[k] = half_l2[0][k >> 1] + half_l2[1][k & 1];
            }
        }
    find_best_split(splits, count, 4, sum_w[0][16] + sum_w[1][16], shifts, best);
}

#undef MOST_SUMS
#undef MOST_SPLITS

/* Find the grid points of a sub-block whose values are split, and the scale that fits them. */
INLINE float place_split(const float *x, const float *weights, const uint8_t *place, size_t length,
                         const struct split *split, uint16_t *index)
{
    const struct grid *grid = &grid_iq1;
    float sum_xl = 0, sum_l2 = 0;
    int is_off_grid = 0;
    uint32_t codes[4] = {0};
    for (size_t i = 0; i < length; i++) {
        uint32_t level = (uint32_t)((place[i] >= split->first) + (place[i] >= split->second));
        codes[i / 8] |= level << 2 * (i % 8);
    }
    /* The lists of the grid do not fit into the first-level cache. */
    for (size_t g = 0; g < length / 8; g++)
        for (size_t i = 0; i < 96; i += 32)
            __builtin_prefetch(grid->near + grid->points[codes[g]].first + i);
    for (size_t g = 0; g < length / 8; g++, x += 8, weights += 8) {
        const float *values = shifted_values[is_shifted_down(split->shifts, g)];
        struct group_tables tables;
        fill_group(x, weights, 2, &tables);
        uint32_t found = nearest_point(grid, codes[g], &tables, values, split->scale, 2);
        is_off_grid |= found != codes[g];
        index[g] = grid->points[found].index;
        for (size_t i = 0; i < 8; i++) {
            float value = values[found >> 2 * i & 3], weighted = weights[i] * value;
            sum_xl += weighted * x[i];
            sum_l2 += weighted * value;
        }
    }
    return is_off_grid && sum_xl > 0 && sum_l2 > 0 ? sum_xl / sum_l2 : split->scale;
}

/* Find what to store of a block of 256 values in sub-blocks of 32 or 16. */
INLINE void fit_ternary_block(const float *rows, const float *weights, size_t length,
                              float negligible, struct ternary_levels *levels)
{
    memset(levels, 0, sizeof *levels);
    for (size_t s = 0; s < 256 / length; s++, rows += length, weights += length) {
        float peak = 0;
        for (size_t i = 0; i < length; i++) {
            float magnitude = __builtin_fabsf(rows[i]);
            peak = magnitude > peak ? magnitude : peak;
        }
        uint8_t place[32];
        struct split split = {-FLT_MAX, 0, -1, -1, 0};
        if (peak < negligible)
            continue;
        rank_values(rows, length, place);
        if (length == 32)
            split_whole(rows, weights, place, &split);
        else
            split_halves(rows, weights, place, &split);
        if (split.second < 0)
            continue;
        if (split.scale < 0) { /* this exchanges the outer levels, and the shifts */
            split.scale = -split.scale;
            split.shifts = 3 - split.shifts;
            int first = split.first;
            split.first = (int)length - split.second;
            split.second = (int)length - first;
            for (size_t i = 0; i < length; i++)
                place[i] = (uint8_t)(length - 1 - place[i]);
        }
        uint16_t index[4];
        float scale = place_split(rows, weights, place, length, &split, index);
        if (scale != scale)
            continue;
        memcpy(levels->index + length / 8 * s, index, length / 8 * sizeof *index);
        levels->scale[s] = scale;
        levels->shifts[s] = (uint8_t)split.shifts;
    }
}

/* Set the 3-bit scales of sub-blocks, and return the scale of the block. */
INLINE float round_ternary_scales(const float *scale, size_t count, uint8_t *whole)
{
    float most = 0;
    for (size_t s = 0; s < count; s++)
        most = scale[s] > most ? scale[s] : most;
    float of_scales = most / 15, inverse = 1 / of_scales;
    for (size_t s = 0; s < count; s++) {
        int32_t rounded = nearest_int(0.5f * (inverse * scale[s] - 1));
        whole[s] = (uint8_t)(rounded < 0 ? 0 : rounded > 7 ? 7 : rounded);
    }
    return of_scales;
}

/* Fill out[8] with the values of a grid point. */
INLINE void decode_ternary_group(size_t index, float scale, int shifted_down, float *out)
{
    const float *values = shifted_values[shifted_down];
    uint32_t code = grid_iq1.codes[index];
    for (size_t i = 0; i < 8; i++)
        out[i] = scale * values[code >> 2 * i & 3];
}

#endif
