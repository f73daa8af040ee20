/* Q1_0: 128 values as -1 or 1 times their mean magnitude.

   After the float16 scale, bit i of 16 bytes says whether value i is positive. */
#include "half.h"
#include "rounding.h"
#include "transpose.h"

#define Q1_0_SIZE 18

/* Store the signs of 128 values. */
INLINE void q1_0_store_signs(const float *x, uint8_t *out)
{
    for (size_t i = 0; i < 128; i += 32, out += 4) {
        uint32_t positive = 0;
        for (uint32_t j = 0; j < 32; j += LANES)
            positive |= lanes_of(f32v_load(x + i + j) >= 0) << j;
        memcpy(out, &positive, sizeof positive);
    }
}

static void q1_0_encode(const float *rows, size_t count, size_t columns, const float *importance,
                        uint8_t *out)
{
    (void)importance; /* no effect in ggml either */
    size_t blocks = count * columns / 128;
    for (size_t done = 0; done < blocks; done += LANES) {
        /* The magnitudes of a block are added from first to last, those of blocks in lanes. */
        size_t some = blocks - done < LANES ? blocks - done : LANES;
        float space[128 * LANES];
        const float *from = rows + 128 * done;
        if (some < LANES) {
            memset(space, 0, sizeof space);
            memcpy(space, from, 128 * some * sizeof *space);
            from = space;
        }
        f32v sum = {0};
        for (size_t i = 0; i < 128; i += 4) {
            f32v x[4];
            transpose_rows(from + i, 128, 4, x);
            for (size_t j = 0; j < 4; j++)
                sum += f32v_abs(x[j]);
        }
        sum *= 1.0f / 128;
        for (size_t i = 0; i < some; i++, out += Q1_0_SIZE) {
            half_store(out, sum[i]);
            q1_0_store_signs(from + 128 * i, out + 2);
        }
    }
}

static void q1_0_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += Q1_0_SIZE, out += 128) {
        uint32_t scale = bits_of_f32(half_load(blocks));
        for (size_t i = 0; i < 128; i++) {
            uint32_t negative = ~(uint32_t)blocks[2 + i / 8] >> i % 8 & 1;
            out[i] = f32_from_bits(scale ^ negative << 31);
        }
    }
}
