/* journal.h - a run's accepted requests since its newest image, in one file.
 *
 * Only with durability `journal`. Appended before a request is acknowledged, read back at startup:
 * since execution is deterministic, running the requests again gives the same bits. A record is
 * its length, a CRC-32C, a fixed head and the body as it was received (decompressed). Reading stops
 * at the first incomplete record, and the rest is cut off; if that is more than an interrupted
 * append can leave, the file is first kept as journal.damaged.
 */
#ifndef TKE_SERVICE_JOURNAL_H
#define TKE_SERVICE_JOURNAL_H

#include "service/handlers/identity.h"
#include "service/store/store.h"

typedef struct tke_journal_record {
    int64_t seq;
    int32_t kind; /* TKE_JOB_* */
    uint32_t epoch;
    bool is_pb, forward;
    tke_hash128 hash;
    tinkc_str body;
} tke_journal_record;

/* Thread: the store's writer, for all of these. */
bool tke_journal_append(tke_store *, const char *run, const tke_journal_record *, tinkc_error *err);
typedef bool tke_journal_fn(const tke_journal_record *, void *user, tinkc_error *err);
/* Calls fn for each complete record; a missing file has none. Bodies live until fn returns. */
bool tke_journal_read(tke_store *, const char *run, tke_journal_fn *fn, void *user,
                      tinkc_error *err);
/* Drops the records below `seq`: an image contains their effect. */
bool tke_journal_trim(tke_store *, const char *run, int64_t seq, tinkc_error *err);


/* What a journal's file holds. Changes nothing. */
typedef struct tke_journal_file {
    size_t n_records, whole_bytes; /* up to the first record that cannot be read */
    bool torn;                     /* the last append was interrupted: it was not acknowledged */
    bool damaged;                  /* acknowledged records cannot be read */
} tke_journal_file;
bool tke_journal_scan(const char *path, tke_journal_file *out, tinkc_error *err);

#endif
