/* Q8_0: 32 values as bytes and one scale. */
#ifndef WEIGHTCTL_Q8_0_H
#define WEIGHTCTL_Q8_0_H

#include "half.h"

enum { Q8_0_SIZE = 34 };

INLINE void q8_0_encode_block(const float *restrict x, uint8_t *restrict out)
{
    int32_t peak = 0; /* magnitudes sort as their bits do */
    for (int i = 0; i < 32; i++) {
        int32_t magnitude = (int32_t)(bits_of_f32(x[i]) & 0x7FFFFFFF);
        peak = magnitude > peak ? magnitude : peak;
    }
    float scale = f32_from_bits((uint32_t)peak) / 127;
    /* Beyond this the inverse overflows, and ggml's levels are 0. */
    float inverse = scale > 0x1p-128f ? 1 / scale : 0;
    for (int i = 0; i < 32; i++) {
        /* Half away from zero: adding exactly 0.5 would round the float below 0.5 up. */
        uint32_t sign = bits_of_f32(x[i]) & 0x80000000;
        float below_half = f32_from_bits(sign | 0x3EFFFFFF);
        out[2 + i] = (uint8_t)(int32_t)(x[i] * inverse + below_half);
    }
    half_store(out, scale);
}

static void q8_0_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    (void)importance; /* no effect in ggml either */
    for (size_t i = 0; i < count * columns; i += 32, out += Q8_0_SIZE)
        q8_0_encode_block(rows + i, out);
}

INLINE void q8_0_decode_block(const uint8_t *restrict block, float *restrict out)
{
    float scale = half_load(block);
    for (int i = 0; i < 32; i++)
        out[i] = (float)(int8_t)block[2 + i] * scale;
}

static void q8_0_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (size_t b = 0; b < count; b++)
        q8_0_decode_block(blocks + Q8_0_SIZE * b, out + 32 * b);
}

#endif
