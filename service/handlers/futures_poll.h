/* futures_poll.h - polls that clients hold open until a job ends (jobs.c), or any sample of a session (futures_poll.c).
 *
 * Locks: the list of polls is svc->lock's. A poll that was taken out of it belongs to who took it out:
 * replies are sent without the lock.
 */
#ifndef TKE_SERVICE_FUTURES_POLL_H
#define TKE_SERVICE_FUTURES_POLL_H

#include "service/core/service_types.h"

struct tke_session_poll { /* a poll for the next sample of a sampling session to end */
    char *sampler;
    int64_t clone; /* which of the copies of the sampler asks; 0 = the first */
    int64_t after; /* only samples with a higher done_number are reported */
};

struct tke_waiter {         /* an open poll */
    struct tke_waiter *next, *prev; /* in the list of all polls, by deadline */
    struct tke_waiter *next_of_job;
    struct tke_job *job;
    tinkc_reply *reply;
    int64_t deadline_ms;
    bool proto, metadata, remote;
    tke_session_poll *poll; /* NULL = waits for its job only */
};

/* Holds a poll until its job is done or the poll times out. Locks: needs svc->lock. */
tke_waiter *tke_poll_hold(tke_call *, tke_job *, bool proto, bool metadata);
/* The first needs svc->lock, the second must not have it. */
bool tke_session_poll_wants(const tke_session_poll *, const tke_job *);
void tke_session_poll_answer(tke_service *, const tke_session_poll *, tinkc_reply *);
/* Housekeeper. Locks: none held. Answers polls that have timed out; returns the next deadline. */
int64_t tke_poll_expire(tke_service *, int64_t now_ms);
/* Answers every open poll with 503, when the service ends. */
void tke_polls_close(tke_service *);

#endif
