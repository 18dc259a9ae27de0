/* run_queue.h - the order of a run's requests: their numbers, replays, gaps.
 *
 * Locks: needs svc->lock for all of these, except tke_run_accept and tke_gaps_expire, which take it.
 */
#ifndef TKE_SERVICE_RUN_QUEUE_H
#define TKE_SERVICE_RUN_QUEUE_H

#include "service/core/service_types.h"
#include "service/handlers/identity.h"
#include "service/store/store.h"
#include "wire/message_codec.h"

/* What is known of a seq_id for the life of its run. REFUSED: its request was refused; the client
 * may use the number again. If it continues with a higher number instead, the state becomes ABANDONED:
 * the number will never run. */
enum {
    TKE_SEEN_NOT = 0,
    TKE_SEEN_PENDING,
    TKE_SEEN_DONE,
    TKE_SEEN_LOST,
    TKE_SEEN_ABANDONED,
    TKE_SEEN_REFUSED
};

typedef struct tke_seen {
    tke_hash128 hash;
    uint32_t epoch;
    uint8_t kind, state;
    bool failed; /* done, and changed nothing */
} tke_seen;

tke_seen *tke_run_seen(tke_run *, int64_t seq); /* NULL past the end */
bool tke_run_see(tke_service *, tke_run *, int64_t seq, int32_t kind, tke_hash128 hash,
                 uint32_t epoch, uint8_t state, tinkc_error *err);
/* The same of a number of which no request is known. */
bool tke_run_mark(tke_service *, tke_run *, int64_t seq, uint8_t state, tinkc_error *err);
void tke_run_insert(tke_run *, tke_job *);
/* The job whose turn it is, or NULL. */
tke_job *tke_run_head(const tke_run *);
/* Takes the head out; the next seq_id's turn comes. */
tke_job *tke_run_take(tke_run *);
/* The number that the run's next request must have; 0 = a number below those that wait is
 * missing. */
int64_t tke_run_next_number(const tke_run *);
/* Advances next_seq past numbers that need not run: used up, or known to be done. */
void tke_run_skip_settled(tke_run *);
/* Marks a number as refused, so later requests do not wait for it once a higher one arrives; after
 * the commit this also holds after a restart. NULL: nothing to commit. */
tke_txn *tke_run_refused(tke_service *, tke_run *, int64_t seq);
/* A number has arrived: refused ones below it will never run. */
void tke_run_settle_refused(tke_run *, int64_t arrived);
/* Removes the jobs that wait behind a missing number: linked by next, with `invalid` set. */
tke_job *tke_run_give_up(tke_run *);
/* Accepts or replays a training request of a run; consumes the job; answers the call. */
void tke_run_accept(tke_call *, tke_run *, tke_job *, tkc_opt_i64 seq, tinkc_str journal_body);
/* Housekeeper. Ends the requests that waited too long for a missing number. */
void tke_gaps_expire(tke_service *, int64_t now_ms);

#endif
