/* Q3_K: 256 values in 3 bits each, in sixteen sub-blocks with 6-bit scales.

   A block is high[32], low[64], scales[12] and the scale of the scales, float16. Bit k of byte i of
   `high` is the third bit of value 32 * k + i; `low` has the lower two bits as in Q2_K. A level
   of 4 is zero. Scales are stored plus 32. */
#include "descent.h"
#include "half.h"
#include "signed_levels.h"
#include "squares.h"
#include "two_bits.h"

#define Q3_K_SIZE 110

/* Store 6-bit scales: byte j of eight has the low four bits of scales j and j + 8, byte j of the
   other four the upper two of scales j, j + 4, j + 8 and j + 12. */
INLINE void q3_k_pack_scales(const uint8_t *scales, uint8_t *to)
{
    for (size_t j = 0; j < 8; j++)
        to[j] = (uint8_t)((scales[j] & 15) | scales[j + 8] << 4);
    for (size_t j = 0; j < 4; j++)
        to[8 + j] = (uint8_t)(scales[j] >> 4 | scales[j + 4] >> 4 << 2 | scales[j + 8] >> 4 << 4 |
                              scales[j + 12] >> 4 << 6);
}

INLINE void q3_k_unpack_scales(const uint8_t *from, int8_t *scales)
{
    for (size_t j = 0; j < 16; j++)
        scales[j] = (int8_t)(((from[j % 8] >> j / 8 * 4 & 15) |
                              (from[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32);
}

/* The levels of the search, used for a sub-block whose scale is rounded to 0. */
struct q3_k_search {
    const struct sub_blocks *weighted;
    const i32v (*lanes)[16];
};

/* Store the scale and the rounded scales of the sub-blocks, and the levels at these scales. */
INLINE void q3_k_finish(const float *x, float scale, const uint8_t *rounded,
                        struct q3_k_search search, uint8_t *block)
{
    float scales[16];
    int32_t levels[256];
    uint8_t level[256];
    q3_k_pack_scales(rounded, block + 96);
    half_store(block + 108, scale);
    scale = half_load(block + 108);
    for (size_t j = 0; j < 16; j++) {
        scales[j] = scale * (float)(rounded[j] - 32);
        if (scales[j] != 0)
            continue;
        if (search.weighted != NULL)
            levels_of_search(x, search.weighted, j, 4, levels);
        else
            for (size_t i = 0; i < 16; i++)
                levels[16 * j + i] = search.lanes[j / LANES][i][j % LANES];
    }
    choose_levels(x, scales, 4, levels);
    for (size_t i = 0; i < 256; i++)
        level[i] = (uint8_t)levels[i];
    pack_two_bits(level, block + 32);
    for (size_t i = 0; i < 32; i++) {
        uint8_t high = 0;
        for (size_t k = 0; k < 8; k++)
            high |= (uint8_t)(level[32 * k + i] >> 2 << k);
        block[i] = high;
    }
}

INLINE void q3_k_encode_block(const float *x, uint8_t *block)
{
    i32v levels[16 / LANES][16];
    float scales[16];
    for (size_t g = 0; g < 16 / LANES; g++) {
        f32v lanes[16];
        transpose_rows(x + 16 * LANES * g, 16, 16, lanes);
        f32v_store(scales + LANES * g, descend(lanes, 4, levels[g]));
    }
    float largest = largest_scale(scales), inverse = -32.0f / largest;
    uint8_t rounded[16] = {0};
    if (largest != 0)
        for (size_t j = 0; j < 16; j++) {
            int8_t level = (int8_t)nearest_int(inverse * scales[j]);
            rounded[j] = (uint8_t)((level < -32 ? -32 : level > 31 ? 31 : level) + 32);
        }
    struct q3_k_search search = {NULL, (const i32v(*)[16])levels};
    q3_k_finish(x, largest != 0 ? 1 / inverse : 0, rounded, search, block);
}

/* Encode `count` blocks, at most LANES. Their scales are searched together, one block per lane. */
INLINE void q3_k_encode_weighted(const float *x, const float *const *importance, size_t count,
                                 uint8_t *out)
{
    struct sub_blocks found[LANES] = {0};
    float squares[LANES], scales[LANES];
    int32_t rounded[16][LANES];
    f32v scale[16], w[16], wx[16];
    sum_squares(x, count, squares);
    for (size_t b = 0; b < count; b++) {
        float mean_square = 2 * squares[b] / 256;
        fit_sub_blocks(x + 256 * b, importance[b], &mean_square, 4, found + b);
    }
    transpose_rows(found[0].scale, sizeof *found / sizeof(float), 16, scale);
    transpose_rows(found[0].weight, sizeof *found / sizeof(float), 16, w);
    for (size_t j = 0; j < 16; j++)
        wx[j] = w[j] * scale[j];
    struct scale_fit fit = fit_scale(scale, w, wx, 16, 32, 0);
    f32v_store(scales, fit.scale);
    for (size_t j = 0; j < 16; j++) {
        i32v level = fitted_levels(scale[j], &fit, 32);
        memcpy(rounded[j], &level, sizeof level);
    }
    for (size_t b = 0; b < count; b++, x += 256, out += Q3_K_SIZE) {
        uint8_t levels[16];
        for (size_t j = 0; j < 16; j++)
            levels[j] = (uint8_t)rounded[j][b];
        q3_k_finish(x, scales[b], levels, (struct q3_k_search){found + b, NULL}, out);
    }
}

static void q3_k_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    size_t blocks = count * (columns / 256);
    if (importance == NULL)
        for (size_t b = 0; b < blocks; b++)
            q3_k_encode_block(rows + 256 * b, out + Q3_K_SIZE * b);
    else
        for (size_t b = 0; b < blocks; b += LANES) {
            const float *of[LANES];
            size_t together = blocks - b < LANES ? blocks - b : LANES;
            for (size_t k = 0; k < together; k++)
                of[k] = importance + (b + k) * 256 % columns;
            q3_k_encode_weighted(rows + 256 * b, of, together, out + Q3_K_SIZE * b);
        }
}

static void q3_k_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q3_K_SIZE, out += 256) {
        uint8_t level[256];
        int8_t scales[16];
        unpack_two_bits(blocks + 32, level);
        for (size_t k = 0; k < 8; k++)
            for (size_t i = 0; i < 32; i++)
                level[32 * k + i] |= blocks[i] & (uint8_t)(1 << k) ? 4 : 0;
        q3_k_unpack_scales(blocks + 96, scales);
        float scale = half_load(blocks + 108);
        for (size_t j = 0; j < 16; j++) {
            float of_sub_block = scale * (float)scales[j];
            for (size_t i = 16 * j; i < 16 * j + 16; i++)
                out[i] = of_sub_block * (float)((int8_t)level[i] - 4);
        }
    }
}
