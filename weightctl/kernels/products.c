/* The function of the Python module that multiplies vectors with rows of blocks. */
#include "module.h"

PyObject *multiply_rows(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns, first;
    const char *name;
    Py_buffer blocks = {0}, vectors = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "nsy*ny*nw*", &number, &name, &blocks, &columns, &vectors, &first,
                          &out))
        return NULL;
    const struct codec *codec = find_codec(number, name);
    if (codec == NULL)
        goto done;
    Py_ssize_t row = columns / (Py_ssize_t)codec->block * (Py_ssize_t)codec->size;
    Py_ssize_t vector = columns * (Py_ssize_t)sizeof(float);
    if (codec->decode == NULL || columns <= 0 || columns % (Py_ssize_t)codec->block ||
        blocks.len % row || vectors.len == 0 || vectors.len % vector ||
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
    const struct level *level = find_level(number);
    Py_BEGIN_ALLOW_THREADS
    level->multiply_rows(codec, blocks.buf, (size_t)rows, (size_t)columns, vectors.buf,
                         (size_t)count, (size_t)stride, (float *)out.buf + first);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&blocks);
    PyBuffer_Release(&vectors);
    PyBuffer_Release(&out);
    return result;
}
