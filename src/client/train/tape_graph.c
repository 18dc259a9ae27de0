/* tape_graph.c - a recorded tape as the list of nodes that a service runs (tinkc_loss_record).
 *
 * A tape computes one number for a whole batch; a service computes one for each example and adds them
 * up. So every value has a reach: FIXED is the same for all examples, EACH belongs to one example, and
 * TOTAL is a sum over examples, of which a service knows the example's part only. What treats the parts
 * of a TOTAL alike is possible (sums, factors), all else is refused by the name of its call.
 *
 * Kinks are written out with `where`, so that gradients are the tape's there too: PyTorch's min, max and
 * clamp share or drop them.
 *
 * May touch: the tape and its loss.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "client/train/tape_priv.h"

enum { FIXED = 0, EACH, TOTAL };
enum { NAME = 24, MAX_INPUTS = 16 };

typedef struct writer {
    tinkc_tape *t;
    tkc_jsonw w;
    bool *used;     /* does the loss depend on the node? */
    uint8_t *reach; /* FIXED, ... */
    int32_t *alias; /* the node whose values it has: itself, mostly */
    tinkc_error *err;
} writer;

static const struct {
    const char *call, *target;
} ops[] = {
    [OP_ADD] = { "add", "operator.add" },
    [OP_SUB] = { "sub", "operator.sub" },
    [OP_MUL] = { "mul", "operator.mul" },
    [OP_DIV] = { "div", "operator.truediv" },
    [OP_MIN] = { "min", "operator.lt" },
    [OP_MAX] = { "max", "operator.gt" },
    [OP_NEG] = { "neg", "operator.neg" },
    [OP_EXP] = { "exp", "torch.exp" },
    [OP_LOG] = { "log", "torch.log" },
    [OP_SIGMOID] = { "sigmoid", "torch.sigmoid" },
    [OP_SOFTPLUS] = { "softplus", "torch.nn.functional.softplus" },
    [OP_CLAMP] = { "clamp", NULL },
    [OP_CONSTANT] = { "constant", "torch.detach" },
    [OP_SUM_TOKENS] = { "sum_tokens", "torch.sum" },
    [OP_MEAN_TOKENS] = { "mean_tokens", "torch.mean" },
    [OP_SUM] = { "sum", "torch.sum" },
    [OP_MEAN] = { "mean", NULL },
    [OP_SLICE] = { "slice", NULL },
};

static bool refuse_node(writer *r, const node *x, const char *why)
{
    if (x->op == OP_LEAF)
        return tkc_fail(
            r->err, TINKC_E_ARGUMENT,
            "tinkc_tape_%s: the service does not have these numbers; set them as an input "
            "of the examples and use tinkc_tape_%s_input",
            x->shape == SHAPE_TOKENS ? "tokens" : "sequences",
            x->shape == SHAPE_TOKENS ? "token" : "sequence");
    return tkc_fail(r->err, TINKC_E_ARGUMENT, "tinkc_tape_%s: %s", ops[x->op].call, why);
}

/* The second operand; -1 = there is none. */
static int32_t second_of(const node *x)
{
    return x->op >= OP_ADD && x->op <= OP_MAX ? x->b : -1;
}

/* ---- reach ---- */

static bool keeps_parts(const node *x, uint8_t a, uint8_t b)
{
    switch (x->op) {
    case OP_NEG:
    case OP_CONSTANT:
        return true;
    case OP_ADD:
    case OP_SUB:
        return a == b;
    case OP_MUL:
        return a == FIXED || b == FIXED;
    case OP_DIV:
        return b == FIXED;
    default:
        return false;
    }
}

static bool find_reach(writer *r, int32_t i)
{
    const node *x = &r->t->nodes[i];
    if (x->op == OP_LEAF) {
        r->reach[i] = x->input ? EACH : FIXED;
        return x->input || x->shape == SHAPE_NUMBER || refuse_node(r, x, "");
    }
    uint8_t a = r->reach[x->a], b = second_of(x) >= 0 ? r->reach[x->b] : FIXED;
    bool one = r->t->nodes[x->a].shape == SHAPE_NUMBER;
    if (x->op == OP_SLICE || (x->op == OP_MEAN && !one))
        return refuse_node(r, x, "the service computes each example alone, without the others");
    r->reach[i] = a > b ? a : b;
    if (x->op == OP_SUM && a == EACH)
        r->reach[i] = TOTAL;
    if (r->reach[i] < TOTAL || x->op >= OP_SUM || keeps_parts(x, a, b))
        return true;
    return refuse_node(r, x,
                       "a sum over the examples can only be added to another or be multiplied by a "
                       "number: the service has each example's part of it");
}

/* Marks what the loss depends on, from the end, and finds how far each reaches, from the beginning. */
static bool survey(writer *r, int32_t loss)
{
    r->used[loss] = true;
    for (int32_t i = loss; i >= 0; i--)
        if (r->used[i] && r->t->nodes[i].op != OP_LEAF) {
            r->used[r->t->nodes[i].a] = true;
            if (second_of(&r->t->nodes[i]) >= 0)
                r->used[r->t->nodes[i].b] = true;
        }
    for (int32_t i = 0; i <= loss; i++)
        if (r->used[i] && !find_reach(r, i))
            return false;
    if (r->reach[loss] == TOTAL && r->t->logprobs >= 0 && r->used[r->t->logprobs])
        return true;
    return tkc_fail(r->err, TINKC_E_ARGUMENT,
                    "tinkc_tape_backward: the loss must be a sum of what depends on the log-probs");
}

/* ---- nodes ---- */

static void write_number(tkc_jsonw *w, double number)
{
    if (isfinite(number)) {
        tkc_jsonw_double(w, number);
        return;
    }
    tkc_jsonw_object(w); /* JSON has none */
    tkc_jsonw_key(w, "float");
    tkc_jsonw_cstr(w, isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
    tkc_jsonw_end(w);
}

static void write_ref(tkc_jsonw *w, const char *name)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "ref");
    tkc_jsonw_cstr(w, name);
    tkc_jsonw_end(w);
}

/* A value as an argument. What is fixed was computed while the tape was recorded. */
static void write_value(writer *r, int32_t i)
{
    char name[NAME];
    if (r->reach[i] == FIXED) {
        write_number(&r->w, r->t->nodes[i].values[0]);
        return;
    }
    (void)snprintf(name, sizeof name, "V%d", (int)r->alias[i]); /* inputs are in lower case */
    write_ref(&r->w, name);
}

static void open_node(tkc_jsonw *w, const char *op, const char *name, const char *target)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "op");
    tkc_jsonw_cstr(w, op);
    tkc_jsonw_key(w, "name");
    tkc_jsonw_cstr(w, name);
    tkc_jsonw_key(w, "target");
    tkc_jsonw_cstr(w, target);
}

static void open_call(writer *r, int32_t i, const char *suffix, const char *target)
{
    char name[NAME];
    (void)snprintf(name, sizeof name, "V%d%s", (int)i, suffix);
    open_node(&r->w, "call_function", name, target);
    tkc_jsonw_key(&r->w, "args");
    tkc_jsonw_array(&r->w);
}

static void close_call(writer *r)
{
    tkc_jsonw_end(&r->w);
    tkc_jsonw_end(&r->w);
}

static void refer(writer *r, int32_t i, const char *suffix)
{
    char name[NAME];
    (void)snprintf(name, sizeof name, "V%d%s", (int)i, suffix);
    write_ref(&r->w, name);
}

/* b where it is below (above) a, else a: where both are equal the gradient is a's. */
static void write_extreme(writer *r, int32_t i, const node *x)
{
    open_call(r, i, "_b", ops[x->op].target);
    write_value(r, x->b);
    write_value(r, x->a);
    close_call(r);
    open_call(r, i, "", "torch.where");
    refer(r, i, "_b");
    write_value(r, x->b);
    write_value(r, x->a);
    close_call(r);
}

/* Its gradient passes at the bounds, too. */
static void write_clamp(writer *r, int32_t i, const node *x)
{
    static const char *const target[] = { "operator.lt", "operator.gt" }, *const test[] = {
        "_low", "_high"
    };
    for (int side = 0; side < 2; side++) {
        double bound = side ? x->high : x->low;
        open_call(r, i, test[side], target[side]);
        write_value(r, x->a);
        write_number(&r->w, bound);
        close_call(r);
        open_call(r, i, side ? "" : "_up", "torch.where");
        refer(r, i, test[side]);
        write_number(&r->w, bound);
        if (side)
            refer(r, i, "_up");
        else
            write_value(r, x->a);
        close_call(r);
    }
}

static void write_node(writer *r, int32_t i)
{
    const node *x = &r->t->nodes[i];
    r->alias[i] = i;
    if (x->op == OP_LEAF || r->reach[i] == FIXED)
        return;
    bool sum = x->op == OP_SUM || x->op == OP_MEAN;
    if (sum && r->t->nodes[x->a].shape != SHAPE_TOKENS) {
        r->alias[i] = r->alias[x->a]; /* of one number */
    } else if (x->op == OP_MIN || x->op == OP_MAX) {
        write_extreme(r, i, x);
    } else if (x->op == OP_CLAMP) {
        write_clamp(r, i, x);
    } else {
        open_call(r, i, "", ops[x->op].target);
        write_value(r, x->a);
        if (second_of(x) >= 0)
            write_value(r, x->b);
        close_call(r);
    }
}

/* ---- inputs ---- */

/* The log-probs come first, and each input once. False: too many. */
static bool list_inputs(writer *r, int32_t loss, const char **inputs, int32_t *ranks)
{
    size_t n = 1;
    inputs[0] = "logprobs";
    ranks[0] = 1;
    for (int32_t i = 0; i <= loss; i++) {
        const node *x = &r->t->nodes[i];
        size_t k = 0;
        if (!r->used[i] || x->op != OP_LEAF || !x->input)
            continue;
        while (k < n && strcmp(inputs[k], x->input) != 0)
            k++;
        if (k == MAX_INPUTS)
            return tkc_fail(r->err, TINKC_E_ARGUMENT, "the tape has more than %d inputs",
                            MAX_INPUTS);
        inputs[k] = x->input;
        ranks[k] = 1;
        n += k == n;
    }
    for (size_t k = 0; k < n; k++) {
        open_node(&r->w, "placeholder", inputs[k], inputs[k]);
        tkc_jsonw_end(&r->w);
    }
    return true;
}

/* An input as the tape has it: in floating point, and of a sequence one number. */
static void write_leaf(writer *r, int32_t i)
{
    const node *x = &r->t->nodes[i];
    bool one = x->shape == SHAPE_SEQUENCES;
    char name[NAME];
    if (one) {
        open_call(r, i, "_1", "torch.squeeze");
        write_ref(&r->w, x->input);
        tkc_jsonw_i64(&r->w, 0);
        close_call(r);
    }
    (void)snprintf(name, sizeof name, "V%d", (int)i);
    open_node(&r->w, "call_method", name, "float");
    tkc_jsonw_key(&r->w, "args");
    tkc_jsonw_array(&r->w);
    if (one)
        refer(r, i, "_1");
    else
        write_ref(&r->w, x->input);
    close_call(r);
}

/* ---- the whole ---- */

static void write_output(writer *r, int32_t loss)
{
    open_node(&r->w, "output", "output", "output");
    tkc_jsonw_key(&r->w, "args");
    tkc_jsonw_array(&r->w);
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "tuple");
    tkc_jsonw_array(&r->w);
    write_value(r, loss);
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "dict");
    tkc_jsonw_object(&r->w);
    for (int open = 0; open < 4; open++) /* dict, its mark, tuple, its mark */
        tkc_jsonw_end(&r->w);
    close_call(r);
}

static void write_graph(writer *r, int32_t loss, const char **inputs, int32_t *ranks)
{
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "format");
    tkc_jsonw_i64(&r->w, 1);
    tkc_jsonw_key(&r->w, "nodes");
    tkc_jsonw_array(&r->w);
    if (!list_inputs(r, loss, inputs, ranks))
        return;
    for (int32_t i = 0; i <= loss; i++) {
        if (!r->used[i])
            continue;
        if (r->t->nodes[i].input)
            write_leaf(r, i);
        write_node(r, i);
    }
    write_output(r, loss);
    tkc_jsonw_end(&r->w);
    tkc_jsonw_end(&r->w);
}

bool tkc_tape_record(tinkc_tape *t, int32_t loss)
{
    size_t n = (size_t)loss + 1;
    writer r = { .t = t, .err = &t->err };
    tinkc_loss_graph *to = t->loss->recorder;
    tkc_buf out;
    r.used = tkc_arena_array(t->arena, n, sizeof *r.used, r.err);
    r.reach = tkc_arena_array(t->arena, n, sizeof *r.reach, r.err);
    r.alias = tkc_arena_array(t->arena, n, sizeof *r.alias, r.err);
    const char **inputs = tkc_arena_array(t->arena, MAX_INPUTS + 1, sizeof *inputs, r.err);
    int32_t *ranks = tkc_arena_array(t->arena, MAX_INPUTS, sizeof *ranks, r.err);
    if (tkc_failed(r.err) || !survey(&r, loss))
        return false;
    tkc_buf_init(&out, t->arena->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&r.w, &out, r.err);
    write_graph(&r, loss, inputs, ranks);
    to->inputs = inputs;
    to->ranks = ranks;
    to->nodes_json = tkc_arena_str(t->arena, tkc_buf_view(&out), r.err);
    tkc_buf_free(&out);
    return !tkc_failed(r.err);
}
