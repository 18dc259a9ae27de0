/* test_residence.c - blocks that make room for others on a card of few places, and come back. */
#include "device/residence.h"
#include "support/test_case.h"

enum { PLACES = 3, BLOCKS = 6, BYTES = 100 };

typedef struct block {
    tke_resident place;
    int card, host; /* its number, where it is; 0 = not there */
} block;

static tke_residence r;
static block blocks[BLOCKS];
static int n_on_card, n_left, n_came;
static bool leaving_fails, coming_fails;

static bool leave(tke_resident *at, tinkc_error *err)
{
    block *b = (block *)at;
    if (leaving_fails)
        return tkc_fail(err, TINKC_E_MEMORY, "no memory on the host");
    b->host = b->card;
    b->card = 0;
    n_on_card--;
    n_left++;
    return true;
}

/* A place on the card, as a module's allocator finds one. */
static bool take_place(tinkc_error *err)
{
    while (n_on_card == PLACES)
        if (!tke_residence_make_room(&r))
            return tkc_fail(err, TINKC_E_MEMORY, "the card is full");
    n_on_card++;
    return true;
}

static bool come(tke_resident *at, tinkc_error *err)
{
    block *b = (block *)at;
    if (coming_fails || !take_place(err))
        return tkc_failed(err) ? false : tkc_fail(err, TINKC_E_SERVER, "the card has failed");
    tke_residence_lock(&r);
    b->card = b->host;
    b->host = 0;
    tke_residence_unlock(&r);
    n_came++;
    return true;
}

static int set_up(void **state)
{
    (void)state;
    memset(blocks, 0, sizeof blocks);
    n_on_card = n_left = n_came = 0;
    leaving_fails = coming_fails = false;
    tke_residence_init(&r, leave, come);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    r.first = NULL; /* a test that failed leaves its blocks behind */
    tke_residence_free(&r);
    return 0;
}

static bool make(int i, tinkc_error *err)
{
    tke_residence_turn(&r);
    if (!take_place(err))
        return false;
    blocks[i].card = i + 1;
    tke_residence_add(&r, &blocks[i].place, BYTES);
    return true;
}

static void drop(int i)
{
    tke_residence_remove(&r, &blocks[i].place);
    n_on_card -= blocks[i].card != 0;
}

static void drop_all(int n)
{
    for (int i = 0; i < n; i++)
        drop(i);
    assert_null(r.first);
    assert_int_equal(tke_residence_away(&r), 0);
    assert_int_equal(n_on_card, 0);
}

static void make_all(int n)
{
    tinkc_error err = { 0 };
    for (int i = 0; i < n; i++)
        assert_true(make(i, &err));
}

static void expect_on_card(const char *which)
{
    for (int i = 0; i < BLOCKS; i++) {
        bool here = strchr(which, '0' + i) != NULL;
        assert_int_equal(blocks[i].card != 0, here);
    }
}

TEST_WITH(longest_unused_leaves, set_up, tear_down)
{
    tinkc_error err = { 0 };
    make_all(3);
    expect_on_card("012");
    tke_residence_turn(&r);
    assert_true(tke_residence_use(&r, &blocks[0].place, &err));
    assert_true(make(3, &err)); /* 1 is the oldest now */
    expect_on_card("023");
    assert_int_equal(tke_residence_away(&r), BYTES);
    assert_true(make(4, &err));
    expect_on_card("034");
    tke_residence_turn(&r);
    assert_true(tke_residence_use(&r, &blocks[1].place, &err)); /* comes back, 0 leaves */
    expect_on_card("134");
    assert_int_equal(blocks[1].card, 2);
    assert_int_equal(blocks[0].host, 1);
    assert_true(n_left == 3 && n_came == 1);
    assert_int_equal(tke_residence_away(&r), 2 * BYTES);
    drop_all(5);
}

/* Of blocks that were used in the same turn the first one leaves first. */
TEST_WITH(of_equal_ages_the_first_block_leaves_first, set_up, tear_down)
{
    tinkc_error err = { 0 };
    make_all(3);
    tke_residence_turn(&r);
    for (int i = 2; i >= 0; i--)
        assert_true(tke_residence_use(&r, &blocks[i].place, &err));
    assert_true(make(3, &err));
    expect_on_card("123");
    drop_all(4);
}

/* What a call uses stays until it ends, even if the call fails for lack of memory. */
TEST_WITH(blocks_in_use_stay, set_up, tear_down)
{
    tinkc_error err = { 0 };
    make_all(4);
    expect_on_card("123");
    tke_residence_turn(&r);
    assert_int_equal(tke_residence_idle(&r), 3 * BYTES);
    for (int i = 1; i < 4; i++)
        assert_true(tke_residence_use(&r, &blocks[i].place, &err));
    assert_int_equal(tke_residence_idle(&r), 0);
    assert_false(tke_residence_use(&r, &blocks[0].place, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    assert_string_equal(err.message, "the card is full");
    expect_on_card("123");
    assert_true(blocks[0].place.away && blocks[0].host == 1);
    tke_residence_turn(&r); /* the next call may move them */
    err = (tinkc_error){ 0 };
    assert_true(tke_residence_use(&r, &blocks[0].place, &err));
    expect_on_card("023");
    drop_all(4);
}

TEST_WITH(moves_that_fail, set_up, tear_down)
{
    tinkc_error err = { 0 };
    make_all(3);
    leaving_fails = true;
    assert_false(make(3, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    expect_on_card("012");
    assert_true(!blocks[0].place.away && tke_residence_away(&r) == 0);
    leaving_fails = false;
    err = (tinkc_error){ 0 };
    assert_true(make(3, &err));
    tke_residence_turn(&r);
    coming_fails = true;
    assert_false(tke_residence_use(&r, &blocks[0].place, &err));
    assert_int_equal(err.code, TINKC_E_SERVER);
    assert_true(blocks[0].place.away && tke_residence_away(&r) == BYTES);
    coming_fails = false;
    err = (tinkc_error){ 0 };
    assert_true(tke_residence_use(&r, &blocks[0].place, &err));
    assert_int_equal(tke_residence_away(&r), BYTES); /* 1 */
    expect_on_card("023");
    drop(2), drop(0), drop(3), drop(1); /* the middle, the end and the beginning of the list */
    assert_null(r.first);
    assert_int_equal(tke_residence_away(&r), 0);
}

static void *read_often(void *arg)
{
    block *b = arg;
    size_t wrong = 0;
    for (int i = 0; i < 2000; i++) {
        tke_residence_lock(&r);
        wrong += (b->host ? b->host : b->card) != 1;
        tke_residence_unlock(&r);
    }
    return (void *)wrong;
}

TEST_WITH(reading_while_it_moves, set_up, tear_down)
{
    tinkc_error err = { 0 };
    pthread_t reader;
    void *wrong = NULL;
    make_all(1);
    assert_int_equal(pthread_create(&reader, NULL, read_often, &blocks[0]), 0);
    for (int i = 0; i < 500; i++) {
        tke_residence_turn(&r);
        assert_true(tke_residence_make_room(&r));
        assert_true(tke_residence_use(&r, &blocks[0].place, &err));
    }
    assert_int_equal(pthread_join(reader, &wrong), 0);
    assert_null(wrong);
    assert_true(n_left == 500 && n_came == 500);
    drop_all(1);
}
