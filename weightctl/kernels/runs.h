/* Comparison of two tables of values, run by run. */
#ifndef WEIGHTCTL_RUNS_H
#define WEIGHTCTL_RUNS_H

#include "measure.h"

/* The number of partial sums of a run, fixed so that results are the same for all instruction
   sets. */
#define PARTS 16
/* A sum of squares that float32 holds exactly enough. */
#define LEAST_SUM 0x1p-100F

typedef float f32x16 __attribute__((vector_size(64)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));

/* The sums over a run: of squared differences, of the squares of `y` and of `x`, and of x * y. */
struct run_sums {
    double error, squares, own_squares, product;
};

INLINE float sum_of_lanes(const f32v *vectors)
{
    f32x16 all;
    memcpy(&all, vectors, sizeof all);
    f32x8 low, high;
    memcpy(&low, &all, sizeof low);
    memcpy(&high, (const char *)&all + sizeof low, sizeof high);
    low += high;
    f32x4 first, second;
    memcpy(&first, &low, sizeof first);
    memcpy(&second, (const char *)&low + sizeof first, sizeof second);
    first += second;
    return (first[0] + first[2]) + (first[1] + first[3]);
}

INLINE int is_usual_sum(float sum)
{
    return sum > LEAST_SUM && sum < HUGE_VALF;
}

/* The sums in float64, where the square of a float32 is exact and neither overflows nor
   underflows. */
static struct run_sums add_run(const float *x, const float *y)
{
    struct run_sums sums = {0};
    for (size_t i = 0; i < COMPARED; i++) {
        float difference = x[i] - y[i];
        sums.error += (double)difference * difference;
        sums.squares += (double)y[i] * y[i];
        sums.own_squares += (double)x[i] * x[i];
        sums.product += (double)x[i] * y[i];
    }
    return sums;
}

/* The same in float32 where that is precise. `greatest` is raised to the bits of the largest
   magnitude of a difference that is not NaN. */
INLINE struct run_sums add_usual_run(const float *x, const float *y, i32v *greatest)
{
    enum { VECTORS = PARTS / LANES };
    f32v errors[VECTORS] = {0}, squares[VECTORS] = {0}, own[VECTORS] = {0}, products[VECTORS] = {0};
#pragma GCC unroll 8
    for (int i = 0; i < COMPARED / LANES; i++) {
        int part = i % VECTORS;
        f32v before = f32v_load(x + i * LANES), wanted = f32v_load(y + i * LANES);
        f32v difference = before - wanted;
        errors[part] += difference * difference;
        squares[part] += wanted * wanted;
        own[part] += before * before;
        products[part] += before * wanted;
        i32v bits = (i32v)difference & i32v_all(0x7FFFFFFF);
        *greatest = i32v_select((bits > *greatest) & (bits <= F32_INFINITE), bits, *greatest);
    }
    float error = sum_of_lanes(errors), square = sum_of_lanes(squares), mine = sum_of_lanes(own);
    if (!is_usual_sum(error) || !is_usual_sum(square) || !is_usual_sum(mine))
        return add_run(x, y);
    return (struct run_sums){error, square, mine, sum_of_lanes(products)};
}

/* Fill tables of one value for each run of COMPARED values with the sums, set `product` to the sum
   of all products, and return the largest magnitude of a difference. Differences are rounded to
   float32. */
static float compare_runs(const float *x, const float *y, size_t runs, double *errors,
                          double *squares, double *own_squares, double *product)
{
    i32v greatest = {0};
    double all = 0;
    for (size_t run = 0; run < runs; run++) {
        struct run_sums sums = add_usual_run(x + run * COMPARED, y + run * COMPARED, &greatest);
        errors[run] = sums.error;
        squares[run] = sums.squares;
        own_squares[run] = sums.own_squares;
        all += sums.product;
    }
    *product = all;
    int32_t most = 0;
    for (int i = 0; i < LANES; i++)
        most = greatest[i] > most ? greatest[i] : most;
    float found;
    memcpy(&found, &most, sizeof found);
    return found;
}

#undef PARTS
#undef LEAST_SUM

#endif
