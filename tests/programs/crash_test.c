/* crash_test.c - a server is killed again and again while three clients train, save and sample.
 *
 *     crash_test SERVE MODEL ROUNDS journal|snapshot|checkpoint [SEED]
 *
 * First each client's run is done once undisturbed: its losses and samples by step are the truth,
 * since the data of a step depends on its number alone. Then the same against a server that is
 * killed with SIGKILL at random moments and started again on the same store, ROUNDS times; every
 * third time the new one is killed too, while it starts. Clients behave as clients do: they send
 * the same request again until it is answered, and every other step they send the optimizer's step
 * behind the pass without waiting for it. They also overwrite a checkpoint, load what they saved,
 * save for samplers and delete that. Checked throughout:
 *
 *   - every loss and every sample has the bits of the undisturbed run, so nothing was lost half way
 *   - Adam's step counter is what it must be, so no seq_id was executed twice
 *   - every checkpoint that was reported saved is listed, complete, and of the right size
 *   - nothing incomplete is listed, and nothing that was reported deleted
 *   - with a journal no client ever sees that anything happened
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 3, MAX_STEPS = 4000, MAX_SAVES = 1000, EVERY = 5 };

static const char *serve, *model, *durability;
static char work[200], socket_path[240], store[240];
static int target;
static atomic_int finished_clients;
static atomic_int n_losses_checked, n_samples_checked, n_saves, n_rollbacks, n_kills;

#define FAIL(...)                                                                                                      \
    do {                                                                                                               \
        fprintf(stderr, "crash_test: FAILED: ");                                                                       \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, "\n");                                                                                         \
        exit(1);                                                                                                       \
    } while (0)

typedef struct truth {
    char loss[MAX_STEPS][40];
    char sample[MAX_STEPS / EVERY][400];
} truth;

static truth truths[CLIENTS];

typedef struct client {
    int number;
    bool undisturbed;
    char session[80], model_id[120], sampler[120];
    int n_models, n_samplers, sample_seq;
    int64_t seq;
    int k; /* steps done */
    struct {
        char name[160];
        int k;
    } saves[MAX_SAVES];
    int n_saves;
    char deleted[MAX_SAVES][160];
    int n_deleted;
} client;

static void sleep_ms(int ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };
    nanosleep(&t, NULL);
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- HTTP, as little as it takes ---- */

typedef struct reply {
    int status;
    char *text; /* head and body */
    const char *body;
    size_t len;
} reply;

static bool try_call(const char *method, const char *path, const char *body, reply *r)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%.100s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *r = (reply){ 0 };
    char *request = NULL;
    size_t cap = 0;
    int n = asprintf(&request,
                     "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
                     "%zu\r\nConnection: close\r\n\r\n%s",
                     method, path, strlen(body), body);
    bool ok = n > 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
              send(fd, request, (size_t)n, MSG_NOSIGNAL) == n;
    free(request);
    while (ok) {
        if (r->len + 65536 > cap)
            r->text = realloc(r->text, cap = r->len + 131072);
        ssize_t got = recv(fd, r->text + r->len, 65535, 0);
        ok = got >= 0;
        if (got <= 0)
            break;
        r->len += (size_t)got;
        r->text[r->len] = '\0';
    }
    close(fd);
    char *end = r->text && r->len ? strstr(r->text, "\r\n\r\n") : NULL;
    const char *length = end ? strstr(r->text, "Content-Length: ") : NULL;
    if (ok && end && strncmp(r->text, "HTTP/1.1 204", 12) != 0)
        ok = length && (size_t)strtol(length + 16, NULL, 10) == r->len - (size_t)(end + 4 - r->text);
    if (!ok || !end) {
        free(r->text);
        *r = (reply){ 0 };
        return false;
    }
    r->status = (int)strtol(r->text + 9, NULL, 10);
    r->body = end + 4;
    return true;
}

static _Thread_local int n_tries; /* of the last call */

/* Sends the same again until somebody answers. */
static reply call(const char *method, const char *path, const char *format, ...)
{
    char *body = NULL;
    va_list args;
    reply r;
    va_start(args, format);
    if (vasprintf(&body, format, args) < 0)
        FAIL("out of memory");
    va_end(args);
    int64_t give_up = now_ms() + 120000;
    n_tries = 1;
    while (!try_call(method, path, body, &r) || r.status == 503) {
        n_tries++;
        if (now_ms() > give_up)
            FAIL("%s %s: nobody answers", method, path);
        sleep_ms(20);
    }
    free(body);
    return r;
}

static void field(const reply *r, const char *key, char *out, size_t size)
{
    char mark[60];
    snprintf(mark, sizeof mark, "\"%s\":", key);
    const char *at = strstr(r->body, mark);
    if (!at)
        FAIL("no %s in %s", key, r->body);
    at += strlen(mark);
    bool quoted = *at == '"';
    snprintf(out, size, "%.*s", (int)strcspn(at + quoted, quoted ? "\"" : ",}]"), at + quoted);
}

/* ---- a client ---- */

enum { DONE, LOST };

/* Waits for a future. LOST: the service says that it, or what it stood on, is gone. */
static int wait_for(const client *c, const char *request_id, reply *r)
{
    for (;;) {
        *r = call("POST", "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", request_id);
        if (r->status == 200 && !strstr(r->body, "\"error\":"))
            return DONE;
        bool lost = r->status == 410 || strstr(r->body, "load a checkpoint");
        if (r->status != 408 && (!lost || c->undisturbed || strcmp(durability, "journal") == 0))
            FAIL("client %d, %s: %d %s", c->number, request_id, r->status, r->body);
        free(r->text);
        if (lost)
            return LOST;
    }
}

/* Submits a training request at the next seq_id. */
static void submit(client *c, const char *path, const char *parameters, char id[200])
{
    reply promise =
        call("POST", path, "{\"model_id\":\"%s\",\"seq_id\":%lld,%s}", c->model_id, (long long)++c->seq, parameters);
    if (promise.status != 200)
        FAIL("client %d, %s %lld: %d %s", c->number, path, (long long)c->seq, promise.status, promise.body);
    field(&promise, "request_id", id, 200);
    free(promise.text);
}

static int ask(client *c, const char *path, const char *parameters, reply *r)
{
    char id[200];
    submit(c, path, parameters, id);
    return wait_for(c, id, r);
}

static void new_model(client *c)
{
    char id[200];
    reply r = call("POST", "/api/v1/create_model",
                   "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":\"nano\","
                   "\"lora_config\":{\"rank\":%d,\"seed\":%d}}",
                   c->session, c->n_models++, 2 << c->number, c->number + 1);
    if (r.status != 200)
        FAIL("create_model: %d %s", r.status, r.body);
    field(&r, "request_id", id, sizeof id);
    field(&r, "model_id", c->model_id, sizeof c->model_id);
    free(r.text);
    if (wait_for(c, id, &r) == DONE)
        free(r.text);
    c->seq = 0;
    c->k = 0;
}

static void pass_text(const client *c, char *out, size_t size)
{
    int t[9];
    unsigned x = (unsigned)(c->k * 7919 + c->number * 104729 + 17);
    for (int i = 0; i < 9; i++) {
        x = x * 1664525u + 1013904223u;
        t[i] = (int)(x >> 16) % 4000 + 5;
    }
    snprintf(out, size,
             "\"forward_backward_input\":{\"loss_fn\":\"cross_entropy\",\"data\":[{\"model_input\":{"
             "\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[%d,%d,%d,%d,%d,%d,%d,%d]}]},"
             "\"loss_fn_inputs\":{\"target_tokens\":{\"dtype\":\"int64\",\"data\":[%d,%d,%d,%d,%d,"
             "%d,%d,%d]},\"weights\":{\"dtype\":\"float32\",\"data\":[1,1,1,1,1,1,1,1]}}}]}",
             t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]);
}

/* Goes back to the newest checkpoint that was reported saved, or begins again. */
static void roll_back(client *c)
{
    char text[300];
    reply r;
    atomic_fetch_add(&n_rollbacks, 1);
    for (;;) {
        if (c->n_saves == 0) {
            new_model(c);
            return;
        }
        const char *name = c->saves[c->n_saves - 1].name;
        snprintf(text, sizeof text, "\"path\":\"%s\",\"optimizer\":true", name);
        if (ask(c, "/api/v1/load_weights", text, &r) == DONE) {
            c->k = c->saves[c->n_saves - 1].k;
            free(r.text);
            return;
        }
    }
}

static const char step_text[] = "\"adam_params\":{\"learning_rate\":0.001,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-8,"
                                "\"weight_decay\":0.0,\"grad_clip_norm\":0.0}";

static bool train_step(client *c)
{
    char text[800], value[60], pass[200], step[200];
    bool together = c->k % 2;
    reply r;
    pass_text(c, text, sizeof text);
    submit(c, "/api/v1/forward_backward", text, pass);
    if (together)
        submit(c, "/api/v1/optim_step", step_text, step);
    if (wait_for(c, pass, &r) == LOST) {
        if (together && wait_for(c, step, &r) == DONE)
            free(r.text);
        return false;
    }
    field(&r, "loss:sum", value, sizeof value);
    free(r.text);
    if (c->undisturbed)
        snprintf(truths[c->number].loss[c->k], 40, "%.39s", value);
    else if (strcmp(truths[c->number].loss[c->k], value) != 0)
        FAIL("client %d, step %d: loss %s, undisturbed %s", c->number, c->k, value, truths[c->number].loss[c->k]);
    else
        atomic_fetch_add(&n_losses_checked, 1);
    if (!together)
        submit(c, "/api/v1/optim_step", step_text, step);
    if (wait_for(c, step, &r) == LOST)
        return false;
    field(&r, "optim/step", value, sizeof value);
    free(r.text);
    if (strtod(value, NULL) != c->k + 1)
        FAIL("client %d: Adam is at %s after step %d: a request was lost or ran twice", c->number, value, c->k + 1);
    c->k++;
    return true;
}

static bool save(client *c)
{
    char text[120], path[160];
    reply r;
    snprintf(text, sizeof text, "\"path\":\"k%d-%lld\"", c->k, (long long)c->seq + 1);
    if (ask(c, "/api/v1/save_weights", text, &r) == LOST)
        return false;
    field(&r, "path", path, sizeof path);
    free(r.text);
    if (c->n_saves < MAX_SAVES) {
        snprintf(c->saves[c->n_saves].name, 160, "%.159s", path);
        if (strlen(path) > 159)
            FAIL("path too long: %s", path);
        c->saves[c->n_saves++].k = c->k;
    }
    atomic_fetch_add(&n_saves, 1);
    return true;
}

/* One name again and again; then back to what was just saved, which changes nothing. */
static bool overwrite_and_load(client *c)
{
    char text[300];
    reply r;
    if (ask(c, "/api/v1/save_weights", "\"path\":\"latest\",\"overwrite\":true", &r) == LOST)
        return false;
    free(r.text);
    if (c->k % (2 * EVERY))
        return true;
    snprintf(text, sizeof text, "\"path\":\"tinker://%s/weights/latest\",\"optimizer\":true", c->model_id);
    if (ask(c, "/api/v1/load_weights", text, &r) == LOST)
        return false;
    free(r.text);
    return true;
}

static bool save_and_delete(client *c)
{
    char text[120], path[160], url[400];
    reply r;
    snprintf(text, sizeof text, "\"path\":\"s%d-%lld\"", c->k, (long long)c->seq + 1);
    if (ask(c, "/api/v1/save_weights_for_sampler", text, &r) == LOST)
        return false;
    field(&r, "path", path, sizeof path);
    free(r.text);
    snprintf(url, sizeof url, "/api/v1/training_runs/%s/checkpoints/sampler_weights/%s", c->model_id,
             strrchr(path, '/') + 1);
    r = call("DELETE", url, "%s", "");
    if (r.status != 204 && (r.status != 404 || n_tries == 1)) /* 404: heard before, not answered */
        FAIL("DELETE %s: %d %s", url, r.status, r.body);
    free(r.text);
    if (c->n_deleted < MAX_SAVES) {
        snprintf(c->deleted[c->n_deleted], 160, "%.159s", path);
        __atomic_add_fetch(&c->n_deleted, 1, __ATOMIC_RELEASE);
    }
    return true;
}

static bool sample(client *c)
{
    char text[120], id[200];
    reply r;
    snprintf(text, sizeof text, "\"sampling_session_seq_id\":%d", c->n_samplers++);
    if (ask(c, "/api/v1/save_weights_for_sampler", text, &r) == LOST)
        return false;
    field(&r, "sampling_session_id", c->sampler, sizeof c->sampler);
    free(r.text);
    for (int tries = 0;; tries++) {
        r = call("POST", "/api/v1/asample",
                 "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{\"type\":"
                 "\"encoded_text\",\"tokens\":[%d,7]}]},\"sampling_params\":{\"max_tokens\":6,"
                 "\"seed\":3}}",
                 c->sampler, c->sample_seq++, c->number + 10);
        if (r.status != 200 && strcmp(durability, "journal") == 0)
            FAIL("client %d: asample: %d %s", c->number, r.status, r.body);
        if (r.status != 200) { /* unsaved weights may be gone */
            free(r.text);
            return true;
        }
        field(&r, "request_id", id, sizeof id);
        free(r.text);
        do {
            r = call("POST", "/api/v1/retrieve_future", "{\"request_id\":\"%s\"}", id);
        } while (r.status == 408);
        if (r.status == 200 && !strstr(r.body, "\"error\":"))
            break;
        if (r.status != 410 && !strstr(r.body, "are gone"))
            FAIL("client %d: sample: %d %s", c->number, r.status, r.body);
        free(r.text);
        if (tries > 200)
            FAIL("client %d: no sample comes through", c->number);
    }
    const char *at = strstr(r.body, "\"sequences\":");
    char got[400];
    snprintf(got, sizeof got, "%.*s", (int)strcspn(at, "}"), at);
    char *expected = truths[c->number].sample[c->k / EVERY];
    if (c->undisturbed)
        memcpy(expected, got, sizeof got);
    else if (strcmp(expected, got) != 0)
        FAIL("client %d, step %d: sampled %s, undisturbed %s", c->number, c->k, got, expected);
    else
        atomic_fetch_add(&n_samples_checked, 1);
    free(r.text);
    return true;
}

static void *run_client(void *arg)
{
    client *c = arg;
    reply r = call("POST", "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"crash\"}");
    field(&r, "session_id", c->session, sizeof c->session);
    free(r.text);
    new_model(c);
    while (c->k < target) {
        bool fine =
            train_step(c) && (c->k % EVERY || (save(c) && sample(c) && save_and_delete(c) && overwrite_and_load(c)));
        if (!fine)
            roll_back(c);
    }
    atomic_fetch_add(&finished_clients, 1);
    return NULL;
}

/* ---- the server ---- */

static pid_t begin_server(int *out_fd)
{
    int out[2];
    if (pipe(out) != 0)
        FAIL("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it must not outlive us */
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        execl(serve, serve, "--model", model, "--name", "nano", "--unix", socket_path, "--store", store, "--durability",
              durability, "--set", "autosave_s", "1", "--set", "disk_reserve", "0", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    *out_fd = out[0];
    return pid;
}

static pid_t start_server(void)
{
    int fd;
    char line[200];
    pid_t pid = begin_server(&fd);
    FILE *f = fdopen(fd, "r");
    if (!f || !fgets(line, sizeof line, f) || strncmp(line, "ready", 5) != 0)
        FAIL("the server does not start");
    fclose(f);
    return pid;
}

static void stop_server(pid_t pid, int how)
{
    int status;
    kill(pid, how);
    waitpid(pid, &status, 0);
    if (how == SIGTERM && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        FAIL("the server did not end in good order: %d", status);
}

/* A server that is killed while it starts, or just after. */
static void start_in_vain(void)
{
    int fd;
    pid_t pid = begin_server(&fd);
    sleep_ms((int)(random() % 60));
    stop_server(pid, SIGKILL);
    close(fd);
}

static int64_t size_of(const char *folder, const char *name)
{
    char path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

/* What was reported saved is listed and whole; what is listed is whole. Called with the server up
 * and clients continuing. */
static void check_saves(client *clients)
{
    for (int i = 0; i < CLIENTS; i++) {
        client *c = &clients[i];
        int n = __atomic_load_n(&c->n_saves, __ATOMIC_ACQUIRE);
        int n_deleted = __atomic_load_n(&c->n_deleted, __ATOMIC_ACQUIRE);
        reply r = call("GET", "/api/v1/checkpoints?limit=1000", "%s", "");
        for (int s = 0; s < n; s++) {
            char folder[500], mark[200];
            const char *run = c->saves[s].name + 9, *name = strrchr(run, '/') + 1;
            snprintf(mark, sizeof mark, "\"%s\"", c->saves[s].name);
            if (!strstr(r.body, mark))
                FAIL("%s was reported saved and is not listed", c->saves[s].name);
            snprintf(folder, sizeof folder, "%s/runs/%.*s/weights/%s", store, (int)strcspn(run, "/"), run, name);
            if (size_of(folder, "adapter_model.safetensors") < 1000 ||
                size_of(folder, "optimizer.safetensors") < 2000 || size_of(folder, "adapter_config.json") < 10 ||
                size_of(folder, "train_state.json") < 10 || size_of(folder, "checkpoint_complete") != 0)
                FAIL("%s is not whole", c->saves[s].name);
        }
        for (int s = 0; s < n_deleted; s++) {
            char mark[200];
            snprintf(mark, sizeof mark, "\"%s\"", c->deleted[s]);
            if (strstr(r.body, mark))
                FAIL("%s was reported deleted and is listed", c->deleted[s]);
        }
        free(r.text);
    }
}

/* Loads every checkpoint that is listed into a model: whole means that it can be used. */
static void load_all(client *c)
{
    reply all = call("GET", "/api/v1/checkpoints?limit=1000", "%s", "");
    int n = 0;
    for (const char *at = all.body; (at = strstr(at, "\"tinker_path\":\"")); n++) {
        char path[200], text[300];
        reply r;
        at += strlen("\"tinker_path\":\"");
        snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "\""), at);
        if (strstr(path, "/sampler_weights/"))
            continue;
        reply info = call("POST", "/api/v1/weights_info", "{\"tinker_path\":\"%s\"}", path);
        char rank[20];
        field(&info, "lora_rank", rank, sizeof rank);
        free(info.text);
        if (strtol(rank, NULL, 10) != 2 << c->number)
            continue;
        snprintf(text, sizeof text, "\"path\":\"%s\",\"optimizer\":true", path);
        if (ask(c, "/api/v1/load_weights", text, &r) == DONE)
            free(r.text);
    }
    free(all.text);
    printf("client %d: %d checkpoints listed, all of its own could be loaded\n", c->number, n);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return fprintf(stderr, "usage: crash_test SERVE MODEL ROUNDS DURABILITY [SEED]\n"), 2;
    serve = argv[1];
    model = argv[2];
    int rounds = (int)strtol(argv[3], NULL, 10);
    durability = argv[4];
    unsigned seed = argc > 5 ? (unsigned)strtol(argv[5], NULL, 10) : (unsigned)time(NULL);
    printf("seed %u\n", seed);
    srandom(seed);
    target = 3 * rounds + 10 < MAX_STEPS ? 3 * rounds + 10 : MAX_STEPS;
    snprintf(work, sizeof work, "/tmp/tinkc-crash-XXXXXX");
    if (!mkdtemp(work))
        FAIL("mkdtemp");
    snprintf(socket_path, sizeof socket_path, "%s/s", work);

    static client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    for (int disturbed = 0; disturbed < 2; disturbed++) {
        memset(clients, 0, sizeof clients);
        atomic_store(&finished_clients, 0);
        snprintf(store, sizeof store, "%s/%s", work, disturbed ? "disturbed" : "calm");
        pid_t pid = start_server();
        for (int i = 0; i < CLIENTS; i++) {
            clients[i].number = i;
            clients[i].undisturbed = !disturbed;
            pthread_create(&threads[i], NULL, run_client, &clients[i]);
        }
        for (int i = 0; disturbed && i < rounds; i++) {
            sleep_ms(20 + (int)(random() % 500));
            stop_server(pid, SIGKILL);
            atomic_fetch_add(&n_kills, 1);
            if (random() % 3 == 0)
                start_in_vain();
            pid = start_server();
            check_saves(clients);
        }
        for (int i = 0; i < CLIENTS; i++)
            pthread_join(threads[i], NULL);
        check_saves(clients);
        if (disturbed)
            for (int i = 0; i < CLIENTS; i++)
                load_all(&clients[i]);
        stop_server(pid, SIGTERM);
    }
    printf("%s: %d kills, %d losses and %d samples with the bits of the undisturbed runs, %d saves, "
           "%d rollbacks\n",
           durability, n_kills, n_losses_checked, n_samples_checked, n_saves, n_rollbacks);
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command) != 0;
}
