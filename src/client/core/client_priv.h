/* client_priv.h - the client from the inside: who may touch what.
 *
 * Constant fields are set by tinkc_client_new before anybody else sees the client. `shared` needs
 * its lock. `io` belongs to the I/O thread alone; get there with tkc_loop_post or from inside an
 * operation (operation.h). Lock order, outermost first: client.shared.lock, future.shared.lock,
 * queue.lock, the loop's; docs/architecture.md has the others.
 */
#ifndef TKC_API_CLIENT_PRIV_H
#define TKC_API_CLIENT_PRIV_H

#include <sys/types.h>

#include "client/call/call.h"
#include "client/call/limits.h"
#include "client/core/operation.h"
#include "base/log.h"
#include "base/pool.h"
#include "net/http.h"
#include "wire/messages.h"

enum { TKC_N_POOLS = 9 }; /* TINKC_POOL_* */

/* Somebody who waits for the start-up to get as far as he needs; part of a larger object. */
typedef struct tkc_ready_wait tkc_ready_wait;
struct tkc_ready_wait {
    void (*ready)(tkc_ready_wait *, const tinkc_error *err); /* err NULL = continue. Thread: I/O */
    int32_t need;                                            /* TKC_NEED_* */
    tkc_ready_wait *next, *prev;
    bool waiting;
};

/* Somebody who waits for a credential; part of a larger object. */
typedef struct tkc_token_wait tkc_token_wait;
struct tkc_token_wait {
    /* token NULL with err NULL = send none. Thread: I/O. The text is valid inside only. */
    void (*ready)(tkc_token_wait *, const char *token, const tinkc_error *err);
    bool raw; /* the credential itself, not the JWT it is exchanged for */
    tkc_token_wait *next, *prev;
    struct tkc_token_waits *list; /* NULL = does not wait */
};

typedef struct tkc_boot tkc_boot; /* startup.c: start-up, session, heartbeat */
typedef struct tkc_auth tkc_auth; /* auth.c: credentials and tokens */
struct tkc_telemetry;             /* telemetry.c */

struct tinkc_client {
    /* ---- constant ---- */
    const tinkc_allocator *a;
    const tinkc_clock *clock;
    const tinkc_transport *transport;
    tkc_http *http; /* the HTTPS transport, which ends with the client; NULL = the caller's own */
    tkc_loop *loop;
    pid_t pid;
    tkc_log log;
    tkc_arena texts;      /* what the texts below live in */
    const char *base_url; /* normalised, with a slash at its end; "" = none */
    const char *origin;   /* scheme, host and port alone: what shares connections and limits */
    const char *api_key;  /* NULL = none */
    const char *credential_cmd;
    const char *project_id; /* NULL = none */
    const char *display_name;
    const char *const *tags;
    const char *const *user_metadata;
    const char *const *headers;      /* pairs, on every request, the defaults merged in */
    const char *const *user_headers; /* pairs as they were given */
    const char *query;               /* "a=b&c=d" or "" */
    int64_t connect_timeout_ms, idle_timeout_ms, retry_window_ms, operation_timeout_ms;
    int64_t billing_pause_ms; /* as in the options: 0 = what the flags say */
    int64_t max_response_bytes;
    int32_t max_retries;
    bool no_retries, conflict_recovery, telemetry_on;
    bool imported; /* stands behind an imported sampler: makes no session of its own */
    tkc_shared_limits *limits;
    struct tkc_telemetry *telemetry;   /* NULL = off */
    struct tkc_tokenizers *tokenizers; /* tokenizer_fetch.c: by model name */
    pthread_mutex_t budget_lock;       /* of fwdbwd_bytes */

    tkc_task close_task, end_task, freed_task;
    tkc_timer close_timer;

    /* Handles, futures, trainers, samplers, queues, inputs and batches. */
    tkc_refs refs;
    tinkc_client *departed_next; /* departed.c */
    /* What the transport and the helpers still owe; the client's memory stays until it is in. */
    atomic_int replies;

    /* ---- any thread, lock held: inside it a future's lock and the loop's, nothing else ---- */
    struct {
        pthread_mutex_t lock;
        pthread_cond_t cond;    /* closing has come to its end */
        bool closed;            /* takes no new work */
        bool close_done;        /* the I/O side has released everything */
        size_t workers;         /* downloads whose thread has not come back; close waits for them */
        bool ending;            /* end_task has been posted */
        bool freed_seen;        /* the I/O thread has run freed_task */
        bool freed_late;        /* nobody waits for it: it has the handle's reference */
        int64_t running;        /* operations that are not complete */
        tkc_pool *helpers;      /* NULL until first need */
        const char *session_id; /* NULL until there is one */
        int64_t next_model_seq, next_sampler_seq, next_loss_seq;
        tkc_event_receiver events;
        uint32_t event_any; /* kinds that anybody listens to, futures included */
    } shared;

    /* ---- the I/O thread only ---- */
    struct {
        tinkc_future *ops;            /* running operations */
        struct tkc_call_inner *calls; /* with an answer outstanding */
        tkc_config_response flags;    /* set before anything trains or samples; later only
                                         by refreshed settings that replace one of them */
        tkc_arena flag_texts;
        tkc_budget fwdbwd_bytes;
        tkc_boot *boot;
        tkc_auth *auth;
        int32_t bare_400_left[TKC_N_POOLS]; /* 16 at first */
        int64_t refresh_interval_s;
        struct {             /* samples that the service is to forget: cancel.c */
            int64_t at_once; /* 0 = it does not want to know */
            int64_t out;
            size_t waiting;
            struct tkc_errand *first, *last;
        } cancels;
        struct { /* what the service says is deprecated: call.c */
            char note[300];
            tkc_log_gate gate;
        } deprecation;
        int64_t billing_first_ms, billing_logged_ms; /* INT64_MIN = unset */
        bool ended;                                  /* nothing new is started */
    } io;
};

/* First lines of every public function on a handle: tkc_enter, then this. */
bool tkc_client_check(tinkc_client *, tinkc_error *err);       /* NULL, forked */
bool tkc_client_check_open(tinkc_client *, tinkc_error *err);  /* closed, too */
bool tkc_client_check_waits(tinkc_client *, tinkc_error *err); /* not on the I/O thread */
bool tkc_client_forked(const tinkc_client *);

void tkc_client_keep(tinkc_client *);
void tkc_client_drop(tinkc_client *);
/* Ends everything of the client, and its I/O thread; handles stay valid and are closed. Waits, but on the I/O thread
 * itself. */
void tkc_client_end_now(tinkc_client *);

void tkc_client_log(tinkc_client *, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Waits until the client has what `need` says. True: it has it now, `ready` does not come. */
bool tkc_client_need(tinkc_client *, tkc_ready_wait *);
void tkc_client_need_end(tinkc_client *, tkc_ready_wait *); /* stops waiting */

/* The credential for the next request. True: there now, `ready` does not come; *token may be NULL:
 * send none. */
bool tkc_auth_token(tinkc_client *, tkc_token_wait *, const char **token);
void tkc_auth_token_end(tkc_token_wait *);

/* True if a 402 is to be waited out (docs/failures.md). Thread: I/O. */
bool tkc_billing_pauses(tinkc_client *, int32_t status, tinkc_str detail, tinkc_future *f);

/* An answer has come back from the transport. May end the loop: the last thing a task does. */
void tkc_client_reply_back(tinkc_client *);
/* A thread of a download begins, or has come back. */
void tkc_client_worker(tinkc_client *, bool begins);
void tkc_ops_stop_all(tinkc_client *, int32_t code, const char *text); /* operation.c */
void tkc_calls_abort_all(tinkc_client *);                              /* call.c */

/* Random, as text: "6f1d…", 36 characters and a NUL. */
enum { TKC_UUID_TEXT = 37 };
void tkc_uuid4(const tinkc_clock *, char out[TKC_UUID_TEXT]);

/* Helper threads for what must not run on the I/O thread: call.h's tkc_offload_start. */
tkc_pool *tkc_client_helpers(tinkc_client *, tinkc_error *err);

/* Text for tinkc_client_snapshot and tinkc_sampler_export. Waits. */
const char *tkc_client_save(tinkc_client *, const tinkc_sampler *, tinkc_text *out,
                            tinkc_error *err);

/* Makes a client from options; `imported` keeps it from making sessions. */
tinkc_client *tkc_client_make(const tinkc_client_options *, bool imported, tinkc_error *err);

#endif
