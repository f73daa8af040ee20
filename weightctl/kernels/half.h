/* Float16 as stored in blocks, rounded to nearest even; NaN becomes quiet NaN.

   From x86-64-v3 the processor converts; otherwise integer arithmetic gives the same bits. */
#ifndef WEIGHTCTL_HALF_H
#define WEIGHTCTL_HALF_H

#include "lanes.h"

#if defined(__x86_64__) && LANES >= 8
#include <immintrin.h>
#define F16C 1
#else
#define F16C 0
#endif

typedef uint16_t u16v __attribute__((vector_size(2 * LANES)));

INLINE float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint32_t bits_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float f32_from_half(uint16_t half)
{
#if F16C
    return _cvtsh_ss(half);
#else
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t rest = half & 0x7FFF;
    if (rest >= 0x7C00) {
        uint32_t quiet = rest > 0x7C00 ? 0x400000 : 0;
        return f32_from_bits(sign | 0x7F800000 | quiet | (rest & 0x3FF) << 13);
    }
    if (rest >= 0x400)
        return f32_from_bits(sign | ((rest << 13) + ((127 - 15) << 23)));
    return f32_from_bits(sign | bits_of_f32((float)rest * 0x1p-24f));
#endif
}

INLINE uint16_t half_from_f32(float x)
{
#if F16C
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t bits = bits_of_f32(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000)
        return (uint16_t)(sign | 0x7E00 | (bits >> 13 & 0x3FF));
    if (bits >= 0x477FF000)
        return sign | 0x7C00;
    if (bits < 0x38800000) /* subnormal: adding 1/2 leaves the rounded half in the last bits */
        return (uint16_t)(sign | (bits_of_f32(f32_from_bits(bits) + 0.5f) - 0x3F000000));
    return (uint16_t)(sign | ((bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13));
#endif
}

INLINE float half_load(const uint8_t *from)
{
    return f32_from_half((uint16_t)(from[0] | from[1] << 8));
}

INLINE void half_store(uint8_t *to, float x)
{
    uint16_t half = half_from_f32(x);
    to[0] = (uint8_t)half;
    to[1] = (uint8_t)(half >> 8);
}

/* LANES consecutive values. */
INLINE f32v f32v_from_halves(const uint8_t *from)
{
#if F16C && LANES == 8
    __m128i halves;
    memcpy(&halves, from, sizeof halves);
    return (f32v)_mm256_cvtph_ps(halves);
#elif F16C
    __m256i halves;
    memcpy(&halves, from, sizeof halves);
    return (f32v)_mm512_cvtph_ps(halves);
#else
    u16v halves;
    memcpy(&halves, from, sizeof halves);
    i32v half = __builtin_convertvector(halves, i32v);
    i32v sign = (half & 0x8000) << 16;
    i32v rest = half & 0x7FFF;
    i32v normal = (rest << 13) + ((127 - 15) << 23);
    i32v endless = 0x7F800000 | (rest & 0x3FF) << 13 | (0x400000 & (rest > 0x7C00));
    i32v tiny = (i32v)(__builtin_convertvector(rest, f32v) * 0x1p-24f);
    i32v bits = i32v_select(rest >= 0x400, normal, tiny);
    return (f32v)(sign | i32v_select(rest >= 0x7C00, endless, bits));
#endif
}

INLINE void halves_from_f32v(uint8_t *to, f32v x)
{
#if F16C && LANES == 8
    __m128i halves = _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#elif F16C
    __m256i halves = _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
    i32v sign = (i32v)((u32v)x >> 16) & 0x8000;
    i32v bits = (i32v)x & 0x7FFFFFFF;
    i32v normal = (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13;
    i32v tiny = (i32v)((f32v)bits + 0.5f) - 0x3F000000;
    i32v half = i32v_select(bits < 0x38800000, tiny, normal);
    half = i32v_select(bits >= 0x477FF000, i32v_all(0x7C00), half);
    half = i32v_select(bits > 0x7F800000, 0x7E00 | (bits >> 13 & 0x3FF), half);
    u16v halves = __builtin_convertvector(sign | half, u16v);
#endif
    memcpy(to, &halves, sizeof halves);
}

#endif
