/* MXFP4: 32 values as 4-bit floats times one power of two.

   The exponent is followed by 16 bytes; byte i has the code of value i in its low bits and that of
   value i + 16 in its high bits. */
#include "e2m1.h"

#define MXFP4_SIZE 17

/* The floor of the binary logarithm of a normal value >= 0 as ggml computes it: the logarithm is a
   float32, which is rounded up to the next integer just below a power of two. */
INLINE int mxfp4_floor_log2(float x)
{
    uint32_t bits = bits_of_f32(x);
    int power = (int)(bits >> 23) - 126;              /* x is below 2^power, */
    uint32_t below = 0x800000 - (bits & 0x7FFFFF);    /* by this times 2^-24 of it */
    int magnitude = power > 0 ? power - 1 : -power;   /* of the integer part of the logarithm */
    if (below > 44 || magnitude == 0)
        return power - 1;
    /* The logarithm is below / ln 2 units of 2^-24 from `power`. Half the distance from `power` to
       the next float32, in the same units: */
    double half = 1 << (31 - __builtin_clz((unsigned)magnitude));
    return below < half * 0.6931471805599453 ? power : power - 1;
}

INLINE float mxfp4_half_scale(uint8_t exponent)
{
    uint32_t bits = exponent < 2 ? 0x200000u << exponent : (exponent - 1u) << 23;
    return f32_from_bits(bits);
}

static void mxfp4_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    (void)importance;
    for (size_t i = 0; i < count * columns; i += 32, rows += 32, out += MXFP4_SIZE) {
        float greatest = greatest_magnitude(rows, 32);
        int exponent = greatest < 0x1p-125f ? 0 : mxfp4_floor_log2(greatest) + 127 - 2;
        out[0] = (uint8_t)exponent;
        e2m1_encode(rows, 32, mxfp4_half_scale(out[0]), out + 1);
    }
}

static void mxfp4_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += MXFP4_SIZE, out += 32) {
        float scale = mxfp4_half_scale(blocks[0]);
        int8_t values[32];
        look_up_nibbles(e2m1_values, blocks + 1, values);
        scale_bytes(values, 32, scale, out);
    }
}
