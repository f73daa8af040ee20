/* The searches for scales and mins that the K encodings share, one group of values in each lane.

   They compute the same as weightctl/codecs/scale_search.py: each lane does the same float
   operations in the same order. */
#ifndef WEIGHTCTL_K_SEARCH_H
#define WEIGHTCTL_K_SEARCH_H

#include "lanes.h"
#include "rounding.h"

/* The range of the quotients of a search, which are rounded to levels. */
enum quotients {
    BELOW_MOST, /* from -2^20 to less than the greatest level plus 0.5 */
    MODERATE,   /* from -2^20 to 2^20 */
    WRAPPING,   /* any; those beyond any integer wrap around, as in `nearest_int` */
    SATURATING, /* any; those beyond any integer have the nearest level, 0 for NaN */
};

/* The bits of ROUNDER. */
#define ROUNDER_BITS 0x4B400000

/* Quotients as levels 0 to `most`, in float32. */
INLINE f32v round_to_levels(f32v values, int most, enum quotients quotients)
{
    if (quotients == SATURATING)
        values = f32v_min(f32v_max(values, (f32v){0}), f32v_all((float)most));
    i32v bits = (i32v)(values + ROUNDER);
    if (quotients == WRAPPING)
        bits = (bits & 0x7FFFFF) | 0x4B000000;
    /* Positive floats sort as their bits do, and processors have more units that compare integers
       than units that compare floats. */
    if (quotients != SATURATING)
        bits = i32v_max(bits, i32v_all(ROUNDER_BITS));
    if (quotients == MODERATE || quotients == WRAPPING)
        bits = i32v_min(bits, i32v_all(ROUNDER_BITS + most));
    return (f32v)bits - ROUNDER;
}

/* The number of vectors of groups that are searched together, limited by the registers. They hide
   the latency of each other's sums. The `count` values of a vector's groups follow those of the
   previous vector. */
#define FIT_VECTORS 4

/* A search for a scale and a min, and its result: values are near `scale` * level + `low`, where
   level is (value - `origin`) * `inverse`, rounded and clamped. */
struct fit {
    f32v scale[FIT_VECTORS], low[FIT_VECTORS];
    f32v inverse[FIT_VECTORS], origin[FIT_VECTORS];
    f32v sum_w[FIT_VECTORS]; /* of the weights */

    f32v sum_x[FIT_VECTORS]; /* of the weighted values */
    f32v least[FIT_VECTORS], greatest[FIT_VECTORS];
    f32v error[FIT_VECTORS];
    f32v next_inverse[FIT_VECTORS], next_scale[FIT_VECTORS], next_low[FIT_VECTORS];
    i32v solvable[FIT_VECTORS];
    int moderate; /* the range of quotients with `next_inverse` */
};

/* Sets the extremes and the sums of groups of `count` values. */
INLINE void begin_fit(const f32v *x, const f32v *weights, size_t count, struct fit *fit)
{
    for (size_t v = 0; v < FIT_VECTORS; v++, x += count, weights += count) {
        f32v low = x[0], high = x[0], sum_w = {0}, sum_x = {0};
        for (size_t i = 0; i < count; i++) {
            low = f32v_min(x[i], low);
            high = f32v_max(x[i], high);
            sum_w += weights[i];
            sum_x += weights[i] * x[i];
        }
        /* `f32v_min` returns the second of two equal values, so that a low of -0 stays -0. */
        fit->least[v] = fit->low[v] = fit->origin[v] = f32v_min((f32v){0}, low);
        fit->greatest[v] = high;
        fit->sum_w[v] = sum_w;
        fit->sum_x[v] = sum_x;
    }
}

/* Sets the inverse scale that spreads the values over `numerator` levels. */
INLINE void spread(float numerator, struct fit *fit)
{
    i32v moderate = i32v_all(-1);
    for (size_t v = 0; v < FIT_VECTORS; v++) {
        f32v range = fit->greatest[v] - fit->low[v];
        /* Equal values have levels of 0: 0 gives the same as infinity, and is MODERATE. */
        f32v inverse = (f32v)((i32v)(numerator / range) & (range != 0));
        moderate &= (range >= 0) & (range * inverse < 0x1p20f);
        moderate &= (fit->least[v] - fit->low[v]) * inverse > -0x1p20f;
        fit->next_inverse[v] = inverse;
    }
    fit->moderate = !i32v_any(~moderate);
}

INLINE void round_quotients(const f32v *x, const struct fit *fit, size_t count, int most,
                            enum quotients quotients, f32v *levels)
{
    f32v inverse[FIT_VECTORS], low[FIT_VECTORS];
    memcpy(inverse, fit->next_inverse, sizeof inverse);
    memcpy(low, fit->low, sizeof low);
#pragma GCC unroll 2
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < FIT_VECTORS; v++) {
            f32v quotient = (x[v * count + i] - low[v]) * inverse[v];
            levels[v * count + i] = round_to_levels(quotient, most, quotients);
        }
}

/* Sets the levels for the next inverse scale, `numerator` divided by the range. */
INLINE void choose_next_levels(const f32v *x, const struct fit *fit, size_t count, int most,
                               float numerator, enum quotients unknown, f32v *levels)
{
    if (!fit->moderate)
        round_quotients(x, fit, count, most, unknown, levels);
    else if (numerator < (float)most + 0.45f)
        round_quotients(x, fit, count, most, BELOW_MOST, levels);
    else
        round_quotients(x, fit, count, most, MODERATE, levels);
}

/* Sums over weight * level, weight * level * level and weight * level * value. */
struct sums {
    f32v l[FIT_VECTORS], l2[FIT_VECTORS], xl[FIT_VECTORS];
};

/* Not in one loop with the rounding: that chain of operations per value is longer than a processor
   looks ahead, so it would stall. */
INLINE void sum_over_levels(const f32v *x, const f32v *weights, const f32v *levels, size_t count,
                            struct sums *sums)
{
    f32v l[FIT_VECTORS] = {{0}}, l2[FIT_VECTORS] = {{0}}, xl[FIT_VECTORS] = {{0}};
#pragma GCC unroll 2
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < FIT_VECTORS; v++) {
            f32v level = levels[v * count + i], weighted = weights[v * count + i] * level;
            l[v] += weighted;
            l2[v] += weighted * level;
            xl[v] += weighted * x[v * count + i];
        }
    memcpy(sums->l, l, sizeof l);
    memcpy(sums->l2, l2, sizeof l2);
    memcpy(sums->xl, xl, sizeof xl);
}

/* Sets the scale and the min that are best for the levels of the sums. */
INLINE void solve(const struct sums *sums, struct fit *fit)
{
    for (size_t v = 0; v < FIT_VECTORS; v++) {
        f32v l = sums->l[v], l2 = sums->l2[v], xl = sums->xl[v];
        f32v determinant = fit->sum_w[v] * l2 - l * l;
        f32v scale = (fit->sum_w[v] * xl - fit->sum_x[v] * l) / determinant;
        f32v low = (l2 * fit->sum_x[v] - l * xl) / determinant;
        i32v positive = low > 0;
        if (i32v_any(positive)) {
            scale = f32v_select(positive, xl / l2, scale);
            low = f32v_select(positive, (f32v){0}, low);
        }
        fit->next_scale[v] = scale;
        fit->next_low[v] = low;
        fit->solvable[v] = determinant > 0;
    }
}

/* The sums of the weighted errors of levels: of their squares, or their magnitudes. */
INLINE void measure_error(const f32v *x, const f32v *weights, const f32v *levels,
                          const f32v *scale_of, const f32v *low_of, size_t count, int use_mad,
                          f32v *error)
{
    f32v sum[FIT_VECTORS] = {{0}}, scale[FIT_VECTORS], low[FIT_VECTORS];
    memcpy(scale, scale_of, sizeof scale);
    memcpy(low, low_of, sizeof low);
#pragma GCC unroll 2
    for (size_t i = 0; i < count; i++)
#pragma GCC unroll 4
        for (size_t v = 0; v < FIT_VECTORS; v++) {
            f32v difference = scale[v] * levels[v * count + i] + low[v] - x[v * count + i];
            if (use_mad)
                difference = f32v_abs(difference);
            else
                difference *= difference;
            sum[v] += weights[v * count + i] * difference;
        }
    memcpy(error, sum, sizeof sum);
}

/* Keeps the trial in the lanes where its error is smaller. */
INLINE void accept(const f32v *error, struct fit *fit)
{
    for (size_t v = 0; v < FIT_VECTORS; v++) {
        i32v better = fit->solvable[v] & (error[v] < fit->error[v]);
        fit->error[v] = f32v_select(better, error[v], fit->error[v]);
        fit->inverse[v] = f32v_select(better, fit->next_inverse[v], fit->inverse[v]);
        fit->origin[v] = f32v_select(better, fit->low[v], fit->origin[v]);
        fit->scale[v] = f32v_select(better, fit->next_scale[v], fit->scale[v]);
        fit->low[v] = f32v_select(better, fit->next_low[v], fit->low[v]);
    }
}

/* Fits levels 0 to `most` to groups of `count` values, at most 32. Tries the inverse scales
   (`first` + `step` * i + `most`) / range for i from 0 to `steps`, fits scale and min to the levels
   of each by weighted least squares, and keeps the fit with the least weighted error: of squares,
   or of magnitudes with `use_mad`. Mirrors ggml's `make_qkx2_quants` and, with `saturate`, its
   `make_qkx3_quants`. All arguments except the vectors are constants in every call. */
INLINE void fit_scale_and_min(const f32v *x, const f32v *weights, size_t count, int most,
                              float first, float step, int steps, int use_mad, int saturate,
                              struct fit *fit)
{
    const enum quotients unknown = saturate ? SATURATING : WRAPPING;
    f32v levels[32 * FIT_VECTORS], error[FIT_VECTORS];
    struct sums sums;

    begin_fit(x, weights, count, fit);
    for (size_t v = 0; v < FIT_VECTORS; v++) {
        f32v inverse = (float)most / (fit->greatest[v] - fit->low[v]);
        fit->scale[v] = 1 / inverse;
        /* Before the first trial, ggml's levels are 0 if the range is too near 0. */
        fit->inverse[v] = f32v_select(inverse == __builtin_inff(), (f32v){0}, inverse);
        fit->next_inverse[v] = fit->inverse[v];
    }
    round_quotients(x, fit, count, most, unknown, levels);
    measure_error(x, weights, levels, fit->scale, fit->low, count, use_mad, fit->error);
    for (int i = 0; i <= steps; i++) {
        float numerator = first + step * (float)i + (float)most;
        spread(numerator, fit);
        choose_next_levels(x, fit, count, most, numerator, unknown, levels);
        sum_over_levels(x, weights, levels, count, &sums);
        solve(&sums, fit);
        measure_error(x, weights, levels, fit->next_scale, fit->next_low, count, use_mad, error);
        accept(error, fit);
    }
}

#endif
