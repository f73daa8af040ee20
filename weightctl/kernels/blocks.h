/* Rounding of blocks to the codes of serving engines: their extremes, and codes for given scales.

   The operations are those of weightctl/schemes/arrays, in the same order. Values that are not
   finite give any codes, and sums that are not finite. */
#ifndef WEIGHTCTL_BLOCKS_H
#define WEIGHTCTL_BLOCKS_H

#include "magnitude.h"
#include "measure.h"
#include "rounding.h"
#include "transpose.h"

/* The numbers of values that are reduced and rounded at a time, which fit into the first-level
   cache with all that is computed from them; multiples of the blocks of every encoding. */
#define REDUCED 4096
#define ROUNDED 1024

/* A table whose rows are whole blocks, as one row. */
static struct table as_few_rows(const struct table *table)
{
    struct table made = *table;
    if (made.columns % made.size == 0) {
        made.columns *= made.rows;
        made.rows = made.rows > 0;
    }
    return made;
}

static void decode_piece(const struct table *table, size_t row, size_t start, size_t count,
                         float *out)
{
    const struct codec *from = table->from;
    size_t first = row * table->columns + start;
    from->decode(table->in + first / from->block * from->size, count / from->block, out);
}

/* The largest magnitude of a block is in `high` if there is no `low`. */
static void find_extremes(const float *x, size_t count, float *low, float *high)
{
    if (low == NULL) {
        *high = greatest_magnitude(x, count);
        return;
    }
    float least = x[0], most = x[0];
    for (size_t i = 1; i < count; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    *low = least;
    *high = most;
}

/* The same for LANES consecutive blocks; `size` is a multiple of 4. */
INLINE void find_extremes_of_lanes(const float *x, size_t size, float *low, float *high)
{
    f32v lanes[4], least, most;
    transpose_rows(x, size, 4, lanes);
    least = lanes[0];
    most = low == NULL ? f32v_abs(lanes[0]) : lanes[0];
    for (size_t i = 0; i < size; i += 4) {
        transpose_rows(x + i, size, 4, lanes);
        for (int k = 0; k < 4; k++) {
            if (low == NULL) {
                /* As integers, so that NaN is the largest. */
                most = (f32v)i32v_max((i32v)most, (i32v)f32v_abs(lanes[k]));
            } else {
                least = f32v_min(least, lanes[k]);
                most = f32v_max(most, lanes[k]);
            }
        }
    }
    if (low != NULL)
        f32v_store(low, least);
    f32v_store(high, most);
}

static void reduce_row(const struct table *table, size_t row, float *low, float *high)
{
    float x[REDUCED];
    size_t size = table->size, done = 0; /* the values of the current block that are done */
    int fits = size % 4 == 0 && size * LANES <= REDUCED && REDUCED % size == 0;
    for (size_t start = 0, count; start < table->columns; start += count) {
        count = table->columns - start < REDUCED ? table->columns - start : REDUCED;
        decode_piece(table, row, start, count, x);
        size_t i = 0;
        for (; fits && i + size * LANES <= count; i += size * LANES, high += LANES) {
            find_extremes_of_lanes(x + i, size, low, high);
            low = low == NULL ? NULL : low + LANES;
        }
        while (i < count) {
            size_t some = size - done < count - i ? size - done : count - i;
            float least, most;
            find_extremes(x + i, some, low == NULL ? NULL : &least, &most);
            if (low != NULL)
                *low = done && *low < least ? *low : least;
            /* Magnitudes that are NaN stay. */
            *high = done && !(most > *high) && !(most != most) ? *high : most;
            done += some;
            i += some;
            if (done == size) {
                done = 0;
                high++;
                low = low == NULL ? NULL : low + 1;
            }
        }
    }
}

static void reduce_blocks(const struct table *table, float *low, float *high)
{
    struct table made = as_few_rows(table);
    size_t blocks = made.columns / made.size + (made.columns % made.size != 0);
    for (size_t row = 0; row < made.rows; row++)
        reduce_row(&made, row, low == NULL ? NULL : low + row * blocks, high + row * blocks);
}

/* What is computed from some values: the numbers for the block of each, codes, and what the codes
   represent. */
struct piece {
    float x[ROUNDED], scales[ROUNDED], offsets[ROUNDED], held[ROUNDED];
    int32_t codes[ROUNDED];
};

INLINE float clipped(float x, float least, float most)
{
    x = x < least ? least : x;
    return x > most ? most : x;
}

static void round_to_e4m3(struct piece *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float scaled = clipped(p->x[i] / p->scales[i], -448, 448);
        p->codes[i] = (int32_t)f8_e4m3_narrowed(bits_of_f32(scaled));
    }
    for (size_t i = 0; i < count; i++)
        p->held[i] = f32_from_bits(f8_e4m3_widened((uint32_t)p->codes[i])) * p->scales[i];
}

/* Half to even, at most 6; zero has no sign. A scale of 0 makes zeros.

   From 1 on, a code is the exponent and the first bit of the mantissa. Below, a step is a half, and
   these bits are no larger than the code. */
static void round_to_e2m1(struct piece *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        /* Without branches, so that compilers vectorize the loop. */
        uint32_t kept = bits_of_f32(p->x[i] / p->scales[i]) & -(uint32_t)(p->scales[i] != 0);
        int32_t bits = kept & 0x7FFFFFFF;
        bits = bits > 0x40C00000 ? 0x40C00000 : bits; /* 6 */
        float magnitude = f32_from_bits((uint32_t)bits);
        int32_t code = (bits - (252 << 22) + (1 << 21) - 1 + (bits >> 22 & 1)) >> 22;
        int32_t halves = nearest_int((magnitude > 1 ? 1 : magnitude) * 2);
        code = code > halves ? code : halves;
        p->codes[i] = code | ((int32_t)(kept >> 31) & (code > 0)) << 3;
    }
    for (size_t i = 0; i < count; i++) {
        int32_t rest = p->codes[i] & 7, sign = (int32_t)((uint32_t)(p->codes[i] & 8) << 28);
        int32_t bits = rest < 2 ? (int32_t)bits_of_f32((float)rest * 0.5f) : (rest + 252) << 22;
        p->held[i] = f32_from_bits((uint32_t)(bits | sign)) * p->scales[i];
    }
}

/* Integers from 0 to `most`; the offsets are zero points. */
static void round_with_zeros(struct piece *p, size_t count, float most)
{
    for (size_t i = 0; i < count; i++) {
        float zero = p->offsets[i];
        int32_t steps = nearest_int(clipped(p->x[i] / p->scales[i], -zero, most - zero));
        p->codes[i] = steps + nearest_int(zero);
        p->held[i] = (float)steps * p->scales[i];
    }
}

/* Integers from 0 to `most`; the offsets are the values of 0. */
static void round_with_biases(struct piece *p, size_t count, float most)
{
    for (size_t i = 0; i < count; i++) {
        int32_t steps = nearest_int(clipped((p->x[i] - p->offsets[i]) / p->scales[i], 0, most));
        p->codes[i] = steps;
        p->held[i] = (float)steps * p->scales[i] + p->offsets[i];
    }
}

/* Integers from -127 to 127; the scales are the largest magnitudes. */
static void round_to_int8(struct piece *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int32_t steps = nearest_int(p->x[i] / p->scales[i] * 127.0f);
        p->codes[i] = steps;
        p->held[i] = (float)steps * p->scales[i] * (float)(1.0 / 127);
    }
}

/* The places in a table of the values that are nearest to x / scale, the smaller value in a tie. */
static void round_to_table(struct piece *p, size_t count, const float *table)
{
    float between[TABLE];
    for (size_t k = 1; k < TABLE; k++)
        between[k] = (table[k] + table[k - 1]) / 2;
    for (size_t i = 0; i < count; i++)
        p->held[i] = p->x[i] / p->scales[i];
    for (size_t i = 0; i < count; i += LANES) {
        f32v scaled = f32v_load(p->held + i), value = f32v_all(table[0]);
        i32v code = i32v_all(0);
        for (size_t k = 1; k < TABLE; k++) {
            i32v above = scaled > between[k];
            code -= above;
            value = f32v_select(above, f32v_all(table[k]), value);
        }
        memcpy(p->codes + i, &code, sizeof code);
        f32v_store(p->held + i, value);
    }
    for (size_t i = 0; i < count; i++)
        p->held[i] *= p->scales[i];
}

/* Fill `out` with the number for the block of each value from `first` on. */
static void spread_numbers(const float *numbers, size_t size, size_t first, size_t count,
                           float *out)
{
    const float *number = numbers + first / size;
    if (size % 16 == 0 && count % 16 == 0) {
        size_t left = size - first % size;
        for (size_t i = 0; i < count; i += 16) {
            f32v same = f32v_all(*number);
            for (size_t k = 0; k < 16; k += LANES)
                f32v_store(out + i + k, same);
            left -= 16;
            number += left == 0;
            left = left == 0 ? size : left;
        }
        return;
    }
    for (size_t i = 0, end = size - first % size; i < count; end += size, number++)
        for (; i < count && i < end; i++)
            out[i] = *number;
}

static void round_piece(struct piece *p, size_t count, const struct rounding *how)
{
    switch (how->kind) {
    case TO_E4M3:
        round_to_e4m3(p, count);
        break;
    case TO_E2M1:
        round_to_e2m1(p, count);
        break;
    case WITH_ZEROS:
        round_with_zeros(p, count, how->most);
        break;
    case WITH_BIASES:
        round_with_biases(p, count, how->most);
        break;
    case WITH_TABLE:
        round_to_table(p, count, how->offsets);
        break;
    default:
        round_to_int8(p, count);
    }
}

/* Fill `out` with the codes of a table, and add to `sums` as `add_squares` does. */
static void round_blocks(const struct table *table, const struct rounding *how, uint8_t *out,
                         double sums[2])
{
    struct table made = as_few_rows(table);
    size_t blocks = made.columns / made.size + (made.columns % made.size != 0);
    struct piece p = {0};
    for (size_t row = 0; row < made.rows; row++)
        for (size_t start = 0, count; start < made.columns; start += count) {
            count = made.columns - start < ROUNDED ? made.columns - start : ROUNDED;
            decode_piece(&made, row, start, count, p.x);
            spread_numbers(how->scales + row * blocks, made.size, start, count, p.scales);
            if (how->offsets != NULL && how->kind != WITH_TABLE)
                spread_numbers(how->offsets + row * blocks, made.size, start, count, p.offsets);
            round_piece(&p, count, how);
            for (size_t i = 0; i < count; i++)
                out[i] = (uint8_t)p.codes[i];
            out += count;
            add_precise_squares(p.x, p.held, count, sums);
        }
}

#undef REDUCED
#undef ROUNDED

/* Pack pairs of codes of 4 bits; the first of each is in the low bits, or else in the high bits. */
static void pack_pairs(const uint8_t *restrict codes, size_t pairs, int high_first,
                       uint8_t *restrict out)
{
    /* A pair is read as one number, in the byte order of files, and many are joined at a time. */
    size_t i = 0;
    for (uint16_t some[64]; i + 64 <= pairs; i += 64) {
        memcpy(some, codes + 2 * i, sizeof some);
        if (high_first)
            for (size_t k = 0; k < 64; k++)
                out[i + k] = (uint8_t)(some[k] << 4 | some[k] >> 8);
        else
            for (size_t k = 0; k < 64; k++)
                out[i + k] = (uint8_t)(some[k] | some[k] >> 8 << 4);
    }
    for (; i < pairs; i++)
        out[i] = (uint8_t)(high_first ? codes[2 * i] << 4 | codes[2 * i + 1]
                                      : codes[2 * i] | codes[2 * i + 1] << 4);
}

#endif
