/* tokenizer_fetch.c - tokenizers by model name: which repository, who has asked already, who waits.
 *
 * Fetching and opening take a while and wait on files, so each repository that is asked for gets a
 * thread of its own; all who ask for the same wait for that one. Jobs belong to the I/O thread;
 * what is registered and cached lies under a lock, because registering takes effect at once.
 */
#include "client/core/tokenizer_fetch.h"

#include <stdio.h>
#include <string.h>
#include "client/core/client_priv.h"
#include "base/map.h"
#include "base/str.h"
#include "hub/hub_priv.h"
#include "tokenizer/open_with.h"

/* ---- which repository: a pure function of two names ---- */

typedef struct pin {
    const char *id, *repo, *revision;
} pin;

/* Fixed revisions: what these repositories change must not change tokens. */
static const pin pins[] = {
    { "moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2-Thinking",
      "612681931a8c906ddb349f8ad0f582cb552189cd" },
    { "moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5", "4d01dfe0332d63057c186e0b262165819efb6611" },
    { "moonshotai/Kimi-K2.5-Text-Only", "moonshotai/Kimi-K2.5",
      "4d01dfe0332d63057c186e0b262165819efb6611" },
    { "moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.6", "b5aabbfb20227ed42becbf5541dbffd213942c58" },
    { "moonshotai/Kimi-K3", "moonshotai/Kimi-K3", "f831ab66814297da540d832a5235f8e904f29d06" },
};

/* The model's own repository cannot be read without an account that has been granted access. */
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
    /* An id that is given names its repository as it is. */
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

enum { CACHE_ENTRIES = 32, HUB_PATIENCE_MS = 30000 };

typedef struct cached {
    char *key; /* model, a newline, tokenizer_id, a newline, the place */
    tinkc_tokenizer *tokenizer;
    uint64_t used;
} cached;

typedef struct job job;

struct tkc_tokenizers {
    tinkc_client *client;
    tinkc_hub *hub;         /* as the environment said when the client was made */
    const char *user_cache; /* likewise: for compiled forms */

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
    tinkc_hub *hub; /* until a job takes it */
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
    tinkc_hub *hub;
    tinkc_hub *server; /* the service, as a hub for its own models; NULL = it is none */
    bool unsure;       /* whether it is one: it has not been asked anything yet */
    bool no_compiled_cache;
    pthread_t thread;
    tkc_task after;
    fetch_op *waiters;
    tinkc_tokenizer *tokenizer;
    tinkc_error err;
};

tkc_tokenizers *tkc_tokenizers_new(tinkc_client *client, const tinkc_client_options *o,
                                   tinkc_error *err)
{
    tkc_tokenizers *all = tkc_zalloc(client->a, sizeof *all, err);
    if (!all)
        return NULL;
    all->client = client;
    pthread_mutex_init(&all->shared.lock, NULL);
    tkc_map_init(&all->shared.registered, client->a);
    tinkc_hub_options hub = { .allocator = client->a,
                              .proxy = o->proxy,
                              .ca_file = o->ca_file,
                              .no_retries = client->no_retries,
                              .log = client->log.fn,
                              .log_user = client->log.user,
                              .log_level = client->log.level };
    /* Nobody waits for a hub longer than for the service. */
    if (client->retry_window_ms > 0 && client->retry_window_ms < HUB_PATIENCE_MS)
        hub.retry_window_ms = client->retry_window_ms;
    all->hub = tinkc_hub_new(&hub, err);
    all->user_cache = tkc_user_cache(&client->texts, err);
    if (!all->hub || !all->user_cache) {
        tkc_tokenizers_free(all);
        return NULL;
    }
    return all;
}

void tkc_tokenizers_free(tkc_tokenizers *all)
{
    size_t place = 0;
    const tkc_map_entry *e;
    if (!all)
        return;
    while ((e = tkc_map_next(&all->shared.registered, &place)))
        tinkc_tokenizer_free(e->value);
    for (size_t i = 0; i < CACHE_ENTRIES; i++) {
        tinkc_tokenizer_free(all->shared.cache[i].tokenizer);
        tkc_release_str(all->client->a, all->shared.cache[i].key);
    }
    tkc_map_free(&all->shared.registered);
    tinkc_hub_free(all->hub);
    pthread_mutex_destroy(&all->shared.lock);
    tkc_release(all->client->a, all, sizeof *all);
}

/* A handle of the caller's, or NULL. */
static tinkc_tokenizer *find_known(tkc_tokenizers *all, const char *model, const char *key)
{
    tinkc_tokenizer *found;
    pthread_mutex_lock(&all->shared.lock);
    /* What the program has registered goes before anything that was fetched. */
    found = tkc_map_get(&all->shared.registered, tkc_str(model));
    for (size_t i = 0; !found && i < CACHE_ENTRIES; i++) {
        cached *c = &all->shared.cache[i];
        if (c->key && strcmp(c->key, key) == 0) {
            c->used = ++all->shared.clock;
            found = c->tokenizer;
        }
    }
    /* Under the lock, or it may be dropped from the cache before. */
    if (found)
        found = tinkc_tokenizer_keep(found);
    pthread_mutex_unlock(&all->shared.lock);
    return found;
}

/* The least recently used makes room. */
static void remember(tkc_tokenizers *all, const char *key, const tinkc_tokenizer *tokenizer)
{
    tinkc_error ignored = { 0 };
    cached old = { 0 };
    char *copy = tkc_copy_str(all->client->a, tkc_str(key), &ignored);
    if (!copy)
        return;
    pthread_mutex_lock(&all->shared.lock);
    cached *c = &all->shared.cache[0];
    for (size_t i = 1; i < CACHE_ENTRIES; i++)
        if (all->shared.cache[i].used < c->used)
            c = &all->shared.cache[i];
    old = *c;
    *c = (cached){ copy, tinkc_tokenizer_keep(tokenizer), ++all->shared.clock };
    pthread_mutex_unlock(&all->shared.lock);
    tinkc_tokenizer_free(old.tokenizer);
    tkc_release_str(all->client->a, old.key);
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
    tkc_tokenizers *all = client->tokenizers;
    tinkc_tokenizer *mine = tinkc_tokenizer_keep(tokenizer);
    void *old = NULL;
    pthread_mutex_lock(&all->shared.lock);
    bool ok = tkc_map_set(&all->shared.registered, tkc_str(model), mine, &old, err);
    pthread_mutex_unlock(&all->shared.lock);
    tinkc_tokenizer_free(ok ? old : mine);
    return ok;
}

/* ---- the worker ---- */

static bool is_closed_model(const char *repo)
{
    tinkc_str s = tkc_str(repo);
    return tkc_starts_with(s, "TML/") || tkc_starts_with(s, "thinkingmachines/");
}

/* The folder with the repository's tokenizer, pulled if it is not there. */
static tinkc_hub_snapshot *get_files(job *j, const char *repo, const char *revision,
                                     tinkc_error *err)
{
    tinkc_error missing = { 0 };
    tinkc_hub_snapshot *s = tinkc_hub_find(j->hub, repo, revision, TINKC_PULL_TOKENIZER, &missing);
    if (s || missing.code != TINKC_E_NOT_FOUND) {
        tkc_error_copy(err, &missing);
        return s;
    }
    if (j->hub->offline) {
        tkc_fail(err, TINKC_E_OFFLINE,
                 "the tokenizer of %s is not in %s, and the hub is switched off (--offline, "
                 "HF_HUB_OFFLINE)",
                 repo, j->hub->cache);
        return NULL;
    }
    return tinkc_hub_pull(
        j->hub,
        &(tinkc_pull_options){ .repo = repo, .revision = revision, .what = TINKC_PULL_TOKENIZER },
        err);
}

/* Whatever the hub has against it, what fails is the tokenizer; the network keeps its own codes. */
static void explain_failure(tinkc_error *err)
{
    static const int32_t ours[] = { TINKC_E_ARGUMENT, TINKC_E_AUTH, TINKC_E_FORBIDDEN,
                                    TINKC_E_NOT_FOUND, TINKC_E_BAD_RESPONSE };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (err->code == ours[i]) {
            tinkc_error was = *err;
            *err = (tinkc_error){ 0 };
            tkc_fail(err, TINKC_E_TOKENIZER, "tokenizer: %s", was.message);
            err->http_status = was.http_status;
            return;
        }
}

/* Is it here, as the hub has it? */
static bool is_cached(job *j)
{
    tinkc_error ignored = { 0 };
    tinkc_text repo = { 0 }, revision = { 0 };
    tinkc_hub_snapshot *s = NULL;
    if (tinkc_tokenizer_resolve(j->model, j->tokenizer_id, &repo, &revision, &ignored))
        s = tinkc_hub_find(j->hub, repo.data, revision.len ? revision.data : NULL,
                           TINKC_PULL_TOKENIZER, &ignored);
    tinkc_text_free(&repo);
    tinkc_text_free(&revision);
    tinkc_hub_snapshot_free(s);
    return s != NULL;
}

/* From the service itself, if the model is one of its own. It is asked each time what it has now;
 * whatever fails there, the hub is asked next. */
static tinkc_hub_snapshot *get_from_server(job *j)
{
    tinkc_error ignored = { 0 };
    tinkc_str model = before_colon(j->model);
    const char *repo = tkc_arena_str(&j->arena, model, &ignored);
    if (!j->server || !repo || (j->unsure && is_cached(j)))
        return NULL;
    return tinkc_hub_pull(
        j->server, &(tinkc_pull_options){ .repo = repo, .what = TINKC_PULL_TOKENIZER }, &ignored);
}

static void run_job(job *j, tinkc_error *err)
{
    tinkc_text repo = { 0 }, revision = { 0 };
    tinkc_hub_snapshot *s = get_from_server(j);
    if (!s && tinkc_tokenizer_resolve(j->model, j->tokenizer_id, &repo, &revision, err) &&
        is_closed_model(repo.data))
        tkc_fail(err, TINKC_E_TOKENIZER,
                 "%s has no public tokenizer: register one with tinkc_tokenizer_register",
                 repo.data);
    if (!s && !tkc_failed(err))
        s = get_files(j, repo.data, revision.len ? revision.data : NULL, err);
    explain_failure(err);
    if (s)
        j->tokenizer = tkc_tokenizer_open_with(
            tinkc_hub_snapshot_folder(s),
            &(tinkc_tokenizer_options){ .no_compiled_cache = j->no_compiled_cache },
            j->client->tokenizers->user_cache, err);
    tinkc_hub_snapshot_free(s);
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
    tinkc_hub_free(j->hub);
    tinkc_hub_free(j->server);
    tkc_arena_free(&j->arena);
    tkc_release(client->a, j, sizeof *j);
}

static void leave_job(fetch_op *op)
{
    *op->link = op->next;
    if (op->next)
        op->next->link = op->link;
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
    /* Posting this was its last act: the wait is short. */
    pthread_join(j->thread, NULL);
    unlink_job(j);
    if (j->tokenizer)
        /* A failure is not remembered: the next call asks again. */
        remember(client->tokenizers, j->key, j->tokenizer);
    while (j->waiters) {
        fetch_op *op = j->waiters;
        leave_job(op);
        op->f.result = j->tokenizer ? tinkc_tokenizer_keep(j->tokenizer) : NULL;
        tkc_op_finish(&op->f, &j->err);
    }
    free_job(j);
    tkc_client_reply_back(client); /* the last thing: it may end the loop */
}

/* The service as a hub, unless it is known to be none. Its files have a cache of their own: what a server
 * calls "org/name" need not be what the hub calls so. The hub's token is not for it. */
static tinkc_hub *server_as_hub(const tkc_tokenizers *all, fetch_op *op)
{
    tinkc_error ignored = { 0 };
    const tinkc_client *client = all->client;
    tinkc_str url = tkc_str(client->base_url);
    bool asked = client->io.flags.json.len > 0; /* then it has said so, or is none */
    if ((asked && !client->io.flags.serves_tokenizers.value) || !tkc_starts_with(url, "http") ||
        strcmp(op->hub->url, all->hub->url) != 0 || !*all->user_cache)
        return NULL;
    char folder[32];
    (void)snprintf(folder, sizeof folder, "%016llx",
                   (unsigned long long)tkc_hash(url.data, url.len));
    const char *cache =
        tkc_arena_printf(&op->f.arena, &ignored, "%s/servers/%s", all->user_cache, folder);
    tinkc_hub *h =
        cache ? tkc_hub_with(all->hub, client->base_url, NULL, cache, false, &ignored) : NULL;
    if (!h)
        return NULL;
    h->token = client->api_key ? tkc_arena_cstr(&h->texts, client->api_key, &ignored) : NULL;
    h->offline = false;
    /* The hub is asked next: no time is lost on repetitions here. */
    h->no_retries = true;
    return h;
}

static job *start_job(tkc_tokenizers *all, fetch_op *op, tinkc_error *err)
{
    tinkc_client *client = all->client;
    job *j = tkc_zalloc(client->a, sizeof *j, err);
    if (!j)
        return NULL;
    j->client = client;
    tkc_arena_init(&j->arena, client->a, 0);
    j->server = server_as_hub(all, op);
    j->unsure = client->io.flags.json.len == 0;
    j->hub = op->hub;
    op->hub = NULL;
    j->key = tkc_arena_cstr(&j->arena, op->key, err);
    j->model = tkc_arena_cstr(&j->arena, op->model, err);
    j->tokenizer_id = op->tokenizer_id ? tkc_arena_cstr(&j->arena, op->tokenizer_id, err) : NULL;
    j->no_compiled_cache = op->no_compiled_cache;
    j->after.run = after_worker;
    if (tkc_failed(err) || !tkc_thread_start(&j->thread, worker, j, "tinkc-tokenizer", err)) {
        free_job(j);
        return NULL;
    }
    atomic_fetch_add(&client->replies, 1); /* the client's loop stays until it is back */
    j->next = all->jobs;
    j->link = &all->jobs;
    if (j->next)
        j->next->link = &j->next;
    all->jobs = j;
    return j;
}

static void fetch_start(tinkc_future *f)
{
    fetch_op *op = (fetch_op *)(void *)f;
    tkc_tokenizers *all = f->client->tokenizers;
    tinkc_error err = { 0 };
    f->result = find_known(all, op->model, op->key);
    if (f->result) {
        tkc_op_finish(f, NULL);
        return;
    }
    job *j = all->jobs;
    while (j && strcmp(j->key, op->key) != 0)
        j = j->next;
    if (!j)
        j = start_job(all, op, &err);
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
        if (!j->waiters) { /* nobody wants it any more */
            tinkc_hub_stop(j->hub);
            if (j->server)
                tinkc_hub_stop(j->server);
        }
    }
    tkc_op_finish(f, why);
}

static void fetch_destroy(tinkc_future *f)
{
    tinkc_tokenizer_free(f->result);
    tinkc_hub_free(((fetch_op *)(void *)f)->hub);
}

static const tkc_op_class fetch_class = { "tokenizer_fetch", "tokenizer", sizeof(fetch_op),
                                          fetch_start,       fetch_stop,  fetch_destroy };

/* ---- the call ---- */

static bool check_fetch_options(const tinkc_tokenizer_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "tokenizer options: reserved must be zero");
    return true;
}

static bool fill_op(fetch_op *op, const char *model, const char *tokenizer_id,
                    const tinkc_tokenizer_options *o, tinkc_error *err)
{
    tkc_arena *arena = &op->f.arena;
    const tkc_tokenizers *all = op->f.client->tokenizers;
    op->model = tkc_arena_cstr(arena, model, err);
    op->tokenizer_id =
        tokenizer_id && *tokenizer_id ? tkc_arena_cstr(arena, tokenizer_id, err) : NULL;
    op->no_compiled_cache = o->no_compiled_cache;
    op->hub = tkc_hub_with(all->hub, o->hub_url, o->hub_token, o->cache_dir, o->offline, err);
    if (op->hub)
        op->key = tkc_arena_printf(arena, err, "%s\n%s\n%s\n%s", model,
                                   op->tokenizer_id ? op->tokenizer_id : "", op->hub->cache,
                                   op->hub->url);
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
    if (!check_fetch_options(options, err))
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

tkc_tokenizers *tkc_tokenizers_new(tinkc_client *client, const tinkc_client_options *o,
                                   tinkc_error *err)
{
    (void)client;
    (void)o;
    (void)err;
    return NULL;
}

void tkc_tokenizers_free(tkc_tokenizers *all)
{
    (void)all;
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
