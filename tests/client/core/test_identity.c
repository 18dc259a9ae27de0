/* test_identity.c - who a client is: identities, tokens that calls wait for, commands that give credentials. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/core/operation.h"
#include "support/counting.h"
#include "support/client/mock_fixture.h"

static int setup(void **state)
{
    return begin_fixture(state, NULL, NULL);
}

static int setup_tokens(void **state)
{
    return begin_fixture(state, API "client/config", CONFIG_TOKENS);
}

static tinkc_future *done_call(fixture *x)
{
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    return f;
}

typedef struct calls {
    tinkc_future *seen[8];
    size_t n;
    tinkc_future *next; /* lined up by the first call */
    tinkc_queue *queue;
} calls;

TEST_WITH(what_a_health_check_says, setup, end_fixture)
{
    static const struct {
        const char *body;
        int32_t code;
        const char *message;
    } rows[] = {
        { "{\"status\":\"ok\"}", TINKC_OK, "" },
        { "{\"status\":\"okay\"}", TINKC_E_SERVER, "health check failed: the service reports okay" },
        { "{\"status\":\"\"}", TINKC_E_SERVER, "health check failed: the service reports " },
    };
    fixture *x = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        once(x, API "healthz", 200, rows[i].body);
        tinkc_future *f = tinkc_health_check(x->client, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_int_equal(tinkc_future_wait(f, 0, &x->err), rows[i].code == TINKC_OK);
        check_error(x, rows[i].code, rows[i].message);
        tinkc_future_free(f);
    }
    once(x, API "healthz", 200, "5");
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_BAD_RESPONSE);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
}

enum { WALL_BEGIN_S = 1767225600 };

/* {"jwt": ...} with these claims and an end so many seconds after the mock's beginning. */
static const char *token_answer(const char *more, int64_t ends_s)
{
    char claims[200];
    (void)snprintf(claims, sizeof claims, "{\"iss\":\"passport-x\",\"exp\":%lld%s}", (long long)(WALL_BEGIN_S + ends_s),
                   more);
    return token_answer_of(claims, "x");
}

TEST(addresses_in_identities)
{
    static const struct {
        const char *claims, *urn, *email;
    } rows[] = {
        { ",\"sub\":\"u\",\"email\":\"e\"", "u", "e" },
        { ",\"sub\":\"u\",\"email\":\"\"", "u", NULL },
        { "", "", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(setup_tokens(state), 0);
        fixture *x = *state;
        always(x, API "auth/token", token_answer(rows[i].claims, 9999));
        tinkc_future *f = tinkc_identity_get(x->client, &x->err);
        const tinkc_identity *who = tinkc_future_identity(f, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        assert_string_equal(who->user_urn, rows[i].urn);
        assert_string_equal(who->org_urn, "");
        if (rows[i].email)
            assert_string_equal(who->email, rows[i].email);
        else
            assert_null(who->email);
        tinkc_future_free(f);
        end_fixture(state);
    }
}

/* The token is about to end: who asks for the identity waits for the next one, or no longer. */
TEST_WITH(an_identity_waits_for_its_token, setup_tokens, end_fixture)
{
    fixture *x = *state;
    once(x, API "auth/token", 200, token_answer(",\"sub\":\"one\"", 90));
    tinkc_mock_once(x->mock, NULL, API "auth/token",
                    &(tinkc_mock_answer){ .body = token_answer(",\"sub\":\"two\"", 9999), .delay_ms = 1000 }, &x->err);
    assert_true(tinkc_client_connect(x->client, PATIENCE_MS, &x->err));
    settle(x);
    tinkc_mock_advance(x->mock, 31 * 1000);
    tinkc_future *f = tinkc_identity_get(x->client, &x->err);
    tinkc_future *unwanted = tinkc_token_get(x->client, &x->err);
    settle(x);
    assert_false(tinkc_future_done(f) || tinkc_future_done(unwanted));
    tinkc_future_cancel(unwanted);
    check_failure(x, unwanted, TINKC_E_CANCELLED, "token_get: cancelled");
    assert_false(tinkc_future_done(f));
    assert_true(run_until_done(x->mock, f, 5000));
    const tinkc_identity *who = tinkc_future_identity(f, 0, &x->err);
    assert_ok(&x->err);
    assert_string_equal(who->user_urn, "two");
    tinkc_future_free(f);
}

TEST_WITH(an_identity_without_settings, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "client/config",
                      &(tinkc_mock_answer){ .status = 403, .body = "{\"detail\":\"no\"}" }, &x->err);
    tinkc_future *f = tinkc_identity_get(x->client, &x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
}

/* Before the settings are there, a question can be taken back. */
TEST_WITH(an_early_identity_is_cancelled, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "client/config", &silent, &x->err);
    tinkc_future *f = tinkc_identity_get(x->client, &x->err);
    settle(x);
    assert_false(tinkc_future_done(f));
    tinkc_future_cancel(f);
    check_failure(x, f, TINKC_E_CANCELLED, "identity_get: cancelled");
}

/* A token may be anything but empty. */
TEST_WITH(an_empty_token_is_refused, setup_tokens, end_fixture)
{
    fixture *x = *state;
    once(x, API "auth/token", 200, "{\"jwt\":\"\"}");
    check_failure(x, tinkc_health_check(x->client, &x->err), TINKC_E_TOKEN,
                  "token exchange: the answer holds no token");
    always(x, API "auth/token", "{\"jwt\":\"t\"}");
    tinkc_future *f = done_call(x);
    assert_string_equal(request_header(nth_request(x->mock, API "healthz", 0), "X-API-Key"), "t");
    tinkc_future_free(f);
}

/* A token whose end is not known is exchanged for every call. Any of those who wait for it may be cancelled, and one
 * that has it already: the others get theirs. */
TEST_WITH(cancelled_among_those_who_wait_for_a_token, setup_tokens, end_fixture)
{
    fixture *x = *state;
    always(x, API "auth/token", "{\"jwt\":\"t\"}");
    tinkc_mock_always(x->mock, NULL, API "healthz", &silent, &x->err);
    tinkc_future *has_one = tinkc_health_check(x->client, &x->err);
    settle(x);
    assert_int_equal(tinkc_mock_count(x->mock, API "healthz"), 1);
    tinkc_mock_always(x->mock, NULL, API "auth/token",
                      &(tinkc_mock_answer){ .body = "{\"jwt\":\"t\"}", .delay_ms = 100 }, &x->err);
    for (size_t out = 0; out < 4; out++) { /* 3: the one that has its token */
        tinkc_future *all[3];
        for (size_t i = 0; i < 3; i++)
            all[i] = tinkc_capabilities_get(x->client, &x->err);
        settle(x);
        tinkc_future_cancel(out < 3 ? all[out] : has_one);
        settle(x);
        for (size_t i = 0; i < 3; i++) {
            assert_true(run_until_done(x->mock, all[i], 1000));
            assert_int_equal(tinkc_future_wait(all[i], 0, NULL), i != out);
            tinkc_future_free(all[i]);
        }
    }
    tinkc_future_free(has_one);
}

/* Calls that wait for a token together are refused and wait again, each by itself. */
TEST_WITH(waiting_for_a_token_twice, setup_tokens, end_fixture)
{
    fixture *x = *state;
    tinkc_future *all[3];
    tinkc_mock_always(x->mock, NULL, API "auth/token",
                      &(tinkc_mock_answer){ .body = "{\"jwt\":\"t\"}", .delay_ms = 100 }, &x->err);
    for (size_t i = 0; i < 3; i++)
        once(x, API "get_server_capabilities", 503, "");
    for (size_t i = 0; i < 3; i++)
        all[i] = tinkc_capabilities_get(x->client, &x->err);
    for (size_t i = 0; i < 3; i++)
        complete(x, all[i]);
    assert_int_equal(tinkc_mock_count(x->mock, API "get_server_capabilities"), 6);
}

/* What is cancelled while it waits for its token has not run, nothing of it is sent later, and its number is free. */
TEST_WITH(cancelled_before_it_left, setup_tokens, end_fixture)
{
    fixture *x = *state;
    once(x, API "auth/token", 200, token_answer("", 90));
    open_work(x, 1);
    settle(x);
    tinkc_mock_always(x->mock, NULL, API "auth/token",
                      &(tinkc_mock_answer){ .body = token_answer("", 9999), .delay_ms = 1000 }, &x->err);
    tinkc_mock_advance(x->mock, 40000);
    settle(x);
    const tinkc_adam adam = TINKC_ADAM_INIT;
    for (int i = 0; i < 2; i++) {
        tinkc_future *f = i ? tinkc_optim_step(x->trainer, &adam, &x->err)
                            : tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
        settle(x);
        tinkc_future_cancel(f);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        assert_int_equal(x->err.flags & TINKC_MAY_HAVE_RUN, 0);
        check_error(x, TINKC_E_CANCELLED, i ? "optim_step: cancelled" : "forward_backward: cancelled");
        tinkc_future_free(f);
    }
    complete(x, tinkc_optim_step(x->trainer, &adam, &x->err));
    assert_int_equal(tinkc_mock_count(x->mock, API "forward_backward"), 0);
    assert_int_equal(tinkc_mock_count(x->mock, API "optim_step"), 1);
    assert_true(body_has(nth_request(x->mock, API "optim_step", 0), "\"seq_id\":1,"));
}

/* A 400 without a word is a stale connection, also where tokens are exchanged. */
TEST_WITH(a_stale_connection_for_tokens, setup_tokens, end_fixture)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, API "auth/token", &(tinkc_mock_answer){ .status = 400 }, &x->err);
    always(x, API "auth/token", token_answer("", 9999));
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 2);
    tinkc_future_free(f);
}

/* The mock, as a service in this process: credentials are not exchanged there. */
static tinkc_transport local_mock(fixture *x)
{
    tinkc_transport t = *tinkc_mock_transport(x->mock);
    t.flags |= TINKC_TRANSPORT_LOCAL;
    return t;
}

/* The outcome of a command, as a question for the identity shows it. */
static void run_command(fixture *x, tinkc_client *client, int32_t code, const char *message)
{
    tinkc_future *f = tinkc_identity_get(client, &x->err);
    assert_ok(&x->err);
    wait_until(tinkc_future_done(f));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    check_error(x, code, message);
    tinkc_future_free(f);
}

/* A service in this process needs no credential, and then there is nobody to name. */
TEST_WITH(nobody_without_a_credential, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_transport local = local_mock(x);
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_CREDENTIAL_CMD");
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .transport = &local }, &x->err);
    assert_ok(&x->err);
    run_command(x, client, TINKC_E_NO_IDENTITY, "a plain key does not say whose it is");
    tinkc_client_free(client);
}

TEST_WITH(commands_may_work_later, setup, end_fixture)
{
    fixture *x = *state;
    char folder[] = "/tmp/tinkc-corners-XXXXXX", command[300], mark[100];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(mark, sizeof mark, "%s/mark", folder);
    (void)snprintf(command, sizeof command, "test -e %s && echo tml-1 && exit; mkdir %s; exit 3", mark, mark);
    tinkc_transport local = local_mock(x);
    unsetenv("TINKER_API_KEY");
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .credential_cmd = command, .transport = &local }, &x->err);
    assert_ok(&x->err);
    run_command(x, client, TINKC_E_CREDENTIAL_CMD, "credential command: failed with exit status 3");
    run_command(x, client, TINKC_E_NO_IDENTITY, "a plain key does not say whose it is");
    tinkc_client_free(client);
    assert_int_equal(rmdir(mark), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A command gets every signal, in a group of its own, reads nothing and shows no words of its own. */
TEST_WITH(surroundings_of_commands, setup, end_fixture)
{
    fixture *x = *state;
    int words[2], before = dup(0), shown = dup(2);
    assert_int_equal(pipe(words), 0);
    assert_int_equal(write(words[1], "words\n", 6), 6);
    assert_int_equal(dup2(words[0], 0), 0);
    tinkc_transport local = local_mock(x);
    unsetenv("TINKER_API_KEY");
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .credential_cmd =
                                     "grep -q '^SigBlk:[^0-9a-f]*0000000000000000$' /proc/self/status || exit 4; "
                                     "test $(cut -d' ' -f5 /proc/$$/stat) = $$ || exit 5; read -r x && exit 6; "
                                     "test $(readlink /proc/$$/fd/2) = /dev/null || exit 7; echo tml-1",
                                 .transport = &local },
        &x->err);
    assert_ok(&x->err);
    assert_int_equal(dup2(words[1], 2), 2); /* not /dev/null already */
    tinkc_future *f = tinkc_identity_get(client, &x->err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &x->err);
    assert_int_equal(dup2(shown, 2), 2);
    check_error(x, TINKC_E_NO_IDENTITY, "a plain key does not say whose it is");
    tinkc_future_free(f);
    tinkc_client_free(client);
    close(shown);
    if (before >= 0) {
        assert_int_equal(dup2(before, 0), 0);
        close(before);
    }
    close(words[0]);
    close(words[1]);
}
