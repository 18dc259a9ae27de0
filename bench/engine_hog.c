/* engine_hog.c - what a small request waits while a large one runs.
 *
 *     build/bench/engine_hog [MODEL [THREADS]]
 *
 * Prints percentiles of requests for four tokens: alone; beside one request for 1024 long samples; beside
 * a training pass of 80,000 tokens and eleven requests for 64 long samples; beside that pass alone. What
 * the engine aims at: medians within 5 times that of the request alone, and with the pass one microbatch
 * more (0.6 s, or one example where that takes longer), however long the pass is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

enum { MOST = 60, FEW = 12, MICROBATCH_MS = 600 };

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

static double measure(tinkc_sampler *sampler, int n, const char *what, tinkc_error *err)
{
    const int32_t prompt[] = { 5, 6, 7, 8, 9, 10, 11, 12 };
    double ms[MOST];
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 4;
    for (int i = 0; i < n && !err->code; i++) {
        double start = now_ms();
        tinkc_future *f = tinkc_sample(sampler, prompt, 8, 1, &how, err);
        (void)tinkc_future_samples(f, 600000, err);
        tinkc_future_free(f);
        ms[i] = now_ms() - start;
    }
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    printf("%-40s p50 %8.2f ms   p90 %8.2f ms   max %8.2f ms\n", what, ms[n / 2], ms[n * 9 / 10],
           ms[n - 1]);
    return ms[n / 2];
}

enum { DATUMS = 40, LENGTH = 2000, HOGS = 11 };

static tinkc_future *sample_many(tinkc_sampler *sampler, size_t n, tinkc_error *err)
{
    const int32_t prompt[] = { 5, 6, 7, 8 }, never[] = { 0 };
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 400;
    how.stop_tokens = never;
    how.n_stop_tokens = 1;
    return tinkc_sample(sampler, prompt, 4, n, &how, err);
}

static tinkc_future *train_long(tinkc_client *client, tinkc_trainer *trainer, tinkc_error *err)
{
    static int32_t ids[LENGTH];
    tinkc_batch *batch = tinkc_batch_new(client, err);
    for (int i = 0; i < LENGTH; i++)
        ids[i] = 1 + i % 100;
    for (int i = 0; i < DATUMS; i++)
        tinkc_batch_add_sft(batch, ids, LENGTH, 0, err);
    tinkc_future *f = tinkc_forward_backward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
    tinkc_batch_free(batch);
    return f;
}

static void a_second(void)
{
    struct timespec second = { 1, 0 };
    nanosleep(&second, NULL); /* until all have their rows */
}

static void end(tinkc_future *f)
{
    tinkc_future_cancel(f);
    tinkc_future_free(f);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    const int threads = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    tinkc_engine *engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = threads }, &err);
    tinkc_engine_add_model(engine, "m", argc > 1 ? argv[1] : "models/nano", &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "m" }, &err);
    tinkc_trainer *trainer =
        tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "m", .rank = 8 }, &err);
    double idle = measure(sampler, MOST, "4 tokens, alone", &err);
    tinkc_future *hog = sample_many(sampler, 1024, &err), *hogs[HOGS];
    a_second();
    double beside = measure(sampler, MOST, "4 tokens, beside 1024 x 400", &err);
    printf("    %.1f times alone (aim: below 5)\n", beside / idle);
    end(hog);
    for (int i = 0; i < HOGS; i++)
        hogs[i] = sample_many(sampler, 64, &err);
    tinkc_future *pass = train_long(client, trainer, &err);
    a_second();
    double all = measure(sampler, FEW, "beside a pass of 40 x 2000, 11 x 64 x 400", &err);
    printf("    %.1f ms (aim: below %.1f: 5 times alone and a microbatch); the pass %s\n", all,
           5 * idle + MICROBATCH_MS, tinkc_future_done(pass) ? "had ended" : "was running");
    for (int i = 0; i < HOGS; i++)
        end(hogs[i]);
    measure(sampler, FEW, "beside the pass alone", &err);
    printf("    the pass %s\n", tinkc_future_done(pass) ? "had ended" : "was running");
    end(pass);
    if (err.code)
        fprintf(stderr, "%s\n", err.message);
    tinkc_trainer_free(trainer);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    return err.code != 0;
}
