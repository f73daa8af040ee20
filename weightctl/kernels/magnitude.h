/* The largest magnitude of values. */
#ifndef WEIGHTCTL_MAGNITUDE_H
#define WEIGHTCTL_MAGNITUDE_H

#include "half.h"

INLINE float greatest_magnitude(const float *x, size_t count)
{
    int32_t greatest = 0; /* magnitudes sort as their bits do */
    for (size_t i = 0; i < count; i++) {
        int32_t magnitude = (int32_t)(bits_of_f32(x[i]) & 0x7FFFFFFF);
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    return f32_from_bits((uint32_t)greatest);
}

#endif
