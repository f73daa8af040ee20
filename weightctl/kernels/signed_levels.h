/* What Q3_K and Q6_K share: blocks of 256 values in sixteen sub-blocks with signed scales. */
#ifndef WEIGHTCTL_SIGNED_LEVELS_H
#define WEIGHTCTL_SIGNED_LEVELS_H

#include "lanes.h"
#include "rounding.h"
#include "scale_search.h"
#include "transpose.h"

/* The result of the search for each sub-block: its scale, the inverse scale of its levels, and
   the sum of its weights. */
struct sub_blocks {
    float scale[16];
    float inverse[16];
    int32_t negligible[16];
    float weight[16];
};

/* Search the scales of the sub-blocks of x[256]. The weights are the squares, or `importance`, or
   ggml's combination of both if the mean square of the block is given. */
INLINE void fit_sub_blocks(const float *x, const float *importance, const float *mean_square,
                           int half, struct sub_blocks *found)
{
    for (size_t first = 0; first < 16; first += LANES) {
        f32v lanes[16], w[16], wx[16], sum = {0};
        transpose_rows(x + 16 * first, 16, 16, lanes);
        if (importance != NULL)
            transpose_rows(importance + 16 * first, 16, 16, w);
        for (size_t i = 0; i < 16; i++) {
            f32v square = lanes[i] * lanes[i];
            if (importance == NULL)
                w[i] = square;
            else if (mean_square != NULL)
                w[i] *= f32v_sqrt(*mean_square + square);
            wx[i] = w[i] * lanes[i];
            sum += w[i];
        }
        struct scale_fit fit = fit_scale(lanes, w, wx, 16, half, 1);
        f32v_store(found->scale + first, fit.scale);
        f32v_store(found->inverse + first, fit.inverse);
        memcpy(found->negligible + first, &fit.negligible, sizeof fit.negligible);
        f32v_store(found->weight + first, sum);
    }
}

/* The first scale of largest magnitude; 0 if all are NaN. */
INLINE float largest_scale(const float *scales)
{
    float largest = 0, magnitude = 0;
    for (size_t j = 0; j < 16; j++) {
        float other = __builtin_fabsf(scales[j]);
        if (other > magnitude) {
            magnitude = other;
            largest = scales[j];
        }
    }
    return largest;
}

/* The levels, plus `half`, of sub-block j of x[256] at the scale of the search. */
INLINE void levels_of_search(const float *x, const struct sub_blocks *found, size_t j, int half,
                             int32_t *levels)
{
    for (size_t i = 16 * j; i < 16 * j + 16; i += LANES) {
        i32v level = nearest_levels(f32v_load(x + i) * found->inverse[j], -half, half - 1) + half;
        level &= i32v_all(~found->negligible[j]);
        memcpy(levels + i, &level, sizeof level);
    }
}

/* The levels, plus `half`, of x[256] at the rounded scales of its sub-blocks; levels at a scale of
   0 are kept. */
INLINE void choose_levels(const float *x, const float *scales, int half, int32_t *levels)
{
    for (size_t j = 0; j < 16; j++) {
        if (scales[j] == 0)
            continue;
        for (size_t i = 16 * j; i < 16 * j + 16; i += LANES) {
            i32v level = nearest_levels(f32v_load(x + i) / scales[j], -half, half - 1) + half;
            memcpy(levels + i, &level, sizeof level);
        }
    }
}

#endif
