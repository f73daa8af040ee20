/* Q2_0: 64 values as -1, 0 or 1 times the largest magnitude.

   After the float16 scale, byte i has four levels in two bits each, the first lowest. Level 1 is
   zero; level 3, which is never written, is twice the scale. */
#include "half.h"
#include "magnitude.h"
#include "rounding.h"

#define Q2_0_SIZE 18

/* 16 bits, each at twice its place. */
INLINE uint32_t spread_bits(uint32_t bits)
{
    bits = (bits | bits << 8) & 0x00FF00FF;
    bits = (bits | bits << 4) & 0x0F0F0F0F;
    bits = (bits | bits << 2) & 0x33333333;
    return (bits | bits << 1) & 0x55555555;
}

INLINE void q2_0_encode_block(const float *x, uint8_t *out)
{
    float scale = greatest_magnitude(x, 64);
    /* The inverse of a smaller scale is infinite, and ggml's levels are 0. */
    int is_tiny = scale > 0 && scale <= 0x1p-128f;
    float inverse = scale > 0 ? 1 / scale : 0;
    half_store(out, scale);
    for (size_t i = 0; i < 64; i += 16) {
        uint32_t above = 0, below = 0;
        for (uint32_t j = 0; j < 16; j += LANES) {
            f32v fraction = f32v_load(x + i + j) * inverse;
            above |= lanes_of(fraction >= 0.5f) << j;
            below |= lanes_of(fraction <= -0.5f) << j;
        }
        uint32_t zero = ~(above | below) & 0xFFFF;
        uint32_t levels = is_tiny ? 0 : spread_bits(zero) | spread_bits(above) << 1;
        memcpy(out + 2 + i / 4, &levels, sizeof levels);
    }
}

static void q2_0_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    (void)importance; /* no effect in ggml either */
    for (size_t i = 0; i < count * columns; i += 64, out += Q2_0_SIZE)
        q2_0_encode_block(rows + i, out);
}

static void q2_0_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q2_0_SIZE, out += 64) {
        float scale = half_load(blocks);
        for (size_t i = 0; i < 64; i++)
            out[i] = scale * (float)((blocks[2 + i / 4] >> 2 * (i % 4) & 3) - 1);
    }
}
