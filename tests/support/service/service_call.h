/* service_call.h - plain calls into an engine, as any HTTP client would make them, and waiting.
 *
 * For tests of the service: no client library in between, so what is checked is what goes over the
 * wire. Works on the in-process transport.
 */
#ifndef TESTS_SERVICE_CALL_H
#define TESTS_SERVICE_CALL_H

#include "base/buf.h"
#include "tinkc/engine.h"
#include "tinkc/sys/transport.h"

typedef struct answer {
    int32_t status; /* 0 = failed */
    char type[80];
    char location[300];
    tkc_buf body; /* terminated */
} answer;

/* What requests say as the address they were sent to; "" at first. */
extern const char *service_base_url;

/* headers: pairs or NULL. Waits for the end, as long as patience lasts; then the test fails. */
answer service_call(const tinkc_transport *, const char *method, const char *path, const char *const *headers,
                    const void *body, size_t len);
void answer_free(answer *);
/* A call with a JSON body that is printed; checks the status; returns the text, kept until the next
 * 64 calls. */
const char *service_json(const tinkc_transport *, int32_t status, const char *method, const char *path,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The string or number behind "key": in a JSON text, unescaped not at all; static buffers. */
const char *json_field(const char *json, const char *key);
double json_number(const char *json, const char *key);

/* A copy that stays until the program ends. */
const char *hold(const char *text);

/* Polls until there is an answer other than 408. */
answer service_result(const tinkc_transport *, const char *request_id, bool proto);
/* The JSON of the result; checks that it did not fail (or that it did, with this text inside). */
const char *service_wait(const tinkc_transport *, const char *request_id);
/* Polls until its model is paused for lack of capacity, and the answer says why. */
void service_wait_paused(const tinkc_transport *, const char *request_id, const char *why);
void service_wait_failure(const tinkc_transport *, const char *request_id, const char *category, const char *text);

/* A session; a model on `base`. Ids are kept until the next 64 calls. */
const char *service_session(const tinkc_transport *);
const char *service_model(const tinkc_transport *, const char *session, int number, const char *base, int rank,
                          int seed);
/* forward_backward with cross_entropy on one sequence, weights 1; returns the request id. */
const char *service_pass(const tinkc_transport *, const char *model, int64_t seq, const int *tokens, size_t n,
                         bool forward);
const char *service_step(const tinkc_transport *, const char *model, int64_t seq, double lr);
/* loss:sum of a forward pass at this number. */
double service_loss(const tinkc_transport *, const char *model, int64_t seq, const int *tokens, size_t n);

#endif
