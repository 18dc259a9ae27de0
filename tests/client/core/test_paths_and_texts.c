/* test_paths_and_texts.c - long paths, saved texts, headers and tags, NULL where there is no answer, names of models. */
#include <unistd.h>
#include "client/call/call.h"
#include "client/core/client_priv.h"
#include "client/core/options.h"
#include "client/call/outcome.h"
#include "client/rest/rest_priv.h"
#include "client/sample/sample_op.h"
#include "client/train/trainer.h"
#include "support/client/mock_fixture.h"
#include "support/scarce.h"

#define PAIRS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* What an answer becomes: its message is the service's own where that is part of this process. */
TEST_WITH(errors_of_answers, begin_plain, end_fixture)
{
    static const struct {
        int32_t status;
        const char *body;
        bool local;
        int32_t code;
        bool users;
        const char *message;
    } rows[] = {
        { 400, "{\"detail\":\"no\"}", false, TINKC_E_BAD_REQUEST, true, "HTTP 400: no" },
        { 400, "{\"detail\":\"no\"}", true, TINKC_E_BAD_REQUEST, true, "no" },
        { 400, "", true, TINKC_E_BAD_REQUEST, true, "refused with status 400" },
        { 404, "", false, TINKC_E_NOT_FOUND, true, "HTTP 404" },
        { 418, " tea\npot ", false, TINKC_E_HTTP, true, "HTTP 418: tea pot" },
        { 499, "{}", true, TINKC_E_HTTP, true, "refused with status 499" },
        { 399, "x", false, TINKC_E_HTTP, false, "HTTP 399: x" },
        { 302, "", false, TINKC_E_HTTP, false, "HTTP 302" },
        { 500, "{\"detail\":\"tml-0123456789abcdef0123456789\"}", true, TINKC_E_SERVER, false,
          "tml-**************************" },
        { 599, "x", false, TINKC_E_SERVER, false, "HTTP 599: x" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_bytes body = { (const unsigned char *)rows[i].body, strlen(rows[i].body) };
        tkc_status_error(&err, rows[i].status, body, rows[i].local);
        assert_string_equal(err.message, rows[i].message);
        assert_int_equal(err.code, rows[i].code);
        assert_int_equal(err.http_status, rows[i].status);
        assert_int_equal((err.flags & TINKC_USER_ERROR) != 0, rows[i].users);
    }
    for (size_t len = 65535; len <= 65537; len++) { /* of a longer one the first 64 KiB are read */
        static char body[65538];
        tinkc_error err = { 0 };
        memset(body, ' ', sizeof body);
        memcpy(body, "{\"detail\":\"no\"", 14);
        body[len - 1] = '}';
        tkc_status_error(&err, 400, (tinkc_bytes){ (const unsigned char *)body, len }, false);
        assert_string_equal(err.message, len <= 65536 ? "HTTP 400: no" : "HTTP 400: {\"detail\":\"no\"");
    }
}

static const char *path_of(char *out, size_t run, const char *kind, size_t name)
{
    size_t n = (size_t)sprintf(out, "tinker://");
    memset(out + n, 'r', run);
    n += run;
    n += (size_t)sprintf(out + n, "/%s", kind);
    memset(out + n, 'n', name);
    out[n + name] = '\0';
    return out;
}

TEST_WITH(ids_in_paths_have_a_greatest_length, begin_plain, end_fixture)
{
    fixture *x = *state;
    enum { LAST = TKC_ID_TEXT - 1, PREFIX = sizeof "sampler_weights/" - 1 };
    char text[4 * TKC_ID_TEXT];
    tkc_path_ids run_ids;
    assert_true(tkc_path_ids_parse(path_of(text, LAST, "weights/", 3), &run_ids, &x->err));
    assert_int_equal(strlen(run_ids.run), LAST);
    assert_string_equal(run_ids.checkpoint, "weights/nnn");
    refused(x, tkc_path_ids_parse(path_of(text, LAST + 1, "weights/", 3), &run_ids, &x->err), TINKC_E_PATH,
            "path: a part of it is longer than 1023 bytes");
    assert_true(tkc_path_ids_parse(path_of(text, 1, "weights/", LAST - 8), &run_ids, &x->err));
    assert_int_equal(strlen(run_ids.checkpoint), LAST);
    refused(x, tkc_path_ids_parse(path_of(text, 1, "weights/", LAST - 7), &run_ids, &x->err), TINKC_E_PATH,
            "path: a part of it is longer than 1023 bytes");
    /* tinker://RUN/NAME stands for weights of a sampler */
    assert_true(tkc_path_ids_parse(path_of(text, 1, "", LAST - PREFIX), &run_ids, &x->err));
    assert_int_equal(strlen(run_ids.checkpoint), LAST);
    assert_memory_equal(run_ids.checkpoint, "sampler_weights/nnn", PREFIX + 3);
    refused(x, tkc_path_ids_parse(path_of(text, 1, "", LAST - PREFIX + 1), &run_ids, &x->err), TINKC_E_PATH,
            "path: longer than 1023 bytes");
    assert_false(tkc_path_ids_parse("http://x", &run_ids, &x->err));
    assert_int_equal(x->err.code, TINKC_E_PATH);
}

TEST_WITH(a_saved_handle_is_read_from_its_text, begin_plain, end_fixture)
{
    fixture *x = *state;
    enum { MANY = 300, KEPT = 256 };
    char text[MANY * 4 + 100];
    tkc_arena arena = { 0 };
    tkc_saved saved;
    memset(&saved, 0xEE, sizeof saved); /* what a text does not say is nothing */
    assert_true(tkc_saved_read("{\"tinkc\":1}", "snapshot", &arena, &saved, &x->err));
    assert_null(saved.base_url);
    assert_null(saved.jwt);
    assert_null(saved.api_key);
    assert_null(saved.credential_cmd);
    assert_null(saved.session_id);
    assert_null(saved.sampler_id);
    assert_null(saved.headers);
    assert_int_equal(saved.config.len, 0);
    assert_true(saved.account == 0 && saved.refresh_interval_s == 0);
    static const char *const others[] = { "{}", "{\"tinkc\":2}", "{\"tinkc\":0}", "[]", "", "x" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        refused(x, tkc_saved_read(others[i], "snapshot", &arena, &saved, &x->err), TINKC_E_ARGUMENT,
                "snapshot: not an exported sampler");
    for (size_t n = KEPT - 1; n <= MANY; n++) { /* of headers the first 256 texts */
        size_t len = (size_t)sprintf(text, "{\"tinkc\":1,\"headers\":[");
        for (size_t i = 0; i < n; i++)
            len += (size_t)sprintf(text + len, "%s\"%c\"", i ? "," : "", 'a' + (char)(i % 26));
        (void)sprintf(text + len, "]}");
        assert_true(tkc_saved_read(text, "snapshot", &arena, &saved, &x->err));
        size_t found = 0;
        while (saved.headers[found])
            found++;
        assert_int_equal(found, n < KEPT ? n : KEPT);
        assert_int_equal(saved.headers[found - 1][0], 'a' + (int)((found - 1) % 26));
        tkc_arena_free(&arena);
    }
}

static const char *header_of(const tinkc_client *c, const char *name)
{
    for (size_t i = 0; c->headers[i]; i += 2)
        if (strcmp(c->headers[i], name) == 0)
            return c->headers[i + 1];
    return NULL;
}

TEST_WITH(short_headers_and_repeated_tags, begin_plain, end_fixture)
{
    fixture *x = *state;
    static const struct {
        const char *given, *kept[4];
    } rows[] = {
        { "a,b,b", { "a", "b" } },        { "a,a", { "a" } }, { "b,a,b,c,c", { "b", "a", "c" } },
        { " a , ,a b,", { "a", "a b" } }, { ",", { NULL } },  { "x", { "x" } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(setenv("TINKER_TAGS", rows[i].given, 1), 0);
        tinkc_client *c = mock_client(x->mock, NULL, &x->err);
        assert_ok(&x->err);
        size_t n = 0;
        for (; rows[i].kept[n]; n++)
            assert_string_equal(c->tags[n], rows[i].kept[n]);
        assert_null(c->tags[n]);
        tinkc_client_free(c);
    }
    unsetenv("TINKER_TAGS");
    tinkc_client *c =
        mock_client(x->mock, &(tinkc_client_options){ .headers = PAIRS("X", "1", "Y-Z", "", "Last", "2") }, &x->err);
    assert_ok(&x->err);
    assert_string_equal(header_of(c, "X"), "1");
    assert_string_equal(header_of(c, "Last"), "2");
    assert_null(header_of(c, "Y-Z"));
    tinkc_client_free(c);
    /* what is removed last leaves no trace, and nothing stands there twice */
    c = mock_client(x->mock, &(tinkc_client_options){ .headers = PAIRS("X", "1", "User-Agent", "") }, &x->err);
    assert_ok(&x->err);
    assert_null(header_of(c, "User-Agent"));
    for (size_t i = 0; c->headers[i]; i += 2)
        for (size_t k = 0; k < i; k += 2)
            assert_string_not_equal(c->headers[i], c->headers[k]);
    tinkc_client_free(c);
    static const char *const bad[][2] = { { "", "v" }, { "a b", "v" }, { "a:", "v" }, { "a", "v\n" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(x,
                mock_client(x->mock, &(tinkc_client_options){ .headers = PAIRS("A", "1", bad[i][0], bad[i][1]) },
                            &x->err) != NULL,
                TINKC_E_ARGUMENT, "headers: a name or value that no header can have");
}

/* A letter is a name. */
TEST_WITH(names_of_a_letter, begin_plain, end_fixture)
{
    fixture *x = *state;
    tinkc_client *c = mock_client(x->mock, &(tinkc_client_options){ .project_id = "p", .display_name = "d" }, &x->err);
    assert_ok(&x->err);
    assert_string_equal(c->project_id, "p");
    assert_string_equal(c->display_name, "d");
    tinkc_client_free(c);
    refused(x, tinkc_sampler_open(x->client, &(tinkc_sampler_options){ .model_path = "x" }, &x->err) != NULL,
            TINKC_E_PATH, "model_path: must begin with tinker://");
    tinkc_future *f = tinkc_sampler_open(x->client, &(tinkc_sampler_options){ .base_model = "b" }, &x->err);
    assert_ok(&x->err);
    tinkc_future_free(f);
    /* an address inside a query does not make a path an address */
    once(x, "/q?u=http://x", 200, "ok");
    f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/q?u=http://x" }, &x->err);
    assert_ok(&x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    refused(x, tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/q", .query = PAIRS("a") }, &x->err) != NULL,
            TINKC_E_ARGUMENT, "query: \"a\" has no value");
    refused(x,
            tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/q", .headers = PAIRS("a") }, &x->err) != NULL,
            TINKC_E_ARGUMENT, "headers: \"a\" has no value");
}

/* Whichever allocation of a new client fails, there is none; large texts need blocks of their own. */
TEST_WITH(no_memory_for_a_client, begin_plain, end_fixture)
{
    fixture *x = *state;
    char large[3000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    const tinkc_client_options all = { .project_id = large,
                                       .display_name = large,
                                       .tags = PAIRS(large, "b"),
                                       .user_metadata = PAIRS("a", large),
                                       .headers = PAIRS("A", large, "B", large),
                                       .query = PAIRS("q", large) };
    for (int texts = 0; texts < 2; texts++) {
        tinkc_client_options o = texts ? all : (tinkc_client_options){ .user_agent = large };
        bool made = false;
        for (int64_t n = 1; !made; n++) {
            scarce s = { .thread = pthread_self(), .until = n };
            tinkc_allocator allocator = scarce_allocator(&s);
            o.allocator = &allocator;
            tinkc_client *c = mock_client(x->mock, &o, &x->err);
            made = c != NULL;
            assert_int_equal(x->err.code, made ? 0 : TINKC_E_MEMORY);
            assert_int_equal(s.failed, !made);
            x->err = (tinkc_error){ 0 };
            s.until = 0;
            tinkc_client_free(c);
            assert_true(counting_is_empty_soon(&s.all));
        }
    }
}

TEST_WITH(answers_that_are_not_there, begin_plain, end_fixture)
{
    fixture *x = *state;
    assert_int_equal(tinkc_response_status(NULL), 0);
    assert_int_equal(tinkc_response_body(NULL).len, 0);
    assert_string_equal(tinkc_response_url(NULL), "");
    assert_string_equal(tinkc_response_http_version(NULL), "");
    assert_null(tinkc_response_header(NULL, "a"));
    assert_null(tinkc_response_headers(NULL)[0]);
    assert_int_equal(tinkc_response_elapsed_ms(NULL), 0);
    assert_int_equal(tinkc_response_retries(NULL), 0);
    assert_int_equal(tinkc_samples_count(NULL), 0);
    assert_null(tinkc_samples_at(NULL, 0));
    assert_int_equal(tinkc_samples_prompt_logprobs(NULL).len, 0);
    assert_int_equal(tinkc_samples_cached_tokens(NULL), 0);
    assert_int_equal(tinkc_samples_topk(NULL, 0, NULL, NULL), 0);
    assert_int_equal(tinkc_samples_sampled_topk(NULL, 0, 0, NULL, NULL), 0);
    assert_int_equal(tinkc_samples_target_logprobs(NULL).len, 0);
    assert_int_equal(tinkc_samples_alt_tokens(NULL, 1, NULL, NULL), 0);
    assert_int_equal(tinkc_batch_count(NULL), 0);
    assert_int_equal(tinkc_batch_bytes(NULL), 0);
    assert_string_equal(tinkc_trainer_id(NULL), "");
    assert_string_equal(tinkc_sampler_id(NULL), "");
    assert_int_equal(tinkc_runs_total(NULL), -1);
    assert_int_equal(tinkc_runs_ready(NULL), 0);
    tinkc_form_free(NULL);
    tinkc_batch_free(NULL);
    tinkc_batch_clear(NULL);
    tinkc_trainer_free(NULL);
    tinkc_sampler_free(NULL);
    tinkc_runs_free(NULL);
    tinkc_search_free(NULL);
    tinkc_deltas_free(NULL);
    refused(x, tinkc_sampler_import(NULL, NULL, &x->err) != NULL, TINKC_E_ARGUMENT, "exported: must not be NULL");
    static const char *const parts[] = { "", ",\"sampler_id\":\"s\"", ",\"sampler_id\":\"s\",\"session_id\":\"t\"",
                                         ",\"session_id\":\"t\",\"config\":{}", ",\"sampler_id\":\"s\",\"config\":{}" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, "{\"tinkc\":1%s}", parts[i]);
        refused(x, tinkc_sampler_import(text, NULL, &x->err) != NULL, TINKC_E_ARGUMENT,
                "exported: not from tinkc_sampler_export");
    }
    refused(x, tinkc_checkpoint_copy(NULL, "tinker://r/weights/c", NULL, &x->err) != NULL, TINKC_E_ARGUMENT,
            "client: must not be NULL");
    refused(x, tinkc_client_report(NULL, "e", NULL, TINKC_LOG_INFO, &x->err), TINKC_E_ARGUMENT,
            "client: must not be NULL");
    refused(x, tinkc_tokenizer_fetch(NULL, "m", NULL, NULL, &x->err) != NULL, TINKC_E_ARGUMENT,
            "client: must not be NULL");
}

/* A sample has as many sequences as it has; notes of the transport are not headers of the answer. */
TEST_WITH(the_last_and_the_next, begin_plain, end_fixture)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    fixture *x = *state;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    tinkc_sampler *s = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    tinkc_future *f = tinkc_sample(s, prompt, 3, 2, &o, &x->err);
    const tinkc_samples *r = tinkc_future_samples(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_non_null(tinkc_samples_at(r, 1));
    assert_null(tinkc_samples_at(r, 2));
    tinkc_future_free(f);
    f = tinkc_sample(s, prompt, 3, INT32_MAX, &o, &x->err); /* as many as there may be */
    assert_ok(&x->err);
    tinkc_future_cancel(f);
    tinkc_future_free(f);
    refused(x, tinkc_sample_input(s, NULL, 1, &o, &x->err) != NULL, TINKC_E_ARGUMENT, "prompt: must not be empty");
    static const size_t numbers[] = { 0, (size_t)INT32_MAX + 1 };
    for (size_t i = 0; i < 2; i++)
        refused(x, tinkc_sample(s, prompt, 3, numbers[i], &o, &x->err) != NULL, TINKC_E_ARGUMENT,
                "n_samples: must be from 1 to 2^31 - 1");
    tinkc_sampler_free(s);
    assert_true(tinkc_mock_once(
        x->mock, NULL, "/own",
        &(tinkc_mock_answer){ .headers = PAIRS("A", "1", ":note", "2", "::", "3", "B", "4"), .body = "x" }, &x->err));
    f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/own" }, &x->err);
    const tinkc_response *a = tinkc_future_response(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_string_equal(tinkc_response_header(a, "a"), "1");
    assert_string_equal(tinkc_response_header(a, "b"), "4");
    assert_null(tinkc_response_header(a, ":note"));
    assert_null(tinkc_response_header(a, "::"));
    tinkc_future_free(f);
}

TEST_WITH(variants_of_a_model, begin_plain, end_fixture)
{
    fixture *x = *state;
    static const char *const rows[][2] = {
        { "a/b", "a/b" }, { "a/b/", "a/b" }, { "a/b/c", "a/b" }, { "a/b/c/d", "a/b/c/d" }, { "a", "a" },
    };
    tinkc_text repo = { 0 }, revision = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(tinkc_tokenizer_resolve(rows[i][0], NULL, &repo, &revision, &x->err));
        assert_string_equal(repo.data, rows[i][1]);
    }
    tinkc_error first = { .code = TINKC_E_STATE };
    assert_false(tinkc_tokenizer_resolve("a/b", NULL, &repo, &revision, &first));
    assert_false(tinkc_tokenizer_register(x->client, "a/b", NULL, &first));
    assert_int_equal(first.code, TINKC_E_STATE);
    tinkc_text_free(&repo);
    tinkc_text_free(&revision);
}

/* They have a session of somebody else. */
TEST_WITH(clients_of_copies_open_nothing, begin_plain, end_fixture)
{
    fixture *x = *state;
    tinkc_client *c = mock_client(x->mock, NULL, &x->err);
    c->imported = true;
    refused(x, tinkc_sampler_open(c, &(tinkc_sampler_options){ .base_model = "m" }, &x->err) != NULL,
            TINKC_E_NO_SESSION, "the client of an imported sampler opens no others");
    refused(x, tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m" }, &x->err) != NULL, TINKC_E_NO_SESSION,
            "the client of an imported sampler makes no trainers");
    tinkc_client_free(c);
}

TEST_WITH(a_model_is_known_by_its_name_without_a_revision, begin_plain, end_fixture)
{
    fixture *x = *state;
    tinkc_trainer *t = tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    assert_ok(&x->err);
    assert_string_equal(t->base_model, "mock/nano");
    static const struct {
        const char *given, *kept;
    } rows[] = { { "t/x:rev", "t/x" }, { "t/x", "t/x" }, { ":", "" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[200];
        (void)snprintf(body, sizeof body,
                       "{\"model_id\":\"m\",\"model_data\":{\"tokenizer_id\":\"%s\"},"
                       "\"optimizer_config\":{\"type\":\"adamw\"}}",
                       rows[i].given);
        once(x, API "get_info", 200, body);
        tinkc_future *f = tinkc_trainer_info(t, &x->err);
        const tinkc_model_info *info = tinkc_future_model_info(f, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        assert_string_equal(info->tokenizer_id, rows[i].kept);
        assert_string_equal(info->model_name, "");
        assert_int_equal(info->json.len, strlen(body)); /* with what we do not know */
        assert_memory_equal(info->json.data, body, strlen(body));
        tinkc_future_free(f);
    }
    once(x, API "retrieve_future", 200,
         "{\"path\":null,\"sampling_session_id\":\"s\",\"type\":\"save_weights_for_sampler\"}");
    tinkc_sampler *sampler = tinkc_trainer_sampler(t, &x->err);
    assert_ok(&x->err);
    assert_string_equal(tinkc_sampler_id(sampler), "s");
    tinkc_sampler_free(sampler);
    const char *recipients[12] = { 0 }; /* ten at most, none of them empty */
    for (size_t i = 0; i < 11; i++)
        recipients[i] = "age1x";
    tinkc_external_options o = { .recipients = recipients };
    refused(x, tinkc_trainer_save_external(t, "a", &o, &x->err) != NULL, TINKC_E_ARGUMENT, "recipients: more than 10");
    recipients[10] = NULL;
    recipients[9] = "";
    refused(x, tinkc_trainer_save_external(t, "a", &o, &x->err) != NULL, TINKC_E_ARGUMENT, "recipients: one is empty");
    recipients[9] = "y";
    tinkc_future_free(tinkc_trainer_save_external(t, "a", &o, &x->err));
    assert_ok(&x->err);
    tinkc_trainer_free(t);
#define MODEL(members) "{\"model_id\":\"m\",\"next_seq_id\":4," members "}"
    static const char *const named[] = {
        MODEL("\"model_data\":{\"model_name\":\"inner\"},\"model_name\":\"outer\""),
        MODEL("\"model_data\":{},\"model_name\":\"outer\""),
        MODEL("\"model_data\":{}"),
    };
    static const char *const bases[] = { "inner", "outer", "" };
    for (size_t i = 0; i < 3; i++) {
        once(x, API "get_info", 200, named[i]);
        t = tinkc_trainer_new_live(x->client, "m", &x->err);
        assert_ok(&x->err);
        assert_string_equal(t->base_model, bases[i]);
        tinkc_trainer_free(t);
    }
}
