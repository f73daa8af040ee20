/* The kernels for x86-64-v4: AVX-512. */
#if defined(__x86_64__)
#define LANES 16
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v4")
#endif
#include "table.h"

const struct level weightctl_x86_64_v4 = LEVEL("x86-64-v4");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
