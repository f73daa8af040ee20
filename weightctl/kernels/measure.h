/* Measurement of a loss: largest magnitude, counts of lost values, and sums of squares. */
#ifndef WEIGHTCTL_MEASURE_H
#define WEIGHTCTL_MEASURE_H

#include <math.h>

#include "plain.h"

/* The bits of the largest magnitude; at least F32_INFINITE if a value is not finite. */
static int32_t greatest_bits(const float *x, size_t count)
{
    int32_t greatest = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(bits_of_f32(x[i]) & 0x7FFFFFFF);
        greatest = bits > greatest ? bits : greatest;
    }
    return greatest;
}

INLINE int f32_is_finite(float x)
{
    return (bits_of_f32(x) & 0x7FFFFFFF) < F32_INFINITE;
}

/* The number of magnitudes whose bits are from `least` to `most`. */
static size_t count_between(const float *x, size_t count, int32_t least, int32_t most)
{
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(bits_of_f32(x[i]) & 0x7FFFFFFF);
        found += (bits >= least) & (bits <= most);
    }
    return found;
}

/* The number of partial sums, fixed so that results are the same for all instruction sets. */
#define PARTS 16

typedef float f32h __attribute__((vector_size(2 * LANES))); /* half a vector */
typedef double f64v __attribute__((vector_size(4 * LANES)));

INLINE f64v f64v_of_f32(const float *from)
{
    f32h x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, f64v);
}

static double sum_of_parts(const double *parts)
{
    double sums[PARTS];
    memcpy(sums, parts, sizeof sums);
    for (int width = PARTS / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            sums[i] += sums[i + width];
    return sums[0];
}

/* Add the squares of values to sums[0], and those of their differences from `held` to sums[1].

   In float64 the square of a float32 is exact and cannot overflow or underflow. */
static void add_squares(const float *x, const float *held, size_t count, double sums[2])
{
    enum { WIDTH = LANES / 2, VECTORS = PARTS / WIDTH };
    f64v squares[VECTORS] = {0}, errors[VECTORS] = {0};
    size_t whole = count / PARTS * PARTS;
    for (size_t i = 0; i < whole; i += PARTS) {
#pragma GCC unroll 8
        for (int part = 0; part < VECTORS; part++) {
            f64v before = f64v_of_f32(x + i + part * WIDTH);
            f64v error = before - f64v_of_f32(held + i + part * WIDTH);
            squares[part] += before * before;
            errors[part] += error * error;
        }
    }
    double parts[2][PARTS];
    memcpy(parts[0], squares, sizeof squares);
    memcpy(parts[1], errors, sizeof errors);
    for (size_t i = whole; i < count; i++) {
        double before = x[i], error = before - held[i];
        parts[0][i - whole] += before * before;
        parts[1][i - whole] += error * error;
    }
    sums[0] += sum_of_parts(parts[0]);
    sums[1] += sum_of_parts(parts[1]);
}

/* The same in float32, twice as fast: at most CHAIN values are summed in float32, so that the
   relative error is at most 1e-6. Returns the number of nonzero values that became zero. */
#define CHAIN 8

static size_t add_usual_squares(const float *x, const float *held, size_t count, double sums[2])
{
    enum { VECTORS = PARTS / LANES, SOME = PARTS * CHAIN };
    double parts[2][PARTS] = {{0}, {0}};
    i32v zeros = {0};
    size_t whole = count / SOME * SOME;
    for (size_t start = 0; start < whole; start += SOME) {
        f32v squares[VECTORS] = {0}, errors[VECTORS] = {0};
        for (size_t i = start; i < start + SOME; i += PARTS) {
#pragma GCC unroll 8
            for (int part = 0; part < VECTORS; part++) {
                f32v before = f32v_load(x + i + part * LANES);
                f32v after = f32v_load(held + i + part * LANES);
                f32v error = before - after;
                squares[part] += before * before;
                errors[part] += error * error;
                zeros += (after == 0) & (before != 0);
            }
        }
        float each[2][PARTS];
        memcpy(each[0], squares, sizeof squares);
        memcpy(each[1], errors, sizeof errors);
        for (int i = 0; i < PARTS; i++) {
            parts[0][i] += each[0][i];
            parts[1][i] += each[1][i];
        }
    }
    sums[0] += sum_of_parts(parts[0]);
    sums[1] += sum_of_parts(parts[1]);
    add_squares(x + whole, held + whole, count - whole, sums);
    size_t found = 0;
    for (int i = 0; i < LANES; i++)
        found += (size_t)-zeros[i];
    for (size_t i = whole; i < count; i++)
        found += (held[i] == 0) & (x[i] != 0);
    return found;
}

#undef CHAIN
#undef PARTS

/* Above this mean square, squares that float32 cannot hold (below 2**-126) are negligible. */
#define LEAST_MEAN 0x1p-100

INLINE int is_usual(double sum, size_t count)
{
    return sum > (double)count * LEAST_MEAN && sum < HUGE_VAL;
}

#undef LEAST_MEAN

/* Add the same sums as `add_squares`, in float32 where that is precise. Returns the number of
   nonzero values that became zero. */
static size_t add_precise_squares(const float *x, const float *held, size_t count, double sums[2])
{
    double some[2] = {0, 0};
    size_t zeros = add_usual_squares(x, held, count, some);
    if (!is_usual(some[0], count) ||
        !(is_usual(some[1], count) || memcmp(x, held, count * sizeof *x) == 0)) {
        some[0] = some[1] = 0;
        add_squares(x, held, count, some);
    }
    sums[0] += some[0];
    sums[1] += some[1];
    return zeros;
}

#endif
