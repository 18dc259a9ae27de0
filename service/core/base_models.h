/* base_models.h - the base models that this process offers: weights, vocabulary, tokenizer.
 *
 * A base model is added (service.c) and never removed, so a pointer to one stays valid. What the worker
 * has loaded of it is the worker's alone.
 *
 * Locks: the map of names and `hub` need svc->lock; `tokenizer` and `order` need svc->tokenizer_lock,
 * inside which svc->lock is never taken. The rest is constant, or says otherwise.
 */
#ifndef TKE_SERVICE_BASE_MODELS_H
#define TKE_SERVICE_BASE_MODELS_H

#include "device/device.h"
#include "infer/infer.h"
#include "model/model.h"
#include "service/core/service_types.h"
#include "service/worker/vocab.h"
#include "train/training.h"

/* What handlers_hub.c remembers of a file, and what makes it stale: another file, size or time. */
enum { TKE_HUB_FILES = 12 };
typedef struct tke_hub_file {
    uint64_t device, inode;
    int64_t size, mtime_ns;
    bool settled;  /* not changed shortly before it was read: a change shows in its time */
    char oid[41];  /* "" = not known */
} tke_hub_file;

struct tke_base {
    char *name;
    tke_model *model;
    tke_vocab *vocab;                  /* NULL: the folder has no tokenizer.json */
    size_t context;                    /* offered to clients: the model's own, or less */
    int64_t added_us;                  /* constant */
    struct tinkc_tokenizer *tokenizer; /* opened on first use; tokenizer_lock */
    tke_token_order *order;            /* for constraints: made on first use, tokenizer_lock */
    tke_hub_file hub[TKE_HUB_FILES];   /* digests of small files; svc->lock */
    /* worker */
    tke_device_model *loaded; /* its weights on the device; NULL until first used */
    tke_trainer *trainer;
    tke_infer *infer;
};

/* Locks: needs svc->lock. */
tke_base *tke_find_base(tke_service *, const char *name);
/* Of one that is freed (chat_job.c, which opened it). */
void tke_base_free_tokenizer(tke_base *);
/* The folder of a model's files, in the call's arena; NULL: the caller may not open them (it has a
 * key and share_disk is off). Reads the disk, so the caller must hold no lock. */
const char *tke_shared_folder(tke_call *, const tke_base *);
/* A base model by its name, or by its folder if the caller may open that. NULL: there is none. */
tke_base *tke_base_named(tke_call *, const char *name);
/* A run or a checkpoint is there, but what it was trained from has not been registered. */
#define TKE_BASE_MISSING "the base model '%.150s' is not available here now"

#endif
