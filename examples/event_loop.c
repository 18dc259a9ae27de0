/* event_loop.c - many samples in a loop of your own: poll, run what has finished, go on.
 *
 * A queue has a descriptor that is readable while callbacks wait. They run inside tinkc_queue_run,
 * on this thread, so nothing here needs a lock. Talks to the mock unless $TINKER_API_KEY is set.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include <tinkc/sys/mock.h>
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

int main(void)
{
    tinkc_error err = { 0 };
    tally t = { 0 };
    tinkc_client_options options = { 0 };
    tinkc_mock *mock = getenv("TINKER_API_KEY") ? NULL : tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    if (mock)
        options.transport = tinkc_mock_transport(mock);

    tinkc_client *client = tinkc_client_new(&options, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "Qwen/Qwen3-8B" }, &err);
    tinkc_queue *queue = tinkc_queue_new(client, &err);
    tinkc_client_on_event(client, queue, TINKC_EVENT_QUEUE | TINKC_EVENT_BACKOFF, on_event, NULL,
                          &err);

    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 16;
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
    tinkc_mock_free(mock);
    if (err.code)
        fprintf(stderr, "event_loop: %s (%s)\n", err.message, tinkc_code_name(err.code));
    return err.code != 0 || t.finished != N || t.failed;
}
