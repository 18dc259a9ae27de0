/* tinkc_serve.c - a small server for tests: an engine with one model behind a port.
 *
 *     build/tests/tinkc_serve --model DIR [--name NAME] [--port N] [--store DIR] [--unix PATH]
 *         [--durability checkpoint|snapshot|journal] [--key KEY]... [--set NAME VALUE]... [--log]
 *
 * Prints "ready URL" and serves until SIGTERM or SIGINT, then ends in good order.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinkc/engine.h>

static void log_line(int32_t level, const char *line, void *user)
{
    (void)level, (void)user;
    fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    tinkc_engine_options options = { .log = log_line };
    tinkc_serve_options serve = { .metrics = true };
    const char *keys[16] = { NULL }, *settings[64] = { NULL };
    size_t n_keys = 0, n_settings = 0;
    const char *models[8], *names[8];
    size_t n_models = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--log") == 0) {
            serve.access_log = log_line;
            continue;
        }
        if (strcmp(argv[i], "--strict") == 0) {
            options.strict = true;
            continue;
        }
        i++;
        if (strcmp(argv[i - 1], "--model") == 0 && n_models < 8)
            names[n_models] = NULL, models[n_models++] = value;
        else if (strcmp(argv[i - 1], "--name") == 0 && n_models)
            names[n_models - 1] = value;
        else if (strcmp(argv[i - 1], "--port") == 0)
            serve.port = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--host") == 0)
            serve.host = value;
        else if (strcmp(argv[i - 1], "--unix") == 0)
            serve.unix_socket = value;
        else if (strcmp(argv[i - 1], "--store") == 0)
            options.store = value;
        else if (strcmp(argv[i - 1], "--threads") == 0)
            options.threads = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(argv[i - 1], "--durability") == 0)
            options.durability = value[0] == 'c' ? 1 : value[0] == 's' ? 2 : 3;
        else if (strcmp(argv[i - 1], "--key") == 0 && n_keys < 15)
            keys[n_keys++] = value;
        else if (strcmp(argv[i - 1], "--set") == 0 && n_settings < 60 && i + 1 < argc)
            settings[n_settings++] = value, settings[n_settings++] = argv[++i];
        else {
            fprintf(stderr, "tinkc_serve: what is %s?\n", argv[i - 1]);
            return 2;
        }
    }
    serve.api_keys = n_keys ? keys : NULL;
    options.settings = settings;

    sigset_t stop;
    int signal;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);

    tinkc_engine *engine = tinkc_engine_new(&options, &err);
    for (size_t i = 0; i < n_models; i++)
        tinkc_engine_add_model(engine, names[i], models[i], &err);
    tinkc_server *server = tinkc_engine_serve(engine, &serve, &err);
    if (err.code) {
        fprintf(stderr, "tinkc_serve: %s\n", err.message);
        tinkc_server_free(server);
        tinkc_engine_free(engine);
        return 1;
    }
    printf("ready %s\n", tinkc_server_url(server));
    fflush(stdout);
    sigwait(&stop, &signal);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL); /* a second one ends us at once */
    tinkc_server_stop(server, 5000, &err);
    tinkc_server_free(server);
    tinkc_engine_free(engine);
    return 0;
}
