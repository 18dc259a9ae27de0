/* test_client_options.c - what the command hands to the library when it connects. No client is made: the options are looked at. */

#include <tinkc/tinkc.h>

static tinkc_client *scripted_client(const tinkc_client_options *, tinkc_error *);
static tinkc_hub *scripted_hub(const tinkc_hub_options *, tinkc_error *);
#define tinkc_client_new scripted_client
#define tinkc_hub_new    scripted_hub
#include "../../../cli/main/connect.c"
#include "../../../cli/models/hub_models.c"

#include "cli/main/commands.h"
#include "support/cli/held_output.h"
#include "support/test_case.h"

static cli_app app;
static tinkc_client_options seen;
static tinkc_hub_options hub;
static char url[64], key[64]; /* they are the caller's */

static tinkc_client *scripted_client(const tinkc_client_options *o, tinkc_error *err)
{
    seen = *o;
    (void)snprintf(url, sizeof url, "%s", o->base_url ? o->base_url : "none");
    (void)snprintf(key, sizeof key, "%s", o->api_key ? o->api_key : "none");
    tinkc_error_set(err, TINKC_E_MEMORY, "looked at");
    return NULL;
}

static tinkc_hub *scripted_hub(const tinkc_hub_options *o, tinkc_error *err)
{
    hub = *o;
    tinkc_error_set(err, TINKC_E_MEMORY, "looked at");
    return NULL;
}

static int begin(void **state)
{
    static const char *const names[] = { "TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD",
                                         "TINKER_TELEMETRY" };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    setenv("TINKER_API_KEY", "tml-environment", 1);
    return 0;
}

/* Connects as this command with these options: name, value, ..., NULL. */
static void connect_with(const char *noun, const char *verb, const char *const *given)
{
    app = (cli_app){ .command = cli_find(noun, verb), .deadline_ms = INT64_MAX };
    assert_non_null(app.command);
    for (; given && *given; given += 2)
        assert_int_equal(cli_give_value(&app, given[0], strdup(given[1]), CLI_FROM_LINE, "command line"), 0);
    hold_output();
    assert_true(cli_connect(&app) != 0);
    char *said = release_output();
    assert_string_equal(said, "error: looked at\n");
    free(said);
}

#define GIVEN(...) ((const char *const[]){ __VA_ARGS__, NULL })

TEST(each_command_retries_for_its_time)
{
    static const struct {
        const char *noun, *verb, *retry_for;
        int64_t window_ms;
        int32_t max_retries;
        bool no_retries;
    } cases[] = { { "sample", NULL, NULL, 300000, 0, false },   { "chat", NULL, NULL, 300000, 0, false },
                  { "logprobs", NULL, NULL, 300000, 0, false }, { "train", "sft", NULL, 300000, 0, false },
                  { "eval", "run", NULL, 30000, 1, false },     { "run", "list", NULL, 30000, 1, false },
                  { "run", "list", "59.999", 59999, 1, false }, { "run", "list", "1m", 60000, 0, false },
                  { "sample", NULL, "0.5", 500, 1, false },     { "sample", NULL, "0", TINKC_ZERO, 1, true } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        connect_with(cases[i].noun, cases[i].verb,
                     cases[i].retry_for ? GIVEN("base-url", "http://x", "retry-for", cases[i].retry_for)
                                        : GIVEN("base-url", "http://x"));
        assert_int_equal(seen.retry_window_ms, cases[i].window_ms);
        assert_int_equal(app.retry_window_ms, cases[i].window_ms);
        assert_int_equal(seen.billing_pause_ms, cases[i].window_ms);
        assert_int_equal(seen.max_retries, cases[i].max_retries);
        assert_int_equal(seen.no_retries, cases[i].no_retries);
        assert_int_equal(seen.operation_timeout_ms, 0);
        cli_parse_free(&app);
    }
}

/* What is left of --timeout, and 1 ms when nothing is left. */
TEST(what_is_left_of_timeout_bounds_an_operation)
{
    const int64_t hour = 3600000;
    tinkc_client_options o = { 0 };
    app = (cli_app){ .command = cli_find("run", "list"), .deadline_ms = cli_now_ms() + hour };
    fill_options(&app, &o);
    assert_in_range(o.operation_timeout_ms, hour - 60000, hour);
    app.deadline_ms = cli_now_ms() - hour;
    fill_options(&app, &o);
    assert_int_equal(o.operation_timeout_ms, 1);
}

TEST(who_and_where)
{
    const char *const metadata[] = { "a", "b", NULL };
    tinkc_client_options o = { 0 };
    connect_with("run", "list", GIVEN("base-url", "http://x", "project", "p-1"));
    assert_string_equal(url, "http://x");
    assert_string_equal(key, "none"); /* the library reads the environment itself */
    assert_string_equal(seen.project_id, "p-1");
    assert_string_equal(seen.user_agent, "tinkc-cli/" TINKC_VERSION);
    assert_true(seen.log_user == &app && seen.log && !seen.transport && !seen.unix_socket);
    cli_parse_free(&app);
    static const int32_t levels[] = { TINKC_LOG_ERROR, TINKC_LOG_INFO, TINKC_LOG_DEBUG, TINKC_LOG_DEBUG };
    app = (cli_app){ .command = cli_find("run", "list"), .deadline_ms = INT64_MAX, .session_metadata = metadata };
    for (int i = 0; i < 4; i++) {
        app.verbose = i;
        fill_options(&app, &o);
        assert_int_equal(o.log_level, levels[i]);
    }
    assert_ptr_equal(o.user_metadata, metadata);
    assert_int_equal(o.telemetry, TINKC_TELEMETRY_OFF);
    setenv("TINKER_TELEMETRY", "", 1);
    fill_options(&app, &o);
    assert_int_equal(o.telemetry, TINKC_TELEMETRY_OFF);
    setenv("TINKER_TELEMETRY", "0", 1);
    fill_options(&app, &o);
    assert_int_equal(o.telemetry, TINKC_TELEMETRY_DEFAULT); /* the library reads it */
    unsetenv("TINKER_TELEMETRY");
}

/* A command that needs no weights takes a whole path only: "models/nano" may be the name of a model as well. */
TEST(a_folder_is_named_by_its_whole_path)
{
    char here[TKC_PATH];
    app = (cli_app){ .command = cli_find("run", "list") };
    assert_non_null(realpath("models/nano", here));
    const char *const models[] = { here, "models/nano", "/none", NULL };
    for (size_t i = 0; i < 4; i++) {
        char *name = NULL;
        int bad = 0;
        char *folder = named_folder(&app, models[i], &name, &bad);
        assert_int_equal(bad, 0);
        assert_true((folder != NULL) == (i == 0) && (name != NULL) == (i == 0));
        if (folder)
            assert_true(strcmp(folder, here) == 0 && strcmp(name, here) == 0);
        free(folder);
        free(name);
    }
}

/* The hub's token, tries and pieces at once: options first, then settings; the environment is the library's. */
TEST(options_of_a_hub_come_before_settings)
{
    cli_setting settings[] = { { "retry_for", "2m", "f:1", CLI_LAYER_USER },
                               { "hf_token", "hf_kept", "f:2", CLI_LAYER_USER } };
    cli_config config = { .settings = settings, .n_settings = 2, .profile = "default" };
    tinkc_error err = { 0 };
    unsetenv("HF_TOKEN");
    unsetenv("HUGGING_FACE_HUB_TOKEN");
    app = (cli_app){ .command = cli_find("pull", NULL), .offline = true };
    assert_null(cli_hub_open(&app, &err));
    assert_true(hub.offline && !hub.token && !hub.no_retries && hub.retry_window_ms == 0);
    assert_int_equal(hub.jobs, cli_int(&app, "jobs"));
    app.config = &config;
    app.offline = false;
    assert_null(cli_hub_open(&app, &err));
    assert_true(!hub.offline && !hub.no_retries && hub.retry_window_ms == 120000);
    assert_string_equal(hub.token, "hf_kept");
    assert_int_equal(cli_give_value(&app, "retry-for", strdup("0"), CLI_FROM_LINE, "command line"), 0);
    assert_int_equal(cli_give_value(&app, "jobs", strdup("3"), CLI_FROM_LINE, "command line"), 0);
    assert_null(cli_hub_open_as(&app, "hf_given", &err));
    assert_true(hub.no_retries && hub.retry_window_ms == 0 && hub.jobs == 3);
    assert_string_equal(hub.token, "hf_given");
    for (size_t i = 0; i < 2; i++) {
        const char *name = i ? "HUGGING_FACE_HUB_TOKEN" : "HF_TOKEN";
        setenv(name, "hf_environment", 1);
        assert_null(cli_hub_open(&app, &err));
        assert_null(hub.token);
        setenv(name, "", 1);
        assert_null(cli_hub_open(&app, &err));
        assert_string_equal(hub.token, "hf_kept");
        unsetenv(name);
    }
    cli_parse_free(&app);
}

/* A log line of the library: its level by name, errors alone with --quiet. */
TEST(a_log_line_has_its_level_and_quiet_shows_errors_only)
{
    app = (cli_app){ .command = cli_find("run", "list") };
    hold_output();
    for (int32_t level = TINKC_LOG_ERROR; level <= TINKC_LOG_DEBUG; level++)
        cli_log_line(level, "x", &app);
    app.quiet = true;
    for (int32_t level = TINKC_LOG_ERROR; level <= TINKC_LOG_DEBUG; level++)
        cli_log_line(level, "y", &app);
    char *said = release_output();
    assert_string_equal(said, "error: x\nwarning: x\ninfo: x\ndebug: x\nerror: y\n");
    free(said);
}

RUN_TESTS(begin, NULL)
