/* test_client_rest.c - the REST side of the SDK against the engine's own server: over a port, over
 * a UNIX socket, and in process. Nothing is scripted here: two halves that were written apart must
 * fit. */
#include <sys/stat.h>
#include <unistd.h>

#include "support/client/api_support.h"
#include "tinkc/engine.h"

enum { PORT, UNIX, IN_PROCESS };

typedef struct world {
    tinkc_engine *engine;
    tinkc_server *server;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_error err;
    char dir[64], socket[80], path[300], session[200];
} world;

static void open_world(world *w, int way)
{
    *w = (world){ 0 };
    snprintf(w->dir, sizeof w->dir, "/tmp/tinkc-whole-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    snprintf(w->socket, sizeof w->socket, "%s/s", w->dir);
    w->engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &w->err);
    tinkc_engine_add_model(w->engine, "nano", "models/nano", &w->err);
    static const char *const notes[] = { "team", "blue", NULL };
    tinkc_client_options o = { .api_key = "tml-test",
                               .proxy = "",
                               .display_name = "Nightly Run",
                               .user_metadata = notes,
                               .telemetry = TINKC_TELEMETRY_ON };
    tinkc_serve_options serve = { 0 };
    if (way == IN_PROCESS) {
        o.transport = tinkc_engine_transport(w->engine);
    } else {
        if (way == UNIX)
            serve.unix_socket = o.unix_socket = w->socket;
        w->server = tinkc_engine_serve(w->engine, &serve, &w->err);
        o.base_url = way == UNIX ? "http://localhost" : tinkc_server_url(w->server);
    }
    assert_ok(&w->err);
    w->client = tinkc_client_new(&o, &w->err);
    w->trainer = tinkc_trainer_new(w->client, &(tinkc_lora_options){ .base_model = "nano", .rank = 4 }, &w->err);
    tinkc_future *f = tinkc_trainer_save_for_sampler(w->trainer, "one", NULL, &w->err);
    const char *path = tinkc_future_path(f, 60000, &w->err);
    assert_ok(&w->err);
    snprintf(w->path, sizeof w->path, "%s", path);
    tinkc_future_free(f);
    snprintf(w->session, sizeof w->session, "%s", tinkc_client_session_id(w->client, PATIENCE_MS, &w->err));
}

static void close_world(world *w)
{
    char command[100];
    tinkc_client_close(w->client, 2000, NULL);
    tinkc_trainer_free(w->trainer);
    tinkc_client_free(w->client);
    if (w->server)
        tinkc_server_stop(w->server, PATIENCE_MS, NULL);
    tinkc_server_free(w->server);
    tinkc_engine_free(w->engine);
    snprintf(command, sizeof command, "rm -rf %s", w->dir);
    assert_int_equal(system(command), 0);
}

static void done(world *w, tinkc_future *f)
{
    tinkc_future_wait(f, PATIENCE_MS, &w->err);
    assert_ok(&w->err);
    tinkc_future_free(f);
}

static void lists_agree(world *w)
{
    const char *id = tinkc_trainer_id(w->trainer);
    tinkc_runs *runs = tinkc_runs_list(w->client, NULL, &w->err);
    const tinkc_run *run = tinkc_runs_next(runs, &w->err);
    assert_ok(&w->err);
    assert_string_equal(run->id, id);
    assert_int_equal(run->lora_rank, 4);
    assert_string_equal(run->last_sampler_checkpoint->path, w->path);
    assert_null(tinkc_runs_next(runs, &w->err));
    assert_int_equal(tinkc_runs_total(runs), 1);
    tinkc_runs_free(runs);
    for (int i = 0; i < 2; i++) { /* of everybody, and of this run */
        tinkc_checkpoints *list =
            tinkc_checkpoints_list(w->client, i ? &(tinkc_list_options){ .run_id = id } : NULL, &w->err);
        const tinkc_checkpoint *c = tinkc_checkpoints_next(list, &w->err);
        assert_ok(&w->err);
        assert_string_equal(c->path, w->path);
        assert_int_equal(c->kind, TINKC_CHECKPOINT_SAMPLER);
        assert_true(c->size_bytes > 0);
        assert_null(tinkc_checkpoints_next(list, &w->err));
        tinkc_checkpoints_free(list);
    }
    tinkc_sessions *sessions = tinkc_sessions_list(w->client, NULL, &w->err);
    assert_string_equal(tinkc_sessions_next(sessions, &w->err), w->session);
    assert_null(tinkc_sessions_next(sessions, &w->err));
    tinkc_sessions_free(sessions);
    assert_ok(&w->err);
}

static void records_agree(world *w)
{
    tinkc_future *f = tinkc_run_get_by_path(w->client, w->path, TINKC_OWNED, &w->err);
    assert_string_equal(tinkc_future_run(f, PATIENCE_MS, &w->err)->base_model, "nano");
    tinkc_future_free(f);
    f = tinkc_session_get(w->client, w->session, TINKC_OWNED, &w->err);
    assert_string_equal(tinkc_future_session(f, PATIENCE_MS, &w->err)->training_run_ids[0],
                        tinkc_trainer_id(w->trainer));
    tinkc_future_free(f);
    f = tinkc_checkpoint_get(w->client, w->path, &w->err);
    assert_int_equal(tinkc_future_weights(f, PATIENCE_MS, &w->err)->lora_rank, 4);
    tinkc_future_free(f);
    f = tinkc_audit_get(w->client, NULL, NULL, &w->err);
    assert_true(tinkc_audit_count(tinkc_future_audit(f, PATIENCE_MS, &w->err)) > 0);
    tinkc_future_free(f);
    f = tinkc_run_get(w->client, "nobody:train:9", TINKC_OWNED, &w->err);
    tinkc_error err = { 0 };
    assert_null(tinkc_future_run(f, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_NOT_FOUND);
    tinkc_future_free(f);
    assert_ok(&w->err);
}

static void changes_hold(world *w)
{
    done(w, tinkc_checkpoint_publish(w->client, w->path, &w->err));
    tinkc_error err = { 0 };
    tinkc_future *again = tinkc_checkpoint_publish(w->client, w->path, &w->err);
    assert_false(tinkc_future_wait(again, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_CONFLICT);
    tinkc_future_free(again);
    tinkc_checkpoints *list = tinkc_checkpoints_list(w->client, NULL, &w->err);
    assert_true(tinkc_checkpoints_next(list, &w->err)->is_public);
    tinkc_checkpoints_free(list);
    done(w, tinkc_checkpoint_unpublish(w->client, w->path, &w->err));
    done(w, tinkc_checkpoint_set_ttl(w->client, w->path, 3600, &w->err));
    list = tinkc_checkpoints_list(w->client, NULL, &w->err);
    assert_non_null(tinkc_checkpoints_next(list, &w->err)->expires);
    tinkc_checkpoints_free(list);
    done(w, tinkc_checkpoint_clear_ttl(w->client, w->path, &w->err));
    done(w, tinkc_session_assign(w->client, w->session, "project", &w->err));
}

static size_t found(world *w, const tinkc_search_options *o)
{
    tinkc_search *list = tinkc_search_list(w->client, o, &w->err);
    size_t n = 0;
    while (tinkc_search_next(list, &w->err))
        n++;
    assert_ok(&w->err);
    tinkc_search_free(list);
    return n;
}

static void refused(tinkc_future *f, int32_t code, const char *word)
{
    tinkc_error err = { 0 };
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.message, word));
    tinkc_future_free(f);
}

static void searches_agree(world *w)
{
    static const char *const here[] = { "project", NULL };
    static const char *const elsewhere[] = { "other", NULL };
    static const char *const noted[] = { "team", "blue", NULL };
    static const char *const wrong[] = { "team", "red", NULL };
    tinkc_search *sessions = tinkc_search_list(w->client, NULL, &w->err);
    const tinkc_session_summary *s = tinkc_search_next(sessions, &w->err);
    assert_ok(&w->err);
    assert_string_equal(s->session_id, w->session);
    assert_string_equal(s->display_name, "Nightly Run");
    assert_string_equal(s->project_id, "project");
    assert_string_equal(s->state, "active");
    assert_int_equal(s->checkpoints, 1);
    assert_true(s->storage_bytes > 0);
    assert_string_equal(s->user_metadata[1], "blue");
    tinkc_search_free(sessions);
    const struct {
        tinkc_search_options o;
        size_t n;
    } rows[] = {
        { { .session_id = w->session }, 1 },
        { { .session_id = "nobody" }, 0 },
        { { .display_name = "run NIGHT" }, 1 },
        { { .display_name = "day" }, 0 },
        { { .session_id = "nobody", .display_name = "night" }, 1 },
        { { .project_ids = here }, 1 },
        { { .project_ids = elsewhere }, 0 },
        { { .user_metadata = noted }, 1 },
        { { .user_metadata = wrong }, 0 },
        { { .owners = elsewhere }, 0 },
        { { .states = TINKC_SESSION_ACTIVE, .scope = TINKC_ACCESSIBLE }, 1 },
        { { .states = TINKC_SESSION_FAILED | TINKC_SESSION_FINISHED }, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (found(w, &rows[i].o) != rows[i].n)
            fail_msg("search %zu does not find %zu", i, rows[i].n);
    tinkc_future *f = tinkc_storage_get(w->client, NULL, &w->err);
    const tinkc_storage *all = tinkc_future_storage(f, PATIENCE_MS, &w->err);
    assert_int_equal(tinkc_storage_count(all), 1);
    assert_string_equal(tinkc_storage_at(all, 0)->project_id, "project");
    assert_int_equal(tinkc_storage_at(all, 0)->checkpoints, 1);
    assert_true(tinkc_storage_at(all, 0)->size_bytes > 0);
    tinkc_future_free(f);
    f = tinkc_storage_get(w->client, "other", &w->err);
    assert_int_equal(tinkc_storage_count(tinkc_future_storage(f, PATIENCE_MS, &w->err)), 0);
    tinkc_future_free(f);
    assert_ok(&w->err);
}

/* More sessions than a page holds: each comes once, newest first. */
static void pages_of_sessions(world *w)
{
    enum { MORE = 4 };
    tinkc_client *others[MORE];
    tinkc_client_options o = { .api_key = "tml-test", .proxy = "" };
    if (w->server)
        o.base_url = tinkc_server_url(w->server);
    else
        o.transport = tinkc_engine_transport(w->engine);
    for (size_t i = 0; i < MORE; i++) {
        others[i] = tinkc_client_new(&o, &w->err);
        assert_non_null(tinkc_client_session_id(others[i], PATIENCE_MS, &w->err));
    }
    size_t n = 0;
    int64_t last = INT64_MAX;
    tinkc_search *list = tinkc_search_list(w->client, &(tinkc_search_options){ .page_size = 2 }, &w->err);
    for (const tinkc_session_summary *s; (s = tinkc_search_next(list, &w->err)); n++) {
        assert_true(s->created_us <= last);
        last = s->created_us;
    }
    assert_ok(&w->err);
    tinkc_search_free(list);
    assert_int_equal(found(w, &(tinkc_search_options){ .page_size = 2, .limit = 3 }), 3);
    assert_int_equal(n, MORE + 1);
    for (size_t i = 0; i < MORE; i++)
        tinkc_client_free(others[i]);
}

/* A copy into another project has the weights and the notes of what it is a copy of. */
static void copies_and_notes(world *w)
{
    static const char *const notes[] = { "by", "me", NULL };
    tinkc_future *f = tinkc_trainer_save(w->trainer, "noted", &(tinkc_save_options){ .user_metadata = notes }, &w->err);
    const char *path = tinkc_future_path(f, 60000, &w->err);
    assert_ok(&w->err);
    tinkc_future *copy =
        tinkc_checkpoint_copy(w->client, path, &(tinkc_copy_options){ .project_id = "p", .ttl_s = 3600 }, &w->err);
    const char *to = tinkc_future_path(copy, 60000, &w->err);
    assert_ok(&w->err);
    assert_string_not_equal(path, to);
    tinkc_checkpoints *list = tinkc_checkpoints_list(w->client, NULL, &w->err);
    size_t found = 0;
    for (const tinkc_checkpoint *c; (c = tinkc_checkpoints_next(list, &w->err));) {
        bool is_copy = strcmp(c->path, to) == 0;
        if (!is_copy && strcmp(c->path, path) != 0)
            continue;
        found++;
        assert_string_equal(c->user_metadata[1], "me");
        assert_true(is_copy == (c->expires != NULL));
    }
    assert_ok(&w->err);
    assert_int_equal(found, 2);
    tinkc_checkpoints_free(list);
    tinkc_future_free(copy);
    tinkc_future_free(f);
}

/* External weights are saved in order with everything else, and deleted like any checkpoint. */
static void external_weights(world *w)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_future *saved = tinkc_trainer_save_external(w->trainer, "hf", NULL, &w->err);
    assert_true(tinkc_future_wait(saved, PATIENCE_MS, &w->err));
    tinkc_future_free(saved);
    tinkc_checkpoints *list = tinkc_checkpoints_list(w->client, NULL, &w->err);
    const tinkc_checkpoint *c;
    while ((c = tinkc_checkpoints_next(list, &w->err)) && !strstr(c->path, "/external_weights/hf"))
        ;
    assert_non_null(c);
    done(w, tinkc_checkpoint_delete(w->client, c->path, &w->err));
    tinkc_checkpoints_free(list);
    done(w, tinkc_optim_step(w->trainer, &adam, &w->err));
}

static void a_finished_session_takes_no_more(world *w)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_sampler *sampler = tinkc_sampler_new(w->client, &(tinkc_sampler_options){ .base_model = "nano" }, &w->err);
    assert_ok(&w->err);
    refused(tinkc_session_finish(w->client, "nobody", 0, NULL, &w->err), TINKC_E_NOT_FOUND, "nobody");
    for (int i = 0; i < 2; i++) /* saying it again is not an error and changes nothing */
        done(w, tinkc_session_finish(w->client, w->session, i ? TINKC_FINISH_ERRORED : TINKC_FINISH_SUCCESS, "done",
                                     &w->err));
    tinkc_search *list = tinkc_search_list(w->client, &(tinkc_search_options){ .session_id = w->session }, &w->err);
    const tinkc_session_summary *s = tinkc_search_next(list, &w->err);
    assert_ok(&w->err);
    assert_string_equal(s->session_id, w->session);
    assert_int_equal(s->state_bit, TINKC_SESSION_FINISHED);
    assert_non_null(memmem(s->json.data, s->json.len, "\"success\"", 9));
    tinkc_search_free(list);
    refused(tinkc_optim_step(w->trainer, &adam, &w->err), TINKC_E_GONE, "finished");
    refused(tinkc_sample(sampler, (int32_t[]){ 1 }, 1, 1, &o, &w->err), TINKC_E_GONE, "finished");
    refused(tinkc_trainer_open(w->client, &(tinkc_lora_options){ .base_model = "nano" }, &w->err), TINKC_E_GONE,
            "finished");
    refused(tinkc_sampler_open(w->client, &(tinkc_sampler_options){ .base_model = "nano" }, &w->err), TINKC_E_GONE,
            "finished");
    tinkc_sampler_free(sampler);
}

static void downloads_fit(world *w)
{
    tinkc_future *f = tinkc_checkpoint_download(w->client, w->path,
                                                &(tinkc_download_options){ .dir = w->dir, .name = "got" }, &w->err);
    const tinkc_download *d = tinkc_future_download(f, PATIENCE_MS, &w->err);
    bool config = false, weights = false, complete = false;
    assert_ok(&w->err);
    for (size_t i = 0; i < tinkc_download_count(d); i++) {
        const char *name = tinkc_download_at(d, i)->name;
        config = config || strcmp(name, "adapter_config.json") == 0;
        weights = weights || strcmp(name, "adapter_model.safetensors") == 0;
        complete = complete || strcmp(name, "checkpoint_complete") == 0;
    }
    assert_true(config && weights && complete);
    tinkc_future_free(f);
}

static void raw_calls_fit(world *w, int way)
{
    tinkc_future *f = tinkc_http_call(w->client, &(tinkc_http_options){ .path = "/api/v1/healthz" }, &w->err);
    const tinkc_response *r = tinkc_future_response(f, PATIENCE_MS, &w->err);
    assert_ok(&w->err);
    assert_int_equal(tinkc_response_status(r), 200);
    assert_string_equal(tinkc_response_http_version(r), way == IN_PROCESS ? "" : "1.1");
    tinkc_future_free(f);
}

static void whole(int way)
{
    static world w;
    open_world(&w, way);
    lists_agree(&w);
    records_agree(&w);
    changes_hold(&w);
    searches_agree(&w);
    external_weights(&w);
    if (way != UNIX)
        pages_of_sessions(&w);
    downloads_fit(&w);
    raw_calls_fit(&w, way);
    done(&w, tinkc_checkpoint_delete(w.client, w.path, &w.err));
    tinkc_checkpoints *list = tinkc_checkpoints_list(w.client, NULL, &w.err);
    assert_null(tinkc_checkpoints_next(list, &w.err));
    assert_ok(&w.err);
    tinkc_checkpoints_free(list);
    copies_and_notes(&w);
    a_finished_session_takes_no_more(&w);
    close_world(&w);
}

TEST(the_client_is_served_over_a_port)
{
    whole(PORT);
}

TEST(over_a_unix_socket)
{
    whole(UNIX);
}

TEST(the_client_is_served_in_process)
{
    whole(IN_PROCESS);
}
