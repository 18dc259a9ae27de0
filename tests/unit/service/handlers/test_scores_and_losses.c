/* test_scores_and_losses.c - what clients from 0.30 to 0.38 ask for: external weights, scores of chosen ids and
 * alternatives at prompt positions, custom losses. Most of it stands in tests/data/service_rules. */
#include <math.h>

#include "service/core/service_state.h"
#include "service/core/registry.h"
#include "service/handlers/futures_poll.h"
#include "service/store/store.h"
#include "service/worker/jobs.h"
#include "support/service/service_world.h"

static const char *wait_for(const tinkc_transport *t, const char *promise)
{
    return service_wait(t, hold(json_field(promise, "request_id")));
}

/* The header of adapter_model.safetensors behind a path of this checkpoint. */
static const char *header_of(const tinkc_transport *t, const char *model, const char *checkpoint)
{
    char path[300];
    static char header[20000];
    bool external = strncmp(checkpoint, "external", 8) == 0;
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/%s/%s", model, checkpoint,
             external ? "external_weights_urls" : "archive");
    answer a = service_call(t, "GET", path, NULL, "", 0);
    char *found = external ? strdup(json_field(a.body.data, "adapter_model.safetensors")) : strdup(a.location);
    answer_free(&a);
    snprintf(path, sizeof path, "%s%s", strstr(found, "/api/v1/"), external ? "" : "/adapter_model.safetensors");
    free(found);
    a = service_call(t, "GET", path, NULL, "", 0);
    assert_int_equal(a.status, 200);
    snprintf(header, sizeof header, "%s", a.body.data + 8);
    answer_free(&a);
    return header;
}

/* PEFT reads external weights, the cookbook archives; the file says whose names it has. */
TEST(names_are_those_of_the_reader)
{
    tinkc_error err = { 0 };
    char *folder = tiny_model_make(&(tiny_model){ .family = "qwen2", .vocab = 64, .context = 64, .tied = true });
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    assert_true(tinkc_engine_add_model(engine, "tied", folder, &err));
    const char *model = hold(service_model(t, service_session(t), 0, "tied", 4, 7));
    service_wait(t, post(t, "/api/v1/save_weights_external", model, 1, ",\"path\":\"out\""));
    service_wait(t, post(t, "/api/v1/save_weights_for_sampler", model, 2, ",\"path\":\"in\""));
    const char *peft = hold(header_of(t, model, "external_weights/out"));
    assert_non_null(strstr(peft, "\"tensor_names\":\"peft\""));
    assert_non_null(strstr(peft, "lm_head"));
    assert_null(strstr(peft, "unembed_tokens"));
    const char *hosted = hold(header_of(t, model, "sampler_weights/in"));
    assert_non_null(strstr(hosted, "\"tensor_names\":\"hosted\""));
    assert_non_null(strstr(hosted, "unembed_tokens"));
    assert_null(strstr(hosted, "lm_head"));
    tinkc_engine_free(engine);
    tiny_model_remove(folder);
}

TEST(targets_and_alternatives)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *sampled =
        hold(wait_for(t, service_json(t, 200, "POST", "/api/v1/asample",
                                      "{\"base_model\":\"tiny\",\"num_samples\":1,\"prompt_logprobs\":true,"
                                      "\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,5,9]}]},"
                                      "\"sampling_params\":{\"max_tokens\":1,\"seed\":1},"
                                      "\"target_prompt_logprobs\":{\"data\":[5,-1,9,7],\"dtype\":\"int64\","
                                      "\"shape\":[2,2]},\"prompt_alt_tokens_k\":3}")));
    const char *targets = strstr(sampled, "\"target_prompt_logprobs\"");
    const char *alternatives = strstr(sampled, "\"prompt_alt_tokens\"");
    assert_true(targets && alternatives);
    /* The ids of the prompt itself score as its log-probs do. */
    double scores[4], own[3];
    const char *at = strchr(targets, '[');
    for (int i = 0; i < 4; i++)
        scores[i] = strtod(at + 1, (char **)&at);
    at = strchr(strstr(sampled, "\"prompt_logprobs\""), '[');
    at = strchr(at, ',');
    for (int i = 1; i < 3; i++)
        own[i] = strtod(at + 1, (char **)&at);
    assert_true(scores[0] == own[1] && scores[2] == own[2]);
    assert_true(scores[1] == 0 && scores[3] < 0);
    assert_non_null(strstr(alternatives, "\"shape\":[2,3]"));
    tinkc_engine_free(engine);
}

/* The numbers of the first list behind a name. */
static void numbers_of(const char *json, const char *name, double *out, size_t n)
{
    const char *at = strstr(json, name);
    assert_non_null(at);
    for (size_t i = 0; i < n; i++) {
        at += strcspn(at + 1, "-0123456789") + 1;
        out[i] = strtod(at, (char **)&at);
    }
}

/* A sparse tensor scores some cells of a dense one; the ids that are drawn score as they do as targets. */
TEST(sparse_and_drawn)
{
    enum { CELLS = 6 };
    char drawn_ids[200];
    const char *const tensors[] = {
        "{\"data\":[5,6,7,8,9,10],\"dtype\":\"int64\",\"shape\":[2,3]}",
        "{\"data\":[7,8,9],\"dtype\":\"int64\",\"shape\":[2,3],\"sparse_crow_indices\":[0,1,3],"
        "\"sparse_col_indices\":[2,0,1]}",
        "{\"data\":[8,10],\"dtype\":\"int64\",\"shape\":[2,3],\"sparse_crow_indices\":[0,0,2],"
        "\"sparse_col_indices\":[0,2]}",
        drawn_ids
    };
    static const struct {
        size_t n, cells[CELLS];
    } rows[] = { { CELLS, { 0, 1, 2, 3, 4, 5 } }, { 3, { 2, 3, 4 } }, { 2, { 3, 5 } }, { CELLS, { 0 } } };
    double dense[CELLS], some[CELLS], ids[CELLS], drawn[CELLS];
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    for (size_t i = 0; i < 4; i++) {
        const char *sampled =
            hold(wait_for(t, service_json(t, 200, "POST", "/api/v1/asample",
                                          "{\"base_model\":\"tiny\",\"num_samples\":1,"
                                          "\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,5,9]}]},"
                                          "\"sampling_params\":{\"max_tokens\":1,\"seed\":1},"
                                          "\"target_prompt_logprobs\":%s,\"prompt_alt_tokens_k\":3}",
                                          tensors[i])));
        numbers_of(sampled, "\"target_prompt_logprobs\":{\"data\":", some, rows[i].n);
        for (size_t k = 0; k < rows[i].n; k++)
            assert_true(some[k] < 0 && (i % 3 == 0 || some[k] == dense[rows[i].cells[k]]));
        if (i == 0)
            memcpy(dense, some, sizeof dense);
        if (i == 0) { /* the ids that were drawn are scored next */
            numbers_of(sampled, "\"prompt_alt_tokens\":{\"tokens\":{\"data\":", ids, CELLS);
            numbers_of(strstr(sampled, "\"prompt_alt_tokens\""), "\"logprobs\":{\"data\":", drawn, CELLS);
            snprintf(drawn_ids, sizeof drawn_ids,
                     "{\"data\":[%.0f,%.0f,%.0f,%.0f,%.0f,%.0f],\"dtype\":\"int64\",\"shape\":[2,3]}", ids[0], ids[1],
                     ids[2], ids[3], ids[4], ids[5]);
        }
        if (i == 3)
            assert_memory_equal(some, drawn, sizeof drawn);
    }
    tinkc_engine_free(engine);
}

/* Old clients refuse a list with a kind of checkpoint that they do not know. */
TEST(external_weights_are_listed_for_who_knows_them)
{
    static const struct {
        const char *runtime, *version;
        bool listed;
    } rows[] = {
        { "CPython", "0.25.0", false }, { "CPython", "0.27.2", false }, { "PyPy", "0.9", false },
        { "CPython", "0.28.0", true },  { "CPython", "0.36.0", true },  { "CPython", "1.0.0", true },
        { "CPython", "x", true },       { "C", "0.25.0", true },
    };
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    wait_for(t, service_json(t, 200, "POST", "/api/v1/save_weights",
                             "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model));
    wait_for(t, service_json(t, 200, "POST", "/api/v1/save_weights_external",
                             "{\"model_id\":\"%s\",\"seq_id\":2,\"path\":\"b\"}", model));
    char of_run[200];
    snprintf(of_run, sizeof of_run, "/api/v1/training_runs/%s/checkpoints", model);
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        const char *const headers[] = { "X-Stainless-Runtime", rows[i / 2].runtime, "X-Stainless-Package-Version",
                                        rows[i / 2].version, NULL };
        answer a = service_call(t, "GET", i % 2 ? of_run : "/api/v1/checkpoints", headers, "", 0);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body.data, "\"weights/a\""));
        if ((strstr(a.body.data, "external") != NULL) != rows[i / 2].listed)
            fail_msg("%s %s: %s", rows[i / 2].runtime, rows[i / 2].version, a.body.data);
        answer_free(&a);
    }
    tinkc_engine_free(engine);
}

/* ---- one poll for all samples of a sampling session ---- */

static const char *poll_all(const tinkc_transport *t, int status, const char *sampler, int64_t clone, double cursor)
{
    return service_json(t, status, "POST", "/api/v1/retrieve_futures",
                        "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":\"%s\","
                        "\"cloned_sampler_id\":%lld},\"prev_cursor\":%.0f,"
                        "\"retrieved_request_ids\":[\"nobody's\"]}",
                        sampler, (long long)clone, cursor);
}

static const char *start_sample(const tinkc_transport *t, const char *sampler, int64_t number)
{
    return hold(json_field(service_json(t, 200, "POST", "/api/v1/asample",
                                        "{\"sampling_session_id\":\"%s\",\"seq_id\":%lld,\"prompt\":{\"chunks\":[{"
                                        "\"type\":\"encoded_text\",\"tokens\":[1,2]}]},\"num_samples\":1,"
                                        "\"sampling_params\":{\"max_tokens\":4}}",
                                        sampler, (long long)number),
                           "request_id"));
}

/* In whatever order the samples are listed. */
TEST(the_cursor_of_a_poll_is_the_newest_number)
{
    tinkc_engine *engine = world_open(NULL, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *sampler =
        hold(json_field(service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                                     "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"tiny\"}",
                                     service_session(t)),
                        "sampling_session_id"));
    const char *one = start_sample(t, sampler, 1), *two = start_sample(t, sampler, 2);
    service_wait(t, one);
    service_wait(t, two);
    tke_service *svc = tke_engine_service(engine);
    tke_job *job;
    int64_t number = 1000;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (job = tke_next_job(svc, &at));)
        if (job->kind == TKE_JOB_SAMPLE)
            job->done_number = number--;
    svc->polls->n_samples_done = 1000;
    pthread_mutex_unlock(&svc->lock);
    const char *all = poll_all(t, 200, sampler, 0, 0);
    assert_true(strstr(all, two) && json_number(all, "cursor") >= 999);
    tinkc_engine_free(engine);
}

/* ---- custom losses ---- */

#define REF(name) "{\"ref\":\"" name "\"}"
#define CALL(name, target, args)                                                                                       \
    "{\"op\":\"call_function\",\"name\":\"" name "\",\"target\":\"" target "\",\"args\":[" args "]}"
#define PLACE(name) "{\"op\":\"placeholder\",\"name\":\"" name "\",\"target\":\"" name "\"}"
/* -sum(exp(logprobs - q) * advantages), which is importance_sampling; its metrics are the number of
 * tokens and the mean of log-probs. */
/* clang-format off */
#define WEIGHTED(factor)                                                                           \
    "{\"format\":1,\"nodes\":["                                                                    \
    PLACE("logprobs") "," PLACE("q") "," PLACE("advantages") ","                                   \
    CALL("off", "operator.sub", REF("logprobs") "," REF("q")) ","                                  \
    CALL("r", "torch.exp", REF("off")) ","                                                         \
    CALL("ra", "operator.mul", REF("r") "," REF("advantages")) ","                                 \
    CALL("s", "torch.sum", REF("ra")) ","                                                          \
    CALL("l", "operator.mul", REF("s") "," factor) ","                                             \
    CALL("n", "torch.numel", REF("ra")) ","                                                        \
    CALL("m", "torch.mean", REF("logprobs")) ","                                                   \
    "{\"op\":\"output\",\"name\":\"output\",\"target\":\"output\",\"args\":[{\"tuple\":["            \
    REF("l") ",{\"dict\":{\"custom/n:sum\":" REF("n") ",\"custom/n:mean\":" REF("n")               \
    ",\"custom/lp:mean\":" REF("m") "}}]}]}]}"
/* clang-format on */
#define CUSTOM_INPUTS                                                                                                  \
    "[{\"name\":\"logprobs\",\"rank\":1},{\"name\":\"q\",\"rank\":1},{\"name\":\"advantages\","                        \
    "\"rank\":1}]"

static const char *create_loss(const tinkc_transport *t, int status, const char *session, int number, const char *graph,
                               const char *more)
{
    return service_json(t, status, "POST", "/api/v1/create_custom_loss",
                        "{\"session_id\":\"%s\",\"custom_loss_seq_id\":%d,\"name\":\"mine\","
                        "\"inputs\":" CUSTOM_INPUTS ",\"graph\":%s%s}",
                        session, number, graph, more);
}

/* Two sequences of three and two tokens; q is the name of what the sampler found. */
static const char *two_sequences(const tinkc_transport *t, const char *model, int64_t seq, const char *kind,
                                 const char *loss, const char *q)
{
    char rest[1600];
    snprintf(rest, sizeof rest,
             ",\"%s\":{%s,\"data\":[{\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\","
             "\"tokens\":[1,5,9]}]},\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[5,9,2],"
             "\"dtype\":\"int64\"},\"%s\":{\"data\":[-4,-4.5,-4],\"dtype\":\"float32\"},"
             "\"advantages\":{\"data\":[1,-0.5,2],\"dtype\":\"float32\"}}},{\"model_input\":{"
             "\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[7,8]}]},\"loss_fn_inputs\":{"
             "\"target_tokens\":{\"data\":[3,4],\"dtype\":\"int64\"},\"%s\":{\"data\":[-4,-5],"
             "\"dtype\":\"float32\"},\"advantages\":{\"data\":[0.5,1],\"dtype\":\"float32\"}}}]}",
             kind, loss, q, q);
    return post(t, "/api/v1/forward_backward", model, seq, rest);
}

static const char *with_id(const char *id)
{
    static char text[300];
    snprintf(text, sizeof text, "\"loss_fn\":\"custom\",\"loss_fn_config\":{\"loss_id\":\"%s\"}", id);
    return text;
}

static const char *loss_id_of(const tinkc_transport *t, const char *promise)
{
    return hold(json_field(service_wait(t, hold(json_field(promise, "request_id"))), "loss_id"));
}

/* The outputs of a result, without its metrics. */
static const char *outputs_of(const char *result)
{
    const char *from = strstr(result, "\"loss_fn_outputs\""), *to = strstr(result, ",\"metrics\"");
    assert_true(from && to && to > from);
    static char text[2][4000];
    static int turn;
    turn = !turn;
    snprintf(text[turn], sizeof text[turn], "%.*s", (int)(to - from), from);
    return text[turn];
}

TEST(a_custom_loss_is_stored_and_run)
{
    const char *const settings[] = { "emit_elementwise_loss", "false", NULL };
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    assert_non_null(strstr(service_json(t, 200, "POST", "/api/v1/client/config", "{\"sdk_version\":\"0.36.0\"}"),
                           "\"custom_loss_server_side\":true"));
    const char *session = hold(service_session(t));
    const char *custom = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *built_in = hold(service_model(t, session, 1, "tiny", 4, 7));
    const char *id = loss_id_of(t, create_loss(t, 200, session, 0, WEIGHTED("-1"), ""));
    for (int i = 0; i < 2; i++) { /* without a gradient, and with one */
        const char *kind = i ? "forward_backward_input" : "forward_input";
        const char *mine = hold(service_wait(t, two_sequences(t, custom, i + 1, kind, with_id(id), "q")));
        const char *other = hold(service_wait(
            t, two_sequences(t, built_in, i + 1, kind, "\"loss_fn\":\"importance_sampling\"", "logprobs")));
        assert_true(fabs(json_number(mine, "loss:sum") - json_number(other, "loss:sum")) < 1e-5);
        assert_true(json_number(mine, "num_tokens:sum") == 5.0);
        assert_true(json_number(mine, "custom/n:sum") == 5.0);
        assert_true(json_number(mine, "custom/n:mean") == 2.5); /* by datum, not by token */
        assert_true(json_number(mine, "num_loss_tokens:sum") == 5.0);
        assert_string_equal(outputs_of(mine), outputs_of(other));
    }
    service_wait(t, service_step(t, custom, 3, 1e-2));
    service_wait(t, service_step(t, built_in, 3, 1e-2));
    double after = service_loss(t, custom, 4, text_a, N);
    assert_true(fabs(after - service_loss(t, built_in, 4, text_a, N)) < 1e-4);
    const char *fresh = hold(service_model(t, session, 2, "tiny", 4, 7));
    assert_true(fabs(after - service_loss(t, fresh, 1, text_a, N)) > 1e-3); /* it has learnt */
    tinkc_engine_free(engine);
}

/* After a restart, and after a sudden end: there passes of the journal run again. */
TEST(custom_losses_are_kept)
{
    const char *const settings[] = { "disk_reserve", "0", NULL };
    static const char gradient[] = "forward_backward_input";
    char *store = tiny_folder();
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_JOURNAL, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *promise = hold(create_loss(t, 200, session, 0, WEIGHTED("-1"), ""));
    const char *future = hold(json_field(promise, "request_id"));
    const char *id = loss_id_of(t, promise);
    service_wait(t, two_sequences(t, model, 1, gradient, with_id(id), "q"));
    char *copy = copy_store(store); /* the machine ends here */
    service_wait(t, service_step(t, model, 2, 1e-2));
    double want = service_loss(t, model, 3, text_a, N);
    tinkc_engine_free(engine);
    for (int i = 0; i < 2; i++) {
        engine = world_open(i ? copy : store, TINKC_DURABILITY_JOURNAL, settings);
        t = tinkc_engine_transport(engine);
        assert_string_equal(json_field(service_wait(t, future), "loss_id"), id);
        assert_string_equal(create_loss(t, 200, session, 0, WEIGHTED("-1"), ""), promise);
        if (i) { /* the gradient was made again */
            service_wait(t, service_step(t, model, 2, 1e-2));
            assert_true(service_loss(t, model, 3, text_a, N) == want);
        }
        service_wait(t, two_sequences(t, model, 4, gradient, with_id(id), "q"));
        tinkc_engine_free(engine);
    }
    tiny_model_remove(store);
    tiny_model_remove(copy);
}

/* A request of so many bytes, most of them spaces. */
static const char *create_large(const tinkc_transport *t, int status, const char *session, int number, size_t bytes)
{
    char head[200];
    int n = snprintf(head, sizeof head,
                     "{\"session_id\":\"%s\",\"custom_loss_seq_id\":%d,\"name\":\"mine\",\"inputs\":", session, number);
    size_t rest = (size_t)n + strlen(CUSTOM_INPUTS ",\"graph\":" WEIGHTED("-1") "}");
    assert_true(bytes > rest);
    return service_json(t, status, "POST", "/api/v1/create_custom_loss", "%s%*s%s", head, (int)(bytes - rest), "",
                        CUSTOM_INPUTS ",\"graph\":" WEIGHTED("-1") "}");
}

/* 256 KiB for a loss, 4 MiB and 64 losses for a session; a restart does not give room. */
TEST(custom_losses_have_limits)
{
    enum { LARGE = 256 << 10 };
    const char *const settings[] = { "disk_reserve", "0", NULL };
    char *store = tiny_folder();
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *large = hold(service_session(t)), *many = hold(service_session(t));
    assert_non_null(strstr(create_large(t, 413, large, 0, LARGE + 1), "at most 262144"));
    for (int i = 0; i < 16; i++)
        create_large(t, 200, large, i, LARGE);
    for (int i = 0; i < 64; i++)
        create_loss(t, 200, many, i, WEIGHTED("-1"), "");
    for (int i = 0; i < 2; i++) {
        assert_non_null(strstr(create_loss(t, 400, large, 16, WEIGHTED("-1"), ""), "4096 KiB"));
        create_large(t, 200, large, 15, LARGE); /* that is not one more */
        assert_non_null(strstr(create_loss(t, 400, many, 64, WEIGHTED("-1"), ""), "64 custom"));
        tinkc_engine_free(engine);
        engine = i ? NULL : world_open(store, TINKC_DURABILITY_SNAPSHOT, settings);
        t = i ? NULL : tinkc_engine_transport(engine);
    }
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
