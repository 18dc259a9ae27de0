/* two_tenants.c - one engine serves two teams, each with a key: neither sees what the other has.
 *
 * The server listens on a Unix socket in a private folder. Both teams could as well be other
 * programs, other languages, or other machines behind a TLS proxy: docs/deploy.md.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

static tinkc_client *connect_as(const char *key, const char *socket, tinkc_error *err)
{
    return tinkc_client_new(&(tinkc_client_options){ .api_key = key,
                                                     .base_url = "http://localhost",
                                                     .unix_socket = socket,
                                                     .telemetry = TINKC_TELEMETRY_OFF },
                            err);
}

/* Trains a little and saves it; *path becomes where. */
static void train(tinkc_client *client, const char *who, tinkc_text *path, tinkc_error *err)
{
    static const int32_t ids[] = { 5, 6, 7, 40, 41, 42 };
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_trainer *trainer =
        tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "nano", .rank = 4 }, err);
    tinkc_batch *batch = tinkc_batch_new(client, err);
    tinkc_batch_add_sft(batch, ids, 6, 2, err);
    tinkc_future *grads = tinkc_forward_backward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
    tinkc_future *moved = tinkc_optim_step(trainer, &adam, err);
    tinkc_future *saved = tinkc_trainer_save_for_sampler(trainer, "final", NULL, err);
    const char *where = tinkc_future_path(saved, TINKC_FOREVER, err);
    for (const char *c = where ? where : ""; *c; c++)
        tinkc_text_append(path, c, 1, err);
    if (where)
        printf("%s saved its checkpoint\n", who);
    tinkc_future_free(saved);
    tinkc_future_free(moved);
    tinkc_future_free(grads);
    tinkc_batch_free(batch);
    tinkc_trainer_free(trainer);
}

static size_t count_checkpoints(tinkc_client *client, tinkc_error *err)
{
    size_t n = 0;
    tinkc_checkpoints *all = tinkc_checkpoints_list(client, NULL, err);
    while (tinkc_checkpoints_next(all, err))
        n++;
    tinkc_checkpoints_free(all);
    return n;
}

/* Whether this client may sample from the checkpoint. */
static bool may_use(tinkc_client *client, const char *path, const char *who)
{
    tinkc_error refused = { 0 };
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .model_path = path }, &refused);
    bool opened = sampler != NULL;
    tinkc_sampler_free(sampler);
    printf("%s %s it%s%s\n", who, opened ? "can use" : "cannot use", opened ? "" : ": ",
           opened ? "" : tinkc_code_name(refused.code));
    return opened;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/two_tenants.XXXXXX", socket[64], store[64];
    const char *const keys[] = { "tml-red requests=6000", "tml-blue tokens=1000000", NULL };
    tinkc_error err = { 0 };
    tinkc_text path = { 0 };
    if (!mkdtemp(folder))
        return 1;
    (void)snprintf(socket, sizeof socket, "%s/socket", folder);
    (void)snprintf(store, sizeof store, "%s/store", folder);

    tinkc_engine *engine = tinkc_engine_new(&(tinkc_engine_options){ .store = store }, &err);
    tinkc_engine_add_model(engine, "nano", argc > 1 ? argv[1] : "models/nano", &err);
    tinkc_server *server = tinkc_engine_serve(
        engine, &(tinkc_serve_options){ .unix_socket = socket, .api_keys = keys }, &err);
    tinkc_client *red = connect_as("tml-red", socket, &err);
    tinkc_client *blue = connect_as("tml-blue", socket, &err);

    train(red, "red", &path, &err);
    printf("red has %zu checkpoint, ", count_checkpoints(red, &err));
    printf("blue has %zu\n", count_checkpoints(blue, &err));
    bool right = !err.code && may_use(red, path.data, "red") && !may_use(blue, path.data, "blue");

    tinkc_client_free(blue);
    tinkc_client_free(red);
    tinkc_server_stop(server, 1000, &err);
    tinkc_server_free(server);
    tinkc_engine_free(engine);
    tinkc_text_free(&path);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        right = false;
    if (err.code)
        fprintf(stderr, "two_tenants: %s (%s)\n", err.message, tinkc_code_name(err.code));
    return !right || err.code != 0;
}
