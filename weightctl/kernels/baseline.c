/* The kernels for the compiler's default instruction set: NEON on arm64. */
#if !defined(__x86_64__)
#define LANES 4
#include "table.h"

#if defined(__aarch64__)
const struct level weightctl_baseline = LEVEL("arm64");
#else
const struct level weightctl_baseline = LEVEL("baseline");
#endif
#endif
