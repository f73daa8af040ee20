/* The interface of an encoding's kernel, and of the kernels for one instruction set. */
#ifndef WEIGHTCTL_CODEC_H
#define WEIGHTCTL_CODEC_H

#include <stddef.h>
#include <stdint.h>

/* The compiled form of a module of weightctl/codecs, which always gives the same bytes.

   Every `block` values fill `size` bytes. `encode` fills `out` with the blocks of `rows`, a table
   of `count` rows of `columns` values; `columns` is a multiple of `block`. `importance` is one
   weight per column, or NULL; it is NULL unless `weighted`, and never NULL if that is REQUIRED.
   `decode` fills `out` with the values of `count` blocks. Each function is NULL if there is no kernel for it. Inputs and outputs do not
   overlap and need no alignment beyond that of their type. */
#define REQUIRED 2

struct codec {
    const char *name; /* as in weightctl's table of encodings: "Q4_K" */
    size_t block;
    size_t size;
    int weighted;
    void (*encode)(const float *rows, size_t count, size_t columns, const float *importance,
                   uint8_t *out);
    void (*decode)(const uint8_t *blocks, size_t count, float *out);
};

/* A conversion of rows to another encoding; `columns` is a multiple of both blocks.

   `importance` is as for `encode`. `counts` counts the overflows of plain values, `measures` the
   rest of the loss; neither changes `out`. With `zero_nonfinite`, values that are not finite become
   0 in blocks. `in` and `out` do not overlap. */
struct task {
    const struct codec *from, *to;
    const uint8_t *in;
    uint8_t *out;
    size_t rows, columns;
    const float *importance;
    int counts, measures, zero_nonfinite;
};

/* The loss of a task, with the fields of weightctl's `Loss`; initially zeros, and `refused` is -1.

   `refused` is the index of a value (`number`) that blocks cannot hold: the first one that is not
   finite, or the largest one that overflowed its scale. Then `out` and the other fields are
   undefined. */
struct outcome {
    ptrdiff_t refused;
    float number;
    size_t overflows, underflows, nonfinite;
    double squares, squared_error;
};

/* A table of values in an encoding. Each `size` neighbors of a row are a block, the last of a row can
   be shorter; `columns` is a multiple of the encoding's block. */
struct table {
    const struct codec *from;
    const uint8_t *in;
    size_t rows, columns, size;
};

/* How the blocks of a table are rounded: a scale for each, and a zero point or bias for each with the
   kinds that have these. Integers are at most `most`. With a table, the offsets are its TABLE ascending
   values instead. */
#define TABLE 16
enum kind { TO_E4M3, TO_E2M1, TO_INT8, WITH_ZEROS, WITH_BIASES, WITH_TABLE };

struct rounding {
    enum kind kind;
    const float *scales, *offsets;
    float most;
};

/* How the codes of a block type are chosen: the fields of `CodeLayout`, and the limits, of
   weightctl/verify/proof/codes.py.

   `mask` has `size` bytes, which are not 0 where a block has codes; all bytes of codes are `lowest`
   or `highest` if the codes are. `down` and `up` have, for each of the 256 bytes, the one with
   the codes beside; they are NULL if levels are evenly spaced. `range` is the distance of the ends,
   or the highest level, in scales. `scale` is where the float16 scale of the block is, and
   `shares_scale` is 1 if a block has several groups. */
struct code_limits {
    float codes, spacing, range, rounded, shares_scale, largest, smallest;
    float least_error, most_times, most_error, most_fitted;
};

struct code_layout {
    const uint8_t *mask, *down, *up;
    uint8_t lowest, highest;
    size_t shared, scale;
    int has_min, fits_scale, fits_min;
    struct code_limits limits;
};

/* Values of ABREAST rows: what is done with one column at a time, see feedback.h. */
#define ABREAST 32
typedef float lanes[ABREAST];

/* The most values in a block of the types that are rounded with error feedback, and the number of
   levels of those with uneven ones. */
#define BLOCKED 256
#define UNEVEN 16

/* How blocks are made of codes and scales, as in weightctl/codecs/feedback/parts.py. `levels` is NULL
   if levels are the integers from `least` to `most`. Scales are not fitted if they are fixed. */
struct parts {
    size_t block, shared;
    float least, most;
    const float *levels;
    int is_fixed, has_factors;
    float least_factor, most_factor;
};

/* The columns of a tile in the order of rounding: their values, the values after feedback, and their
   codes. */
struct columns {
    const lanes *own;
    lanes *wanted, *codes;
};

/* The factors of the scales and mins of a tile: of each block, and of each sub-block. The lows are
   NULL if the type has no mins. */
struct fitted {
    lanes *block_scales, *block_lows, *scales, *lows;
};

/* The kernels compiled for one instruction set; `codecs` ends with a NULL name. `transcode` runs a
   task in one pass over memory; it returns -1 if it cannot allocate memory.

   `reduce_blocks` finds the least and the greatest value of each block, or, without `low`, the
   largest magnitude. `round_blocks` fills `out` with a code for each value, and adds the sums of the
   squares of the values, and of their errors, to `sums`. `pack_pairs` packs codes of 4 bits.
   `transpose_words` exchanges rows and columns. `pack_row_groups` packs each eight rows of codes of
   4 bits into a column of words; `order` has the row of each code in a word, lowest bits first.

   `multiply_rows` sets out[n * stride + r] to the product of row r of blocks with vector n, of `count`
   vectors. `multiply_tile` does the same for at most TILE_ROWS rows and many vectors, that
   `arrange_vectors` has arranged: ARRANGED at a time, each `columns` values; it needs room for
   TILE_SPACE(count) values. The sums are float32, in an order of their own. `compare_runs` sums
   what runs.h states for each run of COMPARED values. `find_doubtful` sets a byte of each block to
   whether its codes need a closer look, see doubts.h.

   `factor_hessian` needs room for FED_BACK rows of a matrix, and `refine_codes` for the columns of a
   tile; they and `round_columns` do what feedback.h states. */
#define FED_BACK 32
#define ARRANGED 16
#define TILE_ROWS 48
#define TILE_COLUMNS 512
/* Rows are further apart, so that they do not share the few places of a cache for an address. */
#define TILE_DISTANCE (TILE_COLUMNS + 16)
#define TILE_SPACE(count) (TILE_ROWS * ((count) + 2 * ARRANGED + TILE_DISTANCE))
#define COMPARED 32

struct level {
    const char *name;
    const struct codec *codecs;
    int (*transcode)(const struct task *task, struct outcome *outcome);
    void (*reduce_blocks)(const struct table *table, float *low, float *high);
    void (*round_blocks)(const struct table *table, const struct rounding *how, uint8_t *out,
                         double sums[2]);
    void (*pack_pairs)(const uint8_t *codes, size_t pairs, int high_first, uint8_t *out);
    void (*transpose_words)(const uint32_t *from, size_t rows, size_t columns, uint32_t *to);
    void (*pack_row_groups)(const uint8_t *codes, size_t groups, size_t columns,
                            const uint8_t *order, uint32_t *to);
    void (*multiply_rows)(const struct codec *codec, const uint8_t *blocks, size_t rows,
                          size_t columns, const float *vectors, size_t count, size_t stride,
                          float *out);
    void (*arrange_vectors)(const float *vectors, size_t count, size_t columns, float *to);
    void (*multiply_tile)(const struct codec *codec, const uint8_t *blocks, size_t rows,
                          size_t columns, const float *arranged, size_t count, size_t stride,
                          float *out, float *space);
    float (*compare_runs)(const float *own, const float *reference, size_t runs, double *errors,
                          double *squares, double *own_squares, double *product);
    void (*find_doubtful)(const struct codec *codec, const struct code_layout *layout,
                          const float *values, const uint8_t *blocks, size_t count,
                          uint8_t *doubtful);
    void (*factor_hessian)(float *hessian, size_t n, float *space);
    void (*round_columns)(const float *factor, size_t n, size_t first, const struct parts *parts,
                          const lanes *scales, const lanes *lows, const struct columns *columns);
    void (*refine_codes)(const float *hessian, size_t n, const struct parts *parts, size_t rounds,
                         const lanes *own, const struct fitted *fitted, lanes *codes, lanes *space);
};

#define LEVEL(name) {name, codecs, transcode, reduce_blocks, round_blocks, pack_pairs, \
                     transpose_words, pack_row_groups, multiply_rows, arrange_vectors, \
                     multiply_tile, compare_runs, find_doubtful, factor_hessian, round_columns, \
                     refine_codes}

#if defined(__x86_64__)
extern const struct level weightctl_x86_64_v2;
extern const struct level weightctl_x86_64_v3;
extern const struct level weightctl_x86_64_v4;
#else
extern const struct level weightctl_baseline;
#endif

#endif
