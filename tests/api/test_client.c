/* test_client.c - a client's life on the mock: start-up, session, heartbeat, close. */
#include <stdlib.h>
#include <string.h>

#include "support/api_support.h"

static void makes_no_request_before_it_must(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_mock_count(mock, NULL), 0);
    assert_true(tinkc_client_connect(client, 5000, &err));
    assert_int_equal(tinkc_mock_count(mock, NULL), 1);
    assert_string_equal(tinkc_mock_request(mock, 0)->path, "/api/v1/client/config");
    assert_string_equal((const char *)tinkc_mock_request(mock, 0)->body.data,
                        "{\"sdk_version\":\"0.25.0\"}");
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

static void session_comes_with_heartbeat(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    assert_string_equal(tinkc_client_session_id(client, 5000, &err), "mock-session-1");
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/create_session"), 1);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/client/dynamic_config"), 1);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(tinkc_mock_settle(mock, 5000, &err), 10000);
        tinkc_mock_advance(mock, 10000);
    }
    tinkc_mock_settle(mock, 5000, &err);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/session_heartbeat"), 6);
    assert_true(tinkc_client_close(client, 1000, &err));
    assert_ok(&err);
    assert_null(tinkc_client_session_id(client, 1000, &err));
    assert_int_equal(err.code, TINKC_E_CLOSED);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_no_request_before_it_must),
        cmocka_unit_test(session_comes_with_heartbeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
