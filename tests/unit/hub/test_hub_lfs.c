/* test_hub_lfs.c - pieces of large files on their way to a hub: progress and failures. Nothing is sent. */
#include "../../../src/hub/hub_lfs.c"
#include "support/check.h"

/* A piece that is sent again is moved twice, and done once. */
TEST(a_piece_that_is_sent_again_is_done_once)
{
    sending s = { .done = 1000 };
    piece x = { .s = &s };
    tkc_fetch r = { .user = &x };
    const int64_t sent[] = { 60, 100, 0, 40, 100 };
    pthread_mutex_init(&s.lock, NULL);
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++)
        on_sent(&r, sent[i]);
    assert_true(s.done == 1100 && s.moved == 200);
    pthread_mutex_destroy(&s.lock);
}

/* Addresses of an earlier push may have expired: only a refusal of one of those is a reason to ask for new ones. */
TEST(the_first_failure_is_reported_and_ends_the_queue)
{
    static const struct {
        bool resumed;
        int status;
        bool stale;
    } rows[] = {
        { true, 403, true }, { true, 499, true }, { true, 500, false }, { true, 399, false }, { false, 403, false }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_hub_upload file = { .path = "a" };
        object o = { .file = &file, .n_parts = 2, .n_left = 2, .resumed = rows[i].resumed };
        sending s = { .objects = &o, .n = 1, .running = 2 };
        piece x = { 0 };
        const tinkc_error first = { .code = TINKC_E_NOT_FOUND, .http_status = rows[i].status },
                          second = { .code = TINKC_E_FILE };
        pthread_mutex_init(&s.lock, NULL);
        pthread_cond_init(&s.changed, NULL);
        assert_true(take_piece(&s, &x) && x.part == 0);
        assert_false(finish_piece(&x));
        finish_worker(&s, &x, &first);
        finish_worker(&s, &x, &second);
        assert_true(s.err.code == TINKC_E_NOT_FOUND && s.running == 0);
        assert_int_equal(s.stale, rows[i].stale);
        assert_false(take_piece(&s, &x));
        pthread_cond_destroy(&s.changed);
        pthread_mutex_destroy(&s.lock);
    }
}
