/* The search for one signed scale by changing single levels: ggml's `make_q3_quants`. */
#ifndef WEIGHTCTL_DESCENT_H
#define WEIGHTCTL_DESCENT_H

#include "lanes.h"
#include "rounding.h"
#include "scale_search.h"

/* The levels -half..half - 1 as floats, rounded as `nearest_ints` does. */
INLINE f32v float_levels(f32v values, int half)
{
    i32v bits = (i32v)(values + ROUNDER) & 0x7FFFFF;
    bits = i32v_max(i32v_min(bits, i32v_all(0x400000 + half - 1)), i32v_all(0x400000 - half));
    return (f32v)(bits | 0x4B000000) - ROUNDER;
}

/* Find levels -half..half - 1, stored plus `half`, and a scale for the 16 values x in each lane.
   Starts with the scale that puts the value of largest magnitude at -half, then changes single
   levels as long as that raises the correlation, in at most five passes. If values are
   negligible, the scale and what is stored for the levels are 0. */
INLINE f32v descend(const f32v *x, int half, i32v *levels)
{
    f32v level[16], w[16], wx[16], sum_lx = {0}, sum_l2 = {0};
    f32v peak = first_peak(x, 16), inverse = (float)-half / peak;
    for (size_t i = 0; i < 16; i++) {
        w[i] = x[i] * x[i];
        wx[i] = w[i] * x[i];
        level[i] = float_levels(x[i] * inverse, half);
        sum_lx += wx[i] * level[i];
        sum_l2 += w[i] * level[i] * level[i];
    }
    i32v changed = i32v_all(-1);
    for (int pass = 0; pass < 5 && i32v_any(changed); pass++) {
        changed = (i32v){0};
        for (size_t i = 0; i < 16; i++) {
            f32v old = level[i];
            f32v rest_lx = sum_lx - wx[i] * old;
            f32v rest_l2 = sum_l2 - w[i] * old * old;
            f32v new = float_levels(x[i] * rest_l2 / rest_lx, half);
            i32v better = (rest_lx > 0) & (new != old);
            /* Six times in seven no lane has another level to try; the next value then does not
               have to wait for the sums of this one. */
            if (!i32v_any(better))
                continue;
            f32v new_lx = rest_lx + wx[i] * new;
            f32v new_l2 = rest_l2 + w[i] * new * new;
            better &= (new_l2 > 0) & (new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2);
            level[i] = f32v_select(better, new, old);
            sum_lx = f32v_select(better, new_lx, sum_lx);
            sum_l2 = f32v_select(better, new_l2, sum_l2);
            changed |= better;
        }
    }
    i32v negligible = f32v_abs(peak) < NEGLIGIBLE;
    for (size_t i = 0; i < 16; i++)
        levels[i] = ~negligible & (__builtin_convertvector(level[i], i32v) + half);
    return f32v_select((sum_l2 > 0) & ~negligible, sum_lx / sum_l2, (f32v){0});
}

#endif
