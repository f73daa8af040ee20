/* The search for one unsigned scale, a group of values in each lane: ggml's `make_qp_quants`. */
#ifndef WEIGHTCTL_UNSIGNED_SEARCH_H
#define WEIGHTCTL_UNSIGNED_SEARCH_H

#include "lanes.h"
#include "rounding.h"
#include "scale_search.h"

/* Find levels 0 to `most` and a scale such that the n values x are near scale * level; return the
   scale. All weights are positive or 0. For negative x, a level wraps around like a byte. The same
   as `fit_unsigned_scale` in weightctl/codecs/scale_search.py. */
INLINE f32v fit_unsigned_scale(const f32v *x, const f32v *w, size_t n, int most, i32v *levels)
{
    f32v peak = {0}, least_error = {0};
    for (size_t i = 0; i < n; i++)
        peak = f32v_max(peak, x[i]); /* a NaN counts as greater, and so does the value after it */
    f32v inverse = (float)most / peak, scale = 1 / inverse;
    for (size_t i = 0; i < n; i++) {
        f32v level = __builtin_convertvector(nearest_ints(inverse * x[i]) & 255, f32v);
        f32v difference = x[i] - scale * level;
        least_error += w[i] * difference * difference;
    }
    for (int step = -4; step <= 4; step++) {
        if (step == 0)
            continue;
        f32v other = (0.1f * (float)step + (float)most) / peak, error = {0};
        scale = 1 / other;
        for (size_t i = 0; i < n; i++) {
            i32v level = i32v_min(nearest_ints(other * x[i]), i32v_all(most));
            f32v difference = x[i] - scale * __builtin_convertvector(level, f32v);
            error += w[i] * difference * difference;
        }
        i32v better = error < least_error;
        least_error = f32v_select(better, error, least_error);
        inverse = f32v_select(better, other, inverse);
    }

    f32v sum_lx = {0}, sum_l2 = {0};
    for (size_t i = 0; i < n; i++) {
        levels[i] = i32v_min(nearest_ints(inverse * x[i]), i32v_all(most));
        f32v level = __builtin_convertvector(levels[i], f32v);
        levels[i] &= 255;
        sum_lx += w[i] * x[i] * level;
        sum_l2 += w[i] * level * level;
    }
    i32v changed = i32v_all(-1);
    for (int pass = 0; pass < 5 && i32v_any(changed); pass++) {
        changed = i32v_all(0);
        for (size_t i = 0; i < n; i++) {
            f32v old = __builtin_convertvector(levels[i], f32v), weighted = w[i] * x[i];
            f32v rest_lx = sum_lx - weighted * old, rest_l2 = sum_l2 - w[i] * old * old;
            i32v level = i32v_min(nearest_ints(x[i] * rest_l2 / rest_lx), i32v_all(most));
            f32v new = __builtin_convertvector(level, f32v);
            f32v new_lx = rest_lx + weighted * new, new_l2 = rest_l2 + w[i] * new * new;
            i32v better = (rest_lx > 0) & (rest_l2 > 0) & (level != levels[i]) &
                          (new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2);
            levels[i] = i32v_select(better, level & 255, levels[i]);
            sum_lx = f32v_select(better, new_lx, sum_lx);
            sum_l2 = f32v_select(better, new_l2, sum_l2);
            changed |= better;
        }
    }

    i32v negligible = peak < NEGLIGIBLE;
    for (size_t i = 0; i < n; i++)
        levels[i] &= ~negligible;
    scale = f32v_select(sum_l2 > 0, sum_lx / sum_l2, (f32v){0});
    return f32v_select(negligible, (f32v){0}, scale);
}

#endif
