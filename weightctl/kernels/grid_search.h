/* The search for the grid point with the least error among those near a group of levels. */
#ifndef WEIGHTCTL_GRID_SEARCH_H
#define WEIGHTCTL_GRID_SEARCH_H

#include <float.h>

#include "grids.h"
#include "lanes.h"
#include "rounding.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* A table has 4 entries for levels of 2 bits, and 8 for levels of 3 bits. The tables of all
   coordinates of a group have 32 entries together. */
#define GROUP_TABLES 32u

/* The entries of a table for the lowest `bits` of each lane; the other bits are ignored. */
INLINE f32v look_up_levels(const float *table, u32v levels, int bits)
{
#if defined(__x86_64__) && LANES == 8
    if (bits == 2)
        return (f32v)_mm256_permutevar_ps(_mm256_broadcast_ps((const __m128 *)table),
                                          (__m256i)levels);
    return (f32v)_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)levels);
#elif defined(__x86_64__) && LANES == 16
    if (bits == 2)
        return (f32v)_mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(table)),
                                          (__m512i)levels);
    /* Four bits are used, so the table is there twice. */
    return (f32v)_mm512_permutexvar_ps((__m512i)levels,
                                       _mm512_broadcast_f32x8(_mm256_loadu_ps(table)));
#else
    f32v found;
    for (size_t i = 0; i < LANES; i++)
        found[i] = table[levels[i] & (uint32_t)((1 << bits) - 1)];
    return found;
#endif
}

/* LANES codes. */
INLINE u32v load_codes(const uint16_t *from)
{
#if defined(__x86_64__) && LANES == 8
    return (u32v)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
#elif defined(__x86_64__) && LANES == 16
    return (u32v)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#else
    u32v codes;
    for (size_t i = 0; i < LANES; i++)
        codes[i] = from[i];
    return codes;
#endif
}

/* One bit for each lane that is least. */
INLINE uint32_t find_least(f32v values)
{
#if defined(__x86_64__) && LANES == 8
    __m256 all = (__m256)values;
    __m256 least = _mm256_min_ps(all, _mm256_permute2f128_ps(all, all, 1));
    least = _mm256_min_ps(least, _mm256_permute_ps(least, 0x4E));
    least = _mm256_min_ps(least, _mm256_permute_ps(least, 0xB1));
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(all, least, _CMP_EQ_OQ));
#elif defined(__x86_64__) && LANES == 16
    __m512 least = _mm512_set1_ps(_mm512_reduce_min_ps((__m512)values));
    return _mm512_cmp_ps_mask((__m512)values, least, _CMP_EQ_OQ);
#else
    float least = values[0];
    uint32_t lanes = 0;
    for (size_t i = 1; i < LANES; i++)
        least = values[i] < least ? values[i] : least;
    for (size_t i = 0; i < LANES; i++)
        lanes |= (uint32_t)(values[i] == least) << i;
    return lanes;
#endif
}

/* The first code of a point's list with the least error; `terms` has for each coordinate a table
   of what its levels add to the error. Errors that are infinite or NaN are equal. */
INLINE uint16_t find_nearest(const struct grid *grid, const struct point *point,
                             const float *terms, int bits)
{
    const uint16_t *near = grid->near + point->first;
    f32v least = f32v_all(FLT_MAX);
    i32v which = {0};
    for (size_t i = 0; i < point->length; i += LANES) {
        u32v codes = load_codes(near + i);
        f32v error = look_up_levels(terms, codes, bits);
        for (uint32_t c = 1; c < GROUP_TABLES >> bits; c++)
            error += look_up_levels(terms + (c << bits), codes >> (uint32_t)bits * c, bits);
        i32v better = error < least;
        least = f32v_select(better, error, least);
        which = i32v_select(better, i32v_all((int32_t)i), which);
    }
    uint32_t lanes = find_least(least);
    size_t place = SIZE_MAX;
    for (; lanes != 0; lanes &= lanes - 1) {
        size_t lane = (size_t)__builtin_ctz(lanes), here = (size_t)which[lane] + lane;
        place = here < place ? here : place;
    }
    return near[place];
}

/* The numbers of a group and their weights, each as often as a table has entries. */
struct group_tables {
    float x[GROUP_TABLES], weights[GROUP_TABLES];
};

INLINE void fill_group(const float *x, const float *weights, int bits, struct group_tables *tables)
{
    u32v entry;
    for (uint32_t i = 0; i < LANES; i++)
        entry[i] = i;
    for (size_t i = 0; i < GROUP_TABLES; i += LANES, entry += LANES) {
        u32v place = entry >> (uint32_t)bits;
        f32v_store(tables->x + i, look_up_levels(x, place, 3));
        f32v_store(tables->weights + i, look_up_levels(weights, place, 3));
    }
}

/* The code of the grid point for the code of a group. `values` has the values of levels for each
   coordinate, which are multiplied by `scale`. */
INLINE uint16_t nearest_point(const struct grid *grid, uint32_t code,
                              const struct group_tables *tables, const float *values, float scale,
                              int bits)
{
    const struct point *point = grid->points + code;
    if (point->index != OFF_GRID)
        return (uint16_t)code;
    float terms[GROUP_TABLES];
    for (size_t i = 0; i < GROUP_TABLES; i += LANES) {
        f32v difference = scale * f32v_load(values + i) - f32v_load(tables->x + i);
        f32v_store(terms + i, f32v_load(tables->weights + i) * difference * difference);
    }
    return find_nearest(grid, point, terms, bits);
}

#endif
