/* handlers_upload.c - adapters that clients send: external_weights_upload_start, a PUT of each file,
 * external_weights_upload_finish.
 *
 * Start gives an address for each file. Its id is a secret: a caller who has it may send the
 * files without a key, until it expires. The files wait in a folder below tmp/, which a restart empties:
 * then the client starts again. Finish checks every tensor against the base model and makes a
 * training checkpoint in a run of its own; asked again, it gives the same path. Until then the files
 * count towards the owner's storage as what a save in progress writes does. One thread at a time uses
 * the folder (`busy`). Threads: start on a front thread, the rest on those for texts, where it
 * may wait for the disk.
 */
#include <stdio.h>

#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/uploads.h"
#include "service/worker/adapter_import.h"

enum { MOST_UPLOADS = 8 /* of one owner, in progress */ };

static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
enum { N_FILES = 2 };

typedef struct upload {
    char *id, *owner;
    char *base_model, *project_id; /* project_id may be NULL */
    char *folder;                  /* of its files, below tmp/; NULL = removed, it is finished */
    char *path;                    /* of the checkpoint that it became; NULL = none yet */
    int32_t rank;
    uint32_t train; /* TKE_TRAIN_*: what lora_config allows */
    int64_t expires_ms;
    bool busy;             /* a thread uses its folder */
    tke_tenant *tenant;    /* who gets `held` back; NULL = nothing is held */
    int64_t held[N_FILES]; /* bytes of the owner's storage, for each file */
} upload;

struct tke_uploads {
    pthread_mutex_t lock;
    tkc_map by_id;
};

/* Its index; N_FILES = an upload has no such file. */
static size_t index_of(tinkc_str name)
{
    size_t i = 0;
    while (i < N_FILES && !tkc_str_is(name, files[i]))
        i++;
    return i;
}

/* ---- life ---- */

bool tke_uploads_open(tke_service *svc, tinkc_error *err)
{
    svc->uploads = tkc_zalloc(svc->a, sizeof *svc->uploads, err);
    if (!svc->uploads)
        return false;
    pthread_mutex_init(&svc->uploads->lock, NULL);
    tkc_map_init(&svc->uploads->by_id, svc->a);
    return true;
}

static void free_upload(tke_service *svc, upload *u)
{
    char *texts[] = { u->id, u->owner, u->base_model, u->project_id, u->folder, u->path };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i])
            tkc_release_str(svc->a, texts[i]);
    tkc_release(svc->a, u, sizeof *u);
}

void tke_uploads_close(tke_service *svc)
{
    const tkc_map_entry *e;
    if (!svc->uploads)
        return;
    for (size_t at = 0; (e = tkc_map_next(&svc->uploads->by_id, &at));)
        free_upload(svc, e->value);
    tkc_map_free(&svc->uploads->by_id);
    pthread_mutex_destroy(&svc->uploads->lock);
    tkc_release(svc->a, svc->uploads, sizeof *svc->uploads);
}

static void remove_folder(tke_store *store, void *folder, tinkc_error *err)
{
    (void)store;
    tkc_remove_tree(folder, err);
}

static void folder_removed(void *folder, const tinkc_error *err)
{
    (void)err; /* what is left below tmp/ goes at the next start */
    tkc_release_str(NULL, folder);
}

/* On the store's thread: the caller holds a lock, or must not wait. */
static void drop_folder(tke_service *svc, const char *folder)
{
    tinkc_error err = { 0 };
    char *copy = tkc_copy_str(NULL, tkc_str(folder), &err);
    tke_txn *txn = copy ? tke_txn_new(svc->store, &err) : NULL;
    if (!txn) {
        if (copy)
            tkc_release_str(NULL, copy);
        return;
    }
    tke_txn_call(txn, remove_folder, copy);
    tke_txn_commit(txn, folder_removed, copy);
}

/* It is the caller's. Its files go, and what they held. */
static void end_files(tke_service *svc, upload *u)
{
    for (size_t i = 0; i < N_FILES; i++) {
        tke_quota_release(u->tenant, u->held[i]);
        u->held[i] = 0;
    }
    if (u->folder) {
        drop_folder(svc, u->folder);
        tkc_release_str(svc->a, u->folder);
    }
    u->folder = NULL;
}

void tke_uploads_expire(tke_service *svc, int64_t now_ms, const char *owner)
{
    const tkc_map_entry *e;
    pthread_mutex_lock(&svc->uploads->lock);
    for (size_t at = 0; (e = tkc_map_next(&svc->uploads->by_id, &at));) {
        upload *one = e->value;
        bool over = owner ? tkc_cstr_eq(one->owner, owner) : now_ms >= one->expires_ms;
        /* One whose folder a thread uses at this moment goes in a later round. */
        if (!over || one->busy)
            continue;
        tkc_map_remove(&svc->uploads->by_id, tkc_str(one->id));
        end_files(svc, one);
        free_upload(svc, one);
    }
    pthread_mutex_unlock(&svc->uploads->lock);
}

/* ---- start ---- */

static tke_base *check_start(tke_call *call, const tkc_upload_start_request *in)
{
    tke_service *svc = call->svc;
    const tkc_lora_config *lora = in->lora_config;
    pthread_mutex_lock(&svc->lock);
    tke_base *base =
        tke_call_offers(call, in->base_model) ? tke_find_base(svc, in->base_model) : NULL;
    pthread_mutex_unlock(&svc->lock);
    if (!base)
        tke_refuse(call, 400, "unknown_model", "Unknown base model '%.150s'", in->base_model);
    else if (lora->rank < 1 || lora->rank > svc->set.max_lora_rank)
        tke_refuse(call, 400, "bad_request", "lora_config: rank must be from 1 to %lld",
                   (long long)svc->set.max_lora_rank);
    else if (!lora->train_attn && !lora->train_mlp && !lora->train_unembed)
        tke_refuse(call, 400, "bad_request", "lora_config: nothing is trained");
    else
        return base;
    return NULL;
}

static upload *make_upload(tke_call *call, const tkc_upload_start_request *in, const tke_base *base)
{
    tke_service *svc = call->svc;
    const tkc_lora_config *lora = in->lora_config;
    char id[40];
    /* 128 random bits: who has the id may send files without a key. */
    unsigned long long low = tkc_random(svc->clock), high = tkc_random(svc->clock);
    (void)snprintf(id, sizeof id, "%016llx%016llx", high, low);
    const char *folder = tke_store_temp(svc->store, &call->arena, &call->err);
    upload *u = folder ? tkc_zalloc(svc->a, sizeof *u, &call->err) : NULL;
    if (!u)
        return NULL;
    u->id = tke_copy(svc, id, &call->err);
    u->owner = tke_copy(svc, call->owner, &call->err);
    u->base_model = tke_copy(svc, base->name, &call->err);
    u->project_id = tke_copy(svc, in->destination_project_id, &call->err);
    u->folder = tke_copy(svc, folder, &call->err);
    u->rank = (int32_t)lora->rank;
    u->train = (lora->train_attn ? TKE_TRAIN_ATTN : 0u) | (lora->train_mlp ? TKE_TRAIN_MLP : 0u) |
               (lora->train_unembed ? TKE_TRAIN_UNEMBED : 0u);
    u->expires_ms = tkc_now_ms(svc->clock) + svc->set.archive_ms;
    return u;
}

/* Locks: needs that of the uploads. */
static size_t in_progress(tke_service *svc, const char *owner)
{
    const tkc_map_entry *e;
    size_t n = 0;
    for (size_t at = 0; (e = tkc_map_next(&svc->uploads->by_id, &at));) {
        const upload *u = e->value;
        /* Finished ones stay in the map, so that a repeated finish gives the same path, but have no
         * files any more. */
        n += !u->path && tkc_cstr_eq(u->owner, owner);
    }
    return n;
}

static void answer_start(tke_call *call, const char *id)
{
    const char *pairs[2 * N_FILES + 1] = { NULL };
    const char *base = tke_call_base_url(call);
    for (size_t i = 0; i < N_FILES && base; i++) {
        pairs[2 * i] = files[i];
        pairs[2 * i + 1] = tkc_arena_printf(&call->arena, &call->err, "%s" TKE_UPLOADS "%s/%s",
                                            base, id, files[i]);
    }
    if (tkc_failed(&call->err)) {
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return;
    }
    tke_answer(
        call, &tkc_upload_start_response_type,
        &(tkc_upload_start_response){ .upload_id = id,
                                      .urls = { .pairs = pairs },
                                      .expires = { .us = tkc_wall_us(call->svc->clock) +
                                                         call->svc->set.archive_ms * 1000 } });
}

void tke_handle_upload_start(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_upload_start_request in;
    tinkc_error full = { 0 };
    if (!tke_call_decode(call, &tkc_upload_start_request_type, &in))
        return;
    const tke_base *base = check_start(call, &in);
    if (!base)
        return;
    if (!tke_quota_storage(svc, call->owner, NULL, 0, &full)) {
        tke_refuse(call, 403, "quota_storage", "%s", full.message);
        return;
    }
    upload *u = make_upload(call, &in, base);
    pthread_mutex_lock(&svc->uploads->lock);
    bool room = in_progress(svc, call->owner) < MOST_UPLOADS;
    bool kept = u && room && !tkc_failed(&call->err) &&
                tkc_map_set(&svc->uploads->by_id, tkc_str(u->id), u, NULL, &call->err);
    const char *id = kept ? tkc_arena_str(&call->arena, tkc_str(u->id), &call->err) : NULL;
    pthread_mutex_unlock(&svc->uploads->lock);
    if (kept && id) {
        answer_start(call, id);
        return;
    }
    if (u && !kept) {
        if (u->folder)
            drop_folder(svc, u->folder);
        free_upload(svc, u);
    }
    if (!room)
        tke_refuse(call, 429, "busy", "%d uploads are in progress; finish them first",
                   MOST_UPLOADS);
    else
        tke_send_failure(call->reply, svc->a, &call->err);
}

/* ---- the files ---- */

bool tke_upload_is_open(tke_service *svc, tinkc_str rest)
{
    tinkc_str id = rest;
    (void)tkc_str_cut(&rest, '/', &id);
    pthread_mutex_lock(&svc->uploads->lock);
    const upload *u = tkc_map_get(&svc->uploads->by_id, id);
    bool open = u && !u->path && tkc_now_ms(svc->clock) < u->expires_ms;
    pthread_mutex_unlock(&svc->uploads->lock);
    return open;
}

/* The upload, marked busy. NULL: answered. owner NULL = the id is enough. */
static upload *begin_use(tke_call *call, tinkc_str id, const char *owner)
{
    tke_service *svc = call->svc;
    pthread_mutex_lock(&svc->uploads->lock);
    upload *u = tkc_map_get(&svc->uploads->by_id, id);
    bool there =
        u && tkc_now_ms(svc->clock) < u->expires_ms && (!owner || tkc_cstr_eq(u->owner, owner));
    bool busy = there && u->busy;
    if (there && !busy)
        u->busy = true;
    pthread_mutex_unlock(&svc->uploads->lock);
    if (!there)
        tke_refuse(call, 404, "not_found", "No such upload, or it has expired; start a new one");
    else if (busy)
        tke_refuse(call, 503, "busy", "The upload is in use by another request; try again");
    return there && !busy ? u : NULL;
}

static void refuse_full(tke_call *call)
{
    tke_refuse(call, 403, "quota_storage",
               "The adapter does not fit into this key's storage; delete checkpoints");
}

static void end_use(tke_service *svc, upload *u)
{
    pthread_mutex_lock(&svc->uploads->lock);
    u->busy = false;
    pthread_mutex_unlock(&svc->uploads->lock);
}

/* A file that is sent again needs what it has more than the one before. False: it does not fit. */
static bool reserve(tke_service *svc, upload *u, size_t file, int64_t bytes)
{
    tke_tenant *tenant = NULL;
    /* From the sum to the reservation, or two files that arrive together would both find the rest
     * free. */
    pthread_mutex_lock(&svc->lock);
    int64_t more = bytes - u->held[file];
    bool fits = more <= 0 || tke_quota_hold(svc, u->owner, more, &tenant);
    if (tenant) {
        u->tenant = tenant;
        u->held[file] = bytes;
    }
    pthread_mutex_unlock(&svc->lock);
    return fits;
}

static bool write_body(tke_call *call, const upload *u, size_t file)
{
    tke_service *svc = call->svc;
    char *path = tkc_path_join(&call->arena, u->folder, files[file], &call->err);
    /* The reserve is left to saves: what was trained here exists nowhere else, an adapter can be
     * sent again. */
    if (!tke_store_has_room(svc->store, svc->set.disk_reserve))
        return tkc_fail(&call->err, TINKC_E_STORE, "too little room on the disk");
    return path && tkc_write_file(path, call->body.data, call->body.len, 0600, &call->err);
}

static void take_file(tke_call *call, upload *u, size_t file)
{
    bool done = u->path != NULL;
    bool fits = !done && reserve(call->svc, u, file, (int64_t)call->body.len);
    bool ok = fits && write_body(call, u, file);
    end_use(call->svc, u);
    if (done)
        tke_refuse(call, 409, "finished", "The upload is finished");
    else if (!fits)
        refuse_full(call);
    else if (ok)
        tke_send_json(call->reply, 200, tkc_str("{}"));
    else
        tke_send_failure(call->reply, call->svc->a, &call->err);
}

/* PUT TKE_UPLOADS "ID/FILE" */
void tke_handle_upload_file(tke_call *call)
{
    size_t n = sizeof TKE_UPLOADS - 1;
    tinkc_str rest = tkc_strn(call->path.data + n, call->path.len - n), id = { 0 };
    size_t file = tkc_str_cut(&rest, '/', &id) ? index_of(rest) : N_FILES;
    if (file == N_FILES) {
        tke_refuse(call, 404, "not_found", "An upload has the files %s and %s", files[0], files[1]);
        return;
    }
    upload *u = begin_use(call, id, NULL);
    if (u)
        take_file(call, u, file);
}

/* ---- finish ---- */

/* Clients see the file's name where a message has its path, which is the server's affair. */
static void hide_folder(const upload *u, tinkc_error *err)
{
    tinkc_error seen = *err;
    size_t n = strlen(u->folder);
    if (!tkc_starts_with(tkc_str(seen.message), u->folder))
        return;
    *err = (tinkc_error){ 0 };
    tkc_fail(err, seen.code, "%.300s", seen.message + n + (seen.message[n] == '/'));
}

/* What the files say is the client's; what the disk says is ours. */
static void refuse_files(tke_call *call)
{
    const tinkc_error *err = &call->err;
    if (err->code == TINKC_E_STORE || err->code == TINKC_E_MEMORY)
        tke_send_failure(call->reply, call->svc->a, err);
    else
        tke_refuse(call, 400, "bad_request", "%s", err->message);
}

static bool all_there(tke_call *call, const upload *u)
{
    for (size_t i = 0; i < N_FILES; i++) {
        char *path = tkc_path_join(&call->arena, u->folder, files[i], &call->err);
        if (!path)
            return false;
        if (!tkc_is_file(path))
            return tkc_fail(&call->err, TINKC_E_BAD_REQUEST, "%s was not sent", files[i]);
    }
    return true;
}

static bool import_files(tke_call *call, upload *u, tinkc_text *path)
{
    const tinkc_import_options from = { .adapter = u->folder,
                                        .base_model = u->base_model,
                                        .name = "uploaded" };
    const tke_import_as as = { .owner = u->owner,
                               .project_id = u->project_id,
                               .rank = u->rank,
                               .train = u->train,
                               .fresh = true };
    return all_there(call, u) && tke_import_adapter(call->svc, &from, as, path, NULL, &call->err);
}

/* Makes the checkpoint, within the owner's quota. False: *full, or call->err says why. */
static bool make_checkpoint(tke_call *call, upload *u, bool *full)
{
    tke_service *svc = call->svc;
    tke_tenant *tenant = NULL;
    tinkc_text path = { .a = svc->a };
    int64_t bytes = tke_folder_bytes(u->folder) - u->held[0] - u->held[1];
    pthread_mutex_lock(&svc->lock);
    *full = bytes > 0 && !tke_quota_hold(svc, u->owner, bytes, &tenant);
    pthread_mutex_unlock(&svc->lock);
    if (*full)
        return false;
    bool ok = import_files(call, u, &path);
    tke_quota_release(tenant, bytes);
    hide_folder(u, &call->err);
    char *made = ok ? tke_copy(svc, path.data, &call->err) : NULL;
    if (made)
        end_files(svc, u); /* what was made of them counts from now on */
    pthread_mutex_lock(&svc->uploads->lock);
    u->path = made;
    pthread_mutex_unlock(&svc->uploads->lock);
    tinkc_text_free(&path);
    return made != NULL;
}

static void add_audit(tke_call *call, const upload *u)
{
    const char *run, *name;
    int32_t kind;
    if (tke_path_split(&call->arena, u->path, &run, &kind, &name, &call->err))
        tke_audit_add(call->svc, u->owner, "checkpoint_create", run, u->path, NULL);
}

/* Answers after the upload is free again: the client may send its next request at once. */
void tke_handle_upload_finish(tke_call *call)
{
    tkc_upload_finish_request in;
    bool full = false;
    if (!tke_call_decode(call, &tkc_upload_finish_request_type, &in))
        return;
    upload *u = begin_use(call, tkc_str(in.upload_id), call->owner);
    if (!u)
        return;
    bool again = u->path != NULL, ok = again || make_checkpoint(call, u, &full);
    if (ok && !again)
        add_audit(call, u);
    const char *path = ok ? tkc_arena_str(&call->arena, tkc_str(u->path), &call->err) : NULL;
    end_use(call->svc, u);
    if (path)
        tke_answer(call, &tkc_upload_finish_response_type,
                   &(tkc_upload_finish_response){ .tinker_path = path });
    else if (full)
        refuse_full(call);
    else
        refuse_files(call);
}
