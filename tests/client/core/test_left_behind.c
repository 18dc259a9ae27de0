/* test_left_behind.c - clients whose thread does not come to its end when the program frees them: tinkc_client_free waits
 * five seconds and leaves it behind. When the transport continues, that thread frees everything. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "support/client/api_support.h"
#include "support/counting.h"
#include "tinkc/sys/transport.h"

#undef fail /* cmocka's; a reply has a function of that name */

typedef struct scene {
    bool holds_thread; /* or only the answer */
    counting memory;
    tinkc_transport transport;
    tinkc_reply *_Atomic reply;
    sem_t sent, go;
    atomic_int released;
    int64_t took_ms;
} scene;

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0 && errno == EINTR)
        ;
}

static void hold(void *self, const tinkc_request *request, tinkc_reply *reply)
{
    scene *s = self;
    (void)request;
    atomic_store(&s->reply, reply);
    sem_post(&s->sent);
    if (s->holds_thread)
        wait_for(&s->go);
}

static void cancel(void *self, tinkc_reply *reply)
{
    scene *s = self;
    if (s->holds_thread)
        reply->fail(reply, TINKC_E_CONNECTION, "no longer wanted");
}

static void release(void *self)
{
    atomic_fetch_add(&((scene *)self)->released, 1);
}

static void *play(void *arg)
{
    scene *s = arg;
    tinkc_error err = { 0 };
    tinkc_allocator a = counting_allocator(&s->memory);
    s->transport = (tinkc_transport){ .abi = TINKC_TRANSPORT_ABI,
                                      .flags = TINKC_TRANSPORT_LOCAL,
                                      .self = s,
                                      .release = release,
                                      .send = hold,
                                      .cancel = cancel };
    (void)sem_init(&s->sent, 0, 0);
    (void)sem_init(&s->go, 0, 0);
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = &s->transport, .allocator = &a }, &err);
    tinkc_future *f = client ? tinkc_health_check(client, &err) : NULL;
    if (!f)
        return NULL;
    wait_for(&s->sent);
    int64_t began_ms = patience_now_ms();
    tinkc_future_free(f);
    tinkc_client_free(client);
    s->took_ms = patience_now_ms() - began_ms;
    bool held = atomic_load(&s->memory.bytes) > 0 && atomic_load(&s->released) == 0;
    if (s->holds_thread)
        sem_post(&s->go);
    else
        s->reply->fail(s->reply, TINKC_E_CONNECTION, "at last");
    wait_until(atomic_load(&s->released) == 1);
    return held && counting_is_empty_soon(&s->memory) ? s : NULL;
}

TEST(threads_that_are_left_behind)
{
    static scene scenes[] = { { .holds_thread = true }, { .holds_thread = false } };
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, play, &scenes[i]), 0);
    for (size_t i = 0; i < 2; i++) {
        void *good = NULL;
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_ptr_equal(good, &scenes[i]);
        assert_int_equal(atomic_load(&scenes[i].released), 1);
        assert_true(scenes[i].took_ms >= 4900);
    }
}
