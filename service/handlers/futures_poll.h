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

struct tke_waiter {                 /* an open poll */
    struct tke_waiter *next, *prev; /* in the list of all polls, by deadline */
    struct tke_waiter *next_of_job;
    struct tke_job *job;
    tinkc_reply *reply;
    int64_t deadline_ms;
    bool proto, metadata, remote;
    tke_session_poll *poll; /* NULL = waits for its job only */
};

struct tke_polls {            /* all that are open; svc->lock */
    tke_waiter *first, *last; /* by deadline */
    size_t n_session;         /* of them, those that wait for any sample of a session */
    int64_t n_samples_done;
};

bool tke_polls_open(tke_service *, tinkc_error *err);
void tke_polls_free(tke_service *); /* after tke_polls_close */
/* Locks: needs svc->lock. */
size_t tke_polls_count(const tke_service *);
/* Holds a poll until its job is done or the poll times out. session: it waits for any sample of one and is then the
 * poll's; NULL = for this job only. Locks: needs svc->lock. */
tke_waiter *tke_poll_hold(tke_call *, tke_job *, bool proto, bool metadata,
                          tke_session_poll *session);
/* The first needs svc->lock, the second must not have it. */
bool tke_session_poll_wants(const tke_session_poll *, const tke_job *);
void tke_session_poll_answer(tke_service *, const tke_session_poll *, tinkc_reply *);
/* Housekeeper. Locks: none held. Answers polls that have timed out; returns the next deadline. */
int64_t tke_poll_expire(tke_service *, int64_t now_ms);
/* Answers every open poll with 503, when the service ends. */
void tke_polls_close(tke_service *);

#endif
