/* mock.c - a transport that answers from a script, and a clock that stands still until it is moved.
 *
 * Answers without delay are given inside `send`; the others lie in a list until tinkc_mock_advance
 * reaches their time, and are then given on the thread that advances.
 *
 * May touch: its own state under its lock; clients it wakes or asks (mock.lock, then the loop's).
 * Must not:  call a reply or the user's function with its lock held.
 */
#include "tinkc/sys/mock.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/str.h"
#include "base/thread.h"
#include "mock/mock_service.h"

#define WALL_BEGIN_US INT64_C(1767225600000000) /* 2026-01-01 */
enum { NOW_BEGIN_MS = 1000 };

/* A copy of an answer, with the arena it lives in. */
typedef struct answer {
    tkc_arena arena;
    const char *const *headers;
    const unsigned char *body;
    size_t len;
    int64_t delay_ms, drip_ms, fault_after;
    int32_t status, fault;
} answer;

typedef struct rule {
    struct rule *next;
    char *method, *path; /* method NULL = any */
    answer answer;
    tinkc_mock_answer given;
} rule;

/* An answer on its way, or one that never comes. */
typedef struct delivery {
    struct delivery *next;
    tinkc_reply *reply;
    answer answer;
    int64_t due_ms;
    int64_t idle_ms; /* the client's patience; INT64_MAX = none */
    size_t sent;
    bool begun;
    bool expires; /* at due_ms the client has lost its patience */
} delivery;

typedef struct listener {
    struct listener *next;
    void (*wake)(void *arg);
    bool (*idle)(void *arg, int64_t *due_ms); /* NULL = it never says */
    void *arg;
} listener;

typedef struct record {
    tinkc_request request;
    int64_t at_ms;
} record;

struct tinkc_mock {
    tinkc_transport transport;
    tinkc_clock clock;
    tkc_refs refs;
    tkc_mock_service *service; /* NULL = an empty one */
    atomic_llong now_ms;

    pthread_mutex_t answer_lock; /* around computing an answer; taken before `lock` */
    tinkc_mock_fn *fn;           /* needs answer_lock, so the next */
    void *fn_user;

    pthread_mutex_t lock;
    uint64_t random;
    uint64_t fail_in; /* 0 = no */
    int32_t fail_with;
    rule *once, *always;
    delivery *deliveries;
    listener *listeners;
    tkc_arena memory; /* of records */
    record **records;
    size_t n_records, cap_records;
    size_t busy; /* replies being called */
};

/* ---- answers ---- */

static void answer_free(answer *a)
{
    tkc_arena_free(&a->arena);
}

static bool answer_copy(answer *to, const tinkc_mock_answer *from, tinkc_error *err)
{
    size_t n = 0, len = from->body_len;
    while (from->headers && from->headers[n])
        n++;
    if (from->body && !len)
        len = strlen(from->body);
    *to = (answer){ .delay_ms = from->delay_ms,
                    .drip_ms = from->drip_ms,
                    .fault_after = from->fault_after,
                    .status = from->status ? from->status : 200,
                    .fault = from->fault,
                    .len = from->body ? len : 0 };
    tkc_arena_init(&to->arena, NULL, 0);
    const char **headers = tkc_arena_array(&to->arena, n + 1, sizeof *headers, err);
    for (size_t i = 0; headers && i < n; i++)
        headers[i] = tkc_arena_cstr(&to->arena, from->headers[i], err);
    to->headers = (const char *const *)headers;
    void *body = tkc_arena_zalloc(&to->arena, to->len + 1, err);
    if (body && to->len)
        memcpy(body, from->body, to->len);
    to->body = body;
    if (tkc_failed(err))
        answer_free(to);
    return !tkc_failed(err);
}

static bool path_matches(const char *pattern, const char *path)
{
    if (!pattern)
        return true;
    tinkc_str p = tkc_str(pattern), s = tkc_str(path);
    if (tkc_str_find(p, '?') == p.len)
        s.len = tkc_str_find(s, '?');
    if (tkc_ends_with(p, "*")) {
        p.len--;
        return s.len >= p.len && memcmp(p.data, s.data, p.len) == 0;
    }
    return tkc_str_eq(p, s);
}

static bool rule_matches(const rule *r, const tinkc_request *request)
{
    return (!r->method || strcmp(r->method, request->method) == 0) &&
           path_matches(r->path, request->path);
}

static void rule_free(rule *r)
{
    answer_free(&r->answer);
    tkc_release_str(NULL, r->method);
    tkc_release_str(NULL, r->path);
    tkc_release(NULL, r, sizeof *r);
}

static bool check_answer(const tinkc_mock_answer *a, tinkc_error *err)
{
    if (!a)
        return tkc_fail(err, TINKC_E_ARGUMENT, "answer: must not be NULL");
    if (!tkc_all_zero(a->reserved, sizeof a->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (a->delay_ms < 0 || a->drip_ms < 0 || a->fault_after < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "answer: a time or place below 0");
    if (a->fault < TINKC_FAULT_NONE || a->fault > TINKC_FAULT_DRIP)
        return tkc_fail(err, TINKC_E_ARGUMENT, "fault: no TINKC_FAULT_*");
    return true;
}

static rule *rule_new(const char *method, const char *path, const tinkc_mock_answer *given,
                      tinkc_error *err)
{
    if (!check_answer(given, err))
        return NULL;
    if (!path) {
        tkc_fail(err, TINKC_E_ARGUMENT, "path: must not be NULL");
        return NULL;
    }
    rule *r = tkc_zalloc(NULL, sizeof *r, err);
    if (!r)
        return NULL;
    if (!answer_copy(&r->answer, given, err)) {
        tkc_release(NULL, r, sizeof *r);
        return NULL;
    }
    r->method = method ? tkc_copy_str(NULL, tkc_str(method), err) : NULL;
    r->path = tkc_copy_str(NULL, tkc_str(path), err);
    if (tkc_failed(err)) {
        rule_free(r);
        return NULL;
    }
    return r;
}

static tinkc_mock_answer as_given(const answer *a)
{
    return (tinkc_mock_answer){ .headers = a->headers,
                                .body = a->body,
                                .body_len = a->len,
                                .delay_ms = a->delay_ms,
                                .drip_ms = a->drip_ms,
                                .fault_after = a->fault_after,
                                .status = a->status,
                                .fault = a->fault };
}

bool tinkc_mock_once(tinkc_mock *mock, const char *method, const char *path,
                     const tinkc_mock_answer *given, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!mock)
        return tkc_fail(err, TINKC_E_ARGUMENT, "mock: must not be NULL");
    rule *r = rule_new(method, path, given, err);
    if (!r)
        return false;
    pthread_mutex_lock(&mock->lock);
    rule **at = &mock->once;
    while (*at)
        at = &(*at)->next;
    *at = r;
    pthread_mutex_unlock(&mock->lock);
    return true;
}

bool tinkc_mock_always(tinkc_mock *mock, const char *method, const char *path,
                       const tinkc_mock_answer *given, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!mock)
        return tkc_fail(err, TINKC_E_ARGUMENT, "mock: must not be NULL");
    rule *r = rule_new(method, path, given, err);
    if (!r)
        return false;
    pthread_mutex_lock(&mock->lock);
    r->next = mock->always;
    mock->always = r;
    pthread_mutex_unlock(&mock->lock);
    return true;
}

bool tinkc_mock_compute(tinkc_mock *mock, tinkc_mock_fn *fn, void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!mock)
        return tkc_fail(err, TINKC_E_ARGUMENT, "mock: must not be NULL");
    pthread_mutex_lock(&mock->answer_lock);
    mock->fn = fn;
    mock->fn_user = user;
    pthread_mutex_unlock(&mock->answer_lock);
    return true;
}

void tinkc_mock_fail_nth(tinkc_mock *mock, uint64_t n, int32_t fault)
{
    if (!mock)
        return;
    pthread_mutex_lock(&mock->lock);
    mock->fail_in = n;
    mock->fail_with = fault;
    pthread_mutex_unlock(&mock->lock);
}

/* The script's answer. Needs mock->lock. A rule that answers once is taken off: *used. */
static const answer *scripted(tinkc_mock *mock, const tinkc_request *request, rule **used)
{
    for (rule **at = &mock->once; *at; at = &(*at)->next)
        if (rule_matches(*at, request)) {
            *used = *at;
            *at = (*at)->next;
            return &(*used)->answer;
        }
    for (rule *r = mock->always; r; r = r->next)
        if (rule_matches(r, request))
            return &r->answer;
    return NULL;
}

static bool from_service(tinkc_mock *mock, const tinkc_request *request, answer *out,
                         tinkc_error *err)
{
    tkc_buf body;
    const char *type = "application/json";
    int32_t status = 404;
    tkc_buf_init(&body, NULL, TKC_BUF_NO_MAX);
    if (mock->service)
        status = tkc_mock_service_answer(mock->service, request, mock->clock.wall_us(mock), &body,
                                         &type);
    else
        tkc_buf_cstr(&body, "{\"detail\":\"nothing is scripted for this request\"}", err);
    const char *headers[] = { "Content-Type", type, NULL };
    tinkc_mock_answer given = { .status = status,
                                .headers = headers,
                                .body = body.len ? body.data : NULL,
                                .body_len = body.len };
    bool ok = !tkc_failed(err) && answer_copy(out, &given, err);
    tkc_buf_free(&body);
    return ok;
}

/* Decides what to say. Needs answer_lock. */
static bool decide(tinkc_mock *mock, const tinkc_request *request, answer *out, tinkc_error *err)
{
    static const tinkc_mock_answer plain;
    rule *used = NULL;
    pthread_mutex_lock(&mock->lock);
    if (mock->fail_in && --mock->fail_in == 0) {
        int32_t fault = mock->fail_with;
        pthread_mutex_unlock(&mock->lock);
        bool ok = answer_copy(out, &plain, err);
        out->fault = fault;
        return ok;
    }
    pthread_mutex_unlock(&mock->lock);
    if (mock->fn) {
        tinkc_mock_answer given = { 0 };
        if (mock->fn(request, &given, mock->fn_user))
            return answer_copy(out, &given, err);
    }
    pthread_mutex_lock(&mock->lock);
    const answer *script = scripted(mock, request, &used);
    bool ok = false;
    if (script) {
        tinkc_mock_answer given = as_given(script);
        ok = answer_copy(out, &given, err);
    }
    pthread_mutex_unlock(&mock->lock);
    if (used)
        rule_free(used);
    return script ? ok : from_service(mock, request, out, err);
}

/* ---- deliveries ---- */

static int64_t mock_now(tinkc_mock *mock)
{
    return atomic_load(&mock->now_ms);
}

static void delivery_free(delivery *d)
{
    answer_free(&d->answer);
    tkc_release(NULL, d, sizeof *d);
}

/* Calls the reply as far as it goes now. True when it has ended. Needs no lock. */
static bool give(delivery *d)
{
    static const char *const words[] = { "", "connection refused", "the name could not be resolved",
                                         "tls: the certificate could not be verified" };
    answer *a = &d->answer;
    tinkc_reply *reply = d->reply;
    if (d->expires) {
        reply->fail(reply, TINKC_E_NET_TIMEOUT, "no answer within the idle timeout");
        return true;
    }
    if (a->fault >= TINKC_FAULT_REFUSED && a->fault <= TINKC_FAULT_TLS) {
        reply->fail(reply, TINKC_E_CONNECTION, words[a->fault]);
        return true;
    }
    if (a->fault == TINKC_FAULT_RESET && a->fault_after == 0) {
        reply->fail(reply, TINKC_E_CONNECTION, "connection reset");
        return true;
    }
    if (!d->begun) {
        d->begun = true;
        reply->status(reply, a->status);
        for (size_t i = 0; a->headers[i]; i += 2)
            reply->header(reply, a->headers[i], a->headers[i + 1]);
        if (!reply->write(reply, "", 0))
            a->len = 0;
    }
    size_t end = a->len;
    if (a->fault == TINKC_FAULT_DRIP || a->drip_ms)
        end = d->sent + (d->sent < a->len);
    else if (a->fault == TINKC_FAULT_RESET && (size_t)a->fault_after < a->len)
        end = (size_t)a->fault_after;
    else if (a->fault == TINKC_FAULT_TRUNCATED)
        end = a->len / 2;
    bool wanted = end == d->sent || reply->write(reply, a->body + d->sent, end - d->sent);
    d->sent = end;
    if (wanted && d->sent < a->len && (a->fault == TINKC_FAULT_DRIP || a->drip_ms))
        return false;
    if (a->fault == TINKC_FAULT_RESET)
        reply->fail(reply, TINKC_E_CONNECTION, "connection reset");
    else if (a->fault == TINKC_FAULT_TRUNCATED)
        reply->fail(reply, TINKC_E_CONNECTION, "the answer ended early");
    else
        reply->end(reply);
    return true;
}

/* When the next thing happens to it; sets `expires` if that is the client's patience. */
static void schedule(delivery *d, int64_t now)
{
    answer *a = &d->answer;
    int64_t delay = d->begun ? (a->drip_ms ? a->drip_ms : 1) : a->delay_ms;
    if (a->fault == TINKC_FAULT_SILENT)
        delay = INT64_MAX;
    d->expires = delay > d->idle_ms || (delay == INT64_MAX && d->idle_ms != INT64_MAX);
    if (d->expires)
        delay = d->idle_ms;
    if (__builtin_add_overflow(now, delay, &d->due_ms))
        d->due_ms = INT64_MAX;
}

/* Needs mock->lock. In order of time, equal ones in order of arrival. */
static void enlist(tinkc_mock *mock, delivery *d)
{
    delivery **at = &mock->deliveries;
    while (*at && (*at)->due_ms <= d->due_ms)
        at = &(*at)->next;
    d->next = *at;
    *at = d;
}

/* Gives what is due, again and again until its time lies ahead. */
static void deliver(tinkc_mock *mock, delivery *d)
{
    int64_t now = mock_now(mock);
    while (d->due_ms <= now) {
        if (give(d)) {
            delivery_free(d);
            return;
        }
        schedule(d, d->due_ms);
    }
    pthread_mutex_lock(&mock->lock);
    enlist(mock, d);
    pthread_mutex_unlock(&mock->lock);
}

static void keep_record(tinkc_mock *mock, const tinkc_request *r)
{
    tinkc_error err = { 0 };
    size_t n = 0;
    while (r->headers && r->headers[n])
        n++;
    pthread_mutex_lock(&mock->lock);
    tkc_arena *arena = &mock->memory;
    record *copy = tkc_arena_zalloc(arena, sizeof *copy, &err);
    const char **headers = tkc_arena_array(arena, n + 1, sizeof *headers, &err);
    for (size_t i = 0; headers && i < n; i++)
        headers[i] = tkc_arena_cstr(arena, r->headers[i], &err);
    const char *body =
        tkc_arena_str(arena, tkc_strn((const char *)r->body.data, r->body.len), &err);
    if (copy && body) {
        copy->request = *r;
        copy->request.method = tkc_arena_cstr(arena, r->method, &err);
        copy->request.path = tkc_arena_cstr(arena, r->path, &err);
        copy->request.base_url = tkc_arena_cstr(arena, r->base_url, &err);
        copy->request.headers = (const char *const *)headers;
        copy->request.body.data = (const unsigned char *)body;
        copy->at_ms = mock_now(mock);
    }
    record **grown = NULL;
    if (!tkc_failed(&err))
        grown = tkc_grow(NULL, (void *)mock->records, &mock->cap_records, mock->n_records + 1,
                         sizeof *grown, &err);
    if (grown) {
        mock->records = grown;
        mock->records[mock->n_records++] = copy;
    }
    pthread_mutex_unlock(&mock->lock);
}

static void mock_send(void *self, const tinkc_request *request, tinkc_reply *reply)
{
    tinkc_mock *mock = self;
    tinkc_error err = { 0 };
    keep_record(mock, request);
    delivery *d = tkc_zalloc(NULL, sizeof *d, &err);
    bool decided = false;
    if (d) {
        pthread_mutex_lock(&mock->answer_lock);
        decided = decide(mock, request, &d->answer, &err);
        pthread_mutex_unlock(&mock->answer_lock);
    }
    if (!decided) {
        tkc_release(NULL, d, sizeof *d);
        reply->fail(reply, TINKC_E_CONNECTION, "mock: out of memory");
        return;
    }
    d->reply = reply;
    d->idle_ms = request->idle_timeout_ms == TINKC_FOREVER ? INT64_MAX : request->idle_timeout_ms;
    schedule(d, mock_now(mock));
    deliver(mock, d);
}

static void mock_cancel(void *self, tinkc_reply *reply)
{
    tinkc_mock *mock = self;
    pthread_mutex_lock(&mock->lock);
    delivery **at = &mock->deliveries;
    while (*at && (*at)->reply != reply)
        at = &(*at)->next;
    delivery *d = *at;
    if (d)
        *at = d->next;
    pthread_mutex_unlock(&mock->lock);
    if (!d)
        return; /* it is ending on another thread */
    reply->fail(reply, TINKC_E_CONNECTION, "cancelled");
    delivery_free(d);
}

/* ---- the clock ---- */

static int64_t clock_now(void *self)
{
    return mock_now(self);
}

static int64_t clock_wall(void *self)
{
    return WALL_BEGIN_US + (mock_now(self) - NOW_BEGIN_MS) * 1000;
}

/* splitmix64 */
static uint64_t clock_random(void *self)
{
    tinkc_mock *mock = self;
    pthread_mutex_lock(&mock->lock);
    uint64_t z = mock->random += 0x9E3779B97F4A7C15u;
    pthread_mutex_unlock(&mock->lock);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void clock_attach(void *self, void (*wake)(void *arg), void *arg)
{
    tinkc_mock *mock = self;
    tinkc_error ignored = { 0 };
    listener *l = tkc_zalloc(NULL, sizeof *l, &ignored);
    if (!l)
        return; /* it misses jumps, but looks at the time whenever it is awake */
    l->wake = wake;
    l->arg = arg;
    pthread_mutex_lock(&mock->lock);
    l->next = mock->listeners;
    mock->listeners = l;
    pthread_mutex_unlock(&mock->lock);
}

static void clock_watch(void *self, bool (*idle)(void *arg, int64_t *due_ms), void *arg)
{
    tinkc_mock *mock = self;
    pthread_mutex_lock(&mock->lock);
    for (listener *l = mock->listeners; l; l = l->next)
        if (l->arg == arg)
            l->idle = idle;
    pthread_mutex_unlock(&mock->lock);
}

static void clock_detach(void *self, void *arg)
{
    tinkc_mock *mock = self;
    pthread_mutex_lock(&mock->lock);
    listener **at = &mock->listeners;
    while (*at && (*at)->arg != arg)
        at = &(*at)->next;
    listener *l = *at;
    if (l)
        *at = l->next;
    pthread_mutex_unlock(&mock->lock);
    tkc_release(NULL, l, sizeof *l);
}

/* Takes the first delivery that is due; NULL if none is. */
static delivery *take_due(tinkc_mock *mock)
{
    pthread_mutex_lock(&mock->lock);
    delivery *d = mock->deliveries;
    if (d && d->due_ms <= mock_now(mock)) {
        mock->deliveries = d->next;
        mock->busy++;
    } else {
        d = NULL;
    }
    pthread_mutex_unlock(&mock->lock);
    return d;
}

void tinkc_mock_advance(tinkc_mock *mock, int64_t ms)
{
    if (!mock || ms < 0)
        return;
    atomic_fetch_add(&mock->now_ms, ms);
    delivery *d;
    while ((d = take_due(mock)) != NULL) {
        deliver(mock, d);
        pthread_mutex_lock(&mock->lock);
        mock->busy--;
        pthread_mutex_unlock(&mock->lock);
    }
    pthread_mutex_lock(&mock->lock);
    for (listener *l = mock->listeners; l; l = l->next)
        l->wake(l->arg);
    pthread_mutex_unlock(&mock->lock);
}

/* True if nobody has anything to do; *due_ms is the next time that matters. */
static bool all_idle(tinkc_mock *mock, int64_t *due_ms)
{
    pthread_mutex_lock(&mock->lock);
    bool idle = mock->busy == 0;
    *due_ms = mock->deliveries ? mock->deliveries->due_ms : INT64_MAX;
    for (listener *l = mock->listeners; l && idle; l = l->next) {
        int64_t due;
        if (!l->idle)
            continue;
        idle = l->idle(l->arg, &due);
        if (due < *due_ms)
            *due_ms = due;
    }
    pthread_mutex_unlock(&mock->lock);
    return idle;
}

int64_t tinkc_mock_settle(tinkc_mock *mock, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return TINKC_FOREVER;
    if (!mock) {
        tkc_fail(err, TINKC_E_ARGUMENT, "mock: must not be NULL");
        return TINKC_FOREVER;
    }
    int64_t deadline = tkc_deadline_ns(timeout_ms), due = INT64_MAX;
    int32_t quiet = 0;
    while (quiet < 2) { /* twice: what one loop did may have given another something to do */
        quiet = all_idle(mock, &due) ? quiet + 1 : 0;
        if (quiet == 0) {
            if (tkc_monotonic_ns() > deadline) {
                tkc_fail(err, TINKC_E_TIMEOUT, "the clients on the mock are still busy");
                return TINKC_FOREVER;
            }
            nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
        }
    }
    if (due == INT64_MAX)
        return TINKC_FOREVER;
    int64_t now = mock_now(mock);
    return due > now ? due - now : 0;
}

void tinkc_mock_seed(tinkc_mock *mock, uint64_t seed)
{
    if (!mock)
        return;
    pthread_mutex_lock(&mock->lock);
    mock->random = seed;
    pthread_mutex_unlock(&mock->lock);
}

/* ---- what was asked ---- */

size_t tinkc_mock_count(const tinkc_mock *cm, const char *path)
{
    tinkc_mock *mock = (tinkc_mock *)cm;
    size_t n = 0;
    if (!mock)
        return 0;
    pthread_mutex_lock(&mock->lock);
    for (size_t i = 0; i < mock->n_records; i++)
        n += path_matches(path, mock->records[i]->request.path);
    pthread_mutex_unlock(&mock->lock);
    return n;
}

static const record *record_at(const tinkc_mock *cm, size_t i)
{
    tinkc_mock *mock = (tinkc_mock *)cm;
    if (!mock)
        return NULL;
    pthread_mutex_lock(&mock->lock);
    const record *r = i < mock->n_records ? mock->records[i] : NULL;
    pthread_mutex_unlock(&mock->lock);
    return r;
}

const tinkc_request *tinkc_mock_request(const tinkc_mock *mock, size_t i)
{
    const record *r = record_at(mock, i);
    return r ? &r->request : NULL;
}

int64_t tinkc_mock_request_ms(const tinkc_mock *mock, size_t i)
{
    const record *r = record_at(mock, i);
    return r ? r->at_ms : -1;
}

void tinkc_mock_forget(tinkc_mock *mock)
{
    if (!mock)
        return;
    pthread_mutex_lock(&mock->lock);
    mock->n_records = 0;
    tkc_arena_free(&mock->memory);
    pthread_mutex_unlock(&mock->lock);
}

/* ---- life ---- */

static void mock_keep(void *self)
{
    tkc_ref_keep(&((tinkc_mock *)self)->refs);
}

static void free_rules(rule *r)
{
    while (r) {
        rule *next = r->next;
        rule_free(r);
        r = next;
    }
}

static void mock_drop(void *self)
{
    tinkc_mock *mock = self;
    if (!tkc_ref_drop(&mock->refs))
        return;
    free_rules(mock->once);
    free_rules(mock->always);
    tkc_mock_service_free(mock->service);
    tkc_arena_free(&mock->memory);
    tkc_release(NULL, (void *)mock->records, mock->cap_records * sizeof *mock->records);
    pthread_mutex_destroy(&mock->lock);
    pthread_mutex_destroy(&mock->answer_lock);
    tkc_release(NULL, mock, sizeof *mock);
}

tinkc_mock *tinkc_mock_new(int32_t kind, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (kind != TINKC_MOCK_EMPTY && kind != TINKC_MOCK_SERVICE) {
        tkc_fail(err, TINKC_E_ARGUMENT, "kind: no TINKC_MOCK_*");
        return NULL;
    }
    tinkc_mock *mock = tkc_zalloc(NULL, sizeof *mock, err);
    if (!mock)
        return NULL;
    if (kind == TINKC_MOCK_SERVICE && !(mock->service = tkc_mock_service_new(err))) {
        tkc_release(NULL, mock, sizeof *mock);
        return NULL;
    }
    tkc_ref_init(&mock->refs);
    pthread_mutex_init(&mock->lock, NULL);
    pthread_mutex_init(&mock->answer_lock, NULL);
    tkc_arena_init(&mock->memory, NULL, 0);
    atomic_init(&mock->now_ms, NOW_BEGIN_MS);
    mock->transport = (tinkc_transport){ .abi = TINKC_TRANSPORT_ABI,
                                         .self = mock,
                                         .acquire = mock_keep,
                                         .release = mock_drop,
                                         .send = mock_send,
                                         .cancel = mock_cancel };
    mock->clock = (tinkc_clock){ .self = mock,
                                 .acquire = mock_keep,
                                 .release = mock_drop,
                                 .now_ms = clock_now,
                                 .wall_us = clock_wall,
                                 .random = clock_random,
                                 .attach = clock_attach,
                                 .detach = clock_detach,
                                 .watch = clock_watch };
    return mock;
}

void tinkc_mock_free(tinkc_mock *mock)
{
    if (mock)
        mock_drop(mock);
}

const tinkc_transport *tinkc_mock_transport(tinkc_mock *mock)
{
    return mock ? &mock->transport : NULL;
}

const tinkc_clock *tinkc_mock_clock(tinkc_mock *mock)
{
    return mock ? &mock->clock : NULL;
}
