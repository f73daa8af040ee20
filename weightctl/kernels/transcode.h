/* Conversion between encodings, one tile at a time that fits into the first-level cache. */
#ifndef WEIGHTCTL_TRANSCODE_H
#define WEIGHTCTL_TRANSCODE_H

#include <stdlib.h>

#include "measure.h"
#include "shortcuts.h"

/* Values per tile, a multiple of every block. Two tiles are in use: the values, and the result. */
#define TRANSCODED 4096
/* Values that shortcuts convert at a time, without tiles. */
#define RUN (16 * TRANSCODED)

/* The scale of a block can overflow float16 only if a value exceeds this. Such values are usually
   at least 65504, but a fit of scale and minimum may reach further than the values. */
#define UNSAFE 0x43800000 /* 256 */

/* The magnitudes that are too large for a plain type, as bits of float32. An infinity is not too
   large for a type that has one. */
struct range {
    const char *name;
    int32_t least, most;
};

static const struct range ranges[] = {
    {"F16", 0x477FF000, F32_INFINITE - 1},
    {"BF16", 0x7F7F8000, F32_INFINITE - 1},
    {"F8_E4M3", 0x43E00001, F32_INFINITE},
    {"F8_E5M2", 0x47700000, F32_INFINITE - 1},
    {"F8_E4M3FNUZ", 0x43700001, F32_INFINITE},
    {"F8_E5M2FNUZ", 0x47600001, F32_INFINITE},
};

static const struct range *range_of(const struct codec *codec)
{
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (strcmp(ranges[i].name, codec->name) == 0)
            return ranges + i;
    return NULL;
}

/* Measure a tile, without values that are not finite before or after; `x` may be `space`. */
static void add_loss(const float *x, float *held, size_t count, float *space,
                     struct outcome *outcome)
{
    double sums[2] = {0, 0};
    outcome->underflows += add_precise_squares(x, held, count, sums);
    if (!(sums[0] < HUGE_VAL && sums[1] < HUGE_VAL)) {
        for (size_t i = 0; i < count; i++) {
            int counts = f32_is_finite(x[i]) && f32_is_finite(held[i]);
            space[i] = counts ? x[i] : 0;
            held[i] = counts ? held[i] : 0;
        }
        sums[0] = sums[1] = 0;
        add_squares(space, held, count, sums);
    }
    outcome->squares += sums[0];
    outcome->squared_error += sums[1];
}

/* No block holds a larger value: the largest scales and levels of a type are a float16 scale, a
   7-bit scale and a 6-bit level. NVFP4 saturates much earlier, and the search for IQ4_XS turns its
   own infinities into zeros. A scale of MXFP4 can be any power of two. */
static float largest_in_blocks(const struct codec *codec)
{
    if (strcmp(codec->name, "NVFP4") == 0)
        return 2688;
    return strcmp(codec->name, "MXFP4") == 0 ? HUGE_VALF : 0x1p28f;
}

/* Record the largest value of a tile that its blocks cannot hold; the tile begins at `start`. */
static void find_overflow(const float *x, const float *held, size_t count, size_t start,
                          float largest, struct outcome *outcome)
{
    for (size_t i = 0; i < count; i++) {
        float size = x[i] < 0 ? -x[i] : x[i], most = outcome->number;
        int is_lost = !f32_is_finite(held[i]) || size > largest;
        if (is_lost && (outcome->refused < 0 || size > (most < 0 ? -most : most))) {
            outcome->refused = (ptrdiff_t)(start + i);
            outcome->number = x[i];
        }
    }
}

static size_t first_nonfinite(const float *x)
{
    size_t i = 0;
    while (f32_is_finite(x[i]))
        i++;
    return i;
}

static size_t without_nonfinite(const float *x, size_t count, float *out)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        int finite = f32_is_finite(x[i]);
        out[i] = finite ? x[i] : 0;
        found += !finite;
    }
    return found;
}

/* Convert `x` to plain values. A shortcut is used only if no value is too large. */
static void make_plain(const float *x, size_t count, const struct task *task,
                       const struct range *range, const struct shortcut *shortcut, uint8_t *out,
                       struct outcome *outcome)
{
    if (task->counts && range != NULL) {
        int32_t greatest = shortcut != NULL ? shortcut->make((const uint8_t *)x, count, out)
                                            : greatest_bits(x, count);
        if (greatest >= range->least)
            outcome->overflows += count_between(x, count, range->least, range->most);
        else if (shortcut != NULL)
            return;
    }
    task->to->encode(x, 1, count, NULL, out);
}

static void transcode_in(float *space, size_t step, const struct task *task,
                         struct outcome *outcome)
{
    const struct codec *from = task->from, *to = task->to;
    const struct range *range = range_of(to);
    const struct shortcut *shortcut = find_shortcut(from->name, to->name);
    const struct shortcut *narrowing = find_shortcut("F32", to->name);
    int is_plain = to->block == 1;
    int copies = from->decode == f32_decode && (uintptr_t)task->in % sizeof(float) == 0;
    int fills = to->encode == f32_encode && (uintptr_t)task->out % sizeof(float) == 0;
    float *held = space + step, largest = largest_in_blocks(to);
    size_t total = task->rows * task->columns, tried = 0;
    for (size_t start = 0, count; start < total; start += count) {
        const uint8_t *in = task->in + start / from->block * from->size;
        uint8_t *out = task->out + start / to->block * to->size;
        if (shortcut != NULL && !task->measures && start >= tried) {
            count = total - start < RUN ? total - start : RUN;
            if (shortcut->make(in, count, out) < range->least)
                continue;
            tried = start + count;
        }
        count = total - start < step ? total - start : step;
        if (fills) {
            from->decode(in, count / from->block, (float *)out);
            continue;
        }
        const float *x = space;
        if (copies)
            x = (const float *)in;
        else
            from->decode(in, count / from->block, space);
        int may_overflow = 0, overflows = 0;
        if (is_plain) {
            make_plain(x, count, task, range, narrowing, out, outcome);
        } else {
            int32_t greatest = greatest_bits(x, count);
            if (greatest >= F32_INFINITE) {
                if (!task->zero_nonfinite) {
                    size_t index = first_nonfinite(x);
                    outcome->refused = (ptrdiff_t)(start + index);
                    outcome->number = x[index];
                    return;
                }
                outcome->nonfinite += without_nonfinite(x, count, space);
                x = space;
                greatest = greatest_bits(x, count);
            }
            if (task->importance != NULL)
                to->encode(x, count / task->columns, task->columns, task->importance, out);
            else
                to->encode(x, 1, count, NULL, out);
            may_overflow = greatest > UNSAFE || task->importance != NULL;
            overflows = f32_from_bits((uint32_t)greatest) > largest;
        }
        if (!task->measures && !may_overflow)
            continue;
        to->decode(out, count / to->block, held);
        if (!is_plain && (overflows || greatest_bits(held, count) >= F32_INFINITE))
            find_overflow(x, held, count, start, largest, outcome);
        if (task->measures)
            add_loss(x, held, count, space, outcome);
    }
    if (!is_plain)
        outcome->underflows = 0; /* a zero in a block is ordinary rounding */
}

/* Run a task; returns -1 if memory cannot be allocated. */
static int transcode(const struct task *task, struct outcome *outcome)
{
    /* Importance weights depend on whole rows. */
    size_t step = TRANSCODED, columns = task->columns;
    if (task->importance != NULL)
        step = columns > TRANSCODED ? columns : TRANSCODED / columns * columns;
    if (step <= TRANSCODED) {
        float space[2 * TRANSCODED];
        transcode_in(space, step, task, outcome);
        return 0;
    }
    float *space = malloc(2 * step * sizeof *space);
    if (space == NULL)
        return -1;
    transcode_in(space, step, task, outcome);
    free(space);
    return 0;
}

#undef TRANSCODED
#undef RUN
#undef UNSAFE

#endif
