/* sampler.h - a sampler from the inside. */
#ifndef TKC_API_SAMPLER_H
#define TKC_API_SAMPLER_H

#include "client/sample/session_poll.h"
#include "tinkc/sample.h"

/* Somebody who waits for the numbers of a copy; part of an operation. */
typedef struct tkc_join_wait tkc_join_wait;
struct tkc_join_wait {
    void (*ready)(tkc_join_wait *, const tinkc_error *err); /* err NULL = they are there */
    tkc_join_wait *next, *prev;
    bool waiting;
};

enum { TKC_SAMPLER_BLOCK = 1000000000 }; /* numbers of requests that a copy of a sampler has */

struct tinkc_sampler {
    tinkc_client *client; /* a reference; constant, so the next three */
    char *id;             /* the sampling session */
    tinkc_retry_options retry;
    bool record_stability_info; /* set right after tkc_sampler_make */
    bool owns_client;           /* imported: the client's handle is the sampler's too */
    tkc_refs refs;
    _Atomic int64_t next_request; /* numbers of samples, unique within the session */

    /* Found at first need by tinkc_sampler_tokenizer; needs the lock. */
    pthread_mutex_t tokenizer_lock;
    tinkc_tokenizer *tokenizer;
    void (*tokenizer_free)(tinkc_tokenizer *); /* set with it */

    pthread_mutex_t budget_lock; /* of `slots` */

    /* The I/O thread only. */
    struct {
        tkc_budget slots; /* how many samples are admitted */
        int64_t inside;
        bool needs_place; /* a copy that must ask for its numbers first: sampler_join.c */
        tkc_call *join_call;
        tkc_join_wait *joiners, *last_joiner; /* not empty only while the call runs */
        tkc_session_poll poll;
        int64_t last_progress_ms;
        tkc_log_gate pause_gate;
        char pause_prefix[200];
    } io;
};

/* `retry` NULL = defaults. */
tinkc_sampler *tkc_sampler_make(tinkc_client *, const char *id, const tinkc_retry_options *retry,
                                tinkc_error *err);
void tkc_sampler_keep(tinkc_sampler *);
void tkc_sampler_drop(tinkc_sampler *);

/* True if the sampler's numbers may be used. Else `ready` comes later, or err is set. Thread: I/O.
 */
bool tkc_sampler_join(tinkc_sampler *, tkc_join_wait *, tinkc_error *err);
/* No longer waits; nothing to do is fine. Thread: I/O. */
void tkc_sampler_join_end(tinkc_sampler *, tkc_join_wait *);

/* The poll for all samples of this copy of the sampler. NULL = each is polled for by itself. Its
 * numbers are known. Thread: I/O. */
tkc_session_poll *tkc_sampler_poll(tinkc_sampler *);

/* Checks retry options; NULL is fine. */
bool tkc_retry_check(const tinkc_retry_options *, tinkc_error *err);
/* The same and what is reserved: all that every way to open a sampler reads. */
bool tkc_sampler_options_check(const tinkc_sampler_options *, tinkc_error *err);

/* Next number for a sampling session of this client; in the order of the calls. */
int64_t tkc_next_sampler_seq(tinkc_client *);

#endif
