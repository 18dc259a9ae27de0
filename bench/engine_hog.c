/* engine_hog.c - what a small request waits while a large one runs.
 *
 *     build/bench/engine_hog [MODEL]
 *
 * Prints percentiles of requests for four tokens, alone and beside one request for 1024 long
 * samples, and their ratio. The bound that the engine aims at: the ratio of the medians stays below
 * 5.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

enum { N = 60 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double measure(tinkc_sampler *sampler, const char *what, tinkc_error *err)
{
    const int32_t prompt[] = { 5, 6, 7, 8, 9, 10, 11, 12 };
    double ms[N];
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 4;
    for (int i = 0; i < N && !err->code; i++) {
        double start = now_ms();
        tinkc_future *f = tinkc_sample(sampler, prompt, 8, 1, &how, err);
        (void)tinkc_future_samples(f, 600000, err);
        tinkc_future_free(f);
        ms[i] = now_ms() - start;
    }
    qsort(ms, N, sizeof *ms, by_value);
    printf("%-36s p50 %8.2f ms   p90 %8.2f ms   max %8.2f ms\n", what, ms[N / 2], ms[N * 9 / 10],
           ms[N - 1]);
    return ms[N / 2];
}

int main(int argc, char **argv)
{
    const int32_t prompt[] = { 5, 6, 7, 8 };
    tinkc_error err = { 0 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "m", argc > 1 ? argv[1] : "models/nano", &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "m" }, &err);
    double idle = measure(sampler, "4 tokens, alone", &err);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    const int32_t never[] = { 0 };
    how.max_tokens = 400;
    how.stop_tokens = never;
    how.n_stop_tokens = 1;
    tinkc_future *hog = tinkc_sample(sampler, prompt, 4, 1024, &how, &err);
    struct timespec second = { 1, 0 };
    nanosleep(&second, NULL); /* until it has all its rows */
    double beside = measure(sampler, "4 tokens, beside 1024 x 400", &err);
    printf("ratio of the medians: %.2f (aim: below 5)\n", beside / idle);
    tinkc_future_cancel(hog);
    tinkc_future_free(hog);
    if (err.code)
        fprintf(stderr, "%s\n", err.message);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    return err.code != 0;
}
