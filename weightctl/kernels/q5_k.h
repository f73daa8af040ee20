/* Q5_K: 256 values in 5 bits each, in eight sub-blocks with 6-bit scales and mins.

   After the scales, bit j of high byte i is the fifth bit of value i of sub-block j (i < 32). Row
   j of 32 bytes then has value 64 * j + i in the low bits of byte i, and value 64 * j + i + 32 in
   the high bits. */
#include "scales_and_mins.h"

#define Q5_K_SIZE 176

INLINE void q5_k_pack(const uint8_t *levels, uint8_t *q)
{
    uint8_t *high = q, *low = q + 32;
    memset(high, 0, 32);
    for (size_t j = 0; j < 8; j++)
        for (size_t i = 0; i < 32; i++)
            high[i] |= (uint8_t)(levels[32 * j + i] >> 4 << j);
    for (size_t j = 0; j < 4; j++, levels += 64, low += 32)
        for (size_t i = 0; i < 32; i++)
            low[i] = (uint8_t)((levels[i] & 15) | levels[i + 32] << 4);
}

static void q5_k_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    const struct levels_with_mins as = {Q5_K_SIZE, 31, -0.5f, 15, q5_k_pack};
    if (importance == NULL)
        encode_with_mins(rows, count * (columns / 256), as, out);
    else
        encode_weighted_with_mins(rows, count * (columns / 256), columns, importance, as, out);
}

static void q5_k_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q5_K_SIZE) {
        const uint8_t *high = blocks + 16;
        float scale[8], min[8];
        load_scales_and_mins(blocks, scale, min);
        for (size_t j = 0; j < 8; j += 2, out += 64) {
            const uint8_t *low = blocks + 48 + 16 * j;
            for (size_t i = 0; i < 32; i++)
                out[i] = scale[j] * (float)((low[i] & 15) | (high[i] >> j & 1) << 4) - min[j];
            for (size_t i = 0; i < 32; i++)
                out[i + 32] = scale[j + 1] * (float)(low[i] >> 4 | (high[i] >> j & 2) << 3) -
                              min[j + 1];
        }
    }
}
