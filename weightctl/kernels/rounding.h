/* Rounding to levels, many values at a time. */
#ifndef WEIGHTCTL_ROUNDING_H
#define WEIGHTCTL_ROUNDING_H

#include "lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* In a float32 between 2**23 and 2**24 the last bit of the mantissa is worth 1. Adding this value
   therefore rounds to an integer, half to even, and leaves it, plus 2**22, in the mantissa. */
#define ROUNDER 12582912.0f

/* The minimum and the maximum; `b` if either is NaN. */
#if defined(__x86_64__) && LANES == 4
INLINE f32v f32v_min(f32v a, f32v b) { return (f32v)_mm_min_ps((__m128)a, (__m128)b); }
INLINE f32v f32v_max(f32v a, f32v b) { return (f32v)_mm_max_ps((__m128)a, (__m128)b); }
INLINE i32v i32v_min(i32v a, i32v b) { return (i32v)_mm_min_epi32((__m128i)a, (__m128i)b); }
INLINE i32v i32v_max(i32v a, i32v b) { return (i32v)_mm_max_epi32((__m128i)a, (__m128i)b); }
#elif defined(__x86_64__) && LANES == 8
INLINE f32v f32v_min(f32v a, f32v b) { return (f32v)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE f32v f32v_max(f32v a, f32v b) { return (f32v)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE i32v i32v_min(i32v a, i32v b) { return (i32v)_mm256_min_epi32((__m256i)a, (__m256i)b); }
INLINE i32v i32v_max(i32v a, i32v b) { return (i32v)_mm256_max_epi32((__m256i)a, (__m256i)b); }
#elif defined(__x86_64__) && LANES == 16
INLINE f32v f32v_min(f32v a, f32v b) { return (f32v)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE f32v f32v_max(f32v a, f32v b) { return (f32v)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE i32v i32v_min(i32v a, i32v b) { return (i32v)_mm512_min_epi32((__m512i)a, (__m512i)b); }
INLINE i32v i32v_max(i32v a, i32v b) { return (i32v)_mm512_max_epi32((__m512i)a, (__m512i)b); }
#else
INLINE f32v f32v_min(f32v a, f32v b) { return f32v_select(a < b, a, b); }
INLINE f32v f32v_max(f32v a, f32v b) { return f32v_select(a > b, a, b); }
INLINE i32v i32v_min(i32v a, i32v b) { return i32v_select(a < b, a, b); }
INLINE i32v i32v_max(i32v a, i32v b) { return i32v_select(a > b, a, b); }
#endif

INLINE f32v f32v_abs(f32v v)
{
    return (f32v)((i32v)v & 0x7FFFFFFF);
}

/* Whether any lane of a mask is -1. */
INLINE int i32v_any(i32v mask)
{
#if defined(__x86_64__) && LANES == 4
    return _mm_movemask_ps((__m128)mask) != 0;
#elif defined(__x86_64__) && LANES == 8
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    uint64_t parts[LANES / 2], any = 0;
    memcpy(parts, &mask, sizeof parts);
    for (int i = 0; i < LANES / 2; i++)
        any |= parts[i];
    return any != 0;
#endif
}

/* One bit for each lane of a mask that is -1. */
INLINE uint32_t lanes_of(i32v mask)
{
#if defined(__x86_64__) && LANES == 4
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#elif defined(__x86_64__) && LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__x86_64__) && LANES == 16
    return _mm512_movepi32_mask((__m512i)mask);
#else
    uint32_t lanes = 0;
    for (size_t i = 0; i < LANES; i++)
        lanes |= (uint32_t)(mask[i] != 0) << i;
    return lanes;
#endif
}

/* The nearest integers, as ggml's `nearest_int`: beyond 2**22, and for NaN, the result is whatever
   the mantissa contains. */
INLINE i32v nearest_ints(f32v values)
{
    return ((i32v)(values + ROUNDER) & 0x7FFFFF) - 0x400000;
}

INLINE int32_t nearest_int(float value)
{
    float sum = value + ROUNDER;
    int32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return (bits & 0x7FFFFF) - 0x400000;
}

/* The nearest integers, clamped to `least` and `most`. */
INLINE i32v nearest_levels(f32v values, int least, int most)
{
    return i32v_max(i32v_min(nearest_ints(values), i32v_all(most)), i32v_all(least));
}

#endif
