/* Q4_1 and Q5_1: 32 values in a few bits each, one scale and one min.

   Level 0 is the min, level `most`, 15 or 31, the greatest. */
#ifndef WEIGHTCTL_AFFINE_H
#define WEIGHTCTL_AFFINE_H

#include <float.h>

#include "half.h"
#include "k_search.h"
#include "nibbles.h"
#include "rounding.h"
#include "weighted_blocks.h"

enum {
    Q4_1_SIZE = 4 + NIBBLES_LOW,
    Q5_1_SIZE = 4 + NIBBLES_HIGH + NIBBLES_LOW,
};

/* The bits of a float as an integer that sorts as floats do, with -0 below 0; also the inverse. */
INLINE int32_t affine_ordered(int32_t bits)
{
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}

INLINE void affine_pack(const i32v *levels, float scale, float low, int most, uint8_t *out)
{
    half_store(out, scale);
    half_store(out + 2, low);
    if (most == 31)
        nibbles_pack(levels, out + 4, out + 4 + NIBBLES_HIGH);
    else
        nibbles_pack(levels, NULL, out + 4);
}

INLINE void affine_round_block(const float *restrict x, int most, uint8_t *restrict out)
{
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    for (int i = 0; i < 32; i++) {
        int32_t ordered = affine_ordered((int32_t)bits_of_f32(x[i]));
        least = ordered < least ? ordered : least;
        greatest = ordered > greatest ? ordered : greatest;
    }
    float low = f32_from_bits((uint32_t)affine_ordered(least));
    float high = f32_from_bits((uint32_t)affine_ordered(greatest));
    if (low == 0) { /* the first of a 0 and a -0 */
        int i = 0;
        while (i < 31 && x[i] != 0)
            i++;
        low = x[i];
    }
    float scale = (high - low) / (float)most;
    i32v levels[NIBBLES_ALL] = {{0}};
    /* Beyond these the scale or its inverse overflows, and ggml's levels are 0. */
    if (scale > 0x1p-128f && scale <= FLT_MAX) {
        float inverse = 1 / scale;
#pragma GCC unroll 8
        for (int v = 0; v < NIBBLES_ALL; v++) {
            f32v level = (f32v_load(x + LANES * v) - low) * inverse + 0.5f;
            levels[v] = i32v_min(__builtin_convertvector(level, i32v), i32v_all(most));
        }
    }
    affine_pack(levels, scale, low, most, out);
}

INLINE void affine_decode_block(const uint8_t *restrict block, int most, float *restrict out)
{
    float scale = half_load(block), low = half_load(block + 2);
    i32v levels[NIBBLES_ALL];
    if (most == 31)
        nibbles_unpack(block + 4, block + 4 + NIBBLES_HIGH, levels);
    else
        nibbles_unpack(NULL, block + 4, levels);
#pragma GCC unroll 8
    for (int v = 0; v < NIBBLES_ALL; v++)
        f32v_store(out + LANES * v, __builtin_convertvector(levels[v], f32v) * scale + low);
}

enum {
    AFFINE_VECTORS = FIT_VECTORS, /* searched at a time */
    AFFINE_BLOCKS = AFFINE_VECTORS * LANES,
};

/* Encode the blocks from `first`, at most AFFINE_BLOCKS; `size` is the size of a block. */
INLINE void affine_search_blocks(const struct weighted_rows *rows, size_t first, int most,
                                 size_t size, uint8_t *out)
{
    f32v x[AFFINE_VECTORS * 32], weights[AFFINE_VECTORS * 32];
    struct fit fit;
    for (size_t v = 0; v < AFFINE_VECTORS; v++)
        weighted_blocks(rows, first + LANES * v, x + 32 * v, weights + 32 * v);
    fit_scale_and_min(x, weights, 32, most, -0.9f, 0.05f, 36, 0, 1, &fit);
    for (size_t v = 0; v < AFFINE_VECTORS; v++) {
        f32v inverse = fit.inverse[v], origin = fit.origin[v];
        i32v levels[32];
        for (size_t i = 0; i < 32; i++) {
            f32v level = round_to_levels((x[32 * v + i] - origin) * inverse, most, SATURATING);
            levels[i] = __builtin_convertvector(level, i32v);
        }
        struct packed_lanes packed = pack_lanes(levels);
        for (size_t i = 0; i < LANES && first + LANES * v + i < rows->blocks; i++) {
            uint8_t *block = out + size * (first + LANES * v + i);
            half_store(block, fit.scale[v][i]);
            half_store(block + 2, fit.low[v][i]);
            store_lane(&packed, i, most == 31 ? block + 4 : NULL, block + size - NIBBLES_LOW);
        }
    }
}

INLINE void affine_encode(const float *rows, size_t count, size_t columns, const float *importance,
                          int most, size_t size, uint8_t *out)
{
    size_t blocks = count * (columns / 32);
    if (importance == NULL) {
        for (size_t b = 0; b < blocks; b++)
            affine_round_block(rows + 32 * b, most, out + size * b);
        return;
    }
    while (count > 0) {
        size_t some = count < LANES ? count : LANES;
        struct weighted_rows weighted = weight_rows(rows, some, columns, importance);
        for (size_t first = 0; first < weighted.blocks; first += AFFINE_BLOCKS)
            affine_search_blocks(&weighted, first, most, size, out);
        rows += some * columns;
        out += weighted.blocks * size;
        count -= some;
    }
}

static void q4_1_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    affine_encode(rows, count, columns, importance, 15, Q4_1_SIZE, out);
}

static void q5_1_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    affine_encode(rows, count, columns, importance, 31, Q5_1_SIZE, out);
}

static void q4_1_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (size_t b = 0; b < count; b++)
        affine_decode_block(blocks + Q4_1_SIZE * b, 15, out + 32 * b);
}

static void q5_1_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (size_t b = 0; b < count; b++)
        affine_decode_block(blocks + Q5_1_SIZE * b, 31, out + 32 * b);
}

#endif
