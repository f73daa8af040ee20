/* The words of codes, as functions of the Python module. */
#include "module.h"

#define CODES 8

static void refuse(void)
{
    PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
}

PyObject *transpose_words(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns;
    Py_buffer words = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "ny*nw*", &number, &words, &columns, &out))
        return NULL;
    const struct level *level = find_level(number);
    if (level == NULL)
        goto done;
    Py_ssize_t size = (Py_ssize_t)sizeof(uint32_t);
    if (columns <= 0 || columns > PY_SSIZE_T_MAX / size || words.len % (columns * size) ||
        out.len != words.len || (uintptr_t)words.buf % sizeof(uint32_t) ||
        (uintptr_t)out.buf % sizeof(uint32_t)) {
        refuse();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    level->transpose_words(words.buf, (size_t)(words.len / size / columns), (size_t)columns,
                           out.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&words);
    PyBuffer_Release(&out);
    return result;
}

PyObject *pack_row_groups(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns;
    Py_buffer codes = {0}, order = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "ny*ny*w*", &number, &codes, &columns, &order, &out))
        return NULL;
    const struct level *level = find_level(number);
    if (level == NULL)
        goto done;
    int fits = order.len == CODES && columns > 0 && columns <= PY_SSIZE_T_MAX / CODES &&
               codes.len % (columns * CODES) == 0 && out.len == codes.len / 2 &&
               (uintptr_t)out.buf % sizeof(uint32_t) == 0;
    for (size_t k = 0; fits && k < CODES; k++)
        fits = ((const uint8_t *)order.buf)[k] < CODES;
    if (!fits) {
        refuse();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    level->pack_row_groups(codes.buf, (size_t)(codes.len / columns / CODES), (size_t)columns,
                           order.buf, out.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&codes);
    PyBuffer_Release(&order);
    PyBuffer_Release(&out);
    return result;
}
