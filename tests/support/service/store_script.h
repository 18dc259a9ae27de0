/* store_script.h - a client with a script for a store, what it was promised at each point, and how to
 * find out whether that holds after an end that nobody announced.
 *
 * Each answer is a promise. After an end the client continues as a client does: it asks for what it was
 * promised, sends the request that was not answered once more, and continues. Either the numbers are
 * those of a run that nothing happened to or, where the durability does not promise that, the service
 * says that they are lost. Hand prepare and teardown to cmocka_run_group_tests.
 */
#ifndef TESTS_STORE_SCRIPT_H
#define TESTS_STORE_SCRIPT_H

#include <math.h>
#include <unistd.h>

#include "support/service/service_world.h"

/* ---- the script ---- */

enum { SESSION, MODEL, PASS, STEP, SAVE, SAMPLER, EPHEMERAL, FLUSH, DELETE, PUBLISH, LOAD, SECOND, RESTART };

typedef struct action {
    int kind;
    int seq;   /* of the run; 0 = has none */
    int steps; /* that the weights have seen after it */
} action;

static const action script[] = {
    { SESSION, 0, 0 }, { MODEL, 0, 0 }, { PASS, 1, 0 },  { STEP, 2, 1 },    { PASS, 3, 1 },      { STEP, 4, 2 },
    { SAVE, 5, 2 },    { PASS, 6, 2 },  { STEP, 7, 3 },  { SAMPLER, 8, 3 }, { EPHEMERAL, 9, 3 }, { FLUSH, 0, 3 },
    { PASS, 10, 3 },   { STEP, 11, 4 }, { SAVE, 12, 4 }, { DELETE, 0, 4 },  { PUBLISH, 0, 4 },   { PASS, 13, 4 },
    { STEP, 14, 5 },   { LOAD, 15, 4 }, { PASS, 16, 4 }, { STEP, 17, 5 },   { SECOND, 0, 5 },    { SAVE, 18, 5 },
    { RESTART, 0, 5 }, { PASS, 19, 5 }, { STEP, 20, 6 }, { SAVE, 21, 6 }, /* replaces what it continued from */
};
enum { N_ACTIONS = sizeof script / sizeof *script, MOST_STEPS = 6 };

static const char *const settings[] = {
    "disk_reserve", "0", "seq_gap_timeout_s", "5", "result_spill_bytes", "64", NULL
};
static double losses[MOST_STEPS + 1];                  /* after so many steps */
static const char *session, *model, *second, *sampler; /* as the client knows them */

/* ---- a client that takes no for an answer ---- */

static char said[4000]; /* the last answer, or why there is none */

static inline bool call(const tinkc_transport *t, const char *method, const char *path, const char *body)
{
    static const char *const headers[] = { "Content-Type", "application/json", NULL };
    answer a = service_call(t, method, path, headers, body, strlen(body));
    snprintf(said, sizeof said, "%d %.3900s", (int)a.status, a.body.data ? a.body.data : "");
    bool ok = a.status == 200 || a.status == 204;
    answer_free(&a);
    return ok;
}

/* The text behind "key":" in the last answer; NULL = there is none. */
static inline const char *field(const char *key)
{
    char mark[60];
    snprintf(mark, sizeof mark, "\"%s\":\"", key);
    return strstr(said, mark) ? hold(json_field(said, key)) : NULL;
}

/* A request whose result comes later. */
static inline bool promise(const tinkc_transport *t, const char *path, const char *body)
{
    const char *id = call(t, "POST", path, body) ? field("request_id") : NULL;
    if (!id)
        return false;
    answer a = service_result(t, id, false);
    snprintf(said, sizeof said, "%d %.3900s", (int)a.status, a.body.data ? a.body.data : "");
    bool ok = a.status == 200 && !strstr(a.body.data, "\"error\":");
    answer_free(&a);
    return ok;
}

static inline bool pass(const tinkc_transport *t, const char *of, int seq, bool forward)
{
    char body[900];
    snprintf(body, sizeof body,
             "{\"model_id\":\"%s\",\"seq_id\":%d,\"%s\":{\"loss_fn\":\"cross_entropy\",\"data\":[{"
             "\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,5,9,13,17,21,"
             "25]}]},\"loss_fn_inputs\":{\"target_tokens\":{\"dtype\":\"int64\",\"data\":[5,9,13,17,"
             "21,25,29]},\"weights\":{\"dtype\":\"float32\",\"data\":[1,1,1,1,1,1,1]}}}]}}",
             of, seq, forward ? "forward_input" : "forward_backward_input");
    return promise(t, forward ? "/api/v1/forward" : "/api/v1/forward_backward", body);
}

/* NaN: it was refused. */
static inline double loss(const tinkc_transport *t, const char *of, int seq)
{
    return pass(t, of, seq, true) && strstr(said, "\"loss:sum\":") ? json_number(said, "loss:sum") : NAN;
}

/* Sends what an action says; sent again it is the same request. */
static inline bool act(tinkc_engine *engine, const action *a)
{
    const tinkc_transport *t = tinkc_engine_transport(engine);
    tinkc_error err = { 0 };
    char body[500], path[300];
    switch (a->kind) {
    case SESSION:
        if (!call(t, "POST", "/api/v1/create_session", "{\"tags\":[],\"sdk_version\":\"t\"}"))
            return false;
        session = field("session_id");
        return true;
    case MODEL:
        snprintf(body, sizeof body,
                 "{\"session_id\":\"%s\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_config\":"
                 "{\"rank\":4,\"seed\":7}}",
                 session);
        if (!promise(t, "/api/v1/create_model", body))
            return false;
        model = field("model_id");
        return true;
    case PASS:
        return pass(t, model, a->seq, false);
    case STEP:
        snprintf(body, sizeof body,
                 "{\"model_id\":\"%s\",\"seq_id\":%d,\"adam_params\":{\"learning_rate\":0.01,"
                 "\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-12}}",
                 model, a->seq);
        return promise(t, "/api/v1/optim_step", body);
    case SAVE:
        snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"x\",\"overwrite\":true}", model,
                 a->seq);
        return promise(t, "/api/v1/save_weights", body);
    case SAMPLER:
        snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"y\"}", model, a->seq);
        return promise(t, "/api/v1/save_weights_for_sampler", body);
    case EPHEMERAL:
        snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":%d,\"sampling_session_seq_id\":0}", model, a->seq);
        if (!promise(t, "/api/v1/save_weights_for_sampler", body))
            return false;
        sampler = field("sampling_session_id");
        return true;
    case FLUSH:
        return tinkc_engine_flush(engine, 60000, &err);
    case DELETE:
        snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/sampler_weights/y", model);
        return call(t, "DELETE", path, "");
    case PUBLISH:
        snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints/weights/x/publish", model);
        return call(t, "POST", path, "");
    case LOAD:
        snprintf(body, sizeof body,
                 "{\"model_id\":\"%s\",\"seq_id\":%d,\"path\":\"tinker://%s/weights/x\","
                 "\"optimizer\":true}",
                 model, a->seq, model);
        return promise(t, "/api/v1/load_weights", body);
    case SECOND:
        snprintf(body, sizeof body,
                 "{\"session_id\":\"%s\",\"model_seq_id\":1,\"path\":\"tinker://%s/weights/x\","
                 "\"optimizer\":true}",
                 session, model);
        if (!promise(t, "/api/v1/load_weights", body))
            return false;
        second = field("model_id");
        return true;
    default:
        return true;
    }
}

/* ---- the whole of it ---- */

static int32_t durability; /* of the engines that are opened */

/* From its first action to the last; answered(n) when n have been answered. False: one was not, and *done is
 * how many were. The engine is closed in any case. */
static inline bool play(const char *store, void (*answered)(int n), int *done)
{
    tinkc_engine *engine = world_open(store, durability, settings);
    bool ok = true;
    for (*done = 0; ok && *done < N_ACTIONS; ok ? answered(++*done) : (void)0) {
        if (script[*done].kind == RESTART) {
            tinkc_engine_free(engine);
            engine = world_open(store, durability, settings);
        } else {
            ok = act(engine, &script[*done]);
        }
    }
    tinkc_engine_free(engine);
    return ok;
}

/* ---- what must hold ---- */

static size_t n_violations;
static bool violations_are_wanted; /* and not printed */
static char where[100];

static inline void violation(const char *what)
{
    if (n_violations++ < 8 && !violations_are_wanted)
        fprintf(stderr, "violation: %s: %s: %.200s\n", where, what, said);
}

static inline void must(bool holds, const char *what)
{
    if (!holds)
        violation(what);
}

static inline bool same(double a, int steps)
{
    return a == losses[steps];
}

/* Was one of this kind answered among the first n actions? */
static inline bool answered(int kind, int n)
{
    for (int i = 0; i < n && i < N_ACTIONS; i++)
        if (script[i].kind == kind)
            return true;
    return false;
}

/* Is the checkpoint public after n actions? Saving it again ends that. */
static inline bool is_public(int n)
{
    bool yes = false;
    for (int i = 0; i < n && i < N_ACTIONS; i++)
        yes = (yes || script[i].kind == PUBLISH) && script[i].kind != SAVE;
    return yes;
}

/* Does the durability promise that the run continues after n actions? Without a journal that is so
 * when its weights are on disk and nothing was under way that may have changed them. */
static inline bool run_is_safe(int n)
{
    if (durability == TINKC_DURABILITY_JOURNAL)
        return true;
    if (n < N_ACTIONS && script[n].seq)
        return false;
    for (int i = n - 1; i >= 0; i--) {
        int kind = script[i].kind;
        bool image = kind == FLUSH || kind == RESTART;
        if (kind == SAVE || (image && durability == TINKC_DURABILITY_SNAPSHOT))
            return true;
        if (script[i].seq)
            return false;
    }
    return true;
}

static inline void check_rows(const tinkc_transport *t, int n)
{
    char path[300];
    if (!answered(MODEL, n))
        return;
    snprintf(path, sizeof path, "/api/v1/training_runs/%s/checkpoints", model);
    must(call(t, "GET", path, ""), "the run is gone");
    bool x = strstr(said, "\"weights/x\"") != NULL, y = strstr(said, "sampler_weights/y") != NULL;
    must(x || !answered(SAVE, n), "a saved checkpoint is gone");
    must(!x || answered(SAVE, n + 1), "a checkpoint that nobody saved");
    bool public = strstr(said, "\"public\":true") != NULL;
    must(public == is_public(n) || public == is_public(n + 1), "public or not, and should not be");
    if (answered(DELETE, n))
        must(!y, "a deleted checkpoint is back");
    else if (!answered(DELETE, n + 1))
        must(y || !answered(SAMPLER, n), "a saved sampler is gone");
}

/* A model made from the checkpoint has its weights: those of the last save that was answered, or of the one
 * that was under way. */
static inline void check_checkpoint(const tinkc_transport *t, int n)
{
    char body[300];
    int steps = -1, next = -1;
    for (int i = 0; i < n; i++)
        steps = script[i].kind == SAVE ? script[i].steps : steps;
    if (n < N_ACTIONS && script[n].kind == SAVE)
        next = script[n].steps;
    if (steps < 0)
        return;
    snprintf(body, sizeof body,
             "{\"session_id\":\"%s\",\"model_seq_id\":9,\"path\":\"tinker://%s/weights/x\","
             "\"optimizer\":true}",
             session, model);
    must(promise(t, "/api/v1/load_weights", body), "a checkpoint does not load");
    const char *copy = field("model_id");
    double got = copy ? loss(t, copy, 1) : NAN;
    must(same(got, steps) || (next >= 0 && same(got, next)), "a checkpoint has other weights");
}

/* The client sends what was not answered once more, and trains on to the next step. */
static inline void check_run(tinkc_engine *engine, int n)
{
    const tinkc_transport *t = tinkc_engine_transport(engine);
    bool safe = run_is_safe(n);
    int seq = 0, steps = 0, i;
    for (i = 0; i < n; i++) {
        seq = script[i].seq ? script[i].seq : seq;
        steps = script[i].steps;
    }
    for (bool stepped = false; i < N_ACTIONS && !stepped; i++) {
        if (!script[i].seq)
            continue;
        if (!act(engine, &script[i])) {
            must(!safe, "the run does not continue");
            return; /* and says so */
        }
        seq = script[i].seq;
        steps = script[i].steps;
        stepped = script[i].kind == STEP;
    }
    double got = loss(t, model, seq + 1);
    must(same(got, steps) || (isnan(got) && !safe), "the run continues from other weights");
}

static inline void check_others(const tinkc_transport *t, int n)
{
    char body[400];
    if (answered(SECOND, n))
        must(same(loss(t, second, 1), 4), "a model made from a checkpoint is gone");
    if (!answered(EPHEMERAL, n) || durability == TINKC_DURABILITY_CHECKPOINT)
        return;
    snprintf(body, sizeof body,
             "{\"sampling_session_id\":\"%s\",\"seq_id\":0,\"prompt\":{\"chunks\":[{\"type\":"
             "\"encoded_text\",\"tokens\":[1,5]}]},\"sampling_params\":{\"max_tokens\":2,\"seed\":3}}",
             sampler);
    must(promise(t, "/api/v1/asample", body), "an ephemeral sampler is gone");
}

/* A row whose folder is gone is what a delete may leave: the next start takes it out. */
static inline void on_finding(const char *line, bool bad, void *user)
{
    if (bad && !strstr(line, "which is not there")) {
        snprintf(said, sizeof said, "%.500s", line);
        violation(user);
    }
}

static inline void check_state(char *store, int n)
{
    tinkc_error err = { 0 };
    char before[] = "before the start", after[] = "after it";
    (void)tinkc_store_check(store, NULL, on_finding, before, &err);
    err = (tinkc_error){ 0 };
    tinkc_engine *engine = tinkc_engine_new(
        &(tinkc_engine_options){ .threads = 1, .store = store, .durability = durability, .settings = settings }, &err);
    if (!engine) {
        snprintf(said, sizeof said, "%.500s", err.message);
        violation("the store does not open");
        return;
    }
    assert_true(tinkc_engine_add_model(engine, "tiny", model_folder, &err));
    const tinkc_transport *t = tinkc_engine_transport(engine);
    if (n < N_ACTIONS && script[n].kind == SAVE) /* a name that is saved again is not listed meanwhile */
        (void)act(engine, &script[n]);
    check_rows(t, n);
    if (answered(MODEL, n)) {
        check_others(t, n);
        check_checkpoint(t, n);
        check_run(engine, n);
    }
    tinkc_engine_free(engine);
    must(tinkc_store_check(store, NULL, on_finding, after, &err), "the store is damaged");
}

/* What the losses are when nothing happens. */
static inline int prepare(void **state)
{
    /* In memory, where a sync costs nothing: which ones there were is in the record. */
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 0);
    setup(state);
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    assert_true(act(engine, &(action){ .kind = SESSION }));
    assert_true(act(engine, &(action){ .kind = MODEL }));
    for (int i = 0; i <= MOST_STEPS; i++) {
        losses[i] = loss(t, model, 3 * i + 1);
        assert_true(losses[i] > 0);
        assert_true(act(engine, &(action){ .kind = PASS, .seq = 3 * i + 2 }));
        assert_true(act(engine, &(action){ .kind = STEP, .seq = 3 * i + 3 }));
    }
    tinkc_engine_free(engine);
    return 0;
}

#endif
