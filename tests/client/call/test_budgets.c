/* test_budgets.c - budgets of bytes and of counts: who is let in, in which order, and what is given back; the
 * records that clients share. */
#include "support/check.h"

#include "client/call/limits.h"
#include "tinkc/sys/mock.h"

enum { MOST = 8 };

static tinkc_mock *mock;
static tkc_loop *loop;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tkc_budget budget;
static tinkc_future owner; /* of all claims: only its count is used */
static tkc_claim claims[MOST];
static char order[64]; /* which claims were granted; the loop's, read when it is at rest */

static void granted(tkc_claim *c)
{
    size_t n = strlen(order);
    order[n] = (char)('0' + (c - claims));
    order[n + 1] = '\0';
}

static int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    loop = tkc_loop_new(NULL, tinkc_mock_clock(mock), &err);
    tkc_ref_init(&owner.refs);
    memset(claims, 0, sizeof claims);
    order[0] = '\0';
    for (size_t i = 0; i < MOST; i++) {
        claims[i].granted = granted;
        claims[i].f = &owner;
    }
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOST; i++)
        tkc_claim_end(&claims[i]);
    tkc_loop_stop(loop);
    bool ended = tkc_loop_join(loop, 60000);
    tinkc_mock_free(mock);
    return ended && atomic_load(&owner.refs) == 1 ? 0 : 1;
}

/* What has been granted since the last time. */
static const char *news(void)
{
    static char text[64];
    tinkc_error err = { 0 };
    tinkc_mock_settle(mock, 60000, &err);
    assert_ok(err);
    (void)snprintf(text, sizeof text, "%s", order);
    order[0] = '\0';
    return text;
}

static bool take(size_t i, int64_t amount)
{
    return tkc_claim_take(&claims[i], &budget, loop, amount);
}

TEST_WITH(bytes_may_be_overdrawn_once, setup, teardown)
{
    tkc_budget_init(&budget, &lock, 10, false);
    assert_true(take(0, 4));
    assert_true(take(1, 6)); /* to zero */
    assert_true(take(2, 5)); /* and below */
    assert_int_equal(budget.balance, -5);
    assert_false(take(3, 0));
    assert_false(take(4, 1));
    assert_string_equal(news(), "");
    tkc_claim_end(&claims[0]); /* -1: still below */
    assert_string_equal(news(), "");
    tkc_claim_end(&claims[2]);
    assert_string_equal(news(), "34");
    assert_int_equal(budget.balance, 3);
    tkc_claim_end(&claims[2]); /* nothing is given back twice */
    assert_int_equal(budget.balance, 3);
    tkc_claim_end(&claims[1]);
    tkc_claim_end(&claims[3]);
    tkc_claim_end(&claims[4]);
    assert_int_equal(budget.balance, 10);
}

TEST_WITH(counts_are_not_overdrawn, setup, teardown)
{
    tkc_budget_init(&budget, &lock, 2, true);
    assert_true(take(0, 1));
    assert_true(take(1, 1));
    assert_false(take(2, 1));
    assert_false(take(3, 1));
    assert_false(take(4, 1));
    tkc_claim_end(&claims[3]); /* one from the middle of the queue leaves it */
    tkc_claim_end(&claims[1]);
    assert_string_equal(news(), "2");
    assert_int_equal(budget.balance, 0);
    assert_false(take(5, 1));
    tkc_claim_end(&claims[5]); /* the last of the queue */
    assert_false(take(6, 1));
    tkc_claim_end(&claims[4]); /* the first of it */
    tkc_claim_end(&claims[0]);
    assert_string_equal(news(), "6");
    tkc_claim_end(&claims[2]);
    tkc_claim_end(&claims[6]);
    assert_int_equal(budget.balance, 2);
    assert_null(budget.first);
    assert_null(budget.last);
}

/* Who comes later waits behind those who wait, even where there is room for it. */
TEST_WITH(nobody_overtakes, setup, teardown)
{
    tkc_budget_init(&budget, &lock, 0, false);
    assert_true(take(0, 1));
    assert_false(take(1, 9));
    assert_false(take(2, 0));
    tkc_claim_end(&claims[0]);
    assert_string_equal(news(), "1");
    assert_false(take(3, 0));
    tkc_claim_end(&claims[1]);
    assert_string_equal(news(), "23");
}

TEST_WITH(limits_follow_the_newest_setting, setup, teardown)
{
    tkc_budget_init(&budget, &lock, 1, true);
    assert_true(take(0, 1));
    assert_false(take(1, 1));
    assert_false(take(2, 1));
    assert_false(take(3, 1));
    tkc_budget_set_limit(&budget, 3);
    assert_string_equal(news(), "12");
    assert_int_equal(budget.limit, 3);
    tkc_budget_set_limit(&budget, 1); /* what is out stays out */
    assert_int_equal(budget.balance, -2);
    tkc_claim_end(&claims[0]);
    tkc_claim_end(&claims[1]);
    assert_string_equal(news(), "");
    tkc_claim_end(&claims[2]);
    assert_string_equal(news(), "3");
}

/* A grant that is on its way when its claim ends reaches nobody, and gives back what it held. */
static bool was_pending, is_pending;
static void end_on_the_way(tkc_task *task)
{
    (void)task;
    was_pending = tkc_claim_pending(&claims[1]);
    tkc_claim_end(&claims[0]);
    is_pending = tkc_claim_pending(&claims[1]); /* posted behind this task */
    tkc_claim_end(&claims[1]);
}

TEST_WITH(grants_on_their_way, setup, teardown)
{
    tkc_task task = { .run = end_on_the_way };
    tkc_budget_init(&budget, &lock, 1, true);
    assert_false(tkc_claim_pending(&claims[1])); /* without a budget */
    assert_true(take(0, 1));
    assert_false(take(1, 1));
    assert_false(take(2, 1));
    tkc_loop_post(loop, &task);
    assert_string_equal(news(), "2");
    assert_false(was_pending);
    assert_true(is_pending);
    assert_false(tkc_claim_pending(&claims[1]));
    assert_false(tkc_claim_pending(&claims[2]));
    tkc_claim_end(&claims[2]);
    assert_int_equal(budget.balance, 1);
}

TEST_WITH(records_are_shared_by_address_and_credential, setup, teardown)
{
    tinkc_error err = { 0 };
    size_t before = tkc_limits_count();
    assert_int_equal(before, 0); /* no client is there */
    tkc_shared_limits *a = tkc_limits_get("https://a", "key", false, &err);
    static const struct {
        const char *url, *credential;
        bool alone, same;
    } rows[] = { { "https://a", "key", false, true },  { "https://b", "key", false, false },
                 { "https://a", "kez", false, false }, { "https://a", NULL, false, false },
                 { "https://a", "", false, false },    { "key", "https://a", false, false },
                 { "https://a", "key", true, false } };
    assert_ok(err);
    assert_int_equal(tkc_limits_count(), before + 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_shared_limits *r = tkc_limits_get(rows[i].url, rows[i].credential, rows[i].alone, &err);
        assert_ok(err);
        assert_int_equal(r == a, rows[i].same);
        assert_int_equal(tkc_limits_count(), before + 1 + (!rows[i].same && !rows[i].alone));
        assert_int_equal(r->sample_count.balance, 400);
        assert_true(r->sample_count.counts);
        assert_int_equal(r->throttled_count.balance, 10);
        assert_true(r->throttled_count.counts);
        assert_false(r->sample_bytes.counts);
        assert_false(r->inflight_bytes.counts);
        assert_true(r->backoff_until_ms == INT64_MIN);
        tkc_limits_drop(r);
    }
    tkc_shared_limits *none = tkc_limits_get("https://a", NULL, false, &err);
    tkc_shared_limits *empty = tkc_limits_get("https://a", "", false, &err);
    assert_ptr_equal(none, empty);
    tkc_limits_drop(a); /* the older one leaves the list behind the newer */
    assert_int_equal(tkc_limits_count(), before + 1);
    tkc_limits_drop(none);
    tkc_limits_drop(empty);
    tkc_limits_drop(NULL);
    assert_int_equal(tkc_limits_count(), before);
}

enum { ROUNDS = 100000 };

static void *take_and_end(void *arg)
{
    tkc_claim *c = arg;
    for (int i = 0; i < ROUNDS; i++) {
        if (!tkc_claim_take(c, &budget, loop, 1))
            return NULL; /* nobody may have to wait */
        tkc_claim_end(c);
    }
    return c;
}

/* Clients of one account share a record, each on the thread of its own. */
TEST_WITH(two_threads_lose_nothing, setup, teardown)
{
    pthread_t other;
    void *done;
    tkc_budget_init(&budget, &lock, 2, true);
    assert_int_equal(pthread_create(&other, NULL, take_and_end, &claims[0]), 0);
    assert_ptr_equal(take_and_end(&claims[1]), &claims[1]);
    pthread_join(other, &done);
    assert_ptr_equal(done, &claims[0]);
    assert_int_equal(budget.balance, 2);
}
