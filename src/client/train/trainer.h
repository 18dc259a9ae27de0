/* trainer.h - a trainer from the inside: its turn queue and sequence numbers.
 *
 * Operations take their place in the queue when they are started, in the order of the calls that
 * made them. Only the head submits; it takes its sequence numbers then, so an operation that ends
 * before it was sent uses up none.
 */
#ifndef TKC_API_TRAINER_H
#define TKC_API_TRAINER_H

#include "client/core/client_priv.h"
#include "tinkc/train.h"

/* A place in the queue; part of an operation. */
typedef struct tkc_turn tkc_turn;
struct tkc_turn {
    /* The turn has come: submit. err: it never will (the sequence is broken, the trainer closed);
     * the place is given up already. Thread: I/O. */
    void (*go)(tkc_turn *, const tinkc_error *err);
    tkc_turn *next, *prev;
    bool queued;
};

/* A request that has a number which nobody has confirmed. Sending it (again) under that number is
 * safe and closes the gap. Part of a larger object. */
typedef struct tkc_unconfirmed tkc_unconfirmed;
struct tkc_unconfirmed {
    tkc_unconfirmed *next;
    int64_t seq;
    int32_t endpoint; /* TKC_EP_* */
    bool json;        /* whatever the endpoint's row says */
    size_t bytes;     /* about; large ones are written on a helper */
    bool retry_fully; /* its sender was cancelled: it has had none of its retries yet */
    /* Writes the body; *encoding "zstd" = packed. Thread: I/O or a helper. */
    bool (*write)(tkc_unconfirmed *, tkc_buf *out, const char **encoding, tinkc_error *err);
    void (*free)(tkc_unconfirmed *);
};
/* One whose body is written already; moved. */
tkc_unconfirmed *tkc_unconfirmed_new(const tinkc_allocator *a, int64_t seq, int32_t endpoint,
                                     tkc_buf *body, tinkc_error *err);
void tkc_unconfirmed_free_all(tkc_unconfirmed *);

struct tinkc_trainer {
    tinkc_client *client; /* a reference; constant, so the next two */
    char *model_id;
    char *base_model;
    tkc_refs refs;

    /* Found at first need by tinkc_trainer_tokenizer; needs the lock. */
    pthread_mutex_t tokenizer_lock;
    tinkc_tokenizer *tokenizer;
    void (*tokenizer_free)(tinkc_tokenizer *); /* set with it */

    atomic_bool unloaded; /* or about to be: takes no new calls; false again if that fails */

    /* The I/O thread only. */
    struct {
        tkc_turn *first, *last;
        bool head_runs; /* the first has been started */
        int64_t next_seq;
        tinkc_error broken;           /* code 0 = whole */
        tkc_unconfirmed *unconfirmed; /* in order; not empty only when broken */
        struct {
            bool running;
            tkc_offload offload; /* writes the body */
            tkc_buf body;
            const char *encoding; /* static; NULL = none */
            tinkc_error err;
            tkc_call *call; /* then carries it */
        } resend;
        tkc_log_gate pause_gate;
        char pause_prefix[200];
    } io;
};

tinkc_trainer *tkc_trainer_new(tinkc_client *, const char *model_id, const char *base_model,
                               tinkc_error *err);
void tkc_trainer_keep(tinkc_trainer *);
void tkc_trainer_drop(tinkc_trainer *);
/* NULL, forked, closed, unloaded. */
bool tkc_trainer_check(tinkc_trainer *, tinkc_error *err);
bool tkc_fail_unloaded(tinkc_error *err); /* false */

/* Where weights come from: given, a path, nothing reserved set. */
bool tkc_state_check(const tinkc_state_options *, tinkc_error *err);

/* Thread: I/O, all of them. */
void tkc_turn_join(tinkc_trainer *, tkc_turn *);
/* Gives the place up, whatever its state; the next one goes. Nothing to do is fine. */
void tkc_turn_leave(tinkc_trainer *, tkc_turn *);
/* Numbers for n requests; they may be given back while the turn lasts. */
int64_t tkc_turn_take(tinkc_trainer *, size_t n);
void tkc_turn_give_back(tinkc_trainer *, size_t n);
/* Numbers are unconfirmed: those behind fail. `unconfirmed` (a list; NULL: no way to resend it) is
 * taken over. */
void tkc_trainer_break(tinkc_trainer *, const tinkc_error *why, tkc_unconfirmed *unconfirmed);

/* What became of a submit. */
enum {
    TKC_SUBMIT_ACCEPTED = 0,
    TKC_SUBMIT_NOT_TAKEN,  /* refused, or never sent: the number is free again */
    TKC_SUBMIT_UNCONFIRMED /* nobody knows */
};
int32_t tkc_submit_fate(const tkc_call *);

#endif
