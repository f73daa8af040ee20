/* Q6_K: 256 values in 6 bits each, in sixteen sub-blocks with 8-bit scales.

   A block is ql[128], qh[64], int8 scales[16] and the scale of the scales, float16. Of each half of
   a block, ql has the low four bits of values i and i + 64 in byte i (i < 64), and qh the upper
   two bits of values i, i + 32, i + 64 and i + 96 in byte i (i < 32). A level of 32 is zero. */
#include "half.h"
#include "nibbles.h"
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

typedef uint8_t q6_k_bytes __attribute__((vector_size(32)));

/* Set the levels, from -32 on, of a half of a block. */
INLINE void q6_k_unpack(const uint8_t *low, const uint8_t *high, int8_t *levels)
{
    q6_k_bytes first, second, rest, found[4];
    memcpy(&first, low, sizeof first);
    memcpy(&second, low + 32, sizeof second);
    memcpy(&rest, high, sizeof rest);
    found[0] = ((first & 15) | (rest & 3) << 4) - 32;
    found[1] = ((second & 15) | (rest & 12) << 2) - 32;
    found[2] = (first >> 4 | (rest & 48)) - 32;
    found[3] = (second >> 4 | (rest & 192) >> 2) - 32;
    memcpy(levels, found, sizeof found);
}

INLINE void q6_k_load_scales(const uint8_t *block, float *scales)
{
    float scale = half_load(block + 208);
    for (size_t j = 0; j < 16; j += LANES)
        f32v_store(scales + j, scale * f32v_from_signed_bytes((const int8_t *)block + 192 + j));
}

static void q6_k_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q6_K_SIZE) {
        float scales[16];
        int8_t levels[256];
        q6_k_load_scales(blocks, scales);
        for (size_t h = 0; h < 2; h++)
            q6_k_unpack(blocks + 64 * h, blocks + 128 + 32 * h, levels + 128 * h);
        for (size_t j = 0; j < 16; j++)
            for (size_t i = 0; i < 16; i += LANES, out += LANES)
                f32v_store(out, scales[j] * f32v_from_signed_bytes(levels + 16 * j + i));
    }
}
