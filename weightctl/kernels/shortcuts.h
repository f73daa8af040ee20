/* Conversions between plain types in one pass, for the most frequent types.

   They expect values that are finite and not too large, and return the largest magnitude, as bits
   of float32. If a value was too large, the caller must convert again with the codecs. */
#ifndef WEIGHTCTL_SHORTCUTS_H
#define WEIGHTCTL_SHORTCUTS_H

#include "plain.h"

INLINE uint32_t f32_itself(uint32_t bits)
{
    return bits;
}

INLINE uint32_t bf16_of_usual(uint32_t bits)
{
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

INLINE uint32_t f8_e4m3_of_usual(uint32_t bits)
{
    return (uint32_t)narrowed(bits & 0x7FFFFFFF, 3, -6) | (bits >> 24 & 0x80);
}

INLINE uint32_t f8_e5m2_of_usual(uint32_t bits)
{
    return (uint32_t)narrowed(bits & 0x7FFFFFFF, 2, -14) | (bits >> 24 & 0x80);
}

#define SHORTCUT(name, from, widened_from, to, of_usual)                                           \
    static int32_t name(const uint8_t *restrict in, size_t count, uint8_t *restrict out)           \
    {                                                                                              \
        int32_t greatest = 0;                                                                      \
        for (size_t i = 0; i < count; i++) {                                                       \
            from code;                                                                             \
            memcpy(&code, in + i * sizeof code, sizeof code);                                      \
            uint32_t bits = widened_from(code);                                                    \
            int32_t rest = (int32_t)(bits & 0x7FFFFFFF);                                           \
            greatest = rest > greatest ? rest : greatest;                                          \
            to made = (to)of_usual(bits);                                                          \
            memcpy(out + i * sizeof made, &made, sizeof made);                                     \
        }                                                                                          \
        return greatest;                                                                           \
    }

SHORTCUT(f8_e4m3_from_f32, uint32_t, f32_itself, uint8_t, f8_e4m3_of_usual)
SHORTCUT(f8_e5m2_from_f32, uint32_t, f32_itself, uint8_t, f8_e5m2_of_usual)

#if defined(__x86_64__) && LANES >= 8

INLINE __m256i greater_magnitude(__m256i greatest, __m256i bits)
{
    return _mm256_max_epi32(greatest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)));
}

/* The largest lane, or the largest magnitude of values that did not fill a vector. */
static int32_t greatest_lane(__m256i lanes, int32_t greatest)
{
    int32_t each[8];
    memcpy(each, &lanes, sizeof each);
    for (int i = 0; i < 8; i++)
        greatest = each[i] > greatest ? each[i] : greatest;
    return greatest;
}

/* The processor's prefetcher stops at the end of each page. The address may be invalid. */
#define AHEAD 4096

#define SHORTCUT_OF_16(name, from, widened_from, to, narrowed_to, eight_widened, store_16)         \
    static int32_t name(const uint8_t *restrict in, size_t count, uint8_t *restrict out)           \
    {                                                                                              \
        __m256i lanes = _mm256_setzero_si256(), others = lanes;                                    \
        size_t i = 0;                                                                              \
        for (; i + 16 <= count; i += 16) {                                                         \
            __builtin_prefetch((const void *)((uintptr_t)in + i * sizeof(from) + AHEAD));          \
            __m256i bits = eight_widened(in + i * sizeof(from));                                   \
            __m256i more = eight_widened(in + (i + 8) * sizeof(from));                             \
            lanes = greater_magnitude(lanes, bits);                                                \
            others = greater_magnitude(others, more);                                              \
            store_16(out + i * sizeof(to), bits, more);                                            \
        }                                                                                          \
        int32_t greatest = 0;                                                                      \
        for (; i < count; i++) {                                                                   \
            from code;                                                                             \
            memcpy(&code, in + i * sizeof code, sizeof code);                                      \
            uint32_t bits = widened_from(code);                                                    \
            int32_t rest = (int32_t)(bits & 0x7FFFFFFF);                                           \
            greatest = rest > greatest ? rest : greatest;                                          \
            to made = (to)narrowed_to(bits);                                                       \
            memcpy(out + i * sizeof made, &made, sizeof made);                                     \
        }                                                                                          \
        return greatest_lane(_mm256_max_epi32(lanes, others), greatest);                           \
    }

INLINE __m256i eight_of_f32(const uint8_t *in)
{
    return _mm256_loadu_si256((const __m256i *)in);
}

INLINE __m256i eight_of_bf16(const uint8_t *in)
{
    __m128i codes = _mm_loadu_si128((const __m128i *)in);
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16);
}

INLINE __m256i eight_of_f16(const uint8_t *in)
{
    return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)in)));
}

INLINE void store_16_f16(uint8_t *out, __m256i bits, __m256i more)
{
    __m128i first = _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT);
    __m128i last = _mm256_cvtps_ph(_mm256_castsi256_ps(more), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i *)out, first);
    _mm_storeu_si128((__m128i *)(out + 16), last);
}

INLINE __m256i eight_rounded_to_bf16(__m256i bits)
{
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return _mm256_srli_epi32(bits, 16);
}

INLINE void store_16_bf16(uint8_t *out, __m256i bits, __m256i more)
{
    __m256i packed = _mm256_packus_epi32(eight_rounded_to_bf16(bits), eight_rounded_to_bf16(more));
    _mm256_storeu_si256((__m256i *)out, _mm256_permute4x64_epi64(packed, 0xD8));
}

SHORTCUT_OF_16(f16_from_f32, uint32_t, f32_itself, uint16_t, f16_narrowed, eight_of_f32,
               store_16_f16)
SHORTCUT_OF_16(f16_from_bf16, uint16_t, bf16_widened, uint16_t, f16_narrowed, eight_of_bf16,
               store_16_f16)
SHORTCUT_OF_16(bf16_from_f16, uint16_t, f16_widened, uint16_t, bf16_of_usual, eight_of_f16,
               store_16_bf16)
SHORTCUT_OF_16(bf16_from_f32, uint32_t, f32_itself, uint16_t, bf16_of_usual, eight_of_f32,
               store_16_bf16)
#undef SHORTCUT_OF_16

#else

SHORTCUT(f16_from_f32, uint32_t, f32_itself, uint16_t, f16_narrowed)
SHORTCUT(f16_from_bf16, uint16_t, bf16_widened, uint16_t, f16_narrowed)
SHORTCUT(bf16_from_f32, uint32_t, f32_itself, uint16_t, bf16_of_usual)
SHORTCUT(bf16_from_f16, uint16_t, f16_widened, uint16_t, bf16_of_usual)

#endif
#undef SHORTCUT

/* Bfloat16 holds every 8-bit float. Its two bytes are computed separately, so that a vector has one
   lane per byte. */

INLINE uint8_t low_of_f8_e4m3(uint8_t rest)
{
    /* 4..7 and 2..3 times 2**-9 have two bits and one bit after the leading one. */
    uint8_t subnormal = rest < 4 ? (uint8_t)(-(rest > 1) & (0x80 | (rest & 1) << 6))
                                 : (uint8_t)((rest & 3) << 5);
    return rest < 8 ? subnormal : (uint8_t)(rest << 4);
}

INLINE uint8_t high_of_f8_e4m3(uint8_t rest)
{
    uint8_t subnormal = (uint8_t)(-(rest != 0) & (0x3B + (rest >> 2)));
    return rest < 8 ? subnormal : (uint8_t)((rest >> 4) + 0x3C);
}

INLINE uint8_t low_of_f8_e5m2(uint8_t rest)
{
    /* 2..3 and 1 times 2**-16 */
    uint8_t subnormal = (-(rest == 1) & 0x80) | (-(rest == 3) & 0x40);
    return rest < 4 ? subnormal : (uint8_t)(rest << 5);
}

INLINE uint8_t high_of_f8_e5m2(uint8_t rest)
{
    uint8_t subnormal = (uint8_t)(-(rest != 0) & (0x37 + (rest >> 1)));
    return rest < 4 ? subnormal : (uint8_t)((rest >> 3) + 0x38);
}

#if defined(__x86_64__) && LANES >= 8

/* Convert as many values as fill vectors; subnormal values are looked up in tables. */
INLINE size_t bf16_from_32_f8(const uint8_t *in, size_t count, uint8_t *out, uint8_t *greatest,
                              int stored, int first, const uint8_t lows[16],
                              const uint8_t highs[16])
{
    __m256i low_table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)lows));
    __m256i high_table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)highs));
    __m256i most = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i code = _mm256_loadu_si256((const __m256i *)(in + i));
        __m256i rest = _mm256_and_si256(code, _mm256_set1_epi8(0x7F));
        __m256i sign = _mm256_xor_si256(code, rest);
        most = _mm256_max_epu8(most, rest);
        __m256i low = _mm256_and_si256(_mm256_slli_epi16(code, 7 - stored),
                                       _mm256_set1_epi8((char)(0xFF << (7 - stored))));
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(rest, stored + 1),
                                        _mm256_set1_epi8(0x7F >> (stored + 1)));
        high = _mm256_add_epi8(high, _mm256_set1_epi8((char)first));
        __m256i is_subnormal = _mm256_cmpgt_epi8(_mm256_set1_epi8((char)(1 << stored)), rest);
        low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(low_table, rest), is_subnormal);
        high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(high_table, rest), is_subnormal);
        high = _mm256_or_si256(high, sign);
        __m256i even = _mm256_unpacklo_epi8(low, high), odd = _mm256_unpackhi_epi8(low, high);
        _mm256_storeu_si256((__m256i *)(out + 2 * i), _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)(out + 2 * i + 32),
                            _mm256_permute2x128_si256(even, odd, 0x31));
    }
    uint8_t each[32];
    memcpy(each, &most, sizeof each);
    for (int lane = 0; lane < 32; lane++)
        *greatest = each[lane] > *greatest ? each[lane] : *greatest;
    return i;
}

#else

INLINE size_t bf16_from_32_f8(const uint8_t *in, size_t count, uint8_t *out, uint8_t *greatest,
                              int stored, int first, const uint8_t lows[16],
                              const uint8_t highs[16])
{
    (void)in, (void)count, (void)out, (void)greatest, (void)stored, (void)first;
    (void)lows, (void)highs;
    return 0;
}

#endif

#define BF16_FROM_F8(f8, stored, first, beyond, low_table, high_table)                             \
    static int32_t bf16_from_##f8(const uint8_t *restrict in, size_t count, uint8_t *restrict out) \
    {                                                                                              \
        static const uint8_t lows[16] = low_table, highs[16] = high_table;                         \
        uint8_t greatest = 0;                                                                      \
        size_t i = bf16_from_32_f8(in, count, out, &greatest, stored, first, lows, highs);         \
        for (; i < count; i++) {                                                                   \
            uint8_t rest = in[i] & 0x7F, sign = in[i] & 0x80;                                      \
            greatest = rest > greatest ? rest : greatest;                                          \
            out[2 * i] = low_of_##f8(rest);                                                        \
            out[2 * i + 1] = high_of_##f8(rest) | sign;                                            \
        }                                                                                          \
        return greatest >= beyond ? F32_INFINITE : 0;                                              \
    }

#define LIST(...) {__VA_ARGS__}
BF16_FROM_F8(f8_e4m3, 3, 0x3C, 0x7F, LIST(0, 0, 0x80, 0xC0, 0, 0x20, 0x40, 0x60),
             LIST(0, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C))
BF16_FROM_F8(f8_e5m2, 2, 0x38, 0x7C, LIST(0, 0x80, 0, 0x40), LIST(0, 0x37, 0x38, 0x38))
#undef LIST
#undef BF16_FROM_F8

struct shortcut {
    const char *from, *to;
    int32_t (*make)(const uint8_t *restrict in, size_t count, uint8_t *restrict out);
};

static const struct shortcut shortcuts[] = {
    {"F32", "F16", f16_from_f32},
    {"F32", "BF16", bf16_from_f32},
    {"F32", "F8_E4M3", f8_e4m3_from_f32},
    {"F32", "F8_E5M2", f8_e5m2_from_f32},
    {"BF16", "F16", f16_from_bf16},
    {"F16", "BF16", bf16_from_f16},
    {"F8_E4M3", "BF16", bf16_from_f8_e4m3},
    {"F8_E5M2", "BF16", bf16_from_f8_e5m2},
};

static const struct shortcut *find_shortcut(const char *from, const char *to)
{
    for (size_t i = 0; i < sizeof shortcuts / sizeof *shortcuts; i++)
        if (strcmp(shortcuts[i].from, from) == 0 && strcmp(shortcuts[i].to, to) == 0)
            return shortcuts + i;
    return NULL;
}

#endif
