/* test_metrics.c - metrics that cannot be combined. */
#include <unistd.h>
#include "client/call/call.h"
#include "client/core/client_priv.h"
#include "client/core/options.h"
#include "client/call/outcome.h"
#include "client/rest/rest_priv.h"
#include "client/sample/sample_op.h"
#include "client/train/trainer.h"
#include "support/client/mock_fixture.h"
#include "support/scarce.h"

#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static char lines[2000];

static void keep_line(int32_t level, const char *line, void *user)
{
    (void)level, (void)user;
    (void)snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%s\n", line);
}

static tinkc_fwdbwd part_with(tkc_arena *arena, const char *const *names)
{
    tinkc_error err = { 0 };
    static const char *none[1];
    tinkc_fwdbwd p = { .type = "", .n = 1, .names = none };
    for (size_t i = 0; names[i]; i++)
        assert_true(tkc_metrics_put(&p.metrics, names[i], (double)i, arena, &err));
    return p;
}

/* What cannot be combined is left out, and the log says so. */
TEST_WITH(metrics_that_are_left_out, begin_plain, end_fixture)
{
    fixture *x = *state;
    tkc_arena arena = { 0 };
    tinkc_client *c =
        mock_client(x->mock, &(tinkc_client_options){ .log = keep_line, .log_level = TINKC_LOG_DEBUG }, &x->err);
    tinkc_fwdbwd all, p = part_with(&arena, PAIRS("plain", "a:sum", "b:unheard_of", "c:d:sum", "e:mean"));
    const tinkc_fwdbwd *parts[] = { &p, &p };
    lines[0] = '\0';
    assert_true(tkc_fwdbwd_combine(&all, parts, 2, &arena, c, &x->err));
    assert_int_equal(tinkc_metrics_count(&all.metrics), 2);
    assert_string_equal(tinkc_metrics_name(&all.metrics, 0), "a:sum");
    assert_string_equal(tinkc_metrics_name(&all.metrics, 1), "e:mean");
    assert_null(tinkc_metrics_name(&all.metrics, 2));
    static const char *const left_out[] = { "plain", "b:unheard_of", "c:d:sum" };
    for (size_t i = 0; i < 3; i++) {
        char want[100];
        (void)snprintf(want, sizeof want, "metric %s is left out: no known reduction", left_out[i]);
        assert_non_null(strstr(lines, want));
    }
    assert_null(strstr(lines, "a:sum"));
    assert_null(strstr(lines, "e:mean"));
    lines[0] = '\0';
    assert_true(tkc_fwdbwd_combine(&all, parts, 1, &arena, c, &x->err)); /* one part keeps all */
    assert_true(tinkc_metrics_get(&all.metrics, "plain", 9) == 0);
    assert_null(strstr(lines, "metric plain"));
    /* Memory that ends in the middle of a metric that becomes several. */
    tinkc_fwdbwd u = part_with(&arena, PAIRS("u:unique"));
    const tinkc_fwdbwd *many[] = { &u, &u, &u, &u };
    bool done = false;
    for (size_t max = 16; !done; max += 16) {
        tkc_arena small;
        tkc_arena_init(&small, NULL, max);
        x->err = (tinkc_error){ 0 };
        done = tkc_fwdbwd_combine(&all, many, 4, &small, c, &x->err);
        assert_int_equal(x->err.code, done ? 0 : TINKC_E_MEMORY);
        tkc_arena_free(&small);
    }
    tkc_arena_free(&arena);
    tinkc_client_free(c);
}
