/* Q2_K: 256 values in 2 bits each, in sixteen sub-blocks with 4-bit scales and mins.

   A block is scales[16], low[64] and the scales of the scales and of the mins, float16. Byte j of
   `scales` has the scale of sub-block j in its low bits, and its min in its high bits. */
#include "half.h"
#include "k_search.h"
#include "squares.h"
#include "transpose.h"
#include "two_bits.h"
#include "unsigned_search.h"

#define Q2_K_SIZE 84

/* The numbers of sub-blocks and of blocks that are searched together. */
#define Q2_K_TOGETHER (FIT_VECTORS * LANES)
#define Q2_K_TILE (Q2_K_TOGETHER / 16)

/* The result of the search for each sub-block. */
struct q2_k_found {
    float scale[Q2_K_TOGETHER];
    float min[Q2_K_TOGETHER];
    float inverse[Q2_K_TOGETHER];
    float origin[Q2_K_TOGETHER];
    float weight[Q2_K_TOGETHER];
};

INLINE void q2_k_search(const float *x, const float *importance, struct q2_k_found *found)
{
    f32v lanes[FIT_VECTORS * 16], weights[FIT_VECTORS * 16];
    struct fit fit;
    float squares[LANES];
    for (size_t v = 0; v < FIT_VECTORS; v++)
        transpose_rows(x + 16 * LANES * v, 16, 16, lanes + 16 * v);
    if (importance == NULL) {
        for (size_t i = 0; i < FIT_VECTORS * 16; i++)
            weights[i] = f32v_abs(lanes[i]);
        fit_scale_and_min(lanes, weights, 16, 3, -0.5f, 0.1f, 15, 1, 0, &fit);
    } else {
        float mean_square[Q2_K_TOGETHER];
        sum_squares(x, Q2_K_TILE, squares);
        for (size_t n = 0; n < Q2_K_TOGETHER; n++)
            mean_square[n] = squares[n / 16] / 256;
        for (size_t v = 0; v < FIT_VECTORS; v++) {
            f32v of_block = f32v_load(mean_square + LANES * v);
            transpose_rows(importance + 16 * LANES * v, 16, 16, weights + 16 * v);
            for (size_t i = 16 * v; i < 16 * v + 16; i++)
                weights[i] *= f32v_sqrt(of_block + lanes[i] * lanes[i]);
        }
        fit_scale_and_min(lanes, weights, 16, 3, -0.9f, 0.05f, 36, 0, 1, &fit);
    }
    for (size_t v = 0; v < FIT_VECTORS; v++) {
        f32v_store(found->scale + LANES * v, fit.scale[v]);
        f32v_store(found->min + LANES * v, -fit.low[v]);
        f32v_store(found->inverse + LANES * v, fit.inverse[v]);
        f32v_store(found->origin + LANES * v, fit.origin[v]);
        f32v_store(found->weight + LANES * v, fit.sum_w[v]);
    }
}

/* The levels of values of sub-block n at the scale and min of the search. */
INLINE i32v q2_k_level_of_search(f32v x, const struct q2_k_found *found, size_t n, int weighted)
{
    f32v level = round_to_levels((x - found->origin[n]) * found->inverse[n], 3,
                                 weighted ? SATURATING : WRAPPING);
    return __builtin_convertvector(level, i32v);
}

/* Set the levels of 16 values, as bytes, at the scale that makes the greatest 15; return the
   scale. */
INLINE float q2_k_round_to_greatest(const float *values, uint8_t *levels)
{
    float greatest = 0;
    for (size_t j = 0; j < 16; j++)
        greatest = values[j] > greatest ? values[j] : greatest;
    float inverse = greatest > 0 ? 15 / greatest : 0;
    for (size_t j = 0; j < 16; j++)
        levels[j] = greatest > 0 ? (uint8_t)nearest_int(inverse * values[j]) : 0;
    return greatest / 15;
}

/* For a tile of blocks, set the levels of scales and mins, and the scales of both. */
INLINE void q2_k_round(const struct q2_k_found *found, int weighted, uint8_t (*scales)[16],
                       uint8_t (*mins)[16], float *of_scales, float *of_mins)
{
    for (size_t b = 0; b < Q2_K_TILE && !weighted; b++) {
        of_scales[b] = q2_k_round_to_greatest(found->scale + 16 * b, scales[b]);
        of_mins[b] = q2_k_round_to_greatest(found->min + 16 * b, mins[b]);
    }
    if (!weighted)
        return;
    /* Scales and mins in adjacent lanes. */
    float value[16][LANES] = {{0}}, weight[16][LANES] = {{0}}, of[LANES];
    f32v values[16], weights[16];
    i32v levels[16];
    for (size_t b = 0; b < Q2_K_TILE; b++)
        for (size_t j = 0; j < 16; j++) {
            value[j][b] = found->scale[16 * b + j];
            value[j][b + Q2_K_TILE] = found->min[16 * b + j];
            weight[j][b] = weight[j][b + Q2_K_TILE] = found->weight[16 * b + j];
        }
    memcpy(values, value, sizeof values);
    memcpy(weights, weight, sizeof weights);
    f32v_store(of, fit_unsigned_scale(values, weights, 16, 15, levels));
    for (size_t b = 0; b < Q2_K_TILE; b++) {
        of_scales[b] = of[b];
        of_mins[b] = of[b + Q2_K_TILE];
        for (size_t j = 0; j < 16; j++) {
            scales[b][j] = (uint8_t)levels[j][b];
            mins[b][j] = (uint8_t)levels[j][b + Q2_K_TILE];
        }
    }
}

/* Encode the first `count` blocks of a tile of values. */
INLINE void q2_k_encode_tile(const float *x, const float *importance, size_t count, uint8_t *out)
{
    const int weighted = importance != NULL;
    struct q2_k_found found;
    uint8_t scales[Q2_K_TILE][16], mins[Q2_K_TILE][16];
    float of_scales[Q2_K_TILE], of_mins[Q2_K_TILE];
    q2_k_search(x, importance, &found);
    q2_k_round(&found, weighted, scales, mins, of_scales, of_mins);
    for (size_t b = 0; b < count; b++, out += Q2_K_SIZE) {
        int32_t levels[256];
        uint8_t level[256];
        half_store(out + 80, of_scales[b]);
        half_store(out + 82, of_mins[b]);
        for (size_t n = 16 * b; n < 16 * b + 16; n++) {
            uint8_t both = (uint8_t)(scales[b][n % 16] | mins[b][n % 16] << 4);
            float scale = half_load(out + 80) * (float)(both & 15);
            float min = half_load(out + 82) * (float)(both >> 4);
            out[n % 16] = both;
            for (size_t i = 0; i < 16; i += LANES) {
                f32v v = f32v_load(x + 16 * n + i);
                i32v q = scale != 0 ? nearest_levels((v + min) / scale, 0, 3)
                                    : q2_k_level_of_search(v, &found, n, weighted);
                memcpy(levels + n % 16 * 16 + i, &q, sizeof q);
            }
        }
        for (size_t i = 0; i < 256; i++)
            level[i] = (uint8_t)levels[i];
        pack_two_bits(level, out + 16);
    }
}

static void q2_k_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    float space[256 * Q2_K_TILE] = {0}, weights[256 * Q2_K_TILE] = {0};
    size_t blocks = count * (columns / 256);
    for (size_t done = 0; done < blocks; done += Q2_K_TILE) {
        const float *x = rows + 256 * done;
        size_t together = blocks - done < Q2_K_TILE ? blocks - done : Q2_K_TILE;
        if (together < Q2_K_TILE) {
            memcpy(space, x, 256 * together * sizeof *x);
            x = space;
        }
        if (importance == NULL) {
            q2_k_encode_tile(x, NULL, together, out + Q2_K_SIZE * done);
            continue;
        }
        for (size_t b = 0; b < together; b++)
            memcpy(weights + 256 * b, importance + (done + b) * 256 % columns,
                   256 * sizeof *weights);
        q2_k_encode_tile(x, weights, together, out + Q2_K_SIZE * done);
    }
}

static void q2_k_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q2_K_SIZE, out += 256) {
        uint8_t level[256];
        float of_scales = half_load(blocks + 80), of_mins = half_load(blocks + 82);
        unpack_two_bits(blocks + 16, level);
        for (size_t j = 0; j < 16; j++) {
            float scale = of_scales * (float)(blocks[j] & 15);
            float min = of_mins * (float)(blocks[j] >> 4);
            for (size_t i = 16 * j; i < 16 * j + 16; i++)
                out[i] = scale * (float)level[i] - min;
        }
    }
}
