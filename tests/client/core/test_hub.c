/* test_hub.c - tokenizers by model name: which repository, the cache on disk, a hub that breaks
 * off, lies, or has moved on. */
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "hub/hub_priv.h"
#include "support/client/api_support.h"
#include "support/client/stub_server.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":3,"
    "\"content\":\"<end>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":"
    "false,\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
    "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
    "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
    "\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";
static const char config_json[] = "{\"eos_token\":\"<end>\"}";

/* ---- the hub ---- */

typedef struct hub {
    bool lies, large, needs_token;
    int breaks, behaviour;
    size_t break_at;
    atomic_int lists, files, revisions, missing;
    atomic_bool holds; /* nothing is answered */
    char token[64], list[1200], path[300];
    char *big; /* tokenizer.json behind white space, for transfers that take a while */
    size_t big_len;
} hub;

static void git_name(const void *data, size_t len, char out[TKC_SHA1_HEX])
{
    char head[40];
    tkc_digest d;
    tkc_sha1_init(&d);
    int n = snprintf(head, sizeof head, "blob %zu", len);
    tkc_digest_add(&d, head, (size_t)n + 1);
    tkc_digest_add(&d, data, len);
    tkc_digest_hex(&d, out);
}

static void sha256_name(const void *data, size_t len, char out[TKC_SHA256_HEX])
{
    tkc_digest d;
    tkc_sha256_init(&d);
    tkc_digest_add(&d, data, len);
    tkc_digest_hex(&d, out);
}

static void answer_list(hub *h, stub_answer *a)
{
    char main_name[TKC_SHA256_HEX], config_name[TKC_SHA1_HEX], lfs[200] = "";
    const char *data = h->large ? h->big : tokenizer_json;
    size_t len = h->large ? h->big_len : strlen(tokenizer_json);
    git_name(config_json, strlen(config_json), config_name);
    git_name(data, len, main_name);
    if (h->large) {
        char sha[TKC_SHA256_HEX];
        sha256_name(data, len, sha);
        snprintf(lfs, sizeof lfs, ",\"lfs\":{\"oid\":\"%s\",\"size\":%zu,\"pointerSize\":134}", sha, len);
    }
    snprintf(h->list, sizeof h->list,
             "[{\"type\":\"file\",\"path\":\"model.safetensors\",\"size\":99999999999,\"oid\":\"x\"},"
             "{\"type\":\"directory\",\"path\":\"more\",\"size\":0,\"oid\":\"y\"},"
             "{\"type\":\"file\",\"path\":\"tokenizer_config.json\",\"size\":%zu,\"oid\":\"%s\"},"
             "{\"type\":\"file\",\"path\":\"tokenizer.json\",\"size\":%zu,\"oid\":\"%s\"%s}]",
             strlen(config_json), config_name, len, main_name, lfs);
    a->body = h->list;
}

static void answer_file(hub *h, const stub_request *r, stub_answer *a)
{
    static char headers[200];
    char range[64];
    const char *data = strstr(r->path, "tokenizer_config") ? config_json : h->large ? h->big : tokenizer_json;
    size_t len = data == h->big ? h->big_len : strlen(data), from = 0;
    atomic_fetch_add(&h->files, 1);
    stub_header(r, "Range", range, sizeof range);
    if (range[0]) {
        from = (size_t)strtoull(range + 6, NULL, 10);
        a->status = 206;
        snprintf(headers, sizeof headers, "Content-Range: bytes %zu-%zu/%zu\r\n", from, len - 1, len);
        a->headers = headers;
    }
    a->body = data + from;
    a->body_len = len - from;
    if (h->lies && data != config_json) {
        static char other[sizeof tokenizer_json];
        memcpy(other, tokenizer_json, sizeof other);
        other[12] = '2';
        a->body = other + from;
    }
    if (h->breaks > 0 && data != config_json) {
        h->breaks--;
        a->behaviour = h->behaviour;
        a->after = h->break_at;
    }
}

static void serve(const stub_request *r, stub_answer *a, void *user)
{
    hub *h = user;
    wait_until(!atomic_load(&h->holds));
    snprintf(h->path, sizeof h->path, "%s", r->path);
    stub_header(r, "Authorization", h->token, sizeof h->token);
    if (h->needs_token && strcmp(h->token, "Bearer hf_good") != 0) {
        a->status = 401;
    } else if (strcmp(r->path, "/api/models/org/model/revision/main") == 0) {
        atomic_fetch_add(&h->revisions, 1);
        a->body = "{\"id\":\"org/model\",\"sha\":\"" COMMIT "\",\"siblings\":[]}";
    } else if (strstr(r->path, "/api/models/org/model/tree/" COMMIT)) {
        atomic_fetch_add(&h->lists, 1);
        answer_list(h, a);
    } else if (strstr(r->path, "/org/model/resolve/" COMMIT "/")) {
        answer_file(h, r, a);
    } else {
        atomic_fetch_add(&h->missing, 1);
        a->status = 404;
    }
}

/* ---- a world ---- */

typedef struct world {
    hub h;
    stub_server *server;
    tinkc_client *client;
    tinkc_error err;
    char cache[64];
    tinkc_tokenizer_options o;
} world;

static void open_client(world *w)
{
    w->client = tinkc_client_new(
        &(tinkc_client_options){
            .api_key = "tml-test", .proxy = "", .base_url = "http://127.0.0.1:1", .telemetry = TINKC_TELEMETRY_OFF },
        &w->err);
    assert_ok(&w->err);
}

static void open_world(world *w)
{
    memset(w, 0, sizeof *w);
    w->h.big_len = 300000;
    w->h.big = malloc(w->h.big_len);
    memset(w->h.big, ' ', w->h.big_len);
    memcpy(w->h.big, tokenizer_json, strlen(tokenizer_json));
    w->server = stub_start(NULL, serve, &w->h);
    snprintf(w->cache, sizeof w->cache, "/tmp/tinkc-hub-XXXXXX");
    assert_non_null(mkdtemp(w->cache));
    w->o =
        (tinkc_tokenizer_options){ .cache_dir = w->cache, .hub_url = stub_url(w->server), .no_compiled_cache = true };
    open_client(w);
}

static void close_world(world *w)
{
    char command[100];
    tinkc_client_free(w->client);
    stub_stop(w->server);
    free(w->h.big);
    snprintf(command, sizeof command, "rm -rf %s", w->cache);
    assert_int_equal(system(command), 0);
}

static tinkc_tokenizer *fetch(world *w, const char *model)
{
    tinkc_future *f = tinkc_tokenizer_fetch(w->client, model, NULL, &w->o, &w->err);
    tinkc_tokenizer *t = tinkc_future_tokenizer(f, PATIENCE_MS, &w->err);
    tinkc_future_free(f);
    return t;
}

static void check_works(world *w, tinkc_tokenizer *t)
{
    tinkc_tokens ids = { 0 };
    assert_ok(&w->err);
    assert_non_null(t);
    assert_true(tinkc_encode(t, "aba", &ids, &w->err));
    assert_int_equal(ids.len, 2);
    assert_int_equal(ids.data[0], 2);
    assert_int_equal(tinkc_tokenizer_special(t, TINKC_TOKEN_EOS), 3);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(t);
}

static bool there(world *w, const char *name)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/models--org--model/%s", w->cache, name);
    return lstat(path, &st) == 0;
}

/* ---- tests ---- */

TEST(a_model_name_is_a_repository_and_a_revision)
{
    static const struct {
        const char *model, *id, *repo, *revision;
    } rows[] = {
        { "Qwen/Qwen3-8B", NULL, "Qwen/Qwen3-8B", "" },
        { "Qwen/Qwen3-8B:main", NULL, "Qwen/Qwen3-8B", "" },
        { "org/model/variant", NULL, "org/model", "" },
        { "a/b/c/d", NULL, "a/b/c/d", "" },
        { "meta-llama/Llama-3.1-8B-Instruct", NULL, "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer", "" },
        { "meta-llama/Llama-3.3-70B-Instruct", NULL, "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer", "" },
        { "meta-llama/Llama-3.2-1B", NULL, "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer", "" },
        { "meta-llama/Llama-2-7b", NULL, "meta-llama/Llama-2-7b", "" },
        { "meta-llama/Llama-3.1-8B", "x/y", "x/y", "" },
        { "whatever", "x/y/z:7", "x/y/z", "" },
        { "moonshotai/Kimi-K2-Thinking", NULL, "moonshotai/Kimi-K2-Thinking",
          "612681931a8c906ddb349f8ad0f582cb552189cd" },
        { "moonshotai/Kimi-K2.5-Text-Only", NULL, "moonshotai/Kimi-K2.5", "4d01dfe0332d63057c186e0b262165819efb6611" },
        { "x", "moonshotai/Kimi-K2.6", "moonshotai/Kimi-K2.6", "b5aabbfb20227ed42becbf5541dbffd213942c58" },
        { "moonshotai/Kimi-K3", NULL, "moonshotai/Kimi-K3", "f831ab66814297da540d832a5235f8e904f29d06" },
    };
    tinkc_text repo = { 0 }, revision = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        assert_true(tinkc_tokenizer_resolve(rows[i].model, rows[i].id, &repo, &revision, &err));
        assert_string_equal(repo.data, rows[i].repo);
        assert_string_equal(revision.data, rows[i].revision);
    }
    tinkc_error err = { 0 };
    assert_false(tinkc_tokenizer_resolve(":x", NULL, &repo, &revision, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_string_equal(err.message, "model is empty");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_tokenizer_resolve("x", ":y", &repo, &revision, &err));
    assert_string_equal(err.message, "tokenizer_id is empty");
    for (int i = 0; i < 3; i++) {
        static const char *const missing[] = { "model is NULL", "repo is NULL", "revision is NULL" };
        err = (tinkc_error){ 0 };
        assert_false(
            tinkc_tokenizer_resolve(i == 0 ? NULL : "x", NULL, i == 1 ? NULL : &repo, i == 2 ? NULL : &revision, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, missing[i]);
    }
    tinkc_text_free(&repo);
    tinkc_text_free(&revision);
}

TEST(fetched_once_then_cached)
{
    world w;
    open_world(&w);
    check_works(&w, fetch(&w, "org/model"));
    assert_int_equal(w.h.files, 2);
    assert_true(there(&w, "snapshots/" COMMIT "/tokenizer.json"));
    assert_true(there(&w, "refs/main"));
    check_works(&w, fetch(&w, "org/model")); /* from memory */
    tinkc_client_free(w.client);
    open_client(&w);
    check_works(&w, fetch(&w, "org/model")); /* from the disk */
    assert_int_equal(w.h.revisions, 1);
    assert_int_equal(w.h.files, 2);
    w.o.offline = true;
    check_works(&w, fetch(&w, "org/model/variant"));
    assert_null(fetch(&w, "org/other"));
    assert_int_equal(w.err.code, TINKC_E_OFFLINE);
    assert_memory_equal(w.err.message, "the tokenizer of org/other is not in ", 37);
    close_world(&w);
}

static void remove_cache(world *w)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s/*", w->cache);
    assert_int_equal(system(command), 0);
}

static void check_gone(world *w, const char *model)
{
    assert_null(fetch(w, model));
    assert_int_equal(w->err.code, TINKC_E_OFFLINE);
    w->err = (tinkc_error){ 0 };
}

/* The client itself keeps 32 of them: the ones used last, each for its model, tokenizer, folder and hub. */
TEST(the_last_ones_stay_in_memory)
{
    enum { MOST = 32 };
    world w;
    char name[40];
    open_world(&w);
    for (int i = 0; i < MOST; i++) {
        snprintf(name, sizeof name, "org/model/%d", i);
        check_works(&w, fetch(&w, name));
    }
    check_works(&w, fetch(&w, "org/model/0")); /* used again: now 1 is the oldest */
    assert_int_equal(w.h.files, 2);
    check_works(&w, fetch(&w, "org/model"));
    tinkc_future *f = tinkc_tokenizer_fetch(w.client, "any", "org/model", &w.o, &w.err);
    check_works(&w, tinkc_future_tokenizer(f, PATIENCE_MS, &w.err)); /* 2 goes */
    tinkc_future_free(f);
    assert_int_equal(w.h.files, 2);
    remove_cache(&w);
    w.o.offline = true;
    check_works(&w, fetch(&w, "org/model"));
    check_works(&w, fetch(&w, "org/model/0"));
    check_works(&w, fetch(&w, "org/model/3"));
    check_works(&w, fetch(&w, "org/model/31"));
    check_gone(&w, "org/model/1");
    check_gone(&w, "org/model/2");
    check_gone(&w, "any"); /* that was another's tokenizer */
    w.o.cache_dir = "/tmp/tinkc-no-such-folder";
    check_gone(&w, "org/model");
    w.o.cache_dir = w.cache;
    w.o.hub_url = "http://127.0.0.1:2";
    check_gone(&w, "org/model");
    close_world(&w);
}

/* A model's own revision is asked for, where it has one. */
TEST(pinned_revisions_are_asked_for)
{
    world w;
    open_world(&w);
    assert_null(fetch(&w, "moonshotai/Kimi-K2.5-Text-Only"));
    assert_int_equal(w.err.code, TINKC_E_TOKENIZER);
    assert_non_null(strstr(w.h.path, "/moonshotai/Kimi-K2.5/"));
    assert_non_null(strstr(w.h.path, "4d01dfe0332d63057c186e0b262165819efb6611"));
    close_world(&w);
}

TEST(all_who_ask_wait_for_one_download)
{
    enum { N = 30 };
    tinkc_future *all[N];
    world w;
    open_world(&w);
    atomic_store(&w.h.holds, true);
    for (int i = 0; i < N; i++)
        all[i] = tinkc_tokenizer_fetch(w.client, "org/model", NULL, &w.o, &w.err);
    wait_until(tinkc_future_stage(all[N - 1]) == TINKC_STAGE_FETCHING);
    tinkc_future_cancel(all[3]); /* one of them changes his mind: the others still want it */
    wait_until(tinkc_future_done(all[3]));
    atomic_store(&w.h.holds, false);
    for (int i = 0; i < N; i++) {
        tinkc_error err = { 0 };
        tinkc_tokenizer *t = tinkc_future_tokenizer(all[i], PATIENCE_MS, &err);
        if (i != 3)
            assert_ok(&err);
        tinkc_tokenizer_free(t);
        tinkc_future_free(all[i]);
    }
    assert_int_equal(w.h.revisions, 1);
    assert_int_equal(w.h.files, 2);
    close_world(&w);
}

/* Several at once, each for its own; a second one who asks joins the right one. */
TEST(downloads_beside_each_other)
{
    static const char *const models[] = { "org/a", "org/model", "org/b", "org/a", "org/model", "org/b" };
    enum { N = sizeof models / sizeof *models };
    tinkc_future *all[N];
    world w;
    open_world(&w);
    atomic_store(&w.h.holds, true);
    for (size_t i = 0; i < N; i++) {
        all[i] = tinkc_tokenizer_fetch(w.client, models[i], NULL, &w.o, &w.err);
        assert_ok(&w.err);
    }
    for (size_t i = 0; i < N; i++)
        wait_until(tinkc_future_stage(all[i]) == TINKC_STAGE_FETCHING);
    atomic_store(&w.h.holds, false);
    for (size_t i = 0; i < N; i++) {
        tinkc_error err = { 0 };
        tinkc_tokenizer *t = tinkc_future_tokenizer(all[i], PATIENCE_MS, &err);
        assert_int_equal(t != NULL, i % 3 == 1);
        assert_int_equal(err.code, i % 3 == 1 ? 0 : TINKC_E_TOKENIZER);
        tinkc_tokenizer_free(t);
        tinkc_future_free(all[i]);
    }
    assert_int_equal(w.h.revisions, 1);
    assert_int_equal(w.h.missing, 2);
    close_world(&w);
}

TEST(broken_downloads_go_on)
{
    static const int ways[] = { STUB_RESET, STUB_TRUNCATE };
    for (int i = 0; i < 2; i++) {
        world w;
        open_world(&w);
        w.h.large = true;
        w.h.breaks = 2;
        w.h.behaviour = ways[i];
        w.h.break_at = 100000;
        check_works(&w, fetch(&w, "org/model"));
        assert_int_equal(w.h.files, 4);
        close_world(&w);
    }
}

TEST(wrong_bytes_are_never_used)
{
    world w;
    open_world(&w);
    w.h.lies = true;
    assert_null(fetch(&w, "org/model"));
    assert_int_equal(w.err.code, TINKC_E_TOKENIZER);
    assert_false(there(&w, "snapshots/" COMMIT "/tokenizer.json"));
    assert_false(there(&w, "refs/main"));
    w.err = (tinkc_error){ 0 };
    w.h.lies = false; /* and do not stand in the way of the right ones */
    check_works(&w, fetch(&w, "org/model"));
    close_world(&w);
}

TEST(tokens_go_to_the_hub)
{
    world w;
    open_world(&w);
    w.h.needs_token = true;
    assert_null(fetch(&w, "org/model"));
    assert_int_equal(w.err.code, TINKC_E_TOKENIZER);
    assert_int_equal(w.err.http_status, 401);
    assert_memory_equal(w.err.message, "tokenizer: ", 11);
    assert_non_null(strstr(w.err.message, "HF_TOKEN"));
    w.err = (tinkc_error){ 0 };
    w.o.hub_token = "hf_good";
    check_works(&w, fetch(&w, "org/model"));
    close_world(&w);
}

/* A service may be the hub of its own models: it is asked with the client's key, also where the hub is switched off, and keeps
 * a cache of its own: what two services call so need not be the same. */
TEST(a_service_gives_the_tokenizers_of_its_models)
{
    world w[2];
    for (int i = 0; i < 2; i++)
        open_world(&w[i]);
    setenv("XDG_CACHE_HOME", w[0].cache, 1);
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    setenv("HF_TOKEN", "hf_mine", 1);
    for (int i = 0; i < 2; i++) {
        tinkc_client_free(w[i].client);
        w[i].client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-test",
                                                                .proxy = "",
                                                                .base_url = stub_url(w[i].server),
                                                                .telemetry = TINKC_TELEMETRY_OFF },
                                       &w[i].err);
        w[i].o = (tinkc_tokenizer_options){ .no_compiled_cache = true };
        check_works(&w[i], fetch(&w[i], "org/model"));
        assert_string_equal(w[i].h.token, "Bearer tml-test");
        assert_int_equal(w[i].h.files, 2);
    }
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HF_ENDPOINT");
    unsetenv("HF_HUB_OFFLINE");
    unsetenv("HF_TOKEN");
    for (int i = 0; i < 2; i++)
        close_world(&w[i]);
}

static void check_closed(world *w, const char *model)
{
    char want[200];
    w->err = (tinkc_error){ 0 };
    assert_null(fetch(w, model));
    assert_int_equal(w->err.code, TINKC_E_TOKENIZER);
    snprintf(want, sizeof want, "%s has no public tokenizer: register one with tinkc_tokenizer_register", model);
    assert_string_equal(w->err.message, want);
}

TEST(names_that_are_no_repository)
{
    static const char *const names[] = { "../../etc/passwd", "a/b/c/d", "a b/c", "org/..", "/x", "x/", "a?b" };
    world w;
    open_world(&w);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        w.err = (tinkc_error){ 0 };
        assert_null(fetch(&w, names[i]));
        if (w.err.code != TINKC_E_TOKENIZER)
            fail_msg("%s: %d %s", names[i], w.err.code, w.err.message);
    }
    assert_int_equal(stub_requests(w.server), 0);
    w.err = (tinkc_error){ 0 };
    assert_null(fetch(&w, "org/missing"));
    assert_int_equal(w.err.code, TINKC_E_TOKENIZER);
    assert_int_equal(w.err.http_status, 404);
    uint64_t before = stub_requests(w.server);
    check_closed(&w, "thinkingmachines/Inkling");
    check_closed(&w, "TML/Inkling");
    assert_int_equal(stub_requests(w.server), before);
    assert_null(tinkc_tokenizer_fetch(w.client, "", NULL, NULL, NULL));
    assert_null(tinkc_tokenizer_fetch(w.client, NULL, NULL, NULL, NULL));
    w.o.reserved[3] = 1;
    assert_null(tinkc_tokenizer_fetch(w.client, "org/model", NULL, &w.o, NULL));
    w.o.reserved[3] = 0;
    w.o.reserved_bools[5] = true;
    assert_null(tinkc_tokenizer_fetch(w.client, "org/model", NULL, &w.o, NULL));
    close_world(&w);
}

TEST(no_hub_is_a_connection_error)
{
    world w;
    char url[64];
    open_world(&w);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", stub_dead_port());
    w.o.hub_url = url;
    tinkc_client_free(w.client);
    w.client = tinkc_client_new(
        &(tinkc_client_options){
            .api_key = "tml-test", .proxy = "", .base_url = "http://127.0.0.1:1", .no_retries = true },
        &w.err);
    assert_null(fetch(&w, "org/model"));
    assert_int_equal(w.err.code, TINKC_E_CONNECTION);
    close_world(&w);
}

/* Is the hub asked again after this failure? The answer that failed asks for a pause of a millisecond. */
static bool try_again(tinkc_hub *h, tkc_hub_patience p, int32_t code, bool nobody_there, int64_t took_ms)
{
    tinkc_error err = { .code = code }, e = { 0 };
    tkc_fetch r;
    tkc_fetch_init(&r, NULL);
    r.nobody_there = nobody_there;
    r.took_ms = took_ms;
    tkc_buf_add(&r.pairs, "retry-after-ms\0001", sizeof "retry-after-ms\0001", &e);
    assert_ok(&e);
    bool again = tkc_hub_try_again(h, &p, &r, &err);
    tkc_fetch_end(&r);
    return again;
}

/* Would a hub be asked again whose first failure is so long ago? */
static bool asked_again(tinkc_hub *h, int64_t failing_ms, int32_t code, bool nobody_there)
{
    int64_t since = tkc_now_ms(tkc_clock_real()) - failing_ms;
    return try_again(h, (tkc_hub_patience){ .failures = 1, .since_ms = since }, code, nobody_there, 0);
}

/* Without a network the hub's name is not resolved: that ends soon. A hub that is slow, or that answered before, is
 * asked for half a minute, and the caller's own limit always holds. */
TEST(nobody_there_is_given_up_soon)
{
    tinkc_error err = { 0 };
    tinkc_hub *h = tinkc_hub_new(&(tinkc_hub_options){ .url = "http://127.0.0.1:1" }, &err);
    assert_ok(&err);
    assert_true(asked_again(h, 0, TINKC_E_CONNECTION, true));
    assert_false(asked_again(h, 5000, TINKC_E_CONNECTION, true));
    assert_true(asked_again(h, 5000, TINKC_E_CONNECTION, false));
    assert_true(asked_again(h, 5000, TINKC_E_NET_TIMEOUT, false));
    assert_false(asked_again(h, 30000, TINKC_E_CONNECTION, false));
    tkc_hub_explain(h, &(tkc_fetch){ .status = 200 }, "it", &err);
    assert_ok(&err);
    assert_true(asked_again(h, 5000, TINKC_E_CONNECTION, true));
    tinkc_hub_free(h);
    h = tinkc_hub_new(&(tinkc_hub_options){ .retry_window_ms = 600000 }, &err);
    assert_ok(&err);
    assert_true(asked_again(h, 300000, TINKC_E_CONNECTION, true));
    tinkc_hub_free(h);
}

/* Is it asked again after its first failure, which came after so long? */
static bool asked_after(tinkc_hub *h, int64_t took_ms, bool nobody_there)
{
    return try_again(h, (tkc_hub_patience){ 0 }, TINKC_E_NET_TIMEOUT, nobody_there, took_ms);
}

/* A resolver that needs ten seconds to fail has used up the time: it is not asked again. A hub that was reached, or whose caller
 * waits longer, is. */
TEST(a_slow_resolver_is_asked_once)
{
    tinkc_error err = { 0 };
    tinkc_hub *h = tinkc_hub_new(&(tinkc_hub_options){ .url = "http://127.0.0.1:1" }, &err);
    assert_ok(&err);
    assert_false(asked_after(h, 10000, true));
    assert_true(asked_after(h, 0, true));
    assert_true(asked_after(h, 60000, false));
    tinkc_hub_free(h);
    h = tinkc_hub_new(&(tinkc_hub_options){ .retry_window_ms = 30000 }, &err);
    assert_ok(&err);
    assert_true(asked_after(h, 10000, true));
    tinkc_hub_free(h);
}

TEST(registered_ones_win)
{
    world w;
    open_world(&w);
    tinkc_tokenizer *mine =
        tinkc_tokenizer_parse(tokenizer_json, strlen(tokenizer_json), config_json, strlen(config_json), NULL, &w.err);
    assert_ok(&w.err);
    assert_true(tinkc_tokenizer_register(w.client, "thinkingmachines/Inkling", mine, &w.err));
    assert_true(tinkc_tokenizer_register(w.client, "thinkingmachines/Inkling", mine, &w.err));
    check_works(&w, fetch(&w, "thinkingmachines/Inkling"));
    assert_int_equal(stub_requests(w.server), 0);
    assert_false(tinkc_tokenizer_register(w.client, "x", NULL, &w.err));
    assert_int_equal(w.err.code, TINKC_E_ARGUMENT);
    assert_string_equal(w.err.message, "tokenizer is NULL");
    for (int i = 0; i < 2; i++) {
        w.err = (tinkc_error){ 0 };
        assert_false(tinkc_tokenizer_register(w.client, i ? "" : NULL, mine, &w.err));
        assert_string_equal(w.err.message, "model is empty");
    }
    tinkc_tokenizer_free(mine);
    close_world(&w);
}

TEST(a_close_ends_the_waiting)
{
    world w;
    tinkc_error err = { 0 };
    open_world(&w);
    w.h.large = true;
    w.h.breaks = 10;
    w.h.behaviour = STUB_SILENT;
    w.h.break_at = 1000;
    tinkc_future *f = tinkc_tokenizer_fetch(w.client, "org/model", NULL, &w.o, &w.err);
    while (w.h.files < 2)
        usleep(1000);
    assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_FETCHING);
    tinkc_client_close(w.client, 0, &w.err);
    assert_null(tinkc_future_tokenizer(f, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_CLOSED);
    tinkc_future_free(f);
    close_world(&w);
}

TEST(the_environment_is_read_once)
{
    world w;
    char home[80], file[300], early[80], late[80];
    struct stat st;
    open_world(&w);
    snprintf(home, sizeof home, "%s/home", w.cache);
    snprintf(early, sizeof early, "%s/early", w.cache);
    snprintf(late, sizeof late, "%s/late", w.cache);
    const char *xdg = getenv("XDG_CACHE_HOME");
    char *kept = xdg ? strdup(xdg) : NULL;
    setenv("XDG_CACHE_HOME", early, 1);
    setenv("HF_HOME", home, 1);
    setenv("HF_ENDPOINT", stub_url(w.server), 1);
    setenv("HF_TOKEN", "hf_good", 1);
    tinkc_client_free(w.client);
    open_client(&w);
    unsetenv("HF_HOME");
    unsetenv("HF_TOKEN");
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
    setenv("HF_HUB_OFFLINE", "1", 1);
    setenv("XDG_CACHE_HOME", late, 1);
    w.h.needs_token = true;
    w.o = (tinkc_tokenizer_options){ .no_compiled_cache = true };
    check_works(&w, fetch(&w, "org/model/without"));
    snprintf(file, sizeof file, "%s/tinkc/tokenizers", early); /* the compiled form */
    assert_int_not_equal(stat(file, &st), 0);
    w.o = (tinkc_tokenizer_options){ 0 };
    check_works(&w, fetch(&w, "org/model"));
    assert_int_equal(stat(file, &st), 0);
    assert_int_not_equal(stat(late, &st), 0);
    if (kept)
        setenv("XDG_CACHE_HOME", kept, 1);
    else
        unsetenv("XDG_CACHE_HOME");
    free(kept);
    snprintf(file, sizeof file, "%s/hub/models--org--model/snapshots/" COMMIT "/tokenizer.json", home);
    assert_int_equal(stat(file, &st), 0);
    unsetenv("HF_ENDPOINT");
    unsetenv("HF_HUB_OFFLINE");
    close_world(&w);
}
