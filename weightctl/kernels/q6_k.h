/* Q6_K: 256 values in 6 bits each, in sixteen sub-blocks with 8-bit scales.

   A block is ql[128], qh[64], int8 scales[16] and the scale of the scales, float16. Of each half of
   a block, ql has the low four bits of values i and i + 64 in byte i (i < 64), and qh the upper
   two bits of values i, i + 32, i + 64 and i + 96 in byte i (i < 32). A level of 32 is zero. */
#include "half.h"
#include "signed_levels.h"

#define Q6_K_SIZE 210

INLINE void q6_k_pack(const int32_t *levels, uint8_t *block)
{
    uint8_t level[256];
    for (size_t i = 0; i < 256; i++)
        level[i] = (uint8_t)levels[i];
    for (size_t h = 0; h < 2; h++) {
        const uint8_t *q = level + 128 * h;
        uint8_t *low = block + 64 * h, *high = block + 128 + 32 * h;
        for (size_t i = 0; i < 64; i++)
            low[i] = (uint8_t)((q[i] & 15) | q[i + 64] << 4);
        for (size_t i = 0; i < 32; i++)
            high[i] = (uint8_t)(q[i] >> 4 | q[i + 32] >> 4 << 2 | q[i + 64] >> 4 << 4 |
                                q[i + 96] >> 4 << 6);
    }
}

INLINE void q6_k_encode_block(const float *x, const float *importance, uint8_t *block)
{
    struct sub_blocks found;
    fit_sub_blocks(x, importance, NULL, 32, &found);
    float largest = largest_scale(found.scale);
    if (__builtin_fabsf(largest) < NEGLIGIBLE) {
        memset(block, 0, Q6_K_SIZE);
        return;
    }
    float inverse = -128.0f / largest, scales[16];
    int32_t levels[256];
    half_store(block + 208, 1 / inverse);
    float scale = half_load(block + 208);
    for (size_t j = 0; j < 16; j++) {
        int32_t level = nearest_int(inverse * found.scale[j]);
        int8_t rounded = (int8_t)(level < 127 ? level : 127);
        block[192 + j] = (uint8_t)rounded;
        scales[j] = scale * (float)rounded;
        if (scales[j] == 0)
            levels_of_search(x, &found, j, 32, levels);
    }
    choose_levels(x, scales, 32, levels);
    q6_k_pack(levels, block);
}

static void q6_k_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    for (size_t row = 0; row < count; row++)
        for (size_t i = 0; i < columns; i += 256, rows += 256, out += Q6_K_SIZE)
            if (importance == NULL)
                q6_k_encode_block(rows, NULL, out);
            else
                q6_k_encode_block(rows, importance + i, out);
}

static void q6_k_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q6_K_SIZE) {
        float scale = half_load(blocks + 208);
        for (size_t h = 0; h < 2; h++, out += 128) {
            const uint8_t *low = blocks + 64 * h, *high = blocks + 128 + 32 * h;
            int8_t level[128];
            for (size_t i = 0; i < 32; i++) {
                level[i] = (int8_t)((low[i] & 15) | (high[i] & 3) << 4);
                level[i + 32] = (int8_t)((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
                level[i + 64] = (int8_t)(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
                level[i + 96] = (int8_t)(low[i + 32] >> 4 | high[i] >> 6 << 4);
            }
            for (size_t j = 0; j < 8; j++) {
                float of_sub_block = scale * (float)(int8_t)blocks[192 + 8 * h + j];
                for (size_t i = 16 * j; i < 16 * j + 16; i++)
                    out[i] = of_sub_block * (float)(level[i] - 32);
            }
        }
    }
}
