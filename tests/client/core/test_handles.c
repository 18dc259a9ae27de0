/* test_handles.c - what every call on a handle promises (types.h): with an error in hand it does nothing; a
 * handle that is NULL, of a parent process or of a closed client is refused; and a call that waits is
 * refused on the client's own thread. Each row is one call. */
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/client/api_support.h"

typedef struct world {
    tinkc_client *c;
    tinkc_trainer *t;
    tinkc_sampler *s;
    tinkc_batch *b;
    tinkc_input *i;
    tinkc_queue *q;
    tinkc_future *f;    /* capabilities */
    tinkc_future *pass; /* a forward pass */
    tinkc_runs *runs;
    tinkc_checkpoints *checkpoints;
    tinkc_sessions *sessions;
    tinkc_search *search;
    tinkc_stream *stream;
    tinkc_deltas *deltas;
    tinkc_form *form;
} world;

static const int32_t ids[] = { 1, 2, 3, 4 };
static const float ones[] = { 1, 1, 1, 1 };
static const int64_t longs[] = { 1, 2, 3, 4 };
static const tinkc_lora_options lora = { .base_model = "mock/nano" };
static const tinkc_state_options from = { .path = "tinker://r/weights/c" };
static const tinkc_sampler_options base = { .base_model = "mock/nano" };
static const tinkc_adam adam = TINKC_ADAM_INIT;
static const tinkc_dimuon dimuon = { 0.5, 0.9, 0, { 0 } };
static const tinkc_sampling greedy = TINKC_SAMPLING_INIT;
static const tinkc_array array = { .data = ones, .count = 4, .dtype = TINKC_F32 };
static const tinkc_http_options plain = { .path = "/api/v1/healthz" };

static bool own_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)loss, (void)user, (void)err;
    return true;
}
static void on_done(tinkc_future *f, void *user)
{
    (void)f, (void)user;
}
static void on_event(const tinkc_event *e, void *user)
{
    (void)e, (void)user;
}
static void on_ready(tinkc_stream *s, void *user)
{
    (void)s, (void)user;
}

/* What a row may be refused for: */
enum {
    NO_NULL = 1, /* nothing of it is a handle, or NULL is a value */
    NO_FORK = 2, /* works in a child as well */
    OPEN = 4,    /* a closed client makes no difference */
    WAITS = 8,   /* not on the client's thread */
    LOOKS = 16   /* waits, but not with a timeout of 0 */
};

/* P: returns a pointer; B: a bool; S: a text, "" = nothing; Z: a size. w, e and ms are the row's. */
#define P(expression) ((expression) != NULL)
#define B(expression) (expression)
#define S(expression) ((expression)[0] != 0)
#define Z(expression) ((expression) > 0)

#define ROWS(X)                                                                                                        \
    X(0, P(tinkc_health_check(w->c, e)))                                                                               \
    X(0, P(tinkc_capabilities_get(w->c, e)))                                                                           \
    X(0, P(tinkc_identity_get(w->c, e)))                                                                               \
    X(0, P(tinkc_token_get(w->c, e)))                                                                                  \
    X(WAITS, B(tinkc_client_connect(w->c, ms, e)))                                                                     \
    X(WAITS, P(tinkc_client_session_id(w->c, ms, e)))                                                                  \
    X(WAITS | OPEN, S(tinkc_client_snapshot(w->c, &text, e)))                                                          \
    X(OPEN, B(tinkc_client_on_event(w->c, w->q, 1, on_event, NULL, e)))                                                \
    X(0, P(tinkc_trainer_open(w->c, &lora, e)))                                                                        \
    X(0, P(tinkc_trainer_open_from(w->c, &from, e)))                                                                   \
    X(0, P(tinkc_trainer_open_live(w->c, "m", e)))                                                                     \
    X(WAITS, P(tinkc_trainer_new(w->c, &lora, e)))                                                                     \
    X(WAITS, P(tinkc_trainer_new_from(w->c, &from, e)))                                                                \
    X(WAITS, P(tinkc_trainer_new_live(w->c, "m", e)))                                                                  \
    X(0, P(tinkc_sampler_open(w->c, &base, e)))                                                                        \
    X(WAITS, P(tinkc_sampler_new(w->c, &base, e)))                                                                     \
    X(0, P(tinkc_trainer_info(w->t, e)))                                                                               \
    X(0, P(tinkc_trainer_unload(w->t, e)))                                                                             \
    X(0, P(tinkc_trainer_save(w->t, "a", NULL, e)))                                                                    \
    X(0, P(tinkc_trainer_save_for_sampler(w->t, "a", NULL, e)))                                                        \
    X(0, P(tinkc_trainer_save_external(w->t, "a", NULL, e)))                                                           \
    X(0, P(tinkc_trainer_load(w->t, &from, e)))                                                                        \
    X(0, P(tinkc_trainer_open_sampler(w->t, NULL, e)))                                                                 \
    X(WAITS, P(tinkc_trainer_sampler(w->t, e)))                                                                        \
    X(0, P(tinkc_optim_step(w->t, &adam, e)))                                                                          \
    X(0, P(tinkc_dimuon_step(w->t, &dimuon, e)))                                                                       \
    X(0, P(tinkc_forward(w->t, w->b, "x", NULL, e)))                                                                   \
    X(0, P(tinkc_forward_backward(w->t, w->b, "x", NULL, e)))                                                          \
    X(0, P(tinkc_forward_backward_custom(w->t, w->b, 0, w->q, own_loss, NULL, e)))                                     \
    X(0, P(tinkc_sample(w->s, ids, 4, 1, &greedy, e)))                                                                 \
    X(0, P(tinkc_sample_input(w->s, w->i, 1, &greedy, e)))                                                             \
    X(0, P(tinkc_logprobs(w->s, ids, 4, e)))                                                                           \
    X(0, P(tinkc_logprobs_input(w->s, w->i, e)))                                                                       \
    X(0, P(tinkc_sample_stream(w->s, ids, 4, &greedy, e)))                                                             \
    X(0, P(tinkc_sampler_info(w->s, e)))                                                                               \
    X(0, P(tinkc_sampler_get(w->c, "q", e)))                                                                           \
    X(WAITS | OPEN, S(tinkc_sampler_export(w->s, &text, e)))                                                           \
    X(WAITS | OPEN, P(tinkc_deltas_next(w->deltas, ms, e)))                                                            \
    X(OPEN, B(tinkc_deltas_on_event(w->deltas, w->q, 1, on_event, NULL, e)))                                           \
    X(OPEN, P(tinkc_input_new(w->c, e)))                                                                               \
    X(OPEN | NO_FORK, B(tinkc_input_add_tokens(w->i, ids, 4, e)))                                                      \
    X(OPEN | NO_FORK, B(tinkc_input_cut(w->i, e)))                                                                     \
    X(OPEN | NO_FORK, B(tinkc_input_add_image(w->i, "x", 1, "png", 1, e)))                                             \
    X(OPEN | NO_FORK, B(tinkc_input_add_image_pointer(w->i, "x", "png", 1, e)))                                        \
    X(OPEN, P(tinkc_batch_new(w->c, e)))                                                                               \
    X(OPEN | NO_FORK, B(tinkc_batch_add_sft(w->b, ids, 4, 1, e)))                                                      \
    X(OPEN | NO_FORK, B(tinkc_batch_add_weighted(w->b, ids, 4, ones, e)))                                              \
    X(OPEN | NO_FORK, B(tinkc_batch_add_rl(w->b, ids, 4, 1, ones, ones, e)))                                           \
    X(OPEN | NO_FORK, B(tinkc_batch_add_tokens(w->b, ids, 4, e)))                                                      \
    X(OPEN | NO_FORK, B(tinkc_batch_add(w->b, w->i, e)))                                                               \
    X(OPEN | NO_FORK, B(tinkc_batch_set(w->b, "c", &array, e)))                                                        \
    X(OPEN | NO_FORK, B(tinkc_batch_set_f32(w->b, "a", ones, 4, e)))                                                   \
    X(OPEN | NO_FORK, B(tinkc_batch_set_i64(w->b, "b", longs, 4, e)))                                                  \
    X(OPEN, P(tinkc_queue_new(w->c, e)))                                                                               \
    X(OPEN | NO_NULL, B(tinkc_future_on_done(w->f, w->q, on_done, NULL, e)))                                           \
    X(OPEN, B(tinkc_future_on_event(w->f, w->q, 1, on_event, NULL, e)))                                                \
    X(OPEN, B(tinkc_future_limit(w->f, 1000, e)))                                                                      \
    X(OPEN | WAITS | LOOKS, B(tinkc_future_wait(w->f, ms, e)))                                                         \
    X(OPEN | WAITS | LOOKS, P(tinkc_future_capabilities(w->f, ms, e)))                                                 \
    X(OPEN | WAITS | LOOKS, P(tinkc_future_part(w->pass, 0, ms, e)))                                                   \
    X(0, P(tinkc_run_get(w->c, "r", 0, e)))                                                                            \
    X(0, P(tinkc_run_get_by_path(w->c, "tinker://r/weights/c", 0, e)))                                                 \
    X(0, P(tinkc_checkpoint_get(w->c, "tinker://r/weights/c", e)))                                                     \
    X(0, P(tinkc_checkpoint_delete(w->c, "tinker://r/weights/c", e)))                                                  \
    X(0, P(tinkc_checkpoint_publish(w->c, "tinker://r/weights/c", e)))                                                 \
    X(0, P(tinkc_checkpoint_unpublish(w->c, "tinker://r/weights/c", e)))                                               \
    X(0, P(tinkc_checkpoint_set_ttl(w->c, "tinker://r/weights/c", 1, e)))                                              \
    X(0, P(tinkc_checkpoint_clear_ttl(w->c, "tinker://r/weights/c", e)))                                               \
    X(0, P(tinkc_checkpoint_archive(w->c, "tinker://r/weights/c", e)))                                                 \
    X(0, P(tinkc_checkpoint_links(w->c, "tinker://r/external_weights/c", e)))                                          \
    X(0, P(tinkc_checkpoint_copy(w->c, "tinker://r/weights/c", &(tinkc_copy_options){ .project_id = "p" }, e)))        \
    X(0, P(tinkc_checkpoint_download(w->c, "tinker://r/weights/c", NULL, e)))                                          \
    X(0, P(tinkc_url_download(w->c, "http://x.test/y", NULL, e)))                                                      \
    X(0, P(tinkc_session_get(w->c, "s", 0, e)))                                                                        \
    X(0, P(tinkc_session_assign(w->c, "s", "p", e)))                                                                   \
    X(0, P(tinkc_session_finish(w->c, "s", 0, NULL, e)))                                                               \
    X(0, P(tinkc_session_trace(w->c, "s", e)))                                                                         \
    X(0, P(tinkc_audit_get(w->c, NULL, NULL, e)))                                                                      \
    X(0, P(tinkc_usage_get(w->c, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", e)))                                  \
    X(0, P(tinkc_storage_get(w->c, NULL, e)))                                                                          \
    X(OPEN, P(tinkc_runs_list(w->c, NULL, e)))                                                                         \
    X(OPEN, P(tinkc_checkpoints_list(w->c, NULL, e)))                                                                  \
    X(OPEN, P(tinkc_sessions_list(w->c, NULL, e)))                                                                     \
    X(OPEN, P(tinkc_search_list(w->c, NULL, e)))                                                                       \
    X(0, P(tinkc_runs_fetch(w->runs, e)))                                                                              \
    X(0, P(tinkc_checkpoints_fetch(w->checkpoints, e)))                                                                \
    X(0, P(tinkc_sessions_fetch(w->sessions, e)))                                                                      \
    X(0, P(tinkc_search_fetch(w->search, e)))                                                                          \
    X(WAITS, P(tinkc_runs_next(w->runs, e)))                                                                           \
    X(WAITS, P(tinkc_checkpoints_next(w->checkpoints, e)))                                                             \
    X(WAITS, P(tinkc_sessions_next(w->sessions, e)))                                                                   \
    X(WAITS, P(tinkc_search_next(w->search, e)))                                                                       \
    X(0, P(tinkc_http_call(w->c, &plain, e)))                                                                          \
    X(0, P(tinkc_stream_open(w->c, &plain, e)))                                                                        \
    X(WAITS | OPEN, P(tinkc_stream_head(w->stream, ms, e)))                                                            \
    X(WAITS | OPEN, Z(tinkc_stream_read(w->stream, room, sizeof room, ms, e)))                                         \
    X(WAITS | OPEN, P(tinkc_stream_event(w->stream, ms, e)))                                                           \
    X(OPEN, B(tinkc_stream_on_ready(w->stream, w->q, on_ready, NULL, e)))                                              \
    X(OPEN, P(tinkc_form_new(w->c, e)))                                                                                \
    X(OPEN | NO_FORK, B(tinkc_form_add_text(w->form, "a", "b", e)))                                                    \
    X(OPEN | NO_FORK, B(tinkc_form_add_bytes(w->form, "a", "b", 1, NULL, NULL, e)))                                    \
    X(OPEN | NO_FORK, B(tinkc_form_add_file(w->form, "a", "/dev/null", NULL, e)))                                      \
    X(0, B(tinkc_client_report(w->c, "a", NULL, TINKC_LOG_INFO, e)))                                                   \
    X(WAITS | OPEN, P(tinkc_trainer_tokenizer(w->t, e)))                                                               \
    X(WAITS | OPEN, P(tinkc_sampler_tokenizer(w->s, e)))                                                               \
    X(WAITS | OPEN, Z(tinkc_queue_run(w->q, ms, e)))                                                                   \
    X(WAITS | OPEN, B(tinkc_client_close(w->c, 0, e)))

#define FLAGS(flags, call) flags,
#define NAME(flags, call)  #call,
static const int row_flags[] = { ROWS(FLAGS) };
static const char *const row_names[] = { ROWS(NAME) };
enum { N_ROWS = sizeof row_flags / sizeof *row_flags };

#define CASE(flags, call)                                                                                              \
    if (at++ == row)                                                                                                   \
        given = call;

static bool call_row(const world *w, size_t row, int64_t ms, tinkc_error *e)
{
    size_t at = 0;
    bool given = false;
    char room[8];
    tinkc_text text = { 0 };
    ROWS(CASE)
    tinkc_text_free(&text);
    (void)room;
    return given;
}

/* ---- a world to call in ---- */

static tinkc_mock *mock;

static void make_world(world *w)
{
    tinkc_error err = { 0 };
    *w = (world){ .c = mock_client(mock, NULL, &err) };
    w->t = tinkc_trainer_new(w->c, &lora, &err);
    w->s = tinkc_sampler_new(w->c, &base, &err);
    w->b = tinkc_batch_new(w->c, &err);
    tinkc_batch_add_sft(w->b, ids, 4, 1, &err);
    w->i = tinkc_input_new(w->c, &err);
    tinkc_input_add_tokens(w->i, ids, 4, &err);
    w->q = tinkc_queue_new(w->c, &err);
    w->f = tinkc_capabilities_get(w->c, &err);
    tinkc_future_wait(w->f, PATIENCE_MS, &err);
    w->pass = tinkc_forward(w->t, w->b, TINKC_CROSS_ENTROPY, NULL, &err);
    tinkc_future_wait(w->pass, PATIENCE_MS, &err);
    w->runs = tinkc_runs_list(w->c, NULL, &err);
    w->checkpoints = tinkc_checkpoints_list(w->c, NULL, &err);
    w->sessions = tinkc_sessions_list(w->c, NULL, &err);
    w->search = tinkc_search_list(w->c, NULL, &err);
    w->stream = tinkc_stream_open(w->c, &plain, &err);
    w->deltas = tinkc_sample_stream(w->s, ids, 4, &greedy, &err);
    w->form = tinkc_form_new(w->c, &err);
    assert_ok(&err);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_ok(&err);
}

static void free_world(world *w)
{
    tinkc_form_free(w->form);
    tinkc_deltas_free(w->deltas);
    tinkc_stream_free(w->stream);
    tinkc_search_free(w->search);
    tinkc_sessions_free(w->sessions);
    tinkc_checkpoints_free(w->checkpoints);
    tinkc_runs_free(w->runs);
    tinkc_future_free(w->pass);
    tinkc_future_free(w->f);
    tinkc_queue_free(w->q);
    tinkc_input_free(w->i);
    tinkc_batch_free(w->b);
    tinkc_sampler_free(w->s);
    tinkc_trainer_free(w->t);
    tinkc_client_free(w->c);
}

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_mock_free(mock);
    return 0;
}

/* ---- the promises ---- */

TEST_WITH(calls_with_an_error_do_nothing, setup, teardown)
{
    world w;
    make_world(&w);
    size_t before = tinkc_mock_count(mock, NULL);
    for (size_t i = 0; i < N_ROWS; i++) {
        tinkc_error err = { .code = TINKC_E_STATE, .message = "the first" };
        if (call_row(&w, i, 0, &err) || err.code != TINKC_E_STATE || strcmp(err.message, "the first") != 0)
            fail_msg("%s: %s", row_names[i], err.message);
    }
    tinkc_error err = { 0 };
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_int_equal(tinkc_mock_count(mock, NULL), before);
    assert_int_equal(tinkc_batch_count(w.b), 1);
    assert_int_equal(tinkc_input_count(w.i), 1);
    free_world(&w);
}

TEST_WITH(handles_must_not_be_null, setup, teardown)
{
    world none = { 0 };
    for (size_t i = 0; i < N_ROWS; i++) {
        tinkc_error err = { 0 };
        if (row_flags[i] & NO_NULL)
            continue;
        if (call_row(&none, i, 0, &err) || err.code != TINKC_E_ARGUMENT || !err.message[0])
            fail_msg("%s: %d %s", row_names[i], (int)err.code, err.message);
    }
    free_world(&none);
}

TEST_WITH(a_child_owns_nothing, setup, teardown)
{
    world w;
    make_world(&w);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int bad = 0;
        for (size_t i = 0; i < N_ROWS; i++) {
            tinkc_error err = { 0 };
            if (row_flags[i] & NO_FORK)
                continue;
            if (call_row(&w, i, 0, &err) || err.code != TINKC_E_FORKED) {
                (void)fprintf(stderr, "%s: %d %s\n", row_names[i], (int)err.code, err.message);
                bad = 1;
            }
        }
        if (!tinkc_future_done(w.f))
            bad = 1;
        tinkc_future_cancel(w.f);
        tinkc_queue_wake(w.q);
        free_world(&w);
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    free_world(&w);
}

TEST_WITH(a_closed_client_takes_no_work, setup, teardown)
{
    world w;
    make_world(&w);
    tinkc_error err = { 0 };
    assert_true(tinkc_client_close(w.c, PATIENCE_MS, &err));
    size_t before = tinkc_mock_count(mock, NULL);
    for (size_t i = 0; i < N_ROWS; i++) {
        err = (tinkc_error){ 0 };
        if (row_flags[i] & OPEN)
            continue;
        if (call_row(&w, i, 0, &err) || err.code != TINKC_E_CLOSED)
            fail_msg("%s: %d %s", row_names[i], (int)err.code, err.message);
    }
    assert_int_equal(tinkc_mock_count(mock, NULL), before);
    free_world(&w);
}

/* ---- the client's own thread ---- */

static world seen;
static atomic_bool asked;
static char complaint[300];

static bool ask_on_io_thread(const tinkc_request *request, tinkc_mock_answer *answer, void *user)
{
    (void)answer, (void)user;
    if (strcmp(request->path, "/api/v1/healthz") != 0 || atomic_exchange(&asked, true))
        return false;
    for (size_t i = 0; i < N_ROWS; i++) {
        tinkc_error err = { 0 };
        if ((row_flags[i] & WAITS) && (call_row(&seen, i, 1, &err) || err.code != TINKC_E_THREAD) && !complaint[0])
            (void)snprintf(complaint, sizeof complaint, "%s: %d %.100s", row_names[i], (int)err.code, err.message);
        err = (tinkc_error){ 0 };
        if ((row_flags[i] & LOOKS) && !call_row(&seen, i, 0, &err) && err.code == TINKC_E_THREAD && !complaint[0])
            (void)snprintf(complaint, sizeof complaint, "%s only looks", row_names[i]);
    }
    return false;
}

TEST_WITH(the_own_thread_never_waits, setup, teardown)
{
    tinkc_error err = { 0 };
    make_world(&seen);
    tinkc_future_free(seen.f); /* one that is not done: of others it may be asked anywhere */
    tinkc_mock_once(mock, NULL, "/api/v1/get_server_capabilities", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                    &err);
    seen.f = tinkc_capabilities_get(seen.c, &err);
    assert_true(tinkc_mock_compute(mock, ask_on_io_thread, NULL, &err));
    tinkc_future *f = tinkc_health_check(seen.c, &err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &err));
    assert_true(atomic_load(&asked));
    assert_string_equal(complaint, "");
    tinkc_future_free(f);
    free_world(&seen);
}
