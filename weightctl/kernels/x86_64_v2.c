/* The kernels for x86-64-v2: SSE4.2. */
#if defined(__x86_64__)
#define LANES 4
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v2"))), apply_to = function)
#else
#pragma GCC target("arch=x86-64-v2")
#endif
#include "table.h"

const struct level weightctl_x86_64_v2 = LEVEL("x86-64-v2");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
