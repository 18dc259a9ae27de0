/* test_long_work.c - which requests leave the thread that brings them: unpacking and decoding a large
 * body must not keep a front thread from health checks. */
#include <pthread.h>

#include "codec/zstd.h"
#include "service/core/service.h"
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
static bool leaves(const char *path, const char *encoding, tinkc_str body, uint32_t flags,
                   int32_t status)
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
    const tinkc_str small = tkc_strn(spaces, 13), most = tkc_strn(spaces, LARGE),
                    large = tkc_strn(spaces, LARGE + 1);
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
        { telemetry, "zstd", small, TKE_CALL_REMOTE, 422, true }, /* and the refusal comes from there */
        { telemetry, "zstd", tkc_buf_view(&packed), 0, 200, false }, /* in this process */
        { session, "zstd", tkc_buf_view(&packed), TKE_CALL_REMOTE, 422, false }, /* 1 MiB at most */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (leaves(rows[i].path, rows[i].encoding, rows[i].body, rows[i].flags, rows[i].status) !=
            rows[i].leaves)
            fail_msg("row %zu", i);
    tinkc_engine_free(engine);
    tkc_buf_free(&packed);
}

RUN_TESTS(setup, teardown)
