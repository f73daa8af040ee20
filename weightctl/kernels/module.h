/* What the files of the Python module share. */
#ifndef WEIGHTCTL_MODULE_H
#define WEIGHTCTL_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "codec.h"

/* They set an exception and return NULL if this processor has no such level, or that no codec. */
const struct level *find_level(Py_ssize_t number);
const struct codec *find_codec(Py_ssize_t number, const char *name);

PyObject *reduce_blocks(PyObject *self, PyObject *args);
PyObject *round_blocks(PyObject *self, PyObject *args);
PyObject *pack_pairs(PyObject *self, PyObject *args);
PyObject *transpose_words(PyObject *self, PyObject *args);
PyObject *pack_row_groups(PyObject *self, PyObject *args);
PyObject *multiply_rows(PyObject *self, PyObject *args);
PyObject *compare_runs(PyObject *self, PyObject *args);
PyObject *find_doubtful(PyObject *self, PyObject *args);
PyObject *factor_hessian(PyObject *self, PyObject *args);
PyObject *round_columns(PyObject *self, PyObject *args);
PyObject *refine_codes(PyObject *self, PyObject *args);
PyObject *multiplies_bf16(PyObject *self, PyObject *args);
PyObject *multiply_bf16(PyObject *self, PyObject *args);

#endif
