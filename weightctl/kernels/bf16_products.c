/* Products of vectors with rows in bfloat16, for processors with instructions for pairs of them.

   The vectors are rounded to bfloat16, and the sums are float32. */
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "processor.h"
#include "sharing.h"

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define HAS_PAIRS 1
#include <immintrin.h>
#define WITH_PAIRS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* A tile of results is TILE vectors by STRIPS * LANES rows, and stays in registers. STEP pairs of
   columns are added before it is stored. */
#define TILE 8
#define STRIPS 3
#define LANES 16
#define PANEL (STRIPS * LANES)
#define STEP 256

/* A product, and the first panel of rows that no thread has taken. `vectors` are pairs of values,
   [tiles, pairs, TILE]. */
struct product {
    const uint8_t *rows;
    const uint32_t *vectors;
    float *out;
    size_t outputs, pairs, count, next;
};

/* Return a value in bfloat16, rounded to the nearest; NaN stays NaN. */
static inline uint32_t round_value(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Round `count` vectors of `pairs` pairs, and arrange them in tiles; missing ones are 0. */
static void pack_vectors(const float *vectors, size_t count, size_t pairs, uint32_t *packed)
{
    for (size_t first = 0; first < count; first += TILE, packed += pairs * TILE)
        for (size_t r = 0; r < TILE; r++) {
            const float *v = vectors + (first + r) * pairs * 2;
            for (size_t p = 0; p < pairs; p++)
                packed[p * TILE + r] = first + r >= count ? 0
                    : round_value(v[2 * p]) | round_value(v[2 * p + 1]) << 16;
        }
}

/* Set panel[p][r] to pair p of row r, for `pairs` pairs of `count` rows; missing rows are 0. */
WITH_PAIRS static void pack_panel(const uint8_t *rows, size_t stride, size_t count, size_t pairs,
                                  uint32_t *panel)
{
    /* Rows are copied first: they are often a power of two apart, and share lines of the cache. */
    static const int apart = STEP + LANES;
    uint32_t lines[LANES * (STEP + LANES)];
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i offsets = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(apart));
    for (size_t s = 0; s < STRIPS; s++) {
        size_t first = s * LANES;
        for (size_t r = 0; r < LANES; r++)
            if (first + r < count)
                memcpy(lines + r * apart, rows + (first + r) * stride, pairs * 4);
            else
                memset(lines + r * apart, 0, pairs * 4);
        for (size_t p = 0; p < pairs; p++)
            _mm512_store_si512(panel + p * PANEL + first,
                               _mm512_i32gather_epi32(offsets, (const int *)(lines + p), 4));
    }
}

/* Add the products of a tile of vectors with a panel to `out`, or set `out` to them. */
WITH_PAIRS static void multiply_tile(const uint32_t *vectors, const uint32_t *panel, size_t pairs,
                                     float *out, size_t stride, size_t count, size_t rows, int adds)
{
    __m512 sums[TILE][STRIPS];
#pragma GCC unroll 8
    for (size_t r = 0; r < TILE; r++)
#pragma GCC unroll 3
        for (size_t s = 0; s < STRIPS; s++)
            sums[r][s] = _mm512_setzero_ps();
    for (size_t p = 0; p < pairs; p++) {
        __m512i strips[STRIPS];
#pragma GCC unroll 3
        for (size_t s = 0; s < STRIPS; s++)
            strips[s] = _mm512_load_si512(panel + p * PANEL + s * LANES);
#pragma GCC unroll 8
        for (size_t r = 0; r < TILE; r++) {
            __m512i pair = _mm512_set1_epi32((int)vectors[p * TILE + r]);
#pragma GCC unroll 3
            for (size_t s = 0; s < STRIPS; s++)
                sums[r][s] = _mm512_dpbf16_ps(sums[r][s], (__m512bh)pair, (__m512bh)strips[s]);
        }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < TILE; r++)
#pragma GCC unroll 3
        for (size_t s = 0; s < STRIPS; s++) {
            size_t left = rows > s * LANES ? rows - s * LANES : 0;
            __mmask16 mask = (__mmask16)(left >= LANES ? 0xffff : (1u << left) - 1);
            float *to = out + r * stride + s * LANES;
            if (r >= count || mask == 0)
                continue;
            __m512 sum = sums[r][s];
            if (adds)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
            _mm512_mask_storeu_ps(to, mask, sum);
        }
}

static void multiply_panels(void *given)
{
    struct product *p = given;
    uint32_t panel[STEP * PANEL] __attribute__((aligned(64)));
    for (;;) {
        size_t first = __atomic_fetch_add(&p->next, PANEL, __ATOMIC_RELAXED);
        if (first >= p->outputs)
            return;
        size_t rows = p->outputs - first < PANEL ? p->outputs - first : PANEL;
        for (size_t start = 0; start < p->pairs; start += STEP) {
            size_t pairs = p->pairs - start < STEP ? p->pairs - start : STEP;
            pack_panel(p->rows + first * p->pairs * 4 + start * 4, p->pairs * 4, rows, pairs, panel);
            for (size_t n = 0; n < p->count; n += TILE)
                multiply_tile(p->vectors + n * p->pairs + start * TILE, panel, pairs,
                              p->out + n * p->outputs + first, p->outputs, p->count - n, rows,
                              start > 0);
        }
    }
}

static int has_pairs(void)
{
    return find_x86_64_level() >= 4 && has_bf16_pairs();
}
#else
static int has_pairs(void)
{
    return 0;
}
#endif

PyObject *multiplies_bf16(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyBool_FromLong(has_pairs());
}

PyObject *multiply_bf16(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t columns, threads;
    Py_buffer rows = {0}, vectors = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*ny*w*n", &rows, &columns, &vectors, &out, &threads))
        return NULL;
    Py_ssize_t vector = columns * (Py_ssize_t)sizeof(float);
    if (columns <= 0 || columns % 2 || rows.len == 0 || vectors.len == 0 ||
        rows.len % (columns * 2) || vectors.len % vector || threads <= 0 ||
        out.len / (Py_ssize_t)sizeof(float) != rows.len / (columns * 2) * (vectors.len / vector) ||
        (uintptr_t)vectors.buf % sizeof(float) || (uintptr_t)out.buf % sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    if (!has_pairs()) {
        PyErr_SetString(PyExc_ValueError, "this processor does not multiply pairs of bfloat16");
        goto done;
    }
#ifdef HAS_PAIRS
    size_t count = (size_t)(vectors.len / vector), pairs = (size_t)columns / 2;
    size_t outputs = (size_t)(rows.len / (columns * 2));
    uint32_t *packed = malloc((count + TILE - 1) / TILE * TILE * pairs * sizeof *packed);
    if (packed == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    struct product product = {.rows = rows.buf, .vectors = packed, .out = out.buf,
                              .outputs = outputs, .pairs = pairs, .count = count};
    size_t panels = (outputs + PANEL - 1) / PANEL;
    Py_BEGIN_ALLOW_THREADS
    pack_vectors(vectors.buf, count, pairs, packed);
    share(multiply_panels, &product, (unsigned)((size_t)threads < panels ? (size_t)threads : panels));
    Py_END_ALLOW_THREADS
    free(packed);
    result = Py_NewRef(Py_None);
#endif
done:
    PyBuffer_Release(&rows);
    PyBuffer_Release(&vectors);
    PyBuffer_Release(&out);
    return result;
}
