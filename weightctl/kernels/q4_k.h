/* Q4_K: 256 values in 4 bits each, in eight sub-blocks with 6-bit scales and mins.

   After the scales, row j of 32 bytes has value 64 * j + i in the low bits of byte i, and value
   64 * j + i + 32 in the high bits. */
#include "scales_and_mins.h"

#define Q4_K_SIZE 144

INLINE void q4_k_pack(const uint8_t *levels, uint8_t *q)
{
    for (size_t j = 0; j < 4; j++, levels += 64, q += 32)
        for (size_t i = 0; i < 32; i++)
            q[i] = (uint8_t)(levels[i] | levels[i + 32] << 4);
}

static void q4_k_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    const struct levels_with_mins as = {Q4_K_SIZE, 15, -1.0f, 20, q4_k_pack};
    if (importance == NULL)
        encode_with_mins(rows, count * (columns / 256), as, out);
    else
        encode_weighted_with_mins(rows, count * (columns / 256), columns, importance, as, out);
}

static void q4_k_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q4_K_SIZE) {
        float scale[8], min[8];
        load_scales_and_mins(blocks, scale, min);
        for (size_t j = 0; j < 8; j += 2, out += 64) {
            const uint8_t *q = blocks + 16 + 16 * j;
            for (size_t i = 0; i < 32; i++)
                out[i] = scale[j] * (float)(q[i] & 15) - min[j];
            for (size_t i = 0; i < 32; i++)
                out[i + 32] = scale[j + 1] * (float)(q[i] >> 4) - min[j + 1];
        }
    }
}
