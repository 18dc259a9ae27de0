/* engine_api.c - tinkc_engine_*: the public API of the service, and the in-process transport.
 *
 * The transport hands each request straight to the service: no socket, no thread of its own. It
 * lives in the service, so a client that acquired it may outlive the engine's handle.
 */
#include <unistd.h>

#include "service/core/service_state.h"

/* ---- the transport ---- */

static void transport_acquire(void *self)
{
    tke_service_keep(self);
}

static void transport_release(void *self)
{
    tke_service_drop(self);
}

static void transport_send(void *self, const tinkc_request *request, tinkc_reply *reply)
{
    const tke_service *svc = self;
    static const tke_caller local = { "default", "", 0, NULL, NULL };
    (void)tke_service_handle(self, request, reply, &local, svc->set.openai ? TKE_CALL_OPENAI : 0);
}

static void transport_cancel(void *self, tinkc_reply *reply)
{
    tke_service_cancel(self, reply);
}

static void transport_resume(void *self, tinkc_reply *reply)
{
    tke_service_resume(self, reply);
}

const tinkc_transport *tke_service_transport(tke_service *svc)
{
    return &svc->transport;
}

/* ---- handles ---- */

struct tinkc_engine {
    tke_service *svc;
    pid_t pid; /* in a forked child only the handle's memory is freed */
};

static bool enter(const tinkc_engine *engine, tinkc_error **err, tinkc_error *local)
{
    if (!tkc_enter(err, local))
        return false;
    if (!engine)
        return tkc_fail(*err, TINKC_E_ARGUMENT, "engine is NULL");
    if (engine->pid != getpid())
        return tkc_fail(*err, TINKC_E_FORKED, "the engine belongs to the parent process");
    return true;
}

tinkc_engine *tinkc_engine_new(const tinkc_engine_options *options, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    const tinkc_allocator *a = options ? options->allocator : NULL;
    tinkc_engine *engine = tkc_zalloc(a, sizeof *engine, err);
    if (!engine)
        return NULL;
    engine->svc = tke_service_new(options, err);
    engine->pid = getpid();
    if (!engine->svc) {
        tkc_release(a, engine, sizeof *engine);
        return NULL;
    }
    engine->svc->transport = (tinkc_transport){ .abi = TINKC_TRANSPORT_ABI,
                                                .flags = TINKC_TRANSPORT_LOCAL,
                                                .self = engine->svc,
                                                .acquire = transport_acquire,
                                                .release = transport_release,
                                                .send = transport_send,
                                                .cancel = transport_cancel,
                                                .resume = transport_resume };
    return engine;
}

void tinkc_engine_free(tinkc_engine *engine)
{
    if (!engine)
        return;
    const tinkc_allocator *a = tke_service_allocator(engine->svc);
    /* A forked child has none of the threads: it would wait for them without end. */
    if (engine->pid == getpid())
        tke_service_drop(engine->svc);
    tkc_release(a, engine, sizeof *engine);
}

bool tinkc_engine_import(tinkc_engine *engine, const tinkc_import_options *o, tinkc_text *weights,
                         tinkc_text *sampler, tinkc_error *err)
{
    tinkc_error local;
    return enter(engine, &err, &local) && tke_service_import(engine->svc, o, weights, sampler, err);
}

bool tinkc_engine_add_model(tinkc_engine *engine, const char *name, const char *folder,
                            tinkc_error *err)
{
    tinkc_error local;
    return enter(engine, &err, &local) && tke_service_add_model(engine->svc, name, folder, err);
}

const tinkc_transport *tinkc_engine_transport(tinkc_engine *engine)
{
    return engine ? tke_service_transport(engine->svc) : NULL;
}

bool tinkc_engine_flush(tinkc_engine *engine, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    return enter(engine, &err, &local) && tke_service_flush(engine->svc, timeout_ms, err);
}

const char *tinkc_engine_status(tinkc_engine *engine, tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    tkc_buf text;
    if (!enter(engine, &err, &local))
        return "";
    if (!out) {
        tkc_fail(err, TINKC_E_ARGUMENT, "out is NULL");
        return "";
    }
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    out->len = 0;
    bool ok = tke_service_status(engine->svc, NULL, &text, err) &&
              tinkc_text_append(out, text.data, text.len, err);
    tkc_buf_free(&text);
    return ok ? out->data : "";
}

/* For the server, which lives in a layer above. */
tke_service *tke_engine_service(tinkc_engine *engine)
{
    return engine->svc;
}
