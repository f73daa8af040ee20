/* The kernels as a Python module, which takes and fills buffers and releases the interpreter. */
#include <string.h>
#include "codec.h"
#include "grids.h"
#include "module.h"
#include "processor.h"
#include "sharing.h"

/* The instruction sets that this processor supports, the best last. */
static const struct level *levels[3];
static Py_ssize_t level_count;

static void find_levels(void)
{
    level_count = 0;
#if defined(__x86_64__)
    const struct level *known[] = {&weightctl_x86_64_v2, &weightctl_x86_64_v3, &weightctl_x86_64_v4};
    for (int best = find_x86_64_level(); level_count < best - 1; level_count++)
        levels[level_count] = known[level_count];
#elif __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    /* The kernels read values in the byte order of files. */
    levels[level_count++] = &weightctl_baseline;
#endif
}

const struct level *find_level(Py_ssize_t number)
{
    if (number >= 0 && number < level_count)
        return levels[number];
    PyErr_Format(PyExc_ValueError, "this processor has no level %zd", number);
    return NULL;
}

const struct codec *find_codec(Py_ssize_t number, const char *name)
{
    const struct level *level = find_level(number);
    if (level == NULL)
        return NULL;
    const struct grid *grid = find_grid(name);
    if (grid != NULL && grid->near == NULL) {
        PyErr_Format(PyExc_RuntimeError, "the grid of %s is not set", name);
        return NULL;
    }
    for (const struct codec *codec = level->codecs; codec->name != NULL; codec++)
        if (strcmp(codec->name, name) == 0)
            return codec;
    PyErr_Format(PyExc_KeyError, "no kernel for %s", name);
    return NULL;
}

static PyObject *names_of_levels(PyObject *self, PyObject *args)
{
    (void)self, (void)args;
    PyObject *names = PyTuple_New(level_count);
    for (Py_ssize_t i = 0; names != NULL && i < level_count; i++) {
        PyObject *name = PyUnicode_FromString(levels[i]->name);
        if (name == NULL || PyTuple_SetItem(names, i, name) < 0)
            Py_CLEAR(names);
    }
    return names;
}

static PyObject *kernels_of_level(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number;
    if (!PyArg_ParseTuple(args, "n", &number))
        return NULL;
    const struct level *level = find_level(number);
    if (level == NULL)
        return NULL;
    PyObject *table = PyDict_New();
    for (const struct codec *codec = level->codecs; table != NULL && codec->name != NULL; codec++) {
        PyObject *abilities =
            Py_BuildValue("(OOO)",
                          codec->encode && codec->weighted != REQUIRED ? Py_True : Py_False,
                          codec->weighted ? Py_True : Py_False, codec->decode ? Py_True : Py_False);
        if (abilities == NULL || PyDict_SetItemString(table, codec->name, abilities) < 0)
            Py_CLEAR(table);
        Py_XDECREF(abilities);
    }
    return table;
}

static int encodes(const struct codec *codec, int with_importance)
{
    return codec->encode != NULL &&
           (with_importance ? codec->weighted != 0 : codec->weighted != REQUIRED);
}

static PyObject *encode(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns;
    const char *name;
    PyObject *importance_object;
    Py_buffer rows = {0}, importance = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "nsy*nOw*", &number, &name, &rows, &columns, &importance_object,
                          &out))
        return NULL;
    const struct codec *codec = find_codec(number, name);
    if (codec == NULL)
        goto done;
    if (importance_object != Py_None &&
        PyObject_GetBuffer(importance_object, &importance, PyBUF_SIMPLE) < 0)
        goto done;
    if (!encodes(codec, importance.buf != NULL)) {
        PyErr_Format(PyExc_KeyError, "no kernel encodes %s so", name);
        goto done;
    }
    Py_ssize_t row = columns * (Py_ssize_t)sizeof(float);
    if (columns <= 0 || columns % (Py_ssize_t)codec->block || rows.len % row ||
        (uintptr_t)rows.buf % sizeof(float) ||
        (importance.buf != NULL &&
         (importance.len != row || (uintptr_t)importance.buf % sizeof(float))) ||
        out.len != rows.len / (Py_ssize_t)(codec->block * sizeof(float)) * (Py_ssize_t)codec->size) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    codec->encode(rows.buf, (size_t)(rows.len / row), (size_t)columns, importance.buf, out.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    if (importance.obj != NULL)
        PyBuffer_Release(&importance);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    return result;
}

static PyObject *decode(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number;
    const char *name;
    Py_buffer blocks = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "nsy*w*", &number, &name, &blocks, &out))
        return NULL;
    const struct codec *codec = find_codec(number, name);
    if (codec == NULL)
        goto done;
    if (codec->decode == NULL) {
        PyErr_Format(PyExc_KeyError, "no kernel decodes %s", name);
        goto done;
    }
    size_t count = (size_t)blocks.len / codec->size;
    if ((size_t)blocks.len % codec->size || (uintptr_t)out.buf % sizeof(float) ||
        (size_t)out.len != count * codec->block * sizeof(float)) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    codec->decode(blocks.buf, count, out.buf);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&blocks);
    PyBuffer_Release(&out);
    return result;
}

/* Whether two buffers share a byte. */
static int overlap(const Py_buffer *a, const Py_buffer *b)
{
    uintptr_t start = (uintptr_t)a->buf, other = (uintptr_t)b->buf;
    return start < other + (uintptr_t)b->len && other < start + (uintptr_t)a->len;
}

static PyObject *transcode(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, columns;
    const char *source, *target;
    PyObject *importance_object;
    struct task task = {0};
    struct outcome outcome = {.refused = -1};
    Py_buffer raw = {0}, importance = {0}, out = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "nssy*nOw*ppp", &number, &source, &target, &raw, &columns,
                          &importance_object, &out, &task.counts, &task.measures,
                          &task.zero_nonfinite))
        return NULL;
    task.from = find_codec(number, source);
    if (task.from == NULL)
        goto done;
    task.to = find_codec(number, target);
    if (task.to == NULL)
        goto done;
    if (importance_object != Py_None &&
        PyObject_GetBuffer(importance_object, &importance, PyBUF_SIMPLE) < 0)
        goto done;
    if (task.from->decode == NULL || task.to->decode == NULL ||
        !encodes(task.to, importance.buf != NULL)) {
        PyErr_Format(PyExc_KeyError, "no kernels turn %s into %s so", source, target);
        goto done;
    }
    Py_ssize_t block = (Py_ssize_t)task.from->block, size = (Py_ssize_t)task.from->size;
    Py_ssize_t count = raw.len / size * block;
    if (columns <= 0 || columns % block || columns % (Py_ssize_t)task.to->block ||
        raw.len % size || count % columns || overlap(&raw, &out) ||
        (importance.buf != NULL && (importance.len / (Py_ssize_t)sizeof(float) != columns ||
                                    importance.len % (Py_ssize_t)sizeof(float) ||
                                    (uintptr_t)importance.buf % sizeof(float))) ||
        out.len != count / (Py_ssize_t)task.to->block * (Py_ssize_t)task.to->size) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    task.in = raw.buf;
    task.out = out.buf;
    task.rows = (size_t)(count / columns);
    task.columns = (size_t)columns;
    task.importance = importance.buf;
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = levels[number]->transcode(&task, &outcome);
    Py_END_ALLOW_THREADS
    if (done < 0)
        PyErr_NoMemory();
    else
        result = Py_BuildValue("ndnnndd", (Py_ssize_t)outcome.refused, (double)outcome.number,
                               (Py_ssize_t)outcome.overflows, (Py_ssize_t)outcome.underflows,
                               (Py_ssize_t)outcome.nonfinite, outcome.squares,
                               outcome.squared_error);
done:
    if (importance.obj != NULL)
        PyBuffer_Release(&importance);
    PyBuffer_Release(&raw);
    PyBuffer_Release(&out);
    return result;
}

/* Count the values of every `step`th word of 16 bits. This is the same for all levels. */
static PyObject *count_words(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t step;
    Py_buffer words = {0}, counts = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*nw*", &words, &step, &counts))
        return NULL;
    if (step <= 0 || words.len % (step * 2) || words.len / 2 > UINT32_MAX ||
        (uintptr_t)words.buf % 2 || (uintptr_t)counts.buf % sizeof(uint32_t) ||
        counts.len != (Py_ssize_t)sizeof(uint32_t) << 16 || overlap(&words, &counts)) {
        PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
        goto done;
    }
    const uint16_t *from = words.buf;
    uint32_t *to = counts.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = step - 1; i < words.len / 2; i += step)
        to[from[i]]++;
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&words);
    PyBuffer_Release(&counts);
    return result;
}

static PyObject *set_grid_of(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    Py_buffer levels = {0};
    int distances;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "sy*i", &name, &levels, &distances))
        return NULL;
    struct grid *grid = find_grid(name);
    size_t count = grid == NULL ? 0 : (size_t)levels.len / grid->coordinates;
    int fits = count > 0 && count < OFF_GRID && distances > 0 &&
               (size_t)levels.len == count * grid->coordinates;
    for (Py_ssize_t i = 0; fits && i < levels.len; i++)
        fits = ((const uint8_t *)levels.buf)[i] <= (grid->bits == 2 ? 2 : 7);
    if (!fits)
        PyErr_Format(PyExc_ValueError, "these are not the levels of a grid for %s", name);
    else if (set_grid(grid, levels.buf, count, distances) < 0)
        PyErr_NoMemory();
    else
        result = Py_NewRef(Py_None);
    PyBuffer_Release(&levels);
    return result;
}

static PyMethodDef methods[] = {
    {"levels", names_of_levels, METH_NOARGS,
     "The instruction sets of this processor that there are kernels for, the best last."},
    {"kernels", kernels_of_level, METH_VARARGS,
     "By name, what there is at a level: (encodes, encodes with importance, decodes)."},
    {"encode", encode, METH_VARARGS, "encode(level, name, rows, columns, importance, out)"},
    {"set_grid", set_grid_of, METH_VARARGS, "set_grid(name, levels, distances)"},
    {"decode", decode, METH_VARARGS, "decode(level, name, blocks, out)"},
    {"transcode", transcode, METH_VARARGS,
     "transcode(level, source, target, raw, columns, importance, out, counts, measures,\n"
     "zero_nonfinite) -> (refused, number, overflows, underflows, nonfinite, squares, error)"},
    {"count_words", count_words, METH_VARARGS, "count_words(words, step, counts)"},
    {"reduce_blocks", reduce_blocks, METH_VARARGS,
     "reduce_blocks(level, source, raw, columns, size, low, high)"},
    {"round_blocks", round_blocks, METH_VARARGS,
     "round_blocks(level, source, raw, columns, size, kind, scales, offsets, most, out)\n"
     "-> (squares, error)"},
    {"pack_pairs", pack_pairs, METH_VARARGS, "pack_pairs(level, codes, high_first, out)"},
    {"transpose_words", transpose_words, METH_VARARGS, 
     "transpose_words(level, words, columns, out)"},
    {"pack_row_groups", pack_row_groups, METH_VARARGS,
     "pack_row_groups(level, codes, columns, order, out)"},
    {"multiply_rows", multiply_rows, METH_VARARGS,
     "multiply_rows(level, name, blocks, columns, vectors, first, out, threads)"},
    {"compare_runs", compare_runs, METH_VARARGS,
     "compare_runs(level, own, reference, out) -> (product, greatest difference)"},
    {"find_doubtful", find_doubtful, METH_VARARGS,
     "find_doubtful(level, name, values, blocks, (mask, lowest, highest, beside, shared, scale,\n"
     "has_min, fits_scale, fits_min, limits), out)"},
    {"factor_hessian", factor_hessian, METH_VARARGS, "factor_hessian(level, hessian, n)"},
    {"round_columns", round_columns, METH_VARARGS,
     "round_columns(level, (factor, n, first), (own, wanted, codes), (scales, lows), parts)"},
    {"refine_codes", refine_codes, METH_VARARGS,
     "refine_codes(level, (hessian, n, rounds), (own, codes),\n"
     "(block_scales, scales, block_lows, lows), parts)"},
    {"multiplies_bf16", multiplies_bf16, METH_NOARGS, "multiplies_bf16() -> bool"},
    {"multiply_bf16", multiply_bf16, METH_VARARGS,
     "multiply_bf16(rows, columns, vectors, out, threads)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    find_levels();
    prepare_sharing();
    return PyModule_Create(&definition);
}
