/* The search for one signed scale, a block in each lane: ggml's `make_qx_quants`. */
#ifndef WEIGHTCTL_SCALE_SEARCH_H
#define WEIGHTCTL_SCALE_SEARCH_H

#include "lanes.h"
#include "rounding.h"

/* A block whose magnitudes are all below this counts as zero: ggml's GROUP_MAX_EPS. */
#define NEGLIGIBLE 1e-15f

/* The result for each lane: the scale, and the factor that turns a value into its level. If values
   are negligible, the scale is 0, and so are the lane's `levels` and what ggml stores for them
   (otherwise it stores the level plus `half`). */
struct scale_fit {
    f32v scale;
    f32v inverse;
    i32v negligible;
};

/* The first value of largest magnitude. */
INLINE f32v first_peak(const f32v *x, size_t n)
{
    f32v peak = {0}, greatest = {0};
    for (size_t i = 0; i < n; i++) {
        f32v magnitude = f32v_abs(x[i]);
        i32v greater = magnitude > greatest;
        peak = f32v_select(greater, x[i], peak);
        greatest = f32v_select(greater, magnitude, greatest);
    }
    return peak;
}

/* The sides on which a product of value and inverse scale may round to a level outside of
   -half..half - 1. */
enum clamped { NEITHER, ABOVE, BOTH, ANYWHERE };

/* Set the sums of weight * x * level and of weight * level * level over the n values. */
INLINE void correlate(const f32v *x, const f32v *w, const f32v *wx, size_t n, int half,
                      f32v inverse, enum clamped clamped, f32v *sum_lx, f32v *sum_l2)
{
    f32v lx = {0}, l2 = {0};
    for (size_t i = 0; i < n; i++) {
        f32v level;
        if (clamped == ANYWHERE) {
            level = __builtin_convertvector(nearest_levels(x[i] * inverse, -half, half - 1), f32v);
        } else {
            level = x[i] * inverse + ROUNDER;
            if (clamped != NEITHER)
                level = f32v_min(level, f32v_all(ROUNDER + (float)(half - 1)));
            if (clamped == BOTH)
                level = f32v_max(level, f32v_all(ROUNDER - (float)half));
            level -= ROUNDER;
        }
        lx += wx[i] * level;
        l2 += w[i] * level * level;
    }
    *sum_lx = lx;
    *sum_l2 = l2;
}

INLINE void try_scale(const f32v *x, const f32v *w, const f32v *wx, size_t n, int half, int step,
                      f32v peak, enum clamped clamped, struct scale_fit *fit, f32v *best)
{
    f32v sum_lx, sum_l2;
    f32v inverse = -((float)half + 0.1f * (float)step) / peak;
    correlate(x, w, wx, n, half, inverse, clamped, &sum_lx, &sum_l2);
    i32v better = (sum_l2 > 0) & (sum_lx * sum_lx > *best * sum_l2);
    f32v scale = sum_lx / sum_l2;
    fit->inverse = f32v_select(better, inverse, fit->inverse);
    fit->scale = f32v_select(better, scale, fit->scale);
    *best = f32v_select(better, scale * sum_lx, *best);
}

/* Find, in each lane, a scale such that the n values x are near scale * level, with levels
   -half..half - 1. `w` are the weights and `wx` their products with x. `finite` says that no x is
   NaN or infinite. */
INLINE struct scale_fit fit_scale(const f32v *x, const f32v *w, const f32v *wx, size_t n, int half,
                                  int finite)
{
    struct scale_fit fit;
    f32v sum_lx, sum_l2, peak = first_peak(x, n);
    fit.negligible = f32v_abs(peak) < NEGLIGIBLE;
    fit.inverse = (float)-half / peak;
    correlate(x, w, wx, n, half, fit.inverse, finite ? ABOVE : ANYWHERE, &sum_lx, &sum_l2);
    fit.scale = f32v_select(sum_l2 != 0, sum_lx / sum_l2, (f32v){0});
    f32v best = fit.scale * sum_lx;
    /* The magnitude of a product is at most half + step / 10, except for rounding; its sign is
       negative for the peak, which has level -half. */
    for (int step = -9; step <= -6; step++)
        try_scale(x, w, wx, n, half, step, peak, finite ? NEITHER : ANYWHERE, &fit, &best);
    for (int step = -5; step <= 4; step++)
        if (step != 0)
            try_scale(x, w, wx, n, half, step, peak, finite ? ABOVE : ANYWHERE, &fit, &best);
    for (int step = 5; step <= 9; step++)
        try_scale(x, w, wx, n, half, step, peak, finite ? BOTH : ANYWHERE, &fit, &best);
    fit.scale = f32v_select(fit.negligible, (f32v){0}, fit.scale);
    return fit;
}

/* The levels, plus `half`, of a fit. */
INLINE i32v fitted_levels(f32v x, const struct scale_fit *fit, int half)
{
    return ~fit->negligible & (nearest_levels(x * fit->inverse, -half, half - 1) + half);
}

#endif
