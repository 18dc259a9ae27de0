/* rest_store.c - what lies at the service: copies of checkpoints, external weights, storage.
 *
 * May touch: its arguments, wire messages, tkc_rest_call. Must not: know of threads, sockets or
 * retries.
 */
#include <math.h>
#include <string.h>

#include "client/core/client_priv.h"
#include "client/rest/rest_priv.h"
#include "base/str.h"
#include "tinkc/train.h"

/* ---- copies ---- */

static void decode_copy(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_copy_weights_response msg = { 0 };
    if (!tkc_rest_decode(f, answer, &tkc_copy_weights_response_type, &msg, err))
        return;
    if (!msg.tinker_path[0])
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "checkpoint_copy: the answer names no path");
    f->result = (void *)msg.tinker_path;
}

static bool check_copy(const tinkc_copy_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "copy options: reserved must be zero");
    return o->ttl_s >= 0 || tkc_fail(err, TINKC_E_ARGUMENT, "ttl_s: must not be negative");
}

tinkc_future *tinkc_checkpoint_copy(tinkc_client *client, const char *path,
                                    const tinkc_copy_options *options, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_copy", "path" };
    static const tinkc_copy_options none;
    const tinkc_copy_options *o = options ? options : &none;
    tinkc_error local;
    tinkc_path parts;
    if (!tkc_enter(&err, &local) || !tinkc_path_parse(path, &parts, err) || !check_copy(o, err) ||
        !tkc_client_check(client, err))
        return NULL;
    const char *project = o->project_id && o->project_id[0] ? o->project_id : client->project_id;
    if (!project) {
        tkc_fail(err, TINKC_E_ARGUMENT, "project_id: none given, and the client has none");
        return NULL;
    }
    const char *headers[] = { "X-Tinker-Weights-Access-Token", o->access_token, NULL };
    bool token = o->access_token && o->access_token[0];
    tkc_copy_weights_request msg = { .source_path = path, .destination_project_id = project };
    if (o->ttl_s)
        msg.ttl_seconds = (tkc_opt_i64)TKC_SOME(o->ttl_s);
    return tkc_rest_start(client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_COPY_WEIGHTS,
                                               .message = &msg,
                                               .headers = token ? headers : NULL },
                          decode_copy, err);
}

/* ---- external weights ---- */

struct tinkc_links {
    const tinkc_link *links;
    size_t n;
    int64_t expires_us;
    const char *upload_id; /* NULL = for downloads */
};

/* The address is for other programs, so it must be an absolute one. */
static bool check_link(const tinkc_link *link, tinkc_error *err)
{
    tinkc_str url = tkc_str(link->url);
    if (!tkc_starts_with(url, "https://") && !tkc_starts_with(url, "http://"))
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the address of \"%.100s\" is not absolute",
                        link->name);
    return true;
}

static void take_links(tinkc_future *f, const char *const *pairs, const tkc_time *expires,
                       const char *upload_id, tinkc_error *err)
{
    tinkc_links *out = tkc_arena_zalloc(&f->arena, sizeof *out, err);
    if (!out)
        return;
    while (pairs && pairs[2 * out->n])
        out->n++;
    tinkc_link *links = tkc_arena_array(&f->arena, out->n, sizeof *links, err);
    for (size_t i = 0; links && i < out->n; i++) {
        links[i] = (tinkc_link){ .name = pairs[2 * i], .url = pairs[2 * i + 1] };
        if (!check_link(&links[i], err))
            return;
    }
    out->links = links;
    out->expires_us = tkc_time_us(expires);
    out->upload_id = upload_id;
    f->result = out;
}

static void decode_links(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_external_urls_response msg = { 0 };
    if (tkc_rest_decode(f, answer, &tkc_external_urls_response_type, &msg, err))
        take_links(f, msg.urls.pairs, &msg.expires, NULL, err);
}

tinkc_future *tinkc_checkpoint_links(tinkc_client *client, const char *path, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_links", "links" };
    tinkc_error local;
    tinkc_path parts;
    tkc_path_ids ids;
    if (!tkc_enter(&err, &local) || !tinkc_path_parse(path, &parts, err) ||
        !tkc_path_ids_parse(path, &ids, err))
        return NULL;
    if (parts.kind != TINKC_CHECKPOINT_EXTERNAL) {
        tkc_fail(err, TINKC_E_PATH, "path: not of external weights: %.200s", path);
        return NULL;
    }
    return tkc_rest_start(
        client, &class,
        &(tkc_rest_request){ .endpoint = TKC_EP_EXTERNAL_URLS, .ids = { ids.run, ids.checkpoint } },
        decode_links, err);
}

const tinkc_links *tinkc_future_links(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "links", timeout_ms, err);
}

size_t tinkc_links_count(const tinkc_links *links)
{
    return links ? links->n : 0;
}

const tinkc_link *tinkc_links_at(const tinkc_links *links, size_t i)
{
    return links && i < links->n ? &links->links[i] : NULL;
}

int64_t tinkc_links_expires_us(const tinkc_links *links)
{
    return links ? links->expires_us : TINKC_NO_TIME;
}

const char *tinkc_links_upload_id(const tinkc_links *links)
{
    return links ? links->upload_id : NULL;
}

/* ---- uploads ---- */

static void decode_upload(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_upload_start_response msg = { 0 };
    if (!tkc_rest_decode(f, answer, &tkc_upload_start_response_type, &msg, err))
        return;
    if (!msg.upload_id[0])
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "upload_start: the answer names no upload");
    else
        take_links(f, msg.urls.pairs, &msg.expires, msg.upload_id, err);
}

static bool check_upload(const tinkc_upload_options *o, tinkc_error *err)
{
    uint32_t all = TINKC_FREEZE_ATTN | TINKC_FREEZE_MLP | TINKC_FREEZE_UNEMBED;
    if (!o || !o->base_model || !o->base_model[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "base_model: none given");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "upload options: reserved must be zero");
    if (o->rank < 1)
        return tkc_fail(err, TINKC_E_ARGUMENT, "rank: must be positive");
    return (o->freeze & ~all) == 0 ||
           tkc_fail(err, TINKC_E_ARGUMENT, "freeze: unknown bits 0x%x", o->freeze & ~all);
}

tinkc_future *tinkc_upload_start(tinkc_client *client, const tinkc_upload_options *o,
                                 tinkc_error *err)
{
    static const tkc_rest_class class = { "upload_start", "links" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_upload(o, err) || !tkc_client_check(client, err))
        return NULL;
    const tkc_lora_config lora = { .rank = o->rank,
                                   .train_unembed = !(o->freeze & TINKC_FREEZE_UNEMBED),
                                   .train_mlp = !(o->freeze & TINKC_FREEZE_MLP),
                                   .train_attn = !(o->freeze & TINKC_FREEZE_ATTN) };
    const char *project = o->project_id && o->project_id[0] ? o->project_id : client->project_id;
    const tkc_upload_start_request msg = { .base_model = o->base_model,
                                           .lora_config = &lora,
                                           .destination_project_id = project };
    return tkc_rest_start(client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_UPLOAD_START, .message = &msg },
                          decode_upload, err);
}

static void decode_finish(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_upload_finish_response msg = { 0 };
    if (!tkc_rest_decode(f, answer, &tkc_upload_finish_response_type, &msg, err))
        return;
    if (!msg.tinker_path[0])
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "upload_finish: the answer names no path");
    f->result = (void *)msg.tinker_path;
}

tinkc_future *tinkc_upload_finish(tinkc_client *client, const char *upload_id, tinkc_error *err)
{
    static const tkc_rest_class class = { "upload_finish", "path" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!upload_id || !upload_id[0]) {
        tkc_fail(err, TINKC_E_ARGUMENT, "upload_id: none given");
        return NULL;
    }
    const tkc_upload_finish_request msg = { .upload_id = upload_id };
    return tkc_rest_start(client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_UPLOAD_FINISH, .message = &msg },
                          decode_finish, err);
}

/* ---- storage ---- */

struct tinkc_storage {
    const tinkc_storage_item *items;
    size_t n;
    double rate;
};

static double number_or_nan(const tkc_opt_f64 *value)
{
    return value->is == TKC_GIVEN ? value->value : NAN;
}

static void decode_storage(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_storage_response msg = { 0 };
    if (!tkc_rest_decode(f, answer, &tkc_storage_response_type, &msg, err))
        return;
    tinkc_storage *storage = tkc_arena_alloc(&f->arena, sizeof *storage, err);
    tinkc_storage_item *items =
        storage ? tkc_arena_array(&f->arena, msg.data.len, sizeof *items, err) : NULL;
    if (!items)
        return;
    for (size_t i = 0; i < msg.data.len; i++) {
        const tkc_storage_item *from = &msg.data.data[i];
        items[i] = (tinkc_storage_item){
            .project_id = from->project_id,
            .user_urn = from->org_user_urn,
            .user_email = from->user_email,
            .user_name = from->user_name,
            .checkpoints = from->checkpoint_count,
            .size_bytes = from->size_bytes,
            .gigabytes = from->size_gigabytes,
            .usd_per_month = number_or_nan(&from->estimated_monthly_cost_usd),
            .json = from->json,
        };
    }
    *storage = (tinkc_storage){ items, msg.data.len,
                                number_or_nan(&msg.effective_rate_usd_per_gigabyte_month) };
    f->result = storage;
}

tinkc_future *tinkc_storage_get(tinkc_client *client, const char *project_id, tinkc_error *err)
{
    static const tkc_rest_class class = { "storage_get", "storage" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    tkc_buf query;
    const char *text =
        tkc_make_query(client, &query, (const char *[]){ "project_id", project_id, NULL }, err);
    tinkc_future *f = NULL;
    if (text)
        f = tkc_rest_start(client, &class,
                           &(tkc_rest_request){ .endpoint = TKC_EP_STORAGE, .query = text },
                           decode_storage, err);
    tkc_buf_free(&query);
    return f;
}

const tinkc_storage *tinkc_future_storage(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "storage", timeout_ms, err);
}

size_t tinkc_storage_count(const tinkc_storage *storage)
{
    return storage ? storage->n : 0;
}

const tinkc_storage_item *tinkc_storage_at(const tinkc_storage *storage, size_t i)
{
    return storage && i < storage->n ? &storage->items[i] : NULL;
}

double tinkc_storage_usd_per_gigabyte_month(const tinkc_storage *storage)
{
    return storage ? storage->rate : NAN;
}
