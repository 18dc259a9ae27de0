/* test_backpressure.c - answers that the test gives piece by piece, in the transport's place: how much a reader takes, when the
 * transport may continue, words of failures, bodies that are too long, and what becomes of an answer that nobody wants. */
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "support/client/mock_fixture.h"

#undef fail /* cmocka's; a reply has a function of that name */

/* Requests to `path` are held: the test answers them. All others go to the mock. */
static struct {
    const tinkc_transport *mock;
    const char *path;
    tinkc_reply *_Atomic held;
    atomic_int sent, resumed, cancelled;
    bool writes_on;   /* bytes come behind the cancel, which are refused */
    bool keeps_quiet; /* a cancel is not answered */
} hand;

static sem_t reached, released;

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0 && errno == EINTR)
        ;
}

static void hand_send(void *self, const tinkc_request *r, tinkc_reply *reply)
{
    (void)self;
    if (request_is_to(r, "/hold")) { /* the client's thread does nothing until the test says so */
        sem_post(&reached);
        wait_for(&released);
    }
    if (!request_is_to(r, hand.path)) {
        hand.mock->send(hand.mock->self, r, reply);
        return;
    }
    atomic_store(&hand.held, reply);
    atomic_fetch_add(&hand.sent, 1);
}

static void hand_cancel(void *self, tinkc_reply *reply)
{
    (void)self;
    if (reply != atomic_load(&hand.held)) {
        hand.mock->cancel(hand.mock->self, reply);
        return;
    }
    atomic_fetch_add(&hand.cancelled, 1);
    if (hand.writes_on &&
        (reply->room(reply) != SIZE_MAX || reply->write(reply, "", 0) || reply->write(reply, "late", 4)))
        abort();
    if (!hand.keeps_quiet)
        reply->fail(reply, TINKC_E_CONNECTION, "cancelled");
}

static void hand_resume(void *self, tinkc_reply *reply)
{
    (void)self;
    if (reply == atomic_load(&hand.held))
        atomic_fetch_add(&hand.resumed, 1);
    else if (hand.mock->resume)
        hand.mock->resume(hand.mock->self, reply);
}

static const tinkc_transport by_hand = {
    .abi = TINKC_TRANSPORT_ABI, .send = hand_send, .cancel = hand_cancel, .resume = hand_resume
};

static int begin(void **state, bool no_retries)
{
    fixture *x = calloc(1, sizeof *x);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    hand.mock = tinkc_mock_transport(x->mock);
    hand.path = "";
    atomic_store(&hand.held, NULL);
    atomic_store(&hand.sent, 0);
    atomic_store(&hand.resumed, 0);
    atomic_store(&hand.cancelled, 0);
    hand.writes_on = hand.keeps_quiet = false;
    x->client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-key",
                                                          .transport = &by_hand,
                                                          .clock = tinkc_mock_clock(x->mock),
                                                          .max_response_bytes = 1000,
                                                          .no_retries = no_retries },
                                 &x->err);
    assert_ok(&x->err);
    *state = x;
    return 0;
}

static int setup(void **state)
{
    return begin(state, true);
}

static int setup_retries(void **state)
{
    return begin(state, false);
}

static tinkc_reply *held(fixture *x)
{
    settle(x);
    assert_non_null(atomic_load(&hand.held));
    return atomic_load(&hand.held);
}

/* ---- token streams ---- */

enum { ROOM = 1 << 20 };

static char *comment(size_t len) /* a line that means nothing, for a stream of events */
{
    static char text[ROOM];
    memset(text, ':', len);
    text[len - 1] = '\n';
    return text;
}

static tinkc_deltas *open_stream(fixture *x, tinkc_sampler **sampler)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    *sampler = tinkc_sampler_new(x->client, &nano, &x->err);
    assert_ok(&x->err);
    hand.path = API "stream_sample";
    tinkc_deltas *d = tinkc_sample_stream(*sampler, ids, 3, &o, &x->err);
    assert_ok(&x->err);
    return d;
}

static void nothing_yet(tinkc_deltas *d)
{
    tinkc_error err = { 0 };
    assert_null(tinkc_deltas_next(d, 0, &err));
    assert_int_equal(err.code, TINKC_E_TIMEOUT);
    assert_string_equal(err.message, "no token yet");
}

/* A mebibyte waits for the reader. Only one who found it full lets the transport continue. */
TEST_WITH(room_of_a_token_stream, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_sampler *sampler;
    tinkc_deltas *d = open_stream(x, &sampler);
    tinkc_reply *r = held(x);
    assert_true(r->room(r) == SIZE_MAX); /* no answer to speak of yet */
    r->status(r, 200);
    assert_int_equal(r->room(r), ROOM);
    assert_true(r->write(r, comment(ROOM - 1), ROOM - 1));
    assert_int_equal(r->room(r), 1);
    nothing_yet(d);
    settle(x);
    assert_int_equal(r->room(r), ROOM);
    assert_int_equal(atomic_load(&hand.resumed), 0); /* it was never held up */
    for (int i = 1; i <= 2; i++) {
        assert_true(r->write(r, comment(ROOM), ROOM));
        assert_int_equal(r->room(r), 0);
        nothing_yet(d);
        settle(x);
        assert_int_equal(r->room(r), ROOM);
        assert_int_equal(atomic_load(&hand.resumed), i);
    }
    nothing_yet(d);
    settle(x);
    assert_int_equal(atomic_load(&hand.resumed), 2);
    tinkc_deltas_free(d);
    settle(x);
    assert_int_equal(atomic_load(&hand.cancelled), 1);
    tinkc_sampler_free(sampler);
}

static void count_tokens(const tinkc_event *e, void *user)
{
    assert_int_equal(e->kind, TINKC_EVENT_TOKENS);
    ++*(int *)user;
}

/* Listeners are called for what came before them, for the first bytes after each reading, and for the end. */
TEST_WITH(listeners_of_a_token_stream, setup, end_fixture)
{
    static const char token[] = "data: {\"event_type\":\"token\",\"token_id\":7,\"index\":0}\n\n",
                      done[] = "data: {\"event_type\":\"done\",\"total_tokens\":1}\n\n";
    fixture *x = *state;
    tinkc_sampler *sampler;
    tinkc_deltas *d = open_stream(x, &sampler);
    tinkc_reply *r = held(x);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    int early = 0, late = 0, last = 0;
    r->status(r, 200);
    assert_true(tinkc_deltas_on_event(d, queue, TINKC_EVENT_TOKENS, count_tokens, &early, &x->err));
    settle(x);
    tinkc_queue_run(queue, 0, &x->err);
    assert_int_equal(early, 0); /* nothing waits */
    assert_true(r->write(r, token, 10));
    assert_true(r->write(r, token + 10, 5));
    settle(x);
    tinkc_queue_run(queue, 0, &x->err);
    assert_int_equal(early, 1); /* unread bytes are announced once */
    assert_true(tinkc_deltas_on_event(d, queue, TINKC_EVENT_TOKENS, count_tokens, &late, &x->err));
    settle(x);
    tinkc_queue_run(queue, 0, &x->err);
    assert_int_equal(late, 1); /* they were there before */
    nothing_yet(d);            /* half an event */
    assert_true(r->write(r, token + 15, strlen(token) - 15));
    settle(x);
    tinkc_queue_run(queue, 0, &x->err);
    assert_int_equal(late, 2);
    const tinkc_delta *delta = tinkc_deltas_next(d, 0, &x->err);
    assert_ok(&x->err);
    assert_int_equal(delta->tokens.len, 1);
    assert_int_equal(delta->tokens.data[0], 7);
    assert_int_equal(delta->logprobs.len, 0);
    assert_false(delta->last);
    assert_true(r->write(r, done, strlen(done)));
    r->end(r);
    settle(x);
    tinkc_queue_run(queue, 0, &x->err);
    assert_int_equal(late, 4); /* bytes, and the end */
    assert_true(tinkc_deltas_on_event(d, queue, TINKC_EVENT_TOKENS, count_tokens, &last, &x->err));
    tinkc_queue_run(queue, 0, &x->err);
    assert_int_equal(last, 1);
    delta = tinkc_deltas_next(d, 0, &x->err);
    assert_true(delta->last);
    assert_int_equal(delta->tokens.len, 0);
    assert_null(tinkc_deltas_next(d, 0, &x->err));
    assert_ok(&x->err);
    tinkc_queue_free(queue);
    tinkc_deltas_free(d);
    tinkc_sampler_free(sampler);
    assert_ok(&x->err);
}

/* ---- streams of bytes ---- */

enum { BUFFER = 512 * 1024 };

/* Half a mebibyte waits; a transport that was held up continues when half of that is read. */
TEST_WITH(room_of_a_byte_stream, setup, end_fixture)
{
    static char bytes[BUFFER], sent[BUFFER];
    fixture *x = *state;
    for (size_t i = 0; i < BUFFER; i++)
        sent[i] = (char)(i * 7 + i / 251);
    hand.path = "/far";
    tinkc_stream *s = tinkc_stream_open(x->client, &(tinkc_http_options){ .path = "/far" }, &x->err);
    tinkc_reply *r = held(x);
    r->status(r, 206);
    r->header(r, "X-One", "1");
    assert_true(r->write(r, "", 0));
    const tinkc_response *head = tinkc_stream_head(s, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_response_status(head), 206);
    assert_string_equal(tinkc_response_header(head, "x-one"), "1");
    assert_int_equal(r->room(r), BUFFER);
    assert_true(r->write(r, sent, 10));
    assert_true(r->write(r, sent + 10, 20000));
    assert_true(r->write(r, sent + 20010, BUFFER - 1 - 20010));
    assert_int_equal(r->room(r), 1);
    assert_int_equal(tinkc_stream_read(s, bytes, BUFFER, 0, &x->err), BUFFER - 1);
    assert_memory_equal(bytes, sent, BUFFER - 1);
    settle(x);
    assert_int_equal(atomic_load(&hand.resumed), 0); /* it was never held up */
    for (int i = 1; i <= 2; i++) {
        assert_true(r->write(r, sent, BUFFER));
        assert_int_equal(r->room(r), 0);
        assert_int_equal(tinkc_stream_read(s, bytes, BUFFER / 2 - 1, 0, &x->err), BUFFER / 2 - 1);
        settle(x);
        assert_int_equal(atomic_load(&hand.resumed), i - 1);
        assert_int_equal(tinkc_stream_read(s, bytes, 1, 0, &x->err), 1);
        settle(x);
        assert_int_equal(atomic_load(&hand.resumed), i);
        assert_int_equal(r->room(r), BUFFER / 2);
        assert_int_equal(tinkc_stream_read(s, bytes, BUFFER, 0, &x->err), BUFFER / 2);
        assert_memory_equal(bytes, sent + BUFFER / 2, BUFFER / 2);
        settle(x);
        assert_int_equal(atomic_load(&hand.resumed), i);
    }
    assert_int_equal(tinkc_stream_read(s, NULL, 1, 0, &x->err), 0);
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    assert_string_equal(x->err.message, "buf is NULL");
    x->err = (tinkc_error){ 0 };
    assert_int_equal(tinkc_stream_read(s, bytes, 1, 0, &x->err), 0);
    assert_int_equal(x->err.code, TINKC_E_TIMEOUT);
    assert_string_equal(x->err.message, "nothing came within 0 ms");
    x->err = (tinkc_error){ 0 };
    r->end(r);
    settle(x);
    assert_int_equal(tinkc_stream_read(s, bytes, 1, 0, &x->err), 0);
    assert_ok(&x->err);
    tinkc_stream_free(s);
    assert_int_equal(atomic_load(&hand.cancelled), 0);
}

/* The client's thread is busy while a transport is held up for the second time: it is resumed once for both. */
TEST_WITH(resumed_once_for_two, setup, end_fixture)
{
    static char bytes[BUFFER];
    fixture *x = *state;
    hand.path = "/far";
    assert_true(sem_init(&reached, 0, 0) == 0 && sem_init(&released, 0, 0) == 0);
    tinkc_stream *s = tinkc_stream_open(x->client, &(tinkc_http_options){ .path = "/far" }, &x->err);
    tinkc_reply *r = held(x);
    r->status(r, 200);
    tinkc_future *f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/hold" }, &x->err);
    wait_for(&reached);
    assert_true(r->write(r, bytes, BUFFER / 2));
    for (int i = 0; i < 2; i++) {
        assert_true(r->write(r, bytes, BUFFER / 2));
        assert_int_equal(r->room(r), 0);
        assert_int_equal(tinkc_stream_read(s, bytes, BUFFER / 2, 0, &x->err), BUFFER / 2);
    }
    assert_int_equal(atomic_load(&hand.resumed), 0);
    sem_post(&released);
    settle(x);
    assert_int_equal(atomic_load(&hand.resumed), 1);
    tinkc_future_free(f);
    tinkc_stream_free(s);
}

/* ---- downloads ---- */

typedef struct received {
    char bytes[1 << 19];
    atomic_size_t n;
} received;

static bool receive(void *user, const void *data, size_t len)
{
    received *r = user;
    size_t at = atomic_load(&r->n);
    assert_true(len <= sizeof r->bytes - at);
    memcpy(r->bytes + at, data, len);
    atomic_store(&r->n, at + len);
    return true;
}

static void fill(char *bytes, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)(i * 7 + i / 251 + seed);
}

static tinkc_future *begin_download(fixture *x, const tinkc_download_options *o)
{
    hand.path = "/far";
    atomic_store(&hand.held, NULL);
    tinkc_future *f = tinkc_url_download(x->client, "https://files.test/far", o, &x->err);
    assert_ok(&x->err);
    wait_until(atomic_load(&hand.held));
    assert_non_null(atomic_load(&hand.held));
    return f;
}

/* After much has come at once, the reader is given every single byte as it comes. */
TEST_WITH(single_bytes_after_many, setup, end_fixture)
{
    enum { MANY = 300 * 1000, SINGLE = 10 };
    fixture *x = *state;
    received *got = calloc(1, sizeof *got);
    char *bytes = malloc(MANY + SINGLE);
    assert_true(got && bytes);
    fill(bytes, MANY + SINGLE, 0);
    tinkc_future *f = begin_download(x, &(tinkc_download_options){ .write = receive, .write_user = got });
    tinkc_reply *r = held(x);
    r->status(r, 200);
    assert_true(r->write(r, bytes, MANY));
    for (size_t n = MANY; n <= MANY + SINGLE; n++) {
        wait_until(atomic_load(&got->n) == n);
        assert_int_equal(atomic_load(&got->n), n);
        if (n < MANY + SINGLE)
            assert_true(r->write(r, bytes + n, 1));
    }
    r->end(r);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    assert_memory_equal(got->bytes, bytes, MANY + SINGLE);
    tinkc_future_free(f);
    free(bytes);
    free(got);
}

/* What a pipe has no room for is not lost. */
TEST_WITH(more_than_a_pipe_takes, setup, end_fixture)
{
    enum { ROUNDS = 20, LEN = 20000 };
    fixture *x = *state;
    static char bytes[LEN], back[LEN];
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, 4096) >= 4096);
    tinkc_future *f = begin_download(x, &(tinkc_download_options){ .fd = fds[1] });
    tinkc_reply *r = held(x);
    r->status(r, 200);
    for (unsigned i = 0; i < ROUNDS; i++) {
        fill(bytes, LEN, i);
        assert_true(r->write(r, bytes, LEN));
        for (size_t at = 0; at < LEN;) {
            ssize_t n = read(fds[0], back + at, LEN - at);
            assert_true(n > 0);
            at += (size_t)n;
        }
        assert_memory_equal(back, bytes, LEN);
    }
    r->end(r);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    assert_int_equal(tinkc_download_bytes(tinkc_future_download(f, 0, &x->err)), ROUNDS * LEN);
    tinkc_future_free(f);
    close(fds[0]);
    close(fds[1]);
}

/* Bytes beyond the length or the limit are not handed on. */
TEST_WITH(no_more_than_was_announced, setup, end_fixture)
{
    fixture *x = *state;
    for (int i = 0; i < 30; i++) {
        bool limit = i % 3 == 1, nothing = i % 3 == 2;
        char back[16];
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        tinkc_future *f = begin_download(x, &(tinkc_download_options){ .fd = fds[1], .max_bytes = limit ? 5 : 0 });
        tinkc_reply *r = held(x);
        r->status(r, 200);
        if (!limit)
            r->header(r, "Content-Length", nothing ? "0" : "5");
        if (!nothing) {
            assert_true(r->write(r, "12", 2));
            assert_int_equal(read(fds[0], back, sizeof back), 2);
        }
        (void)r->write(r, "345678", 6);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        assert_int_equal(x->err.code, TINKC_E_BAD_RESPONSE);
        assert_string_equal(x->err.message, limit ? "larger than max_bytes" : "more bytes came than the length said");
        x->err = (tinkc_error){ 0 };
        tinkc_future_free(f);
        close(fds[1]);
        assert_int_equal(read(fds[0], back, sizeof back), 0);
        close(fds[0]);
    }
}

/* A download that is cancelled while it asks for the address no longer asks. */
TEST_WITH(cancelled_before_its_address, setup, end_fixture)
{
    fixture *x = *state;
    hand.path = API "training_runs/r/checkpoints/weights/c/archive";
    tinkc_future *f = tinkc_checkpoint_download(x->client, "tinker://r/weights/c",
                                                &(tinkc_download_options){ .write = receive }, &x->err);
    wait_until(atomic_load(&hand.sent) == 1);
    assert_int_equal(atomic_load(&hand.cancelled), 0);
    tinkc_future_cancel(f);
    wait_until(atomic_load(&hand.cancelled) == 1);
    assert_int_equal(atomic_load(&hand.cancelled), 1);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CANCELLED);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
}

/* ---- failures in the transport's words ---- */

TEST_WITH(words_of_a_transport, setup, end_fixture)
{
    enum { MOST = 199 }; /* of its words, which are kept */
    static char text[400];
    memset(text, 'w', sizeof text - 1);
    static const struct {
        int32_t code;
        const char *message;
        int32_t want;
        const char *said;
    } rows[] = {
        { TINKC_E_NET_TIMEOUT, "too slow", TINKC_E_NET_TIMEOUT, "too slow" },
        { TINKC_E_BAD_RESPONSE, "garbage", TINKC_E_BAD_RESPONSE, "garbage" },
        { 0, "odd", TINKC_E_CONNECTION, "odd" },
        { TINKC_E_CONNECTION, "x", TINKC_E_CONNECTION, "x" },
        { TINKC_E_CONNECTION, NULL, TINKC_E_CONNECTION, "no answer" },
        { TINKC_E_CONNECTION, "", TINKC_E_CONNECTION, "no answer" },
        { TINKC_E_CONNECTION, text, TINKC_E_CONNECTION, text + sizeof text - 1 - MOST },
        { TINKC_E_CONNECTION, text + sizeof text - 1 - MOST, TINKC_E_CONNECTION, text + sizeof text - 1 - MOST },
    };
    fixture *x = *state;
    hand.path = "/far";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int posts = 0; posts < 2; posts++) {
            tinkc_error err = { 0 };
            tinkc_http_options o = { .path = "/far", .method = posts ? "POST" : "GET" };
            tinkc_future *f = tinkc_http_call(x->client, &o, &x->err);
            tinkc_reply *r = held(x);
            r->status(r, 503); /* of half an answer: it counts for nothing */
            r->fail(r, rows[i].code, rows[i].message);
            settle(x);
            assert_false(tinkc_future_wait(f, 0, &err));
            assert_int_equal(err.code, rows[i].want);
            assert_string_equal(err.message, rows[i].said);
            assert_int_equal(err.http_status, 0);
            assert_int_equal((err.flags & TINKC_MAY_HAVE_RUN) != 0, posts);
            tinkc_future_free(f);
        }
}

/* ---- bodies that are too long ---- */

TEST_WITH(bodies_that_are_too_long, setup, end_fixture)
{
    static const char text[1001] = "";
    fixture *x = *state;
    hand.path = "/far";
    for (size_t more = 0; more < 2; more++) {
        tinkc_error err = { 0 };
        tinkc_future *f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/far" }, &x->err);
        tinkc_reply *r = held(x);
        r->status(r, 200);
        assert_true(r->write(r, text, 900));
        assert_int_equal(r->write(r, text, 100 + more), !more);
        assert_int_equal(r->write(r, text, 0), !more); /* nobody wants the rest */
        r->end(r);
        settle(x);
        assert_int_equal(tinkc_future_wait(f, 0, &err), !more);
        if (more) {
            assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
            assert_string_equal(err.message, "answer: larger than 1000 bytes");
            assert_int_equal(err.http_status, 200);
        }
        tinkc_future_free(f);
    }
    assert_int_equal(atomic_load(&hand.sent), 2);
}

/* ---- answers that nobody wants ---- */

TEST_WITH(answers_that_nobody_wants, setup, end_fixture)
{
    fixture *x = *state;
    hand.path = "/far";
    hand.writes_on = true;
    tinkc_stream *s = tinkc_stream_open(x->client, &(tinkc_http_options){ .path = "/far" }, &x->err);
    tinkc_reply *r = held(x);
    r->status(r, 200);
    assert_true(r->write(r, "abc", 3));
    tinkc_stream_free(s);
    settle(x);
    hand.writes_on = false;
    assert_int_equal(atomic_load(&hand.cancelled), 1);
    tinkc_future *f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/far" }, &x->err);
    (void)held(x);
    tinkc_future_cancel(f);
    settle(x);
    assert_int_equal(atomic_load(&hand.cancelled), 2);
    tinkc_future_free(f);
}

/* An answer of which the reader has had something is not asked for again. */
TEST_WITH(half_a_body_is_final, setup_retries, end_fixture)
{
    char bytes[10];
    fixture *x = *state;
    hand.path = "/far";
    for (int some = 0; some < 3; some++) { /* 2: the head alone */
        atomic_store(&hand.sent, 0);
        tinkc_error err = { 0 };
        tinkc_stream *s = tinkc_stream_open(x->client, &(tinkc_http_options){ .path = "/far" }, &x->err);
        tinkc_reply *r = held(x);
        r->status(r, 200);
        if (some)
            assert_true(r->write(r, "abc", some == 1 ? 3 : 0));
        r->fail(r, TINKC_E_CONNECTION, "it broke");
        settle(x);
        tinkc_mock_advance(x->mock, 20000);
        settle(x);
        assert_int_equal(atomic_load(&hand.sent), some ? 1 : 2);
        if (some) {
            if (some == 1)
                assert_int_equal(tinkc_stream_read(s, bytes, sizeof bytes, 0, &err), 3);
            assert_int_equal(tinkc_stream_read(s, bytes, sizeof bytes, 0, &err), 0);
            assert_int_equal(err.code, TINKC_E_CONNECTION);
            assert_string_equal(err.message, "it broke");
        }
        tinkc_stream_free(s);
        settle(x);
    }
}

/* The transport still owes an answer after a close: until it comes, nothing is sent any more. */
TEST_WITH(nothing_leaves_after_a_close, setup, end_fixture)
{
    fixture *x = *state;
    hand.path = API "healthz";
    hand.keeps_quiet = true;
    tinkc_mock_always(x->mock, NULL, API "client/config", &(tinkc_mock_answer){ .body = CONFIG_TOKENS }, &x->err);
    tinkc_mock_always(x->mock, NULL, API "auth/token",
                      &(tinkc_mock_answer){ .body = token_answer_of("{\"exp\":1767226200}", "x") }, &x->err);
    assert_non_null(tinkc_client_session_id(x->client, PATIENCE_MS, &x->err));
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    tinkc_reply *r = held(x);
    assert_int_not_equal(settle(x), TINKC_FOREVER);
    assert_false(tinkc_client_close(x->client, 0, &x->err));
    assert_int_equal(atomic_load(&hand.cancelled), 1);
    size_t n = tinkc_mock_count(x->mock, NULL);
    assert_int_equal(settle(x), TINKC_FOREVER); /* no timer is left */
    tinkc_mock_advance(x->mock, 3600 * 1000);
    settle(x);
    assert_int_equal(tinkc_mock_count(x->mock, NULL), n);
    r->fail(r, TINKC_E_CONNECTION, "at last");
    tinkc_future_free(f);
}

/* A close does not wait for telemetry that nobody takes: it is cut off. */
TEST_WITH(a_close_cuts_telemetry_off, setup, end_fixture)
{
    fixture *x = *state;
    hand.path = API "telemetry";
    for (int out = 0; out < 2; out++) { /* 1: it was sent before, and is not sent again */
        atomic_store(&hand.sent, 0);
        atomic_store(&hand.cancelled, 0);
        tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-key",
                                                                         .transport = &by_hand,
                                                                         .clock = tinkc_mock_clock(x->mock),
                                                                         .telemetry = TINKC_TELEMETRY_ON },
                                                &x->err);
        assert_true(tinkc_client_report(client, "last", NULL, TINKC_LOG_INFO, &x->err));
        settle(x);
        if (out) {
            tinkc_mock_advance(x->mock, 10000);
            settle(x);
            assert_int_equal(atomic_load(&hand.sent), 1);
        }
        assert_true(tinkc_client_close(client, 0, &x->err));
        wait_until(atomic_load(&hand.cancelled) == 1);
        assert_int_equal(atomic_load(&hand.cancelled), 1);
        assert_int_equal(atomic_load(&hand.sent), 1);
        assert_null(tinkc_health_check(client, &x->err));
        assert_int_equal(x->err.code, TINKC_E_CLOSED);
        x->err = (tinkc_error){ 0 };
        tinkc_client_free(client);
    }
}
