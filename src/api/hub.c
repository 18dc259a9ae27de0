/* hub.c - tokenizers by model name: which repository, who has asked already, who waits.
 *
 * Fetching and opening take a while and wait on files, so each repository that is asked for gets a
 * thread of its own; all who ask for the same wait for that one. Jobs belong to the I/O thread;
 * what is registered and cached lies under a lock, because registering takes effect at once.
 */
#include "api/hub.h"

#include <string.h>
#include "api/client_priv.h"
#include "api/download.h"
#include "base/map.h"
#include "base/str.h"

/* ---- which repository: a pure function of two names ---- */

typedef struct pin {
    const char *id, *repo, *revision;
} pin;

static const pin pins[] = {
    { "moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2-Thinking",
      "612681931a8c906ddb349f8ad0f582cb552189cd" },
    { "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5", "4d01dfe0332d63057c186e0b262165819efb6611" },
    { "moonshotai/Kimi-K2.5-Text-Only", "moonshotai/Kimi-K2.5",
      "4d01dfe0332d63057c186e0b262165819efb6611" },
    { "moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.6", "b5aabbfb20227ed42becbf5541dbffd213942c58" },
};

#define LLAMA_3 "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"

static tinkc_str before_colon(const char *text)
{
    tinkc_str s = tkc_str(text);
    return tkc_strn(s.data, tkc_str_find(s, ':'));
}

/* "org/model/variant" to "org/model". */
static tinkc_str without_variant(tinkc_str s)
{
    size_t slashes = 0, second = s.len;
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] == '/' && ++slashes == 2)
            second = i;
    return slashes == 2 ? tkc_strn(s.data, second) : s;
}

static bool set_text(tinkc_text *to, tinkc_str from, tinkc_error *err)
{
    to->len = 0;
    return tinkc_text_append(to, from.len ? from.data : "", from.len, err);
}

bool tinkc_tokenizer_resolve(const char *model, const char *tokenizer_id, tinkc_text *repo,
                             tinkc_text *revision, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!model || !repo || !revision)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is NULL",
                        !model  ? "model"
                        : !repo ? "repo"
                                : "revision");
    bool given = tokenizer_id && *tokenizer_id;
    tinkc_str id = before_colon(given ? tokenizer_id : model), rev = { 0 };
    if (!given) {
        if (tkc_starts_with(id, "meta-llama/Llama-3"))
            id = tkc_str(LLAMA_3);
        else
            id = without_variant(id);
    }
    if (id.len == 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is empty", given ? "tokenizer_id" : "model");
    for (size_t i = 0; i < sizeof pins / sizeof *pins; i++)
        if (tkc_str_is(id, pins[i].id)) {
            rev = tkc_str(pins[i].revision);
            id = tkc_str(pins[i].repo);
            break;
        }
    return set_text(repo, id, err) && set_text(revision, rev, err);
}

#ifdef TINKC_WITH_TOKENIZER

/* ---- what a client knows ---- */

enum { CACHE_ENTRIES = 32 };

typedef struct cached {
    char *key; /* model, a newline, tokenizer_id, a newline, the place */
    tinkc_tokenizer *tokenizer;
    uint64_t used;
} cached;

typedef struct job job;

struct tkc_hub {
    tinkc_client *client;
    tkc_arena texts;
    tkc_hub_place place; /* as the environment said when the client was made */

    /* Any thread, lock held. A leaf. */
    struct {
        pthread_mutex_t lock;
        tkc_map registered; /* model to tinkc_tokenizer */
        cached cache[CACHE_ENTRIES];
        uint64_t clock;
    } shared;

    job *jobs; /* the I/O thread only */
};

/* Somebody who waits for a tokenizer: the future. */
typedef struct fetch_op {
    tinkc_future f;
    const char *key, *model, *tokenizer_id;
    tkc_hub_place place;
    bool no_compiled_cache;
    job *job; /* NULL = not waiting */
    struct fetch_op *next, **link;
} fetch_op;

/* One repository on its way. */
struct job {
    job *next, **link;
    tinkc_client *client;
    tkc_arena arena; /* the worker's while it runs */
    const char *key, *model, *tokenizer_id;
    tkc_hub_place place;
    bool no_compiled_cache;
    tkc_stopper stop;
    pthread_t thread;
    tkc_task after;
    fetch_op *waiters;
    tinkc_tokenizer *tokenizer;
    tinkc_error err;
};

tkc_hub *tkc_hub_new(tinkc_client *client, tinkc_error *err)
{
    tkc_hub *hub = tkc_zalloc(client->a, sizeof *hub, err);
    if (!hub)
        return NULL;
    hub->client = client;
    pthread_mutex_init(&hub->shared.lock, NULL);
    tkc_arena_init(&hub->texts, client->a, 0);
    tkc_map_init(&hub->shared.registered, client->a);
    if (!tkc_hub_place_read(&hub->place, &hub->texts, err)) {
        tkc_hub_free(hub);
        return NULL;
    }
    return hub;
}

void tkc_hub_free(tkc_hub *hub)
{
    size_t place = 0;
    const tkc_map_entry *e;
    if (!hub)
        return;
    while ((e = tkc_map_next(&hub->shared.registered, &place)))
        tinkc_tokenizer_free(e->value);
    for (size_t i = 0; i < CACHE_ENTRIES; i++) {
        tinkc_tokenizer_free(hub->shared.cache[i].tokenizer);
        tkc_release_str(hub->client->a, hub->shared.cache[i].key);
    }
    tkc_map_free(&hub->shared.registered);
    tkc_arena_free(&hub->texts);
    pthread_mutex_destroy(&hub->shared.lock);
    tkc_release(hub->client->a, hub, sizeof *hub);
}

/* A handle of the caller's, or NULL. */
static tinkc_tokenizer *find_known(tkc_hub *hub, const char *model, const char *key)
{
    tinkc_tokenizer *found;
    pthread_mutex_lock(&hub->shared.lock);
    found = tkc_map_get(&hub->shared.registered, tkc_str(model));
    for (size_t i = 0; !found && i < CACHE_ENTRIES; i++) {
        cached *c = &hub->shared.cache[i];
        if (c->key && strcmp(c->key, key) == 0) {
            c->used = ++hub->shared.clock;
            found = c->tokenizer;
        }
    }
    if (found)
        found = tinkc_tokenizer_keep(found);
    pthread_mutex_unlock(&hub->shared.lock);
    return found;
}

/* The least recently used makes room. */
static void remember(tkc_hub *hub, const char *key, const tinkc_tokenizer *tokenizer)
{
    tinkc_error ignored = { 0 };
    cached old = { 0 };
    char *copy = tkc_copy_str(hub->client->a, tkc_str(key), &ignored);
    if (!copy)
        return;
    pthread_mutex_lock(&hub->shared.lock);
    cached *c = &hub->shared.cache[0];
    for (size_t i = 1; i < CACHE_ENTRIES; i++)
        if (hub->shared.cache[i].used < c->used)
            c = &hub->shared.cache[i];
    old = *c;
    *c = (cached){ copy, tinkc_tokenizer_keep(tokenizer), ++hub->shared.clock };
    pthread_mutex_unlock(&hub->shared.lock);
    tinkc_tokenizer_free(old.tokenizer);
    tkc_release_str(hub->client->a, old.key);
}

bool tinkc_tokenizer_register(tinkc_client *client, const char *model,
                              const tinkc_tokenizer *tokenizer, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return false;
    if (!model || !*model || !tokenizer)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is %s", tokenizer ? "model" : "tokenizer",
                        tokenizer ? "empty" : "NULL");
    tkc_hub *hub = client->hub;
    tinkc_tokenizer *mine = tinkc_tokenizer_keep(tokenizer);
    void *old = NULL;
    pthread_mutex_lock(&hub->shared.lock);
    bool ok = tkc_map_set(&hub->shared.registered, tkc_str(model), mine, &old, err);
    pthread_mutex_unlock(&hub->shared.lock);
    tinkc_tokenizer_free(ok ? old : mine);
    return ok;
}

/* ---- the worker ---- */

static bool is_closed_model(const char *repo)
{
    tinkc_str s = tkc_str(repo);
    return tkc_starts_with(s, "TML/") || tkc_starts_with(s, "thinkingmachines/");
}

static void run_job(job *j, tinkc_error *err)
{
    tinkc_text repo = { 0 }, revision = { 0 };
    if (tinkc_tokenizer_resolve(j->model, j->tokenizer_id, &repo, &revision, err)) {
        if (is_closed_model(repo.data))
            tkc_fail(err, TINKC_E_TOKENIZER,
                     "%s has no public tokenizer: register one with tinkc_tokenizer_register",
                     repo.data);
        const char *folder = NULL;
        if (!tkc_failed(err))
            folder = tkc_hub_folder(j->client, &j->stop, &j->place, repo.data,
                                    revision.len ? revision.data : "", &j->arena, err);
        if (folder)
            j->tokenizer = tinkc_tokenizer_open(
                folder, &(tinkc_tokenizer_options){ .no_compiled_cache = j->no_compiled_cache },
                err);
    }
    tinkc_text_free(&repo);
    tinkc_text_free(&revision);
}

static void *worker(void *arg)
{
    job *j = arg;
    run_job(j, &j->err);
    tkc_loop_post(j->client->loop, &j->after);
    return NULL;
}

/* ---- jobs: the I/O thread's ---- */

static void free_job(job *j)
{
    tinkc_client *client = j->client;
    tinkc_tokenizer_free(j->tokenizer);
    tkc_stopper_destroy(&j->stop);
    tkc_arena_free(&j->arena);
    tkc_release(client->a, j, sizeof *j);
}

static void leave_job(fetch_op *op)
{
    *op->link = op->next;
    if (op->next)
        op->next->link = op->link;
    op->job = NULL;
}

static void join_job(fetch_op *op, job *j)
{
    op->job = j;
    op->next = j->waiters;
    op->link = &j->waiters;
    if (op->next)
        op->next->link = &op->next;
    j->waiters = op;
}

static void unlink_job(job *j)
{
    *j->link = j->next;
    if (j->next)
        j->next->link = j->link;
}

static void after_worker(tkc_task *task)
{
    job *j = TKC_OWNER(task, job, after);
    tinkc_client *client = j->client;
    pthread_join(j->thread, NULL);
    unlink_job(j);
    if (j->tokenizer)
        remember(client->hub, j->key, j->tokenizer);
    while (j->waiters) {
        fetch_op *op = j->waiters;
        leave_job(op);
        op->f.result = j->tokenizer ? tinkc_tokenizer_keep(j->tokenizer) : NULL;
        tkc_op_finish(&op->f, &j->err);
    }
    free_job(j);
    tkc_client_reply_back(client); /* the last thing: it may end the loop */
}

static job *start_job(tkc_hub *hub, const fetch_op *op, tinkc_error *err)
{
    tinkc_client *client = hub->client;
    job *j = tkc_zalloc(client->a, sizeof *j, err);
    if (!j)
        return NULL;
    j->client = client;
    tkc_arena_init(&j->arena, client->a, 0);
    if (!tkc_stopper_init(&j->stop, err)) {
        tkc_release(client->a, j, sizeof *j);
        return NULL;
    }
    j->key = tkc_arena_cstr(&j->arena, op->key, err);
    j->model = tkc_arena_cstr(&j->arena, op->model, err);
    j->tokenizer_id = op->tokenizer_id ? tkc_arena_cstr(&j->arena, op->tokenizer_id, err) : NULL;
    j->place.cache = tkc_arena_cstr(&j->arena, op->place.cache, err);
    j->place.endpoint = tkc_arena_cstr(&j->arena, op->place.endpoint, err);
    j->place.token = op->place.token ? tkc_arena_cstr(&j->arena, op->place.token, err) : NULL;
    j->place.offline = op->place.offline;
    j->no_compiled_cache = op->no_compiled_cache;
    j->after.run = after_worker;
    if (tkc_failed(err) || !tkc_thread_start(&j->thread, worker, j, "tinkc-tokenizer", err)) {
        free_job(j);
        return NULL;
    }
    atomic_fetch_add(&client->replies, 1); /* the client's loop stays until it is back */
    j->next = hub->jobs;
    j->link = &hub->jobs;
    if (j->next)
        j->next->link = &j->next;
    hub->jobs = j;
    return j;
}

static void fetch_start(tinkc_future *f)
{
    fetch_op *op = (fetch_op *)(void *)f;
    tkc_hub *hub = f->client->hub;
    tinkc_error err = { 0 };
    f->result = find_known(hub, op->model, op->key);
    if (f->result) {
        tkc_op_finish(f, NULL);
        return;
    }
    job *j = hub->jobs;
    while (j && strcmp(j->key, op->key) != 0)
        j = j->next;
    if (!j)
        j = start_job(hub, op, &err);
    if (!j) {
        tkc_op_finish(f, &err);
        return;
    }
    tkc_op_stage(f, TINKC_STAGE_FETCHING);
    join_job(op, j);
}

static void fetch_stop(tinkc_future *f, const tinkc_error *why)
{
    fetch_op *op = (fetch_op *)(void *)f;
    job *j = op->job;
    if (j) {
        leave_job(op);
        if (!j->waiters)
            tkc_stopper_stop(&j->stop); /* nobody wants it any more */
    }
    tkc_op_finish(f, why);
}

static void fetch_destroy(tinkc_future *f)
{
    tinkc_tokenizer_free(f->result);
}

static const tkc_op_class fetch_class = { "tokenizer_fetch", "tokenizer", sizeof(fetch_op),
                                          fetch_start,       fetch_stop,  fetch_destroy };

/* ---- the call ---- */

static bool check_options(const tinkc_tokenizer_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "tokenizer options: reserved must be zero");
    return true;
}

static const char *choose(tkc_arena *arena, const char *given, const char *otherwise,
                          tinkc_error *err)
{
    const char *text = given && *given ? given : otherwise;
    return text ? tkc_arena_cstr(arena, text, err) : NULL;
}

static bool fill_op(fetch_op *op, const char *model, const char *tokenizer_id,
                    const tinkc_tokenizer_options *o, tinkc_error *err)
{
    tkc_arena *arena = &op->f.arena;
    const tkc_hub_place *place = &((const tkc_hub *)op->f.client->hub)->place;
    op->model = tkc_arena_cstr(arena, model, err);
    op->tokenizer_id = choose(arena, tokenizer_id, NULL, err);
    op->place.cache = choose(arena, o->cache_dir, place->cache, err);
    op->place.token = choose(arena, o->hub_token, place->token, err);
    op->place.offline = o->offline || place->offline;
    op->no_compiled_cache = o->no_compiled_cache;
    char *endpoint =
        tkc_arena_cstr(arena, o->hub_url && *o->hub_url ? o->hub_url : place->endpoint, err);
    if (tkc_failed(err))
        return false;
    for (size_t len = strlen(endpoint); len && endpoint[len - 1] == '/'; len--)
        endpoint[len - 1] = 0;
    op->place.endpoint = endpoint;
    op->key = tkc_arena_printf(arena, err, "%s\n%s\n%s\n%s", model,
                               op->tokenizer_id ? op->tokenizer_id : "", op->place.cache, endpoint);
    return !tkc_failed(err);
}

tinkc_future *tinkc_tokenizer_fetch(tinkc_client *client, const char *model,
                                    const char *tokenizer_id,
                                    const tinkc_tokenizer_options *options, tinkc_error *err)
{
    static const tinkc_tokenizer_options defaults = { 0 };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return NULL;
    if (!options)
        options = &defaults;
    if (!model || !*model) {
        tkc_fail(err, TINKC_E_ARGUMENT, "model is empty");
        return NULL;
    }
    if (!check_options(options, err))
        return NULL;
    tinkc_future *f = tkc_op_new(client, &fetch_class, err);
    if (!f)
        return NULL;
    if (!fill_op((fetch_op *)(void *)f, model, tokenizer_id, options, err)) {
        tkc_future_drop(f);
        return NULL;
    }
    return tkc_op_submit(f);
}

tinkc_tokenizer *tinkc_future_tokenizer(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    const tinkc_tokenizer *t = tkc_future_get(f, "tokenizer", timeout_ms, err);
    return t ? tinkc_tokenizer_keep(t) : NULL;
}

#else /* built without the tokenizer */

tkc_hub *tkc_hub_new(tinkc_client *client, tinkc_error *err)
{
    (void)client;
    (void)err;
    return NULL;
}

void tkc_hub_free(tkc_hub *hub)
{
    (void)hub;
}

static bool fail_absent(tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    return tkc_fail(err, TINKC_E_UNSUPPORTED, "this build has no tokenizer");
}

tinkc_future *tinkc_tokenizer_fetch(tinkc_client *client, const char *model,
                                    const char *tokenizer_id,
                                    const tinkc_tokenizer_options *options, tinkc_error *err)
{
    (void)client;
    (void)model;
    (void)tokenizer_id;
    (void)options;
    fail_absent(err);
    return NULL;
}

tinkc_tokenizer *tinkc_future_tokenizer(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    (void)f;
    (void)timeout_ms;
    fail_absent(err);
    return NULL;
}

bool tinkc_tokenizer_register(tinkc_client *client, const char *model,
                              const tinkc_tokenizer *tokenizer, tinkc_error *err)
{
    (void)client;
    (void)model;
    (void)tokenizer;
    return fail_absent(err);
}

#endif
