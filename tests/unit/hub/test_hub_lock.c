/* test_hub_lock.c - a blob that another process is writing: how long it is waited for. Nothing sleeps here: the time of a
 * pause is added up. */
#include "hub/hub_priv.h"
#include "support/check.h"

static int64_t slept_ms;    /* in all pauses so far */
static int64_t grows_until; /* until then each pause adds a byte to the file that is watched */
static int64_t freed_at;    /* then the other process releases it; 0 = never */
static int held;            /* its descriptor */
static char watched[64];

static bool no_sleep(const tinkc_hub *hub, int64_t ms);
#define tkc_hub_sleep no_sleep
#include "../../../src/hub/hub_cache.c"
#undef tkc_hub_sleep

static bool no_sleep(const tinkc_hub *hub, int64_t ms)
{
    (void)hub;
    slept_ms += ms;
    if (slept_ms <= grows_until) {
        FILE *f = fopen(watched, "ae");
        assert_non_null(f);
        fputc('x', f);
        fclose(f);
    }
    if (freed_at && slept_ms >= freed_at && held >= 0) {
        close(held);
        held = -1;
    }
    return true;
}

/* Waits for a lock that another holds; the error, with how long it waited in slept_ms. */
static tinkc_error wait_for_other(int64_t growing_ms, int64_t freed_ms)
{
    tinkc_error err = { 0 };
    char folder[] = "/tmp/tinkc-lock-XXXXXX";
    atomic_int waits = 0;
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    assert_non_null(mkdtemp(folder));
    snprintf(watched, sizeof watched, "%s/blob", folder);
    slept_ms = 0;
    grows_until = growing_ms;
    freed_at = freed_ms;
    tinkc_hub hub = { .cache = folder };
    tkc_hub_repo r = { .hub = &hub, .arena = &arena, .folder = "x/models--a--b" };
    held = tkc_hub_lock(&r, &arena, "digest", watched, &waits, &err);
    assert_true(held >= 0 && slept_ms == 0);
    int fd = tkc_hub_lock(&r, &arena, "digest", watched, &waits, &err);
    assert_int_equal(fd >= 0, err.code == 0);
    assert_int_equal(waits, 0);
    if (fd >= 0)
        close(fd);
    if (held >= 0)
        close(held);
    tinkc_error ignored = { 0 };
    assert_true(tkc_remove_tree(folder, &ignored));
    tkc_arena_free(&arena);
    return err;
}

TEST(a_lock_is_waited_for_ten_minutes_without_progress)
{
    tinkc_error err = wait_for_other(0, 0);
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_non_null(strstr(err.message, "no progress for 10 minutes"));
    assert_int_equal(slept_ms, 10 * 60 * 1000);
}

TEST(progress_begins_the_wait_again)
{
    tinkc_error err = wait_for_other(8 * 60 * 1000, 0);
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_int_equal(slept_ms, 18 * 60 * 1000);
    err = wait_for_other(3600 * 1000, 3600 * 1000); /* an hour of it, then the other one is done */
    assert_ok(err);
    assert_int_equal(slept_ms, 3600 * 1000);
}
