/* limits.h - counted budgets with a fair queue, and the record that clients of one account share.
 *
 * A budget is a balance. Taking waits while the balance is below zero (bytes) or at zero (counts)
 * and may then drive it below; giving back wakes waiters strictly in order. Waiters live on
 * different I/O threads: a grant is posted to the waiter's own loop.
 */
#ifndef TKC_API_LIMITS_H
#define TKC_API_LIMITS_H

#include "client/core/operation.h"

typedef struct tkc_budget tkc_budget;

/* One who waits; part of a larger object. */
typedef struct tkc_claim tkc_claim;
struct tkc_claim {
    /* The claim holds its amount. Thread: the loop's that asked. */
    void (*granted)(tkc_claim *);
    tinkc_future *f; /* the operation it is part of; kept while a grant is under way */
    /* limits.c's */
    int64_t amount;
    tkc_loop *loop;
    tkc_budget *budget;
    tkc_task task;
    tkc_claim *next, *prev;
    bool waiting; /* in the queue */
    bool posted;  /* granted, the task is on its way */
    bool held;
};

struct tkc_budget {
    pthread_mutex_t *lock; /* the record's or the client's; a leaf */
    int64_t limit, balance;
    bool counts; /* balance may not go below zero */
    tkc_claim *first, *last;
};

void tkc_budget_init(tkc_budget *, pthread_mutex_t *lock, int64_t limit, bool counts);
/* Follows the newest setting; what is out stays out. */
void tkc_budget_set_limit(tkc_budget *, int64_t limit);

/* True: held now, `granted` does not come. False: it comes later, unless tkc_claim_end is called
 * first. `granted` must be set. Thread: I/O. */
bool tkc_claim_take(tkc_claim *, tkc_budget *, tkc_loop *, int64_t amount);
/* Gives back what is held, or stops waiting: `granted` does not come any more. Nothing to do is
 * fine. Thread: I/O. */
void tkc_claim_end(tkc_claim *);

/* True while a grant is on its way to the loop: the claim's memory must stay until then. */
bool tkc_claim_pending(tkc_claim *);

/* ---- what clients with the same URL and credential share ---- */

typedef struct tkc_shared_limits {
    pthread_mutex_t lock; /* a leaf */
    tkc_refs refs;
    uint64_t key[2];
    tkc_budget sample_count;    /* 400 */
    tkc_budget throttled_count; /* 10: only while a backoff is recent */
    tkc_budget sample_bytes;    /* of prompts under way */
    tkc_budget inflight_bytes;  /* of results under way */
    int64_t backoff_until_ms;   /* INT64_MIN = never */
    int32_t pass_encoding;      /* TKC_ENC_* that passes were accepted in; 0 = none yet */
    struct tkc_shared_limits *next;
    bool is_public; /* in the process-wide list */
} tkc_shared_limits;

/* The record for this pair, made if there is none. `alone`: not shared with anybody (a transport
 * or clock of the caller's own). Allocated with malloc. */
tkc_shared_limits *tkc_limits_get(const char *normal_url, const char *credential, bool alone,
                                  tinkc_error *err);
void tkc_limits_drop(tkc_shared_limits *);

/* How many records the process has: for tests. */
size_t tkc_limits_count(void);

#endif
