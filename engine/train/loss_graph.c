/* loss_graph.c - reads the nodes of a custom loss, checks them, and has each compiled.
 *
 * May touch: its arguments. Must not: compute; know which operations exist (graph_ops.c does). The
 * text is a client's: its names, numbers, depth and counts are checked here, and every member that
 * is not known is refused by name.
 *
 * The client's tape (src/client/train/tape.c) looks similar but shares nothing with this: its values lie over
 * all sequences of a batch and broadcast from sequence to token, and where two operands are equal it
 * sends the gradient to the first; here values are matrices of one datum, and gradients are those of
 * PyTorch, which divides them.
 */
#include "train/loss_graph.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/json_read.h"
#include "train/graph_state.h"

enum { MAX_INSTRS = 4 * TKE_GRAPH_NODES };

/* ---- messages ---- */

static int shown(tinkc_str s)
{
    return (int)(s.len < TKE_GRAPH_TEXT ? s.len : TKE_GRAPH_TEXT);
}

bool tke_graph_refuse(tke_graph_builder *b, const char *format, ...)
{
    char why[400];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (b->node < 0)
        return tkc_fail(b->err, TINKC_E_BAD_REQUEST, "custom loss '%s': %s", b->graph->name, why);
    return tkc_fail(b->err, TINKC_E_BAD_REQUEST, "custom loss '%s', node '%s': %s", b->graph->name,
                    b->graph->nodes[b->node].name, why);
}

/* ---- instructions ---- */

/* Operations whose result is constant for small changes of their operands. */
static bool is_flat(const tke_graph_instr *x)
{
    switch (x->op) {
    case TKE_G_INPUT:
        return x->index != 0;
    case TKE_G_CONST:
    case TKE_G_SIZE:
    case TKE_G_FILL:
    case TKE_G_SIGN:
    case TKE_G_NOT:
    case TKE_G_DETACH:
        return true;
    case TKE_G_CAST:
        return x->kind != TKE_KIND_FLOAT;
    default:
        return x->op >= TKE_G_GT && x->op <= TKE_G_XOR;
    }
}

int32_t tke_graph_emit(tke_graph_builder *b, tke_graph_instr x)
{
    tke_graph *g = b->graph;
    if (tkc_failed(b->err))
        return -1;
    if (g->n_instrs == MAX_INSTRS) {
        tke_graph_refuse(b, "it has more than %d steps", MAX_INSTRS);
        return -1;
    }
    if (g->n_instrs == g->cap_instrs) {
        size_t cap = g->cap_instrs ? 2 * g->cap_instrs : 64;
        tke_graph_instr *grown = tkc_arena_array(&g->arena, cap, sizeof *grown, b->err);
        if (!grown)
            return -1;
        if (g->n_instrs)
            memcpy(grown, g->instrs, g->n_instrs * sizeof *grown);
        g->instrs = grown;
        g->cap_instrs = cap;
    }
    x.node = b->node;
    x.flows = x.op == TKE_G_INPUT && x.index == 0;
    const int32_t operands[3] = { x.a, x.b, x.c };
    for (size_t i = 0; i < 3; i++) {
        assert(operands[i] < (int32_t)g->n_instrs);
        /* a condition, a mask and a size decide, and have no gradient */
        bool decides = (x.op == TKE_G_WHERE && i == 0) || (x.op == TKE_G_SELECT && i == 1) ||
                       (x.op == TKE_G_RESHAPE && i > 0) || (x.op == TKE_G_CAST_LIKE && i == 1);
        if (operands[i] >= 0 && !decides)
            x.flows = x.flows || g->instrs[operands[i]].flows;
    }
    x.flows = x.flows && !is_flat(&x);
    g->instrs[g->n_instrs] = x;
    return (int32_t)g->n_instrs++;
}

/* ---- arguments ---- */

typedef struct reader {
    tke_graph_builder b;
    tkc_json json;
    tke_graph_arg *made; /* what each node stands for */
} reader;

static bool refuse_long(reader *r, const char *what, tinkc_str text)
{
    if (text.len && text.len <= TKE_GRAPH_TEXT && !memchr(text.data, 0, text.len))
        return true;
    return tke_graph_refuse(&r->b, "%s must have 1 to %d characters", what, TKE_GRAPH_TEXT);
}

static bool read_arg(reader *r, int depth, tke_graph_arg *out);

/* Makes room for one more item; memory stays in proportion to the text. */
static bool make_room(reader *r, tke_graph_arg *out, size_t *cap)
{
    if (out->n < *cap)
        return true;
    *cap = *cap ? 2 * *cap : 4;
    tke_graph_arg *items = tkc_arena_array(r->b.scratch, *cap, sizeof *items, r->b.err);
    tinkc_str *keys = out->kind == TKE_ARG_DICT
                          ? tkc_arena_array(r->b.scratch, *cap, sizeof *keys, r->b.err)
                          : NULL;
    if (tkc_failed(r->b.err))
        return false;
    if (out->n)
        memcpy(items, out->items, out->n * sizeof *items);
    if (out->n && keys)
        memcpy(keys, out->keys, out->n * sizeof *keys);
    out->items = items;
    out->keys = keys;
    return true;
}

static bool read_items(reader *r, int depth, tke_graph_arg *out)
{
    size_t cap = 0;
    if (!tkc_json_array(&r->json))
        return false;
    for (out->n = 0; tkc_json_item(&r->json); out->n++)
        if (!make_room(r, out, &cap) || !read_arg(r, depth + 1, &out->items[out->n]))
            return false;
    return !tkc_failed(r->b.err);
}

static bool read_dict(reader *r, int depth, tke_graph_arg *out)
{
    enum { MOST = 64 };
    size_t cap = 0;
    tinkc_str key;
    out->kind = TKE_ARG_DICT;
    if (!tkc_json_object(&r->json))
        return false;
    for (out->n = 0; tkc_json_key(&r->json, &key); out->n++) {
        for (size_t i = 0; i < out->n; i++)
            if (tkc_str_eq(key, out->keys[i]))
                return tke_graph_refuse(&r->b, "'%.*s' is given twice", shown(key), key.data);
        if (out->n == MOST)
            return tke_graph_refuse(&r->b, "a dict has more than %d members", MOST);
        if (!make_room(r, out, &cap) || !read_arg(r, depth + 1, &out->items[out->n]))
            return false;
        out->keys[out->n] = key;
    }
    return !tkc_failed(r->b.err);
}

static bool read_ref(reader *r, tke_graph_arg *out)
{
    tinkc_str name = tkc_json_string(&r->json);
    for (int32_t i = 0; i < r->b.node && !tkc_failed(r->b.err); i++)
        if (tkc_str_is(name, r->b.graph->nodes[i].name)) {
            *out = r->made[i];
            return true;
        }
    return tke_graph_refuse(&r->b, "it refers to '%.*s', which is not an earlier node", shown(name),
                            name.data ? name.data : "");
}

static bool read_slice(reader *r, int depth, tke_graph_arg *out)
{
    if (!read_items(r, depth, out))
        return false;
    out->kind = TKE_ARG_SLICE;
    return out->n == 3 || tke_graph_refuse(&r->b, "a slice needs start, stop and step");
}

static bool read_special(reader *r, tke_graph_arg *out)
{
    tinkc_str text = tkc_json_string(&r->json);
    out->kind = TKE_ARG_FLOAT;
    return tkc_parse_double(text, true, &out->number) ||
           tke_graph_refuse(&r->b, "'%.*s' is not a number", shown(text), text.data);
}

/* An object has one member, whose name says what it stands for. */
static bool read_marked(reader *r, int depth, tke_graph_arg *out)
{
    tinkc_str key, more;
    if (!tkc_json_object(&r->json))
        return false;
    if (!tkc_json_key(&r->json, &key))
        return tke_graph_refuse(&r->b, "an argument is an empty object");
    bool ok = true;
    if (tkc_str_is(key, "ref")) {
        ok = read_ref(r, out);
    } else if (tkc_str_is(key, "tuple")) {
        out->kind = TKE_ARG_LIST;
        ok = read_items(r, depth, out);
    } else if (tkc_str_is(key, "dict")) {
        ok = read_dict(r, depth, out);
    } else if (tkc_str_is(key, "slice")) {
        ok = read_slice(r, depth, out);
    } else if (tkc_str_is(key, "float")) {
        ok = read_special(r, out);
    } else if (tkc_str_is(key, "ellipsis")) {
        out->kind = TKE_ARG_ELLIPSIS;
        ok = tkc_json_bool(&r->json) || tke_graph_refuse(&r->b, "ellipsis must be true");
    } else if (tkc_str_is(key, "dtype")) {
        out->kind = TKE_ARG_DTYPE;
        out->text = tkc_json_string(&r->json);
    } else if (tkc_str_is(key, "device") || tkc_str_is(key, "layout") ||
               tkc_str_is(key, "memory_format")) {
        out->kind = TKE_ARG_PLACE;
        out->text = tkc_json_string(&r->json);
    } else {
        ok = tke_graph_refuse(&r->b, "an argument of the kind '%.*s' is not supported", shown(key),
                              key.data);
    }
    if (ok && tkc_json_key(&r->json, &more))
        return tke_graph_refuse(&r->b, "an argument has '%.*s' and '%.*s': one is needed",
                                shown(key), key.data, shown(more), more.data);
    return ok && !tkc_failed(r->b.err);
}

static bool read_number(reader *r, tke_graph_arg *out)
{
    const char *from = r->json.at;
    out->number = tkc_json_double(&r->json);
    out->kind = TKE_ARG_INT;
    for (const char *p = from; p < r->json.at; p++)
        if (*p == '.' || *p == 'e' || *p == 'E')
            out->kind = TKE_ARG_FLOAT;
    /* integers beyond this are not exact in double */
    if (out->kind == TKE_ARG_INT && fabs(out->number) > 9007199254740992.0)
        return tke_graph_refuse(&r->b, "an integer is beyond 2^53");
    out->integer = out->kind == TKE_ARG_INT ? (int64_t)out->number : 0;
    return !tkc_failed(r->b.err);
}

static bool read_arg(reader *r, int depth, tke_graph_arg *out)
{
    *out = (tke_graph_arg){ .at = -1 };
    if (depth > TKE_GRAPH_DEPTH)
        return tke_graph_refuse(&r->b, "an argument is nested deeper than %d", TKE_GRAPH_DEPTH);
    switch (tkc_json_peek(&r->json)) {
    case TKC_JSON_NULL:
        tkc_json_skip(&r->json);
        return true;
    case TKC_JSON_TRUE:
    case TKC_JSON_FALSE:
        out->kind = TKE_ARG_BOOL;
        out->integer = tkc_json_bool(&r->json);
        out->number = (double)out->integer;
        return true;
    case TKC_JSON_NUMBER:
        return read_number(r, out);
    case TKC_JSON_STRING:
        out->kind = TKE_ARG_TEXT;
        out->text = tkc_json_string(&r->json);
        return !tkc_failed(r->b.err);
    case TKC_JSON_ARRAY:
        out->kind = TKE_ARG_LIST;
        return read_items(r, depth, out);
    default:
        return read_marked(r, depth, out);
    }
}

/* ---- what the loss returns ---- */

static bool metric_name_ok(tinkc_str name)
{
    static const char prefix[] = "custom/";
    size_t end = tkc_str_find(name, ':');
    if (!tkc_starts_with(name, prefix) || end == name.len)
        return false;
    tinkc_str how = tkc_strn(name.data + end, name.len - end);
    size_t n = end - (sizeof prefix - 1);
    if (n == 0 || n > TKE_GRAPH_NAME || !(tkc_str_is(how, ":sum") || tkc_str_is(how, ":mean")))
        return false;
    for (size_t i = sizeof prefix - 1; i < end; i++) {
        char c = name.data[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c && strchr("_./-", c))))
            return false;
    }
    return true;
}

static bool read_metric(reader *r, tinkc_str name, const tke_graph_arg *value)
{
    tke_graph *g = r->b.graph;
    if (!metric_name_ok(name))
        return tke_graph_refuse(&r->b,
                                "metric '%.*s' must be named custom/<name>:sum or "
                                "custom/<name>:mean in lower case",
                                shown(name), name.data);
    if (value->kind != TKE_ARG_VALUE || g->instrs[value->at].rank)
        return tke_graph_refuse(&r->b, "metric '%.*s' must be a scalar tensor", shown(name),
                                name.data);
    if (g->n_metrics == TKE_GRAPH_METRICS)
        return tke_graph_refuse(&r->b, "it returns more than %d metrics", TKE_GRAPH_METRICS);
    g->metrics[g->n_metrics].name = tkc_arena_str(&g->arena, name, r->b.err);
    g->metrics[g->n_metrics++].at = value->at;
    return !tkc_failed(r->b.err);
}

static bool read_output(reader *r, const tke_graph_call *call)
{
    tke_graph *g = r->b.graph;
    const tke_graph_arg *pair = call->args;
    if (call->n_args != 1 || call->kwargs.n || pair->kind != TKE_ARG_LIST || pair->n != 2 ||
        pair->items[1].kind != TKE_ARG_DICT)
        return tke_graph_refuse(&r->b, "it must return (loss, metrics), metrics as a dict");
    const tke_graph_arg *loss = &pair->items[0];
    if (loss->kind != TKE_ARG_VALUE)
        return tke_graph_refuse(&r->b, "it must return its loss as a tensor");
    if (g->instrs[loss->at].rank)
        return tke_graph_refuse(&r->b, "it must return a scalar loss, not a tensor of rank %d",
                                (int)g->instrs[loss->at].rank);
    if (!g->instrs[loss->at].flows)
        return tke_graph_refuse(&r->b, "its loss does not depend on logprobs");
    g->loss = loss->at;
    const tke_graph_arg *metrics = &pair->items[1];
    for (size_t i = 0; i < metrics->n; i++)
        if (!read_metric(r, metrics->keys[i], &metrics->items[i]))
            return false;
    return true;
}

/* ---- nodes ---- */

typedef struct node_text {
    tinkc_str op, name, target, args, kwargs;
} node_text;

static bool read_members(reader *r, node_text *n)
{
    tinkc_str key;
    if (!tkc_json_object(&r->json))
        return false;
    while (tkc_json_key(&r->json, &key)) {
        tinkc_str *text = tkc_str_is(key, "op")       ? &n->op
                          : tkc_str_is(key, "name")   ? &n->name
                          : tkc_str_is(key, "target") ? &n->target
                                                      : NULL;
        tinkc_str *raw = tkc_str_is(key, "args")     ? &n->args
                         : tkc_str_is(key, "kwargs") ? &n->kwargs
                                                     : NULL;
        if (text)
            *text = tkc_json_string(&r->json);
        else if (raw)
            *raw = tkc_json_skip(&r->json);
        else
            return tke_graph_refuse(&r->b, "a node has the unknown field '%.*s'", shown(key),
                                    key.data);
    }
    return !tkc_failed(r->b.err) && refuse_long(r, "the op of a node", n->op) &&
           refuse_long(r, "the name of a node", n->name) &&
           refuse_long(r, "the target of a node", n->target);
}

/* args and kwargs may come before the name: they are read once the node is known. */
static bool read_args(reader *r, const node_text *n, tke_graph_call *call)
{
    const tkc_json outer = r->json;
    tke_graph_arg list = { .kind = TKE_ARG_LIST };
    bool ok = true;
    call->kwargs = (tke_graph_arg){ .kind = TKE_ARG_DICT };
    if (n->args.len) {
        tkc_json_open(&r->json, n->args, r->b.scratch, r->b.err);
        r->json.code = TINKC_E_BAD_REQUEST;
        ok = read_items(r, 0, &list);
    }
    if (ok && n->kwargs.len) {
        tkc_json_open(&r->json, n->kwargs, r->b.scratch, r->b.err);
        r->json.code = TINKC_E_BAD_REQUEST;
        ok = read_dict(r, 0, &call->kwargs);
    }
    r->json = outer;
    call->args = list.items;
    call->n_args = list.n;
    return ok;
}

static bool read_placeholder(reader *r, const node_text *n, const tke_graph_call *call)
{
    tke_graph *g = r->b.graph;
    int32_t i = r->b.node; /* inputs come first */
    if ((size_t)i >= g->n_inputs || !tkc_str_is(n->target, g->inputs[i].name))
        return tke_graph_refuse(&r->b, "the placeholder '%.*s' is not input %d", shown(n->target),
                                n->target.data, (int)i);
    if (call->n_args || call->kwargs.n)
        return tke_graph_refuse(&r->b, "an input must not have a default");
    r->made[i] = (tke_graph_arg){ .kind = TKE_ARG_VALUE };
    r->made[i].at = tke_graph_emit(&r->b, (tke_graph_instr){ .op = TKE_G_INPUT,
                                                             .rank = (uint8_t)g->inputs[i].rank,
                                                             .a = -1,
                                                             .b = -1,
                                                             .c = -1,
                                                             .index = i });
    return r->made[i].at >= 0;
}

static bool compile_node(reader *r, const node_text *n, bool *is_output)
{
    tke_graph_call call = { .target = n->target };
    if (!read_args(r, n, &call))
        return false;
    if (tkc_str_is(n->op, "placeholder"))
        return read_placeholder(r, n, &call);
    if ((size_t)r->b.node < r->b.graph->n_inputs)
        return tke_graph_refuse(&r->b, "the first nodes must be the inputs as placeholders");
    if ((*is_output = tkc_str_is(n->op, "output")))
        return read_output(r, &call);
    call.is_method = tkc_str_is(n->op, "call_method");
    if (call.is_method || tkc_str_is(n->op, "call_function"))
        return tke_graph_compile(&r->b, &call, &r->made[r->b.node]);
    return tke_graph_refuse(&r->b, "%.*s '%.*s' is not supported in a custom loss", shown(n->op),
                            n->op.data, shown(n->target), n->target.data);
}

static bool read_node(reader *r, bool *is_output)
{
    tke_graph *g = r->b.graph;
    node_text n = { 0 };
    if (*is_output)
        return tke_graph_refuse(&r->b, "a node follows the output");
    r->b.node = -1;
    if (g->n_nodes == TKE_GRAPH_NODES)
        return tke_graph_refuse(&r->b, "it has more than %d nodes", TKE_GRAPH_NODES);
    if (!read_members(r, &n))
        return false;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (tkc_str_is(n.name, g->nodes[i].name))
            return tke_graph_refuse(&r->b, "two nodes have the name '%.*s'", shown(n.name),
                                    n.name.data);
    g->nodes[g->n_nodes].name = tkc_arena_str(&g->arena, n.name, r->b.err);
    g->nodes[g->n_nodes].target = tkc_arena_str(&g->arena, n.target, r->b.err);
    if (tkc_failed(r->b.err))
        return false;
    r->b.node = (int32_t)g->n_nodes++;
    return compile_node(r, &n, is_output);
}

static bool read_nodes(reader *r)
{
    bool is_output = false;
    if (!tkc_json_array(&r->json))
        return false;
    while (tkc_json_item(&r->json))
        if (!read_node(r, &is_output))
            return false;
    r->b.node = -1;
    return !tkc_failed(r->b.err) && (is_output || tke_graph_refuse(&r->b, "it has no output"));
}

static bool read_graph(reader *r)
{
    tinkc_str key;
    bool nodes = false;
    if (!tkc_json_object(&r->json))
        return false;
    while (tkc_json_key(&r->json, &key)) {
        if (tkc_str_is(key, "format")) {
            int64_t format = tkc_json_i64(&r->json);
            if (!tkc_failed(r->b.err) && format != 1)
                return tke_graph_refuse(&r->b, "format %lld is not supported; 1 is",
                                        (long long)format);
        } else if (tkc_str_is(key, "nodes") && !nodes) {
            nodes = true;
            if (!read_nodes(r))
                return false;
        } else {
            return tke_graph_refuse(&r->b, "the graph has the unknown field '%.*s'", shown(key),
                                    key.data);
        }
    }
    return tkc_json_close(&r->json) && (nodes || tke_graph_refuse(&r->b, "it has no nodes"));
}

/* ---- inputs ---- */

static bool input_name_ok(const char *name)
{
    size_t n = name ? strlen(name) : 0;
    if (n == 0 || n > TKE_GRAPH_NAME || (name[0] >= '0' && name[0] <= '9'))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9') ||
              name[i] == '_'))
            return false;
    return true;
}

static bool copy_inputs(tke_graph_builder *b, const tke_graph_spec *spec)
{
    tke_graph *g = b->graph;
    if (spec->n_inputs == 0 || spec->n_inputs > TKE_GRAPH_INPUTS)
        return tke_graph_refuse(b, "it has %zu inputs; 1 to %d are possible, logprobs included",
                                spec->n_inputs, TKE_GRAPH_INPUTS);
    for (size_t i = 0; i < spec->n_inputs; i++) {
        const tke_graph_input *in = &spec->inputs[i];
        if (!input_name_ok(in->name))
            return tke_graph_refuse(b,
                                    "the name of input %zu must have 1 to %d lower-case letters, "
                                    "digits and underscores",
                                    i, TKE_GRAPH_NAME);
        if (tkc_cstr_eq(in->name, "logprobs") != (i == 0))
            return tke_graph_refuse(b, "its first input, and no other, must be logprobs");
        if (in->rank < 0 || in->rank > 2 || (i == 0 && in->rank == 0))
            return tke_graph_refuse(b, "%s has rank %lld; it must be %s", in->name,
                                    (long long)in->rank, i ? "0, 1 or 2" : "1 or 2");
        for (size_t k = 0; k < i; k++)
            if (tkc_cstr_eq(in->name, g->inputs[k].name))
                return tke_graph_refuse(b, "two inputs have the name '%s'", in->name);
        g->inputs[i].name = tkc_arena_cstr(&g->arena, in->name, b->err);
        g->inputs[i].rank = in->rank;
    }
    g->n_inputs = spec->n_inputs;
    return !tkc_failed(b->err);
}

/* ---- the graph ---- */

static bool make(tke_graph *g, const tke_graph_spec *spec, tkc_arena *scratch, tinkc_error *err)
{
    reader r = { .b = { .graph = g, .scratch = scratch, .node = -1, .err = err } };
    size_t len = spec->name ? strlen(spec->name) : 0;
    g->name = tkc_arena_cstr(&g->arena, spec->name ? spec->name : "", err);
    g->nodes = tkc_arena_array(&g->arena, TKE_GRAPH_NODES, sizeof *g->nodes, err);
    r.made = tkc_arena_array(scratch, TKE_GRAPH_NODES, sizeof *r.made, err);
    if (tkc_failed(err))
        return false;
    if (len == 0 || len > TKE_GRAPH_TEXT)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "the name of a custom loss must have 1 to %d characters", TKE_GRAPH_TEXT);
    if (!copy_inputs(&r.b, spec))
        return false;
    tkc_json_open(&r.json, spec->nodes, scratch, err);
    r.json.code = TINKC_E_BAD_REQUEST;
    return read_graph(&r);
}

tke_graph *tke_graph_new(const tke_graph_spec *spec, tinkc_error *err)
{
    tkc_arena scratch;
    if (tkc_failed(err))
        return NULL;
    tke_graph *g = tkc_zalloc(NULL, sizeof *g, err);
    if (!g)
        return NULL;
    tkc_arena_init(&g->arena, NULL, 0);
    tkc_arena_init(&scratch, NULL, 0);
    bool ok = make(g, spec, &scratch, err);
    tkc_arena_free(&scratch);
    if (ok)
        return g;
    tke_graph_free(g);
    return NULL;
}

void tke_graph_free(tke_graph *g)
{
    if (!g)
        return;
    tkc_arena_free(&g->arena);
    tkc_release(NULL, g, sizeof *g);
}

size_t tke_graph_bytes(const tke_graph *g)
{
    return sizeof *g + g->arena.taken;
}

const char *tke_graph_name(const tke_graph *g)
{
    return g->name;
}

size_t tke_graph_n_inputs(const tke_graph *g)
{
    return g->n_inputs;
}

const char *tke_graph_input_name(const tke_graph *g, size_t i)
{
    assert(i < g->n_inputs);
    return g->inputs[i].name;
}

int64_t tke_graph_input_rank(const tke_graph *g, size_t i)
{
    assert(i < g->n_inputs);
    return g->inputs[i].rank;
}

size_t tke_graph_n_metrics(const tke_graph *g)
{
    return g->n_metrics;
}

const char *tke_graph_metric(const tke_graph *g, size_t i)
{
    assert(i < g->n_metrics);
    return g->metrics[i].name;
}

bool tke_graph_metric_is_mean(const tke_graph *g, size_t i)
{
    return tkc_ends_with(tkc_str(tke_graph_metric(g, i)), ":mean");
}
