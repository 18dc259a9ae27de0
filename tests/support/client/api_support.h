/* api_support.h - what tests of the SDK over the mock share. */
#ifndef TESTS_API_SUPPORT_H
#define TESTS_API_SUPPORT_H

#include "support/patience.h"
#include "support/test_case.h"
#include "tinkc/sys/mock.h"
#include "tinkc/tinkc.h"

/* Fails the test with the error's own words. */
#define assert_ok(err) assert_ok_at(err, __FILE__, __LINE__)
void assert_ok_at(const tinkc_error *err, const char *file, int line);

/* A client on the mock's transport and clock, and on memory that is guarded (guarded.h); `more` (or NULL)
 * gives the other options. */
tinkc_client *mock_client(tinkc_mock *mock, const tinkc_client_options *more, tinkc_error *err);

/* A JWT with these claims, which are JSON, and this signature; and the answer of the service that gives it.
 * Until the next call of either. */
const char *token_of(const char *claims, const char *signature);
const char *token_answer_of(const char *claims, const char *signature);

/* Moves the mock's clock from timer to timer until f is complete. False if it is not after
 * limit_ms of the mock's time, or if nothing is left that could complete it. */
bool run_until_done(tinkc_mock *mock, tinkc_future *f, int64_t limit_ms);

/* Value of a header of a recorded request; NULL = none. */
const char *request_header(const tinkc_request *request, const char *name);
/* A path without a query stands for all of its queries, as in tinkc_mock_count. */
bool request_is_to(const tinkc_request *request, const char *path);
/* The i-th recorded request to this path. */
const tinkc_request *nth_request(tinkc_mock *mock, const char *path, size_t i);
int64_t nth_request_ms(tinkc_mock *mock, const char *path, size_t i);

#endif
