/* The function of the Python module that multiplies vectors with rows of blocks. */
#include <stdlib.h>

#include "module.h"
#include "sharing.h"

/* The fewest rows that a thread takes at a time, and how often each takes some. */
#define FEWEST_ROWS 8
#define TURNS 8
/* For so many vectors at most, rows are not decoded to tiles; of more, so many are multiplied. */
#define FEW_VECTORS 4
#define MOST_VECTORS 512
#define LINE 64

/* A product, and the first row, the first vector and the first space that no thread has taken. */
struct product {
    const struct level *level;
    const struct codec *codec;
    const uint8_t *blocks;
    const float *vectors;
    float *out, *arranged, *spaces;
    size_t rows, columns, count, stride, row_size, part, next, next_vector, next_space;
};

static void multiply_parts(void *given)
{
    struct product *p = given;
    for (;;) {
        size_t first = __atomic_fetch_add(&p->next, p->part, __ATOMIC_RELAXED);
        if (first >= p->rows)
            return;
        size_t rows = p->rows - first < p->part ? p->rows - first : p->part;
        p->level->multiply_rows(p->codec, p->blocks + first * p->row_size, rows, p->columns,
                                p->vectors, p->count, p->stride, p->out + first);
    }
}

static void arrange_parts(void *given)
{
    struct product *p = given;
    for (;;) {
        size_t first = __atomic_fetch_add(&p->next_vector, ARRANGED, __ATOMIC_RELAXED);
        if (first >= p->count)
            return;
        size_t count = p->count - first < ARRANGED ? p->count - first : ARRANGED;
        p->level->arrange_vectors(p->vectors + first * p->columns, count, p->columns,
                                  p->arranged + first * p->columns);
    }
}

static void multiply_tiles(void *given)
{
    struct product *p = given;
    size_t number = __atomic_fetch_add(&p->next_space, 1, __ATOMIC_RELAXED);
    float *space = p->spaces + number * TILE_SPACE(p->count);
    for (;;) {
        size_t first = __atomic_fetch_add(&p->next, TILE_ROWS, __ATOMIC_RELAXED);
        if (first >= p->rows)
            return;
        size_t rows = p->rows - first < TILE_ROWS ? p->rows - first : TILE_ROWS;
        p->level->multiply_tile(p->codec, p->blocks + first * p->row_size, rows, p->columns,
                                p->arranged, p->count, p->stride, p->out + first, space);
    }
}

static unsigned least_of(size_t threads, size_t parts)
{
    size_t least = threads < parts ? threads : parts;
    return least > 0 ? (unsigned)least : 1;
}

/* Multiply many vectors, in threads; return -1 if there is no memory. */
static int multiply_many(struct product product, size_t threads)
{
    const size_t all = product.count, most = all < MOST_VECTORS ? all : MOST_VECTORS;
    const unsigned tiling = least_of(threads, (product.rows + TILE_ROWS - 1) / TILE_ROWS);
    size_t padded = (most + ARRANGED - 1) / ARRANGED * ARRANGED * product.columns;
    size_t values = padded + tiling * TILE_SPACE(most);
    char *memory = malloc(values * sizeof(float) + LINE);
    if (memory == NULL)
        return -1;
    product.arranged = (float *)(memory + LINE - (uintptr_t)memory % LINE);
    product.spaces = product.arranged + padded;
    for (size_t first = 0; first < all; first += most) {
        product.count = all - first < most ? all - first : most;
        product.next = product.next_vector = product.next_space = 0;
        size_t parts = (product.count + ARRANGED - 1) / ARRANGED;
        share(arrange_parts, &product, least_of(threads, parts));
        share(multiply_tiles, &product, tiling);
        product.vectors += product.count * product.columns;
        product.out += product.count * product.stride;
    }
    free(memory);
    return 0;
}

static void multiply_few(struct product product, size_t threads)
{
    product.part = product.rows / (threads * TURNS);
    if (product.part < FEWEST_ROWS)
        product.part = FEWEST_ROWS;
    share(multiply_parts, &product,
          least_of(threads, (product.rows + product.part - 1) / product.part));
}

PyObject *multiply_rows(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns, first, threads;
    const char *name;
    Py_buffer blocks = {0}, vectors = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "nsy*ny*nw*n", &number, &name, &blocks, &columns, &vectors, &first,
                          &out, &threads))
        return NULL;
    const struct codec *codec = find_codec(number, name);
    if (codec == NULL)
        goto done;
    Py_ssize_t row = columns / (Py_ssize_t)codec->block * (Py_ssize_t)codec->size;
    Py_ssize_t vector = columns * (Py_ssize_t)sizeof(float);
    if (codec->decode == NULL || columns <= 0 || columns % (Py_ssize_t)codec->block ||
        blocks.len % row || vectors.len == 0 || vectors.len % vector || threads <= 0 ||
        (uintptr_t)vectors.buf % sizeof(float) || (uintptr_t)out.buf % sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    Py_ssize_t rows = blocks.len / row, count = vectors.len / vector;
    Py_ssize_t stride = out.len / count / (Py_ssize_t)sizeof(float);
    if (out.len != count * stride * (Py_ssize_t)sizeof(float) || first < 0 ||
        first > stride - rows) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    struct product product = {
        .level = find_level(number), .codec = codec, .blocks = blocks.buf, .vectors = vectors.buf,
        .out = (float *)out.buf + first, .rows = (size_t)rows, .columns = (size_t)columns,
        .count = (size_t)count, .stride = (size_t)stride, .row_size = (size_t)row,
    };
    int made = 0;
    Py_BEGIN_ALLOW_THREADS
    if (count <= FEW_VECTORS)
        multiply_few(product, (size_t)threads);
    else
        made = multiply_many(product, (size_t)threads);
    Py_END_ALLOW_THREADS
    if (made < 0)
        PyErr_NoMemory();
    else
        result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&blocks);
    PyBuffer_Release(&vectors);
    PyBuffer_Release(&out);
    return result;
}
