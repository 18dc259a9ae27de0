/* torture.c - runs the SDK while the n-th allocation of the process fails, for every n.
 *
 *     torture [FIRST [LAST [STEP]]]
 *
 * It puts its own malloc in place of the system's. One scenario (start-up, training, sampling,
 * streams, lists, close) is run over the mock again and again; each time one allocation later
 * fails, once alone and once with all that follow. Nothing may crash, hang or leak: a hang is ended
 * by an alarm, a leak is seen by counting blocks. It ends when a run makes fewer allocations.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tinkc/sys/mock.h"
#include "tinkc/tinkc.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    puts("torture: skipped, a sanitizer has its own malloc");
    return 77;
}
#else

/* ---- malloc that fails on demand ---- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void __libc_free(void *ptr);

static atomic_long calls, live;
static atomic_long fail_at; /* 0 = never */
static atomic_bool fail_after, armed;

static bool fails(void)
{
    if (!atomic_load(&armed))
        return false;
    long n = atomic_fetch_add(&calls, 1) + 1, at = atomic_load(&fail_at);
    return at && (n == at || (n > at && atomic_load(&fail_after)));
}

void *malloc(size_t size)
{
    if (fails()) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = __libc_malloc(size);
    atomic_fetch_add(&live, p != NULL);
    return p;
}

void *calloc(size_t n, size_t size)
{
    if (fails()) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = __libc_calloc(n, size);
    atomic_fetch_add(&live, p != NULL);
    return p;
}

void *realloc(void *ptr, size_t size)
{
    if (fails()) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = __libc_realloc(ptr, size);
    atomic_fetch_add(&live, !ptr && p);
    return p;
}

void free(void *ptr)
{
    atomic_fetch_sub(&live, ptr != NULL);
    __libc_free(ptr);
}

/* ---- the scenario ---- */

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8 };

/* Moves the mock's time until f is done, at most ten minutes of it. */
static void finish(tinkc_mock *mock, tinkc_future *f)
{
    tinkc_error err = { 0 };
    int64_t left = 600000;
    while (f && !tinkc_future_done(f)) {
        int64_t next = tinkc_mock_settle(mock, 20000, &err);
        if (tinkc_future_done(f))
            return;
        if (err.code || next == TINKC_FOREVER || next > left) {
            tinkc_future_cancel(f); /* still trying: then this must end it */
            (void)tinkc_future_wait(f, TINKC_FOREVER, &err);
            return;
        }
        tinkc_mock_advance(mock, next);
        left -= next;
    }
}

static void run(tinkc_mock *mock, tinkc_future *f)
{
    finish(mock, f);
    tinkc_future_free(f);
}

static bool my_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user;
    tinkc_loss_set(loss, 1);
    return tinkc_loss_metric(loss, "mine", 1, err);
}

static void on_done(tinkc_future *f, void *user)
{
    (void)f;
    ++*(int *)user;
}

/* A pass that is cancelled while two of its chunks are out, and a step that has to send them again.
 * */
static void change_mind(tinkc_mock *mock, tinkc_trainer *t, const tinkc_batch *batch)
{
    tinkc_error err = { 0 };
    for (int i = 0; i < 2; i++)
        tinkc_mock_once(mock, NULL, "/api/v1/forward_backward", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                        &err);
    err = (tinkc_error){ 0 };
    tinkc_future *pass = tinkc_forward_backward(t, batch, TINKC_CROSS_ENTROPY, NULL, &err);
    tinkc_mock_settle(mock, 20000, NULL);
    tinkc_future_free(pass);
    err = (tinkc_error){ 0 };
    tinkc_adam adam = TINKC_ADAM_INIT;
    run(mock, tinkc_optim_step(t, &adam, &err));
}

static void upload(tinkc_mock *mock, tinkc_client *client)
{
    tinkc_error err = { 0 };
    tinkc_mock_always(mock, NULL, "/upload", &(tinkc_mock_answer){ .body = "ok" }, &err);
    err = (tinkc_error){ 0 };
    tinkc_http_options o = { .path = "/upload", .body_file = "/etc/passwd" };
    run(mock, tinkc_http_call(client, &o, &err));
    err = (tinkc_error){ 0 };
    tinkc_form *form = tinkc_form_new(client, &err);
    tinkc_form_add_text(form, "text", "value", &err);
    tinkc_form_add_file(form, "file", "/etc/passwd", NULL, &err);
    if (form)
        run(mock, tinkc_http_call(client, &(tinkc_http_options){ .path = "/upload", .form = form }, &err));
    tinkc_form_free(form);
}

static void train(tinkc_mock *mock, tinkc_client *client)
{
    tinkc_error err = { 0 };
    tinkc_future *open = tinkc_trainer_open(client, &(tinkc_lora_options){ .base_model = "m" }, &err);
    finish(mock, open);
    tinkc_trainer *t = tinkc_future_trainer(open, 0, &err);
    tinkc_future_free(open);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    tinkc_input *input = tinkc_input_new(client, &err);
    tinkc_input_add_tokens(input, ids, 8, &err);
    tinkc_input_add_image(input, "png", 3, "png", 1, &err);
    for (int i = 0; i < 3; i++)
        tinkc_batch_add_sft(batch, ids, 8, 2, &err);
    tinkc_error each = { 0 }; /* later calls are tried whatever happened before */
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_future *pass = tinkc_forward_backward(t, batch, TINKC_CROSS_ENTROPY, NULL, &each);
    each = (tinkc_error){ 0 };
    tinkc_future *step = tinkc_optim_step(t, &adam, &each);
    run(mock, pass);
    run(mock, step);
    change_mind(mock, t, batch);
    int done = 0;
    each = (tinkc_error){ 0 };
    tinkc_queue *queue = tinkc_queue_new(client, &each);
    tinkc_future *custom = tinkc_forward_backward_custom(t, batch, TINKC_CUSTOM_TOGETHER, queue, my_loss, NULL, &each);
    if (custom)
        tinkc_future_on_done(custom, queue, on_done, &done, &each);
    tinkc_mock_settle(mock, 20000, NULL);
    tinkc_queue_run(queue, 0, NULL);
    finish(mock, custom);
    tinkc_queue_run(queue, 0, NULL);
    tinkc_future_free(custom);
    tinkc_queue_free(queue);
    each = (tinkc_error){ 0 };
    run(mock, tinkc_trainer_save(t, "a", NULL, &each));
    each = (tinkc_error){ 0 };
    tinkc_future *opened = tinkc_trainer_open_sampler(t, NULL, &each);
    tinkc_future_free(opened); /* and away with it while it runs */
    tinkc_input_free(input);
    tinkc_batch_free(batch);
    tinkc_trainer_free(t);
}

static void sample(tinkc_mock *mock, tinkc_client *client)
{
    tinkc_error err = { 0 };
    tinkc_text text = { 0 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    tinkc_future *open = tinkc_sampler_open(client, &(tinkc_sampler_options){ .base_model = "m" }, &err);
    finish(mock, open);
    tinkc_sampler *s = tinkc_future_sampler(open, 0, &err);
    tinkc_future_free(open);
    run(mock, tinkc_sample(s, ids, 8, 2, &o, &err));
    err = (tinkc_error){ 0 };
    run(mock, tinkc_logprobs(s, ids, 8, &err));
    err = (tinkc_error){ 0 };
    tinkc_deltas *deltas = tinkc_sample_stream(s, ids, 8, &o, &err);
    while (tinkc_deltas_next(deltas, 2000, &err))
        ;
    tinkc_deltas_free(deltas);
    err = (tinkc_error){ 0 };
    if (s) {
        tinkc_client_options options = { .transport = tinkc_mock_transport(mock), .clock = tinkc_mock_clock(mock) };
        const char *exported = tinkc_sampler_export(s, &text, &err);
        tinkc_sampler_free(tinkc_sampler_import(exported, &options, &err));
    }
    tinkc_text_free(&text);
    tinkc_sampler_free(s);
}

static void scenario(void)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    if (!mock)
        return;
    tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                      &(tinkc_mock_answer){ .body = "{\"fwdbwd_max_chunk_len\":1}" }, &err);
    tinkc_mock_once(mock, NULL, "/api/v1/asample", &(tinkc_mock_answer){ .status = 429 }, &err);
    tinkc_mock_once(mock, NULL, "/api/v1/optim_step", &(tinkc_mock_answer){ .status = 503 }, &err);
    err = (tinkc_error){ 0 };
    tinkc_client_options options = { .transport = tinkc_mock_transport(mock),
                                     .clock = tinkc_mock_clock(mock),
                                     .api_key = "tml-x" };
    tinkc_client *client = tinkc_client_new(&options, &err);
    if (client) {
        train(mock, client);
        sample(mock, client);
        upload(mock, client);
        err = (tinkc_error){ 0 };
        run(mock, tinkc_capabilities_get(client, &err));
        err = (tinkc_error){ 0 };
        tinkc_client_close(client, 0, &err);
    }
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

static long current;

static void on_alarm(int sig)
{
    (void)sig;
    static const char text[] = "torture: hangs\n";
    (void)!write(2, text, sizeof text - 1);
    char digits[24];
    size_t n = 0;
    for (long v = current; v; v /= 10)
        digits[n++] = (char)('0' + v % 10);
    while (n)
        (void)!write(2, &digits[--n], 1);
    (void)!write(2, "\n", 1);
    _exit(3);
}

/* Runs it with allocation n failing. How many allocations there were; -1 = something leaked. */
static long run_with(long n, bool after)
{
    long before = atomic_load(&live);
    atomic_store(&calls, 0);
    atomic_store(&fail_at, n);
    atomic_store(&fail_after, after);
    atomic_store(&armed, true);
    alarm(60);
    scenario();
    alarm(0);
    atomic_store(&armed, false);
    /* The last reference may be the I/O thread's, which then frees the client behind our back. */
    long left = atomic_load(&live) - before;
    for (int i = 0; left > 0 && i < 2000; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        left = atomic_load(&live) - before;
    }
    if (left > 0) {
        fprintf(stderr, "torture: allocation %ld%s fails: %ld blocks are left\n", n, after ? " and all after it" : "",
                left);
        return -1;
    }
    return atomic_load(&calls);
}

int main(int argc, char **argv)
{
    long first = argc > 1 ? atol(argv[1]) : 1, last = argc > 2 ? atol(argv[2]) : 1000000;
    long stride = argc > 3 ? atol(argv[3]) : 1, n, bad = 0;
    signal(SIGALRM, on_alarm);
    setvbuf(stdout, NULL, _IONBF, 0);
    scenario(); /* what libraries allocate once and keep */
    long total = run_with(0, false);
    if (total < 0)
        return 1;
    for (n = first; n <= last && n <= total + 50; n += stride > 0 ? stride : 1) {
        current = n;
        bad += run_with(n, false) < 0;
        bad += run_with(n, true) < 0;
    }
    printf("torture: %ld allocations, each made to fail from %ld to %ld by %ld: %s\n", total, first, n - 1, stride,
           bad ? "leaks" : "no crash, no hang, no leak");
    return bad != 0;
}
#endif
