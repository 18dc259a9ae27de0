/* test_odd_bodies.c - bodies that no text can show: protobuf that is cut off, a hundred thousand names.
 * What is wrong in other bodies stands in tests/data/service_rules. */
#include "support/service/service_world.h"

static tinkc_engine *engine;
static const tinkc_transport *t;

static int open_service(void **state)
{
    setup(state);
    engine = world_open(NULL, 0, NULL);
    t = tinkc_engine_transport(engine);
    return 0;
}

static int close_service(void **state)
{
    tinkc_engine_free(engine);
    return teardown(state);
}

/* Sends a pass to a model: its id, then these bytes. */
static answer send_pass(const char *model, const char *bytes, size_t len)
{
    const char *const protobuf[] = { "Content-Type", "application/x-protobuf", NULL };
    char body[200];
    size_t n = (size_t)snprintf(body, sizeof body, "\n%c%s", (int)strlen(model), model);
    memcpy(body + n, bytes, len);
    return service_call(t, "POST", "/api/v1/forward_backward", protobuf, body, n + len);
}

static void step_runs(const char *model, int seq)
{
    assert_non_null(strstr(service_wait(t, service_step(t, model, seq, 0.0)), "optim/step"));
}

/* In gzip, in blocks that are not compressed; returns its length. */
static size_t pack(const char *text, size_t len, unsigned char *out)
{
    enum { BLOCK = 65535 };
    static const unsigned char head[10] = { 0x1f, 0x8b, 8, [9] = 3 };
    unsigned char *at = memcpy(out, head, sizeof head);
    uint32_t crc = ~0u;
    at += sizeof head;
    for (size_t done = 0, n; done < len; done += n, at += 5 + n) {
        n = len - done < BLOCK ? len - done : BLOCK;
        const uint16_t sizes[] = { (uint16_t)n, (uint16_t)~n };
        at[0] = done + n == len;
        memcpy(at + 1, sizes, 4);
        memcpy(at + 5, text + done, n);
    }
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned char)text[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    const uint32_t end[] = { ~crc, (uint32_t)len };
    memcpy(at, end, 8);
    return (size_t)(at - out) + 8;
}

TEST(a_packed_body_has_the_limit_of_what_it_holds)
{
    enum { MOST = 1 << 20 };
    const char *const gzip[] = { "Content-Encoding", "gzip", NULL };
    char *text = malloc(MOST + 1);
    unsigned char *packed = malloc(MOST + 1000);
    memset(text, ' ', MOST + 1);
    memcpy(text, "{\"tags\":[],\"sdk_version\":\"0.25.0\"}", 34);
    for (size_t len = MOST; len <= MOST + 1; len++) {
        answer a = service_call(t, "POST", "/api/v1/create_session", gzip, packed, pack(text, len, packed));
        assert_int_equal(a.status, len > MOST ? 413 : 200);
        assert_int_equal(strstr(a.body.data, "larger than 1048576 bytes when unpacked") != NULL, len > MOST);
        answer_free(&a);
    }
    free(packed);
    free(text);
}

/* The number of a body with a chunk that nobody knows is used; so is that of one that is cut off. Behind a
 * fault anything may seem to be a model or a number: that counts for nothing. */
TEST(the_number_of_a_damaged_protobuf_body_is_used)
{
    static const struct {
        const char *bytes;
        size_t len;
        int status, next;
    } rows[] = {
        { "\x10\x01\x1a\x04\n\x02\"\0", 8, 200, 2 },
        { "\x10\x03\x1a\x7f", 4, 422, 4 },
        { "\x10\x05\n\x01x\x10\x30\x1a\x7f", 9, 422, 6 },
    };
    const char *m = hold(service_model(t, service_session(t), 0, "tiny", 4, 1));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer a = send_pass(m, rows[i].bytes, rows[i].len);
        assert_int_equal(a.status, rows[i].status);
        if (a.status == 200)
            service_wait_failure(t, json_field(a.body.data, "request_id"), "user", "chunk");
        answer_free(&a);
        step_runs(m, rows[i].next);
    }
}

/* If each name was compared with all others, this would take minutes. */
TEST(many_names_are_read_in_linear_time)
{
    const char *m = hold(service_model(t, service_session(t), 1, "tiny", 4, 1));
    char *names = malloc(2 << 20), *end = names;
    for (int i = 0; i < 100000; i++)
        end += snprintf(end, 30, ",\"name-%d\":1", i);
    const char *promise = service_json(t, 200, "POST", "/api/v1/forward_backward",
                                       "{\"model_id\":\"%s\",\"seq_id\":1,\"forward_backward_input\":{\"data\":[],"
                                       "\"loss_fn\":\"cross_entropy\",\"loss_fn_config\":{\"a\":1%s}}}",
                                       m, names);
    service_wait_failure(t, json_field(promise, "request_id"), "user", "data is empty");
    free(names);
}

RUN_TESTS(open_service, close_service)
