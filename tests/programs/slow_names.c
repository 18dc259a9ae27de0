/* slow_names.c - a client whose names take long to resolve: run by tests/project/test_slow_names.sh
 * with a resolver that takes a minute. The connect limit must hold all the same, and so must a
 * cancel: neither may wait for the resolver.
 */
#include <stdio.h>
#include <time.h>

#include "tinkc/tinkc.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int judge(const char *what, double begun, const tinkc_error *err, int32_t code)
{
    double took = now_s() - begun;
    printf("%s: %.2f s, %s\n", what, took, err->message);
    return took > 30.0 || err->code != code;
}

int main(void)
{
    tinkc_error err = { 0 };
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-test",
                                                                     .base_url = "http://slow.example",
                                                                     .proxy = "",
                                                                     .no_retries = true,
                                                                     .connect_timeout_ms = 300,
                                                                     .telemetry = TINKC_TELEMETRY_OFF },
                                            &err);
    double begun = now_s();
    tinkc_client_connect(client, 20000, &err);
    int bad = judge("connect", begun, &err, TINKC_E_NET_TIMEOUT);
    err = (tinkc_error){ 0 };
    tinkc_future *f = tinkc_run_get(client, "x", TINKC_OWNED, &err);
    tinkc_future_wait(f, 100, NULL); /* until the resolver has it */
    begun = now_s();
    tinkc_future_cancel(f);
    tinkc_future_wait(f, 20000, &err);
    bad |= judge("cancel", begun, &err, TINKC_E_CANCELLED);
    tinkc_future_free(f);
    begun = now_s();
    tinkc_client_free(client);
    return bad || now_s() - begun > 30.0;
}
