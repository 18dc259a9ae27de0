/* rest_lists.c - runs, checkpoints and sessions as lists: what is asked, what an answer holds.
 *
 * May touch: its arguments, wire messages, the pager. Must not: know of threads, sockets, retries.
 */
#include "client/core/client_priv.h"
#include "client/rest/pager.h"
#include "base/str.h"
#include "codec/query.h"

/* The three public types are one thing inside. */
struct tinkc_runs {
    tkc_pager p;
};
struct tinkc_checkpoints {
    tkc_pager p;
};
struct tinkc_sessions {
    tkc_pager p;
};

/* ---- answers as pages ---- */

static void decode_runs(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_training_runs_response msg;
    const char **ids;
    unsigned char *items;
    if (!tkc_rest_decode(f, answer, &tkc_training_runs_response_type, &msg, err))
        return;
    tkc_page *p = tkc_page_new(f, msg.training_runs.len, sizeof(tinkc_run), &ids, &items, err);
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        tinkc_run *run = (tinkc_run *)(void *)items + i;
        if (!tkc_fill_run(run, &msg.training_runs.data[i], &f->arena, err))
            return;
        ids[i] = run->id;
    }
    p->total = msg.cursor->total_count;
}

static void decode_checkpoints(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_checkpoints_response msg;
    const char **ids;
    unsigned char *items;
    if (!tkc_rest_decode(f, answer, &tkc_checkpoints_response_type, &msg, err))
        return;
    tkc_page *p = tkc_page_new(f, msg.checkpoints.len, sizeof(tinkc_checkpoint), &ids, &items, err);
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        tinkc_checkpoint *checkpoint = (tinkc_checkpoint *)(void *)items + i;
        tkc_fill_checkpoint(checkpoint, &msg.checkpoints.data[i]);
        ids[i] = checkpoint->path;
    }
    p->total = msg.cursor ? msg.cursor->total_count : -1;
}

/* This list has no cursor, so no total: only an empty page, or one that brings nothing new, ends
 * it. */
static void decode_sessions(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_sessions_response msg;
    const char **ids;
    unsigned char *items;
    size_t n = 0;
    if (!tkc_rest_decode(f, answer, &tkc_sessions_response_type, &msg, err))
        return;
    while (msg.sessions && msg.sessions[n])
        n++;
    if (!tkc_page_new(f, n, sizeof(char), &ids, &items, err))
        return;
    for (size_t i = 0; i < n; i++)
        ids[i] = msg.sessions[i];
}

/* ---- questions ---- */

/* A row of each list. Futures point at its class, so rows are static. */
typedef struct list_row {
    tkc_list_kind kind;
    int32_t endpoint;
    bool has_scope, has_project;
    tkc_rest_class class;
    tkc_decode_fn *decode;
} list_row;

typedef struct question {
    const list_row *row;
    const char *scope, *project_id, *run_id; /* NULL = the endpoint has no such parameter */
} question;

static tinkc_future *ask_list(tkc_pager *p, int64_t limit, tinkc_error *err)
{
    const question *what = p->question;
    tkc_buf query;
    tkc_query q;
    tkc_buf_init(&query, p->client->a, TKC_BUF_NO_MAX);
    tkc_query_open(&q, &query, '?', err);
    if (!p->kind->single_page) {
        tkc_query_i64(&q, "limit", limit);
        /* By what was received, doubles included: the service counts those, too. */
        tkc_query_i64(&q, "offset", p->offset + p->received);
        tkc_query_str(&q, "access_scope", what->scope);
        tkc_query_str(&q, "project_id", what->project_id);
    }
    const char *text = tkc_buf_terminate(&query, err);
    tinkc_future *f = NULL;
    if (text)
        f = tkc_rest_start(p->client, &what->row->class,
                           &(tkc_rest_request){ .endpoint = what->row->endpoint,
                                                .ids = { what->run_id },
                                                .query = text },
                           what->row->decode, err);
    tkc_buf_free(&query);
    return f;
}

/* Page sizes of the Python SDK's command. */
static const list_row runs_row = { .kind = { .page_size = 100, .ask = ask_list },
                                   .endpoint = TKC_EP_TRAINING_RUNS,
                                   .has_scope = true,
                                   .has_project = true,
                                   .class = { "runs_list", "page" },
                                   .decode = decode_runs };
static const list_row checkpoints_row = { .kind = { .page_size = 1000, .ask = ask_list },
                                          .endpoint = TKC_EP_CHECKPOINTS,
                                          .class = { "checkpoints_list", "page" },
                                          .decode = decode_checkpoints };
static const list_row run_checkpoints_row = {
    .kind = { .page_size = 1000, .single_page = true, .ask = ask_list },
    .endpoint = TKC_EP_RUN_CHECKPOINTS,
    .class = { "checkpoints_list", "page" },
    .decode = decode_checkpoints
};
static const list_row sessions_row = { .kind = { .page_size = 100, .ask = ask_list },
                                       .endpoint = TKC_EP_SESSIONS,
                                       .has_scope = true,
                                       .class = { "sessions_list", "page" },
                                       .decode = decode_sessions };

/* ---- making one ---- */

static bool check_list_options(const tinkc_list_options *o, tinkc_error *err)
{
    if (o->limit < 0 || o->offset < 0 || o->page_size < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is negative",
                        o->limit < 0    ? "limit"
                        : o->offset < 0 ? "offset"
                                        : "page_size");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "list options: reserved must be zero");
    return true;
}

static const char *copy_text(tkc_pager *p, const char *text, tinkc_error *err)
{
    return text && *text ? tkc_arena_cstr(&p->texts, text, err) : NULL;
}

static void *new_list(tinkc_client *client, const list_row *row, const tinkc_list_options *o,
                      tinkc_error *err)
{
    const char *scope = check_list_options(o, err) ? tkc_scope_name(o->scope, err) : NULL;
    tkc_pager *p =
        scope ? tkc_pager_new(client, &row->kind, o->limit, o->offset, o->page_size, err) : NULL;
    question *q = p ? tkc_arena_zalloc(&p->texts, sizeof *q, err) : NULL;
    if (q) {
        q->row = row;
        q->scope = row->has_scope ? scope : NULL;
        q->project_id = row->has_project ? copy_text(p, o->project_id, err) : NULL;
        q->run_id = copy_text(p, o->run_id, err);
        p->question = q;
    }
    if (tkc_failed(err)) {
        tkc_pager_free(p);
        return NULL;
    }
    return p;
}

/* ---- the public functions ---- */

static const tinkc_list_options defaults;

tinkc_runs *tinkc_runs_list(tinkc_client *client, const tinkc_list_options *options,
                            tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return new_list(client, &runs_row, options ? options : &defaults, err);
}

tinkc_checkpoints *tinkc_checkpoints_list(tinkc_client *client, const tinkc_list_options *options,
                                          tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    const tinkc_list_options *o = options ? options : &defaults;
    bool of_run = o->run_id && *o->run_id;
    return new_list(client, of_run ? &run_checkpoints_row : &checkpoints_row, o, err);
}

tinkc_sessions *tinkc_sessions_list(tinkc_client *client, const tinkc_list_options *options,
                                    tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return new_list(client, &sessions_row, options ? options : &defaults, err);
}

const tinkc_run *tinkc_runs_next(tinkc_runs *list, tinkc_error *err)
{
    tinkc_error local;
    size_t i;
    const tkc_page *pg =
        tkc_enter(&err, &local) ? tkc_pager_next((tkc_pager *)list, &i, err) : NULL;
    return pg ? (const tinkc_run *)(const void *)pg->items + i : NULL;
}

const tinkc_checkpoint *tinkc_checkpoints_next(tinkc_checkpoints *list, tinkc_error *err)
{
    tinkc_error local;
    size_t i;
    const tkc_page *pg =
        tkc_enter(&err, &local) ? tkc_pager_next((tkc_pager *)list, &i, err) : NULL;
    return pg ? (const tinkc_checkpoint *)(const void *)pg->items + i : NULL;
}

const char *tinkc_sessions_next(tinkc_sessions *list, tinkc_error *err)
{
    tinkc_error local;
    size_t i;
    const tkc_page *pg =
        tkc_enter(&err, &local) ? tkc_pager_next((tkc_pager *)list, &i, err) : NULL;
    return pg ? pg->ids[i] : NULL;
}

tinkc_future *tinkc_runs_fetch(tinkc_runs *list, tinkc_error *err)
{
    tinkc_error local;
    return tkc_enter(&err, &local) ? tkc_pager_fetch((tkc_pager *)list, err) : NULL;
}

tinkc_future *tinkc_checkpoints_fetch(tinkc_checkpoints *list, tinkc_error *err)
{
    tinkc_error local;
    return tkc_enter(&err, &local) ? tkc_pager_fetch((tkc_pager *)list, err) : NULL;
}

tinkc_future *tinkc_sessions_fetch(tinkc_sessions *list, tinkc_error *err)
{
    tinkc_error local;
    return tkc_enter(&err, &local) ? tkc_pager_fetch((tkc_pager *)list, err) : NULL;
}

size_t tinkc_runs_ready(const tinkc_runs *list)
{
    return tkc_pager_ready((const tkc_pager *)list);
}

size_t tinkc_checkpoints_ready(const tinkc_checkpoints *list)
{
    return tkc_pager_ready((const tkc_pager *)list);
}

size_t tinkc_sessions_ready(const tinkc_sessions *list)
{
    return tkc_pager_ready((const tkc_pager *)list);
}

int64_t tinkc_runs_total(const tinkc_runs *list)
{
    return tkc_pager_total((const tkc_pager *)list);
}

int64_t tinkc_checkpoints_total(const tinkc_checkpoints *list)
{
    return tkc_pager_total((const tkc_pager *)list);
}

void tinkc_runs_free(tinkc_runs *list)
{
    tkc_pager_free((tkc_pager *)list);
}

void tinkc_checkpoints_free(tinkc_checkpoints *list)
{
    tkc_pager_free((tkc_pager *)list);
}

void tinkc_sessions_free(tinkc_sessions *list)
{
    tkc_pager_free((tkc_pager *)list);
}
