/* test_job_saves.c - what a training run saves: how long checkpoints live, which one is deleted, what the record of each
 * says. A scripted service takes the requests. */
#include "cli/main/commands.h"
#include "cli/train/train_job.h"
#include "support/cli/held_output.h"
#include "support/cli/own_folder.h"
#include "support/client/api_support.h"
#include "support/json_trees.h"

#define API "/api/v1/"

static cli_app app;
static cli_job job;
static tinkc_mock *mock;

static int setup(void **state)
{
    static int n_runs;
    tinkc_error err = { 0 };
    char folder[20];
    (void)state;
    (void)snprintf(folder, sizeof folder, "run%d", n_runs++);
    setenv("XDG_STATE_HOME", place, 1);
    mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    app = (cli_app){ .program = "tinkc",
                     .quiet = true,
                     .deadline_ms = INT64_MAX,
                     .command = cli_find("train", "sft"),
                     .client = mock_client(mock, NULL, &err) };
    job = (cli_job){ .app = &app, .log_dir = strdup(folder), .n_batches = 4, .epochs = 2 };
    job.trainer = tinkc_trainer_new(app.client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    return err.code ? -1 : cli_trainlog_open(&app, folder, NULL, &job.log);
}

static int teardown(void **state)
{
    (void)state;
    cli_trainlog_close(&job.log);
    tkc_arena_free(&job.arena);
    tinkc_trainer_free(job.trainer);
    tinkc_client_free(app.client);
    tinkc_mock_free(mock);
    char *texts[] = { job.log_dir, job.last_rolling, job.state_path, job.sampler_path };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    cli_parse_free(&app);
    return 0;
}

static void given(const char *option, const char *value)
{
    assert_int_equal(cli_set_value(&app, option, value, CLI_FROM_PROGRAM, "test"), 0);
}

static bool save(size_t step, bool final, bool rolling)
{
    tinkc_error err = { 0 };
    job.step = step;
    hold_output();
    bool ok = cli_job_checkpoint(&job, final, rolling, &err);
    free(release_output());
    return ok;
}

static size_t n_deleted(void)
{
    size_t n = 0;
    const tinkc_request *r;
    for (size_t i = 0; (r = tinkc_mock_request(mock, i)); i++)
        n += strcmp(r->method, "DELETE") == 0;
    return n;
}

static tkc_tree *last_record(void)
{
    tkc_tree *all = cli_trainlog_records(&json_arena, job.log_dir, "name");
    tkc_tree *v = tkc_tree_at(all, tkc_tree_length(all) - 1);
    assert_non_null(v);
    return v;
}

TEST_WITH(tokens_and_time_count_from_the_last_save, setup, teardown)
{
    given("save-every", "0");
    given("save-every-tokens", "100");
    job.elapsed_tokens = 100;
    assert_true(cli_job_save_due(&job, 1));
    assert_true(save(1, false, false));
    assert_false(cli_job_save_due(&job, 1));
    job.elapsed_tokens = 199;
    assert_false(cli_job_save_due(&job, 2));
    job.elapsed_tokens = 200;
    assert_true(cli_job_save_due(&job, 2));
    given("save-every-tokens", "0");
    given("save-every-seconds", "1000");
    assert_false(cli_job_save_due(&job, 2));
    job.last_save_ms -= 1000 * 1000;
    assert_true(cli_job_save_due(&job, 2));
    assert_true(save(2, false, false));
    assert_false(cli_job_save_due(&job, 3));
}

/* What a request to save says of its life; 0 = for good. */
static long long life_of(size_t i)
{
    const tinkc_request *r = nth_request(mock, API "save_weights", i);
    const char *life = memmem(r->body.data, r->body.len, "\"ttl_seconds\":", 14);
    return life ? atoll(life + 14) : 0;
}

TEST_WITH(each_kind_of_checkpoint_has_its_own_life, setup, teardown)
{
    given("ttl", "2d");
    given("rolling-ttl", "3h");
    assert_true(save(1, false, false) && save(2, false, true) && save(3, true, false));
    assert_true(life_of(0) == 2 * 86400);
    assert_true(life_of(1) == 3 * 3600);
    assert_true(life_of(2) == 0); /* the final one stays */
}

/* Else a resumed run would find neither the one before nor this one. */
TEST_WITH(a_rolling_state_goes_when_the_next_one_is_recorded, setup, teardown)
{
    assert_true(save(1, false, true));
    assert_int_equal(n_deleted(), 0);
    fclose(job.log.checkpoints);
    job.log.checkpoints = fopen("/dev/full", "w");
    assert_false(save(2, false, true));
    assert_int_equal(n_deleted(), 0);
    fclose(job.log.checkpoints);
    job.log.checkpoints = fopen("checkpoints.jsonl", "w");
    assert_true(save(3, false, true));
    assert_int_equal(n_deleted(), 1);
}

/* The newest state, with the optimizer's, and what the record says of it; older ones are not asked for. */
TEST_WITH(a_resumed_run_continues_from_its_newest_state, setup, teardown)
{
    job.elapsed_tokens = 50;
    assert_true(save(3, false, false));
    job.elapsed_tokens = 70;
    assert_true(save(5, false, true));
    cli_job again = { .app = &app,
                      .model = "mock/nano",
                      .log_dir = strdup(job.log_dir),
                      .n_batches = 4,
                      .epochs = 2,
                      .total_steps = 8,
                      .resumed = true };
    tkc_tree *config = tkc_tree_object(&json_arena);
    hold_output();
    assert_int_equal(cli_job_open(&again, config), 0);
    free(release_output());
    assert_int_equal(again.step, 5);
    assert_int_equal(again.saved_step, 5);
    assert_int_equal(again.elapsed_tokens, 70);
    assert_string_equal(again.last_rolling, again.state_path);
    assert_int_equal(tinkc_mock_count(mock, API "load_weights"), 1);
    const tinkc_request *r = nth_request(mock, API "load_weights", 0);
    assert_non_null(memmem(r->body.data, r->body.len, "\"optimizer\":true", 16));
    cli_job_free(&again);
}

/* A state whose sampler weights could not be saved is not a checkpoint. */
TEST_WITH(a_checkpoint_has_both_or_is_not_recorded, setup, teardown)
{
    tinkc_error err = { 0 };
    tinkc_mock_once(mock, NULL, API "save_weights_for_sampler", &(tinkc_mock_answer){ .status = 400, .body = "{}" },
                    &err);
    assert_false(save(1, false, false));
    assert_null(job.state_path);
    tkc_tree *all = cli_trainlog_records(&json_arena, job.log_dir, "name");
    assert_int_equal(tkc_tree_length(all), 0);
}

TEST_WITH(a_record_says_where_the_run_continues, setup, teardown)
{
    static const struct {
        size_t step, batch, epoch;
    } rows[] = { { 3, 3, 0 }, { 4, 0, 1 }, { 5, 1, 1 }, { 8, 0, 2 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(save(rows[i].step, rows[i].step == 8, false));
        tkc_tree *v = last_record();
        assert_int_equal(tkc_tree_get_i64(v, "batch"), rows[i].batch);
        assert_int_equal(tkc_tree_get_i64(v, "epoch"), rows[i].epoch);
    }
}

/* What nothing can be computed with any more is said at the step, once. */
TEST_WITH(too_large_weights_are_warned_of_once, setup, teardown)
{
    tkc_tree *fine = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 2, "optim/param_norm", 1e30);
    tkc_tree *ruined = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 3, "optim/weights_too_large", 7e29);
    app.quiet = false;
    hold_output();
    cli_job_write_row(&job, fine);
    cli_job_write_row(&job, ruined);
    cli_job_write_row(&job, ruined);
    char *said = release_output();
    assert_string_equal(said, "warning: step 4 made very large weights (root mean square 7e+29): the "
                              "learning rate is too high; begin again with a lower --lr\n");
    free(said);
}

RUN_TESTS(enter_folder, leave_folder)
