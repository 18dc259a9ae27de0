/* test_service_status.c - what the service shows of itself: a card's memory, whether it is ready, by which name a client can open a
 * model, how large a body may be.
 */
#include <stdatomic.h>

#include "service/core/service_state.h"
#include "support/service/service_world.h"

/* ---- the memory of a device ---- */

enum { LINES = 40 };

static struct {
    const tke_device_ops *own;
    tke_device_ops ops;
    size_t bytes, free, lines;
} card;

static void card_info(tke_device *d, tke_device_info *out)
{
    card.own->info(d, out);
    out->memory_bytes = card.bytes;
    out->memory_free = card.free;
}

/* "weights" and "part1", "part2", ... of 1001, 1002, ... bytes */
static size_t card_memory(tke_device *d, tke_memory_use *out, size_t room)
{
    static char names[LINES][32] = { "weights" };
    size_t n = 0;
    (void)d;
    for (; n < room && n < card.lines; n++) {
        if (n)
            snprintf(names[n], sizeof names[n], "part%zu", n);
        out[n] = (tke_memory_use){ names[n], 1000 + n };
    }
    return n;
}

static tinkc_engine *open_with_card(size_t bytes, size_t lines)
{
    static const char *const settings[] = { "disk_reserve", "0", NULL };
    tinkc_engine *engine = world_open_bare(NULL, 0, settings);
    tke_device *device = tke_engine_service(engine)->device;
    card.own = device->ops;
    card.ops = *card.own;
    card.ops.info = card_info;
    card.ops.memory = card_memory;
    card.bytes = bytes;
    card.free = 777;
    card.lines = lines;
    device->ops = &card.ops;
    return engine;
}

static void close_with_card(tinkc_engine *engine)
{
    tke_engine_service(engine)->device->ops = card.own;
    tinkc_engine_free(engine);
}

static const char *metrics_of(tinkc_engine *engine)
{
    tinkc_error err = { 0 };
    tkc_buf out;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    assert_true(tke_service_metrics(tke_engine_service(engine), &out, &err));
    const char *text = hold(tkc_buf_terminate(&out, &err));
    tkc_buf_free(&out);
    return text;
}

/* A card has memory of its own, which is shown apart from the process's, line by line. */
TEST(memory_of_a_card)
{
    tinkc_engine *engine = open_with_card(5000, 3);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *status = hold(service_json(t, 200, "GET", "/api/v1/status", "%s", ""));
    assert_non_null(strstr(status, "\"memory_bytes\":5000,\"memory_free_bytes\":777,"
                                   "\"memory\":{\"weights\":1000,\"part1\":1001,\"part2\":1002}}"));
    const char *process = strstr(status, "\"memory\":{\"adapters\":");
    assert_non_null(process);
    assert_null(strstr(process, "part1"));
    assert_non_null(strstr(metrics_of(engine),
                           "\n# HELP tinkc_device_memory_bytes Memory of the card by what holds it\n"
                           "# TYPE tinkc_device_memory_bytes gauge\n"
                           "tinkc_device_memory_bytes{part=\"weights\"} 1000\n"
                           "tinkc_device_memory_bytes{part=\"part1\"} 1001\n"
                           "tinkc_device_memory_bytes{part=\"part2\"} 1002\n"
                           "tinkc_device_memory_bytes{part=\"free\"} 777\n"));
    close_with_card(engine);
}

/* The memory of a device without its own is the process's; its weights are mapped files. */
TEST(memory_of_the_host)
{
    static const char *const apart[] = { "adapters",           "snapshots",    "results",
                                         "queued_requests",    "work_space",   "part1",
                                         "requests_under_way", "database",     "part2",
                                         "unused_heap",        "custom_losses" };
    tinkc_engine *engine = open_with_card(0, 3);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *status = hold(service_json(t, 200, "GET", "/api/v1/status", "%s", ""));
    assert_null(strstr(status, "memory_free_bytes"));
    assert_non_null(strstr(status, "\"memory\":{\"weights\":1000,\"part1\":1001,\"part2\":1002}}"));
    const char *process = strstr(status, "\"memory\":{\"adapters\":");
    assert_non_null(process);
    assert_null(strstr(process, "weights"));
    double named = 0;
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        named += json_number(process, apart[i]);
    double anonymous = json_number(process, "resident") - json_number(process, "resident_files");
    assert_true(json_number(process, "other") == (anonymous > named ? anonymous - named : 0));
    assert_null(strstr(metrics_of(engine), "device_memory"));
    close_with_card(engine);
}

/* There is room for 16 lines. */
TEST(the_status_has_room_for_sixteen_lines)
{
    for (int own = 0; own < 2; own++) {
        tinkc_engine *engine = open_with_card(own ? 5000 : 0, LINES);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *status = hold(service_json(t, 200, "GET", "/api/v1/status", "%s", ""));
        assert_non_null(strstr(status, "\"part15\":1015}}"));
        assert_null(strstr(status, "part16"));
        const char *metrics = metrics_of(engine);
        assert_non_null(strstr(metrics, "{part=\"part15\"} 1015\n"));
        assert_null(strstr(metrics, "part16"));
        close_with_card(engine);
    }
}

/* ---- readiness ---- */

TEST(ready_with_a_model)
{
    static const char *const paths[] = { "/api/v1/readyz", "/readyz", "/health" };
    static const char *const settings[] = { "disk_reserve", "0", NULL };
    tinkc_error err = { 0 };
    tinkc_engine *engine = world_open_bare(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        assert_string_equal(service_json(t, 503, "GET", paths[i], "%s", ""),
                            "{\"detail\":\"No base model is registered\",\"code\":\"not_ready\"}");
    assert_true(tinkc_engine_add_model(engine, "tiny", model_folder, &err));
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        assert_string_equal(service_json(t, 200, "GET", paths[i], "%s", ""), "{\"status\":\"ok\"}");
    tinkc_engine_free(engine);
}

/* ---- names that the Python SDK can open ---- */

static const char *name_for(const tinkc_transport *t, const char *sampler, const char *const *headers)
{
    char path[200];
    snprintf(path, sizeof path, "/api/v1/samplers/%s", sampler);
    answer a = service_call(t, "GET", path, headers, "", 0);
    assert_int_equal(a.status, 200);
    const char *name = hold(json_field(a.body.data, "base_model"));
    answer_free(&a);
    return name;
}

/* The real path of a folder; the SDK needs a third slash behind one with two. */
static const char *openable(const char *folder)
{
    char name[600], *real = realpath(folder, NULL);
    size_t slashes = 0;
    assert_non_null(real);
    for (const char *at = real; *at; at++)
        slashes += *at == '/';
    snprintf(name, sizeof name, "%s%s", real, slashes == 2 ? "/" : "");
    free(real);
    return hold(name);
}

static char *copy_of_model(const char *in, const char *name)
{
    char command[700], path[300];
    snprintf(path, sizeof path, "%s/%s", in, name);
    snprintf(command, sizeof command, "cp -r '%s' '%s'", model_folder, path);
    assert_int_equal(system(command), 0);
    return strdup(path);
}

TEST(names_that_open)
{
    static const char *const settings[] = { "disk_reserve", "0", NULL };
    static const char *const plain[] = { NULL };
    static const char *const python[] = { "X-Stainless-Runtime", "CPython", NULL };
    static const char *const pypy[] = { "X-Stainless-Runtime", "PyPy", NULL };
    static const char *const node[] = { "X-Stainless-Runtime", "node", NULL };
    static const char *const rest[] = { "X-Stainless-Runtime", "CPython", "X-SDK-Method", "get_sampler", NULL };
    static const char *const new_rest[] = { "X-Stainless-Runtime", "CPython", "X-SDK-Method", "RestClient.get_sampler",
                                            NULL };
    static const char *const made_by[][5] = {
        { "X-Stainless-Runtime", "CPython", "X-SDK-Method", "ServiceClient.create_sampling_client" },
        { "X-Stainless-Runtime", "CPython", "X-SDK-Method", "TrainingClient.create_sampling_client" },
        { "X-Stainless-Runtime", "CPython", "X-SDK-Method", "SamplingClient.get_base_model" },
    };
    tinkc_error err = { 0 };
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    char *room = tiny_folder();
    char *deeper = copy_of_model(room, "deeper"), *colon = copy_of_model(room, "a:b");
    assert_true(tinkc_engine_add_model(engine, "deep", deeper, &err) &&
                tinkc_engine_add_model(engine, "colon", colon, &err) &&
                tinkc_engine_add_model(engine, "org/tiny", model_folder, &err));
    static const char *const bases[] = { "tiny", "deep", "colon", "org/tiny" };
    const char *shown[] = { openable(model_folder), openable(deeper), "colon", "org/tiny" };
    const char *session = hold(service_session(t));
    for (int i = 0; i < 4; i++) {
        const char *made = service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                                        "{\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,"
                                        "\"base_model\":\"%s\"}",
                                        session, i, bases[i]);
        const char *sampler = hold(json_field(made, "sampling_session_id"));
        assert_string_equal(name_for(t, sampler, plain), bases[i]);
        assert_string_equal(name_for(t, sampler, node), bases[i]);
        assert_string_equal(name_for(t, sampler, rest), bases[i]);
        assert_string_equal(name_for(t, sampler, new_rest), bases[i]);
        for (int k = 0; k < 3; k++)
            assert_string_equal(name_for(t, sampler, made_by[k]), shown[i]);
        assert_string_equal(name_for(t, sampler, python), shown[i]);
        assert_string_equal(name_for(t, sampler, pypy), shown[i]);
        /* What is shown is taken as a name, too. */
        service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                     "{\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,\"base_model\":\"%s\"}", session, 10 + i,
                     shown[i]);
    }
    tinkc_engine_free(engine);
    tiny_model_remove(room);
    free(deeper);
    free(colon);
}

/* The name of the base that a request gets, or NULL: refused. */
static const char *base_for(const tinkc_transport *t, const char *session, const char *name)
{
    static int number = 100;
    char body[1000];
    snprintf(body, sizeof body, "{\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,\"base_model\":\"%s\"}", session,
             number++, name);
    answer a = service_call(t, "POST", "/api/v1/create_sampling_session",
                            (const char *const[]){ "Content-Type", "application/json", NULL }, body, strlen(body));
    const char *sampler = a.status == 200 ? hold(json_field(a.body.data, "sampling_session_id")) : NULL;
    if (!sampler)
        assert_int_equal(a.status, 400);
    answer_free(&a);
    return sampler ? name_for(t, sampler, (const char *const[]){ NULL }) : NULL;
}

/* A folder may be served in several forms. A client's request opens and packs none of its own. */
TEST(a_path_names_the_form_that_is_served)
{
    static const struct {
        const char *before, *after, *both, *alone; /* what is served; NULL = refused */
    } rows[] = {
        { "", "", "plain", "eight" },       { "", "/", "plain", "eight" },
        { "", "#8bit", "eight", "eight" },  { "", "#4bit", NULL, NULL },
        { "", "#8bit#8bit", NULL, NULL },   { "", "/../other", NULL, NULL },
        { "", "/config.json", NULL, NULL }, { "", "/model.gguf", NULL, NULL },
        { "/..", "", NULL, NULL },          { ".", "", NULL, NULL },
    };
    tinkc_error err = { 0 };
    char packed[600], name[700], *real = realpath(model_folder, NULL);
    assert_non_null(real);
    assert_int_equal(setenv("XDG_CACHE_HOME", "/dev/null/none", 1), 0); /* packed in memory */
    snprintf(packed, sizeof packed, "%s#8bit", model_folder);
    for (int both = 0; both < 2; both++) {
        tinkc_engine *engine = world_open_bare(NULL, 0, NULL);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        assert_true(tinkc_engine_add_model(engine, "eight", packed, &err)); /* the first to be found */
        assert_true(!both || tinkc_engine_add_model(engine, "plain", model_folder, &err));
        const char *session = hold(service_session(t));
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            snprintf(name, sizeof name, "%s%s%s", rows[i].before, real, rows[i].after);
            const char *got = base_for(t, session, name), *wanted = both ? rows[i].both : rows[i].alone;
            if (!got != !wanted || (got && strcmp(got, wanted) != 0))
                fail_msg("%s: %s", name, got ? got : "refused");
        }
        assert_null(base_for(t, session, "eight#8bit"));
        assert_null(base_for(t, session, "eight#4bit"));
        tinkc_engine_free(engine);
    }
    free(real);
}

/* ---- paths ---- */

TEST(limits_of_paths)
{
    enum { MIB = 1 << 20 };
    static const struct {
        const char *method, *uri;
        bool openai, large, needs_key, is_pass;
    } rows[] = {
        { "POST", "/api/v1/forward_backward", false, true, true, true },
        { "POST", "/api/v1/forward_backward?a=b", false, true, true, true },
        { "POST", "/api/v1/forward", false, true, true, true },
        { "POST", "/api/v1/asample", false, true, true, false },
        { "POST", "/api/v1/stream_sample", false, true, true, false },
        { "POST", "/api/v1/telemetry", false, true, true, false },
        { "POST", "/api/v1/optim_step", false, false, true, false },
        { "GET", "/api/v1/forward_backward", false, false, true, false },
        { "GET", "/api/v1/healthz", false, false, false, false },
        { "HEAD", "/api/v1/healthz?a", false, false, false, false },
        { "HEAD", "/api/v1/training_runs", false, false, true, false },
        { "GET", "/readyz?a", false, false, false, false },
        { "GET", "/health", false, false, false, false },
        { "GET", "/api/v1/archives/a", false, false, false, false },
        { "GET", "/status", false, false, true, false },
        { "GET", "/metrics?a", false, false, true, false },
        { "POST", "/api/v1/cancel_future", false, false, true, false },
        { "POST", "/api/v1/retrieve_futures", false, false, true, false },
        { "GET", "/nothing", false, false, false, false },
        { "GET", "", false, false, false, false },
        { "GET", "?", false, false, false, false },
        { "POST", "/v1/completions", true, true, true, false },
        { "POST", "/oai/api/v1/chat/completions?a", true, true, true, false },
        { "POST", "/v1/nothing", true, true, false, false },
        { "POST", "/v1/completions", false, false, false, false },
    };
    static const char *const settings[] = { "disk_reserve", "0", NULL };
    tinkc_engine *engine = world_open_bare(NULL, 0, settings);
    tke_service *svc = tke_engine_service(engine);
    assert_true(tke_service_max_body(svc) > MIB);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_path_info info = tke_service_path(svc, rows[i].method, tkc_str(rows[i].uri), rows[i].openai);
        if (info.max_body != (rows[i].large ? tke_service_max_body(svc) : MIB) || info.needs_key != rows[i].needs_key ||
            info.is_pass != rows[i].is_pass)
            fail_msg("%s %s: %lld %d %d", rows[i].method, rows[i].uri, (long long)info.max_body, info.needs_key,
                     info.is_pass);
    }
    tinkc_engine_free(engine);
}

RUN_TESTS(setup, teardown)
