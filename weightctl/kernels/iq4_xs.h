/* IQ4_XS: 256 values in 4 bits each, at sixteen uneven levels, in eight sub-blocks of 32.

   The float16 scale is followed by the 6-bit scales of the sub-blocks, stored plus 32: first
   sixteen bits with the high two bits of each, then four bytes with the low four bits. A
   sub-block's levels are as in IQ4_NL. */
#include "codebook.h"

#define IQ4_XS_SIZE 136

/* The number of blocks whose sub-blocks are searched together, in IQ4_XS_VECTORS vectors. */
#define IQ4_XS_BLOCKS (LANES < 8 ? 1 : LANES / 8)
#define IQ4_XS_VECTORS (IQ4_XS_BLOCKS * 8 / LANES)

/* Store the scales of a block whose sub-blocks were fitted with scale[8], and set scale[8] to the
   factors for the values of the sub-blocks. */
INLINE void iq4_xs_store_scales(float *scale, uint8_t *block)
{
    float greatest = 0, peak = 0;
    for (size_t j = 0; j < 8; j++)
        if (__builtin_fabsf(scale[j]) > greatest) {
            peak = scale[j];
            greatest = __builtin_fabsf(peak);
        }
    float of_scales = -peak / 32;
    float inverse = of_scales != 0 ? 1 / of_scales : 0;
    half_store(block, of_scales);
    memset(block + 2, 0, 6);
    for (size_t j = 0; j < 8; j++) {
        int32_t rounded = nearest_int(inverse * scale[j]);
        rounded = rounded < -32 ? -32 : rounded > 31 ? 31 : rounded;
        float again = of_scales * (float)rounded;
        scale[j] = again != 0 ? 1 / again : 0;
        uint32_t stored = (uint32_t)(rounded + 32);
        block[2 + j / 4] |= (uint8_t)(stored >> 4 << 2 * (j % 4));
        block[4 + j / 2] |= (uint8_t)((stored & 15) << 4 * (j % 2));
    }
}

/* Encode the first `count` blocks of IQ4_XS_BLOCKS. `importance` has a weight per value, or is
   NULL; with importance, `totals` has the sum of squares of each block. */
INLINE void iq4_xs_encode_blocks(const float *rows, const float *importance, const float *totals,
                                 size_t count, uint8_t *out)
{
    f32v x[IQ4_XS_VECTORS][32], w[32];
    float scale[8 * IQ4_XS_BLOCKS];
    for (size_t v = 0; v < IQ4_XS_VECTORS; v++) {
        size_t first = v * LANES;
        transpose_rows(rows + 32 * first, 32, 32, x[v]);
        if (importance != NULL) {
            f32v variance = {0};
            for (size_t i = 0; i < LANES; i++)
                variance[i] = totals[(first + i) / 8] * (2.0f / 256);
            transpose_rows(importance + 32 * first, 32, 32, w);
            codebook_weights(x[v], variance, w);
        } else {
            for (size_t i = 0; i < 32; i++)
                w[i] = x[v][i] * x[v][i];
        }
        f32v_store(scale + first, fit_codebook_scale(x[v], w));
    }
    for (size_t i = 0; i < count; i++)
        iq4_xs_store_scales(scale + 8 * i, out + IQ4_XS_SIZE * i);
    for (size_t v = 0; v < IQ4_XS_VECTORS; v++) {
        uint8_t levels[16 * LANES];
        pack_codebook_levels(x[v], f32v_load(scale + v * LANES), levels);
        for (size_t i = 0, n = v * LANES; i < LANES && n < 8 * count; i++, n++)
            memcpy(out + n / 8 * IQ4_XS_SIZE + 8 + n % 8 * 16, levels + 16 * i, 16);
    }
}

/* The sum of squares of each of `count` blocks, at most LANES, added from first to last. */
INLINE void iq4_xs_totals(const float *rows, size_t count, float *totals)
{
    if (count == LANES) {
        f32v sum = {0};
        for (size_t i = 0; i < 256; i += 32) {
            f32v x[32];
            transpose_rows(rows + i, 256, 32, x);
            for (size_t j = 0; j < 32; j++)
                sum += x[j] * x[j];
        }
        f32v_store(totals, sum);
        return;
    }
    for (size_t n = 0; n < count; n++, rows += 256) {
        totals[n] = 0;
        for (size_t i = 0; i < 256; i++)
            totals[n] += rows[i] * rows[i];
    }
}

static void iq4_xs_encode(const float *rows, size_t count, size_t columns, const float *importance,
                          uint8_t *out)
{
    const size_t size = 256 * IQ4_XS_BLOCKS;
    size_t blocks = count * (columns / 256);
    float totals[LANES] = {0};
    for (size_t done = 0; done < blocks; done += IQ4_XS_BLOCKS) {
        size_t left = blocks - done, some = left < IQ4_XS_BLOCKS ? left : IQ4_XS_BLOCKS;
        float x[256 * IQ4_XS_BLOCKS], weights[256 * IQ4_XS_BLOCKS];
        const float *from = rows + 256 * done, *weighting = NULL;
        if (importance != NULL) {
            if (done % LANES == 0)
                iq4_xs_totals(from, left < LANES ? left : LANES, totals);
            weighting = importance_from(importance, columns, 256 * done, size, weights);
        }
        from = padded(from, 256 * some, size, x);
        iq4_xs_encode_blocks(from, weighting, totals + done % LANES, some,
                             out + IQ4_XS_SIZE * done);
    }
}

static void iq4_xs_decode(const uint8_t *blocks, size_t count, float *out)
{
    for (; count > 0; count--, blocks += IQ4_XS_SIZE) {
        float of_scales = half_load(blocks);
        for (size_t j = 0; j < 8; j++, out += 32) {
            int high = blocks[2 + j / 4] >> 2 * (j % 4) & 3, low = blocks[4 + j / 2] >> 4 * (j % 2);
            float scale = of_scales * (float)((low & 15) + 16 * high - 32);
            decode_codebook(blocks + 8 + 16 * j, scale, out);
        }
    }
}
