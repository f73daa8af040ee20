/* What Q4_K and Q5_K share: blocks of 256 values in eight sub-blocks, each with a 6-bit scale and
   a 6-bit min.

   A block begins with the scale of the scales and the scale of the mins, float16, and twelve bytes
   of scales and mins. For sub-block j < 4, these are the low six bits of bytes j and j + 4. For
   j >= 4, their low four bits are the low and the high half of byte j + 4, and their upper two bits
   are the highest bits of bytes j - 4 and j. */
#ifndef WEIGHTCTL_SCALES_AND_MINS_H
#define WEIGHTCTL_SCALES_AND_MINS_H

#include "half.h"
#include "k_search.h"
#include "lanes.h"
#include "nibbles.h"
#include "rounding.h"
#include "transpose.h"
#include "unsigned_search.h"

/* The number of blocks whose sub-blocks are searched together. Their scales are in one half of the
   lanes of a vector, and their mins in the other. */
#define TILE (FIT_VECTORS * LANES / 8)

INLINE void pack_scales_and_mins(const uint8_t *scale, const uint8_t *min, uint8_t *packed)
{
    for (size_t j = 0; j < 4; j++) {
        packed[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        packed[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        packed[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* The scales and the mins of the eight sub-blocks of a block. */
INLINE void load_scales_and_mins(const uint8_t *block, float *scale, float *min)
{
    const uint8_t *packed = block + 4;
    float of_scales = half_load(block), of_mins = half_load(block + 2);
    for (size_t j = 0; j < 4; j++) {
        scale[j] = of_scales * (float)(packed[j] & 63);
        min[j] = of_mins * (float)(packed[j + 4] & 63);
        scale[j + 4] = of_scales * (float)((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        min[j + 4] = of_mins * (float)(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

/* ggml's weights without importance: root mean square plus magnitude. */
INLINE void weight_by_magnitude(const f32v *x, f32v *weights)
{
    for (size_t v = 0; v < FIT_VECTORS; v++, x += 32, weights += 32) {
        f32v sum = {0};
        for (size_t i = 0; i < 32; i++)
            sum += x[i] * x[i];
        f32v root = f32v_sqrt(sum / 32.0f);
        for (size_t i = 0; i < 32; i++)
            weights[i] = root + f32v_abs(x[i]);
    }
}

/* ggml's weights from the importance of columns; `x` has the values in rows, `lanes` in lanes. */
INLINE void weight_by_importance(const float *x, const f32v *lanes, const float *importance,
                                 f32v *weights)
{
    float sum[TILE] = {0}, variance[8 * TILE];
    for (size_t i = 0; i < 256; i++)
        for (size_t b = 0; b < TILE; b++)
            sum[b] += x[256 * b + i] * x[256 * b + i];
    for (size_t n = 0; n < 8 * TILE; n++)
        variance[n] = 2.0f * sum[n / 8] / 256.0f;
    for (size_t v = 0; v < FIT_VECTORS; v++, lanes += 32, weights += 32) {
        f32v of_block = f32v_load(variance + LANES * v);
        transpose_rows(importance + 32 * LANES * v, 32, 32, weights);
        for (size_t i = 0; i < 32; i++)
            weights[i] *= f32v_sqrt(of_block + lanes[i] * lanes[i]);
    }
}

/* Levels 0 to 63 of eight vectors of values, and the scale that makes the greatest of them 63. */
INLINE f32v round_to_greatest(const f32v *values, i32v *levels)
{
    f32v greatest = {0};
    for (size_t j = 0; j < 8; j++)
        greatest = f32v_max(values[j], greatest);
    f32v inverse = f32v_select(greatest > 0, 63.0f / greatest, (f32v){0});
    for (size_t j = 0; j < 8; j++)
        levels[j] = i32v_min(nearest_ints(inverse * values[j]) & 255, i32v_all(63));
    return greatest / 63.0f;
}

/* Set levels 0 to 63 of the scales and mins of a fit, those of sub-block j in vector j; return the
   scales of both. */
INLINE f32v round_scales_and_mins(const struct fit *fit, int weighted, i32v *levels)
{
    float value[8][LANES], weight[8][LANES];
    f32v values[8], weights[8];
    for (size_t n = 0; n < 8 * TILE; n++) {
        size_t v = n / LANES, k = n % LANES, j = n % 8, b = n / 8;
        value[j][b] = fit->scale[v][k];
        value[j][b + TILE] = -fit->low[v][k];
        weight[j][b] = weight[j][b + TILE] = fit->sum_w[v][k];
    }
    memcpy(values, value, sizeof values);
    if (!weighted)
        return round_to_greatest(values, levels);
    memcpy(weights, weight, sizeof weights);
    return fit_unsigned_scale(values, weights, 8, 63, levels);
}

/* The levels of x[32] at the rounded scale and min of their sub-block. */
INLINE void choose_levels_again(const float *x, float scale, float min, int most, uint8_t *levels)
{
    i32v chosen[32 / LANES];
    for (size_t i = 0; i < 32; i += LANES)
        chosen[i / LANES] = nearest_levels((f32v_load(x + i) + min) / scale, 0, most);
    for (size_t i = 0; i < 32; i += 16)
        bytes_from_i32v(levels + i, chosen + i / LANES);
}

/* The levels of x[32] that the search found. */
INLINE void choose_levels_of_search(const float *x, float inverse, float origin, int most,
                                    int saturate, uint8_t *levels)
{
    i32v chosen[32 / LANES];
    for (size_t i = 0; i < 32; i += LANES) {
        f32v level = round_to_levels((f32v_load(x + i) - origin) * inverse, most,
                                     saturate ? SATURATING : WRAPPING);
        chosen[i / LANES] = __builtin_convertvector(level, i32v);
    }
    for (size_t i = 0; i < 32; i += 16)
        bytes_from_i32v(levels + i, chosen + i / LANES);
}

/* The parameters of an encoding. */
struct levels_with_mins {
    size_t size;
    int most;    /* the greatest level */
    float first; /* without importance, the search starts at this offset from it */
    int steps;
    void (*pack)(const uint8_t *levels, uint8_t *q);
};

/* Encode the first `count` blocks of a tile of values. */
INLINE void encode_tile(const float *x, const float *importance, size_t count,
                        struct levels_with_mins as, uint8_t *out)
{
    const int weighted = importance != NULL;
    struct fit fit;
    f32v lanes[FIT_VECTORS * 32], weights[FIT_VECTORS * 32];
    i32v rounded[8];
    for (size_t v = 0; v < FIT_VECTORS; v++)
        transpose_rows(x + 32 * LANES * v, 32, 32, lanes + 32 * v);
    if (weighted) {
        weight_by_importance(x, lanes, importance, weights);
        fit_scale_and_min(lanes, weights, 32, as.most, -0.9f, 0.05f, 36, 0, 1, &fit);
    } else {
        weight_by_magnitude(lanes, weights);
        fit_scale_and_min(lanes, weights, 32, as.most, as.first, 0.1f, as.steps, 0, 0, &fit);
    }
    f32v scale_of = round_scales_and_mins(&fit, weighted, rounded);
    for (size_t b = 0; b < count; b++, x += 256, out += as.size) {
        uint8_t scales[8], mins[8], levels[256];
        float scale[8], min[8];
        for (size_t j = 0; j < 8; j++) {
            scales[j] = (uint8_t)rounded[j][b];
            mins[j] = (uint8_t)rounded[j][b + TILE];
        }
        half_store(out, scale_of[b]);
        half_store(out + 2, scale_of[b + TILE]);
        pack_scales_and_mins(scales, mins, out + 4);
        load_scales_and_mins(out, scale, min);
        for (size_t j = 0; j < 8; j++) {
            size_t v = (8 * b + j) / LANES, k = (8 * b + j) % LANES;
            if (scale[j] != 0)
                choose_levels_again(x + 32 * j, scale[j], min[j], as.most, levels + 32 * j);
            else
                choose_levels_of_search(x + 32 * j, fit.inverse[v][k], fit.origin[v][k], as.most,
                                        weighted, levels + 32 * j);
        }
        as.pack(levels, out + 16);
    }
}

INLINE void encode_with_mins(const float *rows, size_t blocks, struct levels_with_mins as,
                             uint8_t *out)
{
    float space[256 * TILE] = {0};
    for (size_t done = 0; done < blocks; done += TILE) {
        const float *x = rows + 256 * done;
        size_t count = blocks - done < TILE ? blocks - done : TILE;
        if (count < TILE) {
            memcpy(space, x, 256 * count * sizeof *x);
            x = space;
        }
        encode_tile(x, NULL, count, as, out + done * as.size);
    }
}

INLINE void encode_weighted_with_mins(const float *rows, size_t blocks, size_t columns,
                                      const float *importance, struct levels_with_mins as,
                                      uint8_t *out)
{
    float space[256 * TILE] = {0}, weights[256 * TILE] = {0};
    for (size_t done = 0; done < blocks; done += TILE) {
        const float *x = rows + 256 * done;
        size_t count = blocks - done < TILE ? blocks - done : TILE;
        for (size_t b = 0; b < count; b++)
            memcpy(weights + 256 * b, importance + (done + b) * 256 % columns,
                   256 * sizeof *weights);
        if (count < TILE) {
            memcpy(space, x, 256 * count * sizeof *x);
            x = space;
        }
        encode_tile(x, weights, count, as, out + done * as.size);
    }
}

#endif
