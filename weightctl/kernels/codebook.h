/* The sixteen uneven levels of IQ4_NL and IQ4_XS, and the search for their scale. */
#ifndef WEIGHTCTL_CODEBOOK_H
#define WEIGHTCTL_CODEBOOK_H

#include "half.h"
#include "lookup.h"
#include "rounding.h"
#include "scale_search.h"
#include "transpose.h"

/* The last level is repeated, so that every level is followed by the one above it. */
static const int8_t codebook[17] = {-127, -104, -83, -65, -49, -35, -22, -10, 1,
                                    13,   25,   38,  53,  69,  89,  113, 113};

/* Two adjacent levels, with the index of the lower one in the top byte, and their midpoint. */
struct neighbors {
    i32v which;
    f32v lower, upper, midpoint;
};

/* The levels on both sides of a midpoint near v: one with no other midpoint between itself and v.
   A midpoint within v / 18 of v is always chosen, for |v| up to 127.

   A parabola through the midpoints gives their index plus 0.5, to within 0.07. */
INLINE struct neighbors near_midpoint(f32v v)
{
    struct neighbors found;
    f32v x = f32v_max(f32v_min(v, f32v_all(112)), f32v_all(-112));
    /* At this magnitude a float32 has eight fraction bits. */
    f32v number = x * (0.0895f - 0.00023f * f32v_abs(x)) + (49152 + 7.83984375f);
    found.which = (i32v)((u32v)number << 16);
    found.lower = __builtin_convertvector(look_up_lanes(codebook, found.which), f32v);
    found.upper = __builtin_convertvector(look_up_lanes(codebook + 1, found.which), f32v);
    found.midpoint = (found.lower + found.upper) * 0.5f;
    return found;
}

/* The index of the level nearest to v; the upper one in a tie, 15 for NaN. */
INLINE i32v nearest_in_codebook(f32v v)
{
    struct neighbors near = near_midpoint(v);
    return (near.which >> 24) + 1 + (v < near.midpoint);
}

/* From one trial scale to the next, the product of a value crosses at most one midpoint. So its
   contribution to the sums is one of two. */
struct contribution {
    f32v x, midpoint;
    i32v vx, vx_change; /* weight * value * x below the midpoint, and its bits that differ above */
    i32v v2, v2_change; /* weight * value * value */
};

#define TRIALS_AT_ONCE 3

/* The scales for a block of 32 values in each lane such that x is near scale times levels. */
INLINE f32v fit_codebook_scale(const f32v *x, const f32v *w)
{
    f32v peak = first_peak(x, 32);
    f32v first = 1 / (peak / 127), middle = -127 / peak;
    f32v sum_vx = {0}, sum_v2 = {0};
    struct contribution parts[32];
    for (size_t i = 0; i < 32; i++) {
        f32v product = x[i] * first;
        struct neighbors near = near_midpoint(product);
        f32v value = f32v_select(product < near.midpoint, near.lower, near.upper);
        f32v weighted = w[i] * value;
        sum_vx += weighted * x[i];
        sum_v2 += weighted * value;

        near = near_midpoint(x[i] * middle);
        f32v below = w[i] * near.lower, above = w[i] * near.upper;
        parts[i].x = x[i];
        parts[i].midpoint = near.midpoint;
        parts[i].vx = (i32v)(below * x[i]);
        parts[i].vx_change = parts[i].vx ^ (i32v)(above * x[i]);
        parts[i].v2 = (i32v)(below * near.lower);
        parts[i].v2_change = parts[i].v2 ^ (i32v)(above * near.upper);
    }
    f32v scale = f32v_select(sum_v2 > 0, sum_vx / sum_v2, (f32v){0});
    f32v best = scale * sum_vx;
    for (int trial = -134; trial <= -120; trial += TRIALS_AT_ONCE) {
        f32v inverse[TRIALS_AT_ONCE];
        f32v vx[TRIALS_AT_ONCE] = {{0}}, v2[TRIALS_AT_ONCE] = {{0}};
        for (int t = 0; t < TRIALS_AT_ONCE; t++)
            inverse[t] = (float)(trial + t) / peak;
        for (size_t i = 0; i < 32; i++)
            for (int t = 0; t < TRIALS_AT_ONCE; t++) {
                i32v above = parts[i].x * inverse[t] >= parts[i].midpoint;
                vx[t] += (f32v)(parts[i].vx ^ (parts[i].vx_change & above));
                v2[t] += (f32v)(parts[i].v2 ^ (parts[i].v2_change & above));
            }
        for (int t = 0; t < TRIALS_AT_ONCE; t++) {
            i32v better = (v2[t] > 0) & (vx[t] * vx[t] > best * v2[t]);
            scale = f32v_select(better, vx[t] / v2[t], scale);
            best = f32v_select(better, scale * vx[t], best);
        }
    }
    return f32v_select(f32v_abs(peak) < NEGLIGIBLE, (f32v){0}, scale);
}

/* The 16 bytes of each lane's 32 levels; those of the first lane come first. */
INLINE void pack_codebook_levels(const f32v *x, f32v inverse, uint8_t *out)
{
    uint32_t words[4][LANES];
    for (size_t i = 0; i < 4; i++) {
        u32v word = {0};
        for (size_t j = 0; j < 4; j++) {
            i32v low = nearest_in_codebook(x[4 * i + j] * inverse);
            i32v high = nearest_in_codebook(x[4 * i + j + 16] * inverse);
            word |= (u32v)(low | high << 4) << (uint32_t)(8 * j);
        }
        memcpy(words[i], &word, sizeof word);
    }
    for (size_t lane = 0; lane < LANES; lane++)
        for (size_t i = 0; i < 4; i++, out += 4)
            for (size_t j = 0; j < 4; j++)
                out[j] = (uint8_t)(words[i][lane] >> 8 * j);
}

/* Turn the importance of 32 values into ggml's weights; `variance` is twice the mean square. */
INLINE void codebook_weights(const f32v *x, f32v variance, f32v *importance)
{
    for (size_t i = 0; i < 32; i++)
        importance[i] *= f32v_sqrt(variance + x[i] * x[i]);
}

/* `from`, or a copy of its `count` values in `space`, with zeros up to `size`. */
INLINE const float *padded(const float *from, size_t count, size_t size, float *space)
{
    if (count == size)
        return from;
    memcpy(space, from, count * sizeof *from);
    memset(space + count, 0, (size - count) * sizeof *from);
    return space;
}

/* The importance of `count` values, from value `start` of all rows; both are multiples of 32. */
INLINE const float *importance_from(const float *importance, size_t columns, size_t start,
                                    size_t count, float *space)
{
    size_t column = start % columns;
    if (column + count <= columns)
        return importance + column;
    for (size_t i = 0; i < count; i += 32, column = (column + 32) % columns)
        memcpy(space + i, importance + column, 32 * sizeof *space);
    return space;
}

/* Fill out[32] with the values that 16 bytes hold. */
INLINE void decode_codebook(const uint8_t *bytes, float scale, float *out)
{
    int8_t values[32];
    look_up_nibbles(codebook, bytes, values);
    scale_bytes(values, 32, scale, out);
}

#endif
