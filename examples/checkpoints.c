/* checkpoints.c - what lies at the service: runs, their checkpoints, and the newest one fetched.
 *
 *     checkpoints [DIR]      with $TINKER_API_KEY; downloads the newest sampler checkpoint into DIR
 *     checkpoints --mock     on the mock that comes with the library, after a save; downloads
 * nothing
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tinkc/sys/mock.h>
#include <tinkc/tinkc.h>

/* Something to list: a run with one checkpoint. */
static void make_one(tinkc_client *client, tinkc_error *err)
{
    tinkc_trainer *trainer = tinkc_trainer_new(
        client, &(tinkc_lora_options){ .base_model = "mock/nano", .rank = 8 }, err);
    tinkc_future *saved = tinkc_trainer_save_for_sampler(trainer, "final", NULL, err);
    tinkc_future_path(saved, TINKC_FOREVER, err);
    tinkc_future_free(saved);
    tinkc_trainer_free(trainer);
}

/* Prints everything; *newest becomes the path of the newest sampler checkpoint. */
static void list(tinkc_client *client, tinkc_text *newest, tinkc_error *err)
{
    tinkc_runs *runs = tinkc_runs_list(client, NULL, err);
    const tinkc_run *run;
    while ((run = tinkc_runs_next(runs, err)))
        printf("%s  %s, rank %" PRId32 "\n", run->id, run->base_model, run->lora_rank);
    tinkc_runs_free(runs);

    int64_t latest = INT64_MIN;
    tinkc_checkpoints *all = tinkc_checkpoints_list(client, NULL, err);
    const tinkc_checkpoint *c;
    while ((c = tinkc_checkpoints_next(all, err))) {
        printf("%s  %" PRId64 " bytes, %s\n", c->path, c->size_bytes, c->created);
        if (c->kind == TINKC_CHECKPOINT_SAMPLER && c->created_us > latest) {
            latest = c->created_us;
            newest->len = 0;
            tinkc_text_append(newest, c->path, strlen(c->path), err);
        }
    }
    tinkc_checkpoints_free(all);
}

static void fetch(tinkc_client *client, const char *path, const char *dir, tinkc_error *err)
{
    tinkc_future *f = tinkc_checkpoint_download(
        client, path, &(tinkc_download_options){ .dir = dir, .portable_names = true }, err);
    while (f && !tinkc_future_wait(f, 500, err) && err->code == TINKC_E_TIMEOUT) {
        int64_t done, total;
        tinkc_error_clear(err);
        tinkc_future_progress(f, &done, &total);
        printf("%" PRId64 " of %" PRId64 " bytes\n", done, total);
    }
    const tinkc_download *d = tinkc_future_download(f, 0, err);
    for (size_t i = 0; i < tinkc_download_count(d); i++)
        printf("%s/%s  %s\n", tinkc_download_target(d), tinkc_download_at(d, i)->name,
               tinkc_download_at(d, i)->sha256);
    tinkc_future_free(f);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    bool on_mock = argc > 1 && strcmp(argv[1], "--mock") == 0;
    tinkc_mock *mock = on_mock ? tinkc_mock_new(TINKC_MOCK_SERVICE, &err) : NULL;
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = mock ? tinkc_mock_transport(mock) : NULL }, &err);
    tinkc_text newest = { 0 };
    if (on_mock)
        make_one(client, &err);
    list(client, &newest, &err);
    if (!on_mock && newest.len)
        fetch(client, newest.data, argc > 1 ? argv[1] : ".", &err);
    tinkc_text_free(&newest);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    if (err.code)
        fprintf(stderr, "checkpoints: %s\n", err.message);
    return err.code ? 1 : 0;
}
