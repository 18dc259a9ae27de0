/* test_sessions.c - sessions that live for days, the name of the machine, copies with unknown members. */
#include <math.h>
#include <stdatomic.h>
#include <sys/utsname.h>
#include "support/client/mock_fixture.h"

TEST_WITH(the_machine_has_its_usual_name, begin_work, end_fixture)
{
    fixture *x = *state;
    struct utsname machine;
    assert_int_equal(uname(&machine), 0);
    const char *want = strcmp(machine.machine, "x86_64") == 0    ? "x64"
                       : strcmp(machine.machine, "aarch64") == 0 ? "arm64"
                                                                 : machine.machine;
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    assert_string_equal(request_header(tinkc_mock_request(x->mock, 0), "X-Stainless-Arch"), want);
}

/* As Python writes them. */
TEST(sessions_of_days)
{
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = { { 86399000, "\"duration\":\"23:59:59\"" },
                 { 86400000, "\"duration\":\"1 day, 0:00:00\"" },
                 { 172800000 + 3 * 3600000 + 4 * 60000 + 5006, "\"duration\":\"2 days, 3:04:05.006000\"" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON }, &err);
        assert_non_null(tinkc_client_session_id(client, PATIENCE_MS, &err));
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        tinkc_mock_advance(mock, rows[i].ms); /* in one step: no timer in between */
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        (void)tinkc_client_close(client, PATIENCE_MS, &err);
        size_t n = tinkc_mock_count(mock, API "telemetry");
        const tinkc_request *last = n ? nth_request(mock, API "telemetry", n - 1) : NULL;
        assert_non_null(last);
        assert_non_null(memmem(last->body.data, last->body.len, rows[i].text, strlen(rows[i].text)));
        assert_ok(&err);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
}

/* A copy made by a newer library may hold members that this one does not know. */
TEST_WITH(copies_with_unknown_members, begin_work, end_fixture)
{
    fixture *x = *state;
    tinkc_text text = { 0 };
    char newer[4096];
    tinkc_client_options options = { .transport = tinkc_mock_transport(x->mock), .clock = tinkc_mock_clock(x->mock) };
    const char *exported = tinkc_sampler_export(x->sampler, &text, &x->err);
    assert_ok(&x->err);
    assert_int_equal(exported[0], '{');
    (void)snprintf(newer, sizeof newer, "{\"later\":{\"a\":[1,\"}\"]},%s", exported + 1);
    tinkc_sampler *copy = tinkc_sampler_import(newer, &options, &x->err);
    assert_ok(&x->err);
    assert_string_equal(tinkc_sampler_id(copy), tinkc_sampler_id(x->sampler));
    tinkc_sampler_free(copy);
    tinkc_text_free(&text);
}
