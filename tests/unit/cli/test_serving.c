/* test_serving.c - how `tinkc serve` and `tinkc ui` end. */
#include <signal.h>

#include "cli/main/app.h"
#include "support/check.h"
#include "tinkc/engine.h"

static int64_t grace_ms;

static bool noted_stop(tinkc_server *server, int64_t ms, tinkc_error *err)
{
    (void)server, (void)err;
    grace_ms = ms;
    return true;
}
#define tinkc_server_stop noted_stop
#include "../../../cli/serve/serving.c"

/* As the line says that is written then. */
TEST(requests_under_way_have_ten_seconds)
{
    cli_app app = { .quiet = true };
    cli_serving_block_signals(true);
    assert_int_equal(raise(SIGTERM), 0);
    assert_int_equal(cli_serving_run(&app, NULL), 0);
    assert_int_equal(grace_ms, 10000);
}
