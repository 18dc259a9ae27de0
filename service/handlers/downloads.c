/* downloads.c - archives of checkpoints and their files, by links that anyone may fetch while they live. */
#include "service/handlers/downloads.h"

#include <stdio.h>

#include "base/file.h"
#include "service/core/registry.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/store/tar.h"

bool tke_downloads_open(tke_service *svc, tinkc_error *err)
{
    tke_downloads *all = svc->downloads = tkc_zalloc(svc->a, sizeof *all, err);
    if (!all)
        return false;
    pthread_mutex_init(&all->lock, NULL);
    tkc_map_init(&all->links, svc->a);
    all->threads = tkc_pool_new(svc->a, TKE_MAX_DOWNLOADS, "tinkc-archives", err);
    return all->threads != NULL;
}

void tke_downloads_stop(tke_service *svc)
{
    tkc_pool_free(svc->downloads->threads);
    svc->downloads->threads = NULL;
}

static void free_link(tke_service *svc, tke_link *one)
{
    tke_kept_give(svc, one->owner, &one->kept);
    if (one->token)
        tkc_release_str(svc->a, one->token);
    if (one->owner)
        tkc_release_str(svc->a, one->owner);
    tkc_release(svc->a, one, sizeof *one);
}

void tke_downloads_close(tke_service *svc)
{
    if (!svc->downloads)
        return;
    tke_downloads_stop(svc);
    tke_links_expire(svc, INT64_MAX, NULL);
    tkc_map_free(&svc->downloads->links);
    pthread_mutex_destroy(&svc->downloads->lock);
    tkc_release(svc->a, svc->downloads, sizeof *svc->downloads);
}

void tke_links_expire(tke_service *svc, int64_t now_ms, const char *owner)
{
    const tkc_map_entry *e;
    pthread_mutex_lock(&svc->downloads->lock);
    for (size_t at = 0; (e = tkc_map_next(&svc->downloads->links, &at));) {
        tke_link *one = e->value;
        if (owner ? !tkc_cstr_eq(one->owner, owner) : now_ms < one->expires_ms)
            continue;
        tkc_map_remove(&svc->downloads->links, tkc_str(one->token));
        free_link(svc, one);
    }
    pthread_mutex_unlock(&svc->downloads->lock);
}

static void http_date(int64_t wall_us, char out[40])
{
    static const char days[] = "ThuFriSatSunMonTueWed";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    int64_t seconds = wall_us / 1000000, day_number = seconds / 86400, of_day = seconds % 86400;
    int32_t year, month, day;
    tkc_civil_from_days(day_number, &year, &month, &day);
    (void)snprintf(out, 40, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * (day_number % 7),
                   (int)day, months + 3 * (month - 1), (int)year, (int)(of_day / 3600),
                   (int)(of_day / 60 % 60), (int)(of_day % 60));
}

/* 0, or the status of a refusal: full, or call->err, says why. */
static int32_t keep_link(tke_call *call, tke_checkpoint *c, const char *token, tinkc_error *full)
{
    tke_service *svc = call->svc;
    /* A key may make any number of links, so they count towards what it may keep in memory. */
    size_t kept = 0;
    int32_t refused =
        tke_kept_take(svc, call->owner, sizeof(tke_link) + 2 * strlen(token), &kept, full);
    tke_link *one = refused ? NULL : tkc_zalloc(svc->a, sizeof *one, &call->err);
    if (!one) {
        tke_kept_give(svc, call->owner, &kept);
        return refused;
    }
    one->kept = kept;
    one->token = tke_copy(svc, token, &call->err);
    one->owner = tke_copy(svc, call->owner, &call->err);
    one->checkpoint = c;
    one->expires_ms = tkc_now_ms(svc->clock) + svc->set.archive_ms;
    pthread_mutex_lock(&svc->downloads->lock);
    if (tkc_failed(&call->err) ||
        !tkc_map_set(&svc->downloads->links, tkc_str(token), one, NULL, &call->err))
        free_link(svc, one);
    pthread_mutex_unlock(&svc->downloads->lock);
    return 0;
}

/* A link with which anyone can download the checkpoint until it expires. NULL: answered. */
static const char *make_link(tke_call *call, tke_checkpoint *c)
{
    tke_service *svc = call->svc;
    char token[40];
    tinkc_error full = { 0 };
    /* 128 random bits: the link needs no key, so it must not be guessable. */
    unsigned long long low = tkc_random(svc->clock), high = tkc_random(svc->clock);
    (void)snprintf(token, sizeof token, "%016llx%016llx", high, low);
    const char *base = tke_call_base_url(call);
    int32_t refused = keep_link(call, c, token, &full);
    char *url = tkc_arena_printf(&call->arena, &call->err, "%s/api/v1/archives/%s", base, token);
    if (refused)
        tke_refuse_kept(call, NULL, refused, &full);
    else if (tkc_failed(&call->err))
        tke_send_failure(call->reply, svc->a, &call->err);
    return refused || tkc_failed(&call->err) ? NULL : url;
}

/* The files of a checkpoint that clients may download, in the order of the archive. */
static const char *const shown_files[] = {
    "adapter_config.json",     "adapter_model.safetensors",
    "adapter_config.json.age", "adapter_model.safetensors.age",
    "optimizer.safetensors",   "train_state.json",
    "checkpoint_complete",     NULL
};

void tke_handle_external_urls(tke_call *call)
{
    tke_service *svc = call->svc;
    tke_checkpoint *c = tke_call_checkpoint(call, true);
    if (!c)
        return;
    if (c->kind != TKE_CKPT_EXTERNAL) {
        tke_refuse(call, 400, "bad_request",
                   "'%.150s' is not external weights: save_weights_external writes them", c->path);
        return;
    }
    const char *link = make_link(call, c);
    if (!link)
        return;
    char *folder =
        tke_checkpoint_folder(svc, &call->arena, c->run_id, c->kind, c->name, &call->err);
    tkc_buf out;
    tkc_jsonw w;
    char when[TKC_TIME_TEXT];
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "urls");
    tkc_jsonw_object(&w);
    for (const char *const *name = shown_files; *name && folder; name++) {
        char *path = tkc_path_join(&call->arena, folder, *name, &call->err);
        char *url = tkc_arena_printf(&call->arena, &call->err, "%s/%s", link, *name);
        if (!path || !url || !tkc_is_file(path) || tkc_cstr_eq(*name, "checkpoint_complete"))
            continue;
        tkc_jsonw_key(&w, *name);
        tkc_jsonw_cstr(&w, url);
    }
    tkc_jsonw_end(&w);
    tkc_format_time(tkc_wall_us(svc->clock) + svc->set.archive_ms * 1000, true, when);
    tkc_jsonw_key(&w, "expires");
    tkc_jsonw_cstr(&w, when);
    tkc_jsonw_end(&w);
    tke_answer_text(call, &out);
    tke_audit_add(svc, call->owner, "checkpoint_read", c->run_id, c->path, "download");
}

void tke_handle_archive(tke_call *call)
{
    tke_service *svc = call->svc;
    tke_checkpoint *c = tke_call_checkpoint(call, true);
    char expires[40];
    if (!c)
        return;
    const char *url = make_link(call, c);
    if (!url)
        return;
    http_date(tkc_wall_us(svc->clock) + svc->set.archive_ms * 1000, expires);
    tinkc_reply *reply = call->reply;
    reply->status(reply, 302);
    reply->header(reply, "Location", url);
    reply->header(reply, "Expires", expires);
    reply->end(reply);
    tke_audit_add(svc, call->owner, "checkpoint_read", c->run_id, c->path, "download");
}

typedef struct download {
    tkc_job base;
    tke_service *svc;
    const tinkc_allocator *a;
    tinkc_reply *reply;
    char *folder;
    char *file;          /* one file; NULL = all as an archive */
    int64_t from, until; /* until may be past the end */
    bool ranged;
} download;

static bool write_part(void *user, const void *data, size_t len)
{
    tinkc_reply *reply = user;
    return reply->write(reply, data, len);
}

/* Sends status and headers, for all bytes or a range. False: answered, the range is invalid. */
static bool begin_download(const download *d, const char *type, int64_t total, int64_t until)
{
    tinkc_reply *reply = d->reply;
    char text[96];
    if (d->ranged && d->from >= until) {
        tke_send_error(reply, d->a, 416, "bad_range", "There are %lld bytes", (long long)total);
        return false;
    }
    reply->status(reply, d->ranged ? 206 : 200);
    reply->header(reply, "Content-Type", type);
    reply->header(reply, "Accept-Ranges", "bytes");
    (void)snprintf(text, sizeof text, "%lld", (long long)(until - d->from));
    reply->header(reply, "Content-Length", text);
    if (d->ranged) {
        (void)snprintf(text, sizeof text, "bytes %lld-%lld/%lld", (long long)d->from,
                       (long long)until - 1, (long long)total);
        reply->header(reply, "Content-Range", text);
    }
    return true;
}

static void send_archive(const download *d)
{
    tinkc_error err = { 0 };
    tke_tar tar;
    if (!tke_tar_plan(&tar, d->folder, shown_files, &err)) {
        tke_send_error(d->reply, d->a, 404, "not_found", "The checkpoint was deleted");
        return;
    }
    int64_t until = d->until < tar.total ? d->until : tar.total;
    if (!begin_download(d, "application/x-tar", tar.total, until))
        return;
    if (tke_tar_send(&tar, d->from, until, write_part, d->reply, &err))
        d->reply->end(d->reply);
    else
        d->reply->fail(d->reply, TINKC_E_CONNECTION, err.message);
}

static void send_file(const download *d)
{
    enum { PIECE = 1 << 18 };
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_mapping file = { 0 };
    tkc_arena_init(&arena, d->a, 0);
    char *path = tkc_path_join(&arena, d->folder, d->file, &err);
    bool mapped = path && tkc_map_file(path, &file, &err);
    tkc_arena_free(&arena);
    if (!mapped) {
        tke_send_error(d->reply, d->a, 404, "not_found", "There is no such file");
        return;
    }
    int64_t total = (int64_t)file.len, until = d->until < total ? d->until : total;
    if (begin_download(d, "application/octet-stream", total, until)) {
        bool wanted = true;
        for (int64_t at = d->from; wanted && at < until; at += PIECE)
            wanted = write_part(d->reply, (const char *)file.data + at,
                                (size_t)(until - at < PIECE ? until - at : PIECE));
        d->reply->end(d->reply);
    }
    tkc_unmap_file(&file);
}

static void free_download(download *d)
{
    if (d->file)
        tkc_release_str(d->a, d->file);
    if (d->folder)
        tkc_release_str(d->a, d->folder);
    tkc_release(d->a, d, sizeof *d);
}

static void run_download(tkc_job *job)
{
    download *d = (download *)job;
    if (d->file)
        send_file(d);
    else
        send_archive(d);
    d->svc->downloads->n_running--;
    free_download(d);
}

/* Reads "bytes=5-" or "bytes=5-9"; one range only. Anything else is ignored, and all is sent. */
static void read_range(tke_call *call, download *d)
{
    const char *header = tke_call_header(call, "Range");
    tinkc_str text = tkc_str(header), first;
    int64_t from, last;
    d->until = INT64_MAX;
    if (!tkc_starts_with(text, "bytes="))
        return;
    text = tkc_strn(text.data + 6, text.len - 6);
    if (!tkc_str_cut(&text, '-', &first) || !text.data || !tkc_parse_i64(first, &from))
        return;
    if (text.len && (!tkc_parse_i64(text, &last) || last < from || last == INT64_MAX))
        return;
    d->ranged = true;
    d->from = from;
    if (text.len)
        d->until = last + 1;
}

/* The checkpoint of a link; NULL: there is no such link, it is over, or who asked for it has lost access. The
 * checkpoint is never freed. */
static tke_checkpoint *linked(tke_service *svc, tinkc_str token)
{
    char owner[64] = "";
    tke_checkpoint *c = NULL;
    pthread_mutex_lock(&svc->downloads->lock);
    const tke_link *one = tkc_map_get(&svc->downloads->links, token);
    if (one && one->expires_ms > tkc_now_ms(svc->clock)) {
        c = one->checkpoint;
        (void)snprintf(owner, sizeof owner, "%s", one->owner);
    }
    pthread_mutex_unlock(&svc->downloads->lock);
    pthread_mutex_lock(&svc->lock);
    /* Asked at each use: the link must end with the right to it, when a published checkpoint is
     * made private again, for instance. */
    if (c && (!tke_checkpoint_visible(svc, c) || !(c->is_public || tkc_cstr_eq(c->owner, owner))))
        c = NULL;
    pthread_mutex_unlock(&svc->lock);
    return c;
}

/* Counts one more; false: as many as there are threads are under way. */
static bool begin_one(tke_downloads *all)
{
    /* Counted first, so that two threads cannot both take the last place. */
    bool room = all->n_running++ < TKE_MAX_DOWNLOADS;
    if (!room)
        all->n_running--;
    return room;
}

static bool is_shown(tinkc_str name)
{
    for (const char *const *one = shown_files; *one; one++)
        if (tkc_str_is(name, *one))
            return true;
    return false;
}

/* "TOKEN" or "TOKEN/FILE". */
void tke_handle_download(tke_call *call, tinkc_str rest)
{
    tke_service *svc = call->svc;
    tinkc_str token = rest;
    bool file = tkc_str_find(rest, '/') != rest.len && tkc_str_cut(&rest, '/', &token);
    /* Only listed names reach the file system, so no path can lead out of the folder. */
    const tke_checkpoint *c = file && !is_shown(rest) ? NULL : linked(svc, token);
    download *d = c ? tkc_zalloc(svc->a, sizeof *d, &call->err) : NULL;
    if (!c) {
        tke_refuse(call, 404, "not_found", "No such archive, or its link has expired");
        return;
    }
    if (d) {
        d->svc = svc;
        d->a = svc->a;
        d->reply = call->reply;
        d->base.run = run_download;
        if (file)
            d->file = tkc_copy_str(svc->a, rest, &call->err);
        d->folder = tke_copy(
            svc, tke_checkpoint_folder(svc, &call->arena, c->run_id, c->kind, c->name, &call->err),
            &call->err);
        read_range(call, d);
    }
    bool ready = d && !tkc_failed(&call->err), room = ready && begin_one(svc->downloads);
    if (room && tkc_pool_submit(svc->downloads->threads, &d->base, &call->err))
        return;
    if (room)
        svc->downloads->n_running--;
    if (d)
        free_download(d);
    if (ready && !room)
        tke_refuse(call, 503, "busy", "Too many downloads at once; try again");
    else
        tke_send_failure(call->reply, svc->a, &call->err);
}
