/* test_loss_queue.c - a loss function whose queue is gone. */
#include <pthread.h>
#include "support/client/logged_fixture.h"

static bool never(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)loss;
    (void)user;
    tinkc_error_set(err, TINKC_E_STATE, "it must not run");
    return false;
}

/* A loss whose queue is gone when its turn comes cannot run. */
TEST_WITH(a_loss_without_its_queue, setup, teardown)
{
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *f = tinkc_forward_backward_custom(x->trainer, x->batch, 0, queue, never, NULL, &x->err);
    assert_ok(&x->err);
    tinkc_queue_free(queue);
    assert_true(run_until_done(x->mock, f, 60000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CANCELLED);
    assert_string_equal(x->err.message, "the queue was freed before the loss function could run");
    tinkc_future_free(f);
}
