/* bare_service.h - a service's state without its worker, housekeeper and front: a test calls its rules
 * one by one, at times that the test says. */
#ifndef TESTS_BARE_SERVICE_H
#define TESTS_BARE_SERVICE_H

#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/core/usage.h"
#include "service/worker/worker_files.h"
#include "support/check.h"

static int64_t bare_now_ms; /* of its clock */

static inline int64_t bare_clock_ms(void *self)
{
    (void)self;
    return bare_now_ms;
}
static inline int64_t bare_clock_us(void *self)
{
    (void)self;
    return bare_now_ms * 1000;
}

/* store: a folder, or NULL = in memory */
static inline void bare_open(tke_service *svc, const char *store)
{
    static const tinkc_clock clock = { .now_ms = bare_clock_ms, .wall_us = bare_clock_us };
    static const tkc_log silent;
    tinkc_error err = { 0 };
    bare_now_ms = 1000;
    *svc = (tke_service){ .clock = &clock, .epoch = 3 };
    pthread_mutex_init(&svc->lock, NULL);
    assert_true(tkc_cond_init(&svc->work, &err) && tkc_cond_init(&svc->idle, &err) && tkc_cond_init(&svc->timer, &err));
    svc->set.max_queued_bytes = 1 << 20;
    assert_true(tke_parts_open(svc, &err));
    svc->store = tke_store_open(NULL, &silent, store, &err);
    svc->files = tkc_pool_new(NULL, 1, "test-files", &err);
    assert_ok(err);
}

static inline void bare_close(tke_service *svc)
{
    tke_file_work_wait(svc);
    tke_usage_flush(svc);
    tkc_pool_free(svc->files);
    tke_store_close(svc->store);
    tke_parts_close(svc);
    pthread_mutex_destroy(&svc->lock);
    pthread_cond_destroy(&svc->work);
    pthread_cond_destroy(&svc->idle);
    pthread_cond_destroy(&svc->timer);
}

#endif
