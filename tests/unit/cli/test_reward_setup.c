/* test_reward_setup.c - which limit each kind of grading gets from its option. What would start a command or ask an
 * address is scripted. */
#define tinkc_reward_command script_command
#define tinkc_reward_url     script_url
#define tinkc_env_command    script_env
#include "../../../cli/train/reward_setup.c"

#include "cli/main/commands.h"
#include "support/cli/held_output.h"
#include "support/cli/noted.h"
#include "support/test_case.h"

tinkc_reward *script_command(const char *command, size_t procs, int64_t timeout_ms, tinkc_log_fn *fn, void *user,
                             tinkc_error *err)
{
    (void)fn;
    (void)user;
    note("command %s, %zu processes, %lld ms\n", command, procs, (long long)timeout_ms);
    return tinkc_reward_grader("exact", err);
}

tinkc_reward *script_url(const char *url, int64_t timeout_ms, tinkc_error *err)
{
    note("url %s, %lld ms\n", url, (long long)timeout_ms);
    return tinkc_reward_grader("exact", err);
}

tinkc_env *script_env(const char *command, size_t procs, int64_t timeout_ms, tinkc_log_fn *fn, void *user,
                      tinkc_error *err)
{
    (void)fn;
    (void)user;
    note("environment %s, %zu processes, %lld ms\n", command, procs, (long long)timeout_ms);
    tkc_fail(err, TINKC_E_UNSUPPORTED, "scripted");
    return NULL;
}

TEST(each_kind_has_the_limits_of_its_options)
{
    static const char *const given[][2] = {
        { "reward-cmd", "g" }, { "reward-procs", "3" }, { "reward-timeout", "7s" }, { "reward-url", "u" },
        { "env-cmd", "e" },    { "env-procs", "5" },    { "env-timeout", "1.5s" },  { "sample-timeout", "2m" },
    };
    cli_app app = { .program = "tinkc", .quiet = true, .command = cli_find("train", "rl") };
    cli_rewards rewards = { 0 };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        assert_int_equal(cli_set_value(&app, given[i][0], given[i][1], CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(add_outside(&app, &rewards), 0);
    hold_output();
    assert_int_not_equal(add_env(&app, &rewards), 0);
    free(release_output());
    assert_noted("command g, 3 processes, 7000 ms\nurl u, 7000 ms\n"
                 "environment e, 5 processes, 1500 ms\n");
    assert_int_equal(cli_rollout_options(&app, &rewards, NULL, NULL).sample_timeout_ms, 120000);
    cli_rewards_close(&rewards);
    cli_parse_free(&app);
}
