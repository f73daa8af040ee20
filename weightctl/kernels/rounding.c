/* The rounding of blocks, as functions of the Python module. */
#include "module.h"

#include <string.h>

/* The names of the kinds, in their order. */
static const char *const kinds[] = {"E4M3", "E2M1", "INT8", "zeros", "biases", "table"};

static int refuse(void)
{
    PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
    return -1;
}

/* Set the fields of a table but `from`, and the number of its blocks; -1 with an exception. */
static int find_shape(struct table *table, const Py_buffer *raw, Py_ssize_t columns,
                      Py_ssize_t size, size_t *blocks)
{
    const struct codec *from = table->from;
    if (from->decode == NULL) {
        PyErr_Format(PyExc_KeyError, "no kernel decodes %s", from->name);
        return -1;
    }
    size_t bytes = (size_t)raw->len, width = (size_t)columns;
    if (columns <= 0 || size <= 0 || width % from->block || bytes % from->size)
        return refuse();
    size_t count = bytes / from->size * from->block;
    if (count % width)
        return refuse();
    table->in = raw->buf;
    table->rows = count / width;
    table->columns = width;
    table->size = size < columns ? (size_t)size : width;
    /* A block can be as large as the whole table. */
    if (size > columns) {
        if ((size_t)size != count)
            return refuse();
        table->rows = count > 0;
        table->columns = table->size = count;
    }
    *blocks = table->rows * (table->columns / table->size + (table->columns % table->size != 0));
    return 0;
}

static int holds_floats(const Py_buffer *buffer, size_t count)
{
    return (size_t)buffer->len == count * sizeof(float) &&
           (uintptr_t)buffer->buf % sizeof(float) == 0;
}

PyObject *reduce_blocks(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns, size;
    const char *source;
    PyObject *low_object, *result = NULL;
    Py_buffer raw = {0}, low = {0}, high = {0};
    struct table table;
    size_t blocks;
    if (!PyArg_ParseTuple(args, "nsy*nnOw*", &number, &source, &raw, &columns, &size, &low_object,
                          &high))
        return NULL;
    table.from = find_codec(number, source);
    if (table.from == NULL || find_shape(&table, &raw, columns, size, &blocks) < 0)
        goto done;
    if (low_object != Py_None && PyObject_GetBuffer(low_object, &low, PyBUF_WRITABLE) < 0)
        goto done;
    if (!holds_floats(&high, blocks) || (low.obj != NULL && !holds_floats(&low, blocks))) {
        refuse();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    find_level(number)->reduce_blocks(&table, low.buf, high.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    if (low.obj != NULL)
        PyBuffer_Release(&low);
    PyBuffer_Release(&raw);
    PyBuffer_Release(&high);
    return result;
}

static int find_kind(const char *name, enum kind *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i], name) == 0) {
            *kind = (enum kind)i;
            return 0;
        }
    PyErr_Format(PyExc_KeyError, "no kernel rounds to %s", name);
    return -1;
}

PyObject *round_blocks(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns, size;
    const char *source, *kind;
    double most, sums[2] = {0, 0};
    PyObject *offsets_object, *result = NULL;
    Py_buffer raw = {0}, scales = {0}, offsets = {0}, out = {0};
    struct table table;
    struct rounding how = {0};
    size_t blocks;
    if (!PyArg_ParseTuple(args, "nsy*nnsy*Odw*", &number, &source, &raw, &columns, &size, &kind,
                          &scales, &offsets_object, &most, &out))
        return NULL;
    table.from = find_codec(number, source);
    if (table.from == NULL || find_kind(kind, &how.kind) < 0 ||
        find_shape(&table, &raw, columns, size, &blocks) < 0)
        goto done;
    if (offsets_object != Py_None && PyObject_GetBuffer(offsets_object, &offsets, PyBUF_SIMPLE) < 0)
        goto done;
    int needs_offsets = how.kind >= WITH_ZEROS;
    size_t count = how.kind == WITH_TABLE ? TABLE : blocks;
    if (!holds_floats(&scales, blocks) || needs_offsets != (offsets.obj != NULL) ||
        (needs_offsets && !holds_floats(&offsets, count)) ||
        (size_t)out.len != table.rows * table.columns || !(most >= 0 && most <= 255)) {
        refuse();
        goto done;
    }
    how.scales = scales.buf;
    how.offsets = offsets.buf;
    how.most = (float)most;
    Py_BEGIN_ALLOW_THREADS
    find_level(number)->round_blocks(&table, &how, out.buf, sums);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("dd", sums[0], sums[1]);
done:
    if (offsets.obj != NULL)
        PyBuffer_Release(&offsets);
    PyBuffer_Release(&raw);
    PyBuffer_Release(&scales);
    PyBuffer_Release(&out);
    return result;
}

PyObject *pack_pairs(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number;
    int high_first;
    Py_buffer codes = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "ny*pw*", &number, &codes, &high_first, &out))
        return NULL;
    const struct level *level = find_level(number);
    if (level == NULL)
        goto done;
    if (codes.len % 2 || out.len != codes.len / 2) {
        refuse();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    level->pack_pairs(codes.buf, (size_t)out.len, high_first, out.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&codes);
    PyBuffer_Release(&out);
    return result;
}
