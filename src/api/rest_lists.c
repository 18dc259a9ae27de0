/* rest_lists.c - runs, checkpoints and sessions, page by page.
 *
 * One pager serves all three; what differs is a row of a table: the endpoint, the default page, and
 * how an answer becomes an array of items. A page is an ordinary future whose arena holds the
 * items, so the page at hand is kept by keeping that future.
 *
 * A list asks at offset = number received and ends when the limit or the newest total is reached or
 * a page brings nothing new. A short page does not end it. Items that a moving list gives twice are
 * recognised by their id and left out. [one thread]
 */
#include "api/rest_priv.h"

#include "api/client_priv.h"
#include "base/map.h"
#include "base/str.h"
#include "codec/query.h"

enum { MAX_PAGES = 1000 * 1000 };

/* What a page's future has as its result. Lives in the future's arena. */
typedef struct page {
    size_t n;
    size_t item_size;
    const unsigned char *items;
    const char *const *ids; /* n of them */
    int64_t total;          /* -1 = the answer does not say */
} page;

typedef struct list_kind {
    int32_t endpoint;
    int32_t page_size;
    bool has_scope, has_project, single_page;
    tkc_rest_class class;
    tkc_decode_fn *decode;
} list_kind;

typedef struct pager {
    tinkc_client *client;
    const list_kind *kind;
    tkc_arena texts;
    const char *project_id, *run_id, *scope;
    int64_t limit, offset, page_size;

    int64_t received; /* by all pages, doubles included: the next offset */
    int64_t given;
    int64_t total; /* -1 = not known */
    int64_t pages;
    bool ended;
    tkc_map seen;

    tinkc_future *now; /* its page holds the items at hand; a reference */
    size_t at;
    bool page_gave;     /* an item that was new */
    tinkc_future *next; /* the page being fetched; a reference */
    int64_t next_asked;
} pager;

/* The three public types are one thing inside. */
struct tinkc_runs {
    pager p;
};
struct tinkc_checkpoints {
    pager p;
};
struct tinkc_sessions {
    pager p;
};

/* ---- answers as pages ---- */

static page *new_page(tinkc_future *f, size_t n, size_t item_size, const char ***ids,
                      unsigned char **items, tinkc_error *err)
{
    page *p = tkc_arena_zalloc(&f->arena, sizeof *p, err);
    *ids = p ? tkc_arena_array(&f->arena, n, sizeof **ids, err) : NULL;
    *items = *ids ? tkc_arena_array(&f->arena, n, item_size, err) : NULL;
    if (!*items)
        return NULL;
    *p = (page){ .n = n, .item_size = item_size, .items = *items, .ids = *ids, .total = -1 };
    f->result = p;
    return p;
}

static bool decode_runs(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_training_runs_response msg;
    const char **ids;
    unsigned char *items;
    if (!tkc_rest_decode(f, answer, &tkc_training_runs_response_type, &msg, err))
        return false;
    page *p = new_page(f, msg.training_runs.len, sizeof(tinkc_run), &ids, &items, err);
    if (!p)
        return false;
    for (size_t i = 0; i < p->n; i++) {
        tinkc_run *run = (tinkc_run *)(void *)items + i;
        if (!tkc_fill_run(run, &msg.training_runs.data[i], &f->arena, err))
            return false;
        ids[i] = run->id;
    }
    p->total = msg.cursor ? msg.cursor->total_count : -1;
    return true;
}

static bool decode_checkpoints(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_checkpoints_response msg;
    const char **ids;
    unsigned char *items;
    if (!tkc_rest_decode(f, answer, &tkc_checkpoints_response_type, &msg, err))
        return false;
    page *p = new_page(f, msg.checkpoints.len, sizeof(tinkc_checkpoint), &ids, &items, err);
    if (!p)
        return false;
    for (size_t i = 0; i < p->n; i++) {
        tinkc_checkpoint *checkpoint = (tinkc_checkpoint *)(void *)items + i;
        tkc_fill_checkpoint(checkpoint, &msg.checkpoints.data[i]);
        ids[i] = checkpoint->path;
    }
    p->total = msg.cursor ? msg.cursor->total_count : -1;
    return true;
}

static bool decode_sessions(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_sessions_response msg;
    const char **ids;
    unsigned char *items;
    size_t n = 0;
    if (!tkc_rest_decode(f, answer, &tkc_sessions_response_type, &msg, err))
        return false;
    while (msg.sessions && msg.sessions[n])
        n++;
    if (!new_page(f, n, sizeof(char), &ids, &items, err))
        return false;
    for (size_t i = 0; i < n; i++)
        ids[i] = msg.sessions[i];
    return true;
}

static const list_kind runs_kind = { .endpoint = TKC_EP_TRAINING_RUNS,
                                     .page_size = 100,
                                     .has_scope = true,
                                     .has_project = true,
                                     .class = { "runs_list", "page" },
                                     .decode = decode_runs };
static const list_kind checkpoints_kind = { .endpoint = TKC_EP_CHECKPOINTS,
                                            .page_size = 1000,
                                            .class = { "checkpoints_list", "page" },
                                            .decode = decode_checkpoints };
static const list_kind run_checkpoints_kind = { .endpoint = TKC_EP_RUN_CHECKPOINTS,
                                                .page_size = 1000,
                                                .single_page = true,
                                                .class = { "checkpoints_list", "page" },
                                                .decode = decode_checkpoints };
static const list_kind sessions_kind = { .endpoint = TKC_EP_SESSIONS,
                                         .page_size = 100,
                                         .has_scope = true,
                                         .class = { "sessions_list", "page" },
                                         .decode = decode_sessions };

/* ---- making one ---- */

static bool check_options(const tinkc_list_options *o, tinkc_error *err)
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

static const char *copy_text(pager *p, const char *text, tinkc_error *err)
{
    return text && *text ? tkc_arena_cstr(&p->texts, text, err) : NULL;
}

static void pager_free(pager *p);

static pager *pager_new(tinkc_client *client, const list_kind *kind,
                        const tinkc_list_options *options, tinkc_error *err)
{
    static const tinkc_list_options defaults = { 0 };
    const tinkc_list_options *o = options ? options : &defaults;
    if (!tkc_client_check(client, err) || !check_options(o, err))
        return NULL;
    const char *scope = tkc_scope_name(o->scope, err);
    pager *p = scope ? tkc_zalloc(client->a, sizeof *p, err) : NULL;
    if (!p)
        return NULL;
    tkc_client_keep(client);
    p->client = client;
    p->kind = kind;
    p->scope = scope;
    p->total = -1;
    p->limit = o->limit;
    p->offset = o->offset;
    p->page_size = o->page_size ? o->page_size : kind->page_size;
    tkc_arena_init(&p->texts, client->a, 0);
    tkc_map_init(&p->seen, client->a);
    p->project_id = copy_text(p, o->project_id, err);
    p->run_id = copy_text(p, o->run_id, err);
    if (tkc_failed(err)) {
        pager_free(p);
        return NULL;
    }
    return p;
}

static void drop_future(tinkc_future **f)
{
    if (*f)
        tkc_future_drop(*f);
    *f = NULL;
}

static void pager_free(pager *p)
{
    if (!p || tkc_client_forked(p->client))
        return;
    tinkc_client *client = p->client;
    drop_future(&p->now);
    drop_future(&p->next);
    tkc_map_free(&p->seen);
    tkc_arena_free(&p->texts);
    tkc_release(client->a, p, sizeof *p);
    tkc_client_drop(client);
}

/* ---- pages ---- */

static int64_t to_ask(const pager *p)
{
    int64_t left = p->limit ? p->limit - p->given : p->page_size;
    return left < p->page_size ? left : p->page_size;
}

static bool is_over(const pager *p)
{
    return p->ended || (p->limit && p->given >= p->limit);
}

/* Starts on the next page: two references, the pager's and the one returned. */
static tinkc_future *ask_page(pager *p, tinkc_error *err)
{
    tkc_buf query;
    tkc_query q;
    tkc_buf_init(&query, p->client->a, TKC_BUF_NO_MAX);
    tkc_query_open(&q, &query, '?', err);
    if (!p->kind->single_page) {
        p->next_asked = to_ask(p);
        tkc_query_i64(&q, "limit", p->next_asked);
        tkc_query_i64(&q, "offset", p->offset + p->received);
        if (p->kind->has_scope)
            tkc_query_str(&q, "access_scope", p->scope);
        if (p->kind->has_project)
            tkc_query_str(&q, "project_id", p->project_id);
    }
    const char *text = tkc_buf_terminate(&query, err);
    if (text) {
        p->next =
            tkc_rest_start(p->client, &p->kind->class,
                           &(tkc_rest_request){
                               .endpoint = p->kind->endpoint, .ids = { p->run_id }, .query = text },
                           p->kind->decode, err);
        if (p->next)
            tkc_future_keep(p->next);
    }
    tkc_buf_free(&query);
    return p->next;
}

/* A page is here: it becomes the one at hand. */
static void absorb(pager *p)
{
    const page *got = p->next->result;
    drop_future(&p->now);
    p->now = p->next;
    p->next = NULL;
    p->at = 0;
    p->page_gave = false;
    p->pages++;
    p->received += (int64_t)got->n;
    if (got->total >= 0)
        p->total = got->total;
    if (got->n == 0 || p->kind->single_page || p->pages >= MAX_PAGES ||
        (p->total >= 0 && p->offset + p->received >= p->total))
        p->ended = true;
    if (p->kind->single_page && p->total < 0)
        p->total = (int64_t)got->n;
}

/* The next item of the page at hand that was not given before; false = the page is used up. */
static bool take(pager *p, const page *pg, size_t *index, tinkc_error *err)
{
    while (p->at < pg->n) {
        tinkc_str id = tkc_str(pg->ids[p->at]);
        size_t here = p->at++;
        if (p->kind->single_page && p->offset > (int64_t)here)
            continue; /* the service does not skip for us */
        if (tkc_map_has(&p->seen, id))
            continue;
        if (!tkc_map_set(&p->seen, id, p, NULL, err))
            return false;
        p->given++;
        p->page_gave = true;
        *index = here;
        return true;
    }
    return false;
}

/* Waits for the page that was asked for. A fetch that the caller cancelled is asked for again. */
static bool await_page(pager *p, tinkc_error *err)
{
    for (bool again = true;; again = false) {
        tinkc_error why = { 0 };
        bool callers = p->next != NULL; /* one that _fetch has given away */
        if (!callers) {
            tinkc_future *f = ask_page(p, err);
            if (!f)
                return false;
            tkc_future_drop(f); /* the pager's own reference is enough */
        }
        if (tinkc_future_wait(p->next, TINKC_FOREVER, &why))
            return true;
        drop_future(&p->next);
        if (!again || !callers || why.code != TINKC_E_CANCELLED) {
            tkc_error_copy(err, &why);
            return false;
        }
    }
}

/* The page and the index of the next item; NULL = the end or an error. */
static const page *pager_next(pager *p, size_t *index, tinkc_error *err)
{
    if (!tkc_client_check(p->client, err))
        return NULL;
    for (;;) {
        if (p->limit && p->given >= p->limit)
            return NULL;
        if (p->now && take(p, p->now->result, index, err))
            return p->now->result;
        if (tkc_failed(err))
            return NULL;
        /* A whole page that brought nothing new: the service does not move on. */
        if (p->now && !p->page_gave && p->total < 0)
            p->ended = true;
        if (is_over(p) && !p->next)
            return NULL;
        if (!await_page(p, err))
            return NULL;
        absorb(p);
    }
}

/* ---- for a loop of the caller's own ---- */

static void finish_at_once(tinkc_future *f)
{
    tkc_op_finish(f, NULL);
}

static const tkc_op_class nothing_class = { "list_end",     "nothing",     0,
                                            finish_at_once, tkc_op_finish, NULL };

static tinkc_future *pager_fetch(pager *p, tinkc_error *err)
{
    if (!tkc_client_check(p->client, err))
        return NULL;
    if (p->next) {
        tkc_future_keep(p->next);
        return p->next;
    }
    if (is_over(p)) {
        tinkc_future *f = tkc_op_new(p->client, &nothing_class, err);
        return f ? tkc_op_submit(f) : NULL;
    }
    return ask_page(p, err);
}

static size_t fresh_in(const pager *p, const tinkc_future *f, size_t from)
{
    const page *pg = f->result;
    size_t n = 0;
    for (size_t i = from; i < pg->n; i++)
        if (!tkc_map_has(&p->seen, tkc_str(pg->ids[i])) &&
            !(p->kind->single_page && p->offset > (int64_t)i))
            n++;
    return n;
}

static size_t pager_ready(const pager *p)
{
    size_t n = p->now ? fresh_in(p, p->now, p->at) : 0;
    if (p->next && tinkc_future_done(p->next) && tinkc_future_wait(p->next, 0, NULL))
        n += fresh_in(p, p->next, 0);
    if (p->limit && (int64_t)n > p->limit - p->given)
        n = (size_t)(p->limit - p->given);
    return n;
}

static int64_t pager_total(const pager *p)
{
    if (p->next && tinkc_future_done(p->next) && tinkc_future_wait(p->next, 0, NULL)) {
        const page *pg = p->next->result;
        if (pg->total >= 0)
            return pg->total;
    }
    return p->total;
}

/* ---- the public faces ---- */

tinkc_runs *tinkc_runs_list(tinkc_client *client, const tinkc_list_options *options,
                            tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return (tinkc_runs *)(void *)pager_new(client, &runs_kind, options, err);
}

tinkc_checkpoints *tinkc_checkpoints_list(tinkc_client *client, const tinkc_list_options *options,
                                          tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    bool of_run = options && options->run_id && *options->run_id;
    return (tinkc_checkpoints *)(void *)pager_new(
        client, of_run ? &run_checkpoints_kind : &checkpoints_kind, options, err);
}

tinkc_sessions *tinkc_sessions_list(tinkc_client *client, const tinkc_list_options *options,
                                    tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return (tinkc_sessions *)(void *)pager_new(client, &sessions_kind, options, err);
}

/* What `_next` and `_fetch` of all three begin with. */
static bool enter_list(const void *list, tinkc_error **err, tinkc_error *local)
{
    if (!tkc_enter(err, local))
        return false;
    if (!list)
        return tkc_fail(*err, TINKC_E_ARGUMENT, "the list is NULL");
    return true;
}

const tinkc_run *tinkc_runs_next(tinkc_runs *list, tinkc_error *err)
{
    tinkc_error local;
    size_t i;
    if (!enter_list(list, &err, &local))
        return NULL;
    const page *pg = pager_next(&list->p, &i, err);
    return pg ? (const tinkc_run *)(const void *)pg->items + i : NULL;
}

const tinkc_checkpoint *tinkc_checkpoints_next(tinkc_checkpoints *list, tinkc_error *err)
{
    tinkc_error local;
    size_t i;
    if (!enter_list(list, &err, &local))
        return NULL;
    const page *pg = pager_next(&list->p, &i, err);
    return pg ? (const tinkc_checkpoint *)(const void *)pg->items + i : NULL;
}

const char *tinkc_sessions_next(tinkc_sessions *list, tinkc_error *err)
{
    tinkc_error local;
    size_t i;
    if (!enter_list(list, &err, &local))
        return NULL;
    const page *pg = pager_next(&list->p, &i, err);
    return pg ? pg->ids[i] : NULL;
}

tinkc_future *tinkc_runs_fetch(tinkc_runs *list, tinkc_error *err)
{
    tinkc_error local;
    return enter_list(list, &err, &local) ? pager_fetch(&list->p, err) : NULL;
}

tinkc_future *tinkc_checkpoints_fetch(tinkc_checkpoints *list, tinkc_error *err)
{
    tinkc_error local;
    return enter_list(list, &err, &local) ? pager_fetch(&list->p, err) : NULL;
}

tinkc_future *tinkc_sessions_fetch(tinkc_sessions *list, tinkc_error *err)
{
    tinkc_error local;
    return enter_list(list, &err, &local) ? pager_fetch(&list->p, err) : NULL;
}

size_t tinkc_runs_ready(const tinkc_runs *list)
{
    return list ? pager_ready(&list->p) : 0;
}

size_t tinkc_checkpoints_ready(const tinkc_checkpoints *list)
{
    return list ? pager_ready(&list->p) : 0;
}

size_t tinkc_sessions_ready(const tinkc_sessions *list)
{
    return list ? pager_ready(&list->p) : 0;
}

int64_t tinkc_runs_total(const tinkc_runs *list)
{
    return list ? pager_total(&list->p) : -1;
}

int64_t tinkc_checkpoints_total(const tinkc_checkpoints *list)
{
    return list ? pager_total(&list->p) : -1;
}

void tinkc_runs_free(tinkc_runs *list)
{
    pager_free((pager *)(void *)list);
}

void tinkc_checkpoints_free(tinkc_checkpoints *list)
{
    pager_free((pager *)(void *)list);
}

void tinkc_sessions_free(tinkc_sessions *list)
{
    pager_free((pager *)(void *)list);
}
