/* telemetry.h - what the client tells the service about itself: sessions and errors, never secrets.
 *
 * Every function accepts a client whose telemetry is off (client->telemetry NULL) and then does
 * nothing. Nothing here ever waits, fails its caller or keeps more than a bounded queue.
 */
#ifndef TKC_API_TELEMETRY_H
#define TKC_API_TELEMETRY_H

#include "base/buf.h"
#include "tinkc/client.h"

typedef struct tkc_telemetry tkc_telemetry;

/* For tinkc_client_new, where telemetry is on. Keeps no reference on the client. */
tkc_telemetry *tkc_telemetry_new(tinkc_client *, tinkc_error *err);
/* Drops what is queued. NULL allowed. After _abort, and once the I/O thread has run what was posted
 * to it. */
void tkc_telemetry_free(tkc_telemetry *);

/* A session was made: queues SESSION_START, and its id goes with whatever is sent from now on.
 * Thread: I/O. */
void tkc_telemetry_session(tinkc_client *, const char *session_id);

/* An operation has failed: a user's error becomes a generic event, any other an exception. What
 * the user ended himself (cancelled, closed, a wait that ran out) is not reported. body is the
 * service's answer or empty. Any thread. */
void tkc_telemetry_failure(tinkc_client *, const char *operation, const tinkc_error *,
                           tinkc_bytes body);

/* A generic event; data_json is an object or NULL; severity is a TINKC_LOG_*. Secrets in it are
 * redacted out. False = dropped or off. Any thread. */
bool tkc_telemetry_note(tinkc_client *, const char *name, tinkc_str data_json, int32_t severity);

/* The end in good order: queues SESSION_END if there was a session, sends what is left, then calls
 * done(arg) once. The caller bounds the time with _abort. Thread: I/O. */
void tkc_telemetry_close(tinkc_client *, void (*done)(void *arg), void *arg);
/* Stops timers and the call under way; `done` of _close comes now if it has not yet. Thread: I/O.
 */
void tkc_telemetry_abort(tinkc_client *);

/* Of the window layer. Any thread. */
void tkc_report_call_failure(tinkc_client *, const char *path, const tinkc_error *err,
                             int32_t attempt, int64_t begun_ms, bool retryable);

#endif
