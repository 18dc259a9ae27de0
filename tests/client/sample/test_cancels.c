/* test_cancels.c - what is cancelled while nothing comes, and cancels that leave one at a time. */
#include <math.h>
#include <stdatomic.h>
#include <sys/utsname.h>
#include "support/client/mock_fixture.h"

static int setup_cancels(void **state)
{
    return begin_work_with(state, API "client/dynamic_config", CONFIG_CANCELS);
}

/* A service that wants to hear of one cancelled sample at a time hears of each. */
TEST_WITH(cancels_one_at_a_time, setup_cancels, end_fixture)
{
    fixture *x = *state;
    tinkc_sampling o = three_tokens();
    tinkc_future *f[3];
    tinkc_mock_always(x->mock, NULL, API "retrieve_future", &silent, &x->err);
    tinkc_mock_always(x->mock, NULL, API "cancel_future", &(tinkc_mock_answer){ .body = "{}", .delay_ms = 1000 },
                      &x->err);
    for (size_t i = 0; i < 3; i++)
        f[i] = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    settle(x);
    for (size_t i = 0; i < 3; i++)
        tinkc_future_free(f[i]);
    for (size_t i = 1; i <= 3; i++) {
        settle(x);
        assert_int_equal(tinkc_mock_count(x->mock, API "cancel_future"), i);
        tinkc_mock_advance(x->mock, 1000);
    }
    settle(x);
    assert_int_equal(tinkc_mock_count(x->mock, API "cancel_future"), 3);
}

static atomic_size_t received;

static bool receive(void *user, const void *data, size_t len)
{
    (void)user, (void)data;
    atomic_fetch_add(&received, len);
    return true;
}

/* A download that waits for its next byte ends when it is cancelled, and so does its thread. */
TEST_WITH(a_download_is_cancelled_while_nothing_comes, begin_work, end_fixture)
{
    fixture *x = *state;
    tinkc_error err = { 0 };
    tinkc_mock_always(x->mock, NULL, "/store/x",
                      &(tinkc_mock_answer){ .body = "0123456789", .fault = TINKC_FAULT_DRIP, .drip_ms = 1000 },
                      &x->err);
    atomic_store(&received, 0);
    tinkc_future *f = tinkc_url_download(x->client, "https://files.test/store/x",
                                         &(tinkc_download_options){ .write = receive }, &x->err);
    wait_until(tinkc_mock_count(x->mock, "/store/x") == 1);
    settle(x);
    tinkc_mock_advance(x->mock, 1000);
    wait_until(atomic_load(&received) > 0);
    assert_true(atomic_load(&received) > 0);
    tinkc_future_cancel(f);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_true(tinkc_client_close(x->client, PATIENCE_MS, &x->err)); /* it waits for the thread */
    tinkc_future_free(f);
}
