/* TQ2_0: 256 values as -1, 0 or 1 in 2 bits each, times one scale.

   Two rows of 32 bytes are followed by the float16 scale. Byte i of row j has value 128 * j + i in
   its lowest bits, and then those at + 32, + 64 and + 96. */
#include "ternary.h"

#define TQ2_0_SIZE 66

static void tq2_0_encode(const float *rows, size_t count, size_t columns, const float *importance,
                         uint8_t *out)
{
    (void)importance;
    for (size_t n = 0; n < count * columns; n += 256, out += TQ2_0_SIZE) {
        uint8_t levels[256];
        half_store(out + 64, ternary_levels(rows + n, levels));
        for (size_t j = 0; j < 2; j++) {
            const uint8_t *from = levels + 128 * j;
            for (size_t i = 0; i < 32; i++)
                out[32 * j + i] = (uint8_t)(from[i] | from[i + 32] << 2 | from[i + 64] << 4 |
                                            from[i + 96] << 6);
        }
    }
}

static void tq2_0_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += TQ2_0_SIZE, out += 256) {
        uint8_t levels[256];
        for (size_t j = 0; j < 2; j++)
            for (size_t k = 0; k < 4; k++)
                for (size_t i = 0; i < 32; i++)
                    levels[128 * j + 32 * k + i] = blocks[32 * j + i] >> 2 * k & 3;
        ternary_numbers(levels, half_load(blocks + 64), out);
    }
}
