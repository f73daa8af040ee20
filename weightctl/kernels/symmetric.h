/* Q4_0 and Q5_0: 32 values in a few bits each and one scale, with levels on both sides of 0.

   Level `half`, 8 or 16, is zero. */
#ifndef WEIGHTCTL_SYMMETRIC_H
#define WEIGHTCTL_SYMMETRIC_H

#include "half.h"
#include "nibbles.h"
#include "rounding.h"
#include "scale_search.h"
#include "weighted_blocks.h"

enum {
    Q4_0_SIZE = 2 + NIBBLES_LOW,
    Q5_0_SIZE = 2 + NIBBLES_HIGH + NIBBLES_LOW,
};

/* The first value of largest magnitude; 0, never -0, if all are zeros. */
INLINE float symmetric_peak(const float *restrict x)
{
    /* The largest value has the greatest bits as a signed integer, the lowest negative value as an
       unsigned one. */
    int32_t most = INT32_MIN;
    uint32_t least = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t bits = bits_of_f32(x[i]);
        most = (int32_t)bits > most ? (int32_t)bits : most;
        least = bits > least ? bits : least;
    }
    float high = f32_from_bits((uint32_t)most), low = f32_from_bits(least);
    if (high == -low) {
        int i = 0;
        while (i < 31 && x[i] != high && x[i] != low)
            i++;
        return x[i] + 0.0f;
    }
    return high > -low ? high : low;
}

INLINE void symmetric_pack(const i32v *levels, float scale, int half, uint8_t *out)
{
    half_store(out, scale);
    if (half == 16)
        nibbles_pack(levels, out + 2, out + 2 + NIBBLES_HIGH);
    else
        nibbles_pack(levels, NULL, out + 2);
}

INLINE void symmetric_round_block(const float *restrict x, int half, uint8_t *restrict out)
{
    float scale = symmetric_peak(x) / (float)-half;
    float inverse = 0, offset = (float)half + 0.5f;
    if (__builtin_fabsf(scale) > 0x1p-128f)
        inverse = 1 / scale;
    else if (scale != 0) /* the inverse overflows, and ggml's levels are 0 */
        offset = 0;
    i32v levels[NIBBLES_ALL];
#pragma GCC unroll 8
    for (int v = 0; v < NIBBLES_ALL; v++) {
        f32v level = f32v_load(x + LANES * v) * inverse + offset;
        levels[v] = i32v_min(__builtin_convertvector(level, i32v), i32v_all(2 * half - 1));
    }
    symmetric_pack(levels, scale, half, out);
}

INLINE void symmetric_decode_block(const uint8_t *restrict block, int half, float *restrict out)
{
    float scale = half_load(block);
    i32v levels[NIBBLES_ALL];
    if (half == 16)
        nibbles_unpack(block + 2, block + 2 + NIBBLES_HIGH, levels);
    else
        nibbles_unpack(NULL, block + 2, levels);
#pragma GCC unroll 8
    for (int v = 0; v < NIBBLES_ALL; v++)
        f32v_store(out + LANES * v, __builtin_convertvector(levels[v] - half, f32v) * scale);
}

/* Encode the blocks from `first`, at most LANES; `size` is the size of a block. */
INLINE void symmetric_search_blocks(const struct weighted_rows *rows, size_t first, int half,
                                    size_t size, uint8_t *out)
{
    f32v x[32], weights[32], weighted[32];
    weighted_blocks(rows, first, x, weights);
    for (size_t i = 0; i < 32; i++)
        weighted[i] = weights[i] * x[i];
    struct scale_fit fit = fit_scale(x, weights, weighted, 32, half, 1);
    i32v levels[32];
    for (size_t i = 0; i < 32; i++)
        levels[i] = fitted_levels(x[i], &fit, half);
    struct packed_lanes packed = pack_lanes(levels);
    for (size_t i = 0; i < LANES && first + i < rows->blocks; i++) {
        uint8_t *block = out + size * (first + i);
        half_store(block, fit.scale[i]);
        store_lane(&packed, i, half == 16 ? block + 2 : NULL, block + size - NIBBLES_LOW);
    }
}

INLINE void symmetric_encode(const float *rows, size_t count, size_t columns,
                             const float *importance, int half, size_t size, uint8_t *out)
{
    size_t blocks = count * (columns / 32);
    if (importance == NULL) {
        for (size_t b = 0; b < blocks; b++)
            symmetric_round_block(rows + 32 * b, half, out + size * b);
        return;
    }
    while (count > 0) {
        size_t some = count < LANES ? count : LANES;
        struct weighted_rows weighted = weight_rows(rows, some, columns, importance);
        for (size_t first = 0; first < weighted.blocks; first += LANES)
            symmetric_search_blocks(&weighted, first, half, size, out);
        rows += some * columns;
        out += weighted.blocks * size;
        count -= some;
    }
}

static void q4_0_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    symmetric_encode(rows, count, columns, importance, 8, Q4_0_SIZE, out);
}

static void q5_0_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    symmetric_encode(rows, count, columns, importance, 16, Q5_0_SIZE, out);
}

static void q4_0_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (size_t b = 0; b < count; b++)
        symmetric_decode_block(blocks + Q4_0_SIZE * b, 8, out + 32 * b);
}

static void q5_0_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (size_t b = 0; b < count; b++)
        symmetric_decode_block(blocks + Q5_0_SIZE * b, 16, out + 32 * b);
}

#endif
