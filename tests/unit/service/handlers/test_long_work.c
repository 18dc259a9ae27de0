/* test_long_work.c - which requests leave the thread that brings them: unpacking and decoding a large
 * body must not keep a front thread from health checks. And in which order they are done. */
#include <pthread.h>
#include <semaphore.h>

#include "codec/zstd.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/long_requests.h"
#include "support/patience.h"
#include "support/service/service_world.h"

typedef struct noted {
    tinkc_reply reply; /* first */
    _Atomic int32_t status;
    pthread_t by;
    _Atomic bool over;
} noted;

static void note_status(tinkc_reply *r, int32_t status)
{
    noted *n = (noted *)(void *)r;
    n->status = status;
    n->by = pthread_self();
}

static void note_header(tinkc_reply *r, const char *name, const char *value)
{
    (void)r, (void)name, (void)value;
}

static bool note_write(tinkc_reply *r, const void *data, size_t len)
{
    (void)r, (void)data, (void)len;
    return true;
}

static void note_end(tinkc_reply *r)
{
    ((noted *)(void *)r)->over = true;
}

static void note_fail(tinkc_reply *r, int32_t code, const char *message)
{
    (void)code, (void)message;
    note_end(r);
}

static tinkc_engine *engine;

/* Sends it; true if another thread answered. */
static bool leaves(const char *path, const char *encoding, tinkc_str body, uint32_t flags, int32_t status)
{
    noted n = { .reply = { note_status, note_header, note_write, note_end, note_fail, NULL, NULL } };
    const char *const headers[] = { "Content-Encoding", encoding, NULL };
    const tinkc_request request = { .method = "POST",
                                    .path = path,
                                    .base_url = "",
                                    .headers = headers,
                                    .body = { (const unsigned char *)body.data, body.len } };
    const tke_caller caller = { .owner = "default", .key_id = "" };
    bool done = tke_service_handle(tke_engine_service(engine), &request, &n.reply, &caller, flags);
    wait_until(n.over);
    if (n.status != status)
        fail_msg("%s: %d, not %d", path, (int)n.status, (int)status);
    bool left = !pthread_equal(n.by, pthread_self());
    assert_int_equal(done, !left); /* then its body is still needed */
    return left;
}

TEST(large_and_packed_bodies_leave_the_front)
{
    enum { LARGE = 256 << 10 };
    tinkc_error err = { 0 };
    static char spaces[LARGE + 1];
    tkc_buf packed;
    tkc_buf_init(&packed, NULL, TKC_BUF_NO_MAX);
    memset(spaces, ' ', sizeof spaces);
    memcpy(spaces, "{\"events\":[]}", 13);
    const tinkc_str small = tkc_strn(spaces, 13), most = tkc_strn(spaces, LARGE), large = tkc_strn(spaces, LARGE + 1);
    assert_true(tkc_zstd_compress(spaces, sizeof spaces, &packed, &err));
    const char *telemetry = "/api/v1/telemetry", *session = "/api/v1/create_session";
    engine = world_open(NULL, 0, NULL);
    const struct {
        const char *path, *encoding;
        tinkc_str body;
        uint32_t flags;
        int32_t status;
        bool leaves;
    } rows[] = {
        { telemetry, "identity", small, TKE_CALL_REMOTE, 200, false },
        { telemetry, "", most, TKE_CALL_REMOTE, 200, false },
        { telemetry, "", large, TKE_CALL_REMOTE, 200, true },
        { telemetry, "zstd", tkc_buf_view(&packed), TKE_CALL_REMOTE, 200, true },
        { telemetry, "zstd", small, TKE_CALL_REMOTE, 422, true },                /* and the refusal comes from there */
        { telemetry, "zstd", tkc_buf_view(&packed), 0, 200, false },             /* in this process */
        { session, "zstd", tkc_buf_view(&packed), TKE_CALL_REMOTE, 422, false }, /* 1 MiB at most */
        { "/v1/chat/completions", "", tkc_str("{}"), TKE_CALL_OPENAI, 400, true }, /* has texts */
        { "/v1/messages/count_tokens", "", tkc_str("{}"), TKE_CALL_OPENAI, 400, true },
        { "/api/v1/external_weights_upload_finish", "", tkc_str("{\"upload_id\":\"x\"}"), 0, 404,
          true }, /* reads files */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (leaves(rows[i].path, rows[i].encoding, rows[i].body, rows[i].flags, rows[i].status) != rows[i].leaves)
            fail_msg("row %zu", i);
    tinkc_engine_free(engine);
    tkc_buf_free(&packed);
}

/* ---- owners ---- */

enum { THREADS = 2, FLOOD = 6, FEW = 2 };

static sem_t gate;
static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static char order[2 * TKE_LONG_REQUESTS]; /* the first letters of owners, as their requests began */
static atomic_size_t begun, served;

static void serve(tke_call *call, tke_handle_fn *handler)
{
    (void)handler;
    bool known = strcmp(call->caller->key_id, "key") == 0 && call->caller->owner == call->owner;
    pthread_mutex_lock(&order_lock);
    order[begun] = known ? call->owner[0] : '?';
    begun++;
    pthread_mutex_unlock(&order_lock);
    while (sem_wait(&gate) != 0)
        ;
    served++;
    call->reply->end(call->reply);
}

static bool defer(noted *n, const char *owner)
{
    tke_service *svc = tke_engine_service(engine);
    static const tinkc_request request = { .method = "POST", .path = "", .base_url = "" };
    char key_id[] = "key", name[] = { owner[0], 0 }; /* they do not last: the request's own copies do */
    const tke_caller caller = { .owner = name, .key_id = key_id };
    *n = (noted){ .reply = { note_status, note_header, note_write, note_end, note_fail, NULL, NULL } };
    tke_call call = { .svc = svc, .request = &request, .reply = &n->reply, .owner = name, .caller = &caller };
    tkc_arena_init(&call.arena, &svc->bodies.allocator, 0);
    bool taken = tke_defer(&call, serve, NULL);
    tkc_arena_free(&call.arena);
    memset(key_id, 'x', 3);
    return taken;
}

static size_t n_waiting(void)
{
    tke_long_requests *requests = tke_engine_service(engine)->long_requests;
    pthread_mutex_lock(&requests->lock);
    size_t n = requests->n;
    pthread_mutex_unlock(&requests->lock);
    return n;
}

/* One owner's requests fill at most half of the places, and others do not wait behind all of them. */
TEST(owners_take_turns)
{
    static noted all[2 * TKE_LONG_REQUESTS];
    size_t n = 0, most = 0;
    engine = world_open(NULL, 0, NULL);
    sem_init(&gate, 0, 0);
    for (; n < THREADS; n++)
        assert_true(defer(&all[n], "a"));
    wait_until(begun == THREADS);
    for (; n < THREADS + FLOOD; n++)
        assert_true(defer(&all[n], "a"));
    for (; n < THREADS + FLOOD + FEW; n++)
        assert_true(defer(&all[n], "b"));
    for (size_t i = 1; i <= n; i++) { /* one at a time, so that the next one's turn is known */
        sem_post(&gate);
        wait_until(served == i && begun == (i + THREADS < n ? i + THREADS : n));
    }
    assert_null(memchr(order, '?', n));
    assert_null(memchr(order + n - 2, 'b', 2));
    assert_non_null(memchr(order + THREADS, 'b', 2));
    wait_until(n_waiting() == 0);
    served = begun = 0;
    for (n = 0; n < TKE_LONG_REQUESTS && defer(&all[n], "a"); n++)
        ;
    assert_int_equal(n, TKE_LONG_REQUESTS / 2);
    assert_int_equal(all[n].status, 429);
    for (most = n; defer(&all[most], "b"); most++)
        ;
    assert_int_equal(most, n + TKE_LONG_REQUESTS / 4);
    for (size_t i = 0; i < most; i++)
        sem_post(&gate);
    wait_until(served == most);
    tinkc_engine_free(engine);
}

RUN_TESTS(setup, teardown)
