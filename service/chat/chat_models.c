/* chat_models.c - /v1/models: what the caller can sample from by name, in OpenAI's form and in Anthropic's.
 *
 * Both list the base models that the server offers, then the caller's own sampler checkpoints. Anthropic's comes in pages.
 * Thread: any front thread. May touch: svc under its lock.
 */
#include "codec/url.h"
#include "service/chat/chat_paths.h"
#include "service/chat/chat_state.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"

enum { PAGE = 20, MOST_OF_A_PAGE = 1000 };

typedef struct offer {
    const char *id;
    const tke_base *base;
    int64_t since_us;
} offer;

static void write_for_openai(tkc_jsonw *w, const offer *o)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, o->id);
    tkc_jsonw_key(w, "object");
    tkc_jsonw_cstr(w, "model");
    tkc_jsonw_key(w, "created");
    tkc_jsonw_i64(w, o->since_us / 1000000);
    tkc_jsonw_key(w, "owned_by");
    tkc_jsonw_cstr(w, "tinkc");
    tkc_jsonw_end(w);
}

static void write_for_anthropic(tkc_jsonw *w, const offer *o)
{
    char since[TKC_TIME_TEXT];
    tkc_format_time(o->since_us, false, since);
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, "model");
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, o->id);
    tkc_jsonw_key(w, "display_name");
    tkc_jsonw_cstr(w, o->id);
    tkc_jsonw_key(w, "created_at");
    tkc_jsonw_cstr(w, since);
    tkc_jsonw_key(w, "lifecycle");
    tkc_jsonw_cstr(w, "active");
    tkc_jsonw_key(w, "max_input_tokens"); /* prompt and answer share the context */
    tkc_jsonw_i64(w, (int64_t)o->base->context);
    tkc_jsonw_key(w, "max_tokens");
    tkc_jsonw_i64(w, (int64_t)o->base->context);
    tkc_jsonw_end(w);
}

/* Locks: needs svc->lock. May the caller sample from it by this name? */
static bool is_offered(tke_call *call, const tke_checkpoint *c)
{
    return c->kind == TKE_CKPT_SAMPLER && tkc_cstr_eq(c->owner, call->owner) && c->run &&
           c->run->base && tke_checkpoint_visible(call->svc, c);
}

static offer offer_of(const tke_checkpoint *c)
{
    return (offer){ c->path, c->run->base, c->created_us };
}

/* Locks: needs svc->lock. All offers, in the call's arena; NULL: call->err. */
static offer *list_offers(tke_call *call, size_t *count)
{
    tke_service *svc = call->svc;
    const tke_base *base;
    const tke_checkpoint *c;
    size_t most = 0, n = 0;
    for (size_t at = 0; tke_next_base(svc, &at);)
        most++;
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));)
        most += is_offered(call, c);
    offer *all = tkc_arena_array(&call->arena, most + 1, sizeof *all, &call->err);
    for (size_t at = 0; all && (base = tke_next_base(svc, &at));)
        if (tke_call_offers(call, base->name))
            all[n++] = (offer){ base->name, base, base->added_us };
    for (size_t at = 0; all && (c = tke_next_checkpoint(svc, &at));)
        if (is_offered(call, c))
            all[n++] = offer_of(c);
    *count = n;
    return all;
}

static void write_list(tkc_jsonw *w, const offer *all, size_t n)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "object");
    tkc_jsonw_cstr(w, "list");
    tkc_jsonw_key(w, "data");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < n; i++)
        write_for_openai(w, &all[i]);
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

/* ---- pages of Anthropic's form ---- */

typedef struct page {
    int64_t limit;
    const char *after, *before; /* ids; NULL = not given */
} page;

/* False after an answer. */
static bool read_page(tke_call *call, page *p)
{
    p->after = tke_call_query(call, "after_id");
    p->before = tke_call_query(call, "before_id");
    if (!tke_call_query_i64(call, "limit", PAGE, &p->limit))
        return false;
    if (p->limit < 1 || p->limit > MOST_OF_A_PAGE)
        return tke_chat_refuse(call, "limit", "limit must be from 1 to 1000");
    if (p->after && p->before)
        return tke_chat_refuse(call, "before_id", "after_id and before_id: give one of them");
    return !tkc_failed(&call->err) || tke_chat_refuse_failure(call, NULL);
}

/* The place of an id; n = it is not there. */
static size_t place_of(const offer *all, size_t n, const char *id)
{
    size_t at = 0;
    while (at < n && !tkc_cstr_eq(all[at].id, id))
        at++;
    return at;
}

static void write_id(tkc_jsonw *w, const char *key, const offer *o)
{
    tkc_jsonw_key(w, key);
    if (o)
        tkc_jsonw_cstr(w, o->id);
    else
        tkc_jsonw_null(w);
}

/* Up to `limit` of them behind `after`, or in front of `before`; a page of an id that is not there is empty. */
static void write_page(tkc_jsonw *w, const offer *all, size_t n, const page *p)
{
    size_t limit = (size_t)p->limit, from = 0, to = n;
    if (p->after)
        from = place_of(all, n, p->after) + 1;
    from = from < n ? from : n;
    if (p->before) {
        to = place_of(all, n, p->before) % (n ? n : 1);
        from = to > limit ? to - limit : 0;
    }
    bool more = p->before ? from > 0 : to - from > limit;
    to = to - from > limit ? from + limit : to;
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "data");
    tkc_jsonw_array(w);
    for (size_t i = from; i < to; i++)
        write_for_anthropic(w, &all[i]);
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "has_more");
    tkc_jsonw_bool(w, more);
    write_id(w, "first_id", from < to ? &all[from] : NULL);
    write_id(w, "last_id", from < to ? &all[to - 1] : NULL);
    tkc_jsonw_end(w);
}

/* ---- requests ---- */

static void finish(tke_call *call, tkc_buf *out)
{
    if (tkc_failed(&call->err))
        tke_chat_refuse_failure(call, NULL);
    else
        tke_send_json(call->reply, 200, tkc_buf_view(out));
    tkc_buf_free(out);
}

void tke_front_models(tke_call *call)
{
    tke_service *svc = call->svc;
    page p = { 0 };
    tkc_jsonw w;
    tkc_buf out;
    size_t n;
    if (call->anthropic && !read_page(call, &p))
        return;
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    pthread_mutex_lock(&svc->lock);
    const offer *all = list_offers(call, &n);
    if (all && call->anthropic)
        write_page(&w, all, n, &p);
    else if (all)
        write_list(&w, all, n);
    pthread_mutex_unlock(&svc->lock);
    finish(call, &out);
}

void tke_front_model(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_jsonw w;
    tkc_buf out;
    size_t n = strlen(TKE_CHAT_MODELS "/");
    const char *id = tkc_percent_decode(tkc_strn(call->path.data + n, call->path.len - n),
                                        &call->arena, &call->err);
    if (!id) {
        if (tkc_failed(&call->err))
            tke_chat_refuse_failure(call, "model");
        else
            tke_chat_refuse(call, "model",
                            "the model's name in the path is not percent-encoded text");
        return;
    }
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    pthread_mutex_lock(&svc->lock);
    const tke_base *base = tke_call_offers(call, id) ? tke_find_base(svc, id) : NULL;
    const tke_checkpoint *c = tke_checkpoint_named(svc, id);
    bool found = base || (c && is_offered(call, c));
    const offer o = base ? (offer){ id, base, base->added_us } : found ? offer_of(c) : (offer){ 0 };
    if (found && call->anthropic)
        write_for_anthropic(&w, &o);
    else if (found)
        write_for_openai(&w, &o);
    pthread_mutex_unlock(&svc->lock);
    if (found) {
        finish(call, &out);
        return;
    }
    tke_openai_refuse(call, 404, "model_not_found", "model", "There is no such model");
    tkc_buf_free(&out);
}
