/* The function of the Python module that finds blocks of codes that need a closer look. */
#include "module.h"

#include <string.h>

PyObject *find_doubtful(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, shared, scale;
    const char *name;
    struct code_layout layout = {0};
    PyObject *beside_object, *result = NULL;
    Py_buffer values = {0}, blocks = {0}, mask = {0}, beside = {0}, limits = {0}, out = {0};
    if (!PyArg_ParseTuple(args, "nsy*y*(y*bbOnnpppy*)w*", &number, &name, &values, &blocks, &mask,
                          &layout.lowest, &layout.highest, &beside_object, &shared, &scale,
                          &layout.has_min, &layout.fits_scale, &layout.fits_min, &limits, &out))
        return NULL;
    const struct codec *codec = find_codec(number, name);
    if (codec == NULL)
        goto done;
    if (beside_object != Py_None && PyObject_GetBuffer(beside_object, &beside, PyBUF_SIMPLE) < 0)
        goto done;
    size_t count = (size_t)blocks.len / codec->size;
    if (codec->decode == NULL || (size_t)blocks.len % codec->size || (size_t)out.len != count ||
        (size_t)values.len != count * codec->block * sizeof(float) ||
        (uintptr_t)values.buf % sizeof(float) || (size_t)mask.len != codec->size ||
        (beside.obj != NULL && beside.len != 2 * 256) ||
        limits.len != (Py_ssize_t)sizeof layout.limits || shared < 16 || shared % 16 ||
        codec->block % (size_t)shared || scale < 0 || (size_t)scale + 2 > codec->size) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    layout.mask = mask.buf;
    layout.down = beside.buf;
    layout.up = layout.down == NULL ? NULL : layout.down + 256;
    layout.shared = (size_t)shared;
    layout.scale = (size_t)scale;
    memcpy(&layout.limits, limits.buf, sizeof layout.limits);
    Py_BEGIN_ALLOW_THREADS
    find_level(number)->find_doubtful(codec, &layout, values.buf, blocks.buf, count, out.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    if (beside.obj != NULL)
        PyBuffer_Release(&beside);
    PyBuffer_Release(&values);
    PyBuffer_Release(&blocks);
    PyBuffer_Release(&mask);
    PyBuffer_Release(&limits);
    PyBuffer_Release(&out);
    return result;
}
