/* What every encoding's kernel offers, and the tables of them, one for each instruction set. */
#ifndef WEIGHTCTL_CODEC_H
#define WEIGHTCTL_CODEC_H

#include <stddef.h>
#include <stdint.h>

/* The compiled twin of a module of weightctl/codecs: it gives the same bytes, always.

   Every `block` numbers fill `size` bytes. `encode` fills `out` with the blocks of `rows`, a table
   of `count` rows of `columns` numbers; `columns` is a multiple of `block`. `importance` is one
   weight for each column, or NULL; it is NULL unless `weighted`. `decode` fills `out` with the
   numbers of `count` blocks. Either may be NULL: there is no such kernel. Inputs and outputs do not
   overlap and need no alignment beyond that of their type. */
struct codec {
    const char *name; /* as in weightctl's table of encodings: "Q4_K" */
    size_t block;
    size_t size;
    int weighted;
    void (*encode)(const float *rows, size_t count, size_t columns, const float *importance,
                   uint8_t *out);
    void (*decode)(const uint8_t *blocks, size_t count, float *out);
};

/* Rows of one encoding that become rows of another: `columns` is a multiple of both blocks.

   `importance` is as for `encode`. What `out` is filled with does not depend on what is `counts` (the
   overflows of plain numbers) or `measures` (all else that became of them). With `zero_nonfinite`
   numbers that are not finite are 0 in blocks. `in` and `out` do not overlap. */
struct task {
    const struct codec *from, *to;
    const uint8_t *in;
    uint8_t *out;
    size_t rows, columns;
    const float *importance;
    int counts, measures, zero_nonfinite;
};

/* What became of the numbers, as in weightctl's `Loss`; begun with zeros, and `refused` as -1.

   `refused` is the index of a `number` that blocks cannot hold: the first that is not finite, or
   the greatest that overflowed their scales. Then `out` and the rest mean nothing. */
struct outcome {
    ptrdiff_t refused;
    float number;
    size_t overflows, underflows, nonfinite;
    double squares, squared_error;
};

/* The kernels as compiled for one instruction set; `codecs` ends with a NULL name. `transcode`
   carries out a task, in one pass over memory; it gives -1 where it finds no memory to work in. */
struct level {
    const char *name;
    const struct codec *codecs;
    int (*transcode)(const struct task *task, struct outcome *outcome);
};

#if defined(__x86_64__)
extern const struct level weightctl_x86_64_v2;
extern const struct level weightctl_x86_64_v3;
extern const struct level weightctl_x86_64_v4;
#else
extern const struct level weightctl_baseline;
#endif

#endif
