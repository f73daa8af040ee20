/* What an x86-64 processor can do, and the operating system lets it do, by its own instructions.

   `__builtin_cpu_supports` needs a part of the compiler's library that zig does not have. The numbers
   are of Intel's Software Developer's Manual, volume 2, CPUID and XGETBV. */
#ifndef PROCESSOR_H
#define PROCESSOR_H
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

enum register_of_cpuid { EAX, EBX, ECX, EDX };

/* Whether all bits are set in a register of CPUID. */
static inline int has_bits(unsigned leaf, unsigned part, enum register_of_cpuid which, unsigned bits)
{
    unsigned found[4];
    return __get_cpuid_count(leaf, part, &found[0], &found[1], &found[2], &found[3]) &&
           (found[which] & bits) == bits;
}

/* Whether the system keeps the registers of these kinds (XCR0) when it switches threads. */
static inline int keeps_registers(unsigned bits)
{
    unsigned low, high;
    if (!has_bits(1, 0, ECX, 1u << 27)) /* OSXSAVE */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & bits) == bits;
}

/* Whether the system keeps the registers of AVX-512. macOS sets their bits in XCR0 only after a thread
   has used them, so it is asked itself. */
static inline int keeps_avx512(void)
{
#if defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.avx512f", &has, &size, NULL, 0) == 0 && has && keeps_registers(0x6);
#else
    return keeps_registers(0xE6);
#endif
}

/* The level of x86-64 (1 to 4) that the processor has. */
static inline int find_x86_64_level(void)
{
    /* SSE3, SSSE3, SSE4.1, SSE4.2 and POPCNT. */
    if (!has_bits(1, 0, ECX, 1u << 0 | 1u << 9 | 1u << 19 | 1u << 20 | 1u << 23))
        return 1;
    /* FMA, AVX and F16C; BMI, AVX2 and BMI2; LZCNT; registers of SSE and AVX. */
    if (!has_bits(1, 0, ECX, 1u << 12 | 1u << 28 | 1u << 29) ||
        !has_bits(7, 0, EBX, 1u << 3 | 1u << 5 | 1u << 8) ||
        !has_bits(0x80000001, 0, ECX, 1u << 5) || !keeps_registers(0x6))
        return 2;
    /* AVX512F, DQ, CD, BW and VL; the registers of AVX-512. */
    if (!has_bits(7, 0, EBX, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) ||
        !keeps_avx512())
        return 3;
    return 4;
}

/* Whether the processor multiplies pairs of bfloat16 (AVX512_BF16). */
static inline int has_bf16_pairs(void)
{
    return has_bits(7, 1, EAX, 1u << 5);
}
#endif
#endif
