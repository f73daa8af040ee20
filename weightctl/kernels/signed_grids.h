/* IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S: magnitudes at points of a grid, signs, and scales.

   The same as weightctl/codecs/signed_grids.py, which describes the search. All trials of a
   sub-block are made together, one in each lane. */
#ifndef WEIGHTCTL_SIGNED_GRIDS_H
#define WEIGHTCTL_SIGNED_GRIDS_H

#include "grid_search.h"
#include "half.h"
#include "rounding.h"
#include "transpose.h"
#include "unsigned_search.h"

/* Which groups are fitted again with the scale that was found. */
enum refitted { THOSE, ALL, ALWAYS };

/* A type, with the fields of `_Type`. `most` is its largest level, 2 or 7. */
struct grid_type {
    size_t length;
    int bits, most;
    float step;
    int steps;
    enum refitted refitted;
    float share, unweighted, negligible, fudge;
    int fits_first, has_all_signs;
};

/* What is stored of a block: an index for each group, signs as bits of each eight values, and the
   scales of the sub-blocks. */
struct grid_levels {
    uint16_t index[64];
    uint8_t signs[32];
    uint8_t scale[16];
    float of_scales;
};

#define MOST_TRIALS 32

/* A sub-block during the search: magnitudes, which are negative where the stored sign is not that
   of the value; the weights and their roots; and the codes of its groups. */
struct sub_block {
    float x[32], weights[32], roots[32];
    uint16_t code[8];
    uint8_t signs[4];
    float peak, scale;
};

INLINE size_t coordinates_of(const struct grid_type *type)
{
    return GROUP_TABLES >> type->bits;
}

/* Set the magnitudes and signs of a sub-block to those of `from`. */
INLINE void split_signs(const struct grid_type *type, const float *from, struct sub_block *sub)
{
    for (size_t k = 0; k < type->length; k += 8) {
        uint32_t signs = 0;
        for (size_t i = 0; i < 8; i++) {
            int is_negative = !(from[k + i] >= 0);
            signs |= (uint32_t)is_negative << i;
            sub->x[k + i] = is_negative ? -from[k + i] : from[k + i];
        }
        if (!type->has_all_signs && __builtin_parity(signs)) {
            size_t place = 0;
            float least = sub->weights[k] * from[k] * from[k];
            for (size_t i = 1; i < 8; i++) {
                float cost = sub->weights[k + i] * from[k + i] * from[k + i];
                place = cost < least ? i : place;
                least = cost < least ? cost : least;
            }
            sub->x[k + place] = -sub->x[k + place];
            signs ^= 1u << place;
        }
        sub->signs[k / 8] = (uint8_t)signs;
    }
    sub->peak = sub->x[0];
    for (size_t i = 1; i < type->length; i++)
        sub->peak = sub->peak > sub->x[i] ? sub->peak : sub->x[i];
}

/* The code of a group at an inverse scale of each lane. */
INLINE u32v codes_at(const struct grid_type *type, const float *x, f32v inverse)
{
    u32v code = {0};
    for (size_t c = 0; c < coordinates_of(type); c++) {
        i32v level = (i32v)(0.5f * (inverse * x[c] - 1) + ROUNDER) & 0x7FFFFF;
        level = i32v_min(level, i32v_all(0x400000 + type->most));
        level = i32v_max(level, i32v_all(0x400000)) - 0x400000;
        code |= (u32v)level << (uint32_t)(type->bits * (int)c);
    }
    return code;
}

/* 1, 3, 5 ... for levels of 2 bits and of 3 bits. */
static const float odd_values[2][GROUP_TABLES] = {
    {1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7},
    {1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15,
     1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15}};

/* Add the weighted sums of odd levels times values, and of odd levels squared, for the codes of a
   group in each lane. */
INLINE void correlate_codes(const struct grid_type *type, const float *x, const float *weights,
                            u32v codes, f32v *sum_xl, f32v *sum_l2)
{
    for (size_t c = 0; c < coordinates_of(type); c++) {
        u32v level = codes >> (uint32_t)(type->bits * (int)c) & (uint32_t)((1 << type->bits) - 1);
        f32v odd = __builtin_convertvector((i32v)(2 * level + 1), f32v);
        *sum_xl += weights[c] * x[c] * odd;
        *sum_l2 += weights[c] * odd * odd;
    }
}

/* Try the scales of a type; returns which groups the best one put on the grid, as bits. */
INLINE uint32_t try_scales(const struct grid_type *type, const struct grid *grid,
                           struct sub_block *sub)
{
    size_t trials = (size_t)(2 * type->steps + 1), coordinates = coordinates_of(type);
    size_t groups = type->length / coordinates;
    uint32_t codes[8][MOST_TRIALS];
    uint32_t off_grid[MOST_TRIALS] = {0};
    const float *odd = odd_values[type->bits - 2];
    float inverse[MOST_TRIALS], scale[MOST_TRIALS];
    for (size_t t = 0; t < MOST_TRIALS; t++)
        inverse[t] = (float)((int)t - type->steps);
    for (size_t t = 0; t < trials; t += LANES) {
        f32v most = f32v_all((float)(2 * type->most + 1));
        f32v trial = (most + f32v_load(inverse + t) * type->step) / sub->peak;
        f32v_store(inverse + t, trial);
        f32v_store(scale + t, 1 / trial);
    }
    for (size_t g = 0; g < groups; g++) {
        const float *x = sub->x + coordinates * g;
        struct group_tables tables;
        fill_group(x, sub->roots + coordinates * g, type->bits, &tables);
        for (size_t t = 0; t < trials; t += LANES) {
            u32v found = codes_at(type, x, f32v_load(inverse + t));
            memcpy(codes[g] + t, &found, sizeof found);
        }
        for (size_t t = 0; t < trials; t++) {
            uint32_t code = nearest_point(grid, codes[g][t], &tables, odd, scale[t], type->bits);
            off_grid[t] |= (uint32_t)(code != codes[g][t]) << g;
            codes[g][t] = code;
        }
    }
    float sum_xl[MOST_TRIALS], sum_l2[MOST_TRIALS];
    for (size_t t = 0; t < trials; t += LANES) {
        f32v xl = {0}, l2 = {0};
        for (size_t g = 0; g < groups; g++) {
            u32v each;
            memcpy(&each, codes[g] + t, sizeof each);
            correlate_codes(type, sub->x + coordinates * g, sub->weights + coordinates * g, each,
                            &xl, &l2);
        }
        f32v_store(sum_xl + t, xl);
        f32v_store(sum_l2 + t, l2);
    }
    float best = 0;
    size_t chosen = MOST_TRIALS;
    for (size_t t = 0; t < trials; t++)
        if (sum_l2[t] > 0 && sum_xl[t] * sum_xl[t] > best * sum_l2[t]) {
            sub->scale = sum_xl[t] / sum_l2[t];
            best = sub->scale * sum_xl[t];
            chosen = t;
        }
    uint32_t all = (1u << groups) - 1;
    if (chosen == MOST_TRIALS) {
        memset(sub->code, 0, sizeof sub->code);
        return type->refitted == THOSE ? all : 0;
    }
    for (size_t g = 0; g < groups; g++)
        sub->code[g] = (uint16_t)codes[g][chosen];
    return all & ~off_grid[chosen];
}

/* Choose the points of groups again with the scale that was found, and then the scale. */
INLINE void refit(const struct grid_type *type, const struct grid *grid, uint32_t on_grid,
                  struct sub_block *sub)
{
    size_t coordinates = coordinates_of(type), groups = type->length / coordinates;
    uint32_t all = (1u << groups) - 1, again = all & ~on_grid;
    if (type->refitted == ALWAYS || (type->refitted == ALL && again != 0))
        again = all;
    if (again == 0 || !(sub->scale > 0))
        return;
    f32v inverse = f32v_all(1 / sub->scale);
    for (size_t g = 0; g < groups; g++) {
        if (!(again >> g & 1))
            continue;
        struct group_tables tables;
        fill_group(sub->x + coordinates * g, sub->roots + coordinates * g, type->bits, &tables);
        uint32_t code = codes_at(type, sub->x + coordinates * g, inverse)[0];
        sub->code[g] = nearest_point(grid, code, &tables, odd_values[type->bits - 2], sub->scale,
                                      type->bits);
    }
    float sum_xl = 0, sum_l2 = 0;
    for (size_t i = 0; i < type->length; i++) {
        uint32_t code = sub->code[i / coordinates] >> (uint32_t)type->bits * (i % coordinates);
        float odd = (float)(2 * (code & (uint32_t)((1 << type->bits) - 1)) + 1);
        sum_xl += sub->weights[i] * sub->x[i] * odd;
        sum_l2 += sub->weights[i] * odd * odd;
    }
    if (sum_l2 > 0)
        sub->scale = sum_xl / sum_l2;
}

/* Set the weights of a sub-block and their roots. `importance` may be NULL. */
INLINE void weigh_sub_block(const struct grid_type *type, const float *from,
                            const float *importance, float mean, struct sub_block *sub)
{
    for (size_t i = 0; i < type->length; i += LANES) {
        f32v x = f32v_load(from + i), weights = x * x;
        if (importance != NULL)
            weights = f32v_load(importance + i) * f32v_sqrt(mean + weights);
        else if (type->unweighted != 0)
            weights = type->unweighted * mean + weights;
        f32v_store(sub->weights + i, weights);
        f32v_store(sub->roots + i, f32v_sqrt(weights));
    }
}

/* Fit scales of sub-blocks without the grid; their peaks become what the largest level has. */
INLINE void fit_first(const struct grid_type *type, struct sub_block *subs, size_t count)
{
    for (size_t first = 0; first < count; first += LANES) {
        f32v x[32] = {{0}}, w[32] = {{0}};
        i32v levels[32];
        for (size_t i = 0; i < LANES && first + i < count; i++)
            for (size_t j = 0; j < type->length; j++) {
                x[j][i] = subs[first + i].x[j];
                w[j][i] = subs[first + i].weights[j];
            }
        f32v scale = fit_unsigned_scale(x, w, type->length, type->most + 2, levels);
        for (size_t i = 0; i < LANES && first + i < count; i++) {
            int is_negligible = subs[first + i].peak < type->negligible;
            subs[first + i].scale = scale[i];
            subs[first + i].peak = is_negligible ? 0 : scale[i] * (float)(type->most + 1);
        }
    }
}

/* Find what to store of a block of 256 values; `importance` may be NULL. */
INLINE void fit_grid_block(const struct grid_type *type, const struct grid *grid,
                           const float *rows, const float *importance, struct grid_levels *levels)
{
    size_t count = 256 / type->length, groups = type->length / coordinates_of(type);
    size_t eights = type->length / 8;
    struct sub_block subs[16];
    float sum = 0, most = 0;
    for (size_t i = 0; i < 256; i++)
        sum += rows[i] * rows[i];
    float mean = type->share * sum / 256;
    for (size_t s = 0; s < count; s++) {
        const float *from = rows + type->length * s;
        weigh_sub_block(type, from, importance == NULL ? NULL : importance + type->length * s, mean,
                        subs + s);
        split_signs(type, from, subs + s);
        subs[s].scale = subs[s].peak / (float)(2 * type->most + 1);
    }
    if (type->fits_first)
        fit_first(type, subs, count);
    memset(levels, 0, sizeof *levels);
    for (size_t s = 0; s < count; s++) {
        struct sub_block *sub = subs + s;
        if (type->fits_first ? sub->peak <= 0 : sub->peak < type->negligible) {
            sub->scale = 0;
            continue;
        }
        refit(type, grid, try_scales(type, grid, sub), sub);
        int flips = sub->scale < 0;
        sub->scale = flips ? -sub->scale : sub->scale;
        if (sub->scale != sub->scale) {
            sub->scale = 0;
            continue;
        }
        for (size_t g = 0; g < groups; g++)
            levels->index[groups * s + g] = grid->points[sub->code[g]].index;
        for (size_t k = 0; k < eights; k++)
            levels->signs[eights * s + k] = (uint8_t)(flips ? ~sub->signs[k] : sub->signs[k]);
        most = sub->scale > most ? sub->scale : most;
    }
    if (!type->has_all_signs) {
        for (size_t k = 0; k < 32; k++)
            levels->signs[k] &= 127;
        if (most == 0)
            memset(levels, 0, sizeof *levels);
    }
    float of_scales = most / 31, inverse = 1 / of_scales;
    levels->of_scales = of_scales * type->fudge;
    for (size_t s = 0; s < count; s++) {
        int32_t scale = nearest_int(0.5f * (inverse * subs[s].scale - 1));
        levels->scale[s] = (uint8_t)(scale < 0 ? 0 : scale > 15 ? 15 : scale);
    }
}

/* The eight signs of which seven are stored. */
INLINE uint32_t even_signs(uint32_t seven)
{
    seven &= 127;
    return seven | (uint32_t)__builtin_parity(seven) << 7;
}

/* Fill `out` with the values of levels; `values` are those of the levels of a type. */
INLINE void decode_grid_block(const struct grid_type *type, const struct grid *grid,
                              const float *values, const struct grid_levels *levels, float *out)
{
    size_t coordinates = coordinates_of(type), mask = ((size_t)1 << type->bits) - 1;
    for (size_t i = 0; i < 256; i += 8) {
        float scale = levels->of_scales * ((float)levels->scale[i / type->length] + 0.5f);
        uint32_t signs = levels->signs[i / 8];
        if (!type->has_all_signs)
            signs = even_signs(signs);
        for (size_t j = 0; j < 8; j++) {
            size_t group = (i + j) / coordinates, place = (i + j) % coordinates;
            size_t code = grid->codes[levels->index[group]];
            float value = scale * values[code >> (size_t)type->bits * place & mask];
            out[i + j] = signs >> j & 1 ? -value : value;
        }
    }
}

typedef void pack_levels(const struct grid_levels *levels, uint8_t *block);
typedef void unpack_levels(const uint8_t *block, struct grid_levels *levels);

/* Encode the blocks of rows, `size` bytes each. */
INLINE void encode_grid_rows(const struct grid_type *type, const struct grid *grid, size_t size,
                             pack_levels *pack, const float *rows, size_t count, size_t columns,
                             const float *importance, uint8_t *out)
{
    for (size_t i = 0; i < count * columns; i += 256, out += size) {
        struct grid_levels levels;
        fit_grid_block(type, grid, rows + i, importance == NULL ? NULL : importance + i % columns,
                       &levels);
        half_store(out, levels.of_scales);
        pack(&levels, out + 2);
    }
}

INLINE void decode_grid_blocks(const struct grid_type *type, const struct grid *grid, size_t size,
                               unpack_levels *unpack, float unit, const float *values,
                               const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += size, out += 256) {
        struct grid_levels levels;
        levels.of_scales = half_load(blocks) * unit;
        unpack(blocks + 2, &levels);
        decode_grid_block(type, grid, values, &levels, out);
    }
}

/* The magnitudes of levels of 2 bits; the last is not used. */
static const float two_bit_magnitudes[4] = {8, 25, 43, 0};

/* Store 4-bit scales in pairs, the first lower. */
INLINE void pack_scale_pairs(const uint8_t *scales, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; i += 2)
        out[i / 2] = (uint8_t)(scales[i] | scales[i + 1] << 4);
}

INLINE void unpack_scale_pairs(const uint8_t *from, size_t count, uint8_t *scales)
{
    for (size_t i = 0; i < count; i++)
        scales[i] = from[i / 2] >> 4 * (i % 2) & 15;
}

/* Store a word with seven signs of each of four eights, and the scale above them. */
INLINE void pack_sevens(const uint8_t *signs, uint8_t scale, uint8_t *out)
{
    uint32_t word = (uint32_t)scale << 28;
    for (size_t i = 0; i < 4; i++)
        word |= (uint32_t)signs[i] << 7 * i;
    memcpy(out, &word, sizeof word);
}

INLINE void unpack_sevens(const uint8_t *from, uint8_t *signs, uint8_t *scale)
{
    uint32_t word;
    memcpy(&word, from, sizeof word);
    for (size_t i = 0; i < 4; i++)
        signs[i] = word >> 7 * i & 127;
    *scale = (uint8_t)(word >> 28);
}

#endif
