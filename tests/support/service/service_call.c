/* service_call.c - see service_call.h. */
#include "base/str.h"
#include "base/thread.h"
#include "support/patience.h"
#include "support/service/service_call.h"
#include "support/test_case.h"

typedef struct waiting {
    tinkc_reply reply;
    pthread_mutex_t lock;
    pthread_cond_t over;
    answer got;
    bool done;
} waiting;

static void on_status(tinkc_reply *r, int32_t status)
{
    ((waiting *)(void *)r)->got.status = status;
}

static void on_header(tinkc_reply *r, const char *name, const char *value)
{
    waiting *w = (waiting *)(void *)r;
    if (strcmp(name, "Content-Type") == 0)
        snprintf(w->got.type, sizeof w->got.type, "%s", value);
    if (strcmp(name, "Location") == 0)
        snprintf(w->got.location, sizeof w->got.location, "%s", value);
}

static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    waiting *w = (waiting *)(void *)r;
    tinkc_error err = { 0 };
    return tkc_buf_add(&w->got.body, data, len, &err);
}

static void over(waiting *w)
{
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->over);
    pthread_mutex_unlock(&w->lock);
}

static void on_end(tinkc_reply *r)
{
    over((waiting *)(void *)r);
}

static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    (void)code, (void)message;
    ((waiting *)(void *)r)->got.status = 0;
    over((waiting *)(void *)r);
}

const char *service_base_url = "";

answer service_call(const tinkc_transport *t, const char *method, const char *path, const char *const *headers,
                    const void *body, size_t len)
{
    tinkc_error err = { 0 };
    waiting w = { .reply = {
                      .status = on_status, .header = on_header, .write = on_write, .end = on_end, .fail = on_fail } };
    pthread_mutex_init(&w.lock, NULL);
    assert_true(tkc_cond_init(&w.over, &err));
    tkc_buf_init(&w.got.body, NULL, TKC_BUF_NO_MAX);
    const tinkc_request request = {
        .method = method, .path = path, .base_url = service_base_url, .headers = headers, .body = { body, len }
    };
    t->send(t->self, &request, &w.reply);
    int64_t deadline = tkc_deadline_ns(PATIENCE_MS);
    pthread_mutex_lock(&w.lock);
    while (!w.done && tkc_cond_wait_until(&w.over, &w.lock, deadline))
        ;
    bool done = w.done;
    pthread_mutex_unlock(&w.lock);
    if (!done)
        fail_msg("%s %s: no answer", method, path);
    tkc_buf_terminate(&w.got.body, &err);
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.over);
    return w.got;
}

void answer_free(answer *a)
{
    tkc_buf_free(&a->body);
}

/* Texts that stay for a while: a ring. */
static const char *keep(const char *text)
{
    static char *ring[64];
    static size_t at;
    char **slot = &ring[at++ % 64];
    free(*slot);
    *slot = strdup(text ? text : "");
    return *slot;
}

const char *hold(const char *text)
{
    typedef struct held {
        struct held *next;
        char text[];
    } held;
    static held *all;
    held *h = malloc(sizeof *h + strlen(text) + 1);
    assert_non_null(h);
    memcpy(h->text, text, strlen(text) + 1);
    h->next = all;
    all = h;
    return h->text;
}

const char *service_json(const tinkc_transport *t, int32_t status, const char *method, const char *path,
                         const char *format, ...)
{
    static const char *const headers[] = { "Content-Type", "application/json", NULL };
    tinkc_error err = { 0 };
    char *body = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&body, format, args);
    va_end(args);
    assert_true(n >= 0);
    answer a = service_call(t, method, path, headers, body, (size_t)n);
    if (a.status != status)
        fail_msg("%s %s %s: status %d, not %d: %s", method, path, body, (int)a.status, (int)status, a.body.data);
    free(body);
    (void)err;
    const char *text = keep(a.body.data);
    answer_free(&a);
    return text;
}

const char *json_field(const char *json, const char *key)
{
    char mark[80];
    snprintf(mark, sizeof mark, "\"%s\":\"", key);
    const char *at = strstr(json, mark);
    if (!at)
        fail_msg("no \"%s\" in %s", key, json);
    at += strlen(mark);
    char *copy = strndup(at, strcspn(at, "\""));
    const char *kept = keep(copy);
    free(copy);
    return kept;
}

double json_number(const char *json, const char *key)
{
    char mark[80];
    snprintf(mark, sizeof mark, "\"%s\":", key);
    const char *at = strstr(json, mark);
    if (!at)
        fail_msg("no \"%s\" in %s", key, json);
    return strtod(at + strlen(mark), NULL);
}

answer service_result(const tinkc_transport *t, const char *request_id, bool proto)
{
    const char *const json[] = { "Accept", "application/json", NULL };
    const char *const pb[] = { "Accept", "application/x-protobuf", NULL };
    char body[300];
    snprintf(body, sizeof body, "{\"request_id\":\"%s\",\"allow_metadata_only\":false}", request_id);
    for (;;) {
        answer a = service_call(t, "POST", "/api/v1/retrieve_future", proto ? pb : json, body, strlen(body));
        if (a.status != 408)
            return a;
        answer_free(&a);
    }
}

const char *service_wait(const tinkc_transport *t, const char *request_id)
{
    answer a = service_result(t, request_id, false);
    if (a.status != 200 || strstr(a.body.data, "\"error\":"))
        fail_msg("%s: %d %s", request_id, (int)a.status, a.body.data);
    const char *text = keep(a.body.data);
    answer_free(&a);
    return text;
}

void service_wait_paused(const tinkc_transport *t, const char *request_id, const char *why)
{
    int64_t began = patience_now_ms();
    const char *said;
    do {
        said = service_json(t, 408, "POST", "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", request_id);
        if (strstr(said, "paused_capacity") && strstr(said, why))
            return;
    } while (patience_lasts(began));
    fail_msg("%s: not paused because \"%s\": %s", request_id, why, said);
}

void service_wait_failure(const tinkc_transport *t, const char *request_id, const char *category, const char *text)
{
    answer a = service_result(t, request_id, true);
    if (a.status != 200 || !strstr(a.body.data, "\"error\":"))
        fail_msg("%s: did not fail: %d %s", request_id, (int)a.status, a.body.data);
    assert_string_equal(json_field(a.body.data, "category"), category);
    if (!strstr(a.body.data, text))
        fail_msg("%s: failed with %s, not with %s", request_id, a.body.data, text);
    answer_free(&a);
}

const char *service_session(const tinkc_transport *t)
{
    return json_field(service_json(t, 200, "POST", "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"t\"}"),
                      "session_id");
}

const char *service_model(const tinkc_transport *t, const char *session, int number, const char *base, int rank,
                          int seed)
{
    const char *promise =
        service_json(t, 200, "POST", "/api/v1/create_model",
                     "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":\"%s\",\"lora_config\":"
                     "{\"rank\":%d,\"seed\":%d}}",
                     session, number, base, rank, seed);
    return json_field(service_wait(t, json_field(promise, "request_id")), "model_id");
}

static void add_numbers(tkc_buf *b, const int *tokens, size_t n, const char *one)
{
    tinkc_error err = { 0 };
    for (size_t i = 0; i < n; i++)
        if (one)
            tkc_buf_printf(b, &err, "%s%s", i ? "," : "", one);
        else
            tkc_buf_printf(b, &err, "%s%d", i ? "," : "", tokens[i]);
}

const char *service_pass(const tinkc_transport *t, const char *model, int64_t seq, const int *tokens, size_t n,
                         bool forward)
{
    tinkc_error err = { 0 };
    tkc_buf b;
    tkc_buf_init(&b, NULL, TKC_BUF_NO_MAX);
    tkc_buf_printf(&b, &err,
                   "{\"model_id\":\"%s\",\"seq_id\":%lld,\"%s\":{\"loss_fn\":\"cross_entropy\","
                   "\"data\":[{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[",
                   model, (long long)seq, forward ? "forward_input" : "forward_backward_input");
    add_numbers(&b, tokens, n - 1, NULL);
    tkc_buf_cstr(&b, "]}]},\"loss_fn_inputs\":{\"target_tokens\":{\"dtype\":\"int64\",\"data\":[", &err);
    add_numbers(&b, tokens + 1, n - 1, NULL);
    tkc_buf_cstr(&b, "]},\"weights\":{\"dtype\":\"float32\",\"data\":[", &err);
    add_numbers(&b, NULL, n - 1, "1");
    tkc_buf_cstr(&b, "]}}}]}}", &err);
    tkc_buf_terminate(&b, &err);
    const char *promise =
        service_json(t, 200, "POST", forward ? "/api/v1/forward" : "/api/v1/forward_backward", "%s", b.data);
    tkc_buf_free(&b);
    return json_field(promise, "request_id");
}

const char *service_step(const tinkc_transport *t, const char *model, int64_t seq, double lr)
{
    return json_field(service_json(t, 200, "POST", "/api/v1/optim_step",
                                   "{\"model_id\":\"%s\",\"seq_id\":%lld,\"adam_params\":{\"learning_rate\":%.9g,"
                                   "\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-8,\"weight_decay\":0.0,"
                                   "\"grad_clip_norm\":0.0}}",
                                   model, (long long)seq, lr),
                      "request_id");
}

double service_loss(const tinkc_transport *t, const char *model, int64_t seq, const int *tokens, size_t n)
{
    return json_number(service_wait(t, service_pass(t, model, seq, tokens, n, true)), "loss:sum");
}
