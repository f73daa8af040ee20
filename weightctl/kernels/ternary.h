/* What TQ1_0 and TQ2_0 share: 256 values as -1, 0 or 1 times the largest magnitude. */
#ifndef WEIGHTCTL_TERNARY_H
#define WEIGHTCTL_TERNARY_H

#include "magnitude.h"

/* Fill levels[256] with 0, 1 or 2 for x[256], and return the scale. */
INLINE float ternary_levels(const float *x, uint8_t *levels)
{
    float scale = greatest_magnitude(x, 256);
    float inverse = scale > 0 ? 1 / scale : 0;
    /* The inverse of a subnormal scale may be infinite; ggml's levels are then 1. */
    if (inverse > __FLT_MAX__)
        inverse = 0;
    for (size_t i = 0; i < 256; i += LANES) {
        f32v fraction = f32v_load(x + i) * inverse;
        i32v level = 1 - (fraction >= 0.5f) + (fraction <= -0.5f);
        for (size_t k = 0; k < LANES; k++)
            levels[i + k] = (uint8_t)level[k];
    }
    return scale;
}

/* Fill out[256] with levels less 1, times the scale. */
INLINE void ternary_numbers(const uint8_t *levels, float scale, float *out)
{
    for (size_t i = 0; i < 256; i++)
        out[i] = (float)(levels[i] - 1) * scale;
}

#endif
