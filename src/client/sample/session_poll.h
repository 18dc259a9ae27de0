/* session_poll.h - one poll for all samples of a sampling session (retrieve_futures, where the service's
 * settings say so). A promise waits here until its request is named, and then fetches the result
 * itself. */
#ifndef TKC_API_SESSION_POLL_H
#define TKC_API_SESSION_POLL_H

#include "client/call/poll_pace.h"
#include "base/map.h"

/* A request that waits to be named; part of a promise. Zeroed = waits for nothing. */
typedef struct tkc_session_wait tkc_session_wait;
struct tkc_session_wait {
    /* set by the owner */
    void (*ask)(tkc_session_wait *); /* time to ask for the result. Thread: I/O, from the loop */
    tinkc_future *f;                 /* whose it is, for its status */

    int64_t size; /* of the result, if the service said so when it named it; else 0 */

    /* session_poll.c's */
    struct tkc_session_poll *poll; /* that it is listed in; NULL = none */
    const char *request_id;
    tkc_timer check;
    int64_t check_ms;
    bool asking;
};

/* Part of a sampler. */
typedef struct tkc_session_poll {
    tinkc_client *client;
    const char *session_id;
    int64_t clone; /* which copy of the sampler: 0 = the original */
    tkc_map waits; /* request_id -> tkc_session_wait; without any there is no poll */
    tkc_call *call;
    tkc_timer timer;
    tkc_poll_pace pace;
    int64_t cursor;
    int32_t iteration;
    bool in_trouble, rewind, refused;
    struct { /* results that were fetched: the service may delete them */
        char **ids;
        size_t n, cap, sent;
    } retrieved;
} tkc_session_poll;

void tkc_session_poll_init(tkc_session_poll *, tinkc_client *, const char *session_id);
/* Nobody waits any more. Any thread. */
void tkc_session_poll_free(tkc_session_poll *);
/* Whether samples wait here: the service says so, and has not refused it since. Thread: I/O, as
 * everything below. */
bool tkc_session_poll_is_used(const tkc_session_poll *);

/* Waits for the request to be named: `ask` comes once, when it is, when another way must be taken, or
 * now and then to look whether the naming was missed. False = it must poll by itself. The id stays
 * the owner's. */
bool tkc_session_wait_start(tkc_session_poll *, tkc_session_wait *, const char *request_id);
/* `ask` came and the result was not ready: waits on. False = it has been named meanwhile, or polls by
 * itself from now on. */
bool tkc_session_wait_more(tkc_session_wait *);
/* No longer waits; nothing to do is fine. `found`: the service had its result. */
void tkc_session_wait_end(tkc_session_wait *, bool found);
/* The next poll tells the service that this result has arrived. */
void tkc_session_poll_retrieved(tkc_session_poll *, const char *request_id);

#endif
