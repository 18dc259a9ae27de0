/* Custom losses: what compiles runs on a small datum of the declared ranks, twice with the same bits,
 * and fills every gradient; what is refused is the client's fault.
 *
 * Six bytes choose ranks, sizes and values; the nodes follow. */
#include "harness.h"

#include <math.h>

#include "train/loss_graph.h"

enum { HEAD = 6, MOST = 64, GUARD = 4 };

typedef struct small_datum {
    tke_graph_input inputs[3];
    tke_graph_tensor tensors[2];
    tke_graph_datum datum;
    double logprobs[MOST];
    float w[MOST];
    int64_t n[MOST];
} small_datum;

/* An input is as long, and as wide, as the log-probs. */
static tke_graph_tensor tensor(const small_datum *s, size_t i, const void *data, bool is_float)
{
    int64_t rank = s->inputs[i].rank;
    return (tke_graph_tensor){ data, is_float, rank ? s->datum.n : 1, rank == 2 ? s->datum.k : 1 };
}

static void make_datum(small_datum *s, const uint8_t *head)
{
    static const float values[] = { 0.5f, -1.5f, 0, 2, -3e38f, 1e-30f, 1, -1 };
    s->inputs[0] = (tke_graph_input){ "logprobs", 1 + head[0] % 2 };
    s->inputs[1] = (tke_graph_input){ "w", head[1] % 3 };
    s->inputs[2] = (tke_graph_input){ "n", head[2] % 3 };
    s->datum.n = 1 + head[3] % 8;
    s->datum.k = s->inputs[0].rank == 2 ? 1 + head[4] % 8 : 1;
    for (size_t i = 0; i < MOST; i++) {
        s->logprobs[i] = -(double)((i * 37 + head[5]) % 11) / 4;
        s->w[i] = values[(i * 5 + head[5]) % (head[5] & 64 ? 8 : 4)];
        s->n[i] = (int64_t)((i + head[5]) % 5) - 1;
    }
    s->tensors[0] = tensor(s, 1, s->w, true);
    s->tensors[1] = tensor(s, 2, s->n, false);
    s->datum.logprobs = s->logprobs;
    s->datum.inputs = s->tensors;
}

typedef struct outcome {
    bool ok;
    double loss;
    double metrics[TKE_GRAPH_METRICS];
    double grads[MOST + GUARD];
    char message[sizeof((tinkc_error *)0)->message];
} outcome;

static void run_once(const tke_graph *g, const small_datum *s, outcome *out)
{
    memset(out, 0xA5, sizeof *out); /* what is not written stays so */
    tke_graph_result result = { .grads = out->grads };
    tinkc_error err = { 0 };
    size_t n = s->datum.n * s->datum.k;
    for (size_t i = 0; i < n; i++)
        out->grads[i] = NAN;
    out->ok = tke_graph_run(g, &s->datum, &result, &err);
    MUST(out->ok == !tkc_failed(&err));
    MUST(out->ok || err.code == TINKC_E_BAD_REQUEST);
    memcpy(out->message, err.message, sizeof out->message);
    for (size_t i = n; i < MOST + GUARD; i++) {
        uint64_t bits;
        memcpy(&bits, &out->grads[i], sizeof bits);
        MUST(bits == 0xA5A5A5A5A5A5A5A5u); /* nothing beyond the end */
    }
    if (!out->ok)
        return;
    out->loss = result.loss;
    MUST(isfinite(out->loss));
    for (size_t i = 0; i < n; i++)
        MUST(isfinite(out->grads[i]));
    for (size_t i = 0; i < tke_graph_n_metrics(g); i++) {
        MUST(isfinite(result.metrics[i]));
        out->metrics[i] = result.metrics[i];
    }
}

static void run_twice(const tke_graph *g, const small_datum *s)
{
    static outcome one, two;
    run_once(g, s, &one);
    run_once(g, s, &two);
    MUST(one.ok == two.ok && !strcmp(one.message, two.message));
    MUST(!one.ok || (!memcmp(&one.loss, &two.loss, sizeof one.loss) &&
                     !memcmp(one.metrics, two.metrics, sizeof one.metrics) &&
                     !memcmp(one.grads, two.grads, sizeof one.grads)));
}

/* Names go to clients as they are. */
static void check_names(const tke_graph *g)
{
    for (size_t i = 0; i < tke_graph_n_metrics(g); i++) {
        tinkc_str name = tkc_str(tke_graph_metric(g, i));
        MUST(tkc_starts_with(name, "custom/"));
        MUST(tkc_ends_with(name, ":sum") || tkc_ends_with(name, ":mean"));
        for (size_t k = 0; k < i; k++)
            MUST(!tkc_str_is(name, tke_graph_metric(g, k)));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static small_datum s;
    if (size < HEAD || size > FUZZ_MAX_INPUT)
        return 0;
    fuzz_room *room = fuzz_begin();
    make_datum(&s, data);
    tinkc_str nodes = tkc_strn((const char *)data + HEAD, size - HEAD);
    tke_graph *g = tke_graph_new(&(tke_graph_spec){ "fuzz", s.inputs, 3, nodes }, &room->err);
    MUST(g || room->err.code == TINKC_E_BAD_REQUEST);
    if (g) {
        check_names(g);
        run_twice(g, &s);
    }
    tke_graph_free(g);
    fuzz_end(room);
    return 0;
}
