/* test_forms.c - forms, pages that fail, copies and days. */
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

TEST_WITH(forms_word_for_word, begin_plain, end_fixture)
{
    fixture *x = *state;
    char file[] = "/tmp/tinkc-rare-XXXXXX", want[900];
    int fd = mkstemp(file);
    assert_true(fd >= 0 && write(fd, "file bytes", 10) == 10);
    close(fd);
    tinkc_form *form = tinkc_form_new(x->client, &x->err);
    assert_true(tinkc_form_add_file(form, "f", file, NULL, &x->err));
    assert_true(tinkc_form_add_text(form, "t", "text", &x->err));
    assert_true(tinkc_form_add_bytes(form, "b", "by", 2, "n", "a/b", &x->err));
    static const char *const bad[][3] = { { "a\nb", "n", "t" }, { "a", "n\r", "t" }, { "a", "n", "t\n" } };
    static const char *const why[] = { "name holds a line break", "filename holds a line break",
                                       "content_type holds a line break" };
    for (size_t i = 0; i < 3; i++)
        refused(x, tinkc_form_add_bytes(form, bad[i][0], "x", 1, bad[i][1], bad[i][2], &x->err), TINKC_E_ARGUMENT,
                why[i]);
    refused(x, tinkc_form_add_file(form, "x", NULL, NULL, &x->err), TINKC_E_ARGUMENT, "file is NULL");
    tinkc_error first = { .code = TINKC_E_STATE };
    assert_false(tinkc_form_add_file(form, "x", file, NULL, &first));
    once(x, "/form", 200, "ok");
    tinkc_future *f = tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/form", .form = form }, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    const tinkc_request *r = nth_request(x->mock, "/form", 0);
    const char *mark = strstr(request_header(r, "Content-Type"), "boundary=") + 9;
    (void)snprintf(want, sizeof want,
                   "--%s\r\nContent-Disposition: form-data; name=\"f\"; filename=\"%s\"\r\n"
                   "Content-Type: application/octet-stream\r\n\r\nfile bytes\r\n"
                   "--%s\r\nContent-Disposition: form-data; name=\"t\"\r\n\r\ntext\r\n"
                   "--%s\r\nContent-Disposition: form-data; name=\"b\"; filename=\"n\"\r\n"
                   "Content-Type: a/b\r\n\r\nby\r\n--%s--\r\n",
                   mark, file + 5, mark, mark, mark);
    assert_int_equal(r->body.len, strlen(want));
    assert_memory_equal(r->body.data, want, r->body.len);
    tinkc_future_free(f);
    tinkc_form_free(form);
    (void)unlink(file);
    refused(x, tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/x", .body_len = 1 }, &x->err) != NULL,
            TINKC_E_ARGUMENT, "body is NULL but body_len is not 0");
    refused(x,
            tinkc_http_call(x->client, &(tinkc_http_options){ .path = "/x", .body = "", .body_file = "y" }, &x->err) !=
                NULL,
            TINKC_E_ARGUMENT, "body, body_file and form: more than one is given");
}

#define FINISH API "external_weights_upload_finish"

TEST_WITH(an_upload_is_finished_by_its_id, begin_plain, end_fixture)
{
    fixture *x = *state;
    always(x, FINISH, "{\"tinker_path\":\"tinker://r/weights/a\"}");
    refused(x, tinkc_upload_finish(x->client, NULL, &x->err), TINKC_E_ARGUMENT, "upload_id: none given");
    refused(x, tinkc_upload_finish(x->client, "", &x->err), TINKC_E_ARGUMENT, "upload_id: none given");
    complete(x, tinkc_upload_finish(x->client, "u", &x->err));
    assert_true(body_has(nth_request(x->mock, FINISH, 0), "\"upload_id\":\"u\""));
}

#define RUN(id)                                                                                                        \
    "{\"training_run_id\":\"" id "\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"                     \
    "\"last_request_time\":\"2026-01-01T00:00:00Z\"}"

#define CHECKPOINT(id)                                                                                                 \
    "{\"checkpoint_id\":\"weights/" id "\",\"checkpoint_type\":\"training\",\"time\":"                                 \
    "\"2026-03-04T05:06:07Z\",\"tinker_path\":\"tinker://r/weights/" id "\"}"

/* A page that failed has nothing ready and no total, and is asked for again. */
TEST_WITH(pages_that_fail, begin_plain, end_fixture)
{
    fixture *x = *state;
    tinkc_runs *list = tinkc_runs_list(x->client, &(tinkc_list_options){ .page_size = 2 }, &x->err);
    once(x, API "training_runs", 404, "{\"detail\":\"no\"}");
    tinkc_future *f = tinkc_runs_fetch(list, &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    tinkc_future_free(f);
    assert_int_equal(tinkc_runs_total(list), -1);
    assert_int_equal(tinkc_runs_ready(list), 0);
    /* a fetch of the caller's that failed is the caller's to see */
    assert_null(tinkc_runs_next(list, &x->err));
    assert_int_equal(x->err.code, TINKC_E_NOT_FOUND);
    x->err = (tinkc_error){ 0 };
    assert_int_equal(tinkc_mock_count(x->mock, API "training_runs"), 1);
    once(x, API "training_runs", 200,
         "{\"training_runs\":[" RUN("a") "," RUN("b") "],\"cursor\":{\"offset\":0,\"limit\":2,\"total_count\":3}}");
    once(x, API "training_runs", 200,
         "{\"training_runs\":[" RUN("c") "],\"cursor\":{\"offset\":0,\"limit\":2,\"total_count\":3}}");
    static const char *const wanted[] = { "a", "b", "c" };
    for (size_t i = 0; i < 3; i++) {
        const tinkc_run *run = tinkc_runs_next(list, &x->err);
        assert_ok(&x->err);
        assert_non_null(run);
        assert_string_equal(run->id, wanted[i]);
    }
    assert_int_equal(tinkc_runs_total(list), 3);
    assert_null(tinkc_runs_next(list, &x->err));
    assert_ok(&x->err);
    tinkc_runs_free(list);
    /* a run's checkpoints come all at once: as many as there are is the total */
    once(x, API "training_runs/r/checkpoints", 200, "{\"checkpoints\":[" CHECKPOINT("1") "]}");
    tinkc_checkpoints *all = tinkc_checkpoints_list(x->client, &(tinkc_list_options){ .run_id = "r" }, &x->err);
    assert_non_null(tinkc_checkpoints_next(all, &x->err));
    assert_int_equal(tinkc_checkpoints_total(all), 1);
    assert_null(tinkc_checkpoints_next(all, &x->err));
    assert_ok(&x->err);
    tinkc_checkpoints_free(all);
    once(x, API "training_runs/r/checkpoints", 200,
         "{\"checkpoints\":[" CHECKPOINT("1") "],\"cursor\":{\"offset\":0,\"limit\":1,\"total_count\":0}}");
    all = tinkc_checkpoints_list(x->client, &(tinkc_list_options){ .run_id = "r" }, &x->err);
    assert_non_null(tinkc_checkpoints_next(all, &x->err));
    assert_int_equal(tinkc_checkpoints_total(all), 0); /* what the service says is believed */
    tinkc_checkpoints_free(all);
    once(x, API "training_runs/r/checkpoints", 200,
         "{\"checkpoints\":[" CHECKPOINT("1") "," CHECKPOINT("2") "," CHECKPOINT("3") "]}");
    all = tinkc_checkpoints_list(x->client, &(tinkc_list_options){ .run_id = "r", .offset = 1 }, &x->err);
    f = tinkc_checkpoints_fetch(all, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    assert_int_equal(tinkc_checkpoints_ready(all), 2); /* the service skips none for us */
    assert_string_equal(tinkc_checkpoints_next(all, &x->err)->id, "weights/2");
    assert_int_equal(tinkc_checkpoints_ready(all), 1);
    tinkc_checkpoints_free(all);
}

TEST_WITH(copies_and_days, begin_plain, end_fixture)
{
    fixture *x = *state;
    static const char *const paths[] = { "", "x", "tinker://r/weights/d" };
    for (size_t i = 0; i < 3; i++) {
        char body[100];
        (void)snprintf(body, sizeof body, "{\"tinker_path\":\"%s\"}", paths[i]);
        once(x, API "copy_weights", 200, body);
        tinkc_future *f = tinkc_checkpoint_copy(x->client, "tinker://r/weights/c",
                                                &(tinkc_copy_options){ .project_id = "p" }, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 60000));
        const char *path = tinkc_future_path(f, 0, &x->err);
        if (i)
            assert_string_equal(path, paths[i]);
        else
            refused(x, path != NULL, TINKC_E_BAD_RESPONSE, "checkpoint_copy: the answer names no path");
        tinkc_future_free(f);
    }
    /* a sampler's archive is asked for by its whole id and by its name, and then no more */
    once(x, API "training_runs/r/checkpoints/sampler_weights/c/archive", 404, "{\"detail\":\"whole\"}");
    once(x, API "training_runs/r/checkpoints/c/archive", 404, "{\"detail\":\"name\"}");
    tinkc_future *f = tinkc_checkpoint_archive(x->client, "tinker://r/sampler_weights/c", &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    refused(x, tinkc_future_wait(f, 0, &x->err), TINKC_E_NOT_FOUND, "HTTP 404: whole");
    tinkc_future_free(f);
    /* an archive that is waited for may be cancelled */
    once(x, API "training_runs/r/checkpoints/weights/c/archive", 503, "");
    f = tinkc_checkpoint_archive(x->client, "tinker://r/weights/c", &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_false(tinkc_future_done(f));
    tinkc_future_cancel(f);
    assert_true(run_until_done(x->mock, f, 0));
    tinkc_future_free(f);
    once(x, API "training_runs/r/checkpoints/external_weights/c/external_weights_urls", 200,
         "{\"urls\":{\"a\":\"https://u\",\"b\":\"http://v\",\"c\":\"https://"
         "w\"},\"expires\":\"2026-01-01T00:00:00Z\"}");
    f = tinkc_checkpoint_links(x->client, "tinker://r/external_weights/c", &x->err);
    const tinkc_links *links = tinkc_future_links(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_links_count(links), 3);
    assert_string_equal(tinkc_links_at(links, 1)->name, "b");
    assert_string_equal(tinkc_links_at(links, 2)->url, "https://w");
    assert_null(tinkc_links_at(links, 3));
    assert_null(tinkc_links_at(NULL, 0));
    assert_true(tinkc_links_count(NULL) == 0 && tinkc_links_expires_us(NULL) == TINKC_NO_TIME);
    tinkc_future_free(f);
    static const char *const bad[] = { "2026-01x02", "2026x01-02", "2026-01-0", "2026-01-022" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(tinkc_audit_get(x->client, NULL, bad[i], &x->err));
        assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
        x->err = (tinkc_error){ 0 };
    }
}
