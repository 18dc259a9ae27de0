/* test_train_plans.c - what `tinkc train sweep` and `tinkc train dpo` make of their options, before anything is sent. */
#include <stdint.h>

static int64_t script_now_us(void);
#define cli_now_us script_now_us
#include "cli/main/commands.h"
#include "cli/train/train_job.h"
#include "../../../cli/train/cmd_train_sweep.c"
#undef MOST_RUNS
/* The model is not looked for: what follows needs it. */
#define cli_job_settle no_model
static int no_model(cli_job *job)
{
    (void)job;
    return 99;
}
#define start  dpo_start
#define plan   dpo_plan
#define finish dpo_finish
#include "../../../cli/train/cmd_train_dpo.c"
#undef start
#undef plan
#undef finish

#include "support/cli/held_output.h"
#include "support/test_case.h"

static int64_t script_now_us(void)
{
    return 1735787045000000; /* 2025-01-02T03:04:05Z */
}

static int value(cli_app *app, const char *name, const char *text)
{
    return cli_set_value(app, name, text, CLI_FROM_PROGRAM, "test");
}

/* Each value of an option with each of the others, the first one fastest; a folder for each, named after them. */
TEST(a_grid_is_run_in_order)
{
    static const char *const names[] = { "lr=1e-4,test-data=a/b", "lr=2e-4,test-data=a/b", "lr=3e-4,test-data=a/b",
                                         "lr=1e-4,test-data=c",   "lr=2e-4,test-data=c",   "lr=3e-4,test-data=c" };
    cli_app app = { .command = cli_find("train", "sweep") };
    sweep s = { .app = &app };
    assert_int_equal(value(&app, "grid", "lr=1e-4,2e-4,3e-4") + value(&app, "grid", "test-data=a/b,c"), 0);
    assert_int_equal(plan(&s, cli_find("train", "sft")), 0);
    assert_string_equal(s.folder, "tinkc-runs/sweep-2025-01-02T03-04-05");
    assert_int_equal(s.n_runs, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_string_equal(s.runs[i].name, names[i]);
        assert_int_equal(strncmp(s.runs[i].folder, s.folder, strlen(s.folder)), 0);
        assert_null(strchr(s.runs[i].folder + strlen(s.folder) + 1, '/'));
    }
    free_plan(&s);
    cli_parse_free(&app);
}

TEST(each_loss_is_of_its_kind)
{
    static const struct {
        const char *loss, *beta;
        int kind, status;
    } rows[] = { { "dpo", "0.1", TINKC_PREFER_DPO, 99 },
                 { "ipo", "0.1", TINKC_PREFER_IPO, 99 },
                 { "kto", "0.1", TINKC_PREFER_KTO, 99 },
                 { "dpo", "0", TINKC_PREFER_DPO, 2 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_app app = { .command = cli_find("train", "dpo") };
        dpo d = { .kind = -1 };
        assert_int_equal(value(&app, "loss", rows[i].loss) + value(&app, "dpo-beta", rows[i].beta), 0);
        hold_output();
        assert_int_equal(prepare(&app, &d), rows[i].status);
        free(release_output());
        assert_int_equal(d.kind, rows[i].kind);
        cli_parse_free(&app);
    }
}
