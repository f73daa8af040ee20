/* Tables of sixteen bytes, looked up for many indices at a time. */
#ifndef WEIGHTCTL_LOOKUP_H
#define WEIGHTCTL_LOOKUP_H

#include "lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Fill out[32] with the entries of `table` for the low four bits of each of 16 bytes, then for the
   high four bits: the order of ggml's 4-bit blocks. */
INLINE void look_up_nibbles(const int8_t *table, const uint8_t *bytes, int8_t *out)
{
#if defined(__x86_64__)
    __m128i packed = _mm_loadu_si128((const __m128i *)bytes);
    __m128i all = _mm_loadu_si128((const __m128i *)table), four = _mm_set1_epi8(15);
    __m128i low = _mm_and_si128(packed, four);
    __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), four);
    _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(all, low));
    _mm_storeu_si128((__m128i *)(out + 16), _mm_shuffle_epi8(all, high));
#elif defined(__aarch64__)
    uint8x16_t packed = vld1q_u8(bytes);
    int8x16_t all = vld1q_s8(table);
    vst1q_s8(out, vqtbl1q_s8(all, vandq_u8(packed, vdupq_n_u8(15))));
    vst1q_s8(out + 16, vqtbl1q_s8(all, vshrq_n_u8(packed, 4)));
#else
    for (size_t i = 0; i < 16; i++) {
        out[i] = table[bytes[i] & 15];
        out[i + 16] = table[bytes[i] >> 4];
    }
#endif
}

/* Fill out[count], a multiple of 16, with bytes times a scale. */
INLINE void scale_bytes(const int8_t *bytes, size_t count, float scale, float *out)
{
#if defined(__x86_64__) && LANES == 4
    for (size_t i = 0; i < count; i += 4) {
        int32_t four;
        memcpy(&four, bytes + i, sizeof four);
        __m128i whole = _mm_cvtepi8_epi32(_mm_cvtsi32_si128(four));
        _mm_storeu_ps(out + i, _mm_mul_ps(_mm_cvtepi32_ps(whole), _mm_set1_ps(scale)));
    }
#elif defined(__x86_64__) && LANES == 8
    for (size_t i = 0; i < count; i += 8) {
        __m256i whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + i)));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(scale)));
    }
#elif defined(__x86_64__) && LANES == 16
    for (size_t i = 0; i < count; i += 16) {
        __m512i whole = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(bytes + i)));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(scale)));
    }
#else
    for (size_t i = 0; i < count; i++)
        out[i] = scale * (float)bytes[i];
#endif
}

/* The entry of `table` for the index in the top byte of each lane; any entry if the index is beyond
   15. */
INLINE i32v look_up_lanes(const int8_t *table, i32v index)
{
#if defined(__x86_64__)
    __m128i all = _mm_loadu_si128((const __m128i *)table);
#if LANES == 4
    return (i32v)_mm_shuffle_epi8(all, (__m128i)index) >> 24;
#elif LANES == 8
    return (i32v)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(all), (__m256i)index) >> 24;
#else
    return (i32v)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(all), (__m512i)index) >> 24;
#endif
#elif defined(__aarch64__)
    int8x16_t found = vqtbl1q_s8(vld1q_s8(table), (uint8x16_t)index);
    return (i32v)found >> 24;
#else
    for (size_t i = 0; i < LANES; i++)
        index[i] = table[(uint32_t)index[i] >> 24 & 15];
    return index;
#endif
}

#endif
