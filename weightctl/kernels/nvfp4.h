/* NVFP4: 64 values as 4-bit floats, in four sub-blocks of 16 with 8-bit scales.

   The four scales, unsigned E4M3, are followed by eight bytes for each sub-block; byte i of them has
   the code of value i in its low bits and that of value i + 8 in its high bits. */
#include "e2m1.h"

#define NVFP4_SIZE 36

/* A value >= 0 as E4M3, half rounded up; as in ggml, a value of 248 or more becomes 448. */
INLINE uint8_t nvfp4_scale(float x)
{
    if (x < 0x1p-6f) {
        int tiny = (int)(x * 512.0f + 0.5f);
        return (uint8_t)(tiny > 7 ? 7 : tiny);
    }
    uint32_t rounded = ((bits_of_f32(x) >> 19) + 1) >> 1;
    uint32_t code = rounded - ((127 - 7) << 3);
    return code >= 15 << 3 ? 0x7E : (uint8_t)code;
}

/* Half of the value of a scale. Its top bit is ignored, and 0x7F is 0. */
INLINE float nvfp4_half_scale(uint8_t scale)
{
    /* The same bits as a float32 are smaller by a constant power of two, also for subnormals. */
    uint32_t bits = scale == 0x7F ? 0 : (uint32_t)(scale & 0x7F) << 20;
    return f32_from_bits(bits) * 0x1p119f;
}

static void nvfp4_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    (void)importance;
    for (size_t i = 0; i < count * columns; i += 64, out += NVFP4_SIZE)
        for (size_t j = 0; j < 4; j++, rows += 16) {
            out[j] = nvfp4_scale(greatest_magnitude(rows, 16) / 6.0f);
            e2m1_encode(rows, 16, nvfp4_half_scale(out[j]), out + 4 + 8 * j);
        }
}

static void nvfp4_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += NVFP4_SIZE)
        for (size_t j = 0; j < 4; j += 2) {
            int8_t values[32], of_one[16];
            look_up_nibbles(e2m1_values, blocks + 4 + 8 * j, values);
            for (size_t k = 0; k < 2; k++, out += 16) {
                memcpy(of_one, values + 8 * k, 8);
                memcpy(of_one + 8, values + 16 + 8 * k, 8);
                scale_bytes(of_one, 16, nvfp4_half_scale(blocks[j + k]), out);
            }
        }
}
