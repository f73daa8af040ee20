/* Floats of 8 and 16 bits, from and to float32: rounded once, to nearest even.

   A value that is too large becomes infinity, or the largest value if the type has no infinity. NaN
   stays NaN. The functions for one value have no branches, so that compilers vectorize the loops
   around them. */
#ifndef WEIGHTCTL_PLAIN_H
#define WEIGHTCTL_PLAIN_H

#include "half.h"

#if defined(__x86_64__) && LANES >= 8
#include <immintrin.h>
#endif

/* A type with `stored` significand bits, whose smallest normal value is 2**`least`. Its codes
   without the sign are those of float32, shifted, plus an offset; subnormal values are multiples of
   2**(least - stored). */

#define DROPPED (23 - stored)
#define OFFSET (least + 126)

INLINE float power_of_two(int exponent)
{
    return f32_from_bits((uint32_t)(exponent + 127) << 23);
}

/* The bits of the float32 for a code without its sign, if it is finite. */
INLINE int32_t widened(int32_t code, int stored, int least)
{
    int32_t normal = (code << DROPPED) + (OFFSET << 23);
    int32_t subnormal = (int32_t)bits_of_f32((float)code * power_of_two(least - stored));
    return code < 1 << stored ? subnormal : normal;
}

/* The code for a float32's bits without the sign, as if there were no largest value. */
INLINE int32_t narrowed(int32_t bits, int stored, int least)
{
    uint32_t half = (1u << (DROPPED - 1)) - 1 + (uint32_t)(bits >> DROPPED & 1);
    int32_t normal = (int32_t)(((uint32_t)bits + half) >> DROPPED) - (OFFSET << stored);
    /* The last bit of the sum has the value of the type's smallest subnormal. */
    float magic = power_of_two(least - stored + 23);
    int32_t subnormal = (int32_t)bits_of_f32(f32_from_bits((uint32_t)bits) + magic) -
                        (int32_t)bits_of_f32(magic);
    return bits < (OFFSET + 1) << 23 ? subnormal : normal;
}

#undef DROPPED
#undef OFFSET

#define F32_INFINITE 0x7F800000
#define F32_QUIET_NAN 0x7FC00000

INLINE uint32_t bf16_widened(uint32_t code)
{
    return code << 16;
}

INLINE uint32_t bf16_narrowed(uint32_t bits)
{
    uint32_t nan = (bits >> 16 & 0x8000) | 0x7FC0;
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (int32_t)(bits & 0x7FFFFFFF) > F32_INFINITE ? nan : rounded;
}

INLINE uint32_t f16_widened(uint32_t code)
{
    int32_t rest = code & 0x7FFF;
    int32_t bits = widened(rest, 10, -14);
    bits = rest >= 0x7C00 ? rest << 13 | F32_INFINITE : bits;
    bits = rest > 0x7C00 ? bits | F32_QUIET_NAN : bits;
    return (uint32_t)bits | (code & 0x8000) << 16;
}

INLINE uint32_t f16_narrowed(uint32_t bits)
{
    int32_t rest = bits & 0x7FFFFFFF;
    int32_t code = narrowed(rest, 10, -14);
    code = rest >= 0x477FF000 ? 0x7C00 : code; /* 65520, halfway to 2**16 */
    code = rest > F32_INFINITE ? 0x7E00 | (rest >> 13 & 0x1FF) : code;
    return (uint32_t)code | (bits >> 16 & 0x8000);
}

INLINE uint32_t f8_e4m3_widened(uint32_t code)
{
    int32_t rest = code & 0x7F;
    int32_t bits = rest == 0x7F ? F32_QUIET_NAN : widened(rest, 3, -6);
    return (uint32_t)bits | (code & 0x80) << 24;
}

INLINE uint32_t f8_e4m3_narrowed(uint32_t bits)
{
    int32_t rest = bits & 0x7FFFFFFF;
    int32_t code = narrowed(rest, 3, -6);
    code = rest >= 0x43E00000 ? 0x7E : code; /* 448 */
    code = rest > F32_INFINITE ? 0x7F : code;
    return (uint32_t)code | (bits >> 24 & 0x80);
}

INLINE uint32_t f8_e5m2_widened(uint32_t code)
{
    int32_t rest = code & 0x7F;
    int32_t bits = widened(rest, 2, -14);
    bits = rest >= 0x7C ? F32_INFINITE : bits;
    bits = rest > 0x7C ? F32_QUIET_NAN : bits;
    return (uint32_t)bits | (code & 0x80) << 24;
}

INLINE uint32_t f8_e5m2_narrowed(uint32_t bits)
{
    int32_t rest = bits & 0x7FFFFFFF;
    int32_t code = narrowed(rest, 2, -14);
    code = rest >= 0x47700000 ? 0x7C : code; /* 61440, halfway to 2**16 */
    code = rest > F32_INFINITE ? 0x7E : code;
    return (uint32_t)code | (bits >> 24 & 0x80);
}

/* The types without negative zero: its code is their only NaN. */
INLINE uint32_t fnuz_widened(uint32_t code, int stored, int least)
{
    uint32_t bits = (uint32_t)widened(code & 0x7F, stored, least) | (code & 0x80) << 24;
    return code == 0x80 ? 0x80000000u | F32_QUIET_NAN : bits;
}

INLINE uint32_t fnuz_narrowed(uint32_t bits, int stored, int least, int32_t largest)
{
    int32_t rest = bits & 0x7FFFFFFF, sign = bits >> 24 & 0x80;
    int32_t code = narrowed(rest, stored, least);
    code = rest >= largest ? 0x7F : code;
    code |= sign & -(code != 0);
    code = rest > F32_INFINITE ? 0x80 : code;
    return (uint32_t)code;
}

INLINE uint32_t f8_e4m3fnuz_widened(uint32_t code)
{
    return fnuz_widened(code, 3, -7);
}

INLINE uint32_t f8_e4m3fnuz_narrowed(uint32_t bits)
{
    return fnuz_narrowed(bits, 3, -7, 0x43700000); /* 240 */
}

INLINE uint32_t f8_e5m2fnuz_widened(uint32_t code)
{
    return fnuz_widened(code, 2, -15);
}

INLINE uint32_t f8_e5m2fnuz_narrowed(uint32_t bits)
{
    return fnuz_narrowed(bits, 2, -15, 0x47600000); /* 57344 */
}

/* Encoding and decoding of rows, from those of one value; `code` is the integer type of a code.
   Codes are widened and narrowed in separate loops, so that compilers compare 32-bit vectors. */
#define PLAIN(name, code)                                                                          \
    static void name##_encode(const float *restrict rows, size_t count, size_t columns,            \
                              const float *importance, uint8_t *restrict out)                      \
    {                                                                                              \
        enum { SOME = 256 };                                                                       \
        uint32_t codes[SOME];                                                                      \
        (void)importance;                                                                          \
        for (size_t start = 0; start < count * columns; start += SOME) {                           \
            size_t some = count * columns - start < SOME ? count * columns - start : SOME;         \
            for (size_t i = 0; i < some; i++)                                                      \
                codes[i] = name##_narrowed(bits_of_f32(rows[start + i]));                          \
            for (size_t i = 0; i < some; i++) {                                                    \
                code made = (code)codes[i];                                                        \
                memcpy(out + (start + i) * sizeof made, &made, sizeof made);                       \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void name##_decode(const uint8_t *restrict blocks, size_t count, float *restrict out)   \
    {                                                                                              \
        enum { SOME = 256 };                                                                       \
        uint32_t codes[SOME];                                                                      \
        for (size_t start = 0; start < count; start += SOME) {                                     \
            size_t some = count - start < SOME ? count - start : SOME;                             \
            for (size_t i = 0; i < some; i++) {                                                    \
                code from;                                                                         \
                memcpy(&from, blocks + (start + i) * sizeof from, sizeof from);                    \
                codes[i] = from;                                                                   \
            }                                                                                      \
            for (size_t i = 0; i < some; i++)                                                      \
                out[start + i] = f32_from_bits(name##_widened(codes[i]));                          \
        }                                                                                          \
    }

PLAIN(f8_e4m3, uint8_t)
PLAIN(f8_e5m2, uint8_t)
PLAIN(f8_e4m3fnuz, uint8_t)
PLAIN(f8_e5m2fnuz, uint8_t)

static void bf16_encode(const float *restrict rows, size_t count, size_t columns,
                        const float *importance, uint8_t *restrict out)
{
    (void)importance;
    for (size_t i = 0; i < count * columns; i++) {
        uint16_t code = (uint16_t)bf16_narrowed(bits_of_f32(rows[i]));
        memcpy(out + 2 * i, &code, sizeof code);
    }
}

static void bf16_decode(const uint8_t *restrict blocks, size_t count, float *restrict out)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, blocks + 2 * i, sizeof code);
        out[i] = f32_from_bits(bf16_widened(code));
    }
}

#if defined(__x86_64__) && LANES >= 8
/* F16C rounds, and makes NaNs quiet, as the functions above do. */
static void f16_encode(const float *restrict rows, size_t count, size_t columns,
                       const float *importance, uint8_t *restrict out)
{
    (void)importance;
    size_t i = 0, whole = count * columns / 8 * 8;
    for (; i < whole; i += 8)
        _mm_storeu_si128((__m128i *)(out + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(rows + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count * columns; i++) {
        uint16_t code = (uint16_t)f16_narrowed(bits_of_f32(rows[i]));
        memcpy(out + 2 * i, &code, sizeof code);
    }
}

static void f16_decode(const uint8_t *restrict blocks, size_t count, float *restrict out)
{
    size_t i = 0, whole = count / 8 * 8;
    for (; i < whole; i += 8)
        _mm256_storeu_ps(out + i,
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(blocks + 2 * i))));
    for (; i < count; i++) {
        uint16_t code;
        memcpy(&code, blocks + 2 * i, sizeof code);
        out[i] = f32_from_bits(f16_widened(code));
    }
}
#else
PLAIN(f16, uint16_t)
#endif

#undef PLAIN

#endif
