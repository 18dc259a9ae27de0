/* test_loss_graph.c - custom losses: every operation as PyTorch has it and against finite differences,
 * what is refused and how, and the built-in losses written as nodes. */
#include <math.h>

#include "support/json_trees.h"
#include "support/test_case.h"
#include "train/loss.h"

/* ---- cases of tests/data/loss_graphs ---- */

enum { MOST = 64 };

typedef struct loaded {
    tkc_tree *json;
    const char *name;
    tke_graph *graph;
    tke_graph_datum datum;
    double logprobs[MOST];
    float w[MOST];
    int64_t n[MOST];
    tke_graph_tensor tensors[2];
} loaded;

static size_t numbers(const tkc_tree *list, double *out)
{
    for (size_t i = 0; i < tkc_tree_length(list); i++)
        out[i] = tkc_tree_number(tkc_tree_at(list, i));
    return tkc_tree_length(list);
}

static void load(loaded *c, const char *line)
{
    tinkc_error err = { 0 };
    tke_graph_input inputs[3];
    double w[MOST], n[MOST];
    *c = (loaded){ .json = json_of(line) };
    assert_non_null(c->json);
    c->name = tkc_tree_get_text(c->json, "name");
    tkc_tree *list = tkc_tree_get(c->json, "inputs");
    for (size_t i = 0; i < 3; i++) {
        tkc_tree *one = tkc_tree_at(list, i);
        inputs[i] = (tke_graph_input){ tkc_tree_get_text(one, "name"), tkc_tree_get_i64(one, "rank") };
    }
    size_t n_lp = numbers(tkc_tree_get(c->json, "logprobs"), c->logprobs);
    size_t n_w = numbers(tkc_tree_get(c->json, "w"), w);
    size_t n_n = numbers(tkc_tree_get(c->json, "n"), n);
    for (size_t i = 0; i < n_w; i++)
        c->w[i] = (float)w[i];
    for (size_t i = 0; i < n_n; i++)
        c->n[i] = (int64_t)n[i];
    char *nodes = json_print(tkc_tree_get(c->json, "graph"));
    c->graph = tke_graph_new(&(tke_graph_spec){ c->name, inputs, 3, tkc_str(nodes) }, &err);
    if (!c->graph)
        fail_msg("%s: %s", c->name, err.message);
    size_t cols = inputs[1].rank == 2 ? 3 : 1;
    c->tensors[0] = (tke_graph_tensor){ c->w, true, n_w / cols, cols };
    c->tensors[1] = (tke_graph_tensor){ c->n, false, n_n, 1 };
    size_t k = inputs[0].rank == 2 ? 3 : 1;
    c->datum = (tke_graph_datum){ c->logprobs, n_lp / k, k, c->tensors, NULL };
}

static double loss_of(const loaded *c, double *grads, double *metrics)
{
    tinkc_error err = { 0 };
    tke_graph_result result = { .grads = grads };
    if (!tke_graph_run(c->graph, &c->datum, &result, &err))
        fail_msg("%s: %s", c->name, err.message);
    if (metrics)
        memcpy(metrics, result.metrics, sizeof result.metrics);
    return result.loss;
}

static void near(const loaded *c, const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: %s is %.17g, not %.17g", c->name, what, got, want);
}

static void compare(loaded *c)
{
    double grads[MOST], want[MOST], metrics[TKE_GRAPH_METRICS];
    const double h = 1e-5;
    size_t n = numbers(tkc_tree_get(c->json, "grads"), want);
    near(c, "the loss", loss_of(c, grads, metrics), tkc_tree_get_number(c->json, "loss"), 1e-12);
    for (size_t i = 0; i < n; i++)
        near(c, "a gradient", grads[i], want[i], 1e-11);
    tkc_tree *named = tkc_tree_get(c->json, "metrics");
    assert_int_equal(tkc_tree_members(named), tke_graph_n_metrics(c->graph));
    for (size_t i = 0; i < tke_graph_n_metrics(c->graph); i++)
        near(c, "a metric", metrics[i], tkc_tree_get_number(named, tke_graph_metric(c->graph, i)), 1e-12);
    for (size_t i = 0; tkc_tree_get_true(c->json, "smooth") && i < n; i++) {
        double x = c->logprobs[i];
        c->logprobs[i] = x + h;
        double above = loss_of(c, NULL, NULL);
        c->logprobs[i] = x - h;
        double below = loss_of(c, NULL, NULL);
        c->logprobs[i] = x;
        near(c, "a difference", grads[i], (above - below) / (2 * h), 1e-6);
    }
}

TEST(every_operation_agrees_with_torch)
{
    static char line[1 << 16];
    size_t n = 0;
    FILE *file = fopen("tests/data/loss_graphs/cases.jsonl", "r");
    assert_non_null(file);
    for (; fgets(line, sizeof line, file); n++) {
        loaded c;
        load(&c, line);
        compare(&c);
        tke_graph_free(c.graph);
    }
    assert_true(n > 100);
    fclose(file);
}

/* ---- graphs by hand ---- */

#define R(name) "{\"ref\":\"" name "\"}"
#define NODE(op, name, target, args)                                                                                   \
    "{\"op\":\"" op "\",\"name\":\"" name "\",\"target\":\"" target "\",\"args\":[" args "]}"
#define KW(name, target, args, kwargs)                                                                                 \
    "{\"op\":\"call_function\",\"name\":\"" name "\",\"target\":\"" target "\",\"args\":[" args                        \
    "],\"kwargs\":{" kwargs "}}"
#define CALL(name, target, args)   NODE("call_function", name, target, args)
#define METHOD(name, target, args) NODE("call_method", name, target, args)
#define INPUTS                                                                                                         \
    NODE("placeholder", "logprobs", "logprobs", "")                                                                    \
    "," NODE("placeholder", "w", "w", "") ","
#define OUTPUT(loss, metrics) NODE("output", "output", "output", "{\"tuple\":[" loss ",{\"dict\":{" metrics "}}]}")
#define GRAPH(nodes)          "{\"format\":1,\"nodes\":[" nodes "]}"
#define SUM                   METHOD("loss", "sum", R("y"))
/* y is what a node makes; the loss is its sum. */
#define OF_Y(nodes) GRAPH(INPUTS nodes "," SUM "," OUTPUT(R("loss"), ""))

static const tke_graph_input two[2] = { { "logprobs", 1 }, { "w", 1 } };

static void refused(const char *nodes, const tke_graph_input *inputs, size_t n, const char *text)
{
    tinkc_error err = { 0 };
    tke_graph *g = tke_graph_new(&(tke_graph_spec){ "mine", inputs, n, tkc_str(nodes) }, &err);
    if (g || err.code != TINKC_E_BAD_REQUEST || !strstr(err.message, text))
        fail_msg("%s: '%s', not '%s'", nodes, g ? "accepted" : err.message, text);
}

TEST(a_graph_that_cannot_run_is_refused_by_node)
{
    static const struct {
        const char *nodes, *text;
    } rows[] = {
        { OF_Y(CALL("y", "torch.fft.fft", R("logprobs"))),
          "custom loss 'mine', node 'y': operation torch.fft.fft is not supported in a custom "
          "loss" },
        { OF_Y(CALL("y", "os.system", "\"ls\"")), "operation os.system is not supported" },
        { OF_Y(CALL("y", "eval", "\"1\"")), "operation eval is not supported" },
        { OF_Y(CALL("y", "operator.matmul", R("w") "," R("w"))), "operator.matmul" },
        { OF_Y(CALL("y", "torch.float", R("w"))), "operation torch.float is not" },
        { OF_Y(CALL("y", "torch.softplus", R("w"))), "operation torch.softplus is not" },
        { OF_Y(METHOD("y", "backward", R("w"))), "operation Tensor.backward is not" },
        { OF_Y(METHOD("y", "clamp_", R("w") ",0")), "operation Tensor.clamp_ is not" },
        { OF_Y(NODE("get_attr", "y", "t", "")), "get_attr 't' is not supported" },
        { OF_Y(NODE("call_module", "y", "m", "")), "call_module 'm' is not supported" },
        { OF_Y(NODE("run", "y", "m", "")), "run 'm' is not supported" },
        { OF_Y(CALL("y", "torch.exp", "")), "torch.exp needs 'input'" },
        { OF_Y(CALL("y", "torch.exp", R("w") ",1")), "torch.exp has 2 arguments; at most 1" },
        { OF_Y(KW("y", "torch.exp", R("w"), "\"out\":" R("w"))), "torch.exp with 'out' is not" },
        { OF_Y(KW("y", "torch.exp", R("w"), "\"input\":" R("w"))), "has a parameter twice" },
        { OF_Y(KW("y", "torch.sum", R("w"), "\"dim\":0,\"axis\":0")), "has a parameter twice" },
        { OF_Y(KW("y", "torch.sum", R("w"), "\"dim\":0,\"dim\":0")), "'dim' is given twice" },
        { OF_Y(KW("y", "torch.div", R("w") ",2", "\"rounding_mode\":\"floor\"")), "rounding_mode is not supported" },
        { OF_Y(KW("y", "torch.nn.functional.relu", R("w"), "\"inplace\":true")), "inplace" },
        { OF_Y(KW("y", "torch.nn.functional.softplus", R("w"), "\"beta\":2")), "softplus has beta" },
        { OF_Y(CALL("y", "torch.exp", "\"text\"")), "torch.exp needs tensors or numbers" },
        { OF_Y(CALL("y", "torch.exp", R("later"))), "'later', which is not an earlier node" },
        { OF_Y(CALL("y", "torch.exp", R("y"))), "'y', which is not an earlier node" },
        { OF_Y(CALL("y", "torch.exp", "{\"code\":1}")), "an argument of the kind 'code'" },
        { OF_Y(CALL("y", "torch.exp", "{}")), "an argument is an empty object" },
        { OF_Y(CALL("y", "torch.exp", "{\"ref\":\"w\",\"b\":1}")), "has 'ref' and 'b'" },
        { OF_Y(CALL("y", "torch.exp", "[[[[[[1]]]]]]")), "nested deeper than 6" },
        { OF_Y(CALL("y", "torch.exp", "[[[[[1]]]]]")), "torch.exp needs tensors or numbers" },
        { OF_Y(KW("y", "torch.sum", R("w"), "\"dim\":[[[[[[1]]]]]]")), "nested deeper than 6" },
        { OF_Y(KW("y", "torch.sum", R("w"), "\"dim\":[[[[[1]]]]]")), "dim must be an integer" },
        /* a dtype, a condition and a size decide, but carry no gradient */
        { OF_Y(METHOD("y", "type_as", R("w") "," R("logprobs"))), "does not depend on logprobs" },
        { OF_Y(CALL("a", "operator.gt", R("w") ",0") "," METHOD("b", "type_as", R("logprobs") "," R("a")) "," CALL(
              "y", "torch.where", R("b") "," R("w") ",0")),
          "does not depend on logprobs" },
        { OF_Y(METHOD("a", "sum", R("logprobs")) "," METHOD("y", "reshape", R("w") "," R("a"))),
          "does not depend on logprobs" },
        { OF_Y(CALL("y", "torch.exp", "9007199254740994")), "beyond 2^53" },
        { OF_Y(CALL("y", "torch.exp", "{\"float\":\"x\"}")), "'x' is not a number" },
        { OF_Y(CALL("y", "operator.add", R("w") "," R("w"))), "does not depend on logprobs" },
        { OF_Y(METHOD("y", "detach", R("logprobs"))), "does not depend on logprobs" },
        { OF_Y(CALL("y", "operator.gt", R("logprobs") ",0")), "does not depend on logprobs" },
        { OF_Y(METHOD("y", "long", R("logprobs"))), "does not depend on logprobs" },
        { OF_Y(METHOD("y", "to", R("w") ",{\"dtype\":\"bfloat16\"}")),
          "dtype 'bfloat16' is not supported in a custom loss; use float32" },
        { OF_Y(METHOD("y", "to", R("w") ",1.5")), "it needs a dtype" },
        { OF_Y(KW("y", "torch.softmax", R("w") ",0", "\"dtype\":{\"dtype\":\"bfloat16\"}")),
          "dtype 'bfloat16' is not supported" },
        { OF_Y(KW("y", "torch.nn.functional.softmax", R("w") ",0", "\"dtype\":{\"dtype\":\"bfloat16\"}")),
          "dtype 'bfloat16' is not supported" },
        { OF_Y(METHOD("y", "type", R("logprobs") ",\"torch.LongTensor\"")), "it needs a dtype" },
        { OF_Y(METHOD("y", "sum", R("w") ",1")), "dim 1 is outside a tensor of rank 1" },
        { OF_Y(METHOD("y", "sum", R("w") ",-2")), "dim -2 is outside" },
        { OF_Y(METHOD("y", "sum", R("w") ",0.5")), "dim must be an integer" },
        { OF_Y(METHOD("y", "sum", R("w") ",0,1")), "keepdim must be true or false" },
        { OF_Y(METHOD("y", "max", R("w") ",0")), "max with dim is not supported in a custom loss" },
        { OF_Y(METHOD("y", "cumsum", R("w") ",[0]")), "cumsum needs one dim" },
        { OF_Y(METHOD("y", "squeeze", R("w"))), "squeeze needs dim" },
        { OF_Y(CALL("y", "torch.nn.functional.softmax", R("w"))), "softmax needs one dim" },
        { OF_Y(METHOD("y", "clamp", R("w"))), "clamp needs min or max" },
        { OF_Y(METHOD("y", "reshape", R("w"))), "reshape needs one or two sizes" },
        { OF_Y(METHOD("y", "reshape", R("w") ",1,1,1")), "reshape needs one or two sizes" },
        { OF_Y(METHOD("y", "reshape", R("w") "," R("w"))), "sizes must be integers" },
        { OF_Y(METHOD("y", "unsqueeze", R("w") ",2")), "unsqueeze to rank 2 at this dim" },
        { OF_Y(METHOD("y", "dot", R("w") ",2")), "dot needs two tensors of rank 1" },
        { OF_Y(KW("y", "torch.nn.functional.mse_loss", R("w") ",2", "\"reduction\":\"max\"")),
          "reduction must be mean, sum or none" },
        { OF_Y(CALL("y", "torch.full_like", R("w") "," R("w"))), "full_like needs one number" },
        { OF_Y(CALL("y", "torch.ones_like", R("w") ",1")), "ones_like has one argument" },
        { OF_Y(CALL("y", "getattr", R("w") ",\"grad\"")), "attribute 'grad' is not supported" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",{\"tuple\":[0,0]}")),
          "more indices than the tensor has dimensions" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",{\"slice\":[0,2,0]}")), "must be positive" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",{\"slice\":[0,2]}")), "start, stop and step" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",{\"slice\":[" R("w") ",2,1]}")),
          "bounds of a slice must be integers" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",{\"tuple\":[{\"ellipsis\":true},{\"ellipsis\":true}]}")),
          "two ellipses" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",{\"tuple\":[null,null]}")), "rank 3" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",\"x\"")), "an index must be" },
        { OF_Y(CALL("y", "operator.getitem", "{\"tuple\":[1]},0")), "only tensors" },
        { OF_Y(CALL("w", "torch.exp", R("w"))), "two nodes have the name 'w'" },
        { OF_Y("{\"op\":\"call_function\",\"name\":\"y\",\"target\":\"torch.exp\",\"stack\":1}"),
          "a node has the unknown field 'stack'" },
        { OF_Y("{\"op\":\"call_function\",\"name\":\"\",\"target\":\"torch.exp\"}"),
          "the name of a node must have 1 to 128 characters" },
        { GRAPH(INPUTS OUTPUT(R("logprobs"), "")), "a scalar loss, not a tensor of rank 1" },
        { GRAPH(INPUTS OUTPUT("1", "")), "its loss as a tensor" },
        { GRAPH(INPUTS NODE("output", "o", "o", R("w"))), "must return (loss, metrics)" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs"))), "it has no output" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "") "," METHOD("m", "sum", R("w"))),
          "a node follows the output" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "\"loss:sum\":" R("l"))),
          "metric 'loss:sum' must be named custom/<name>:sum" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "\"custom/A:sum\":" R("l"))),
          "metric 'custom/A:sum' must be named" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "\"custom/:sum\":" R("l"))),
          "must be named" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "\"custom/a:max\":" R("l"))),
          "must be named" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "\"custom/a:sum\":" R("w"))),
          "metric 'custom/a:sum' must be a scalar tensor" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "\"custom/a\\u0000b:sum\":" R("l"))),
          "must be named" },
        { OF_Y(METHOD("y", "sum", R("w") ",[0,-1]")), "dim 0 is given twice" },
        { OF_Y(KW("y", "torch.nn.functional.relu", R("w"), "\"inplace\":1")), "inplace" },
        { OF_Y(CALL("y", "operator.getitem", R("w") ",[null,0,null,{\"ellipsis\":true},0,0]")),
          "an index has more than 5 items" },
        { OF_Y(METHOD("y", "unsqueeze", R("w") ",0.0")), "unsqueeze to rank 2 at this dim" },
        { OF_Y(METHOD("y", "size", R("w") ",1") "," METHOD("z", "sum", R("w"))), "dim 1 is outside" },
        { OF_Y("{\"op\":\"call_function\",\"name\":\"a\\n\\u0007\\u00e9\",\"target\":\"x\\ty\"}"),
          "node 'a  \u00e9': operation x y is not supported" },
        { OF_Y("{\"op\":\"call_function\",\"name\":\"a\\u0000\",\"target\":\"torch.exp\"}"),
          "the name of a node must have 1 to 128 characters" },
        { GRAPH(NODE("placeholder", "logprobs", "logprobs", "") "," OUTPUT("1", "")),
          "the first nodes must be the inputs" },
        { GRAPH(NODE("placeholder", "w", "w", "")), "the placeholder 'w' is not input 0" },
        { GRAPH(INPUTS NODE("placeholder", "v", "v", "")), "the placeholder 'v' is not input 2" },
        { GRAPH(NODE("placeholder", "logprobs", "logprobs", "1")), "must not have a default" },
        { "{\"format\":2,\"nodes\":[]}", "format 2 is not supported; 1 is" },
        { "{\"format\":1}", "it has no nodes" },
        { "{\"nodes\":[],\"code\":1}", "it has no output" },
        { "{\"code\":1}", "the graph has the unknown field 'code'" },
        { "[]", "" },
        { "{\"nodes\":[1]}", "" },
        { "{\"nodes\":", "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(rows[i].nodes, two, 2, rows[i].text);
}

TEST(inputs_of_a_graph_are_checked)
{
    const char *g = OF_Y(CALL("y", "operator.mul", R("w") "," R("logprobs")));
    tke_graph_input many[17] = { { "logprobs", 1 } };
    char names[17][8];
    for (size_t i = 1; i < 17; i++) {
        snprintf(names[i], sizeof names[i], "x%zu", i);
        many[i] = (tke_graph_input){ names[i], 1 };
    }
    char longest[66];
    memset(longest, 'x', 65);
    longest[65] = '\0';
    refused(g, many, 17, "it has 17 inputs; 1 to 16 are possible");
    refused(g, many, 0, "it has 0 inputs");
    refused(g, &two[1], 1, "first input, and no other, must be logprobs");
    refused(g, (tke_graph_input[]){ two[0], two[0] }, 2, "first input, and no other");
    refused(g, (tke_graph_input[]){ { "logprobs", 0 } }, 1, "logprobs has rank 0; it must be 1 or 2");
    refused(g, (tke_graph_input[]){ two[0], { "w", 3 } }, 2, "w has rank 3; it must be 0, 1 or 2");
    refused(g, (tke_graph_input[]){ two[0], { "w", -1 } }, 2, "w has rank -1");
    refused(g, (tke_graph_input[]){ two[0], { "W", 1 } }, 2, "the name of input 1 must have");
    refused(g, (tke_graph_input[]){ two[0], { "1w", 1 } }, 2, "the name of input 1 must have");
    refused(g, (tke_graph_input[]){ two[0], { longest, 1 } }, 2, "the name of input 1 must have");
    refused(g, (tke_graph_input[]){ two[0], { longest + 1, 1 } }, 2, "placeholder 'w' is not");
    refused(g, (tke_graph_input[]){ two[0], two[1], two[1] }, 3, "two inputs have the name 'w'");
    tinkc_error err = { 0 };
    assert_null(tke_graph_new(&(tke_graph_spec){ "", two, 2, tkc_str(g) }, &err));
    assert_non_null(strstr(err.message, "the name of a custom loss must have 1 to 128"));
}

/* n nodes, inputs and output included. */
static char *long_graph(size_t n)
{
    static char text[1 << 17];
    size_t used = (size_t)snprintf(text, sizeof text, "{\"nodes\":[%s", INPUTS);
    for (size_t i = 0; i + 4 < n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "{\"op\":\"call_function\",\"name\":\"n%zu\",\"target\":"
                                 "\"operator.neg\",\"args\":[{\"ref\":\"logprobs\"}]},",
                                 i);
    (void)snprintf(text + used, sizeof text - used, "%s,%s]}", METHOD("loss", "sum", R("logprobs")),
                   OUTPUT(R("loss"), ""));
    return text;
}

/* A loss with n metrics; a call with n keyword arguments. */
static char *many_members(size_t n, bool metrics)
{
    static char text[1 << 15], members[1 << 13];
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(members + used, sizeof members - used,
                                 metrics ? "%s\"custom/%zu:sum\":{\"ref\":\"l\"}" : "%s\"k%zu\":1", i ? "," : "", i);
    (void)snprintf(text, sizeof text,
                   "{\"nodes\":[%s{\"op\":\"call_method\",\"name\":\"l\",\"target\":\"sum\",\"args\":["
                   "{\"ref\":\"logprobs\"}],\"kwargs\":{%s}},{\"op\":\"output\",\"name\":\"o\","
                   "\"target\":\"o\",\"args\":[{\"tuple\":[{\"ref\":\"l\"},{\"dict\":{%s}}]}]}]}",
                   INPUTS, metrics ? "" : members, metrics ? members : "");
    return text;
}

static tke_graph *accepted(const char *nodes)
{
    tinkc_error err = { 0 };
    tke_graph *g = tke_graph_new(&(tke_graph_spec){ "mine", two, 2, tkc_str(nodes) }, &err);
    if (!g)
        fail_msg("%s: %s", nodes, err.message);
    return g;
}

/* What a client may send is exactly so much. */
TEST(limits_of_texts)
{
    char name[TKE_GRAPH_TEXT + 2], node[400];
    for (size_t n = TKE_GRAPH_TEXT; n <= TKE_GRAPH_TEXT + 1; n++) {
        tinkc_error err = { 0 };
        memset(name, 'x', n);
        name[n] = '\0';
        snprintf(node, sizeof node, "{\"nodes\":[{\"op\":\"a\",\"name\":\"%s\",\"target\":\"b\"}]}", name);
        refused(node, two, 2, n > TKE_GRAPH_TEXT ? "the name of a node must" : "must be the inputs");
        tke_graph *g = tke_graph_new(&(tke_graph_spec){ name, two, 2, tkc_str(many_members(0, true)) }, &err);
        assert_true((g != NULL) == (n == TKE_GRAPH_TEXT));
        tke_graph_free(g);
    }
    refused(many_members(TKE_GRAPH_METRICS + 1, true), two, 2, "it returns more than 32 metrics");
    tke_graph *g = accepted(many_members(TKE_GRAPH_METRICS, true));
    assert_int_equal(tke_graph_n_metrics(g), TKE_GRAPH_METRICS);
    assert_false(tke_graph_metric_is_mean(g, 0));
    tke_graph_free(g);
    for (int n = TKE_GRAPH_NAME; n <= TKE_GRAPH_NAME + 1; n++) {
        char text[1000];
        snprintf(text, sizeof text,
                 GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," OUTPUT(R("l"), "\"custom/%.*s:sum\":" R("l"))), n,
                 name);
        if (n == TKE_GRAPH_NAME)
            tke_graph_free(accepted(text));
        else
            refused(text, two, 2, "must be named");
    }
    refused(many_members(64, false), two, 2, "sum with 'k0' is not supported");
    refused(many_members(65, false), two, 2, "a dict has more than 64 members");
    tke_graph_free(accepted(OF_Y(CALL("y", "operator.add", R("logprobs") ",9007199254740992"))));
}

/* Too many instructions are refused, though the nodes are not too many. */
TEST(limit_of_instructions)
{
    static char text[1 << 17];
    for (size_t n = 408; n <= 409; n++) { /* 5 of each, and 4 */
        size_t used = (size_t)snprintf(text, sizeof text, "{\"nodes\":[%s", INPUTS);
        for (size_t i = 0; i < n; i++)
            used += (size_t)snprintf(text + used, sizeof text - used,
                                     "{\"op\":\"call_function\",\"name\":\"n%zu\",\"target\":"
                                     "\"torch.add\",\"args\":[1,2,3]},",
                                     i);
        (void)snprintf(text + used, sizeof text - used, "%s,%s,%s]}", METHOD("m", "neg", R("logprobs")),
                       METHOD("loss", "sum", R("m")), OUTPUT(R("loss"), ""));
        if (n == 409)
            refused(text, two, 2, "node 'loss': it has more than 2048 steps");
        else
            tke_graph_free(accepted(text));
    }
}

/* w[:, None] * w, and its sum. */
#define SQUARE                                                                                                         \
    OF_Y(CALL("a", "operator.getitem", R("w") ",{\"tuple\":[{\"slice\":[null,null,null]},null]}") "," CALL(            \
        "b", "operator.mul", R("a") "," R("w")) "," METHOD("c", "sum", R("b")) "," CALL("y",                           \
                                                                                        "operator"                     \
                                                                                        ".mul",                        \
                                                                                        R("c") "," R("logprobs")))

/* Inputs may be longer than log-probs: others wait only so long for a datum of few tokens. Reading
 * counts as computing does. */
TEST(limit_of_work)
{
    static const struct {
        size_t tokens, n; /* elements of w */
        const char *text; /* NULL = fine */
    } rows[] = {
        { 1, 300, NULL },
        { 1, 400, "node 'c' (sum): it takes more than 294912 elements to compute" },
        { 40, 400, NULL },
        { 1, 1000, "node 'b' (operator.mul): it takes more than 294912 elements" },
    };
    static double lp[40], grads[40];
    static float w[1000];
    tke_graph *g = accepted(SQUARE);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tke_graph_tensor input = { w, true, rows[i].n, 1 };
        tke_graph_result result = { .grads = grads };
        bool ok = tke_graph_run(g, &(tke_graph_datum){ lp, rows[i].tokens, 1, &input, NULL }, &result, &err);
        if (ok != !rows[i].text || (!ok && !strstr(err.message, rows[i].text)))
            fail_msg("row %zu: %s", i, err.message);
    }
    static float list[80000]; /* a mask is read, too: the second time it is too much */
    tke_graph *masked = accepted(
        OF_Y(CALL("a", "operator.gt", R("w") ",0") "," CALL("b", "operator.getitem", R("w") "," R("a")) "," CALL(
            "c", "operator.getitem", R("w") "," R("a")) "," METHOD("y", "neg", R("logprobs"))));
    tke_graph_tensor longer = { list, true, 80000, 1 };
    tinkc_error why = { 0 };
    tke_graph_result none = { .grads = NULL };
    assert_false(tke_graph_run(masked, &(tke_graph_datum){ lp, 1, 1, &longer, NULL }, &none, &why));
    assert_non_null(strstr(why.message, "node 'c' (operator.getitem): it takes more than 294912"));
    tke_graph_free(masked);
    /* many more tokens do not mean any amount */
    static double many[10000];
    static float wide[6000];
    tke_graph_tensor input = { wide, true, 6000, 1 };
    tke_graph_result result = { .grads = NULL };
    tinkc_error err = { 0 };
    /* clang-format off */
    tke_graph *twice = accepted(OF_Y(
        CALL("a", "operator.getitem", R("w") ",{\"tuple\":[{\"slice\":[null,2500,null]},null]}") ","
        CALL("b", "operator.mul", R("a") "," R("w")) ","
        METHOD("c0", "sum", R("b")) "," METHOD("c1", "amax", R("b")) ","
        METHOD("c2", "amin", R("b")) "," METHOD("c3", "mean", R("b")) ","
        METHOD("c4", "sum", R("b")) "," METHOD("c5", "sum", R("b")) ","
        METHOD("c6", "sum", R("b")) "," METHOD("c7", "sum", R("b")) ","
        METHOD("c8", "sum", R("b")) "," METHOD("c9", "sum", R("b")) ","
        METHOD("d0", "sum", R("b")) "," METHOD("d1", "sum", R("b")) ","
        METHOD("d2", "sum", R("b")) "," METHOD("d3", "sum", R("b")) ","
        METHOD("d4", "sum", R("b")) "," METHOD("d5", "sum", R("b")) ","
        METHOD("d6", "sum", R("b")) "," METHOD("y", "neg", R("logprobs"))));
    /* clang-format on */
    assert_false(tke_graph_run(twice, &(tke_graph_datum){ many, 10000, 1, &input, NULL }, &result, &err));
    assert_non_null(strstr(err.message, "node 'd6' (sum): it takes more than 268435456 elements"));
    tke_graph_free(twice);
    _Atomic(bool) stop = false;
    err = (tinkc_error){ 0 };
    tke_graph_datum datum = { lp, 1, 1, &(tke_graph_tensor){ w, true, 2, 1 }, &stop };
    assert_true(tke_graph_run(g, &datum, &result, &err));
    stop = true;
    assert_false(tke_graph_run(g, &datum, &result, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    tke_graph_free(g);
}

TEST(graphs_and_inputs_have_limits)
{
    tinkc_error err = { 0 };
    refused(long_graph(TKE_GRAPH_NODES + 1), two, 2, "it has more than 512 nodes");
    tke_graph *longest = tke_graph_new(&(tke_graph_spec){ "x", two, 2, tkc_str(long_graph(TKE_GRAPH_NODES)) }, &err);
    assert_non_null(longest);
    tke_graph_free(longest);
    tke_graph *g = tke_graph_new(
        &(tke_graph_spec){
            "x", two, 2,
            tkc_str(OF_Y(CALL("a", "operator.getitem",
                              R("logprobs") ",{\"tuple\":[{\"slice\":[null,null,"
                                            "null]},null]}") "," CALL("y", "operator.mul", R("a") "," R("w")))) },
        &err);
    assert_non_null(g);
    enum { N = 5000 }; /* 5000 x 5000 numbers are 190 MiB, and their gradients as much */
    static double lp[N], grads[N];
    static float w[N];
    tke_graph_tensor input = { w, true, N, 1 };
    tke_graph_result result = { .grads = grads };
    tke_graph_datum datum = { lp, N, 1, &input, NULL };
    assert_false(tke_graph_run(g, &datum, &result, &err));
    assert_non_null(strstr(err.message, "the values of this datum need more than 256 MiB"));
    err = (tinkc_error){ 0 };
    result.grads = NULL; /* without gradients it fits */
    assert_true(tke_graph_run(g, &datum, &result, &err));
    input.rows = 0; /* nothing is a size, too */
    result.grads = grads;
    assert_true(tke_graph_run(g, &datum, &result, &err));
    assert_true(result.loss == 0 && grads[0] == 0);
    tke_graph_free(g);
    tke_graph_free(NULL);
}

/* ---- a datum ---- */

/* None of w is above 100; e has no elements. */
#define NONE(nodes)                                                                                                    \
    OF_Y(CALL("a", "operator.gt", R("w") ",100") "," CALL("e", "operator.getitem", R("logprobs") "," R("a")) "," nodes)

/* Sequences of which nothing is left have sums, shapes and answers, as in PyTorch. */
TEST(nothing_is_left)
{
    static const struct {
        const char *nodes;
        double loss;
    } rows[] = {
        { NONE(METHOD("y", "flatten", R("e"))), 0 },
        { NONE(METHOD("y", "reshape", R("e") ",-1")), 0 },
        { NONE(METHOD("y", "reshape", R("e") ",-1,1")), 0 },
        { NONE(METHOD("y", "reshape", R("e") ",0,5")), 0 },
        { NONE(METHOD("b", "reshape", R("e") ",0,5") "," METHOD("c", "sum", R("b") ",0") "," CALL("y", "operator.add",
                                                                                                  R("c") "," R("c"))),
          0 },
        { NONE(METHOD("y", "cumsum", R("e") ",0")), 0 },
        { NONE(METHOD("b", "any", R("e")) "," CALL("y", "torch.where", R("b") ",0," R("logprobs"))), -0.875 },
        { NONE(METHOD("b", "all", R("e")) "," CALL("y", "torch.where", R("b") "," R("logprobs") ",0")), -0.875 },
        /* without dim, a dimension is kept as well */
        { OF_Y(KW("b", "torch.amax", R("logprobs"), "\"keepdim\":true") "," CALL("y", "operator.getitem", R("b") ",0")),
          -0.125 },
    };
    double lp[3] = { -0.25, -0.5, -0.125 }, grads[3];
    float w[3] = { 1, 2, 3 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tke_graph_result result = { .grads = grads };
        tke_graph *g = accepted(rows[i].nodes);
        tke_graph_tensor input = { w, true, 3, 1 };
        if (!tke_graph_run(g, &(tke_graph_datum){ lp, 3, 1, &input, NULL }, &result, &err) ||
            fabs(result.loss - rows[i].loss) > 1e-12)
            fail_msg("row %zu: %g %s", i, result.loss, err.message);
        tke_graph_free(g);
    }
}

/* A number compared with itself. */
TEST(equal_numbers_share_the_gradient)
{
#define WITH_ITSELF(how)                                                                                               \
    OF_Y(CALL("a", "operator." how, R("logprobs") "," R("logprobs")) "," CALL("y", "operator.mul",                     \
                                                                              R("a") "," R("logprobs")))
    static const struct {
        const char *nodes;
        double loss;
    } rows[] = { { WITH_ITSELF("lt"), 0 },      { WITH_ITSELF("gt"), 0 },      { WITH_ITSELF("ne"), 0 },
                 { WITH_ITSELF("le"), -0.875 }, { WITH_ITSELF("ge"), -0.875 }, { WITH_ITSELF("eq"), -0.875 } };
#undef WITH_ITSELF
    double lp[3] = { -0.25, -0.5, -0.125 };
    float w[3] = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tke_graph_result result = { .grads = NULL };
        tke_graph *g = accepted(rows[i].nodes);
        tke_graph_tensor input = { w, true, 3, 1 };
        assert_true(tke_graph_run(g, &(tke_graph_datum){ lp, 3, 1, &input, NULL }, &result, &err));
        assert_true(result.loss == rows[i].loss);
        tke_graph_free(g);
    }
}

/* Integers stay integers. */
TEST(integers_stay_integers)
{
    static const struct {
        const char *nodes, *text; /* NULL = fine */
    } rows[] = {
        { OF_Y(CALL("a", "operator.pow", R("w") ",2") "," CALL("y", "operator.mul", R("a") "," R("logprobs"))), NULL },
        { OF_Y(CALL("a", "operator.pow", R("w") ",-1") "," CALL("y", "operator.mul", R("a") "," R("logprobs"))),
          "integers have no negative powers; use .float() first" },
        { OF_Y(CALL("a", "operator.pow", R("w") ",-1.0") "," CALL("y", "operator.mul", R("a") "," R("logprobs"))),
          NULL },
        { OF_Y(CALL("a", "operator.pow", R("w") ",0") "," CALL("y", "operator.mul", R("a") "," R("logprobs"))), NULL },
        { OF_Y(METHOD("a", "sum", R("w")) "," CALL("b", "operator.sub",
                                                   R("a") ",3") "," METHOD("y", "reshape", R("logprobs") "," R("b"))),
          NULL },
        { OF_Y(METHOD("a", "mean", R("w")) "," CALL("b", "operator.add",
                                                    R("a") ",1") "," METHOD("y", "reshape", R("logprobs") "," R("b"))),
          "sizes must be integers" },
        { OF_Y(KW("a", "torch.full_like", R("logprobs") ",2",
                  "\"device\":{\"device\":\"cpu\"}") "," CALL("y", "operator.mul", R("a") "," R("logprobs"))),
          NULL },
        { OF_Y(CALL("y", "operator.pow", R("logprobs") ",-1")), NULL },
        { OF_Y(METHOD("y", "type_as", R("logprobs") "," R("w"))),
          "its loss does not depend on logprobs: integers carry no gradient" },
        { OF_Y(METHOD("a", "type_as", R("logprobs") "," R("w")) "," CALL("y", "operator.mul", R("a") ",0.5")),
          "its loss does not depend on logprobs: integers carry no gradient" },
        { OF_Y(METHOD("y", "reshape", R("logprobs") ",3.0")), "sizes must be integers" },
        { OF_Y(METHOD("y", "reshape", R("logprobs") ",1,3.0")), "sizes must be integers" },
        { OF_Y(METHOD("a", "max", R("w")) "," METHOD("y", "reshape", R("logprobs") "," R("a"))), NULL },
    };
    double lp[3] = { -0.25, -0.5, -0.125 }, grads[3];
    int64_t w[3] = { 1, 2, 3 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tke_graph_result result = { .grads = grads };
        tke_graph *g = accepted(rows[i].nodes);
        tke_graph_tensor input = { w, false, 3, 1 };
        bool ok = tke_graph_run(g, &(tke_graph_datum){ lp, 3, 1, &input, NULL }, &result, &err);
        if (ok != !rows[i].text || (!ok && !strstr(err.message, rows[i].text)))
            fail_msg("row %zu: '%s'", i, err.message);
        tke_graph_free(g);
    }
}

TEST(data_without_a_finite_result_is_refused)
{
    static const struct {
        const char *nodes, *text;
    } rows[] = {
        { OF_Y(CALL("y", "operator.mul", R("logprobs") ",1e39")), /* finite, but not as a float */
          "its gradient at position 0 is not finite" },
        { OF_Y(CALL("a", "operator.getitem", R("w") ",{\"slice\":[1,null,null]}") "," CALL("y", "operator.mul",
                                                                                           R("logprobs") "," R("a"))),
          "custom loss 'mine', node 'y' (operator.mul): shapes [1, 3] and [1, 2] do not match" },
        { OF_Y(CALL("a", "operator.getitem", R("logprobs") ",3") "," CALL("y", "operator.neg", R("a"))),
          "index 3 is outside a dimension of size 3" },
        { OF_Y(CALL("y", "operator.getitem", R("logprobs") ",-4")), "index -4 is outside" },
        { OF_Y(METHOD("y", "reshape", R("logprobs") ",2")), "3 elements do not have this shape" },
        { OF_Y(METHOD("y", "reshape", R("logprobs") ",-1,-1")), "3 elements do not have" },
        { OF_Y(METHOD("y", "reshape", R("logprobs") ",-1,2")), "3 elements do not have" },
        { OF_Y(METHOD("y", "reshape", R("logprobs") ",-2")), "3 elements do not have" },
        { OF_Y(METHOD("y", "squeeze", R("logprobs") ",0")), "the dim has size 3, not 1" },
        { OF_Y(CALL("a", "operator.invert", R("w")) "," CALL("y", "operator.mul", R("a") "," R("logprobs"))),
          "it needs boolean values; use a comparison" },
        { OF_Y(CALL("a", "operator.gt", R("w") ",0") "," CALL("b", "operator.add", R("a") "," R("a")) "," CALL(
              "y", "operator.mul", R("b") "," R("logprobs"))),
          "boolean values have no arithmetic; use .float() first" },
        { OF_Y(CALL("y", "torch.where", R("w") "," R("logprobs") ",0")), "its condition must be boolean" },
        { OF_Y(CALL("y", "operator.getitem", R("logprobs") "," R("w"))), "only a boolean tensor can be an index" },
        { OF_Y(CALL("a", "operator.getitem", R("w") ",{\"slice\":[1,null,null]}") "," CALL(
              "b", "operator.gt", R("a") ",0") "," CALL("y", "operator.getitem", R("logprobs") "," R("b"))),
          "the mask has another size" },
        { OF_Y(
              CALL("a", "operator.getitem", R("logprobs") ",{\"slice\":[3,null,null]}") "," METHOD("y", "max", R("a"))),
          "there are no elements" },
        { OF_Y(CALL("y", "torch.log", R("logprobs"))), "the loss is not finite" },
        { OF_Y(CALL("a", "operator.add", R("logprobs") ",0.5") "," CALL("y", "torch.sqrt", R("a"))),
          "its gradient at position 1 is not finite" },
        { GRAPH(INPUTS METHOD("l", "sum", R("logprobs")) "," METHOD("m", "log", R("l")) "," OUTPUT(
              R("l"), "\"custom/a:sum\":" R("m"))),
          "metric 'custom/a:sum' is not finite" },
    };
    double lp[3] = { -0.25, -0.5, -0.125 }, grads[3];
    float w[3] = { 1, 2, 3 };
    tke_graph_tensor input = { w, true, 3, 1 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tke_graph_result result = { .grads = grads };
        tke_graph *g = tke_graph_new(&(tke_graph_spec){ "mine", two, 2, tkc_str(rows[i].nodes) }, &err);
        if (!g)
            fail_msg("row %zu: %s", i, err.message);
        if (tke_graph_run(g, &(tke_graph_datum){ lp, 3, 1, &input, NULL }, &result, &err) ||
            err.code != TINKC_E_BAD_REQUEST || !strstr(err.message, rows[i].text))
            fail_msg("row %zu: '%s', not '%s'", i, err.message, rows[i].text);
        tke_graph_free(g);
    }
}

/* ---- built-in losses as nodes ---- */

#define RATIO                                                                                                          \
    CALL("off", "operator.sub", R("logprobs") "," R("q"))                                                              \
    "," CALL("r", "torch.exp", R("off")) "," CALL("ra", "operator.mul", R("r") "," R("advantages")) ","
#define POLICY                                                                                                         \
    NODE("placeholder", "logprobs", "logprobs", "")                                                                    \
    "," NODE("placeholder", "q", "q", "") "," NODE("placeholder", "advantages", "advantages", "") ","
#define IMPORTANCE                                                                                                     \
    GRAPH(POLICY RATIO METHOD("s", "sum", R("ra")) "," CALL("l", "operator.neg", R("s")) "," OUTPUT(R("l"), ""))
#define PPO                                                                                                            \
    GRAPH(POLICY RATIO CALL("c", "torch.clamp", R("r") ",0.8,1.2") "," CALL(                                           \
        "ca", "operator.mul",                                                                                          \
        R("c") "," R("advantages")) "," CALL("m", "torch.min",                                                         \
                                             R("ra") "," R(                                                            \
                                                 "ca")) "," METHOD("s", "sum",                                         \
                                                                   R("m")) "," CALL("l", "operator.neg",               \
                                                                                    R("s")) "," OUTPUT(R("l"), ""))
#define DRO                                                                                                                   \
    GRAPH(POLICY CALL("off", "operator.sub", R("logprobs") "," R("q")) "," METHOD("sq", "square", R("off")) "," CALL(         \
        "h", "operator.mul",                                                                                                  \
        R("sq") ",0.025") "," CALL("al", "operator.mul",                                                                      \
                                   R("advantages") "," R(                                                                     \
                                       "logprobs")) "," CALL("d", "operator.sub",                                             \
                                                             R("al") "," R(                                                   \
                                                                 "h")) "," METHOD("s", "sum",                                 \
                                                                                  R("d")) "," CALL("l",                       \
                                                                                                   "operator.neg",            \
                                                                                                   R("s")) "," OUTPUT(R("l"), \
                                                                                                                      ""))

TEST(equal_to_the_built_in_ones)
{
    static const struct {
        const char *name, *nodes;
    } rows[] = { { "importance_sampling", IMPORTANCE }, { "ppo", PPO }, { "dro", DRO } };
    static const tke_graph_input inputs[] = { { "logprobs", 1 }, { "q", 1 }, { "advantages", 1 } };
    enum { N = 6 };
    const float lp[N] = { -0.5f, -1, -2, -0.25f, -3, -1.5f };
    const float q[N] = { -1, -0.5f, -2.125f, -0.25f, -2.9f, -2 };
    const float a[N] = { 1, -2, 0.5f, 1.5f, -1, -0.75f };
    const tke_graph_tensor tensors[] = { { q, true, N, 1 }, { a, true, N, 1 } };
    double wide[N], grads[N];
    for (size_t i = 0; i < N; i++)
        wide[i] = (double)lp[i];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tke_loss loss;
        tke_loss_sums sums = { 0 };
        tke_graph_result result = { .grads = grads };
        tke_datum d = { .n = N, .k = 1, .logprobs = q, .advantages = a };
        assert_true(tke_loss_parse(&loss, tkc_str(rows[i].name), NULL, 0, false, &err));
        tke_graph *g = tke_graph_new(&(tke_graph_spec){ rows[i].name, inputs, 3, tkc_str(rows[i].nodes) }, &err);
        if (!g || !tke_graph_run(g, &(tke_graph_datum){ wide, N, 1, tensors, NULL }, &result, &err))
            fail_msg("%s: %s", rows[i].name, err.message);
        for (size_t t = 0; t < N; t++) {
            float grad;
            tke_loss_token(&loss, &(tke_token){ &d, t, &lp[t], NULL }, &grad, &sums);
            assert_true(fabs((double)grad - grads[t]) < 1e-5);
        }
        assert_true(fabs(sums.loss - result.loss) < 1e-5);
        tke_graph_free(g);
    }
}

/* ---- inputs of a datum ---- */

TEST(inputs_are_bound)
{
    static const struct {
        const char *name;
        bool is_float;
        size_t rows, cols;
        int32_t rank;
        const char *text; /* NULL = fine */
    } rows[] = {
        { "s", true, 1, 1, 0, NULL },
        { "s", false, 1, 1, 0, NULL },
        { "s", true, 2, 1, 0, "datum 7: 's' has rank 1, but loss 'x' declared s with rank 0" },
        { "s", true, 1, 1, 1, "datum 7: 's' has rank 1, but loss 'x' declared s with rank 0" },
        { "s", true, 1, 1, 2, "datum 7: 's' has rank 2, but loss 'x' declared s with rank 0" },
        { "other", true, 1, 1, 0, "datum 7: 's' is missing; loss 'x' needs it" },
        { "w", true, 5, 1, 0, NULL },
        { "w", true, 2, 3, 2, "datum 7: 'w' has rank 2, but loss 'x' declared w with rank 1" },
        { "w", true, 7, 1, 1, "NonFiniteInTensor: datum 7: 'w' holds NaN or infinity at 6" },
        { "target_tokens", true, 2, 1, 1, "datum 7: 'target_tokens' must be int64" },
        { "target_tokens", false, 3, 1, 1, "'target_tokens' has 3 rows of 1, model_input has 2" },
        { "target_tokens", false, 2, 2, 2, "'target_tokens' has rank 2, but loss 'x' declared logprobs with rank 1" },
    };
    static const int64_t whole[8] = { 1, 2, 3 };
    static const float floats[8] = { 1, 2, 3, 4, 5, 6, NAN, 8 };
    const tke_graph_input inputs[] = { { "logprobs", 1 }, { "w", 1 }, { "s", 0 } };
    const char *nodes = GRAPH(
        INPUTS NODE("placeholder", "s", "s", "") "," METHOD("loss", "sum", R("logprobs")) "," OUTPUT(R("loss"), ""));
    tinkc_error err = { 0 };
    tke_graph *g = tke_graph_new(&(tke_graph_spec){ "x", inputs, 3, tkc_str(nodes) }, &err);
    assert_non_null(g);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_input given[4] = { { tkc_str("target_tokens"), false, whole, 2, 1, 1 },
                               { tkc_str("w"), true, floats, 2, 1, 1 },
                               { tkc_str("s"), true, floats, 1, 1, 0 },
                               { tkc_str("unread"), true, floats, 8, 1, 1 } };
        size_t at = tkc_str_is(tkc_str(rows[i].name), "w")               ? 1
                    : tkc_str_is(tkc_str(rows[i].name), "target_tokens") ? 0
                                                                         : 2;
        given[at] =
            (tke_input){ tkc_str(rows[i].name), rows[i].is_float, rows[i].is_float ? (const void *)floats : whole,
                         rows[i].rows,          rows[i].cols,     rows[i].rank };
        tke_datum d = { .n = 2 };
        tkc_arena arena = { 0 };
        err = (tinkc_error){ 0 };
        bool ok = tke_datum_bind_custom(&d, g, given, 4, &arena, 7, &err);
        if (ok != !rows[i].text || (!ok && !strstr(err.message, rows[i].text)))
            fail_msg("row %zu: '%s', not '%s'", i, err.message, rows[i].text ? rows[i].text : "accepted");
        if (ok)
            assert_true(d.k == 1 && d.targets == whole && d.custom[at - 1].data == given[at].data);
        tkc_arena_free(&arena);
    }
    const int32_t tokens[2] = { 0, 1 };
    const int64_t targets[2] = { 3, 9 };
    const tke_graph_tensor none = { 0 };
    tke_datum d = { .tokens = tokens, .n = 2, .k = 1, .targets = targets, .custom = &none };
    err = (tinkc_error){ 0 };
    assert_true(tke_datum_check(&d, 10, 8, 0, &err));
    assert_false(tke_datum_check(&d, 9, 8, 0, &err)); /* any target may have a gradient */
    tke_graph_free(g);
}
