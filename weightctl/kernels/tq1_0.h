/* TQ1_0: 256 values as -1, 0 or 1, five in a byte, times one scale.

   Fields of 32, 16 and 4 bytes are followed by the float16 scale. In a field of n bytes, byte i has
   the values i, i + n, i + 2 * n ... of the field. They are five ternary digits, the first the most
   significant: their number divided by 243, in 256ths, rounded up, so that each multiplication by 3
   carries the next digit out. The last field has only four values per byte. */
#include "ternary.h"

#define TQ1_0_SIZE 54

INLINE void tq1_0_pack(const uint8_t *levels, size_t bytes, size_t digits, uint8_t *out)
{
    for (size_t i = 0; i < bytes; i++) {
        uint32_t number = 0;
        for (size_t j = 0; j < digits; j++)
            number = 3 * number + levels[i + j * bytes];
        for (size_t j = digits; j < 5; j++)
            number *= 3;
        out[i] = (uint8_t)((256 * number + 242) / 243);
    }
}

INLINE void tq1_0_unpack(const uint8_t *from, size_t bytes, size_t digits, uint8_t *levels)
{
    uint8_t power = 1;
    for (size_t j = 0; j < digits; j++, power = (uint8_t)(3 * power))
        for (size_t i = 0; i < bytes; i++) {
            uint8_t fraction = (uint8_t)(from[i] * power);
            levels[i + j * bytes] = (uint8_t)(3 * fraction >> 8);
        }
}

static void tq1_0_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    (void)importance;
    for (size_t i = 0; i < count * columns; i += 256, out += TQ1_0_SIZE) {
        uint8_t levels[256];
        half_store(out + 52, ternary_levels(rows + i, levels));
        tq1_0_pack(levels, 32, 5, out);
        tq1_0_pack(levels + 160, 16, 5, out + 32);
        tq1_0_pack(levels + 240, 4, 4, out + 48);
    }
}

static void tq1_0_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += TQ1_0_SIZE, out += 256) {
        uint8_t levels[256];
        tq1_0_unpack(blocks, 32, 5, levels);
        tq1_0_unpack(blocks + 32, 16, 5, levels + 160);
        tq1_0_unpack(blocks + 48, 4, 4, levels + 240);
        ternary_numbers(levels, half_load(blocks + 52), out);
    }
}
