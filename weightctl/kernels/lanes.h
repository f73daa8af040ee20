/* Vectors of the width of the instruction set, in the vector types of GCC and Clang.

   A file that includes this must define LANES, the number of float32 values in a vector. Operators
   work lane by lane. Comparisons give -1 or 0 in each lane of an `i32v`. */
#ifndef WEIGHTCTL_LANES_H
#define WEIGHTCTL_LANES_H

#include <stdint.h>
#include <string.h>

typedef float f32v __attribute__((vector_size(4 * LANES)));
typedef int32_t i32v __attribute__((vector_size(4 * LANES)));
typedef uint32_t u32v __attribute__((vector_size(4 * LANES)));

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))

INLINE f32v f32v_load(const float *from)
{
    f32v v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void f32v_store(float *to, f32v v)
{
    memcpy(to, &v, sizeof v);
}

INLINE f32v f32v_all(float x)
{
    return x - (f32v){0}; /* not `x + 0`, which would turn -0 into 0 */
}

INLINE i32v i32v_all(int32_t x)
{
    return x - (i32v){0};
}

INLINE f32v f32v_sqrt(f32v v)
{
    for (int i = 0; i < LANES; i++)
        v[i] = __builtin_sqrtf(v[i]);
    return v;
}

/* sum + x * y, rounded once if the instruction set has that operation. */
INLINE f32v f32v_add_product(f32v sum, f32v x, f32v y)
{
#if defined(__x86_64__) && LANES == 8
    return (f32v)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#elif defined(__x86_64__) && LANES == 16
    return (f32v)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif defined(__aarch64__) && LANES == 4
    return (f32v)vfmaq_f32((float32x4_t)sum, (float32x4_t)x, (float32x4_t)y);
#else
    return sum + x * y;
#endif
}

INLINE float f32v_sum(f32v v)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += v[i];
    return sum;
}

/* `yes` where the mask is -1, `no` where it is 0. */
INLINE f32v f32v_select(i32v mask, f32v yes, f32v no)
{
    return (f32v)((mask & (i32v)yes) | (~mask & (i32v)no));
}

INLINE i32v i32v_select(i32v mask, i32v yes, i32v no)
{
    return (mask & yes) | (~mask & no);
}

#endif
