/* client_cost.c - what the client costs: samples by the thousand, and the smallest useful program.
 *
 *     client serve            a service that answers at once; prints its URL, ends with stdin
 *     client sample URL N     N samples in flight at the same time, all of them waited for
 *     client start URL        makes a client, lists the runs, ends
 *
 * Each prints one line of JSON about itself: processor time, memory, what came back. client_cost.sh runs
 * them against each other and puts the Python SDK beside them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "support/client/stub_server.h"
#include "tinkc/tinkc.h"
#include "wire/sample_message.h"

enum { PROMPT_TOKENS = 100, ANSWER_TOKENS = 50, POLL_MS = 20 };

/* ---- the service ---- */

static tkc_buf sample_result;

static void make_result(void)
{
    static int32_t tokens[ANSWER_TOKENS];
    static float logprobs[ANSWER_TOKENS];
    tinkc_error err = { 0 };
    for (int i = 0; i < ANSWER_TOKENS; i++) {
        tokens[i] = 1000 + i;
        logprobs[i] = -0.5f;
    }
    tinkc_sequence sequence = { .tokens = { tokens, ANSWER_TOKENS },
                                .logprobs = { logprobs, ANSWER_TOKENS } };
    tkc_sample_response response = { .sequences = { &sequence, 1 } };
    tkc_buf_init(&sample_result, NULL, TKC_BUF_NO_MAX);
    if (!tkc_sample_response_to_pb(&response, &sample_result, &err))
        exit(1);
}

static void serve(const stub_request *r, stub_answer *a, void *user)
{
    static char text[200];
    (void)user;
    a->headers = "Content-Type: application/json\r\n";
    if (strstr(r->path, "/asample")) {
        snprintf(text, sizeof text, "{\"request_id\":\"r-%llu\",\"model_id\":null}",
                 (unsigned long long)r->index);
        a->body = text;
    } else if (strstr(r->path, "/retrieve_future")) {
        a->headers = "Content-Type: application/x-protobuf\r\n";
        a->body = sample_result.data;
        a->body_len = sample_result.len;
        a->delay_ms = POLL_MS;
    } else if (strstr(r->path, "/client/config") || strstr(r->path, "/dynamic_config") ||
               strstr(r->path, "/session_heartbeat")) {
        a->body = "{}";
    } else if (strstr(r->path, "/create_session")) {
        a->body = "{\"session_id\":\"bench\"}";
    } else if (strstr(r->path, "/create_sampling_session")) {
        a->body = "{\"sampling_session_id\":\"bench:sample:0\"}";
    } else if (strstr(r->path, "/training_runs")) {
        a->body = "{\"training_runs\":[{\"training_run_id\":\"R\",\"base_model\":\"B\","
                  "\"model_owner\":\"o\",\"is_lora\":true,\"last_request_time\":"
                  "\"2026-01-01T00:00:00Z\"}],\"cursor\":{\"offset\":0,\"limit\":100,"
                  "\"total_count\":1}}";
    } else if (strstr(r->path, "/telemetry")) {
        a->body = "{\"status\":\"accepted\"}";
    } else {
        a->status = 404;
    }
}

static int run_server(void)
{
    char line[16];
    make_result();
    stub_server *s = stub_start(NULL, serve, NULL);
    printf("%s\n", stub_url(s));
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        ;
    fprintf(stderr, "server: %llu requests on %llu connections, at most %llu at once\n",
            (unsigned long long)stub_requests(s), (unsigned long long)stub_connections(s),
            (unsigned long long)stub_most_open(s));
    stub_stop(s);
    tkc_buf_free(&sample_result);
    return 0;
}

/* ---- measuring ---- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec / 1e6 +
           (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec / 1e6;
}

static double peak_mb(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss / 1024.0;
}

static int fail(const char *what, const tinkc_error *err)
{
    char line[600];
    tinkc_error_line(err, line, sizeof line);
    fprintf(stderr, "%s: %s\n", what, line);
    return 1;
}

/* ---- samples ---- */

static tinkc_client *new_client(const char *url, tinkc_error *err)
{
    return tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-bench",
                                                     .base_url = url,
                                                     .proxy = "",
                                                     .telemetry = TINKC_TELEMETRY_OFF },
                            err);
}

static int run_samples(const char *url, size_t n)
{
    tinkc_error err = { 0 };
    int32_t prompt[PROMPT_TOKENS];
    size_t good = 0;
    for (int i = 0; i < PROMPT_TOKENS; i++)
        prompt[i] = 2000 + i;
    tinkc_client *client = new_client(url, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "bench/model" }, &err);
    if (err.code)
        return fail("set-up", &err);
    tinkc_sampling params = TINKC_SAMPLING_INIT;
    params.max_tokens = ANSWER_TOKENS;
    tinkc_future **all = calloc(n, sizeof *all);
    double cpu = cpu_s(), begun = now_s();
    for (size_t i = 0; i < n; i++)
        all[i] = tinkc_sample(sampler, prompt, PROMPT_TOKENS, 1, &params, &err);
    double submitted = now_s();
    if (err.code)
        return fail("submit", &err);
    for (size_t i = 0; i < n; i++) {
        const tinkc_samples *s = tinkc_future_samples(all[i], 120 * 1000, &err);
        good += s && tinkc_samples_at(s, 0)->tokens.len == ANSWER_TOKENS;
        tinkc_future_free(all[i]);
        if (err.code)
            return fail("wait", &err);
    }
    double ended = now_s();
    cpu = cpu_s() - cpu;
    printf("{\"sdk\":\"tinkc\",\"samples\":%zu,\"complete\":%zu,\"seconds\":%.3f,"
           "\"submit_seconds\":%.3f,\"cpu_us_each\":%.1f,\"peak_mb\":%.1f}\n",
           n, good, ended - begun, submitted - begun, cpu * 1e6 / (double)n, peak_mb());
    free(all);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    return good == n ? 0 : 1;
}

/* ---- the smallest program ---- */

static int run_start(const char *url)
{
    tinkc_error err = { 0 };
    double begun = now_s();
    size_t n = 0;
    tinkc_client *client = new_client(url, &err);
    tinkc_runs *runs = tinkc_runs_list(client, NULL, &err);
    while (tinkc_runs_next(runs, &err))
        n++;
    if (err.code)
        return fail("list", &err);
    double ended = now_s();
    tinkc_runs_free(runs);
    tinkc_client_free(client);
    printf("{\"sdk\":\"tinkc\",\"runs\":%zu,\"ms\":%.2f,\"cpu_ms\":%.2f,\"peak_mb\":%.1f}\n", n,
           (ended - begun) * 1000.0, cpu_s() * 1000.0, peak_mb());
    return n == 1 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "serve") == 0)
        return run_server();
    if (argc == 3 && strcmp(argv[1], "start") == 0)
        return run_start(argv[2]);
    if (argc == 4 && strcmp(argv[1], "sample") == 0)
        return run_samples(argv[2], (size_t)strtoull(argv[3], NULL, 10));
    fprintf(stderr, "usage: client serve | client sample URL N | client start URL\n");
    return 2;
}
