/* The functions of the Python module that round with error feedback. */
#include "module.h"

#include <stdlib.h>

static int refuse(void)
{
    PyErr_SetString(PyExc_ValueError, "the buffers do not fit together");
    return -1;
}

/* No matrix has more columns; the bytes of its products fit into 64 bits. */
#define MOST_COLUMNS ((Py_ssize_t)1 << 30)

/* Whether a buffer has `count` float32 values, or was not given. */
static int has_floats(const Py_buffer *buffer, size_t count)
{
    return buffer->obj == NULL || ((size_t)buffer->len == count * sizeof(float) &&
                                   (uintptr_t)buffer->buf % sizeof(float) == 0);
}

static int get_optional(PyObject *object, Py_buffer *buffer, int flags)
{
    return object == Py_None ? 0 : PyObject_GetBuffer(object, buffer, flags);
}

/* What is known of a type: (block, shared, least, most, levels, is_fixed, has_factors,
   least_factor, most_factor). */
static int get_parts(PyObject *facts, struct parts *parts, Py_buffer *levels)
{
    Py_ssize_t block, shared;
    PyObject *levels_object;
    if (!PyArg_ParseTuple(facts, "nnffOppff", &block, &shared, &parts->least, &parts->most,
                          &levels_object, &parts->is_fixed, &parts->has_factors, &parts->least_factor,
                          &parts->most_factor) ||
        get_optional(levels_object, levels, PyBUF_SIMPLE) < 0)
        return -1;
    if (block < FED_BACK || block > BLOCKED || block % FED_BACK || shared <= 0 || block % shared ||
        !has_floats(levels, UNEVEN))
        return refuse();
    parts->block = (size_t)block;
    parts->shared = (size_t)shared;
    parts->levels = levels->buf;
    return 0;
}

static void release(Py_buffer *const *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (buffers[i]->obj != NULL)
            PyBuffer_Release(buffers[i]);
}

PyObject *factor_hessian(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, n;
    Py_buffer hessian = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "nw*n", &number, &hessian, &n))
        return NULL;
    const struct level *level = find_level(number);
    float *space = NULL;
    if (level == NULL)
        goto done;
    if (n <= 0 || n > MOST_COLUMNS || !has_floats(&hessian, (size_t)n * (size_t)n)) {
        refuse();
        goto done;
    }
    space = malloc((size_t)n * FED_BACK * sizeof(float));
    if (space == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    level->factor_hessian(hessian.buf, (size_t)n, space);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    free(space);
    PyBuffer_Release(&hessian);
    return result;
}

/* The number of tiles of `columns` columns in a buffer; 0 if it does not have whole tiles. */
static size_t count_tiles(const Py_buffer *buffer, size_t columns)
{
    size_t size = columns * sizeof(lanes);
    return (size_t)buffer->len % size ? 0 : (size_t)buffer->len / size;
}

static lanes *part_of(const Py_buffer *buffer, size_t start)
{
    return buffer->buf == NULL ? NULL : (lanes *)buffer->buf + start;
}

PyObject *round_columns(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, n, first;
    PyObject *facts, *result = NULL;
    struct parts parts;
    Py_buffer factor = {0}, own = {0}, wanted = {0}, codes = {0}, scales = {0}, lows = {0};
    Py_buffer levels = {0};
    Py_buffer *const all[] = {&factor, &own, &wanted, &codes, &scales, &lows, &levels};
    if (!PyArg_ParseTuple(args, "n(y*nn)(y*w*w*)(y*y*)O!", &number, &factor, &n, &first, &own,
                          &wanted, &codes, &scales, &lows, &PyTuple_Type, &facts))
        return NULL;
    const struct level *level = find_level(number);
    if (level == NULL || get_parts(facts, &parts, &levels) < 0)
        goto done;
    size_t columns = (size_t)n, whole = columns * ABREAST;
    if (n <= 0 || n > MOST_COLUMNS || columns % parts.block || first < 0 || first >= n ||
        (size_t)first % parts.block) {
        refuse();
        goto done;
    }
    size_t tiles = count_tiles(&own, columns), part = tiles * parts.block * ABREAST;
    if (tiles == 0 || !has_floats(&factor, columns * columns) || !has_floats(&own, tiles * whole) ||
        !has_floats(&wanted, tiles * whole) || !has_floats(&codes, tiles * whole) ||
        !has_floats(&scales, part) || !has_floats(&lows, part)) {
        refuse();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (size_t tile = 0; tile < tiles; tile++) {
        struct columns its = {part_of(&own, tile * columns), part_of(&wanted, tile * columns),
                              part_of(&codes, tile * columns)};
        level->round_columns(factor.buf, columns, (size_t)first, &parts,
                             part_of(&scales, tile * parts.block),
                             part_of(&lows, tile * parts.block), &its);
    }
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    release(all, sizeof all / sizeof *all);
    return result;
}

PyObject *refine_codes(PyObject *self, PyObject *args)
{
    (void)self;
    Py_ssize_t number, n, rounds;
    PyObject *block_lows_object, *lows_object, *facts, *result = NULL;
    struct parts parts;
    Py_buffer hessian = {0}, own = {0}, codes = {0}, block_scales = {0}, scales = {0};
    Py_buffer block_lows = {0}, lows = {0}, levels = {0};
    Py_buffer *const all[] = {&hessian, &own, &codes, &block_scales, &scales, &block_lows, &lows,
                              &levels};
    lanes *space = NULL;
    if (!PyArg_ParseTuple(args, "n(y*nn)(y*w*)(w*w*OO)O!", &number, &hessian, &n, &rounds, &own,
                          &codes, &block_scales, &scales, &block_lows_object, &lows_object,
                          &PyTuple_Type, &facts))
        return NULL;
    const struct level *level = find_level(number);
    if (level == NULL || get_parts(facts, &parts, &levels) < 0 ||
        get_optional(block_lows_object, &block_lows, PyBUF_WRITABLE) < 0 ||
        get_optional(lows_object, &lows, PyBUF_WRITABLE) < 0)
        goto done;
    size_t columns = (size_t)n, whole = columns * ABREAST;
    if (n <= 0 || n > MOST_COLUMNS || columns % parts.block || rounds < 0 ||
        (lows.obj == NULL) != (block_lows.obj == NULL)) {
        refuse();
        goto done;
    }
    size_t tiles = count_tiles(&own, columns), blocks = columns / parts.block;
    size_t groups = columns / parts.shared;
    if (tiles == 0 || !has_floats(&hessian, columns * columns) ||
        !has_floats(&own, tiles * whole) || !has_floats(&codes, tiles * whole) ||
        !has_floats(&block_scales, tiles * blocks * ABREAST) ||
        !has_floats(&block_lows, tiles * blocks * ABREAST) ||
        !has_floats(&scales, tiles * groups * ABREAST) ||
        !has_floats(&lows, tiles * groups * ABREAST)) {
        refuse();
        goto done;
    }
    space = malloc(columns * sizeof(lanes));
    if (space == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (size_t tile = 0; tile < tiles; tile++) {
        struct fitted fitted = {
            part_of(&block_scales, tile * blocks), part_of(&block_lows, tile * blocks),
            part_of(&scales, tile * groups), part_of(&lows, tile * groups)};
        level->refine_codes(hessian.buf, columns, &parts, (size_t)rounds,
                            part_of(&own, tile * columns), &fitted, part_of(&codes, tile * columns),
                            space);
    }
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    free(space);
    release(all, sizeof all / sizeof *all);
    return result;
}
