/* The table of endpoints: complete, and its paths lead there and back. */
#include "support/check.h"
#include "support/scratch.h"

#include "wire/endpoint.h"

TEST(every_endpoint_leads_to_itself)
{
    for (int32_t id = 0; id < TKC_EP_COUNT; id++) {
        tinkc_error err = { 0 };
        tkc_route route;
        const tkc_endpoint *e = tkc_endpoint_get(id);
        assert_non_null(e);
        assert_int_equal(e->id, id);
        assert_true(e->method && e->path && e->name);
        assert_true(e->timeout_ms == 0 || e->timeout_ms >= 5000);
        assert_true(e->request_type || !e->result); /* only futures have results to fetch */
        tkc_buf_clear(&out);
        const char *const ids[] = { "9d2c61f0:train:0", "weights/step 100%", NULL };
        tkc_endpoint_path(e, ids, &out, &err);
        assert_ok(err);
        tkc_route_find(tkc_str(e->method), tkc_buf_view(&out), &arena, &route, &err);
        assert_int_equal(route.status, 200);
        assert_ptr_equal(route.endpoint, e);
        if (strstr(e->path, "{id}"))
            assert_string_equal(route.id, ids[0]);
        if (strstr(e->path, "{ckpt}"))
            assert_string_equal(route.ckpt, ids[1]);
    }
    assert_null(tkc_endpoint_get(TKC_EP_COUNT));
    assert_null(tkc_endpoint_get(-1));
}

/* The connections a call uses, what must be there before it, how it is retried, how long its answer
 * may be silent, and how it and its result are written. */
TEST(every_endpoint_keeps_its_terms)
{
    static const char *const pools[] = { "session",   "sample", "train", "rest",   "retrieve",
                                         "telemetry", "config", "auth",  "futures" };
    static const char *const needs[] = { "nothing", "config", "session" };
    static const char *const retries[] = { "-", "attempts", "window", "attempts+window" };
    static const char *const encodings[] = { "-", "json", "protobuf" };
    char line[512], found[512];
    FILE *file = fopen("tests/data/wire/endpoints.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) && line[0] == '#')
        ;
    for (int32_t id = 0; id < TKC_EP_COUNT; id++) {
        const tkc_endpoint *e = tkc_endpoint_get(id);
        snprintf(found, sizeof found, "%s %s %s pool=%s needs=%s retries=%s silence=%d %s->%s %s\n", e->name, e->method,
                 e->path, pools[e->pool], needs[e->need], retries[e->retries], (int)e->timeout_ms,
                 encodings[e->request_encoding], encodings[e->result_encoding],
                 e->request_type ? e->request_type : "-");
        assert_string_equal(found, line);
        if (!fgets(line, sizeof line, file))
            line[0] = 0;
    }
    assert_int_equal(line[0], 0); /* no line without an endpoint */
    fclose(file);
}

TEST(paths_are_escaped)
{
    tinkc_error err = { 0 };
    const tkc_endpoint *e = tkc_endpoint_get(TKC_EP_SET_TTL);
    tkc_buf_clear(&out);
    tkc_endpoint_path(e, (const char *const[]){ "a b/c", "weights/x%y", NULL }, &out, &err);
    assert_ok(err);
    assert_str(tkc_buf_view(&out), "/api/v1/training_runs/a%20b%2Fc/checkpoints/weights/x%25y/ttl");
    static const char *const bad[] = { "", "a?b", "a#b", "..", "a\nb", "." };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (tinkc_error){ 0 };
        tkc_buf_clear(&out);
        assert_false(tkc_endpoint_path(e, (const char *const[]){ bad[i], "weights/x", NULL }, &out, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }
    err = (tinkc_error){ 0 };
    assert_false(tkc_endpoint_path(e, (const char *const[]){ "r", "weights/../x", NULL }, &out, &err));
    err = (tinkc_error){ 0 };
    assert_false(tkc_endpoint_path(e, (const char *const[]){ "r", NULL }, &out, &err));
    err = (tinkc_error){ 0 };
    assert_false(tkc_endpoint_path(e, NULL, &out, &err));
}

static tkc_route route_of(const char *method, const char *path)
{
    tinkc_error err = { 0 };
    tkc_route route;
    assert_true(tkc_route_find(tkc_str(method), tkc_str(path), &arena, &route, &err));
    assert_ok(err);
    return route;
}

TEST(other_paths_are_404_or_405)
{
    assert_int_equal(route_of("GET", "/api/v1/nothing").status, 404);
    assert_int_equal(route_of("GET", "").status, 404);
    assert_int_equal(route_of("GET", "api/v1/healthz").status, 404);
    assert_int_equal(route_of("GET", "/api/v1/healthz/").status, 404);
    assert_int_equal(route_of("POST", "/api/v1/healthz").status, 405);
    assert_int_equal(route_of("GET", "/api/v1/asample").status, 405);
    assert_int_equal(route_of("GET", "/api/v1/sessions/%zz").status, 404);
    assert_int_equal(route_of("GET", "/api/v1/sessions/%00").status, 404);
    tinkc_error err = { 0 };
    tkc_route route;
    assert_true(tkc_route_find(tkc_str("GET"), tkc_strn(NULL, 0), &arena, &route, &err));
    assert_int_equal(route.status, 404);
    char path[64] = "";
    for (size_t n = 1; n <= 20; n++) { /* more than any endpoint has, from some number on */
        (void)strcat(path, "/a");
        assert_int_equal(route_of("GET", path).status, 404);
    }
}

TEST(checkpoints_take_one_segment_or_two)
{
    tkc_route r = route_of("DELETE", "/api/v1/training_runs/r/checkpoints/weights/publish");
    assert_int_equal(r.endpoint->id, TKC_EP_DELETE_CHECKPOINT);
    assert_string_equal(r.ckpt, "weights/publish");
    r = route_of("DELETE", "/api/v1/training_runs/r/checkpoints/weights/a/publish");
    assert_int_equal(r.endpoint->id, TKC_EP_UNPUBLISH);
    r = route_of("DELETE", "/api/v1/training_runs/r/checkpoints/0001");
    assert_int_equal(r.endpoint->id, TKC_EP_DELETE_CHECKPOINT);
    assert_string_equal(r.ckpt, "0001");
    r = route_of("GET", "/api/v1/training_runs/r/checkpoints/sampler_weights/x/archive");
    assert_int_equal(r.endpoint->id, TKC_EP_ARCHIVE);
    assert_string_equal(r.id, "r");
    assert_string_equal(r.ckpt, "sampler_weights/x");
    r = route_of("POST", "/api/v1/training_runs/r/checkpoints/0001/publish");
    assert_int_equal(r.endpoint->id, TKC_EP_PUBLISH);
    assert_string_equal(r.ckpt, "0001");
    r = route_of("DELETE", "/api/v1/training_runs/r/checkpoints/weights");
    assert_int_equal(r.endpoint->id, TKC_EP_DELETE_CHECKPOINT);
    assert_string_equal(r.ckpt, "weights");
    assert_int_equal(route_of("POST", "/api/v1/training_runs/r/checkpoints/a/b/publish").status, 404);
}

RUN_TESTS(set_up, tear_down)
