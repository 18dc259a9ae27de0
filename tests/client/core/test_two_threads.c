/* test_two_threads.c - one client used from two threads: what they share is numbered, counted and handed out as if
 * there were one. Under ThreadSanitizer each of these also shows that the lock is taken. */
#include <pthread.h>

#include "client/core/client_priv.h"
#include "client/sample/sampler.h"
#include "support/client/held_lock.h"
#include "support/client/mock_fixture.h"

enum { OPENED = 20 };

typedef struct both {
    pthread_barrier_t *begin;
    void *(*run)(void *);
    void *user;
} both;

static void *begin_together(void *user)
{
    both *b = user;
    (void)pthread_barrier_wait(b->begin);
    return b->run(b->user);
}

static void in_two_threads(void *(*run)(void *), void *a, void *b)
{
    pthread_t thread;
    pthread_barrier_t begin;
    assert_int_equal(pthread_barrier_init(&begin, NULL, 2), 0);
    both one = { &begin, run, a }, other = { &begin, run, b };
    assert_int_equal(pthread_create(&thread, NULL, begin_together, &one), 0);
    (void)begin_together(&other);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)pthread_barrier_destroy(&begin);
}

static void take_sampler_number(void *user)
{
    (void)tkc_next_sampler_seq(user);
}

/* Two threads that read the same number would open one sampler. */
TEST(numbers_of_samplers_are_taken_under_the_lock)
{
    fixture x;
    open_client(&x, NULL, NULL, NULL);
    int64_t first = tkc_next_sampler_seq(x.client);
    assert_true(waits_for_lock(&x.client->shared.lock, take_sampler_number, x.client));
    assert_int_equal(tkc_next_sampler_seq(x.client), first + 2);
    close_all(&x);
}

typedef struct opener {
    fixture *x;
    tinkc_error err;
    tinkc_sampler *samplers[OPENED];
    tinkc_trainer *trainers[OPENED];
} opener;

static void *open_all(void *user)
{
    opener *o = user;
    for (size_t i = 0; i < OPENED; i++) {
        o->samplers[i] = tinkc_sampler_new(o->x->client, &nano, &o->err);
        o->trainers[i] = tinkc_trainer_new(o->x->client, &lora, &o->err);
    }
    return NULL;
}

/* No two requests to this path have the same number under this name. */
static void check_numbers(fixture *x, const char *path, const char *name)
{
    bool seen[2 * OPENED] = { false };
    for (size_t i = 0; i < 2 * OPENED; i++) {
        const tinkc_request *r = nth_request(x->mock, path, i);
        assert_non_null(r);
        const char *at = memmem(r->body.data, r->body.len, name, strlen(name));
        assert_non_null(at);
        long n = strtol(at + strlen(name), NULL, 10);
        assert_true(n >= 0 && n < 2 * OPENED && !seen[n]);
        seen[n] = true;
    }
}

TEST(samplers_and_trainers_can_be_opened_from_two_threads)
{
    fixture x;
    opener a = { .x = &x }, b = { .x = &x };
    open_client(&x, NULL, NULL, NULL);
    in_two_threads(open_all, &a, &b);
    assert_ok(&a.err);
    assert_ok(&b.err);
    check_numbers(&x, API "create_sampling_session", "\"sampling_session_seq_id\":");
    check_numbers(&x, API "create_model", "\"model_seq_id\":");
    for (size_t i = 0; i < OPENED; i++) {
        tinkc_sampler_free(a.samplers[i]);
        tinkc_sampler_free(b.samplers[i]);
        tinkc_trainer_free(a.trainers[i]);
        tinkc_trainer_free(b.trainers[i]);
    }
    close_all(&x);
}
