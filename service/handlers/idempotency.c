/* idempotency.c - what calls with an X-Idempotency-Key made. */
#include "service/handlers/idempotency.h"

#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"

enum { KEEP_MS = 600000 };

typedef struct made_before {
    char *key;  /* of whom, for what */
    char *made; /* a session's id, a copy's path */
    int64_t at_ms;
} made_before;

struct tke_idempotency {
    tkc_map by_key;
};

bool tke_idempotency_open(tke_service *svc, tinkc_error *err)
{
    svc->idempotency = tkc_zalloc(svc->a, sizeof *svc->idempotency, err);
    if (svc->idempotency)
        tkc_map_init(&svc->idempotency->by_key, svc->a);
    return svc->idempotency != NULL;
}

/* NULL allowed. */
static void free_one(tke_service *svc, made_before *one)
{
    if (!one)
        return;
    if (one->key)
        tkc_release_str(svc->a, one->key);
    if (one->made)
        tkc_release_str(svc->a, one->made);
    tkc_release(svc->a, one, sizeof *one);
}

void tke_idempotency_close(tke_service *svc)
{
    if (!svc->idempotency)
        return;
    tke_idempotency_expire(svc, INT64_MAX);
    tkc_map_free(&svc->idempotency->by_key);
    tkc_release(svc->a, svc->idempotency, sizeof *svc->idempotency);
}

void tke_idempotency_expire(tke_service *svc, int64_t now_ms)
{
    const tkc_map_entry *e;
    for (size_t at = 0; (e = tkc_map_next(&svc->idempotency->by_key, &at));) {
        made_before *one = e->value;
        if (now_ms - one->at_ms < KEEP_MS)
            continue;
        tkc_map_remove(&svc->idempotency->by_key, tkc_str(one->key));
        free_one(svc, one);
    }
}

const char *tke_known_key(tke_service *svc, const char *key)
{
    const made_before *one = key ? tkc_map_get(&svc->idempotency->by_key, tkc_str(key)) : NULL;
    return one ? one->made : NULL;
}

void tke_remember_key(tke_call *call, const char *key, const char *made)
{
    tke_service *svc = call->svc;
    made_before *one = tkc_zalloc(svc->a, sizeof *one, &call->err);
    if (!one)
        return;
    one->key = tke_copy(svc, key, &call->err);
    one->made = tke_copy(svc, made, &call->err);
    one->at_ms = tkc_now_ms(svc->clock);
    void *old = NULL;
    bool kept = one->key && one->made &&
                tkc_map_set(&svc->idempotency->by_key, tkc_str(key), one, &old, &call->err);
    free_one(svc, kept ? old : one);
}

bool tke_take_key(tke_call *call, const char *what, const char **key)
{
    const char *given = tke_call_header(call, "X-Idempotency-Key");
    *key = NULL;
    if (!given)
        return true;
    if (strlen(given) > TKE_MAX_IDEMPOTENCY_KEY) {
        tke_refuse(call, 400, "bad_request", "X-Idempotency-Key may have %d bytes",
                   TKE_MAX_IDEMPOTENCY_KEY);
        return false;
    }
    /* With the owner: another client's key of the same text must not return what this one made. */
    *key = tkc_arena_printf(&call->arena, &call->err, "%s %s %s", what, call->owner, given);
    return true;
}
