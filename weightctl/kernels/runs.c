/* The function of the Python module that compares two tables of values run by run. */
#include "module.h"

PyObject *compare_runs(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number;
    Py_buffer own = {0}, reference = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "ny*y*w*", &number, &own, &reference, &out))
        return NULL;
    const struct level *level = find_level(number);
    if (level == NULL)
        goto done;
    Py_ssize_t size = COMPARED * (Py_ssize_t)sizeof(float), runs = own.len / size;
    if (own.len % size || reference.len != own.len ||
        out.len != 3 * runs * (Py_ssize_t)sizeof(double) ||
        (uintptr_t)own.buf % sizeof(float) || (uintptr_t)reference.buf % sizeof(float) ||
        (uintptr_t)out.buf % sizeof(double)) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    double *sums = out.buf, product;
    float greatest;
    Py_BEGIN_ALLOW_THREADS
    greatest = level->compare_runs(own.buf, reference.buf, (size_t)runs, sums, sums + runs,
                                   sums + 2 * runs, &product);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("dd", product, (double)greatest);
done:
    PyBuffer_Release(&own);
    PyBuffer_Release(&reference);
    PyBuffer_Release(&out);
    return result;
}
