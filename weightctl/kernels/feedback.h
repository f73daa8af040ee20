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

/* Subtract the products of the rows from `last` down to `first` with their elements in `space` from
   `count` rows from `row` on, up to the diagonal. Neighboring rows share what is loaded. */
INLINE void subtract_rows(float *h, size_t n, size_t first, size_t last, size_t row, size_t count,
                          const float *space)
{
    size_t k = 0;
    for (; k + 4 * LANES <= row + 1; k += 4 * LANES) {
        f32v sums[2][4];
        for (size_t r = 0; r < count; r++)
            for (int v = 0; v < 4; v++)
                sums[r][v] = f32v_load(h + (row + r) * n + k + v * LANES);
        for (size_t j = last; j-- > first;)
            for (int v = 0; v < 4; v++) {
                f32v other = f32v_load(h + j * n + k + v * LANES);
                for (size_t r = 0; r < count; r++)
                    sums[r][v] -= space[(j - first) * n + row + r] * other;
            }
        for (size_t r = 0; r < count; r++)
            for (int v = 0; v < 4; v++)
                f32v_store(h + (row + r) * n + k + v * LANES, sums[r][v]);
    }
    for (size_t r = 0; r < count; r++)
        for (size_t rest = k; rest <= row + r; rest++)
            for (size_t j = last; j-- > first;)
                h[(row + r) * n + rest] -= space[(j - first) * n + row + r] * h[j * n + rest];
}

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
        size_t i = 0;
        for (; i + 2 <= first; i += 2)
            subtract_rows(h, n, first, last, i, 2, space);
        for (; i < first; i++)
            subtract_rows(h, n, first, last, i, 1, space);
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

/* Add the products of `count` columns, an even number, of FED_BACK rows of a matrix with `changes`.
   Neighboring columns share what is loaded. */
static void gather_errors(const float *matrix, size_t n, const lanes *changes, size_t count,
                         lanes *to)
{
    for (size_t k = 0; k < count; k += 2) {
        f32v sums[2][VECTORS];
        for (int r = 0; r < 2; r++)
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = f32v_load(to[k + r] + v * LANES);
        for (size_t j = 0; j < FED_BACK; j++)
            for (int v = 0; v < VECTORS; v++) {
                f32v change = f32v_load(changes[j] + v * LANES);
                for (int r = 0; r < 2; r++)
                    sums[r][v] += matrix[j * n + k + r] * change;
            }
        for (int r = 0; r < 2; r++)
            for (int v = 0; v < VECTORS; v++)
                f32v_store(to[k + r] + v * LANES, sums[r][v]);
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
   `slopes`. `rest` is the product of the Hessian with what is left of the values. */
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

/* Fit the scale of `count` columns of a block, and then their min if there are `low_slopes`. */
static void fit_columns(const float *h, size_t n, size_t block, size_t first, size_t count,
                        const lanes *slopes, const lanes *low_slopes, struct factors *scales,
                        struct factors *lows, lanes *rest)
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
    pass_on(h, n, first, count, changes, 0, block, 1, rest);
}

/* Fit the scales of the sub-blocks of a block to its codes, and their mins; `fitted` begins with it. */
static void refit_scales(const float *h, size_t n, const struct parts *parts,
                         const struct fitted *fitted, const lanes *codes, lanes *rest)
{
    int halves = !parts->has_factors, has_lows = fitted->lows != NULL;
    float least = halves ? -HUGE_VALF : parts->least_factor;
    float most = halves ? HUGE_VALF : parts->most_factor;
    const float *scale = fitted->block_scales[0], *low = has_lows ? fitted->block_lows[0] : NULL;
    lanes slopes[BLOCKED], low_slopes[BLOCKED];
    for (size_t part = 0; part < parts->block; part += parts->shared) {
        size_t group = part / parts->shared;
        for (size_t k = 0; k < parts->shared; k++)
            for (int i = 0; i < ABREAST; i++) {
                slopes[k][i] = codes[part + k][i] * scale[i];
                if (has_lows)
                    low_slopes[k][i] = -low[i];
            }
        struct factors scales = {least, most, halves, fitted->scales[group]};
        struct factors lows = {least, most, halves, has_lows ? fitted->lows[group] : NULL};
        fit_columns(h, n, parts->block, part, parts->shared, slopes, has_lows ? low_slopes : NULL,
                    &scales, &lows, rest);
    }
}

/* Choose the best code of each column of a block, one after another. */
static void descend_codes(const float *h, size_t n, const struct parts *parts, const lanes *scales,
                          const lanes *lows, lanes *codes, lanes *rest)
{
    for (size_t j = 0; j < parts->block; j++) {
        const float *scale = scales[j / parts->shared], *low = lows[j / parts->shared];
        float pivot = h[j * n + j];
        lanes change;
        int any = 0;
        for (int i = 0; i < ABREAST; i++) {
            float value = codes[j][i] * scale[i] - low[i];
            float code = nearest_code(parts, value + rest[j][i] / pivot, scale[i], low[i],
                                      codes[j][i]);
            change[i] = code * scale[i] - low[i] - value;
            codes[j][i] = code;
        }
        for (int i = 0; i < ABREAST; i++)
            any |= change[i] != 0;
        if (any)
            pass_on(h, n, j, 1, &change, 0, parts->block, 1, rest);
    }
}

/* Set the scales and mins of the sub-blocks of a block, and what is left of its values. */
static void find_errors(const struct parts *parts, const struct fitted *fitted, const lanes *own,
                        const lanes *codes, lanes *scales, lanes *lows, lanes *errors)
{
    for (size_t g = 0; g < parts->block / parts->shared; g++)
        for (int i = 0; i < ABREAST; i++) {
            scales[g][i] = fitted->scales[g][i] * fitted->block_scales[0][i];
            lows[g][i] = fitted->lows == NULL ? 0 : fitted->lows[g][i] * fitted->block_lows[0][i];
        }
    for (size_t j = 0; j < parts->block; j++) {
        const float *scale = scales[j / parts->shared], *low = lows[j / parts->shared];
        for (int i = 0; i < ABREAST; i++)
            errors[j][i] = own[j][i] - (codes[j][i] * scale[i] - low[i]);
    }
}

/* What belongs to the blocks from `first` on. */
static struct fitted skip_blocks(const struct fitted *fitted, size_t first,
                                 const struct parts *parts)
{
    size_t block = first / parts->block, group = first / parts->shared;
    int has_lows = fitted->lows != NULL;
    return (struct fitted){fitted->block_scales + block,
                           has_lows ? fitted->block_lows + block : NULL, fitted->scales + group,
                           has_lows ? fitted->lows + group : NULL};
}

/* Fit the scales to the codes, and the codes to the scales, in one block after another. `errors` has
   room for all columns. */
static void refine_codes(const float *h, size_t n, const struct parts *parts, size_t rounds,
                         const lanes *own, const struct fitted *all, lanes *codes, lanes *errors)
{
    lanes rest[BLOCKED], scales[BLOCKED], lows[BLOCKED];
    for (size_t first = 0; first < n; first += parts->block) {
        struct fitted fitted = skip_blocks(all, first, parts);
        find_errors(parts, &fitted, own + first, codes + first, scales, lows, errors + first);
    }
    for (size_t round = 0; round < rounds; round++)
        for (size_t first = 0; first < n; first += parts->block) {
            struct fitted fitted = skip_blocks(all, first, parts);
            const float *local = h + first * n + first;
            memset(rest, 0, sizeof rest);
            for (size_t j = 0; j < n; j += FED_BACK)
                gather_errors(h + j * n + first, n, errors + j, parts->block, rest);
            if (!parts->is_fixed)
                refit_scales(local, n, parts, &fitted, codes + first, rest);
            find_errors(parts, &fitted, own + first, codes + first, scales, lows, errors + first);
            descend_codes(local, n, parts, scales, lows, codes + first, rest);
            find_errors(parts, &fitted, own + first, codes + first, scales, lows, errors + first);
        }
}

#undef VECTORS

#endif
