/* test_refused_options.c - options of a client that are refused, each in its own words, and names of machines. */
#include "client/core/options.h"
#include "support/client/api_support.h"

static void refused(const tinkc_client_options *more, const char *message)
{
    tinkc_error err = { 0 };
    tinkc_client_options o = *more;
    o.api_key = "tml-key";
    assert_null(tinkc_client_new(&o, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_string_equal(err.message, message);
}

TEST(headers_that_no_header_can_be)
{
    static const char *const rows[][2] = { { "", "v" },    { "a b", "v" },     { "a:", "v" },  { "a\n", "v" },
                                           { "a\r", "v" }, { "a", "v\nb: c" }, { "a", "v\rb" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const pairs[] = { "good", "one", rows[i][0], rows[i][1], NULL };
        refused(&(tinkc_client_options){ .headers = pairs }, "headers: a name or value that no header can have");
    }
}

/* The query of all requests has 64 KiB at most. */
TEST(queries_have_a_length)
{
    enum { MOST = 64 * 1024 };
    static char text[MOST];
    memset(text, 'q', MOST);
    const char *const pairs[] = { "a", text, NULL }; /* a=qqq */
    text[MOST - 2] = '\0';
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .api_key = "tml-key", .query = pairs }, &err);
    assert_ok(&err);
    tinkc_client_free(client);
    text[MOST - 2] = 'q';
    text[MOST - 1] = '\0';
    assert_null(mock_client(mock, &(tinkc_client_options){ .api_key = "tml-key", .query = pairs }, &err));
    assert_true(err.code);
    tinkc_mock_free(mock);
}
