/* The packing of levels in ggml's blocks of 32 values in 4 or 5 bits.

   Byte i of `low` has the low four bits of levels i and i + 16. The fifth bit of level i, if there
   is one, is bit i of `high`, little endian. */
#ifndef WEIGHTCTL_NIBBLES_H
#define WEIGHTCTL_NIBBLES_H

#include <stddef.h>

#include "lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    NIBBLES_LOW = 16,
    NIBBLES_HIGH = 4,
    NIBBLES_HALF = 16 / LANES, /* vectors of 16 levels */
    NIBBLES_ALL = 32 / LANES,
};

static const int32_t nibbles_bit[32] = {
    1 << 0,  1 << 1,  1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
    1 << 8,  1 << 9,  1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15,
    1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23,
    1 << 24, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30, INT32_MIN,
};

/* LANES bytes as integers. */
INLINE i32v i32v_from_bytes(const uint8_t *from)
{
#if defined(__x86_64__) && LANES == 4
    int32_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    return (i32v)_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes));
#elif defined(__x86_64__) && LANES == 8
    return (i32v)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#elif defined(__x86_64__) && LANES == 16
    return (i32v)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#else
    typedef uint8_t u8v __attribute__((vector_size(LANES)));
    u8v bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, i32v);
#endif
}

/* LANES signed bytes as float32. */
INLINE f32v f32v_from_signed_bytes(const int8_t *from)
{
#if defined(__x86_64__) && LANES == 4
    int32_t bytes;
    memcpy(&bytes, from, sizeof bytes);
    i32v values = (i32v)_mm_cvtepi8_epi32(_mm_cvtsi32_si128(bytes));
#elif defined(__x86_64__) && LANES == 8
    i32v values = (i32v)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
#elif defined(__x86_64__) && LANES == 16
    i32v values = (i32v)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
#else
    typedef int8_t i8v __attribute__((vector_size(LANES)));
    i8v bytes;
    memcpy(&bytes, from, sizeof bytes);
    i32v values = __builtin_convertvector(bytes, i32v);
#endif
    return __builtin_convertvector(values, f32v);
}

/* Sixteen integers from 0 to 255 as bytes. */
INLINE void bytes_from_i32v(uint8_t *to, const i32v *from)
{
#if defined(__x86_64__) && LANES == 4
    __m128i first = _mm_packs_epi32((__m128i)from[0], (__m128i)from[1]);
    __m128i second = _mm_packs_epi32((__m128i)from[2], (__m128i)from[3]);
    _mm_storeu_si128((__m128i *)to, _mm_packus_epi16(first, second));
#elif defined(__x86_64__) && LANES == 8
    __m256i words = _mm256_packs_epi32((__m256i)from[0], (__m256i)from[1]);
    words = _mm256_permute4x64_epi64(words, 0xD8);
    __m128i last = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128((__m128i *)to, _mm_packus_epi16(_mm256_castsi256_si128(words), last));
#elif defined(__x86_64__) && LANES == 16
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)from[0]));
#else
    typedef uint8_t u8v __attribute__((vector_size(LANES)));
    for (int v = 0; v < NIBBLES_HALF; v++) {
        u8v bytes = __builtin_convertvector(from[v], u8v);
        memcpy(to + LANES * v, &bytes, sizeof bytes);
    }
#endif
}

/* The signs of the lanes as bits, the first lane lowest. */
INLINE uint32_t i32v_signs(i32v v)
{
#if defined(__x86_64__) && LANES == 4
    return (uint32_t)_mm_movemask_ps((__m128)v);
#elif defined(__x86_64__) && LANES == 8
    return (uint32_t)_mm256_movemask_ps((__m256)v);
#elif defined(__x86_64__) && LANES == 16
    return _mm512_movepi32_mask((__m512i)v);
#else
    uint32_t signs = 0;
    for (int i = 0; i < LANES; i++)
        signs |= (uint32_t)v[i] >> 31 << i;
    return signs;
#endif
}

/* Pack 32 levels into `low`, and their fifth bits into `high` unless that is NULL. */
INLINE void nibbles_pack(const i32v *levels, uint8_t *high, uint8_t *low)
{
    if (high != NULL) {
        uint32_t bits = 0;
#pragma GCC unroll 8
        for (int v = 0; v < NIBBLES_ALL; v++)
            bits |= i32v_signs(levels[v] << 27) << LANES * v;
        for (int i = 0; i < NIBBLES_HIGH; i++)
            high[i] = (uint8_t)(bits >> 8 * i);
    }
    i32v bytes[NIBBLES_HALF];
#pragma GCC unroll 4
    for (int v = 0; v < NIBBLES_HALF; v++)
        bytes[v] = (levels[v] & 15) | (levels[v + NIBBLES_HALF] & 15) << 4;
    bytes_from_i32v(low, bytes);
}

INLINE void nibbles_unpack(const uint8_t *high, const uint8_t *low, i32v *levels)
{
#pragma GCC unroll 4
    for (int v = 0; v < NIBBLES_HALF; v++) {
        i32v bytes = i32v_from_bytes(low + LANES * v);
        levels[v] = bytes & 15;
        levels[v + NIBBLES_HALF] = bytes >> 4;
    }
    if (high == NULL)
        return;
    uint32_t bits = high[0] | high[1] << 8 | high[2] << 16 | (uint32_t)high[3] << 24;
#pragma GCC unroll 8
    for (int v = 0; v < NIBBLES_ALL; v++) {
        i32v bit;
        memcpy(&bit, nibbles_bit + LANES * v, sizeof bit);
        levels[v] |= ((i32v_all((int32_t)bits) & bit) == bit) & 16;
    }
}

#endif
