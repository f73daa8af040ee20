/* The products with a Hessian in weightctl/codecs/feedback/columns.py, which is their definition.

   ABREAST rows of values are processed at a time, one in each lane: a tile has the values of a
   column beside each other. Each number is the sum of the same products in the same order for all
   instruction sets. The changes of FED_BACK columns are applied to the others at a time. */
#ifndef WEIGHTCTL_FEEDBACK_H
#define WEIGHTCTL_FEEDBACK_H

#include "half.h"
#include "rounding.h"

#include <math.h>

#define VECTORS (ABREAST / LANES)

/* Factor the lower triangle of a symmetric matrix in place: it becomes the unit lower L of
   H = L^T D L, without its diagonal, from the last row to the first. `space` has FED_BACK * n values. */
static void factor_hessian(float *h, size_t n, float *space)
{
    for (size_t last = n; last > 0;) {
        size_t first = last > FED_BACK ? last - FED_BACK : 0;
        for (size_t j = last; j-- > first;) {
            float *own = h + j * n, *unscaled = space + (j - first) * n, pivot = own[j];
            memcpy(unscaled, own, j * sizeof *own);
            for (size_t k = 0; k < j; k++)
                own[k] /= pivot;
            for (size_t i = first; i < j; i++)
                for (size_t k = 0; k <= i; k++)
                    h[i * n + k] -= unscaled[i] * own[k];
        }
        for (size_t i = 0; i < first; i++) {
            float *row = h + i * n;
            size_t k = 0;
            for (; k + 4 * LANES <= i + 1; k += 4 * LANES) {
                f32v sums[4];
                for (int v = 0; v < 4; v++)
                    sums[v] = f32v_load(row + k + v * LANES);
                for (size_t j = last; j-- > first;) {
                    float factor = space[(j - first) * n + i];
                    for (int v = 0; v < 4; v++)
                        sums[v] -= factor * f32v_load(h + j * n + k + v * LANES);
                }
                for (int v = 0; v < 4; v++)
                    f32v_store(row + k + v * LANES, sums[v]);
            }
            for (; k <= i; k++)
                for (size_t j = last; j-- > first;)
                    row[k] -= space[(j - first) * n + i] * h[j * n + k];
        }
        last = first;
    }
}

/* Add the products of `count` neighboring elements of each row of a matrix with `changes` to the
   rows from `start` to `stop`, or subtract them. */
INLINE void pass_on(const float *matrix, size_t n, size_t first, size_t count,
                    const lanes *changes, size_t start, size_t stop, int subtracts, lanes *to)
{
    for (size_t k = start; k < stop; k++) {
        const float *row = matrix + k * n + first;
        f32v sums[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            sums[v] = f32v_load(to[k] + v * LANES);
        for (size_t j = 0; j < count; j++)
            for (int v = 0; v < VECTORS; v++) {
                f32v product = row[j] * f32v_load(changes[j] + v * LANES);
                sums[v] = subtracts ? sums[v] - product : sums[v] + product;
            }
        for (int v = 0; v < VECTORS; v++)
            f32v_store(to[k] + v * LANES, sums[v]);
    }
}

/* The code of the nearest level; `otherwise` where the scale is 0. */
INLINE float nearest_code(const struct parts *parts, float value, float scale, float low,
                          float otherwise)
{
    float quotient = (value + low) / scale, code;
    if (parts->levels == NULL) {
        code = rintf(quotient);
        code = code >= parts->least ? code : parts->least;
        code = code > parts->most ? parts->most : code;
    } else {
        code = parts->levels[UNEVEN - 1];
        for (int i = UNEVEN - 2; i >= 0; i--)
            code = quotient < (parts->levels[i] + parts->levels[i + 1]) / 2 ? parts->levels[i] : code;
    }
    return scale == 0 ? otherwise : code;
}

/* Round the columns of the block from `first` on, whose scales and mins are given, and pass the
   errors on to all later columns of `wanted`. */
static void round_columns(const float *factor, size_t n, size_t first, const struct parts *parts,
                          const lanes *scales, const lanes *lows, const struct columns *columns)
{
    lanes errors[FED_BACK];
    float otherwise = parts->levels == NULL ? 0 : 1;
    for (size_t start = first; start < first + parts->block; start += FED_BACK) {
        for (size_t j = start; j < start + FED_BACK; j++) {
            const float *scale = scales[j - first], *low = lows[j - first];
            const float *own = columns->own[j], *wanted = columns->wanted[j];
            float *error = errors[j - start], *code = columns->codes[j];
            for (int i = 0; i < ABREAST; i++) {
                code[i] = nearest_code(parts, wanted[i], scale[i], low[i], otherwise);
                error[i] = own[i] - (code[i] * scale[i] - low[i]);
            }
            pass_on(factor, n, j, 1, errors + (j - start), j + 1, start + FED_BACK, 0,
                    columns->wanted);
        }
        pass_on(factor, n, start, FED_BACK, errors, start + FED_BACK, n, 0, columns->wanted);
    }
}

/* Choose the best code of each column, one after another, at given scales. `rest` is the product of
   the Hessian with what is left of the values. */
static void descend_codes(const float *h, size_t n, const struct parts *parts, const lanes *scales,
                          const lanes *lows, lanes *codes, lanes *rest)
{
    lanes before[FED_BACK], changes[FED_BACK];
    for (size_t start = 0; start < n; start += FED_BACK) {
        memcpy(before, rest + start, sizeof before);
        int any = 0;
        for (size_t j = start; j < start + FED_BACK; j++) {
            const float *scale = scales[j / parts->shared], *low = lows[j / parts->shared];
            float *change = changes[j - start], pivot = h[j * n + j];
            for (int i = 0; i < ABREAST; i++) {
                float value = codes[j][i] * scale[i] - low[i];
                float code = nearest_code(parts, value + before[j - start][i] / pivot, scale[i],
                                          low[i], codes[j][i]);
                change[i] = code * scale[i] - low[i] - value;
                codes[j][i] = code;
            }
            for (int i = 0; i < ABREAST; i++)
                any |= change[i] != 0;
            pass_on(h + start * n, n, j, 1, changes + (j - start), 0, FED_BACK, 1, before);
        }
        if (any)
            pass_on(h, n, start, FED_BACK, changes, 0, n, 1, rest);
    }
}

/* The factors of scales, or of mins, in the blocks or sub-blocks of a type: float16 numbers, or
   integers from `least` to `most`. */
struct factors {
    float least, most;
    int are_halves;
    float *values; /* ABREAST of them */
};

INLINE float round_factor(const struct factors *factors, float wanted, float before)
{
    float made = factors->are_halves ? f32_from_half(half_from_f32(wanted)) : rintf(wanted);
    made = made < factors->least ? factors->least : made;
    made = made > factors->most ? factors->most : made;
    return made - made == 0 ? made : before;
}

/* Set `changes` to what the best change of a factor adds to `count` columns, whose derivatives are
   `slopes`. */
static void fit_factor(const float *h, size_t n, size_t first, size_t count, const lanes *slopes,
                       const lanes *rest, struct factors *factors, lanes *changes)
{
    lanes gains = {0}, costs = {0};
    for (size_t k = 0; k < count; k++) {
        lanes product = {0};
        pass_on(h + (first + k) * n, n, first, count, slopes, 0, 1, 0, &product);
        for (int i = 0; i < ABREAST; i++) {
            gains[i] += slopes[k][i] * rest[k][i];
            costs[i] += slopes[k][i] * product[i];
        }
    }
    for (int i = 0; i < ABREAST; i++) {
        float before = factors->values[i], step = costs[i] > 0 ? gains[i] / costs[i] : 0;
        factors->values[i] = round_factor(factors, before + step, before);
        gains[i] = factors->values[i] - before;
    }
    for (size_t k = 0; k < count; k++)
        for (int i = 0; i < ABREAST; i++)
            changes[k][i] = slopes[k][i] * gains[i];
}

/* Fit the scale of `count` columns, and then their min if there are `low_slopes`. */
static void fit_columns(const float *h, size_t n, size_t first, size_t count, const lanes *slopes,
                        const lanes *low_slopes, struct factors *scales, struct factors *lows,
                        lanes *rest)
{
    lanes changes[BLOCKED], more[BLOCKED], left[BLOCKED];
    fit_factor(h, n, first, count, slopes, rest + first, scales, changes);
    if (low_slopes != NULL) {
        memcpy(left, rest + first, count * sizeof *left);
        pass_on(h + first * n, n, first, count, changes, 0, count, 1, left);
        fit_factor(h, n, first, count, low_slopes, left, lows, more);
        for (size_t k = 0; k < count; k++)
            for (int i = 0; i < ABREAST; i++)
                changes[k][i] += more[k][i];
    }
    pass_on(h, n, first, count, changes, 0, n, 1, rest);
}

/* Fit the factors of the columns from `first` to `stop`, whose values have the factors `scales` and
   `lows`, too: those of their block, or of each `each` columns. */
static void fit_scales(const float *h, size_t n, size_t first, size_t stop, const lanes *scales,
                       const lanes *lows, size_t each, struct factors *of_scales,
                       struct factors *of_lows, const lanes *codes, lanes *rest)
{
    lanes slopes[BLOCKED], low_slopes[BLOCKED];
    for (size_t j = first; j < stop; j++)
        for (int i = 0; i < ABREAST; i++) {
            slopes[j - first][i] = codes[j][i] * scales[j / each][i];
            if (lows != NULL)
                low_slopes[j - first][i] = -lows[j / each][i];
        }
    fit_columns(h, n, first, stop - first, slopes, lows == NULL ? NULL : low_slopes, of_scales,
                of_lows, rest);
}

static void refit_scales(const float *h, size_t n, const struct parts *parts,
                         const struct fitted *fitted, const lanes *codes, lanes *rest)
{
    int halves = !parts->has_factors, has_lows = fitted->lows != NULL;
    float least = halves ? -HUGE_VALF : parts->least_factor;
    float most = halves ? HUGE_VALF : parts->most_factor;
    for (size_t first = 0; first < n; first += parts->block) {
        size_t block = first / parts->block;
        struct factors scales = {-HUGE_VALF, HUGE_VALF, 1, fitted->block_scales[block]};
        struct factors lows = {0, HUGE_VALF, 1, has_lows ? fitted->block_lows[block] : NULL};
        if (!halves)
            fit_scales(h, n, first, first + parts->block, fitted->scales, fitted->lows,
                       parts->shared, &scales, &lows, codes, rest);
        for (size_t start = first; start < first + parts->block; start += parts->shared) {
            size_t group = start / parts->shared;
            scales = (struct factors){least, most, halves, fitted->scales[group]};
            lows = (struct factors){least, most, halves, has_lows ? fitted->lows[group] : NULL};
            fit_scales(h, n, start, start + parts->shared, fitted->block_scales,
                       fitted->block_lows, parts->block, &scales, &lows, codes, rest);
        }
    }
}

/* Fit the scales to the codes, and the codes to the scales, in turn. */
static void refine_codes(const float *h, size_t n, const struct parts *parts, size_t rounds,
                         const lanes *own, const struct fitted *fitted, lanes *codes, lanes *space)
{
    size_t groups = n / parts->shared, per_block = parts->block / parts->shared;
    lanes *rest = space, *scales = rest + n, *lows = scales + groups, *left = lows + groups;
    for (size_t round = 0; round <= 2 * rounds; round++) {
        if (round % 2 && parts->is_fixed)
            continue;
        if (round % 2) {
            refit_scales(h, n, parts, fitted, codes, rest);
            continue;
        }
        for (size_t g = 0; g < groups; g++)
            for (int i = 0; i < ABREAST; i++) {
                size_t block = g / per_block;
                scales[g][i] = fitted->scales[g][i] * fitted->block_scales[block][i];
                lows[g][i] = fitted->lows == NULL
                                 ? 0 : fitted->lows[g][i] * fitted->block_lows[block][i];
            }
        if (round) {
            descend_codes(h, n, parts, scales, lows, codes, rest);
            continue;
        }
        for (size_t j = 0; j < n; j++) {
            const float *scale = scales[j / parts->shared], *low = lows[j / parts->shared];
            for (int i = 0; i < ABREAST; i++)
                left[j][i] = own[j][i] - (codes[j][i] * scale[i] - low[i]);
        }
        memset(rest, 0, n * sizeof *rest);
        for (size_t j = 0; j < n; j += FED_BACK)
            pass_on(h, n, j, FED_BACK, left + j, 0, n, 0, rest);
    }
}

#undef VECTORS

#endif
