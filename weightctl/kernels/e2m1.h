/* What MXFP4 and NVFP4 share: values as 4-bit floats times a scale.

   As in ggml, values are counted in halves, 0 to 12, and scales are half of their usual value. */
#ifndef WEIGHTCTL_E2M1_H
#define WEIGHTCTL_E2M1_H

#include "lookup.h"
#include "magnitude.h"
#include "rounding.h"

static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The codes nearest to x / scale, the smaller magnitude in a tie, with distances in float32. Zero
   has no sign. */
INLINE i32v e2m1_nearest(f32v x, float scale)
{
    f32v magnitude = f32v_abs(x), least = magnitude;
    i32v code = {0};
    for (int i = 1; i < 8; i++) {
        f32v distance = f32v_abs((float)e2m1_values[i] * scale - magnitude);
        code = i32v_max(code, (distance < least) & i);
        least = f32v_min(distance, least);
    }
    return code | ((x < 0) & (code > 0) & 8);
}

/* Encode x[count], at most 32, into count / 2 bytes: byte i has the codes of values i and, high,
   i + count / 2. */
INLINE void e2m1_encode(const float *x, size_t count, float scale, uint8_t *out)
{
    int32_t codes[32];
    for (size_t i = 0; i < count; i += LANES) {
        i32v code = e2m1_nearest(f32v_load(x + i), scale);
        memcpy(codes + i, &code, sizeof code);
    }
    for (size_t i = 0; i < count / 2; i++)
        out[i] = (uint8_t)(codes[i] | codes[i + count / 2] << 4);
}

#endif
