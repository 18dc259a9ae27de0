/* graph_ops.c - the operations that a custom loss may use, and how each is compiled.
 *
 * This table is the whole list: what is not in it is refused by name. A row says where the operation
 * may come from (torch, torch.nn.functional, a method of a tensor, Python's operators), the names of
 * its parameters, and the function that compiles it. Ranks are checked here; sizes are known only
 * when a datum is.
 *
 * May touch: the builder. Must not: compute.
 */
#include <assert.h>
#include <math.h>

#include "train/graph_state.h"

enum { TORCH = 1, METHOD = 2, PYTHON = 4, FUNCTIONAL = 8 };
enum { BOTH = TORCH | METHOD, UNARY = TORCH | METHOD | FUNCTIONAL, MAX_PARAMS = 8 };

typedef struct op_row op_row;
typedef struct bound {
    tke_graph_builder *b;
    const op_row *row;
    const tke_graph_call *call;
    const tke_graph_arg *p[MAX_PARAMS]; /* by parameter; NULL = not given, or None */
    tke_graph_arg *out;
} bound;
typedef bool lower_fn(const bound *);

struct op_row {
    const char *name;
    uint8_t from;
    const char *params; /* in order, with spaces between; "?" after the optional ones */
    lower_fn *lower;
    uint8_t op;
};

/* ---- helpers ---- */

static bool give(const bound *x, int32_t at)
{
    *x->out = (tke_graph_arg){ .kind = TKE_ARG_VALUE, .at = at };
    return at >= 0;
}

static tke_graph_instr instr(tke_graph_op op, int rank, int32_t a, int32_t b, int32_t c)
{
    return (tke_graph_instr){
        .op = (uint8_t)op, .rank = (uint8_t)rank, .kind = -1, .a = a, .b = b, .c = c
    };
}

static int32_t constant(tke_graph_builder *b, double number, tke_graph_kind kind)
{
    tke_graph_instr x = instr(TKE_G_CONST, 0, -1, -1, -1);
    x.number = number;
    x.kind = (int8_t)kind;
    return tke_graph_emit(b, x);
}

static int rank_of(const tke_graph_builder *b, int32_t at)
{
    return at < 0 ? 0 : b->graph->instrs[at].rank;
}

static int32_t unary(tke_graph_builder *b, tke_graph_op op, int32_t a)
{
    return a < 0 ? -1 : tke_graph_emit(b, instr(op, rank_of(b, a), a, -1, -1));
}

static int32_t binary(tke_graph_builder *b, tke_graph_op op, int32_t l, int32_t r)
{
    if (l < 0 || r < 0)
        return -1;
    int rank = rank_of(b, l) > rank_of(b, r) ? rank_of(b, l) : rank_of(b, r);
    return tke_graph_emit(b, instr(op, rank, l, r, -1));
}

static int32_t ternary(tke_graph_builder *b, tke_graph_op op, int32_t p, int32_t q, int32_t r)
{
    if (p < 0 || q < 0 || r < 0)
        return -1;
    int rank = rank_of(b, p) > rank_of(b, q) ? rank_of(b, p) : rank_of(b, q);
    rank = rank_of(b, r) > rank ? rank_of(b, r) : rank;
    return tke_graph_emit(b, instr(op, rank, p, q, r));
}

static int32_t over(tke_graph_builder *b, tke_graph_op op, int32_t a, int axes, bool keep)
{
    if (a < 0)
        return -1;
    int rank = rank_of(b, a), left = keep ? rank : axes == TKE_AXIS_ALL ? 0 : rank - 1;
    tke_graph_instr x = instr(op, left, a, -1, -1);
    x.axes = (int8_t)axes;
    return tke_graph_emit(b, x);
}

static int32_t cast(tke_graph_builder *b, int32_t a, tke_graph_kind kind)
{
    if (a < 0)
        return -1;
    tke_graph_instr x = instr(TKE_G_CAST, rank_of(b, a), a, -1, -1);
    x.kind = (int8_t)kind;
    return tke_graph_emit(b, x);
}

/* A parameter as a value: a tensor or a number. -1 after a refusal. */
static int32_t value_of(const bound *x, const tke_graph_arg *arg)
{
    switch (arg ? arg->kind : TKE_ARG_NONE) {
    case TKE_ARG_VALUE:
        return arg->at;
    case TKE_ARG_BOOL:
        return constant(x->b, arg->number, TKE_KIND_BOOL);
    case TKE_ARG_INT:
        return constant(x->b, arg->number, TKE_KIND_INT);
    case TKE_ARG_FLOAT:
        return constant(x->b, arg->number, TKE_KIND_FLOAT);
    default:
        tke_graph_refuse(x->b, "%.*s needs tensors or numbers here", (int)x->call->target.len,
                         x->call->target.data);
        return -1;
    }
}

static int32_t operand(const bound *x, size_t i)
{
    return value_of(x, x->p[i]);
}

static bool flag(const bound *x, size_t i, bool *out)
{
    const tke_graph_arg *arg = x->p[i];
    *out = arg && arg->integer;
    return !arg || arg->kind == TKE_ARG_BOOL ||
           tke_graph_refuse(x->b, "keepdim must be true or false");
}

/* ---- dtypes ---- */

static bool kind_named(const bound *x, tinkc_str name, tke_graph_kind *out)
{
    static const struct {
        const char *name;
        tke_graph_kind kind;
    } known[] = {
        { "float32", TKE_KIND_FLOAT }, { "float64", TKE_KIND_FLOAT }, { "float", TKE_KIND_FLOAT },
        { "double", TKE_KIND_FLOAT },  { "int64", TKE_KIND_INT },     { "int32", TKE_KIND_INT },
        { "long", TKE_KIND_INT },      { "int", TKE_KIND_INT },       { "bool", TKE_KIND_BOOL },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (tkc_str_is(name, known[i].name)) {
            *out = known[i].kind;
            return true;
        }
    return tke_graph_refuse(x->b, "dtype '%.*s' is not supported in a custom loss; use float32",
                            (int)(name.len < 40 ? name.len : 40), name.data ? name.data : "");
}

/* Parameters that change no number: a device (perhaps by its name), a layout, non_blocking, copy. */
static bool is_place(const tke_graph_arg *arg)
{
    return arg->kind == TKE_ARG_PLACE || arg->kind == TKE_ARG_TEXT || arg->kind == TKE_ARG_BOOL;
}

/* Converts a value to the dtype that a parameter names, or that another tensor has. */
static bool convert(const bound *x, int32_t at, const tke_graph_arg *to, int32_t *out)
{
    tke_graph_kind kind = TKE_KIND_FLOAT;
    *out = at;
    if (at < 0)
        return false;
    switch (to ? to->kind : TKE_ARG_NONE) {
    case TKE_ARG_NONE:
        return true;
    case TKE_ARG_DTYPE:
        if (!kind_named(x, to->text, &kind))
            return false;
        *out = cast(x->b, at, kind);
        return *out >= 0;
    case TKE_ARG_KIND_OF:
    case TKE_ARG_VALUE:
        *out = tke_graph_emit(x->b, instr(TKE_G_CAST_LIKE, rank_of(x->b, at), at, to->at, -1));
        return *out >= 0;
    default:
        return tke_graph_refuse(x->b, "it needs a dtype");
    }
}

static bool lower_to(const bound *x)
{
    int32_t at = operand(x, 0);
    for (size_t i = 1; i < MAX_PARAMS; i++)
        if (x->p[i] && !is_place(x->p[i]) && !convert(x, at, x->p[i], &at))
            return false;
    return give(x, at);
}

/* type and type_as: a text here would be a type's old name, not a device. */
static bool lower_type(const bound *x)
{
    int32_t at = operand(x, 0);
    return convert(x, at, x->p[1], &at) && give(x, at);
}

static bool lower_cast(const bound *x)
{
    tke_graph_kind kind = TKE_KIND_FLOAT;
    return kind_named(x, tkc_str(x->row->name), &kind) && give(x, cast(x->b, operand(x, 0), kind));
}

/* ---- axes ---- */

/* A dimension counted as PyTorch does, as an axis in memory: a list is one row. */
static bool axis_of(const bound *x, int rank, const tke_graph_arg *dim, int *axes)
{
    int64_t d = dim->integer;
    if (dim->kind != TKE_ARG_INT)
        return tke_graph_refuse(x->b, "dim must be an integer");
    int64_t most = rank ? rank : 1; /* a scalar has dim 0, too */
    if (d < -most || d >= most)
        return tke_graph_refuse(x->b, "dim %lld is outside a tensor of rank %d", (long long)d,
                                rank);
    d = d < 0 ? d + most : d;
    int axis = rank == 2 && d == 0 ? TKE_AXIS_ROWS : TKE_AXIS_COLS;
    if (*axes & axis)
        return tke_graph_refuse(x->b, "dim %lld is given twice", (long long)d);
    *axes |= axis;
    return true;
}

static bool axes_of(const bound *x, int32_t at, const tke_graph_arg *dim, int *axes)
{
    int rank = rank_of(x->b, at);
    *axes = 0;
    if (!dim || (dim->kind == TKE_ARG_LIST && dim->n == 0)) {
        *axes = TKE_AXIS_ALL;
    } else if (dim->kind == TKE_ARG_LIST) {
        for (size_t i = 0; i < dim->n; i++)
            if (!axis_of(x, rank, &dim->items[i], axes))
                return false;
    } else if (!axis_of(x, rank, dim, axes)) {
        return false;
    }
    if (rank < 2)
        *axes = TKE_AXIS_ALL;
    return true;
}

/* input dim? keepdim? dtype? */
static bool lower_reduce(const bound *x)
{
    int32_t at = operand(x, 0);
    int axes;
    bool keep;
    if (at < 0 || !axes_of(x, at, x->p[1], &axes) || !flag(x, 2, &keep) ||
        !convert(x, at, x->p[3], &at))
        return false;
    return give(x, over(x->b, x->row->op, at, axes, keep));
}

/* torch.max(x) and torch.max(x, y); with dim it would return two tensors. */
static bool lower_extreme(const bound *x)
{
    bool max = x->row->op == TKE_G_MAX;
    const char *name = x->row->name;
    if (x->p[2] || (x->p[1] && x->p[1]->kind != TKE_ARG_VALUE))
        return tke_graph_refuse(x->b, "%s with dim is not supported in a custom loss; use a%s",
                                name, name);
    if (x->p[1])
        return give(x, binary(x->b, x->row->op, operand(x, 0), operand(x, 1)));
    return give(x, over(x->b, max ? TKE_G_AMAX : TKE_G_AMIN, operand(x, 0), TKE_AXIS_ALL, false));
}

/* any and all */
static bool lower_truth(const bound *x)
{
    return give(
        x, over(x->b, x->row->op, cast(x->b, operand(x, 0), TKE_KIND_BOOL), TKE_AXIS_ALL, false));
}

static bool lower_cumsum(const bound *x)
{
    int32_t at = operand(x, 0);
    int axes;
    if (x->p[1]->kind != TKE_ARG_INT)
        return tke_graph_refuse(x->b, "cumsum needs one dim");
    if (at < 0 || !axes_of(x, at, x->p[1], &axes) || !convert(x, at, x->p[2], &at))
        return false;
    tke_graph_instr c = instr(TKE_G_CUMSUM, rank_of(x->b, at), at, -1, -1);
    c.axes = (int8_t)(rank_of(x->b, at) < 2 ? TKE_AXIS_COLS : axes);
    return give(x, tke_graph_emit(x->b, c));
}

/* x - logsumexp(x), or its exponential. _stacklevel, an integer, is for warnings. */
static bool lower_softmax(const bound *x)
{
    int32_t at = operand(x, 0);
    int axes;
    if (!x->p[1] || x->p[1]->kind != TKE_ARG_INT)
        return tke_graph_refuse(x->b, "%s needs one dim", x->row->name);
    if (at < 0 || !axes_of(x, at, x->p[1], &axes))
        return false;
    for (size_t i = 2; i < 4; i++)
        if (x->p[i] && x->p[i]->kind != TKE_ARG_INT && !convert(x, at, x->p[i], &at))
            return false;
    int32_t log = binary(x->b, TKE_G_SUB, at, over(x->b, TKE_G_LOGSUMEXP, at, axes, true));
    return give(x, x->row->op == TKE_G_EXP ? unary(x->b, TKE_G_EXP, log) : log);
}

/* ---- element by element ---- */

static bool lower_unary(const bound *x)
{
    return give(x, unary(x->b, x->row->op, operand(x, 0)));
}

static bool lower_same(const bound *x)
{
    return give(x, operand(x, 0));
}

static bool lower_binary(const bound *x)
{
    int32_t l = operand(x, 0);
    return give(x, binary(x->b, x->row->op, l, operand(x, 1)));
}

/* input other alpha?: input + alpha * other */
static bool lower_scaled(const bound *x)
{
    int32_t l = operand(x, 0), r = operand(x, 1);
    if (x->p[2])
        r = binary(x->b, TKE_G_MUL, r, operand(x, 2));
    return give(x, binary(x->b, x->row->op, l, r));
}

static bool lower_div(const bound *x)
{
    if (x->p[2])
        return tke_graph_refuse(x->b, "rounding_mode is not supported in a custom loss");
    return lower_binary(x);
}

static bool lower_logical(const bound *x)
{
    int32_t l = cast(x->b, operand(x, 0), TKE_KIND_BOOL);
    if (x->row->op == TKE_G_NOT)
        return give(x, unary(x->b, TKE_G_NOT, l));
    return give(x, binary(x->b, x->row->op, l, cast(x->b, operand(x, 1), TKE_KIND_BOOL)));
}

static bool is_number(const tke_graph_arg *arg, double number)
{
    return !arg || ((arg->kind == TKE_ARG_INT || arg->kind == TKE_ARG_FLOAT) &&
                    fabs(arg->number - number) < 1e-12);
}

static bool lower_softplus(const bound *x)
{
    if (!is_number(x->p[1], 1) || !is_number(x->p[2], 20))
        return tke_graph_refuse(x->b, "softplus has beta 1 and threshold 20 only");
    return lower_unary(x);
}

static bool lower_relu(const bound *x)
{
    if (x->p[1] && (x->p[1]->kind != TKE_ARG_BOOL || x->p[1]->integer))
        return tke_graph_refuse(x->b, "inplace is not supported in a custom loss");
    return lower_unary(x);
}

static bool is_tensor(const tke_graph_arg *arg)
{
    return arg && arg->kind == TKE_ARG_VALUE;
}

/* Between numbers, or between tensors: there PyTorch shares the gradient where both are equal. */
static bool clamp(const bound *x, const tke_graph_arg *min, const tke_graph_arg *max)
{
    int32_t at = operand(x, 0);
    if (is_tensor(min) || is_tensor(max)) {
        if (min)
            at = binary(x->b, TKE_G_MAX, at, value_of(x, min));
        return give(x, max ? binary(x->b, TKE_G_MIN, at, value_of(x, max)) : at);
    }
    /* a bound that is not given does not turn integers into floats */
    int32_t low = min ? value_of(x, min) : constant(x->b, -INFINITY, TKE_KIND_BOOL);
    int32_t high = max ? value_of(x, max) : constant(x->b, INFINITY, TKE_KIND_BOOL);
    return give(x, ternary(x->b, TKE_G_CLAMP, at, low, high));
}

static bool lower_clamp(const bound *x)
{
    if (!x->p[1] && !x->p[2])
        return tke_graph_refuse(x->b, "%s needs min or max", x->row->name);
    return clamp(x, x->p[1], x->p[2]);
}

static bool lower_clamp_min(const bound *x)
{
    return clamp(x, x->p[1], NULL);
}

static bool lower_clamp_max(const bound *x)
{
    return clamp(x, NULL, x->p[1]);
}

static bool lower_where(const bound *x)
{
    int32_t test = operand(x, 0), yes = operand(x, 1);
    return give(x, ternary(x->b, TKE_G_WHERE, test, yes, operand(x, 2)));
}

/* x.where(test, other) */
static bool lower_where_method(const bound *x)
{
    int32_t yes = operand(x, 0), test = operand(x, 1);
    return give(x, ternary(x->b, TKE_G_WHERE, test, yes, operand(x, 2)));
}

/* input mask value */
static bool lower_masked_fill(const bound *x)
{
    int32_t at = operand(x, 0), mask = operand(x, 1), value = operand(x, 2);
    /* the result has the dtype of the tensor */
    if (value >= 0 && at >= 0)
        value = tke_graph_emit(x->b, instr(TKE_G_CAST_LIKE, rank_of(x->b, value), value, at, -1));
    return give(x, ternary(x->b, TKE_G_WHERE, mask, value, at));
}

static bool lower_fill(const bound *x)
{
    int32_t at = operand(x, 0);
    bool full = x->row->op == TKE_G_FILL;
    if (!full && x->p[1])
        return tke_graph_refuse(x->b, "%s has one argument", x->row->name);
    int32_t value =
        full ? operand(x, 1) : constant(x->b, x->row->op == TKE_G_ADD ? 1 : 0, TKE_KIND_BOOL);
    if (at < 0 || value < 0)
        return false;
    if (rank_of(x->b, value))
        return tke_graph_refuse(x->b, "%s needs one number", x->row->name);
    int32_t made = tke_graph_emit(x->b, instr(TKE_G_FILL, rank_of(x->b, at), at, value, -1));
    for (size_t i = 2; i < MAX_PARAMS; i++)
        if (x->p[i] && !is_place(x->p[i]) && !convert(x, made, x->p[i], &made))
            return false;
    return give(x, made);
}

/* ---- compositions ---- */

static bool lower_dot(const bound *x)
{
    int32_t l = operand(x, 0), r = operand(x, 1);
    if (l >= 0 && r >= 0 && (rank_of(x->b, l) != 1 || rank_of(x->b, r) != 1))
        return tke_graph_refuse(x->b, "dot needs two tensors of rank 1");
    return give(x, over(x->b, TKE_G_SUM, binary(x->b, TKE_G_MUL, l, r), TKE_AXIS_ALL, false));
}

/* input target size_average? reduce? reduction? weight? */
static bool lower_mse(const bound *x)
{
    const tke_graph_arg *how = x->p[4];
    if (x->p[2] || x->p[3] || x->p[5])
        return tke_graph_refuse(x->b, "mse_loss supports reduction only");
    int32_t l = operand(x, 0);
    int32_t square = unary(x->b, TKE_G_SQUARE, binary(x->b, TKE_G_SUB, l, operand(x, 1)));
    if (!how || tkc_str_is(how->text, "mean"))
        return give(x, over(x->b, TKE_G_MEAN, square, TKE_AXIS_ALL, false));
    if (tkc_str_is(how->text, "sum"))
        return give(x, over(x->b, TKE_G_SUM, square, TKE_AXIS_ALL, false));
    return tkc_str_is(how->text, "none")
               ? give(x, square)
               : tke_graph_refuse(x->b, "reduction must be mean, sum or none");
}

/* ---- shapes ---- */

static int32_t size_at(tke_graph_builder *b, int32_t at, int axis)
{
    tke_graph_instr s = instr(TKE_G_SIZE, 0, at, -1, -1);
    s.axes = (int8_t)axis;
    return tke_graph_emit(b, s);
}

static bool give_size(const bound *x, int32_t at, const tke_graph_arg *dim)
{
    int axes = 0;
    if (!rank_of(x->b, at))
        return tke_graph_refuse(x->b, "a scalar has no size in any dim");
    return axis_of(x, rank_of(x->b, at), dim, &axes) && give(x, size_at(x->b, at, axes));
}

static bool lower_size(const bound *x)
{
    int32_t at = operand(x, 0);
    if (at < 0 || x->p[1])
        return at >= 0 && give_size(x, at, x->p[1]);
    *x->out = (tke_graph_arg){ .kind = TKE_ARG_SHAPE, .at = at };
    return true;
}

static bool lower_numel(const bound *x)
{
    int32_t at = operand(x, 0);
    return at >= 0 && give(x, size_at(x->b, at, TKE_AXIS_ALL));
}

static bool lower_rank(const bound *x)
{
    int32_t at = operand(x, 0);
    return at >= 0 && give(x, constant(x->b, rank_of(x->b, at), TKE_KIND_INT));
}

/* input size..., as separate arguments or as one list */
static bool lower_reshape(const bound *x)
{
    int32_t at = operand(x, 0), sizes[2] = { -1, -1 };
    const tke_graph_arg *const *given = &x->p[1];
    const tke_graph_arg *listed[MAX_PARAMS] = { 0 };
    size_t n = 0;
    if (given[0] && given[0]->kind == TKE_ARG_LIST) {
        for (size_t i = 0; i < given[0]->n && i < 3; i++)
            listed[i] = &given[0]->items[i];
        given = listed;
    }
    while (n < 3 && given[n])
        n++;
    if (n < 1 || n > 2)
        return tke_graph_refuse(x->b, "%s needs one or two sizes", x->row->name);
    for (size_t i = 0; i < n; i++)
        if ((sizes[i] = value_of(x, given[i])) < 0)
            return false;
    if (at < 0 || rank_of(x->b, sizes[0]) || (n == 2 && rank_of(x->b, sizes[1])))
        return at >= 0 && tke_graph_refuse(x->b, "sizes must be integers");
    return give(x, tke_graph_emit(x->b, instr(TKE_G_RESHAPE, (int)n, at, sizes[0], sizes[1])));
}

static bool lower_flatten(const bound *x)
{
    int32_t at = operand(x, 0), all = constant(x->b, -1, TKE_KIND_INT);
    if (at < 0 || all < 0)
        return false;
    return give(x, tke_graph_emit(x->b, instr(TKE_G_RESHAPE, 1, at, all, -1)));
}

static bool layout(const bound *x, int32_t at, int rank, int how)
{
    tke_graph_instr l = instr(TKE_G_LAYOUT, rank, at, -1, -1);
    l.index = how;
    return give(x, tke_graph_emit(x->b, l));
}

static bool lower_unsqueeze(const bound *x)
{
    int32_t at = operand(x, 0);
    if (at < 0)
        return false;
    int rank = rank_of(x->b, at);
    int64_t d = x->p[1]->integer, most = rank + 1;
    if (x->p[1]->kind != TKE_ARG_INT || d < -most || d >= most || rank == 2)
        return tke_graph_refuse(x->b, "unsqueeze to rank %d at this dim is not supported",
                                rank + 1);
    d = d < 0 ? d + most : d;
    return layout(x, at, rank + 1, rank && d == 1 ? TKE_LAYOUT_COLUMN : TKE_LAYOUT_ROW);
}

static bool lower_squeeze(const bound *x)
{
    int32_t at = operand(x, 0);
    int axes = 0;
    if (at < 0)
        return false;
    if (!x->p[1])
        return tke_graph_refuse(x->b, "squeeze needs dim: the rank must not depend on sizes");
    if (!rank_of(x->b, at))
        return give(x, at);
    return axis_of(x, rank_of(x->b, at), x->p[1], &axes) &&
           layout(x, at, rank_of(x->b, at) - 1,
                  axes == TKE_AXIS_ROWS ? TKE_LAYOUT_DROP_ROWS : TKE_LAYOUT_DROP_COLS);
}

static bool lower_getitem(const bound *x)
{
    const tke_graph_arg *of = x->p[0], *index = x->p[1];
    static const tke_graph_arg none = { .kind = TKE_ARG_NONE };
    if (of && of->kind == TKE_ARG_SHAPE && index)
        return give_size(x, of->at, index);
    if (!of || of->kind != TKE_ARG_VALUE)
        return tke_graph_refuse(x->b, "only tensors and their shapes can be indexed");
    return tke_graph_getitem(x->b, of->at, index ? index : &none, x->out);
}

static bool lower_masked_select(const bound *x)
{
    int32_t at = operand(x, 0);
    if (at < 0 || !x->p[1] || x->p[1]->kind != TKE_ARG_VALUE)
        return at >= 0 && tke_graph_refuse(x->b, "masked_select needs a mask");
    return tke_graph_getitem(x->b, at, x->p[1], x->out);
}

static bool lower_getattr(const bound *x)
{
    int32_t at = operand(x, 0);
    const tke_graph_arg *name = x->p[1];
    if (at < 0)
        return false;
    *x->out = (tke_graph_arg){ .at = at };
    if (name->kind == TKE_ARG_TEXT && tkc_str_is(name->text, "shape"))
        x->out->kind = TKE_ARG_SHAPE;
    else if (name->kind == TKE_ARG_TEXT && tkc_str_is(name->text, "dtype"))
        x->out->kind = TKE_ARG_KIND_OF;
    else if (name->kind == TKE_ARG_TEXT && tkc_str_is(name->text, "device"))
        x->out->kind = TKE_ARG_PLACE;
    else if (name->kind == TKE_ARG_TEXT && tkc_str_is(name->text, "ndim"))
        return lower_rank(x);
    else
        return tke_graph_refuse(x->b, "attribute '%.*s' is not supported in a custom loss",
                                (int)(name->text.len < 40 ? name->text.len : 40),
                                name->text.data ? name->text.data : "");
    return true;
}

/* ---- the table ---- */

#define ONE       "input"
#define TWO       "input other"
#define REDUCED   "input dim? keepdim? dtype?"
#define CONVERTED "input dtype? device? other? non_blocking? copy? memory_format?"
#define ANYWHERE  (TORCH | METHOD | PYTHON)
#define COMPARISON(name, op)                                                                       \
    {                                                                                              \
        name, ANYWHERE, TWO, lower_binary, op                                                      \
    }

static const op_row rows[] = {
    { "add", BOTH, "input other alpha?", lower_scaled, TKE_G_ADD },
    { "sub", BOTH, "input other alpha?", lower_scaled, TKE_G_SUB },
    { "subtract", BOTH, "input other alpha?", lower_scaled, TKE_G_SUB },
    { "add", PYTHON, TWO, lower_binary, TKE_G_ADD },
    { "sub", PYTHON, TWO, lower_binary, TKE_G_SUB },
    { "mul", ANYWHERE, TWO, lower_binary, TKE_G_MUL },
    { "multiply", BOTH, TWO, lower_binary, TKE_G_MUL },
    { "truediv", PYTHON, TWO, lower_binary, TKE_G_DIV },
    { "div", BOTH, "input other rounding_mode?", lower_div, TKE_G_DIV },
    { "divide", BOTH, "input other rounding_mode?", lower_div, TKE_G_DIV },
    { "true_divide", BOTH, TWO, lower_binary, TKE_G_DIV },
    { "pow", BOTH, "input exponent", lower_binary, TKE_G_POW },
    { "pow", PYTHON, TWO, lower_binary, TKE_G_POW },
    { "minimum", BOTH, TWO, lower_binary, TKE_G_MIN },
    { "maximum", BOTH, TWO, lower_binary, TKE_G_MAX },
    { "min", BOTH, "input other? dim? keepdim?", lower_extreme, TKE_G_MIN },
    { "max", BOTH, "input other? dim? keepdim?", lower_extreme, TKE_G_MAX },
    { "logaddexp", BOTH, TWO, lower_binary, TKE_G_LOGADDEXP },
    COMPARISON("gt", TKE_G_GT),
    COMPARISON("ge", TKE_G_GE),
    COMPARISON("lt", TKE_G_LT),
    COMPARISON("le", TKE_G_LE),
    COMPARISON("eq", TKE_G_EQ),
    COMPARISON("ne", TKE_G_NE),
    { "and_", PYTHON, TWO, lower_binary, TKE_G_AND },
    { "or_", PYTHON, TWO, lower_binary, TKE_G_OR },
    { "xor", PYTHON, TWO, lower_binary, TKE_G_XOR },
    { "invert", PYTHON, ONE, lower_unary, TKE_G_NOT },
    { "logical_and", BOTH, TWO, lower_logical, TKE_G_AND },
    { "logical_or", BOTH, TWO, lower_logical, TKE_G_OR },
    { "logical_xor", BOTH, TWO, lower_logical, TKE_G_XOR },
    { "logical_not", BOTH, ONE, lower_logical, TKE_G_NOT },
    { "bitwise_not", BOTH, ONE, lower_unary, TKE_G_NOT },
    { "neg", ANYWHERE, ONE, lower_unary, TKE_G_NEG },
    { "negative", BOTH, ONE, lower_unary, TKE_G_NEG },
    { "pos", PYTHON, ONE, lower_same, 0 },
    { "abs", ANYWHERE, ONE, lower_unary, TKE_G_ABS },
    { "absolute", BOTH, ONE, lower_unary, TKE_G_ABS },
    { "sign", BOTH, ONE, lower_unary, TKE_G_SIGN },
    { "exp", BOTH, ONE, lower_unary, TKE_G_EXP },
    { "log", BOTH, ONE, lower_unary, TKE_G_LOG },
    { "log1p", BOTH, ONE, lower_unary, TKE_G_LOG1P },
    { "expm1", BOTH, ONE, lower_unary, TKE_G_EXPM1 },
    { "sqrt", BOTH, ONE, lower_unary, TKE_G_SQRT },
    { "rsqrt", BOTH, ONE, lower_unary, TKE_G_RSQRT },
    { "reciprocal", BOTH, ONE, lower_unary, TKE_G_RECIPROCAL },
    { "square", BOTH, ONE, lower_unary, TKE_G_SQUARE },
    { "sigmoid", UNARY, ONE, lower_unary, TKE_G_SIGMOID },
    { "tanh", UNARY, ONE, lower_unary, TKE_G_TANH },
    { "relu", UNARY, "input inplace?", lower_relu, TKE_G_RELU },
    { "softplus", FUNCTIONAL, "input beta? threshold?", lower_softplus, TKE_G_SOFTPLUS },
    { "logsigmoid", FUNCTIONAL, ONE, lower_unary, TKE_G_LOGSIGMOID },
    { "log_sigmoid", FUNCTIONAL, ONE, lower_unary, TKE_G_LOGSIGMOID },
    { "clamp", BOTH, "input min? max?", lower_clamp, 0 },
    { "clip", BOTH, "input min? max?", lower_clamp, 0 },
    { "clamp_min", BOTH, "input min", lower_clamp_min, 0 },
    { "clamp_max", BOTH, "input max", lower_clamp_max, 0 },
    { "where", TORCH, "condition input other", lower_where, 0 },
    { "where", METHOD, "input condition other", lower_where_method, 0 },
    { "masked_fill", BOTH, "input mask value", lower_masked_fill, 0 },
    { "masked_select", BOTH, "input mask", lower_masked_select, 0 },
    { "sum", BOTH, REDUCED, lower_reduce, TKE_G_SUM },
    { "mean", BOTH, REDUCED, lower_reduce, TKE_G_MEAN },
    { "logsumexp", BOTH, "input dim keepdim?", lower_reduce, TKE_G_LOGSUMEXP },
    { "amax", BOTH, "input dim? keepdim?", lower_reduce, TKE_G_AMAX },
    { "amin", BOTH, "input dim? keepdim?", lower_reduce, TKE_G_AMIN },
    { "any", BOTH, ONE, lower_truth, TKE_G_AMAX },
    { "all", BOTH, ONE, lower_truth, TKE_G_AMIN },
    { "cumsum", BOTH, "input dim dtype?", lower_cumsum, 0 },
    { "softmax", FUNCTIONAL, "input dim? _stacklevel? dtype?", lower_softmax, TKE_G_EXP },
    { "log_softmax", FUNCTIONAL, "input dim? _stacklevel? dtype?", lower_softmax, TKE_G_LOG },
    { "softmax", BOTH, "input dim dtype?", lower_softmax, TKE_G_EXP },
    { "log_softmax", BOTH, "input dim dtype?", lower_softmax, TKE_G_LOG },
    { "dot", BOTH, "input tensor", lower_dot, 0 },
    { "mse_loss", FUNCTIONAL, "input target size_average? reduce? reduction? weight?", lower_mse,
      0 },
    { "detach", BOTH, ONE, lower_unary, TKE_G_DETACH },
    { "clone", BOTH, ONE, lower_same, 0 },
    { "contiguous", METHOD, ONE, lower_same, 0 },
    { "float", METHOD, ONE, lower_cast, 0 },
    { "double", METHOD, ONE, lower_cast, 0 },
    { "long", METHOD, ONE, lower_cast, 0 },
    { "int", METHOD, ONE, lower_cast, 0 },
    { "bool", METHOD, ONE, lower_cast, 0 },
    { "to", METHOD, CONVERTED, lower_to, 0 },
    { "type", METHOD, "input dtype", lower_type, 0 },
    { "type_as", METHOD, "input other", lower_type, 0 },
    { "ones_like", TORCH, "input _? dtype? layout? device? memory_format?", lower_fill, TKE_G_ADD },
    { "zeros_like", TORCH, "input _? dtype? layout? device? memory_format?", lower_fill,
      TKE_G_SUB },
    { "full_like", TORCH, "input fill_value dtype? layout? device? memory_format?", lower_fill,
      TKE_G_FILL },
    { "size", METHOD, "input dim?", lower_size, 0 },
    { "numel", BOTH, ONE, lower_numel, 0 },
    { "dim", METHOD, ONE, lower_rank, 0 },
    { "reshape", BOTH, "input shape? _? _?", lower_reshape, 0 },
    { "view", METHOD, "input size? _? _?", lower_reshape, 0 },
    { "flatten", BOTH, ONE, lower_flatten, 0 },
    { "unsqueeze", BOTH, "input dim", lower_unsqueeze, 0 },
    { "squeeze", BOTH, "input dim?", lower_squeeze, 0 },
    { "getitem", PYTHON, "a b?", lower_getitem, 0 },
};
static const op_row getattr_row = { "getattr", 0, "input name", lower_getattr, 0 };

/* ---- finding the row, binding the parameters ---- */

static bool cut_prefix(tinkc_str *s, const char *prefix)
{
    size_t n = strlen(prefix);
    if (!tkc_starts_with(*s, prefix))
        return false;
    *s = tkc_strn(s->data + n, s->len - n);
    return true;
}

static const op_row *find_row(const tke_graph_call *call)
{
    tinkc_str name = call->target;
    int from = METHOD;
    if (!call->is_method) {
        if (tkc_str_is(name, "getattr"))
            return &getattr_row;
        from = cut_prefix(&name, "operator.") ? PYTHON
               : cut_prefix(&name, "torch.nn.functional.") || cut_prefix(&name, "torch._C._nn.")
                   ? FUNCTIONAL
               : cut_prefix(&name, "torch.Tensor.") ? METHOD
               : cut_prefix(&name, "torch.")        ? TORCH
                                                    : 0;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].from & from) && tkc_str_is(name, rows[i].name))
            return &rows[i];
    return NULL;
}

/* NumPy's names, which PyTorch takes as well. */
static tinkc_str usual(tinkc_str name)
{
    return tkc_str_is(name, "axis")       ? tkc_str("dim")
           : tkc_str_is(name, "keepdims") ? tkc_str("keepdim")
           : tkc_str_is(name, "self")     ? tkc_str("input")
                                          : name;
}

static const tke_graph_arg *keyword(const tke_graph_call *call, tinkc_str name, size_t *found)
{
    for (size_t i = 0; i < call->kwargs.n; i++)
        if (tkc_str_eq(usual(call->kwargs.keys[i]), name)) {
            ++*found;
            return &call->kwargs.items[i];
        }
    return NULL;
}

/* A keyword that no parameter has. */
static bool refuse_keyword(const bound *x)
{
    for (size_t i = 0; i < x->call->kwargs.n; i++) {
        tinkc_str key = usual(x->call->kwargs.keys[i]), rest = tkc_str(x->row->params), part;
        bool known = false;
        while (tkc_str_cut(&rest, ' ', &part)) {
            part.len -= part.data[part.len - 1] == '?';
            known = known || tkc_str_eq(part, key);
        }
        if (!known)
            return tke_graph_refuse(x->b, "%.*s with '%.*s' is not supported in a custom loss",
                                    (int)x->call->target.len, x->call->target.data,
                                    (int)(key.len < 60 ? key.len : 60), key.data);
    }
    return tke_graph_refuse(x->b, "%.*s has a parameter twice", (int)x->call->target.len,
                            x->call->target.data);
}

static bool bind(bound *x)
{
    tinkc_str rest = tkc_str(x->row->params), part;
    size_t n = 0, found = 0;
    while (tkc_str_cut(&rest, ' ', &part)) {
        bool optional = part.data[part.len - 1] == '?';
        part.len -= optional;
        assert(n < MAX_PARAMS);
        const tke_graph_arg *arg =
            n < x->call->n_args ? &x->call->args[n] : keyword(x->call, part, &found);
        x->p[n] = arg && arg->kind != TKE_ARG_NONE ? arg : NULL;
        if (!x->p[n++] && !optional)
            return tke_graph_refuse(x->b, "%.*s needs '%.*s'", (int)x->call->target.len,
                                    x->call->target.data, (int)part.len, part.data);
    }
    if (x->call->n_args > n)
        return tke_graph_refuse(x->b, "%.*s has %zu arguments; at most %zu are supported",
                                (int)x->call->target.len, x->call->target.data, x->call->n_args, n);
    return found == x->call->kwargs.n || refuse_keyword(x);
}

bool tke_graph_compile(tke_graph_builder *b, const tke_graph_call *call, tke_graph_arg *out)
{
    bound x = { .b = b, .row = find_row(call), .call = call, .out = out };
    if (!x.row)
        return tke_graph_refuse(b, "operation %s%.*s is not supported in a custom loss",
                                call->is_method ? "Tensor." : "", (int)call->target.len,
                                call->target.data);
    return bind(&x) && x.row->lower(&x);
}
