/* test_handlers_hub.c - a server as the hub of its own models: what it offers, which files it gives and to
 * whom, and a client on another machine, which has neither the model's folder nor a hub. */
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "support/client/api_support.h"
#include "support/service/raw_http.h"
#include "tinkc/engine.h"
#include "tinkc/hub.h"
#include "tinkc/tokenizer.h"

static const char *const keys[] = { "tml-key", NULL };
static const char *const offered[] = { "org/served", NULL };
static tinkc_engine *engine;
static tinkc_server *server;
static char home[64];

/* The same model under two names; the server offers one. */
static int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    snprintf(home, sizeof home, "/tmp/tinkc-served-XXXXXX");
    assert_non_null(mkdtemp(home));
    setenv("HOME", home, 1);
    setenv("XDG_CACHE_HOME", home, 1);
    setenv("HF_HOME", home, 1);
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1); /* nobody is there */
    setenv("HF_TOKEN", "hf-private", 1);
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    assert_true(tinkc_engine_add_model(engine, "earlier", "models/nano", &err));
    assert_true(tinkc_engine_add_model(engine, "org/served", "models/nano", &err));
    server =
        tinkc_engine_serve(engine, &(tinkc_serve_options){ .api_keys = keys, .openai = true, .models = offered }, &err);
    assert_ok(&err);
    return 0;
}

static int teardown(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    tinkc_server_free(server);
    tinkc_engine_free(engine);
    return tkc_remove_tree(home, &err) ? 0 : -1;
}

static tkc_buf get(const char *method, const char *path, const char *key)
{
    char head[600];
    snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nConnection: close%s%s", method, path,
             key ? "\r\nAuthorization: Bearer " : "", key ? key : "");
    int fd = raw_dial(tinkc_server_url(server));
    tkc_buf out = raw_talk(fd, "127.0.0.1", head, "", 0);
    close(fd);
    tinkc_error err = { 0 };
    tkc_buf_terminate(&out, &err);
    return out;
}

static void answers(const char *path, const char *key, int status, const char *part)
{
    char line[32];
    tkc_buf out = get("GET", path, key);
    snprintf(line, sizeof line, "HTTP/1.1 %d ", status);
    if (strncmp(out.data, line, strlen(line)) != 0 || !strstr(out.data, part))
        fail_msg("%s: %.300s", path, out.data);
    tkc_buf_free(&out);
}

/* Files by exact name, of the offered model, to those with a key; never weights, whatever the path
 * looks like. */
TEST(which_files_are_given)
{
#define FILES "/org/served/resolve/main/"
    answers(FILES "tokenizer.json", "tml-key", 200, "\"model\"");
    answers(FILES "config.json", "tml-key", 200, "\"architectures\"");
    answers("/org%2Fserved/resolve/main/config.json", "tml-key", 200, "\"architectures\"");
    answers(FILES "config.json", NULL, 401, "unauthorized");
    answers(FILES "config.json", "tml-other", 401, "unauthorized");
    answers("/api/models/org/served", NULL, 401, "unauthorized");
    answers("/earlier/resolve/main/config.json", "tml-key", 404, "X-Error-Code: RepoNotFound");
    answers("/api/models/earlier", "tml-key", 404, "X-Error-Code: RepoNotFound");
    answers("/org/served/resolve/v2/config.json", "tml-key", 404, "RevisionNotFound");
    answers("/api/models/org/served/tree/main/folder", "tml-key", 404, "EntryNotFound");
    static const char *const never[] = {
        FILES "model-00001-of-00002.safetensors",
        FILES "model.safetensors.index.json",
        FILES "README.md",
        FILES "recipe",
        FILES "chat_template.jinja", /* nano has none of its own */
        FILES "",
        FILES "..%2Fnano%2Fconfig.json",
        FILES "../nano/config.json",
        FILES "./config.json",
        FILES "%2Fetc%2Fpasswd",
        FILES "config.json/",
        FILES "config.json%00",
        "/org/served/resolve/main",
    };
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        answers(never[i], "tml-key", 404, "not_found");
#undef FILES
}

/* What the hub's clients read from the head: size, digest as git has it, commit. */
TEST(heads_say_what_a_file_is)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes config = tkc_read_file(&arena, "models/nano/config.json", 1 << 20, &err);
    char length[64];
    snprintf(length, sizeof length, "Content-Length: %zu\r\n", config.len);
    tkc_buf out = get("HEAD", "/org/served/resolve/main/config.json", "tml-key");
    assert_non_null(strstr(out.data, length));
    assert_non_null(strstr(out.data, "ETag: \""));
    const char *commit = strstr(out.data, "X-Repo-Commit: ");
    assert_non_null(commit);
    char path[200];
    snprintf(path, sizeof path, "/org/served/resolve/%.40s/config.json", commit + 15);
    answers(path, "tml-key", 200, "\"architectures\"");
    tkc_buf_free(&out);
    tkc_arena_free(&arena);
}

/* ---- files that change ---- */

static void write_aged(const char *path, const char *text, time_t age_s)
{
    FILE *f = fopen(path, "r+"); /* in place: the inode stays */
    if (!f)
        f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(ftruncate(fileno(f), (off_t)strlen(text)), 0);
    const struct timespec times[2] = { { .tv_sec = time(NULL) - age_s }, { .tv_sec = time(NULL) - age_s } };
    fflush(f);
    assert_int_equal(futimens(fileno(f), times), 0);
    fclose(f);
}

static void file_is(const tinkc_server *at, const char *text, char etag[64])
{
    int fd = raw_dial(tinkc_server_url(at));
    tkc_buf out = raw_talk(fd, "127.0.0.1", "GET /m/resolve/main/merges.txt HTTP/1.1\r\nConnection: close", "", 0);
    close(fd);
    tinkc_error err = { 0 };
    tkc_buf_terminate(&out, &err);
    const char *body = strstr(out.data, "\r\n\r\n"), *tag = strstr(out.data, "ETag: ");
    if (!body || !tag || strcmp(body + 4, text) != 0)
        fail_msg("%.400s", out.data);
    snprintf(etag, 64, "%.42s", tag + 6);
    tkc_buf_free(&out);
}

static void list_has(const tinkc_server *at, const char *etag, bool has)
{
    char oid[64];
    int fd = raw_dial(tinkc_server_url(at));
    tkc_buf out = raw_talk(fd, "127.0.0.1", "GET /api/models/m/tree/main HTTP/1.1\r\nConnection: close", "", 0);
    close(fd);
    tinkc_error err = { 0 };
    tkc_buf_terminate(&out, &err);
    snprintf(oid, sizeof oid, "\"oid\":%.42s", etag);
    if (!strstr(out.data, oid) == has)
        fail_msg("%s: %s", oid, out.data);
    tkc_buf_free(&out);
}

/* Digests are remembered by inode, size and time; shortly after a change the time alone is not
 * believed. */
TEST(a_changed_file_is_served_fresh)
{
    tinkc_error err = { 0 };
    char command[200], path[120], first[64], next[64];
    snprintf(command, sizeof command, "cp -r models/nano %s/m", home);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/m", home);
    tinkc_engine *own = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    assert_true(tinkc_engine_add_model(own, "m", path, &err));
    tinkc_server *at = tinkc_engine_serve(own, NULL, &err);
    assert_ok(&err);
    snprintf(path, sizeof path, "%s/m/merges.txt", home);
    const struct {
        const char *name, *text;
        time_t age_s;
    } rows[] = { { "made", "one", 100 },
                 { "larger", "three", 100 },
                 { "same size", "seven", 90 },
                 { "just now", "eight", 0 },
                 { "again just now", "fifty", 0 } };
    first[0] = '\0';
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_aged(path, rows[i].text, rows[i].age_s);
        file_is(at, rows[i].text, next);
        list_has(at, next, true);
        if (strcmp(first, next) == 0)
            fail_msg("%s: the same digest", rows[i].name);
        snprintf(first, sizeof first, "%s", next);
    }
    /* Another file of the same size and time under the name. */
    char other[130];
    snprintf(other, sizeof other, "%s.new", path);
    write_aged(path, "fifty", 100);
    file_is(at, "fifty", first);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    write_aged(other, "sixty", 100);
    const struct timespec same[2] = { st.st_mtim, st.st_mtim };
    assert_int_equal(utimensat(AT_FDCWD, other, same, 0), 0);
    assert_int_equal(rename(other, path), 0);
    list_has(at, first, false);
    file_is(at, "sixty", next);
    /* Nothing that can be seen has changed: the list does not read it again. */
    write_aged(path, "ninty", 100);
    assert_int_equal(utimensat(AT_FDCWD, path, same, 0), 0);
    list_has(at, next, true);
    assert_int_equal(unlink(path), 0);
    list_has(at, next, false);
    tinkc_server_free(at);
    tinkc_engine_free(own);
}

static tinkc_client *client_of(const char *url)
{
    tinkc_error err = { 0 };
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-key", .base_url = url }, &err);
    assert_ok(&err);
    return client;
}

/* Exactly what it was started with: others of the engine can be neither seen nor used. */
TEST(other_models_are_not_offered)
{
    tinkc_error err = { 0 };
    tinkc_client *client = client_of(tinkc_server_url(server));
    tinkc_future *f = tinkc_capabilities_get(client, &err);
    const tinkc_capabilities *all = tinkc_future_capabilities(f, 30000, &err);
    assert_int_equal(tinkc_capabilities_count(all), 1);
    assert_string_equal(tinkc_capabilities_at(all, 0)->name, "org/served");
    tinkc_future_free(f);
    assert_null(tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "earlier" }, &err));
    assert_non_null(strstr(err.message, "Unknown base model 'earlier'"));
    answers("/v1/models", "tml-key", 200, "{\"object\":\"list\",\"data\":[{\"id\":\"org/served\"");
    answers("/v1/models/earlier", "tml-key", 404, "model_not_found");
    tinkc_client_free(client);
    err = (tinkc_error){ 0 }; /* a server that names none offers all */
    tinkc_server *open = tinkc_engine_serve(engine, NULL, &err);
    client = client_of(tinkc_server_url(open));
    f = tinkc_capabilities_get(client, &err);
    assert_int_equal(tinkc_capabilities_count(tinkc_future_capabilities(f, 30000, &err)), 2);
    tinkc_future_free(f);
    tinkc_client_free(client);
    tinkc_server_free(open);
}

TEST(the_model_that_is_named_first_is_the_first)
{
    static const char *const orders[][3] = { { "org/served", "earlier", NULL }, { "earlier", "org/served", NULL } };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        tinkc_server *at = tinkc_engine_serve(engine, &(tinkc_serve_options){ .models = orders[i] }, &err);
        tinkc_client *client = client_of(tinkc_server_url(at));
        tinkc_future *f = tinkc_capabilities_get(client, &err);
        const tinkc_capabilities *all = tinkc_future_capabilities(f, 30000, &err);
        assert_int_equal(tinkc_capabilities_count(all), 2);
        for (size_t k = 0; k < 2; k++)
            assert_string_equal(tinkc_capabilities_at(all, k)->name, orders[i][k]);
        tinkc_future_free(f);
        tinkc_client_free(client);
        tinkc_server_free(at);
    }
}

static void tokenizer_comes(tinkc_client *client, const char *model)
{
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_future *f = tinkc_tokenizer_fetch(client, model, NULL, NULL, &err);
    tinkc_tokenizer *tok = tinkc_future_tokenizer(f, 60000, &err);
    assert_ok(&err);
    assert_true(tinkc_encode(tok, "What is 7 + 5?", &ids, &err));
    assert_true(ids.len > 3);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(tok);
    tinkc_future_free(f);
}

/* Where no hub can be reached, the tokenizer of the server's model comes from the server; before
 * the client has asked it anything, and after. What it does not have is looked for on the hub. */
TEST(clients_ask_the_server_first)
{
    tinkc_error err = { 0 };
    tinkc_client *client = client_of(tinkc_server_url(server));
    tokenizer_comes(client, "org/served");
    tinkc_client_free(client);
    client = client_of(tinkc_server_url(server));
    tinkc_sampler *sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "org/served" }, &err);
    assert_ok(&err);
    assert_non_null(tinkc_sampler_tokenizer(sampler, &err));
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    client = tinkc_client_new(
        &(tinkc_client_options){ .api_key = "tml-key", .base_url = tinkc_server_url(server), .no_retries = true },
        &err);
    tinkc_future *f = tinkc_tokenizer_fetch(client, "earlier", NULL, NULL, &err);
    assert_null(tinkc_future_tokenizer(f, 60000, &err));
    assert_non_null(strstr(err.message, "127.0.0.1:1"));
    tinkc_future_free(f);
    tinkc_client_free(client);
}

RUN_TESTS(setup, teardown)
