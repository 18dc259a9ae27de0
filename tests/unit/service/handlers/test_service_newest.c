/* test_service_newest.c - what clients from 0.30 to 0.38 ask for: external weights and their links,
 * scores of chosen ids and alternatives at prompt positions, numbers for copies of samplers. */
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

TEST(external_weights_have_an_address_for_each_file)
{
    char *store = tiny_folder(), path[400];
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *saved = hold(wait_for(
        t, service_json(t, 200, "POST", "/api/v1/save_weights_external",
                        "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"out\",\"ttl_seconds\":3600}",
                        model)));
    assert_non_null(strstr(saved, "/external_weights/out\""));
    assert_true(json_number(saved, "size_bytes") > 100);
    service_wait_failure(
        t,
        hold(json_field(service_json(t, 200, "POST", "/api/v1/save_weights_external",
                                     "{\"model_id\":\"%s\",\"seq_id\":2,\"path\":\"secret\","
                                     "\"age_encryption_recipients\":[\"age1x\"]}",
                                     model),
                        "request_id")),
        "user", "age_encryption_recipients");
    const char *list = service_json(t, 200, "GET", "/api/v1/checkpoints", "%s", "");
    assert_non_null(strstr(list, "\"checkpoint_type\":\"external\""));
    snprintf(path, sizeof path,
             "/api/v1/training_runs/%s/checkpoints/external_weights/out/external_weights_urls",
             model);
    const char *urls = hold(service_json(t, 200, "GET", path, "%s", ""));
    assert_non_null(strstr(urls, "\"expires\":\""));
    const char *link = hold(json_field(urls, "adapter_model.safetensors"));
    answer a = service_call(t, "GET", strstr(link, "/api/v1/"), NULL, "", 0);
    assert_int_equal(a.status, 200);
    assert_true(a.body.len > 100);
    answer_free(&a);
    /* Nothing else of the store can be had with the same link. */
    snprintf(path, sizeof path, "%s", strstr(link, "/api/v1/"));
    strcpy(strrchr(path, '/'), "/checksums");
    service_json(t, 404, "GET", path, "%s", "");
    strcpy(strrchr(path, '/'), "/..");
    service_json(t, 404, "GET", path, "%s", "");
    /* It is still there after a restart, and can be deleted. */
    tinkc_engine_free(engine);
    engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, NULL);
    t = tinkc_engine_transport(engine);
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/external_weights/out", model);
    answer gone = service_call(t, "DELETE", path, NULL, "", 0);
    assert_int_equal(gone.status, 204);
    answer_free(&gone);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
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
    char *found = external ? strdup(json_field(a.body.data, "adapter_model.safetensors"))
                           : strdup(a.location);
    answer_free(&a);
    snprintf(path, sizeof path, "%s%s", strstr(found, "/api/v1/"),
             external ? "" : "/adapter_model.safetensors");
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
    char *folder = tiny_model_make(
        &(tiny_model){ .family = "qwen2", .vocab = 64, .context = 64, .tied = true });
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

static const char *save(const tinkc_transport *t, const char *model, int seq, const char *rest)
{
    return hold(
        wait_for(t, service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                                 "{\"model_id\":\"%s\",\"seq_id\":%d,%s}", model, seq, rest)));
}

/* Which of a, b, c (saved in this order) a search finds, newest first. */
TEST(checkpoints_are_searched)
{
    static const struct {
        const char *rest, *names;
    } rows[] = {
        { "", "cba" },
        { "\"user_metadata\":{\"x\":\"1\"}", "ca" },
        { "\"user_metadata\":{\"x\":\"1\",\"y\":\"2\"}", "c" },
        { "\"checkpoint_type\":\"sampler\"", "cba" },
        { "\"checkpoint_type\":\"training\"", "" },
        { "\"base_models\":[\"other\",\"tiny\"]", "cba" },
        { "\"base_models\":[\"other\"]", "" },
        { "\"base_models\":[]", "" },
        { "\"base_models\":null,\"project_ids\":null", "cba" },
        { "\"owner\":{\"type\":\"accessible\"}", "cba" },
        { "\"owner\":{\"type\":\"user\",\"owner_urns\":[\"tml:organization_user:x\"]}", "" },
    };
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    save(t, model, 1, "\"path\":\"a\",\"user_metadata\":{\"x\":\"1\"}");
    save(t, model, 2, "\"path\":\"b\"");
    save(t, model, 3, "\"path\":\"c\",\"user_metadata\":{\"x\":\"1\",\"y\":\"2\"}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *found =
            service_json(t, 200, "POST", "/api/v1/checkpoints/search", "{%s}", rows[i].rest);
        char names[8] = "";
        for (const char *at = found; (at = strstr(at, "sampler_weights/")); at += 16)
            if (at[-1] == '"') /* checkpoint_id; the path has it again */
                strncat(names, at + 16, 1);
        assert_string_equal(names, rows[i].names);
        assert_int_equal(strstr(found, "\"base_model\":\"tiny\"") != NULL, names[0] != '\0');
    }
    tinkc_engine_free(engine);
}

/* Pages follow each other without gap or repetition, and the last one says so. */
TEST(pages_of_a_checkpoint_search)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    char cursor[300] = "", seen[8] = "";
    for (int i = 0; i < 5; i++) {
        char rest[40];
        snprintf(rest, sizeof rest, "\"path\":\"%c\"", 'a' + i);
        save(t, model, i + 1, rest);
    }
    for (int page = 0; page < 3; page++) {
        const char *found =
            service_json(t, 200, "POST", "/api/v1/checkpoints/search", "{\"limit\":2%s}", cursor);
        for (const char *at = found; (at = strstr(at, "\"sampler_weights/")); at += 17)
            strncat(seen, at + 17, 1);
        const char *next = strstr(found, "\"next_cursor\":{");
        assert_int_equal(next != NULL, page < 2);
        if (next)
            snprintf(cursor, sizeof cursor, ",\"cursor\":%.*s",
                     (int)(strchr(next, '}') - next) - 13, next + 14);
    }
    assert_string_equal(seen, "edcba");
    static const char *const bad[] = { "\"limit\":0",
                                       "\"limit\":201",
                                       "\"checkpoint_type\":\"all\"",
                                       "\"owner\":{\"type\":\"all\"}",
                                       "\"owner\":{\"type\":\"user\",\"owner_urns\":[]}",
                                       "\"cursor\":{\"x\":1}" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        service_json(t, 422, "POST", "/api/v1/checkpoints/search", "{%s}", bad[i]);
    service_json(t, 403, "POST", "/api/v1/checkpoints/search", "{\"project_ids\":[\"theirs\"]}");
    tinkc_engine_free(engine);
}

/* A snapshot is what a save without a kind makes; other kinds are refused by name. */
TEST(kinds_of_sampler_saves)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *saved = wait_for(
        t, service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                        "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\",\"kind\":\"snapshot\"}",
                        model));
    assert_non_null(strstr(saved, "/sampler_weights/a\""));
    service_wait_failure(
        t,
        hold(json_field(service_json(t, 200, "POST", "/api/v1/save_weights_for_sampler",
                                     "{\"model_id\":\"%s\",\"seq_id\":2,"
                                     "\"sampling_session_seq_id\":5,\"kind\":\"inflight\"}",
                                     model),
                        "request_id")),
        "user", "kind: 'inflight' is not supported");
    tinkc_engine_free(engine);
}

TEST(targets_and_alternatives)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *sampled = hold(wait_for(
        t, service_json(t, 200, "POST", "/api/v1/asample",
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
    static const char *const bad[] = {
        "\"target_prompt_logprobs\":{\"data\":[5],\"dtype\":\"int64\",\"shape\":[1,1]}",
        "\"target_prompt_logprobs\":{\"data\":[5,64],\"dtype\":\"int64\",\"shape\":[2,1]}",
        "\"target_prompt_logprobs\":{\"data\":[5,-2],\"dtype\":\"int64\",\"shape\":[2,1]}",
        "\"target_prompt_logprobs\":{\"data\":[5,6],\"dtype\":\"float32\",\"shape\":[2,1]}",
        "\"prompt_alt_tokens_k\":-1",
        "\"prompt_alt_tokens_k\":100000",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        service_json(t, 400, "POST", "/api/v1/asample",
                     "{\"base_model\":\"tiny\",\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\","
                     "\"tokens\":[1,5,9]}]},\"sampling_params\":{\"max_tokens\":1},%s}",
                     bad[i]);
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
    } rows[] = {
        { CELLS, { 0, 1, 2, 3, 4, 5 } }, { 3, { 2, 3, 4 } }, { 2, { 3, 5 } }, { CELLS, { 0 } }
    };
    double dense[CELLS], some[CELLS], ids[CELLS], drawn[CELLS];
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    for (size_t i = 0; i < 4; i++) {
        const char *sampled = hold(wait_for(
            t,
            service_json(t, 200, "POST", "/api/v1/asample",
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
            numbers_of(strstr(sampled, "\"prompt_alt_tokens\""), "\"logprobs\":{\"data\":", drawn,
                       CELLS);
            snprintf(
                drawn_ids, sizeof drawn_ids,
                "{\"data\":[%.0f,%.0f,%.0f,%.0f,%.0f,%.0f],\"dtype\":\"int64\",\"shape\":[2,3]}",
                ids[0], ids[1], ids[2], ids[3], ids[4], ids[5]);
        }
        if (i == 3)
            assert_memory_equal(some, drawn, sizeof drawn);
    }
    tinkc_engine_free(engine);
}

/* Nothing in a request is ignored in silence. */
TEST(unknown_fields_are_refused)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    static const struct {
        int status;
        const char *more, *said;
    } cases[] = { { 200, "\"new_default\":false,\"other\":null,\"third\":[],\"fourth\":0", "" },
                  { 200, "\"record_stability_info\":false", "" },
                  { 400, "\"record_stability_info\":true", "record_stability_info: this server" },
                  { 400, "\"presence_penalty\":0.5", "unknown_field" },
                  { 400, "\"logit_bias\":{\"5\":1}", "unknown_field" } };
    for (size_t i = 0; i < 5; i++) {
        const char *said = service_json(t, cases[i].status, "POST", "/api/v1/asample",
                                        "{\"base_model\":\"tiny\",\"prompt\":{\"chunks\":[{"
                                        "\"type\":\"encoded_text\",\"tokens\":"
                                        "[1,5,9]}]},\"sampling_params\":{\"max_tokens\":1},%s}",
                                        cases[i].more);
        assert_non_null(strstr(said, cases[i].said));
    }
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    service_wait_failure(
        t,
        hold(json_field(service_json(t, 200, "POST", "/api/v1/save_weights",
                                     "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\","
                                     "\"encrypt_with\":\"x\"}",
                                     model),
                        "request_id")),
        "user", "encrypt_with");
    const char *models = service_json(t, 200, "GET", "/api/v1/get_server_capabilities", "%s", "");
    assert_non_null(strstr(models, "\"trainable\":true,\"sampleable\":true"));
    tinkc_engine_free(engine);
}

TEST(copies_get_numbers)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *made = service_json(
        t, 200, "POST", "/api/v1/create_sampling_session",
        "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"tiny\"}",
        service_session(t));
    const char *id = hold(json_field(made, "sampling_session_id"));
    for (int i = 1; i < 4; i++)
        assert_int_equal(json_number(service_json(t, 200, "POST", "/api/v1/join_sampling_session",
                                                  "{\"sampling_session_id\":\"%s\"}", id),
                                     "client_counter"),
                         i);
    service_json(t, 404, "POST", "/api/v1/join_sampling_session",
                 "{\"sampling_session_id\":\"%s\"}", "nobody");
    tinkc_engine_free(engine);
}

/* The same in passes, at every depth. */
TEST(unknown_fields_of_passes)
{
    static const struct {
        const char *refused; /* NULL = it is trained on */
        const char *top, *input, *datum, *text, *chunk, *tensor;
    } rows[] = {
        { NULL, "", "", "", "", "", "" },
        { NULL, ",\"new\":null", ",\"new\":0", ",\"new\":[]", ",\"new\":\"\"", ",\"new\":{}",
          ",\"new\":false" },
        { NULL, ",\"type\":\"forward_backward\"", "",
          ",\"model_input_spans\":[{\"length\":3}],\"loss_fn_input_spans\":[{\"length\":3}]", "",
          "", "" },
        { "'top'", ",\"top\":1", "", "", "", "", "" },
        { "'input'", "", ",\"input\":1", "", "", "", "" },
        { "'datum'", "", "", ",\"datum\":1", "", "", "" },
        { "'text'", "", "", "", ",\"text\":1", "", "" },
        { "'chunk'", "", "", "", "", ",\"chunk\":1", "" },
        { "'tensor'", "", "", "", "", "", ",\"tensor\":1" },
        { "loss_fn_config.reduction: a number is needed, not a text", "",
          ",\"loss_fn_config\":{\"reduction\":\"mean\"}", "", "", "", "" },
    };
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *made = service_json(
            t, 200, "POST", "/api/v1/forward_backward",
            "{\"model_id\":\"%s\",\"seq_id\":%zu%s,\"forward_backward_input\":{\"loss_fn\":"
            "\"cross_entropy\"%s,\"data\":[{\"model_input\":{\"chunks\":[{\"type\":\"encoded_"
            "text\","
            "\"tokens\":[1,5,9]%s}]%s},\"loss_fn_inputs\":{\"target_tokens\":{\"data\":[5,9,2],"
            "\"dtype\":\"int64\"%s},\"weights\":{\"data\":[1,1,1],\"dtype\":\"float32\"}}%s}]}}",
            model, i + 1, rows[i].top, rows[i].input, rows[i].chunk, rows[i].text, rows[i].tensor,
            rows[i].datum);
        const char *future = hold(json_field(made, "request_id"));
        if (rows[i].refused)
            service_wait_failure(t, future, "user", rows[i].refused);
        else
            service_wait(t, future);
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
        { "CPython", "0.25.0", false }, { "CPython", "0.27.2", false },
        { "PyPy", "0.9", false },       { "CPython", "0.28.0", true },
        { "CPython", "0.36.0", true },  { "CPython", "1.0.0", true },
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
        const char *const headers[] = { "X-Stainless-Runtime", rows[i / 2].runtime,
                                        "X-Stainless-Package-Version", rows[i / 2].version, NULL };
        answer a = service_call(t, "GET", i % 2 ? of_run : "/api/v1/checkpoints", headers, "", 0);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body.data, "\"weights/a\""));
        if ((strstr(a.body.data, "external") != NULL) != rows[i / 2].listed)
            fail_msg("%s %s: %s", rows[i / 2].runtime, rows[i / 2].version, a.body.data);
        answer_free(&a);
    }
    tinkc_engine_free(engine);
}

TEST(a_checkpoint_may_be_published_again)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    wait_for(t, service_json(t, 200, "POST", "/api/v1/save_weights",
                             "{\"model_id\":\"%s\",\"seq_id\":1,\"path\":\"a\"}", model));
    char path[300];
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/a/publish", model);
    assert_null(strstr(service_json(t, 200, "POST", path, "%s", ""), "changed"));
    assert_non_null(strstr(service_json(t, 200, "POST", path, "%s", ""), "\"changed\":false"));
    tinkc_engine_free(engine);
}

/* ---- one poll for all samples of a sampling session ---- */

static const char *poll_all(const tinkc_transport *t, int status, const char *sampler,
                            int64_t clone, double cursor)
{
    return service_json(t, status, "POST", "/api/v1/retrieve_futures",
                        "{\"target\":{\"type\":\"sampling_session\",\"sampling_session_id\":\"%s\","
                        "\"cloned_sampler_id\":%lld},\"prev_cursor\":%.0f,"
                        "\"retrieved_request_ids\":[\"nobody's\"]}",
                        sampler, (long long)clone, cursor);
}

static const char *start_sample(const tinkc_transport *t, const char *sampler, int64_t number)
{
    return hold(json_field(
        service_json(t, 200, "POST", "/api/v1/asample",
                     "{\"sampling_session_id\":\"%s\",\"seq_id\":%lld,\"prompt\":{\"chunks\":[{"
                     "\"type\":\"encoded_text\",\"tokens\":[1,2]}]},\"num_samples\":1,"
                     "\"sampling_params\":{\"max_tokens\":4}}",
                     sampler, (long long)number),
        "request_id"));
}

TEST(one_poll_for_all)
{
    tinkc_engine *engine = world_open(NULL, TINKC_DURABILITY_SNAPSHOT, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *sampler = hold(json_field(
        service_json(
            t, 200, "POST", "/api/v1/create_sampling_session",
            "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,\"base_model\":\"tiny\"}",
            service_session(t)),
        "sampling_session_id"));
    poll_all(t, 404, "no-such-sampler", 0, 0);
    service_json(t, 422, "POST", "/api/v1/retrieve_futures", "%s", "{\"target\":{}}");
    poll_all(t, 408, sampler, 0, 0); /* nothing is under way */
    const char *ids[] = { start_sample(t, sampler, 1), start_sample(t, sampler, 2),
                          start_sample(t, sampler, 3) };
    const char *copy = start_sample(t, sampler, 7000000001);
    double cursor = 0;
    for (size_t seen = 0, polls = 0; seen < 3; polls++) { /* held until there is news */
        assert_true(polls < 3);
        const char *news = hold(poll_all(t, 200, sampler, 0, cursor));
        for (size_t i = 0; i < 3; i++)
            seen += strstr(news, ids[i]) != NULL;
        assert_null(strstr(news, copy)); /* that is another client's */
        assert_non_null(strstr(news, "{\"state\":\"finished\",\"request_id\":\""));
        assert_true(json_number(news, "response_payload_uncompressed_size") > 0);
        assert_true(json_number(news, "cursor") > cursor);
        cursor = json_number(news, "cursor");
    }
    poll_all(t, 408, sampler, 0, cursor); /* all of them were reported */
    assert_non_null(strstr(poll_all(t, 200, sampler, 7, 0), copy));
    /* A cursor from before a restart: the list begins at its start. */
    assert_non_null(strstr(poll_all(t, 200, sampler, 7, 5), copy));
    poll_all(t, 408, sampler, 7, 4);
    service_wait(t, ids[0]); /* the result itself is fetched as ever */
    /* The cursor is the newest number, in whatever order the samples are listed. */
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
    assert_true(strstr(all, ids[1]) && json_number(all, "cursor") >= 999);
    tinkc_engine_free(engine);
}

/* ---- custom losses ---- */

#define REF(name) "{\"ref\":\"" name "\"}"
#define CALL(name, target, args)                                                                   \
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
#define CUSTOM_INPUTS                                                                              \
    "[{\"name\":\"logprobs\",\"rank\":1},{\"name\":\"q\",\"rank\":1},{\"name\":\"advantages\","    \
    "\"rank\":1}]"

static const char *create_loss(const tinkc_transport *t, int status, const char *session,
                               int number, const char *graph, const char *more)
{
    return service_json(t, status, "POST", "/api/v1/create_custom_loss",
                        "{\"session_id\":\"%s\",\"custom_loss_seq_id\":%d,\"name\":\"mine\","
                        "\"inputs\":" CUSTOM_INPUTS ",\"graph\":%s%s}",
                        session, number, graph, more);
}

/* Two sequences of three and two tokens; q is the name of what the sampler found. */
static const char *two_sequences(const tinkc_transport *t, const char *model, int64_t seq,
                                 const char *kind, const char *loss, const char *q)
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
    snprintf(text, sizeof text, "\"loss_fn\":\"custom\",\"loss_fn_config\":{\"loss_id\":\"%s\"}",
             id);
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
    assert_non_null(strstr(
        service_json(t, 200, "POST", "/api/v1/client/config", "{\"sdk_version\":\"0.36.0\"}"),
        "\"custom_loss_server_side\":true"));
    const char *session = hold(service_session(t));
    const char *custom = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *built_in = hold(service_model(t, session, 1, "tiny", 4, 7));
    const char *id = loss_id_of(t, create_loss(t, 200, session, 0, WEIGHTED("-1"), ""));
    for (int i = 0; i < 2; i++) { /* without a gradient, and with one */
        const char *kind = i ? "forward_backward_input" : "forward_input";
        const char *mine =
            hold(service_wait(t, two_sequences(t, custom, i + 1, kind, with_id(id), "q")));
        const char *other =
            hold(service_wait(t, two_sequences(t, built_in, i + 1, kind,
                                               "\"loss_fn\":\"importance_sampling\"", "logprobs")));
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

/* One loss for each number of a session; a failed pass changes nothing. */
TEST(custom_losses_belong_to_a_session)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t)), *other = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *promise = hold(create_loss(t, 200, session, 0, WEIGHTED("-1"), ""));
    const char *id = loss_id_of(t, promise);
    assert_string_equal(create_loss(t, 200, session, 0, WEIGHTED("-1"), ""), promise);
    assert_non_null(strstr(create_loss(t, 400, session, 0, WEIGHTED("-2"), ""),
                           "custom_loss_seq_id was reused with different parameters"));
    create_loss(t, 404, "nobody", 0, WEIGHTED("-1"), "");
    assert_non_null(strstr(create_loss(t, 400, session, 1, WEIGHTED("-1"), ",\"new\":1"), "'new'"));
    assert_non_null(strstr(create_loss(t, 400, session, -1, WEIGHTED("-1"), ""), "negative"));
    assert_non_null(strstr(create_loss(t, 400, session, 1, WEIGHTED("{\"ref\":\"x\"}"), ""),
                           "node 'l': it refers to 'x', which is not an earlier node"));
    assert_non_null(
        strstr(create_loss(t, 400, session, 1, WEIGHTED("-1"), ",\"inputs\":1"), "'inputs'"));
    service_json(t, 422, "POST", "/api/v1/create_custom_loss",
                 "{\"session_id\":\"%s\",\"custom_loss_seq_id\":1,\"name\":\"mine\",\"inputs\":1,"
                 "\"graph\":{}}",
                 session);
    const char *foreign = loss_id_of(t, create_loss(t, 200, other, 0, WEIGHTED("-1"), ""));
    static const char gradient[] = "forward_backward_input";
    const struct {
        const char *loss, *q, *text;
    } rows[] = {
        { hold(with_id(foreign)), "q", "the session of this model has no custom loss" },
        { hold(with_id("x")), "q", "no custom loss 'x'" },
        { "\"loss_fn\":\"custom\"", "q", "it needs a loss_id in loss_fn_config" },
        { "\"loss_fn\":\"ppo\",\"loss_fn_config\":{\"loss_id\":\"x\"}", "logprobs",
          "loss_fn_config has no key 'loss_id' for ppo" },
        { "\"loss_fn\":\"custom\",\"loss_fn_config\":{\"loss_id\":\"x\",\"beta\":1}", "q",
          "loss_fn_config has no key 'beta' for custom" },
        { "\"loss_fn\":\"custom\",\"loss_fn_config\":{\"loss_id\":7}", "q",
          "loss_fn_config.loss_id: a text is needed" },
        { hold(with_id(id)), "p", "datum 0: 'q' is missing; loss 'mine' needs it" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        service_wait_failure(
            t, two_sequences(t, model, (int64_t)i + 1, gradient, rows[i].loss, rows[i].q), "user",
            rows[i].text);
    service_wait(t, two_sequences(t, model, 8, gradient, with_id(id), "q"));
    for (int i = 1; i < 64; i++)
        create_loss(t, 200, other, i, WEIGHTED("-1"), "");
    assert_non_null(strstr(create_loss(t, 400, other, 64, WEIGHTED("-1"), ""),
                           "A session may have 64 custom losses"));
    create_loss(t, 200, other, 63, WEIGHTED("-1"), ""); /* that is not one more */
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

/* The sum of log-probs and a number that is as good as infinite; a metric of that kind. */
#define HUGE_LOSS(loss, metric)                                                                              \
    "{\"format\":1,\"nodes\":[" PLACE("logprobs") "," PLACE("q") "," PLACE("advantages") "," CALL(           \
        "s", "torch.sum",                                                                                    \
        REF("logprobs")) "," CALL("l", "operator.add",                                                       \
                                  REF("s") "," loss) "," CALL("m", "operator.add",                           \
                                                              REF("s") "," metric) ",{\"op\":"               \
                                                                                   "\"output\","             \
                                                                                   "\"name\":"               \
                                                                                   "\"o\","                  \
                                                                                   "\"target\":"             \
                                                                                   "\"o\","                  \
                                                                                   "\"args\":[{"             \
                                                                                   "\"tuple\":"              \
                                                                                   "[" REF(                  \
                                                                                       "l") ",{"             \
                                                                                            "\"di"           \
                                                                                            "ct\""           \
                                                                                            ":{"             \
                                                                                            "\"cu"           \
                                                                                            "stom"           \
                                                                                            "/m:"            \
                                                                                            "mean"           \
                                                                                            "\""             \
                                                                                            ":" REF(         \
                                                                                                "m") "}}]}]" \
                                                                                                     "}]}"

/* Every datum has finite numbers, but their sum or their gradient as a float is not: the request is
 * at fault, and the model stays as it was. */
TEST(custom_losses_beyond_numbers)
{
    static const char gradient[] = "forward_backward_input";
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    static const struct {
        const char *graph, *text;
    } rows[] = {
        { HUGE_LOSS("1.7e308", "0"), "datum 1: the sum of the losses or of a metric" },
        { HUGE_LOSS("0", "1.7e308"), "datum 1: the sum of the losses or of a metric" },
        { WEIGHTED("1e39"), "datum 0: custom loss 'mine': its gradient at position" },
    };
    for (int i = 0; i < 3; i++) {
        const char *id = loss_id_of(t, create_loss(t, 200, session, i, rows[i].graph, ""));
        service_wait_failure(t, two_sequences(t, model, i + 1, gradient, with_id(id), "q"), "user",
                             rows[i].text);
    }
    const char *id = loss_id_of(t, create_loss(t, 200, session, 3, HUGE_LOSS("1", "0.5"), ""));
    const char *fine =
        hold(service_wait(t, two_sequences(t, model, 4, gradient, with_id(id), "q")));
    assert_true(json_number(fine, "num_loss_tokens:sum") == 5.0);
    double sum = json_number(fine, "loss:sum") - 2; /* by datum 1 more than the log-probs */
    assert_true(fabs(json_number(fine, "custom/m:mean") - (sum / 2 + 0.5)) < 1e-9);
    tinkc_engine_free(engine);
}

/* Tokens carry loss where it has a gradient; here the first of each sequence does. */
TEST(custom_losses_of_some_tokens)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *model = hold(service_model(t, session, 0, "tiny", 4, 7));
    static const char graph[] =
        "{\"format\":1,\"nodes\":[" PLACE("logprobs") "," PLACE("q") "," PLACE(
            "advantages") "," CALL("l", "operator.getitem",
                                   REF("logprobs") ",0") ",{\"op\":\"output\",\"name\":\"o\","
                                                         "\"target\":\"o\",\"args\":[{\"tuple\":"
                                                         "[" REF("l") ",{\"dict\":{}}]}]}]}";
    const char *id = loss_id_of(t, create_loss(t, 200, session, 0, graph, ""));
    const char *got =
        service_wait(t, two_sequences(t, model, 1, "forward_backward_input", with_id(id), "q"));
    assert_true(json_number(got, "num_tokens:sum") == 5.0);
    assert_true(json_number(got, "num_loss_tokens:sum") == 2.0);
    tinkc_engine_free(engine);
}

/* What makes it another loss, besides the nodes; and sessions that are over take none. */
TEST(custom_losses_are_compared)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    static const struct {
        const char *name;
        int rank, status;
    } rows[] = { { "mine", 1, 200 }, { "mine", 1, 200 }, { "other", 1, 400 }, { "mine", 0, 400 } };
    for (size_t i = 0; i < 4; i++) {
        const char *said = service_json(
            t, rows[i].status, "POST", "/api/v1/create_custom_loss",
            "{\"session_id\":\"%s\",\"custom_loss_seq_id\":0,\"name\":\"%s\",\"inputs\":[{\"name\":"
            "\"logprobs\",\"rank\":1},{\"name\":\"q\",\"rank\":1},{\"name\":\"advantages\","
            "\"rank\":"
            "%d}],\"graph\":%s}",
            session, rows[i].name, rows[i].rank, WEIGHTED("-1"));
        assert_non_null(strstr(said, rows[i].status == 200 ? "request_id" : "was reused"));
    }
    char path[120];
    snprintf(path, sizeof path, "/api/v1/sessions/%s/finish", session);
    service_json(t, 200, "POST", path, "{\"reason\":{\"type\":\"interrupted\"}}");
    create_loss(t, 410, session, 0, WEIGHTED("-1"), "");
    create_loss(t, 410, session, 1, WEIGHTED("-1"), "");
    tinkc_engine_free(engine);
}

/* A request of so many bytes, most of them spaces. */
static const char *create_large(const tinkc_transport *t, int status, const char *session,
                                int number, size_t bytes)
{
    char head[200];
    int n = snprintf(
        head, sizeof head,
        "{\"session_id\":\"%s\",\"custom_loss_seq_id\":%d,\"name\":\"mine\",\"inputs\":", session,
        number);
    size_t rest = (size_t)n + strlen(CUSTOM_INPUTS ",\"graph\":" WEIGHTED("-1") "}");
    assert_true(bytes > rest);
    return service_json(t, status, "POST", "/api/v1/create_custom_loss", "%s%*s%s", head,
                        (int)(bytes - rest), "", CUSTOM_INPUTS ",\"graph\":" WEIGHTED("-1") "}");
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

static void change_store(const char *folder, const char *sql)
{
    static const tkc_log silent;
    tinkc_error err = { 0 };
    tke_store *store = tke_store_open(NULL, &silent, folder, &err);
    tke_txn *txn = tke_txn_new(store, &err);
    assert_ok(err);
    tke_txn_exec(txn, sql, "");
    tke_txn_commit(txn, NULL, NULL);
    tke_store_sync(store);
    tke_store_close(store);
}

/* A store from before there were custom losses; then a loss that this server does not accept any
 * more: it is left out, and its number can be used for another one, which is there again later. */
TEST(custom_losses_of_other_versions)
{
    const char *const settings[] = { "disk_reserve", "0", NULL };
    char *store = tiny_folder();
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, settings);
    const char *session = hold(service_session(tinkc_engine_transport(engine)));
    const char *loss_id = NULL, *promise = NULL;
    tinkc_engine_free(engine);
    change_store(store, "DROP TABLE custom_losses");
    for (int i = 0; i < 3; i++) {
        engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, settings);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        if (i == 2) /* the second one is known */
            assert_string_equal(
                json_field(service_wait(t, json_field(promise, "request_id")), "loss_id"), loss_id);
        promise = hold(create_loss(t, 200, session, 0, i ? WEIGHTED("-2") : WEIGHTED("-1"), ""));
        loss_id = loss_id_of(t, promise);
        if (i == 2)
            create_loss(t, 400, session, 0, WEIGHTED("-1"), "");
        tinkc_engine_free(engine);
        if (i == 0)
            change_store(store, "UPDATE custom_losses SET body = '{\"session_id\":1}'");
    }
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
