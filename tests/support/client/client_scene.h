/* client_scene.h - one client on the mock, and what can be seen of it, in short.
 *
 * A test calls the SDK, moves the mock's clock and says with EXPECT what has happened since the last EXPECT:
 *
 *     EXPECT(s, "optim_step #1; poll; +7000 poll 1; step: done");
 *
 * A request is the last part of its path (`poll` is retrieve_future, `pass` forward_backward, `models`
 * get_server_capabilities, `archive`, `trace` and `links` what their paths end with), with `+ms` since what stood before it, `#n` the number in
 * its trainer, `again` when it has the key of an earlier one, `(n)` the number that it gives itself among the attempts, and for
 * a poll how many came before it. Its method, pool, limits and headers are those of its endpoint's row in client_scene.c; only
 * what differs from the row is shown, in braces. A future's end has its name: done, or code, status and flags of its error.
 * Heartbeats, bodies,
 * events, logs and words of waiting are shown where the test asks for them (scene_shows).
 *
 * TINKC_SHOW_ALL=1 reports all that differs instead of failing at the first. Read it before you write it down.
 *
 * Chance is none: pauses have their full length, and keys differ. All memory must come back.
 */
#ifndef TESTS_CLIENT_SCENE_H
#define TESTS_CLIENT_SCENE_H

#include "support/client/api_support.h"

#define PAIRS(...)           ((const char *const[]){ __VA_ARGS__, NULL })
#define LEN(list)            (sizeof(list) / sizeof *(list))
#define API                  "/api/v1/"
#define POLL                 API "retrieve_future"
#define CONFIG               API "client/config"
#define QUEUE(state, reason) "{\"type\":\"try_again\",\"request_id\":\"x\",\"queue_state\":\"" state "\"" reason "}"

enum {
    SHOW_BODIES = 1,
    SHOW_EVENTS = 2, /* but for those of each exchange */
    SHOW_LOGS = 4,
    SHOW_STATUS = 8, /* stages and words of futures that are followed */
    SHOW_ERROR_BODY = 16,
    SHOW_HEARTBEATS = 32,
    SHOW_REQUEST_ID = 128, /* of an error: what stands behind the last colon */
    HIDE_KEYS = 512,       /* which is then the same for all: pauses that vary by some time do not */
    HIDE_MESSAGES = 256,   /* of errors: code and cause say enough */
    HIDE_NUMBERS = 64      /* of a trainer's requests: rows that do not depend on those before them */
};

typedef struct scene scene;

/* kind: TINKC_MOCK_*. `more` (or NULL): the client's options. */
scene *scene_new(int32_t kind, const tinkc_client_options *more);
/* Closes the client and frees what is followed. What was not expected is not looked at. */
void scene_end(scene *);
/* Ends the client and makes another one on the same mock; forgets what was seen. */
void scene_renew(scene *, const tinkc_client_options *more);
void scene_forget(scene *);
void scene_shows(scene *, unsigned what);

tinkc_mock *scene_mock(scene *);
tinkc_client *scene_client(scene *);
/* The error argument for calls whose future is followed. */
tinkc_error *scene_err(scene *);

/* A line of the test's own among what was seen. */
void note(scene *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What was seen since the last EXPECT is this. */
#define EXPECT(s, wanted) expect_at(s, wanted, __FILE__, __LINE__)
/* The same for a row of a table, which is named where it fails. */
#define EXPECT_ROW(s, row, wanted)                                                                                     \
    do {                                                                                                               \
        scene_row(s, row);                                                                                             \
        expect_at(s, wanted, __FILE__, __LINE__);                                                                      \
    } while (0)
void expect_at(scene *, const char *wanted, const char *file, int line);
void scene_row(scene *, size_t row);

/* What may become of a request. */
typedef struct outcome {
    int32_t status, fault;
    const char *name, *value; /* of a header */
    const char *body;
} outcome;

/* Answers for the next request to this path, and for all of them. */
void answer(scene *, const char *path, int32_t status, const char *body);
void answer_with(scene *, const char *path, const outcome *);
void answer_always(scene *, const char *path, int32_t status, const char *body);
void answer_always_with(scene *, const char *path, const outcome *);
void answer_headers(scene *, const char *path, int32_t status, const char *const *headers, const char *body);
void silence(scene *, const char *path); /* no answer to the next one */
/* Answers that nobody asked for are taken away, all of this path that are to be given once. */
void use_up(scene *, const char *path);

/* Waits until the client is at rest. The time to its next timer, TINKC_FOREVER = it has none. */
int64_t settle(scene *);
/* Moves the clock by exactly this much, stopping at no timer in between. */
void pass(scene *, int64_t ms);
/* From timer to timer for this long. */
void live(scene *, int64_t ms);

/* Shows how the future ends. NULL: the error of the call is shown and cleared. The scene frees it. */
tinkc_future *follow(scene *, const char *name, tinkc_future *);
/* From timer to timer until f is complete; limit_ms at most. */
void finish(scene *, tinkc_future *f, int64_t limit_ms);
/* Frees a followed future before the end of the scene. */
void release(scene *, tinkc_future *);
/* follow, finish, release. */
void complete(scene *, const char *name, tinkc_future *);

/* Opened without a word. */
tinkc_trainer *open_trainer(scene *);
tinkc_sampler *open_sampler(scene *, const tinkc_retry_options *);
tinkc_batch *make_batch(scene *, size_t n);
tinkc_future *begin_step(scene *, tinkc_trainer *);
tinkc_future *begin_sample(scene *, const char *name, tinkc_sampler *);

#endif
