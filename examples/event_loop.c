/* event_loop.c - many samples in a loop of your own: poll, run what has finished, continue.
 *
 * A queue has a descriptor that is readable while callbacks wait. They run inside tinkc_queue_run,
 * on this thread, so nothing here needs a lock. On the engine in this process.
 */
#include <poll.h>
#include <stdio.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

enum { N = 100 };

typedef struct tally {
    int finished, failed;
    size_t tokens;
} tally;

static void on_sampled(tinkc_future *f, void *user)
{
    tally *t = user;
    tinkc_error err = { 0 };
    const tinkc_samples *got = tinkc_future_samples(f, 0, &err);
    for (size_t i = 0; i < tinkc_samples_count(got); i++)
        t->tokens += tinkc_samples_at(got, i)->tokens.len;
    t->finished++;
    t->failed += err.code != 0;
    tinkc_future_free(f); /* allowed in its own callback */
}

static void on_event(const tinkc_event *event, void *user)
{
    (void)user;
    printf("%s: %s\n", event->operation, event->text); /* why something waits */
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    tally t = { 0 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", argc > 1 ? argv[1] : "models/nano", &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "nano" }, &err);
    tinkc_queue *queue = tinkc_queue_new(client, &err);
    tinkc_client_on_event(client, queue, TINKC_EVENT_QUEUE | TINKC_EVENT_BACKOFF, on_event, NULL,
                          &err);

    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 16;
    how.never_stop = true;
    for (int32_t i = 0; i < N && !err.code; i++) {
        int32_t prompt[] = { 1, 2, 3, i };
        tinkc_future *f = tinkc_sample(sampler, prompt, 4, 1, &how, &err);
        tinkc_future_on_done(f, queue, on_sampled, &t, &err);
    }

    struct pollfd fd = { .fd = tinkc_queue_fd(queue), .events = POLLIN };
    while (!err.code && t.finished < N && poll(&fd, 1, 60 * 1000) > 0)
        tinkc_queue_run(queue, 0, &err);
    printf("%d samples, %d failed, %zu tokens\n", t.finished, t.failed, t.tokens);

    tinkc_queue_free(queue);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    if (err.code)
        fprintf(stderr, "event_loop: %s (%s)\n", err.message, tinkc_code_name(err.code));
    return err.code != 0 || t.finished != N || t.failed;
}
