/* client_script.h - a client on the mock, and a written record of everything that can be seen of it.
 *
 * A script is a test function that calls the SDK and moves the mock's clock. What leaves the client
 * (requests with their headers, pools, limits and bodies), what it tells its caller (events, logs,
 * stages, results, errors) and when, goes into a record, which is compared with
 * tests/data/client/NAME.txt. TINKC_WRITE_TRANSCRIPTS=1 writes that file; read it before you keep it.
 *
 * The record is the same in every run: each step waits until the client is at rest, so requests of
 * one moment have come in the order of the I/O thread, and chance is the mock's. What depends on the
 * machine or the version is masked. All memory must come back.
 */
#ifndef TESTS_CLIENT_SCRIPT_H
#define TESTS_CLIENT_SCRIPT_H

#include "support/api_support.h"
#include "support/counting.h"

typedef struct script script;

/* kind: TINKC_MOCK_*. `more` (or NULL): the client's options. */
script *script_begin(const char *name, int32_t kind, const tinkc_client_options *more);
/* Closes the client, frees what was watched, compares the record. */
void script_end(script *);

tinkc_mock *script_mock(script *);
tinkc_client *script_client(script *);
/* Ends the client, writing down what that does, and makes another one on the same mock. */
void script_renew(script *, const tinkc_client_options *more);

/* A line of the record. */
void note(script *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Between true and false nothing is written down: what other scripts have shown already. */
void hush(script *, bool on);
/* An answer for the next request of this kind, and one for all of them; headers: pairs or NULL. */
void answer_once(script *, const char *path, int32_t status, const char *const *headers,
                 const char *body);
void answer_always(script *, const char *path, int32_t status, const char *const *headers,
                   const char *body);
void fault_once(script *, const char *path, int32_t fault);

/* Waits until the client is at rest and writes down what has happened. The time to its next timer,
 * TINKC_FOREVER = it has none. */
int64_t settle(script *);
/* Moves the clock by exactly this much, stopping at no timer in between. */
void pass(script *, int64_t ms);
/* From timer to timer for this long. */
void live(script *, int64_t ms);

/* Follows a future from here on: every change of what can be asked of it is written down, and its
 * outcome. NULL: the error of the call is written down and cleared. The script frees it. */
tinkc_future *follow(script *, const char *name, tinkc_future *);
/* The error argument for calls whose future is followed. */
tinkc_error *script_err(script *);
/* From timer to timer until f is complete; limit_ms at most. */
void finish_it(script *, tinkc_future *f, int64_t limit_ms);
/* Frees a followed future before the end of the script. */
void let_go(script *, tinkc_future *);

#endif
