/* tape.c - reverse-mode differentiation over log-probabilities (tinkc/tape.h).
 *
 * Nodes lie in the order they were made, so each depends on earlier ones only: values are computed
 * as nodes are made, gradients by one walk from the last node to the first. All memory is the loss's
 * arena.
 *
 * A value has one of three shapes, or is a list (a slice of a sequence value). `at` gives the element
 * of an operand that belongs to element k of the result: that is all there is to broadcasting.
 *
 * Pure maths; may touch: the loss it was made for.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "client/train/tape_priv.h"

static const tinkc_var bad = { -1 };

/* The first mistake is kept and what follows does nothing, so that a loss function needs no
 * check behind each call: tinkc_tape_backward reports it. */
static tinkc_var mistake(tinkc_tape *t, const char *call, const char *why)
{
    if (t)
        tkc_fail(&t->err, TINKC_E_ARGUMENT, "%s: %s", call, why);
    return bad;
}

/* ---- nodes ---- */

static size_t shape_count(const tinkc_tape *t, int32_t shape)
{
    if (shape == SHAPE_TOKENS)
        return t->begin[t->n_sequences];
    return shape == SHAPE_SEQUENCES ? t->n_sequences : 1;
}

/* A node with room for its values; NULL after a mistake or without memory. The pointer is good until
 * the next node is made. */
static node *add_node(tinkc_tape *t, node made)
{
    if (!t || tkc_failed(&t->err))
        return NULL;
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 32;
        node *grown = tkc_arena_array(t->arena, cap, sizeof *grown, &t->err);
        if (!grown)
            return NULL;
        if (t->n)
            memcpy(grown, t->nodes, t->n * sizeof *grown);
        t->nodes = grown;
        t->cap = cap;
    }
    made.values = tkc_arena_array(t->arena, made.n + 1, sizeof *made.values, &t->err);
    if (!made.values)
        return NULL;
    t->nodes[t->n] = made;
    return &t->nodes[t->n++];
}

static tinkc_var var_of(const tinkc_tape *t, const node *made)
{
    return made ? (tinkc_var){ (int32_t)(made - t->nodes) } : bad;
}

static const node *node_of(const tinkc_tape *t, tinkc_var v)
{
    return t && v.index >= 0 && (size_t)v.index < t->n ? &t->nodes[v.index] : NULL;
}

/* Which element of x belongs to element k of a value of `shape`. */
static size_t at(const tinkc_tape *t, const node *x, int32_t shape, size_t k)
{
    if (x->shape == SHAPE_NUMBER)
        return 0;
    return x->shape == SHAPE_SEQUENCES && shape == SHAPE_TOKENS ? t->owner[k] : k;
}

/* ---- leaves ---- */

static node *add_input(tinkc_tape *t, int32_t shape, const char *name)
{
    if (!t)
        return NULL;
    const char *input = name ? tkc_arena_cstr(t->arena, name, &t->err) : NULL;
    return add_node(
        t, (node){ .op = OP_LEAF, .shape = shape, .n = shape_count(t, shape), .input = input });
}

static node *add_leaf(tinkc_tape *t, int32_t shape)
{
    return add_input(t, shape, NULL);
}

tinkc_var tinkc_tape_logprobs(tinkc_tape *t)
{
    if (t && t->logprobs >= 0)
        return (tinkc_var){ t->logprobs };
    node *x = add_input(t, SHAPE_TOKENS, "logprobs");
    for (size_t i = 0; x && i < t->n_sequences; i++) {
        tinkc_f32s p = tinkc_tensor_f32s(tinkc_loss_logprobs(t->loss, i));
        for (size_t k = 0; k < p.len; k++)
            x->values[t->begin[i] + k] = (double)p.data[k];
    }
    if (x)
        t->logprobs = var_of(t, x).index;
    return var_of(t, x);
}

tinkc_var tinkc_tape_weights(tinkc_tape *t)
{
    node *x = add_input(t, SHAPE_TOKENS, "weights");
    for (size_t i = 0; x && i < t->n_sequences; i++) {
        tinkc_f32s w =
            tinkc_tensor_f32s(tkc_batch_show(tinkc_loss_batch(t->loss), i, "weights", &t->err));
        if (tkc_failed(&t->err)) /* not the same as none */
            return bad;
        size_t n = t->begin[i + 1] - t->begin[i];
        for (size_t k = 0; k < n; k++)
            x->values[t->begin[i] + k] = k < w.len ? (double)w.data[k] : w.data ? 0 : 1;
    }
    return var_of(t, x);
}

/* The batch's input of this name: `n` numbers of example i. */
static bool copy_input(tinkc_tape *t, const char *name, size_t i, size_t n, double *to)
{
    const tinkc_tensor *from = tkc_batch_show(tinkc_loss_batch(t->loss), i, name, &t->err);
    tinkc_f32s f = tinkc_tensor_f32s(from);
    tinkc_i64s k = tinkc_tensor_i64s(from);
    if (tkc_failed(&t->err))
        return false;
    if (!from || f.len + k.len != n)
        return tkc_fail(&t->err, TINKC_E_ARGUMENT,
                        "example %zu: the input %.64s has %zu numbers, not %zu", i, name,
                        f.len + k.len, n);
    for (size_t e = 0; e < n; e++)
        to[e] = f.data ? (double)f.data[e] : (double)k.data[e];
    return true;
}

static tinkc_var named_input(tinkc_tape *t, const char *call, int32_t shape, const char *name)
{
    if (!name || !name[0] || strcmp(name, "logprobs") == 0)
        return mistake(t, call, "name must be that of an input of the examples");
    node *x = add_input(t, shape, name);
    for (size_t i = 0; x && i < t->n_sequences; i++) {
        bool tokens = shape == SHAPE_TOKENS;
        if (!copy_input(t, name, i, tokens ? t->begin[i + 1] - t->begin[i] : 1,
                        x->values + (tokens ? t->begin[i] : i)))
            return bad;
    }
    return var_of(t, x);
}

tinkc_var tinkc_tape_token_input(tinkc_tape *t, const char *name)
{
    return named_input(t, "tinkc_tape_token_input", SHAPE_TOKENS, name);
}

tinkc_var tinkc_tape_sequence_input(tinkc_tape *t, const char *name)
{
    return named_input(t, "tinkc_tape_sequence_input", SHAPE_SEQUENCES, name);
}

tinkc_var tinkc_tape_tokens(tinkc_tape *t, const float *const *rows)
{
    if (!rows)
        return mistake(t, "tinkc_tape_tokens", "rows must not be NULL");
    node *x = add_leaf(t, SHAPE_TOKENS);
    for (size_t i = 0; x && i < t->n_sequences; i++) {
        size_t n = t->begin[i + 1] - t->begin[i];
        if (n && !rows[i])
            return mistake(t, "tinkc_tape_tokens", "a row must not be NULL");
        for (size_t k = 0; k < n; k++)
            x->values[t->begin[i] + k] = (double)rows[i][k];
    }
    return var_of(t, x);
}

tinkc_var tinkc_tape_sequences(tinkc_tape *t, const double *values)
{
    if (!values)
        return mistake(t, "tinkc_tape_sequences", "values must not be NULL");
    node *x = add_leaf(t, SHAPE_SEQUENCES);
    if (x && x->n)
        memcpy(x->values, values, x->n * sizeof *values);
    return var_of(t, x);
}

tinkc_var tinkc_tape_number(tinkc_tape *t, double value)
{
    node *x = add_leaf(t, SHAPE_NUMBER);
    if (x)
        x->values[0] = value;
    return var_of(t, x);
}

/* ---- element by element ---- */

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double compute(const node *x, double a, double b)
{
    switch (x->op) {
    case OP_ADD:
        return a + b;
    case OP_SUB:
        return a - b;
    case OP_MUL:
        return a * b;
    case OP_DIV:
        return a / b;
    case OP_MIN:
        /* Where both are equal it is a, and slope must agree: the gradient is then a's alone. */
        return b < a ? b : a;
    case OP_MAX:
        return b > a ? b : a;
    case OP_NEG:
        return -a;
    case OP_EXP:
        return exp(a);
    case OP_LOG:
        return log(a);
    case OP_SIGMOID:
        return sigmoid(a);
    case OP_SOFTPLUS:
        return a > 0 ? a + log1p(exp(-a)) : log1p(exp(a));
    case OP_CLAMP:
        return a < x->low ? x->low : a > x->high ? x->high : a;
    default:
        return a;
    }
}

/* d result / d a (or b, if second), where y is the result. */
static double slope(const node *x, double a, double b, double y, bool second)
{
    switch (x->op) {
    case OP_ADD:
        return 1;
    case OP_SUB:
        return second ? -1 : 1;
    case OP_MUL:
        return second ? a : b;
    case OP_DIV:
        return second ? -y / b : 1 / b;
    case OP_MIN:
        return (b < a) == second;
    case OP_MAX:
        return (b > a) == second;
    case OP_NEG:
        return -1;
    case OP_EXP:
        return y;
    case OP_LOG:
        return 1 / a;
    case OP_SIGMOID:
        return y * (1 - y);
    case OP_SOFTPLUS:
        return sigmoid(a);
    default: /* OP_CLAMP; a constant has none */
        return a >= x->low && a <= x->high;
    }
}

/* The shape of two together; -1 = they do not go together. */
static int32_t joined_shape(const node *a, const node *b)
{
    const node *big = a->shape >= b->shape ? a : b, *small = big == a ? b : a;
    if (small->shape == SHAPE_NUMBER || (small->shape == big->shape && small->n == big->n))
        return big->shape;
    return small->shape == SHAPE_SEQUENCES && big->shape == SHAPE_TOKENS ? SHAPE_TOKENS : -1;
}

static tinkc_var add_op(tinkc_tape *t, const char *call, node made, tinkc_var va, tinkc_var vb,
                        bool two)
{
    const node *a = node_of(t, va), *b = two ? node_of(t, vb) : a;
    if (!a || !b)
        return mistake(t, call, "a value that is not on this tape");
    made.a = va.index;
    made.b = two ? vb.index : -1;
    made.shape = joined_shape(a, b);
    if (made.shape < 0)
        return mistake(t, call, "the two values have shapes that do not go together");
    made.n = a->shape >= b->shape ? a->n : b->n;
    node *x = add_node(t, made);
    if (!x)
        return bad;
    /* The new node may have moved the others. */
    a = &t->nodes[made.a];
    b = two ? &t->nodes[made.b] : a;
    for (size_t k = 0; k < x->n; k++)
        x->values[k] =
            compute(x, a->values[at(t, a, x->shape, k)], b->values[at(t, b, x->shape, k)]);
    return var_of(t, x);
}

#define TWO(name, code)                                                                            \
    tinkc_var tinkc_tape_##name(tinkc_tape *t, tinkc_var a, tinkc_var b)                           \
    {                                                                                              \
        return add_op(t, "tinkc_tape_" #name, (node){ .op = code }, a, b, true);                   \
    }
#define ONE(name, code)                                                                            \
    tinkc_var tinkc_tape_##name(tinkc_tape *t, tinkc_var a)                                        \
    {                                                                                              \
        return add_op(t, "tinkc_tape_" #name, (node){ .op = code }, a, a, false);                  \
    }
TWO(add, OP_ADD)
TWO(sub, OP_SUB)
TWO(mul, OP_MUL)
TWO(div, OP_DIV)
TWO(min, OP_MIN)
TWO(max, OP_MAX)
ONE(neg, OP_NEG)
ONE(exp, OP_EXP)
ONE(log, OP_LOG)
ONE(sigmoid, OP_SIGMOID)
ONE(softplus, OP_SOFTPLUS)
ONE(constant, OP_CONSTANT)

tinkc_var tinkc_tape_clamp(tinkc_tape *t, tinkc_var a, double low, double high)
{
    if (!(low <= high))
        return mistake(t, "tinkc_tape_clamp", "low must not be above high");
    return add_op(t, "tinkc_tape_clamp", (node){ .op = OP_CLAMP, .low = low, .high = high }, a, a,
                  false);
}

/* ---- many to fewer ---- */

/* What element k of a is multiplied by in the sum, or mean, that it goes into. */
static double share_of(const tinkc_tape *t, const node *x, const node *a, size_t k)
{
    if (x->op == OP_MEAN)
        return 1 / (double)a->n;
    if (x->op != OP_MEAN_TOKENS)
        return 1;
    size_t i = t->owner[k];
    return 1 / (double)(t->begin[i + 1] - t->begin[i]);
}

/* Which element of x element k of a goes into. */
static size_t goal(const tinkc_tape *t, const node *x, size_t k)
{
    return x->op == OP_SUM_TOKENS || x->op == OP_MEAN_TOKENS ? t->owner[k] : 0;
}

static tinkc_var reduce(tinkc_tape *t, const char *call, tape_op op, tinkc_var va)
{
    const node *a = node_of(t, va);
    bool by_tokens = op == OP_SUM_TOKENS || op == OP_MEAN_TOKENS;
    if (!a)
        return mistake(t, call, "a value that is not on this tape");
    if (by_tokens && a->shape != SHAPE_TOKENS)
        return mistake(t, call, "needs a value with one number a token");
    if (op == OP_MEAN && a->n == 0 && !t->loss->recorder)
        return mistake(t, call, "the mean of nothing");
    int32_t shape = by_tokens ? SHAPE_SEQUENCES : SHAPE_NUMBER;
    node *x =
        add_node(t, (node){ .op = op, .a = va.index, .shape = shape, .n = shape_count(t, shape) });
    if (!x)
        return bad;
    a = &t->nodes[va.index];
    for (size_t k = 0; k < a->n; k++)
        x->values[goal(t, x, k)] += a->values[k] * share_of(t, x, a, k);
    return var_of(t, x);
}

tinkc_var tinkc_tape_sum_tokens(tinkc_tape *t, tinkc_var a)
{
    return reduce(t, "tinkc_tape_sum_tokens", OP_SUM_TOKENS, a);
}

tinkc_var tinkc_tape_mean_tokens(tinkc_tape *t, tinkc_var a)
{
    return reduce(t, "tinkc_tape_mean_tokens", OP_MEAN_TOKENS, a);
}

tinkc_var tinkc_tape_sum(tinkc_tape *t, tinkc_var a)
{
    return reduce(t, "tinkc_tape_sum", OP_SUM, a);
}

tinkc_var tinkc_tape_mean(tinkc_tape *t, tinkc_var a)
{
    return reduce(t, "tinkc_tape_mean", OP_MEAN, a);
}

tinkc_var tinkc_tape_slice(tinkc_tape *t, tinkc_var va, size_t first, size_t step)
{
    const node *a = node_of(t, va);
    if (!a || (a->shape != SHAPE_SEQUENCES && a->shape != SHAPE_LIST))
        return mistake(t, "tinkc_tape_slice", "needs a value with one number a sequence");
    if (step == 0 || (first >= a->n && !t->loss->recorder))
        return mistake(t, "tinkc_tape_slice", "step is 0, or first lies past the end");
    node *x = add_node(t, (node){ .op = OP_SLICE,
                                  .a = va.index,
                                  .shape = SHAPE_LIST,
                                  .n = a->n > first ? (a->n - first - 1) / step + 1 : 0,
                                  .first = first,
                                  .step = step });
    if (!x)
        return bad;
    a = &t->nodes[va.index];
    for (size_t k = 0; k < x->n; k++)
        x->values[k] = a->values[first + k * step];
    return var_of(t, x);
}

/* ---- back ---- */

static double *grads_of(tinkc_tape *t, int32_t i)
{
    node *x = &t->nodes[i];
    if (!x->grads)
        x->grads = tkc_arena_array(t->arena, x->n + 1, sizeof *x->grads, &t->err);
    return x->grads;
}

static void elements_back(const tinkc_tape *t, const node *x, const node *to, bool second,
                          double *grads)
{
    const node *a = &t->nodes[x->a], *b = x->b >= 0 ? &t->nodes[x->b] : a;
    for (size_t k = 0; k < x->n; k++) {
        double va = a->values[at(t, a, x->shape, k)], vb = b->values[at(t, b, x->shape, k)];
        /* A branch that was not taken adds nothing, even where the slope is infinite. */
        if (x->grads[k] != 0)
            grads[at(t, to, x->shape, k)] += x->grads[k] * slope(x, va, vb, x->values[k], second);
    }
}

/* Hands a node's gradients on to its operands. */
static bool node_back(tinkc_tape *t, const node *x)
{
    if (x->op == OP_LEAF || x->op == OP_CONSTANT)
        return true;
    double *grads = grads_of(t, x->a);
    if (!grads)
        return false;
    const node *a = &t->nodes[x->a];
    if (x->op == OP_SLICE) {
        for (size_t k = 0; k < x->n; k++)
            grads[x->first + k * x->step] += x->grads[k];
    } else if (x->op >= OP_SUM_TOKENS) {
        for (size_t k = 0; k < a->n; k++)
            grads[k] += x->grads[goal(t, x, k)] * share_of(t, x, a, k);
    } else {
        elements_back(t, x, a, false, grads);
        if (x->b >= 0) {
            grads = grads_of(t, x->b);
            if (!grads)
                return false;
            elements_back(t, x, &t->nodes[x->b], true, grads);
        }
    }
    return true;
}

static void write_gradients(const tinkc_tape *t)
{
    const node *p = t->logprobs >= 0 ? &t->nodes[t->logprobs] : NULL;
    for (size_t i = 0; i < t->n_sequences; i++) {
        float *out = tinkc_loss_grad(t->loss, i);
        for (size_t k = t->begin[i]; k < t->begin[i + 1]; k++)
            out[k - t->begin[i]] = p && p->grads ? (float)p->grads[k] : 0;
    }
}

bool tinkc_tape_backward(tinkc_tape *t, tinkc_var loss, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!t)
        return tkc_fail(err, TINKC_E_ARGUMENT, "tape: must not be NULL");
    const node *end = node_of(t, loss);
    if (!end || end->shape != SHAPE_NUMBER)
        (void)mistake(t, "tinkc_tape_backward", "the loss must be one number on this tape");
    if (t->loss->recorder && !tkc_failed(&t->err))
        (void)tkc_tape_record(t, loss.index);
    double *grads = tkc_failed(&t->err) ? NULL : grads_of(t, loss.index);
    if (grads && !t->loss->recorder) {
        grads[0] = 1;
        /* From the end: whatever depends on a node lies behind it, so its gradient is complete
         * when it is reached. */
        for (size_t i = (size_t)loss.index + 1; i-- > 0;)
            if (t->nodes[i].grads && !node_back(t, &t->nodes[i]))
                break;
    }
    if (tkc_failed(&t->err)) {
        tkc_error_copy(err, &t->err);
        return false;
    }
    write_gradients(t);
    tinkc_loss_set(t->loss, t->nodes[loss.index].values[0]);
    return true;
}

double tinkc_tape_value(const tinkc_tape *t, tinkc_var v)
{
    const node *x = node_of(t, v);
    return x && x->shape == SHAPE_NUMBER && !t->loss->recorder ? x->values[0] : (double)NAN;
}

/* ---- life ---- */

static bool lay_out(tinkc_tape *t, tinkc_error *err)
{
    size_t n = t->n_sequences, total = 0;
    size_t *begin = tkc_arena_array(t->arena, n + 1, sizeof *begin, err);
    for (size_t i = 0; begin && i < n; i++) {
        begin[i] = total;
        total += tinkc_tensor_f32s(tinkc_loss_logprobs(t->loss, i)).len;
    }
    size_t *owner = begin ? tkc_arena_array(t->arena, total + 1, sizeof *owner, err) : NULL;
    if (!owner)
        return false;
    begin[n] = total;
    for (size_t i = 0; i < n; i++)
        for (size_t k = begin[i]; k < begin[i + 1]; k++)
            owner[k] = i;
    t->begin = begin;
    t->owner = owner;
    return true;
}

tinkc_tape *tinkc_tape_new(tinkc_loss *loss, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!loss) {
        tkc_fail(err, TINKC_E_ARGUMENT, "loss: must not be NULL");
        return NULL;
    }
    tinkc_tape *t = tkc_arena_zalloc(&loss->arena, sizeof *t, err);
    if (!t)
        return NULL;
    t->loss = loss;
    t->arena = &loss->arena;
    t->n_sequences = loss->batch->n;
    t->logprobs = -1;
    return lay_out(t, err) ? t : NULL;
}
