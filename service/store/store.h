/* store.h - durable state: SQLite rows for small data, folders for tensors.
 *
 * A lock file admits one process per folder. One thread writes the database: it commits everything
 * that is queued as one transaction and then calls back. So a commit costs a share of one fsync,
 * and front threads never wait for a disk.
 *
 *     tke_txn *t = tke_txn_new(store, err);
 *     tke_txn_exec(t, "INSERT INTO sessions(id, owner) VALUES(?, ?)", "tt", id, owner);
 *     tke_txn_commit(t, when_durable, user);       // called on the writer's thread
 *
 * A store without a folder keeps its rows in memory only; everything else is the same.
 * Layout: lock, meta.db, tmp/, runs/RUN/{weights,sampler_weights}/NAME/, runs/RUN/image.{0,1},
 * runs/RUN/journal, spill/.
 */
#ifndef TKE_SERVICE_STORE_H
#define TKE_SERVICE_STORE_H

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"

typedef struct tke_store tke_store;
typedef struct tke_txn tke_txn;
typedef struct tke_row tke_row;

/* folder NULL = in memory. Creates what is missing, empties tmp/, raises the boot epoch.
 * Errors: STORE (in use, damaged, its database lost, made by a newer version), FILE. */
tke_store *tke_store_open(const tinkc_allocator *a, const tkc_log *log, const char *folder,
                          tinkc_error *err);
/* rebuild: makes a new database if checkpoints exist without one, instead of failing. */
tke_store *tke_store_open_as(const tinkc_allocator *a, const tkc_log *log, const char *folder,
                             bool rebuild, tinkc_error *err);
/* Were the last commits removed, with the file that had them? Stays true for later openings, until
 * they are given up: accept_loss. */
bool tke_store_lost_log(const tke_store *);
void tke_store_accept_loss(tke_store *);
/* Copies the rows that can be read out of a damaged database; those that are there already stay.
 * Returns how many. Before the writer has work. */
int64_t tke_store_salvage(tke_store *, const char *damaged, tinkc_error *err);
/* To read rows only, also while another process has the store open: no lock, no writer, nothing is
 * changed. */
tke_store *tke_store_look(const tinkc_allocator *a, const tkc_log *log, const char *folder,
                          tinkc_error *err);
/* Commits what is queued, then closes. NULL allowed. */
void tke_store_close(tke_store *);

bool tke_store_durable(const tke_store *);
const char *tke_store_folder(const tke_store *); /* NULL in memory */
/* How often this folder was opened: the first time is 1. */
int64_t tke_store_epoch(const tke_store *);
/* Bytes that the database holds in memory. Any thread. */
int64_t tke_store_memory(const tke_store *);

/* ---- writing ---- */

/* NULL only if memory is short. Statements added to NULL are ignored. */
tke_txn *tke_txn_new(tke_store *, tinkc_error *err);
/* One statement. sql must be static text: it is the key of the statement cache. types: 't' const
 * char * (NULL allowed), 'i' int64_t, 'b' a tinkc_bytes (data NULL: SQL null).
 * Values are copied. A failure is kept and reported by the commit. */
void tke_txn_exec(tke_txn *, const char *sql, const char *types, ...);
/* A call on the writer's thread instead of a statement: for reads and journal files. */
typedef void tke_txn_fn(tke_store *, void *user, tinkc_error *err);
void tke_txn_call(tke_txn *, tke_txn_fn *fn, void *user);

/* Queues it; `done` (may be NULL) is called on the writer's thread once it is on disk or has
 * failed. A failed statement does not affect other transactions of the same group; a failed commit
 * fails all that have SQL statements. Consumes the txn. */
typedef void tke_txn_done(void *user, const tinkc_error *err);
void tke_txn_commit(tke_txn *, tke_txn_done *done, void *user);
/* Waits until everything queued so far is committed. Never call it on the writer's thread. */
void tke_store_sync(tke_store *);

/* ---- reading: before the writer has work, or from inside a tke_txn_fn ---- */

typedef bool tke_row_fn(const tke_row *, void *user, tinkc_error *err);
/* Calls fn for each row; false from fn ends it. types and values as for tke_txn_exec. */
bool tke_store_query(tke_store *, const char *sql, tke_row_fn *fn, void *user, tinkc_error *err,
                     const char *types, ...);
tinkc_str tke_row_text(const tke_row *, int column); /* data NULL for null */
tinkc_bytes tke_row_blob(const tke_row *, int column);
int64_t tke_row_i64(const tke_row *, int column);

/* ---- folders ---- */

/* "STORE/runs/RUN/PART"; part may be NULL. */
char *tke_store_run_path(tke_store *, tkc_arena *, const char *run, const char *part,
                         tinkc_error *err);
/* A fresh, empty folder below tmp/. */
char *tke_store_temp(tke_store *, tkc_arena *, tinkc_error *err);
/* Syncs every file in the folder and the folder itself. */
bool tke_sync_folder(const char *path, tinkc_error *err);
/* Moves a finished, synced folder to its final name, and makes its parent. An existing folder is
 * exchanged atomically and is then named `temp`: the caller removes it or calls take_back. */
bool tke_store_place(tke_store *, const char *temp, const char *final_path, tinkc_error *err);
/* Undoes tke_store_place: restores the previous folder, if any, and removes the new one. */
void tke_store_take_back(tke_store *, const char *temp, const char *final_path);
/* Like tke_store_place, for a folder that must not be lost: after an error it has its old name. */
bool tke_store_move(tke_store *, const char *from, const char *to, tinkc_error *err);
/* Fills a folder with hard links to the regular files of another, or copies if links are
 * impossible. */
bool tke_link_folder(const char *from, const char *to, tinkc_error *err);
/* Makes a file whose bytes are those of another a hard link to it, so that they take their room once. Where they differ, or links
 * are impossible, the file stays as it is. */
void tke_share_file(const char *file, const char *other);
/* Is there a meta.db below this folder, and something in it? */
bool tke_store_has_database(const char *folder);
/* Is there any run with a checkpoint or an image below this folder? */
bool tke_store_has_checkpoints(const char *folder);
/* Bytes of all regular files in a folder. */
int64_t tke_folder_bytes(const char *path);
/* False when fewer than `reserve` bytes are free. In memory: true. */
bool tke_store_has_room(const tke_store *, int64_t reserve);

#endif
