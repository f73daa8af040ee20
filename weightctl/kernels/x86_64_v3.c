/* The kernels for x86-64-v3: AVX2 and F16C. */
#if defined(__x86_64__)
#define LANES 8
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v3"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v3")
#endif
#include "table.h"

const struct level weightctl_x86_64_v3 = LEVEL("x86-64-v3");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
