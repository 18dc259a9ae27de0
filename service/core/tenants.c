/* tenants.c - usage and quotas of each owner: requests a minute, tokens a day, bytes of storage.
 *
 * A tenant exists from its first request until the service ends; there are as many as keys. After a
 * restart today's tokens are read from the usage table; what was used in the seconds before a crash
 * may be missing. Refusals name the limit, the usage, and when to retry.
 */
#include "service/core/saved_checkpoints.h"
#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/worker/jobs.h"

#include <stdatomic.h>

#define DAY_US ((int64_t)86400 * 1000000)

struct tke_tenant {
    tke_quota quota;
    int64_t minute, n_requests; /* in that minute */
    int64_t day, n_tokens;      /* on that day */
    size_t kept;                /* of the kept bytes of all */
    /* The most that jobs in flight may still use; given back without a lock. */
    _Atomic int64_t held_tokens, held_bytes;
};

struct tke_tenants {
    pthread_mutex_t lock;
    tkc_map by_owner;
    size_t kept; /* by all */
};

/* Resets the counters of a minute or a day that is over. */
static tke_tenant *turn_over(const tke_service *svc, tke_tenant *t)
{
    int64_t now_us = tkc_wall_us(svc->clock), minute = now_us / 60000000, day = now_us / DAY_US;
    if (t->minute != minute) {
        t->minute = minute;
        t->n_requests = 0;
    }
    if (t->day != day) {
        t->day = day;
        t->n_tokens = 0;
    }
    return t;
}

/* Locks: needs the tenants'. NULL: memory is short, and nothing is limited. */
static tke_tenant *tenant_of(tke_service *svc, const char *owner)
{
    tinkc_error ignored = { 0 };
    tke_tenant *t = tkc_map_get(&svc->tenants->by_owner, tkc_str(owner));
    if (t)
        return turn_over(svc, t);
    t = tkc_zalloc(svc->a, sizeof *t, &ignored);
    if (t && !tkc_map_set(&svc->tenants->by_owner, tkc_str(owner), t, NULL, &ignored)) {
        tkc_release(svc->a, t, sizeof *t);
        return NULL;
    }
    return t ? turn_over(svc, t) : NULL;
}

bool tke_tenants_open(tke_service *svc, tinkc_error *err)
{
    svc->tenants = tkc_zalloc(svc->a, sizeof *svc->tenants, err);
    if (!svc->tenants)
        return false;
    pthread_mutex_init(&svc->tenants->lock, NULL);
    tkc_map_init(&svc->tenants->by_owner, svc->a);
    return true;
}

void tke_tenants_close(tke_service *svc)
{
    const tkc_map_entry *e;
    if (!svc->tenants)
        return;
    for (size_t at = 0; (e = tkc_map_next(&svc->tenants->by_owner, &at));)
        tkc_release(svc->a, e->value, sizeof(tke_tenant));
    tkc_map_free(&svc->tenants->by_owner);
    pthread_mutex_destroy(&svc->tenants->lock);
    tkc_release(svc->a, svc->tenants, sizeof *svc->tenants);
}

/* Takes the tenants' lock, which leave() gives back. NULL: see tenant_of. */
static tke_tenant *enter(tke_service *svc, const char *owner)
{
    pthread_mutex_lock(&svc->tenants->lock);
    return tenant_of(svc, owner);
}

static void leave(tke_service *svc)
{
    pthread_mutex_unlock(&svc->tenants->lock);
}

void tke_service_set_quota(tke_service *svc, const char *owner, const tke_quota *quota)
{
    tke_tenant *t = enter(svc, owner);
    if (t)
        t->quota = *quota;
    leave(svc);
}

tke_quota tke_quota_of(tke_service *svc, const char *owner)
{
    const tke_tenant *t = enter(svc, owner);
    tke_quota quota = t ? t->quota : (tke_quota){ 0 };
    leave(svc);
    return quota;
}

void tke_tenant_used(tke_service *svc, const char *owner, int64_t tokens)
{
    tke_tenant *t = enter(svc, owner);
    if (t)
        t->n_tokens += tokens;
    leave(svc);
}

static bool tenant_row(const tke_row *row, void *user, tinkc_error *err)
{
    char owner[64];
    tinkc_str text = tke_row_text(row, 0);
    (void)err;
    if (text.data && text.len < sizeof owner) {
        memcpy(owner, text.data, text.len);
        owner[text.len] = '\0';
        tke_tenant_used(user, owner, tke_row_i64(row, 1));
    }
    return true;
}

bool tke_tenants_load(tke_service *svc, tinkc_error *err)
{
    int64_t today_us = tkc_wall_us(svc->clock) / DAY_US * DAY_US;
    return tke_store_query(svc->store,
                           "SELECT owner, sum(count) FROM usage WHERE bucket_us >= ? AND kind IN "
                           "(?, ?, ?) GROUP BY owner",
                           tenant_row, svc, err, "iiii", today_us, (int64_t)TKE_USE_TRAINING,
                           (int64_t)TKE_USE_PREFILL, (int64_t)TKE_USE_SAMPLED);
}

int64_t tke_tenant_storage(tke_service *svc, const char *owner)
{
    const tke_checkpoint *c;
    const tke_session *s;
    int64_t sum = 0;
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));) {
        if (c->state == TKE_CKPT_DONE && tkc_cstr_eq(c->owner, owner))
            sum += c->bytes;
    }
    for (size_t at = 0; (s = tke_next_session(svc, &at));) {
        if (s->loss_bytes && tkc_cstr_eq(s->owner, owner))
            sum += (int64_t)s->loss_bytes;
    }
    return sum;
}

/* ---- what is kept in memory ---- */

/* Locks: needs the tenants'. t NULL: nothing is counted. */
static void count_kept(tke_service *svc, tke_tenant *t, size_t bytes, size_t *kept)
{
    if (!t)
        return;
    t->kept += bytes;
    svc->tenants->kept += bytes;
    *kept += bytes;
}

void tke_kept_add(tke_service *svc, const char *owner, size_t bytes, size_t *kept)
{
    count_kept(svc, enter(svc, owner), bytes, kept);
    leave(svc);
}

int32_t tke_kept_take(tke_service *svc, const char *owner, size_t bytes, size_t *kept,
                      tinkc_error *err)
{
    const size_t most_of_key = (size_t)svc->set.max_kept_per_key;
    const size_t most = (size_t)svc->set.max_kept_bytes;
    if (!bytes)
        return 0;
    tke_tenant *t = enter(svc, owner);
    const size_t used = t ? t->kept : 0;
    const bool key_full = used + bytes > most_of_key, full = svc->tenants->kept + bytes > most;
    if (!key_full && !full)
        count_kept(svc, t, bytes, kept);
    leave(svc);
    if (key_full) {
        tkc_fail(
            err, TINKC_E_TOO_LARGE,
            "sessions, metadata, custom losses and links of this key use %zu bytes of memory, %zu "
            "more are over the limit of %zu (max_kept_per_key); finish sessions, or keep less in "
            "each",
            used, bytes, most_of_key);
        /* Not repeated by clients: this key itself must release something first. */
        return 403;
    }
    if (full) {
        tkc_fail(err, TINKC_E_MEMORY,
                 "sessions, metadata, custom losses and links of all keys use the %zu bytes of "
                 "memory that are reserved for them (max_kept_bytes); try again later",
                 most);
        /* Clients repeat it: others may release something meanwhile. */
        return 503;
    }
    return 0;
}

int32_t tke_kept_note(tke_service *svc, const char *owner, const char *text, size_t *kept,
                      tinkc_error *err)
{
    size_t len = text ? strlen(text) : 0;
    if (len <= TKE_MAX_NOTE)
        return tke_kept_take(svc, owner, len, kept, err);
    tkc_fail(err, TINKC_E_BAD_REQUEST, "user_metadata or a note has %zu bytes; at most %d are kept",
             len, TKE_MAX_NOTE);
    return 400;
}

void tke_kept_give(tke_service *svc, const char *owner, size_t *kept)
{
    pthread_mutex_lock(&svc->tenants->lock);
    /* Looked up, not made: giving back must work without memory. */
    tke_tenant *t = owner ? tkc_map_get(&svc->tenants->by_owner, tkc_str(owner)) : NULL;
    if (t) {
        t->kept -= *kept;
        svc->tenants->kept -= *kept;
    }
    leave(svc);
    *kept = 0;
}

size_t tke_kept_total(tke_service *svc)
{
    pthread_mutex_lock(&svc->tenants->lock);
    size_t kept = svc->tenants->kept;
    leave(svc);
    return kept;
}

void tke_refuse_kept(tke_call *call, tke_txn *txn, int32_t status, const tinkc_error *why)
{
    const char *code = status == 400   ? "metadata_too_large"
                       : status == 403 ? "quota_kept"
                                       : "memory";
    call->err = (tinkc_error){ 0 };
    if (txn)
        tke_refuse_after(call, txn, status, code, "%s", why->message);
    else
        tke_refuse(call, status, code, "%s", why->message);
}

bool tke_quota_request(tke_call *call)
{
    tke_service *svc = call->svc;
    tke_tenant *t = enter(svc, call->owner);
    int64_t limit = 0, left_s = 60 - tkc_wall_us(svc->clock) / 1000000 % 60;
    bool over = false;
    if (t) {
        limit = t->quota.requests_per_minute;
        over = limit && t->n_requests >= limit;
        t->n_requests += !over;
    }
    leave(svc);
    if (over)
        tke_refuse_for(call, left_s, "quota_requests",
                       "This key may make %lld requests a minute; try again in %lld s",
                       (long long)limit, (long long)left_s);
    return !over;
}

bool tke_quota_tokens(tke_service *svc, const char *owner, tke_job *job, int64_t most, int64_t own,
                      bool *soon, tinkc_error *err)
{
    tke_tenant *t = enter(svc, owner);
    int64_t limit = t ? t->quota.tokens_per_day : 0, used = t ? t->n_tokens : 0;
    int64_t held = t ? atomic_load(&t->held_tokens) - own : 0;
    /* Without what this request may use itself, so that the last tokens of a day can be used at
     * all; the most it may use then counts for the next ones. */
    bool ok = !limit || used + held < limit;
    if (ok && limit && job) {
        job->tenant = t;
        job->held_tokens += most;
        atomic_fetch_add(&t->held_tokens, most);
    }
    leave(svc);
    if (soon)
        *soon = !ok && used < limit;
    if (ok)
        return true;
    return used < limit
               ? tkc_fail(err, TINKC_E_TOO_LARGE,
                          "the rest of this key's %lld tokens a day may be used by "
                          "requests in progress (%lld were used, up to %lld more)",
                          (long long)limit, (long long)used, (long long)held)
               : tkc_fail(err, TINKC_E_TOO_LARGE,
                          "this key's %lld tokens a day are used up (%lld were used); more "
                          "from midnight UTC on",
                          (long long)limit, (long long)used);
}

bool tke_quota_storage(tke_service *svc, const char *owner, tke_job *job, int64_t most,
                       tinkc_error *err)
{
    /* Held from the sum to the reservation: two saves that arrive together would otherwise both
     * find the rest free. */
    pthread_mutex_lock(&svc->lock);
    int64_t limit = tke_quota_of(svc, owner).storage_bytes;
    int64_t used = limit ? tke_tenant_storage(svc, owner) : 0;
    tke_tenant *t = enter(svc, owner);
    int64_t held = t ? atomic_load(&t->held_bytes) : 0;
    bool ok = !limit || used + held < limit;
    if (ok && t && limit && job) {
        job->tenant = t;
        job->held_bytes += most;
        atomic_fetch_add(&t->held_bytes, most);
    }
    leave(svc);
    pthread_mutex_unlock(&svc->lock);
    if (ok)
        return true;
    return used < limit
               ? tkc_fail(err, TINKC_E_TOO_LARGE,
                          "the rest of this key's %lld bytes of storage may be used by saves in "
                          "progress (%lld are stored, up to %lld more); wait for them",
                          (long long)limit, (long long)used, (long long)held)
               : tkc_fail(err, TINKC_E_TOO_LARGE,
                          "this key's %lld bytes of storage are used up (%lld are stored); "
                          "delete checkpoints",
                          (long long)limit, (long long)used);
}

bool tke_quota_hold(tke_service *svc, const char *owner, int64_t bytes, tke_tenant **tenant)
{
    int64_t limit = tke_quota_of(svc, owner).storage_bytes;
    int64_t used = limit ? tke_tenant_storage(svc, owner) : 0;
    tke_tenant *t = enter(svc, owner);
    bool fits = !limit || !t || used + atomic_load(&t->held_bytes) + bytes <= limit;
    *tenant = limit && fits ? t : NULL;
    if (*tenant)
        atomic_fetch_add(&t->held_bytes, bytes);
    leave(svc);
    return fits;
}

void tke_quota_release(tke_tenant *t, int64_t bytes)
{
    if (t)
        atomic_fetch_sub(&t->held_bytes, bytes);
}

void tke_quota_settle(tke_job *job)
{
    if (!job->tenant)
        return;
    atomic_fetch_sub(&job->tenant->held_tokens, job->held_tokens);
    atomic_fetch_sub(&job->tenant->held_bytes, job->held_bytes);
    /* Called at the end of the job and again when it is dropped: the second time nothing is left to
     * give back. */
    job->tenant = NULL;
    job->held_tokens = job->held_bytes = 0;
}

void tke_quota_write(tke_service *svc, const char *owner, tkc_jsonw *w)
{
    int64_t stored = tke_tenant_storage(svc, owner);
    const tke_tenant *t = enter(svc, owner), none = { 0 }, *now = t ? t : &none;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = { { "requests_per_minute", now->quota.requests_per_minute },
                    { "requests_this_minute", now->n_requests },
                    { "tokens_per_day", now->quota.tokens_per_day },
                    { "tokens_today", now->n_tokens },
                    { "storage_bytes", now->quota.storage_bytes },
                    { "storage_bytes_used", stored },
                    { "kept_bytes", svc->set.max_kept_per_key },
                    { "kept_bytes_used", (int64_t)now->kept } };
    leave(svc);
    tkc_jsonw_object(w);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        tkc_jsonw_key(w, numbers[i].name);
        tkc_jsonw_i64(w, numbers[i].value);
    }
    tkc_jsonw_end(w);
}
