/* graph_run.c - runs a custom loss on one datum: values forward, gradients backward.
 *
 * All arithmetic is in double and in the order of the instructions, so equal inputs give equal bits.
 * Gradients at places where a function has none are those of PyTorch 2.15: equal operands of min and
 * max share it, a clamp passes none at its bounds, abs has 0 at 0. One difference: a gradient that is 0 is not
 * multiplied by a slope, so what `where` leaves out cannot turn the rest into NaN.
 *
 * May touch: its arguments. Must not: know the model. Memory is limited before it is taken, because
 * two short lists can broadcast to a large matrix; work is limited before it is done, because one
 * large matrix can be read by every node, and other tenants wait.
 */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "train/graph_state.h"

typedef struct value {
    size_t rows, cols;
    tke_graph_kind kind;
    double *x;
    double *g;      /* NULL until something adds to it */
    size_t *source; /* SELECT: the element of the operand that each is */
} value;

typedef struct running {
    const tke_graph *graph;
    const tke_graph_datum *datum;
    value *values;
    tkc_arena arena;
    size_t used;
    size_t work, most_work;    /* elements computed and read */
    const tke_graph_instr *at; /* for messages */
    tinkc_error *err;
} running;

__attribute__((format(printf, 2, 3))) static bool refuse(running *r, const char *format, ...)
{
    char why[200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    const tke_graph *g = r->graph;
    if (!r->at || r->at->node < 0)
        return tkc_fail(r->err, TINKC_E_BAD_REQUEST, "custom loss '%s': %s", g->name, why);
    return tkc_fail(r->err, TINKC_E_BAD_REQUEST, "custom loss '%s', node '%s' (%s): %s", g->name,
                    g->nodes[r->at->node].name, g->nodes[r->at->node].target, why);
}

/* ---- memory ---- */

static void *take(running *r, size_t n, size_t size)
{
    const size_t most = (size_t)TKE_GRAPH_MAX_MIB << 20;
    if (n > (most - r->used) / size) {
        refuse(r, "the values of this datum need more than %d MiB", TKE_GRAPH_MAX_MIB);
        return NULL;
    }
    r->used += n * size;
    return tkc_arena_array(&r->arena, n ? n : 1, size, r->err);
}

static size_t count(const value *v)
{
    return v->rows * v->cols;
}

/* ---- work ---- */

/* The work that a datum may be: with its log-probs grows what the model does for it, too. */
static size_t work_for(const tke_graph_datum *d)
{
    const size_t most = TKE_GRAPH_ELEMENTS_MOST, each = TKE_GRAPH_ELEMENTS_EACH;
    size_t n = d->n * d->k;
    return n < (most - TKE_GRAPH_ELEMENTS) / each ? TKE_GRAPH_ELEMENTS + n * each : most;
}

static bool spend(running *r, size_t n)
{
    if (n > r->most_work - r->work)
        return refuse(r, "it takes more than %zu elements to compute for a datum of this length",
                      r->most_work);
    r->work += n;
    return true;
}

static bool stopped(running *r)
{
    if (!r->datum->stop || !atomic_load_explicit(r->datum->stop, memory_order_relaxed))
        return false;
    return !tkc_fail(r->err, TINKC_E_CANCELLED, "the pass was stopped");
}

/* Sets the size of a value and makes room; sizes are those of values that exist, or checked. */
static bool make(running *r, value *v, size_t rows, size_t cols, tke_graph_kind kind)
{
    v->rows = rows;
    v->cols = cols;
    v->kind = kind;
    if (cols && rows > SIZE_MAX / 16 / cols)
        return refuse(r, "the values of this datum need more than %d MiB", TKE_GRAPH_MAX_MIB);
    if (!spend(r, rows * cols))
        return false;
    v->x = take(r, rows * cols, sizeof *v->x);
    return v->x != NULL;
}

static value *operand(const running *r, int32_t i)
{
    return i < 0 ? NULL : &r->values[i];
}

/* The gradient of an operand, or NULL if nobody needs it. */
static double *grad_of(running *r, int32_t i)
{
    if (i < 0 || !r->graph->instrs[i].flows || tkc_failed(r->err))
        return NULL;
    value *v = &r->values[i];
    if (v->kind != TKE_KIND_FLOAT)
        return NULL;
    if (!v->g)
        v->g = take(r, count(v), sizeof *v->g);
    return v->g;
}

/* ---- broadcasting ---- */

static bool fits(running *r, const value *v, size_t *rows, size_t *cols)
{
    if (!v)
        return true;
    if ((v->rows != *rows && v->rows != 1 && *rows != 1) ||
        (v->cols != *cols && v->cols != 1 && *cols != 1))
        return refuse(r, "shapes [%zu, %zu] and [%zu, %zu] do not match", *rows, *cols, v->rows,
                      v->cols);
    *rows = *rows == 1 ? v->rows : *rows;
    *cols = *cols == 1 ? v->cols : *cols;
    return true;
}

/* The element of v that belongs to row i, column j of a result. */
static size_t element(const value *v, size_t i, size_t j)
{
    return (v->rows == 1 ? 0 : i) * v->cols + (v->cols == 1 ? 0 : j);
}

/* ---- functions and slopes ---- */

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double sign(double x)
{
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}

static double convert(double x, tke_graph_kind kind)
{
    return kind == TKE_KIND_FLOAT ? x : kind == TKE_KIND_INT ? trunc(x) : !(x >= 0 && x <= 0);
}

static double apply_one(tke_graph_op op, double a, tke_graph_kind kind)
{
    switch (op) {
    case TKE_G_NEG:
        return -a;
    case TKE_G_EXP:
        return exp(a);
    case TKE_G_LOG:
        return log(a);
    case TKE_G_LOG1P:
        return log1p(a);
    case TKE_G_EXPM1:
        return expm1(a);
    case TKE_G_SQRT:
        return sqrt(a);
    case TKE_G_RSQRT:
        return 1 / sqrt(a);
    case TKE_G_RECIPROCAL:
        return 1 / a;
    case TKE_G_ABS:
        return fabs(a);
    case TKE_G_SIGN:
        return sign(a);
    case TKE_G_SQUARE:
        return a * a;
    case TKE_G_SIGMOID:
        return sigmoid(a);
    case TKE_G_LOGSIGMOID:
        return -softplus(-a);
    case TKE_G_SOFTPLUS:
        return softplus(a);
    case TKE_G_TANH:
        return tanh(a);
    case TKE_G_RELU:
        return a < 0 ? 0 : a;
    case TKE_G_NOT:
        return a >= 0 && a <= 0;
    default: /* detach, casts */
        return convert(a, kind);
    }
}

static double slope_one(tke_graph_op op, double a, double y)
{
    switch (op) {
    case TKE_G_NEG:
        return -1;
    case TKE_G_EXP:
        return y;
    case TKE_G_LOG:
        return 1 / a;
    case TKE_G_LOG1P:
        return 1 / (1 + a);
    case TKE_G_EXPM1:
        return y + 1;
    case TKE_G_SQRT:
        return 0.5 / y;
    case TKE_G_RSQRT:
        return -0.5 * y * y * y;
    case TKE_G_RECIPROCAL:
        return -y * y;
    case TKE_G_ABS:
        return sign(a);
    case TKE_G_SQUARE:
        return 2 * a;
    case TKE_G_SIGMOID:
        return y * (1 - y);
    case TKE_G_LOGSIGMOID:
        return sigmoid(-a);
    case TKE_G_SOFTPLUS:
        return sigmoid(a);
    case TKE_G_TANH:
        return 1 - y * y;
    case TKE_G_RELU:
        return a > 0;
    default:
        return 1;
    }
}

static double logaddexp(double a, double b)
{
    double most = a > b ? a : b;
    return isinf(most) ? most : most + log1p(exp(-fabs(a - b)));
}

static double extreme(double a, double b, bool max)
{
    if (isnan(a) || isnan(b))
        return NAN;
    return max == (a > b) ? a : b;
}

static double apply_two(tke_graph_op op, double a, double b)
{
    switch (op) {
    case TKE_G_ADD:
        return a + b;
    case TKE_G_SUB:
        return a - b;
    case TKE_G_MUL:
        return a * b;
    case TKE_G_DIV:
        return a / b;
    case TKE_G_POW:
        return pow(a, b);
    case TKE_G_MIN:
        return extreme(a, b, false);
    case TKE_G_MAX:
        return extreme(a, b, true);
    case TKE_G_LOGADDEXP:
        return logaddexp(a, b);
    case TKE_G_GT:
        return a > b;
    case TKE_G_GE:
        return a >= b;
    case TKE_G_LT:
        return a < b;
    case TKE_G_LE:
        return a <= b;
    case TKE_G_EQ:
        return a >= b && a <= b;
    case TKE_G_NE:
        return !(a >= b && a <= b);
    case TKE_G_AND:
        return a > 0 && b > 0;
    case TKE_G_OR:
        return a > 0 || b > 0;
    default: /* xor */
        return (a > 0) != (b > 0);
    }
}

/* Half to each where both are equal. */
static double share(double a, double b)
{
    return a > b ? 1 : a < b ? 0 : 0.5;
}

/* d y / d a, or with `second` d y / d b */
static double slope_two(tke_graph_op op, double a, double b, double y, bool second)
{
    switch (op) {
    case TKE_G_ADD:
        return 1;
    case TKE_G_SUB:
        return second ? -1 : 1;
    case TKE_G_MUL:
        return second ? a : b;
    case TKE_G_DIV:
        return second ? -y / b : 1 / b;
    case TKE_G_POW:
        if (second)
            return a == 0 && b >= 0 ? 0 : y * log(a);
        return b == 0 ? 0 : b * pow(a, b - 1);
    case TKE_G_MIN:
        return second ? share(a, b) : share(b, a);
    case TKE_G_MAX:
        return second ? share(b, a) : share(a, b);
    default: /* logaddexp */
        return exp((second ? b : a) - y);
    }
}

static double apply_three(tke_graph_op op, double a, double b, double c)
{
    if (op == TKE_G_WHERE)
        return a > 0 || a < 0 ? b : c;
    if (isnan(a))
        return a;
    double low = a < b ? b : a;
    return low > c ? c : low;
}

static double slope_three(tke_graph_op op, double a, double b, double c, int which)
{
    if (op == TKE_G_WHERE)
        return which == 0 ? 0 : (a > 0 || a < 0) == (which == 1);
    return which == 0 && a > b && a < c; /* bounds are numbers of the request */
}

/* ---- kinds ---- */

static tke_graph_kind wider(tke_graph_kind a, tke_graph_kind b)
{
    return a > b ? a : b;
}

static tke_graph_kind kind_of_one(const running *r, const tke_graph_instr *i, const value *a)
{
    switch (i->op) {
    case TKE_G_NEG:
    case TKE_G_ABS:
    case TKE_G_SIGN:
    case TKE_G_SQUARE:
    case TKE_G_RELU:
    case TKE_G_NOT:
    case TKE_G_DETACH:
        return a->kind;
    case TKE_G_CAST:
        return (tke_graph_kind)i->kind;
    case TKE_G_CAST_LIKE:
        return r->values[i->b].kind;
    default:
        return TKE_KIND_FLOAT;
    }
}

static tke_graph_kind kind_of_two(const tke_graph_instr *i, const value *a, const value *b)
{
    if (i->op >= TKE_G_GT)
        return TKE_KIND_BOOL;
    if (i->op == TKE_G_DIV || i->op == TKE_G_LOGADDEXP)
        return TKE_KIND_FLOAT;
    return wider(a->kind, b->kind);
}

/* PyTorch has no arithmetic for these either, or one that surprises (true + true is true). */
static bool kinds_ok(running *r, const tke_graph_instr *i, const value *a, const value *b)
{
    bool both = a->kind == TKE_KIND_BOOL && (!b || b->kind == TKE_KIND_BOOL);
    bool logic =
        i->op == TKE_G_NOT || i->op == TKE_G_AND || i->op == TKE_G_OR || i->op == TKE_G_XOR;
    bool sums =
        i->op == TKE_G_NEG || i->op == TKE_G_ADD || i->op == TKE_G_SUB || i->op == TKE_G_POW;
    if (logic && !both)
        return refuse(r, "it needs boolean values; use a comparison");
    if (sums && both)
        return refuse(r, "boolean values have no arithmetic; use .float() first");
    bool whole = b && wider(a->kind, b->kind) == TKE_KIND_INT;
    for (size_t k = 0; i->op == TKE_G_POW && whole && k < count(b); k++)
        if (b->x[k] < 0)
            return refuse(r, "integers have no negative powers; use .float() first");
    return true;
}

/* ---- element by element ---- */

static bool run_one(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    tke_graph_kind kind = kind_of_one(r, i, a);
    if (!kinds_ok(r, i, a, NULL) || !make(r, y, a->rows, a->cols, kind))
        return false;
    for (size_t k = 0; k < count(y); k++)
        y->x[k] = apply_one(i->op, a->x[k], kind);
    return true;
}

static void back_one(running *r, const tke_graph_instr *i, const value *y)
{
    const value *a = operand(r, i->a);
    double *g = grad_of(r, i->a);
    for (size_t k = 0; g && k < count(y); k++)
        if (y->g[k] != 0)
            g[k] += y->g[k] * slope_one(i->op, a->x[k], y->x[k]);
}

static bool run_many(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a), *b = operand(r, i->b), *c = operand(r, i->c);
    size_t rows = a->rows, cols = a->cols;
    tke_graph_kind kind = !c                     ? kind_of_two(i, a, b)
                          : i->op == TKE_G_WHERE ? wider(b->kind, c->kind)
                                                 : wider(a->kind, wider(b->kind, c->kind));
    if ((!c && !kinds_ok(r, i, a, b)) || !fits(r, b, &rows, &cols) || !fits(r, c, &rows, &cols) ||
        !make(r, y, rows, cols, kind))
        return false;
    if (i->op == TKE_G_WHERE && a->kind != TKE_KIND_BOOL)
        return refuse(r, "its condition must be boolean; use a comparison");
    for (size_t p = 0, k = 0; p < rows; p++)
        for (size_t q = 0; q < cols; q++, k++) {
            double u = a->x[element(a, p, q)], v = b->x[element(b, p, q)];
            y->x[k] = c ? apply_three(i->op, u, v, c->x[element(c, p, q)]) : apply_two(i->op, u, v);
        }
    return true;
}

static void back_many(running *r, const tke_graph_instr *i, const value *y)
{
    const value *v[3] = { operand(r, i->a), operand(r, i->b), operand(r, i->c) };
    double *g[3] = { grad_of(r, i->a), grad_of(r, i->b), grad_of(r, i->c) };
    for (size_t p = 0, k = 0; p < y->rows; p++)
        for (size_t q = 0; q < y->cols; q++, k++) {
            size_t at[3] = { 0 };
            double x[3] = { 0 };
            if (y->g[k] == 0)
                continue;
            for (int w = 0; w < 3 && v[w]; w++) {
                at[w] = element(v[w], p, q);
                x[w] = v[w]->x[at[w]];
            }
            for (int w = 0; w < 3 && v[w]; w++) {
                double slope = !g[w]  ? 0
                               : v[2] ? slope_three(i->op, x[0], x[1], x[2], w)
                                      : slope_two(i->op, x[0], x[1], y->x[k], w == 1);
                if (g[w] && slope != 0)
                    g[w][at[w]] += y->g[k] * slope;
            }
        }
}

/* ---- over axes ---- */

/* Where element (p, q) of the operand goes. */
static size_t target(const tke_graph_instr *i, const value *a, size_t p, size_t q)
{
    size_t cols = i->axes & TKE_AXIS_COLS ? 1 : a->cols;
    return (i->axes & TKE_AXIS_ROWS ? 0 : p) * cols + (i->axes & TKE_AXIS_COLS ? 0 : q);
}

/* How many elements make one of the result. */
static size_t reduced(const tke_graph_instr *i, const value *a)
{
    return (i->axes & TKE_AXIS_ROWS ? a->rows : 1) * (i->axes & TKE_AXIS_COLS ? a->cols : 1);
}

static bool make_reduced(running *r, const tke_graph_instr *i, const value *a, value *y)
{
    size_t rows = i->axes & TKE_AXIS_ROWS ? 1 : a->rows;
    size_t cols = i->axes & TKE_AXIS_COLS ? 1 : a->cols;
    tke_graph_kind kind = i->op == TKE_G_AMAX || i->op == TKE_G_AMIN ? a->kind
                          : i->op == TKE_G_SUM                       ? wider(a->kind, TKE_KIND_INT)
                                                                     : TKE_KIND_FLOAT;
    bool truth =
        a->kind == TKE_KIND_BOOL && i->op != TKE_G_LOGSUMEXP; /* any and all have an answer */
    if (i->op != TKE_G_SUM && i->op != TKE_G_MEAN && !truth && reduced(i, a) == 0)
        return refuse(r, "there are no elements");
    if (i->rank == 1 && cols == 1) { /* a column becomes a list */
        cols = rows;
        rows = 1;
    }
    return make(r, y, rows, cols, kind);
}

static void fold(const tke_graph_instr *i, const value *a, value *y, const double *most)
{
    for (size_t p = 0, k = 0; p < a->rows; p++)
        for (size_t q = 0; q < a->cols; q++, k++) {
            size_t t = target(i, a, p, q);
            double x = a->x[k];
            if (i->op == TKE_G_AMAX)
                y->x[t] = extreme(y->x[t], x, true);
            else if (i->op == TKE_G_AMIN)
                y->x[t] = extreme(y->x[t], x, false);
            else if (most)
                y->x[t] += isinf(most[t]) ? 0 : exp(x - most[t]);
            else
                y->x[t] += x;
        }
}

static void fill(value *v, double x)
{
    for (size_t k = 0; k < count(v); k++)
        v->x[k] = x;
}

static bool run_logsumexp(running *r, const tke_graph_instr *i, const value *a, value *y)
{
    value most = *y;
    tke_graph_instr max = *i;
    max.op = TKE_G_AMAX;
    if (!make(r, &most, y->rows, y->cols, TKE_KIND_FLOAT))
        return false;
    fill(&most, -INFINITY);
    fold(&max, a, &most, NULL);
    fold(i, a, y, most.x);
    for (size_t k = 0; k < count(y); k++)
        y->x[k] = isinf(most.x[k]) ? most.x[k] : most.x[k] + log(y->x[k]);
    return true;
}

/* What every element replaces. */
static double first_extreme(tke_graph_op op, tke_graph_kind kind)
{
    double least = kind == TKE_KIND_BOOL ? 0 : -INFINITY;
    double most = kind == TKE_KIND_BOOL ? 1 : INFINITY;
    return op == TKE_G_AMAX ? least : most;
}

static bool run_reduction(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    if (!spend(r, count(a)) || !make_reduced(r, i, a, y))
        return false;
    if (i->op == TKE_G_LOGSUMEXP)
        return run_logsumexp(r, i, a, y);
    if (i->op == TKE_G_AMAX || i->op == TKE_G_AMIN)
        fill(y, first_extreme(i->op, a->kind));
    fold(i, a, y, NULL);
    for (size_t k = 0; i->op == TKE_G_MEAN && k < count(y); k++)
        y->x[k] /= (double)reduced(i, a);
    return true;
}

static void back_reduction(running *r, const tke_graph_instr *i, const value *y)
{
    const value *a = operand(r, i->a);
    double *g = grad_of(r, i->a);
    bool extremes = i->op == TKE_G_AMAX || i->op == TKE_G_AMIN;
    double *ties = g && extremes ? take(r, count(y), sizeof *ties) : NULL;
    if (!g || (extremes && !ties))
        return;
    for (size_t p = 0, k = 0; extremes && p < a->rows; p++)
        for (size_t q = 0; q < a->cols; q++, k++)
            ties[target(i, a, p, q)] += a->x[k] == y->x[target(i, a, p, q)];
    for (size_t p = 0, k = 0; p < a->rows; p++)
        for (size_t q = 0; q < a->cols; q++, k++) {
            size_t t = target(i, a, p, q);
            if (y->g[t] == 0)
                continue;
            if (extremes)
                g[k] += a->x[k] == y->x[t] ? y->g[t] / ties[t] : 0;
            else if (i->op == TKE_G_LOGSUMEXP)
                g[k] += y->g[t] * exp(a->x[k] - y->x[t]);
            else
                g[k] += i->op == TKE_G_MEAN ? y->g[t] / (double)reduced(i, a) : y->g[t];
        }
}

/* One line of a cumulative sum: n elements, `step` apart. */
static void accumulate(const double *from, double *to, size_t n, size_t step, bool back)
{
    double sum = 0;
    for (size_t k = 0; k < n; k++) {
        size_t at = (back ? n - 1 - k : k) * step;
        sum += from[at];
        to[at] += sum;
    }
}

static void cumulate(const tke_graph_instr *i, const value *v, const double *from, double *to,
                     bool back)
{
    bool down = i->axes == TKE_AXIS_ROWS;
    size_t lines = down ? v->cols : v->rows, n = down ? v->rows : v->cols;
    for (size_t l = 0; l < lines; l++) {
        size_t first = down ? l : l * v->cols;
        accumulate(from + first, to + first, n, down ? v->cols : 1, back);
    }
}

static bool run_cumsum(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    if (!spend(r, a->rows + a->cols) || !make(r, y, a->rows, a->cols, wider(a->kind, TKE_KIND_INT)))
        return false;
    cumulate(i, a, a->x, y->x, false);
    return true;
}

/* ---- shapes ---- */

static bool run_size(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    if (!make(r, y, 1, 1, TKE_KIND_INT))
        return false;
    y->x[0] = (double)(i->axes == TKE_AXIS_ROWS   ? a->rows
                       : i->axes == TKE_AXIS_COLS ? a->cols
                                                  : count(a));
    return true;
}

static bool run_fill(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    if (!make(r, y, a->rows, a->cols, a->kind))
        return false;
    fill(y, convert(operand(r, i->b)->x[0], a->kind));
    return true;
}

static bool same_elements(running *r, const value *a, value *y, size_t rows, size_t cols)
{
    if (!make(r, y, rows, cols, a->kind))
        return false;
    assert(count(y) == count(a));
    for (size_t k = 0; k < count(y); k++)
        y->x[k] = a->x[k];
    return true;
}

static bool run_reshape(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    size_t total = count(a), size[2] = { 1, 1 };
    const value *b = operand(r, i->b), *c = operand(r, i->c);
    double given[2] = { c ? b->x[0] : 1, c ? c->x[0] : b->x[0] };
    double most = total ? (double)total : 1 << 20; /* sizes next to a 0 are free */
    if (b->kind == TKE_KIND_FLOAT || (c && c->kind == TKE_KIND_FLOAT))
        return refuse(r, "sizes must be integers");
    for (int d = 0; d < 2; d++) {
        if (!(given[d] >= -1 && given[d] <= most))
            return refuse(r, "%zu elements do not have this shape", total);
        size[d] = given[d] < 0 ? 0 : (size_t)given[d];
    }
    if (given[0] < 0 && size[1])
        size[0] = total / size[1];
    else if (given[1] < 0 && size[0])
        size[1] = total / size[0];
    if (size[0] * size[1] != total || (given[0] < 0 && given[1] < 0))
        return refuse(r, "%zu elements do not have this shape", total);
    return same_elements(r, a, y, size[0], size[1]);
}

static bool run_layout(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    size_t gone = i->index == TKE_LAYOUT_DROP_ROWS   ? a->rows
                  : i->index == TKE_LAYOUT_DROP_COLS ? a->cols
                                                     : 1;
    if (gone != 1)
        return refuse(r, "the dim has size %zu, not 1", gone);
    bool column = i->index == TKE_LAYOUT_COLUMN;
    return same_elements(r, a, y, column ? count(a) : 1, column ? 1 : count(a));
}

/* The positions of one axis that a slice takes. */
static bool resolve(running *r, const tke_graph_cut *cut, size_t n, size_t *first, size_t *len)
{
    int64_t size = (int64_t)n, start = cut->has_start || cut->is_one ? cut->start : 0;
    int64_t stop = cut->has_stop ? cut->stop : size;
    if (cut->is_one && (start < -size || start >= size))
        return refuse(r, "index %lld is outside a dimension of size %zu", (long long)start, n);
    start = start < 0 ? start + size : start;
    stop = stop < 0 ? stop + size : stop;
    start = start < 0 ? 0 : start > size ? size : start;
    stop = stop < 0 ? 0 : stop > size ? size : stop;
    *first = (size_t)start;
    *len = cut->is_one ? 1 : stop <= start ? 0 : (size_t)((stop - start - 1) / cut->step + 1);
    return true;
}

/* Some elements of an operand, in its order. */
static bool gather(running *r, const value *a, value *y, size_t rows, size_t cols)
{
    if (!make(r, y, rows, cols, a->kind))
        return false;
    for (size_t k = 0; k < count(y); k++)
        y->x[k] = a->x[y->source[k]];
    return true;
}

static bool run_slice(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a);
    size_t first[2], len[2], k = 0;
    if (!resolve(r, &i->cut[0], a->rows, &first[0], &len[0]) ||
        !resolve(r, &i->cut[1], a->cols, &first[1], &len[1]))
        return false;
    size_t n = len[0] * len[1];
    if (!(y->source = take(r, n, sizeof *y->source)))
        return false;
    for (size_t p = 0; p < len[0]; p++)
        for (size_t q = 0; q < len[1]; q++)
            y->source[k++] =
                (first[0] + p * (size_t)(i->cut[0].is_one ? 1 : i->cut[0].step)) * a->cols +
                first[1] + q * (size_t)(i->cut[1].is_one ? 1 : i->cut[1].step);
    bool matrix = i->rank == 2 && i->index == 2, column = i->rank == 2 && i->column;
    return gather(r, a, y, matrix ? len[0] : column ? n : 1, matrix ? len[1] : column ? 1 : n);
}

static bool run_select(running *r, const tke_graph_instr *i, value *y)
{
    const value *a = operand(r, i->a), *mask = operand(r, i->b);
    size_t n = 0, width = i->rank == 2 ? a->cols : 1;
    if (!spend(r, count(mask)))
        return false;
    if (mask->kind != TKE_KIND_BOOL)
        return refuse(r, "only a boolean tensor can be an index");
    if (i->rank == 2 ? mask->cols != a->rows : mask->rows != a->rows || mask->cols != a->cols)
        return refuse(r, "the mask has another size than the tensor");
    for (size_t k = 0; k < count(mask); k++)
        n += mask->x[k] > 0;
    if (!(y->source = take(r, n * width, sizeof *y->source)))
        return false;
    for (size_t k = 0, to = 0; k < count(mask); k++)
        for (size_t q = 0; q < width && mask->x[k] > 0; q++)
            y->source[to++] = k * width + q;
    return gather(r, a, y, i->rank == 2 ? n : 1, i->rank == 2 ? width : n);
}

static void back_gather(running *r, const tke_graph_instr *i, const value *y)
{
    double *g = grad_of(r, i->a);
    for (size_t k = 0; g && k < count(y); k++)
        g[y->source ? y->source[k] : k] += y->g[k];
}

/* ---- inputs ---- */

static bool run_input(running *r, const tke_graph_instr *i, value *y)
{
    const tke_graph_datum *d = r->datum;
    const tke_graph_tensor *t = i->index ? &d->inputs[i->index - 1] : NULL;
    size_t rows = t ? t->rows : d->n, cols = t ? t->cols : d->k;
    bool list = i->rank < 2; /* one row in memory */
    assert(!list || cols == 1);
    if (!make(r, y, list ? 1 : rows, list ? rows : cols,
              !t || t->is_float ? TKE_KIND_FLOAT : TKE_KIND_INT))
        return false;
    for (size_t k = 0; k < count(y); k++)
        y->x[k] = !t            ? d->logprobs[k]
                  : t->is_float ? (double)((const float *)t->data)[k]
                                : (double)((const int64_t *)t->data)[k];
    return true;
}

static bool run_const(running *r, const tke_graph_instr *i, value *y)
{
    if (!make(r, y, 1, 1, (tke_graph_kind)i->kind))
        return false;
    y->x[0] = i->number;
    return true;
}

/* ---- all of it ---- */

static bool run_instr(running *r, const tke_graph_instr *i, value *y)
{
    switch (i->op) {
    case TKE_G_INPUT:
        return run_input(r, i, y);
    case TKE_G_CONST:
        return run_const(r, i, y);
    case TKE_G_SIZE:
        return run_size(r, i, y);
    case TKE_G_FILL:
        return run_fill(r, i, y);
    case TKE_G_CUMSUM:
        return run_cumsum(r, i, y);
    case TKE_G_RESHAPE:
        return run_reshape(r, i, y);
    case TKE_G_LAYOUT:
        return run_layout(r, i, y);
    case TKE_G_SLICE:
        return run_slice(r, i, y);
    case TKE_G_SELECT:
        return run_select(r, i, y);
    default:
        return i->op < TKE_G_ADD   ? run_one(r, i, y)
               : i->op < TKE_G_SUM ? run_many(r, i, y)
                                   : run_reduction(r, i, y);
    }
}

static void back_instr(running *r, const tke_graph_instr *i, const value *y)
{
    double *g;
    switch (i->op) {
    case TKE_G_INPUT:
        return;
    case TKE_G_CUMSUM:
        if ((g = grad_of(r, i->a)))
            cumulate(i, y, y->g, g, true);
        return;
    case TKE_G_RESHAPE:
    case TKE_G_LAYOUT:
    case TKE_G_SLICE:
    case TKE_G_SELECT:
        back_gather(r, i, y);
        return;
    default:
        if (i->op < TKE_G_ADD)
            back_one(r, i, y);
        else if (i->op < TKE_G_SUM)
            back_many(r, i, y);
        else
            back_reduction(r, i, y);
    }
}

static bool run_forward(running *r)
{
    const tke_graph *g = r->graph;
    for (size_t i = 0; i < g->n_instrs; i++) {
        r->at = &g->instrs[i];
        if (stopped(r) || !run_instr(r, r->at, &r->values[i]))
            return false;
    }
    r->at = NULL;
    return true;
}

static bool run_back(running *r, double *grads)
{
    const tke_graph *g = r->graph;
    double *seed = grad_of(r, g->loss);
    size_t n = r->datum->n * r->datum->k;
    if (seed)
        seed[0] = 1;
    /* The first instruction is the log-probs, which depend on nothing. */
    for (size_t i = g->n_instrs; i-- > 1 && !tkc_failed(r->err) && !stopped(r);) {
        r->at = &g->instrs[i];
        if (r->at->flows && r->values[i].g)
            back_instr(r, r->at, &r->values[i]);
    }
    r->at = NULL;
    if (tkc_failed(r->err))
        return false;
    const double *made = r->values[0].g;
    if (!made) /* a dtype that came with the datum cut it off */
        return refuse(r, "its loss does not depend on logprobs: integers carry no gradient");
    for (size_t k = 0; k < n; k++) {
        grads[k] = made[k];
        if (!(fabs(grads[k]) <= (double)FLT_MAX))
            return refuse(r, "its gradient at position %zu is not finite", k / r->datum->k);
    }
    return true;
}

static bool read_results(running *r, tke_graph_result *out)
{
    const tke_graph *g = r->graph;
    out->loss = r->values[g->loss].x[0];
    if (!isfinite(out->loss))
        return refuse(r, "the loss is not finite");
    for (size_t i = 0; i < g->n_metrics; i++) {
        out->metrics[i] = r->values[g->metrics[i].at].x[0];
        if (!isfinite(out->metrics[i]))
            return refuse(r, "metric '%s' is not finite", g->metrics[i].name);
    }
    return true;
}

bool tke_graph_run(const tke_graph *g, const tke_graph_datum *datum, tke_graph_result *out,
                   tinkc_error *err)
{
    running r = { .graph = g, .datum = datum, .most_work = work_for(datum), .err = err };
    if (tkc_failed(err))
        return false;
    tkc_arena_init(&r.arena, NULL, 0);
    r.values = take(&r, g->n_instrs, sizeof *r.values);
    bool ok = r.values && run_forward(&r) && read_results(&r, out) &&
              (!out->grads || run_back(&r, out->grads));
    tkc_arena_free(&r.arena);
    return ok;
}
