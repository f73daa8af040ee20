/* IQ4_NL: 32 values in 4 bits each, at sixteen uneven levels, and one scale.

   After the float16 scale, byte i has the level of value i in its low bits and that of value
   i + 16 in its high bits. */
#include "codebook.h"

#define IQ4_NL_SIZE 18

/* Encode the first `count` blocks of LANES; `importance` has a weight per value, or is NULL. */
INLINE void iq4_nl_encode_lanes(const float *rows, const float *importance, size_t count,
                                uint8_t *out)
{
    f32v x[32], w[32];
    transpose_rows(rows, 32, 32, x);
    for (size_t i = 0; i < 32; i++)
        w[i] = x[i] * x[i];
    if (importance != NULL) {
        f32v variance = {0};
        for (size_t i = 0; i < 32; i++)
            variance += w[i];
        transpose_rows(importance, 32, 32, w);
        codebook_weights(x, variance * (2.0f / 32), w);
    }
    f32v scale = fit_codebook_scale(x, w);
    f32v inverse = f32v_select(scale != 0, 1 / scale, (f32v){0});
    uint8_t levels[16 * LANES];
    pack_codebook_levels(x, inverse, levels);
    for (size_t i = 0; i < count; i++, out += IQ4_NL_SIZE) {
        half_store(out, scale[i]);
        memcpy(out + 2, levels + 16 * i, 16);
    }
}

static void iq4_nl_encode(const float *rows, size_t count, size_t columns, const float *importance,
                          uint8_t *out)
{
    size_t blocks = count * (columns / 32);
    for (size_t done = 0; done < blocks; done += LANES) {
        size_t some = blocks - done < LANES ? blocks - done : LANES;
        float x[32 * LANES], weights[32 * LANES];
        const float *from = padded(rows + 32 * done, 32 * some, 32 * LANES, x), *weighting = NULL;
        if (importance != NULL)
            weighting = importance_from(importance, columns, 32 * done, 32 * LANES, weights);
        iq4_nl_encode_lanes(from, weighting, some, out + IQ4_NL_SIZE * done);
    }
}

static void iq4_nl_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += IQ4_NL_SIZE, out += 32)
        decode_codebook(blocks + 2, half_load(blocks), out);
}
