/* checkpoints.c - the life of a checkpoint: saved, listed, kept for a while, fetched, deleted.
 *
 *     checkpoints DIR [MODEL_FOLDER]     DIR gets the store and the downloaded files
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

/* A run with a state to continue from and weights to sample from. */
static void make_some(tinkc_client *client, tinkc_error *err)
{
    tinkc_trainer *trainer =
        tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "nano", .rank = 4 }, err);
    tinkc_save_options week = { .ttl_s = 7 * 24 * 3600 };
    tinkc_future *state = tinkc_trainer_save(trainer, "000010", &week, err);
    tinkc_future *final = tinkc_trainer_save_for_sampler(trainer, "final", NULL, err);
    tinkc_future_path(state, TINKC_FOREVER, err);
    tinkc_future_path(final, TINKC_FOREVER, err);
    tinkc_future_free(final);
    tinkc_future_free(state);
    tinkc_trainer_free(trainer);
}

/* Prints everything; *newest becomes the path of the newest of this kind. How many there are. */
static size_t list(tinkc_client *client, int32_t kind, tinkc_text *newest, tinkc_error *err)
{
    size_t n = 0;
    int64_t latest = INT64_MIN;
    tinkc_checkpoints *all = tinkc_checkpoints_list(client, NULL, err);
    for (const tinkc_checkpoint *c; (c = tinkc_checkpoints_next(all, err)); n++) {
        printf("%s  %" PRId64 " bytes, expires %s\n", c->id, c->size_bytes,
               c->expires ? c->expires : "never");
        if (c->kind == kind && c->created_us > latest) {
            latest = c->created_us;
            newest->len = 0;
            tinkc_text_append(newest, c->path, strlen(c->path), err);
        }
    }
    tinkc_checkpoints_free(all);
    return n;
}

/* Most changes have no result but their success. */
static void finish(tinkc_future *f, const char *what, tinkc_error *err)
{
    if (tinkc_future_wait(f, TINKC_FOREVER, err))
        printf("%s\n", what);
    tinkc_future_free(f);
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
        printf("fetched %s  %s\n", tinkc_download_at(d, i)->name, tinkc_download_at(d, i)->sha256);
    tinkc_future_free(f);
}

int main(int argc, char **argv)
{
    char store[4096];
    tinkc_error err = { 0 };
    tinkc_text state = { 0 }, weights = { 0 };
    if (argc < 2) {
        fputs("usage: checkpoints DIR [MODEL_FOLDER]\n", stderr);
        return 2;
    }
    (void)snprintf(store, sizeof store, "%s/store", argv[1]);
    tinkc_engine *engine = tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err);
    tinkc_engine_add_model(engine, "nano", argc > 2 ? argv[2] : "models/nano", &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);

    make_some(client, &err);
    list(client, TINKC_CHECKPOINT_SAMPLER, &weights, &err);
    list(client, TINKC_CHECKPOINT_TRAINING, &state, &err);
    fetch(client, weights.data, argv[1], &err);
    finish(tinkc_checkpoint_clear_ttl(client, state.data, &err), "kept for good", &err);
    finish(tinkc_checkpoint_delete(client, weights.data, &err), "deleted", &err);
    size_t left = list(client, TINKC_CHECKPOINT_TRAINING, &state, &err);

    tinkc_text_free(&weights);
    tinkc_text_free(&state);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    if (err.code)
        fprintf(stderr, "checkpoints: %s\n", err.message);
    return err.code != 0 || left != 1;
}
