/* Transposition of consecutive groups of values into lanes. */
#ifndef WEIGHTCTL_TRANSPOSE_H
#define WEIGHTCTL_TRANSPOSE_H

#include "lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Four values of every fourth row (0, 4, 8 ...); rows begin `stride` values apart. */
INLINE f32v every_fourth_row(const float *from, size_t stride)
{
#if defined(__x86_64__) && LANES == 8
    __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(from));
    return (f32v)_mm256_insertf128_ps(low, _mm_loadu_ps(from + 4 * stride), 1);
#elif defined(__x86_64__) && LANES == 16
    __m512 rows = _mm512_castps128_ps512(_mm_loadu_ps(from));
    rows = _mm512_insertf32x4(rows, _mm_loadu_ps(from + 4 * stride), 1);
    rows = _mm512_insertf32x4(rows, _mm_loadu_ps(from + 8 * stride), 2);
    return (f32v)_mm512_insertf32x4(rows, _mm_loadu_ps(from + 12 * stride), 3);
#else
    f32v v;
    for (size_t i = 0; i < LANES / 4; i++)
        memcpy((char *)&v + 16 * i, from + 4 * i * stride, 16);
    return v;
#endif
}

/* Within each group of four lanes: the first, or the last, two of `a` and `b`, interleaved. */
#if defined(__x86_64__) && LANES == 4
#define FIRST_TWO(a, b) ((f32v)_mm_unpacklo_ps((__m128)(a), (__m128)(b)))
#define LAST_TWO(a, b) ((f32v)_mm_unpackhi_ps((__m128)(a), (__m128)(b)))
#elif defined(__x86_64__) && LANES == 8
#define FIRST_TWO(a, b) ((f32v)_mm256_unpacklo_ps((__m256)(a), (__m256)(b)))
#define LAST_TWO(a, b) ((f32v)_mm256_unpackhi_ps((__m256)(a), (__m256)(b)))
#elif defined(__x86_64__) && LANES == 16
#define FIRST_TWO(a, b) ((f32v)_mm512_unpacklo_ps((__m512)(a), (__m512)(b)))
#define LAST_TWO(a, b) ((f32v)_mm512_unpackhi_ps((__m512)(a), (__m512)(b)))
#elif defined(__clang__)
#define FIRST_TWO(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define LAST_TWO(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define FIRST_TWO(a, b) __builtin_shuffle(a, b, (i32v){0, 4, 1, 5})
#define LAST_TWO(a, b) __builtin_shuffle(a, b, (i32v){2, 6, 3, 7})
#endif

/* Fill to[i] with value i of each of LANES rows that begin `stride` values apart, for i < n;
   n is a multiple of 4. */
INLINE void transpose_rows(const float *from, size_t stride, size_t n, f32v *to)
{
    for (size_t i = 0; i < n; i += 4) {
        f32v a = every_fourth_row(from + i, stride);
        f32v b = every_fourth_row(from + stride + i, stride);
        f32v c = every_fourth_row(from + 2 * stride + i, stride);
        f32v d = every_fourth_row(from + 3 * stride + i, stride);
        f32v even = FIRST_TWO(a, c), odd = FIRST_TWO(b, d);
        to[i] = FIRST_TWO(even, odd);
        to[i + 1] = LAST_TWO(even, odd);
        even = LAST_TWO(a, c), odd = LAST_TWO(b, d);
        to[i + 2] = FIRST_TWO(even, odd);
        to[i + 3] = LAST_TWO(even, odd);
    }
}

#undef FIRST_TWO
#undef LAST_TWO

#endif
