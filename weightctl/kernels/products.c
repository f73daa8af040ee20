/* The function of the Python module that multiplies vectors with rows of blocks. */
#include "module.h"
#include "sharing.h"

/* The fewest rows that a thread takes at a time, and how often each takes some. */
#define FEWEST_ROWS 8
#define TURNS 8

/* A product, and the first row that no thread has taken. */
struct product {
    const struct level *level;
    const struct codec *codec;
    const uint8_t *blocks;
    const float *vectors;
    float *out;
    size_t rows, columns, count, stride, row_size, part, next;
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
        .part = (size_t)rows / ((size_t)threads * TURNS),
    };
    if (product.part < FEWEST_ROWS)
        product.part = FEWEST_ROWS;
    size_t parts = (product.rows + product.part - 1) / product.part;
    size_t most = (size_t)threads < parts ? (size_t)threads : parts;
    Py_BEGIN_ALLOW_THREADS
    share(multiply_parts, &product, most > 0 ? (unsigned)most : 1);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&blocks);
    PyBuffer_Release(&vectors);
    PyBuffer_Release(&out);
    return result;
}
