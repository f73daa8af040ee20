/* Levels of two bits, four to the byte, as Q2_K and Q3_K store them: of each half of the 256
   values, byte i has values i, i + 32, i + 64 and i + 96, the first lowest. */
#ifndef WEIGHTCTL_TWO_BITS_H
#define WEIGHTCTL_TWO_BITS_H

#include "lanes.h"

INLINE void pack_two_bits(const uint8_t *levels, uint8_t *to)
{
    for (size_t h = 0; h < 2; h++)
        for (size_t i = 0; i < 32; i++) {
            const uint8_t *q = levels + 128 * h + i;
            to[32 * h + i] =
                (uint8_t)((q[0] & 3) | (q[32] & 3) << 2 | (q[64] & 3) << 4 | (q[96] & 3) << 6);
        }
}

INLINE void unpack_two_bits(const uint8_t *from, uint8_t *levels)
{
    for (size_t h = 0; h < 2; h++)
        for (size_t i = 0; i < 32; i++) {
            uint8_t bits = from[32 * h + i], *q = levels + 128 * h + i;
            q[0] = bits & 3;
            q[32] = bits >> 2 & 3;
            q[64] = bits >> 4 & 3;
            q[96] = bits >> 6;
        }
}

#endif
