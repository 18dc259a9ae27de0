/* logged_fixture.h - a client on the mock's service whose memory is counted and whose log is kept, with a trainer, a sampler and a
 * batch of one example. */
#ifndef TESTS_LOGGED_FIXTURE_H
#define TESTS_LOGGED_FIXTURE_H

#include <pthread.h>

#include "support/client/api_support.h"
#include "support/counting.h"

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };

/* Lines of the log, written by the client's thread. */
typedef struct notes {
    pthread_mutex_t lock;
    char text[4000];
} notes;

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *sampler;
    tinkc_batch *batch;
    counting memory;
    tinkc_allocator allocator;
    notes log;
} fixture;

static inline void on_log(int32_t level, const char *line, void *user)
{
    notes *n = user;
    pthread_mutex_lock(&n->lock);
    size_t used = strlen(n->text);
    (void)snprintf(n->text + used, sizeof n->text - used, "%d %s\n", (int)level, line);
    pthread_mutex_unlock(&n->lock);
}

static inline int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    pthread_mutex_init(&x->log.lock, NULL);
    x->allocator = counting_allocator(&x->memory);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    x->client = mock_client(x->mock,
                            &(tinkc_client_options){ .api_key = "tml-key",
                                                     .allocator = &x->allocator,
                                                     .billing_pause_ms = TINKC_FOREVER,
                                                     .log = on_log,
                                                     .log_user = &x->log },
                            &x->err);
    x->trainer = tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    *state = x;
    return 0;
}

static inline int teardown(void **state)
{
    fixture *x = *state;
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    bool empty = counting_is_empty_soon(&x->memory);
    pthread_mutex_destroy(&x->log.lock);
    free(x);
    return empty ? 0 : -1;
}

#endif
