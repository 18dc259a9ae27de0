/* chunk_rows.h - pieces of the rules that run in chunks (delta_rule.c, state_space.c): short rows of
 * numbers, summed upwards. Loops have no reductions but tke_row_dot, so the compiler makes vectors of
 * them and the order of each sum stays as written. Private to those files. */
#ifndef TKE_MATH_CHUNK_ROWS_H
#define TKE_MATH_CHUNK_ROWS_H

#include <string.h>
#include "math/dtype.h"

/* y += a x */
static inline void tke_row_add(size_t n, tke_real a, const tke_real *restrict x,
                               tke_real *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static inline void tke_row_scale(size_t n, tke_real a, tke_real *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= a;
}

static inline tke_real tke_row_dot(size_t n, const tke_real *x, const tke_real *y)
{
    tke_real sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* y [cols] = x [rows] times m [rows][cols] */
static inline void tke_row_times(size_t rows, size_t cols, const tke_real *x, const tke_real *m,
                                 tke_real *y)
{
    memset(y, 0, cols * sizeof *y);
    for (size_t i = 0; i < rows; i++)
        tke_row_add(cols, x[i], m + i * cols, y);
}

/* out_i = x_0 + ... + x_i */
static inline void tke_running_sums(size_t n, const tke_real *x, size_t stride, double *out)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i * stride];
        out[i] = sum;
    }
}

static inline void tke_rows_transpose(size_t rows, size_t cols, const tke_real *x, size_t stride,
                                      tke_real *out, size_t out_stride)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            out[j * out_stride + i] = x[i * stride + j];
}

/* out [rows][chunk]: row i times each row up to itself of a matrix that m [dim][chunk] has transposed. */
static inline void tke_lower_products(size_t rows, size_t chunk, size_t dim, const tke_real *x,
                                      size_t stride, const tke_real *m, tke_real *out)
{
    memset(out, 0, rows * chunk * sizeof *out);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < dim; k++)
            tke_row_add(i + 1, x[i * stride + k], m + k * chunk, out + i * chunk);
}

/* The next n numbers of a scratch block. */
static inline tke_real *tke_cut(tke_real **at, size_t n)
{
    tke_real *out = *at;
    *at += n;
    return out;
}

#endif
