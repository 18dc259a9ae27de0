/* fuzz_service.c - any request to the service of an engine: it must be answered, whatever it says.
 *
 * The first byte chooses the endpoint, the second how the body is announced; $S, $M and $P in the
 * body become the ids of a session, a model and a sampler that are there. Needs the repository as
 * its working folder, for models/nano. Streams are left out: their answers take as long as they
 * are.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tinkc/engine.h"
#include "tinkc/sys/transport.h"

static tinkc_engine *engine;
static char session[100], model[120], sampler[120];

typedef struct call {
    tinkc_reply reply;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool done;
    int32_t status;
    char body[4096];
    size_t len;
} call;

static void on_status(tinkc_reply *r, int32_t status)
{
    ((call *)(void *)r)->status = status;
}
static void on_header(tinkc_reply *r, const char *name, const char *value)
{
    (void)r, (void)name, (void)value;
}
static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    call *c = (call *)(void *)r;
    size_t room = sizeof c->body - 1 - c->len;
    len = len < room ? len : room;
    memcpy(c->body + c->len, data, len);
    c->len += len;
    c->body[c->len] = '\0';
    return true;
}
static void on_end(tinkc_reply *r)
{
    call *c = (call *)(void *)r;
    pthread_mutex_lock(&c->lock);
    c->done = true;
    pthread_cond_signal(&c->over);
    pthread_mutex_unlock(&c->lock);
}
static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    (void)code, (void)message;
    on_end(r);
}

static void ask(call *c, const char *method, const char *path, const char *const *headers,
                const void *body, size_t len)
{
    const tinkc_transport *t = tinkc_engine_transport(engine);
    memset(c, 0, sizeof *c);
    c->reply = (tinkc_reply){
        .status = on_status, .header = on_header, .write = on_write, .end = on_end, .fail = on_fail
    };
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->over, NULL);
    const tinkc_request request = {
        .method = method, .path = path, .base_url = "", .headers = headers, .body = { body, len }
    };
    t->send(t->self, &request, &c->reply);
    pthread_mutex_lock(&c->lock);
    while (!c->done)
        pthread_cond_wait(&c->over, &c->lock);
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->over);
    if (c->status < 200 || c->status > 599)
        __builtin_trap();
}

static void take(const call *c, const char *key, char *out, size_t size)
{
    const char *at = strstr(c->body, key);
    if (!at)
        __builtin_trap();
    at += strlen(key);
    snprintf(out, size, "%.*s", (int)strcspn(at, "\""), at);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    tinkc_error err = { 0 };
    static call c;
    char body[300];
    const char *const settings[] = { "long_poll_s", "0", "result_grace_s", "0", NULL };
    (void)argc, (void)argv;
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = settings }, &err);
    if (!tinkc_engine_add_model(engine, "nano", "models/nano", &err))
        __builtin_trap();
    const char *hello = "{\"tags\":[],\"sdk_version\":\"x\"}";
    ask(&c, "POST", "/api/v1/create_session", NULL, hello, strlen(hello));
    take(&c, "\"session_id\":\"", session, sizeof session);
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"nano\",\"lora_config\":{"
             "\"rank\":2}}",
             session);
    ask(&c, "POST", "/api/v1/create_model", NULL, body, strlen(body));
    take(&c, "\"model_id\":\"", model, sizeof model);
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"nano\"}",
             session);
    ask(&c, "POST", "/api/v1/create_sampling_session", NULL, body, strlen(body));
    take(&c, "\"sampling_session_id\":\"", sampler, sizeof sampler);
    return 0;
}

static const char *const endpoints[][2] = {
    { "POST", "/api/v1/forward_backward" },
    { "POST", "/api/v1/forward" },
    { "POST", "/api/v1/optim_step" },
    { "POST", "/api/v1/asample" },
    { "POST", "/api/v1/retrieve_future" },
    { "POST", "/api/v1/create_model" },
    { "POST", "/api/v1/create_sampling_session" },
    { "POST", "/api/v1/save_weights" },
    { "POST", "/api/v1/save_weights_for_sampler" },
    { "POST", "/api/v1/load_weights" },
    { "POST", "/api/v1/weights_info" },
    { "POST", "/api/v1/create_session" },
    { "POST", "/api/v1/session_heartbeat" },
    { "POST", "/api/v1/telemetry" },
    { "POST", "/api/v1/get_info" },
    { "POST", "/api/v1/cancel_future" },
    { "GET", NULL }, /* the body is the path */
    { "PUT", NULL },
    { "DELETE", NULL },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const types[] = { "application/json", "application/x-protobuf", "text/x",
                                         "application/json" };
    static const char *const codings[] = { "identity", "identity", "zstd", "gzip" };
    static call c;
    if (size < 2 || size > 60000)
        return 0;
    const char *const *endpoint = endpoints[data[0] % (sizeof endpoints / sizeof *endpoints)];
    const char *const headers[] = { "Content-Type",
                                    types[data[1] & 3],
                                    "Content-Encoding",
                                    codings[data[1] >> 2 & 3],
                                    "Accept",
                                    types[data[1] >> 4 & 1],
                                    NULL };
    size_t n = 0;
    char *body = malloc(size * 60 + 1);
    for (size_t i = 2; i < size; i++) {
        const char *id = data[i] == '$' && i + 1 < size ? data[i + 1] == 'S'   ? session
                                                          : data[i + 1] == 'M' ? model
                                                          : data[i + 1] == 'P' ? sampler
                                                                               : NULL
                                                        : NULL;
        if (id) {
            memcpy(body + n, id, strlen(id));
            n += strlen(id);
            i++;
        } else {
            body[n++] = (char)data[i];
        }
    }
    body[n] = '\0';
    if (endpoint[1])
        ask(&c, endpoint[0], endpoint[1], headers, body, n);
    else
        ask(&c, endpoint[0], body, headers, "{}", 2);
    free(body);
    return 0;
}
