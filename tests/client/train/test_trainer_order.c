/* test_trainer_order.c - the order of a trainer (docs/failures.md): which number a request has, what becomes of a number whose
 * request failed, was lost or cancelled, and of the operations behind it. */
#include "support/client/client_scene.h"

#define STEP   API "optim_step"
#define PASS   API "forward_backward"
#define UNLOAD API "unload_model"

static const outcome lost = { 200, TINKC_FAULT_RESET, NULL, NULL, "{}" };
static const tinkc_client_options few_attempts = { .max_retries = 1, .retry_window_ms = 1500 };
static const tinkc_client_options one_attempt = { .no_retries = true };

/* Another client and trainer, whose numbers begin with 1. */
static tinkc_trainer *begin_again(scene *s, const char *config, const tinkc_client_options *o)
{
    answer_always(s, CONFIG, 200, config);
    scene_renew(s, o);
    return open_trainer(s);
}

static void step(scene *s, const char *name, tinkc_trainer *t)
{
    complete(s, name, tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
}

enum { OPTIM, DIMUON, SAVE, SAVE_FOR_SAMPLER, SAVE_EXTERNAL, LOAD, OPEN_SAMPLER, INFO, UNLOADING, N_OPERATIONS };

static const char *const paths[N_OPERATIONS] = { STEP,
                                                 STEP,
                                                 API "save_weights",
                                                 API "save_weights_for_sampler",
                                                 API "save_weights_external",
                                                 API "load_weights",
                                                 API "save_weights_for_sampler",
                                                 API "get_info",
                                                 UNLOAD };

static tinkc_future *begin_operation(scene *s, tinkc_trainer *t, int which)
{
    tinkc_error *e = scene_err(s);
    switch (which) {
    case OPTIM:
        return tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, e);
    case DIMUON:
        return tinkc_dimuon_step(t, &(tinkc_dimuon){ 0.5, 0.75, 3, { 0 } }, e);
    case SAVE:
        return tinkc_trainer_save(t, "n", NULL, e);
    case SAVE_FOR_SAMPLER:
        return tinkc_trainer_save_for_sampler(t, "n", &(tinkc_save_options){ .ttl_s = 1 }, e);
    case SAVE_EXTERNAL:
        return tinkc_trainer_save_external(t, "n", NULL, e);
    case LOAD:
        return tinkc_trainer_load(t, &(tinkc_state_options){ .path = "tinker://r/weights/n" }, e);
    case OPEN_SAMPLER:
        return tinkc_trainer_open_sampler(t, NULL, e);
    case INFO:
        return tinkc_trainer_info(t, e);
    default:
        return tinkc_trainer_unload(t, e);
    }
}

/* A step whose request or poll is answered like this, with one attempt for each; then the next step. */
TEST(a_step_and_the_next)
{
    static const struct {
        const char *path;
        outcome o[2];
        const char *seen;
    } rows[] = {
        { STEP,
          { { 403, 0, NULL, NULL, "{\"detail\":\"no\"}" } },
          "optim_step #1; one: FORBIDDEN 403 \"HTTP 403: no\"; optim_step #1; poll; two: done" },
        { STEP,
          { { 409, 0, NULL, NULL, "{\"detail\":\"taken\"}" } },
          "optim_step #1; one: CONFLICT 409 \"HTTP 409: taken\"; optim_step #1; poll; two: done" },
        { STEP,
          { { 500, 0, NULL, NULL, "" } },
          "optim_step #1; one: SERVER 500, may have run \"HTTP 500\"; optim_step #1; optim_step "
          "#2; poll; two: done" },
        { STEP,
          { { 500, 0, NULL, NULL, "" }, { 409, 0, NULL, NULL, "" } },
          "optim_step #1; one: SERVER 500, may have run \"HTTP 500\"; optim_step #1; two: "
          "SEQUENCE, cause SERVER \"an earlier request of this model was not confirmed: HTTP "
          "500\"" },
        { STEP,
          { { 500, 0, NULL, NULL, "" }, { 422, 0, NULL, NULL, "" } },
          "optim_step #1; one: SERVER 500, may have run \"HTTP 500\"; optim_step #1; optim_step "
          "#1; poll; two: done" },
        { STEP,
          { { 500, 0, NULL, NULL, "" }, { 403, 0, NULL, NULL, "" } },
          "optim_step #1; one: SERVER 500, may have run \"HTTP 500\"; optim_step #1; two: "
          "SEQUENCE, cause SERVER \"an earlier request of this model was not confirmed: HTTP "
          "500\"" },
        { STEP,
          { { 200, 0, NULL, NULL, "[]" } },
          "optim_step #1; one: BAD_RESPONSE, may have run \"JSON: an object is needed at byte 0\"; "
          "optim_step #2; poll; two: done" },
        { STEP,
          { { 200, 0, NULL, NULL, "{}" } },
          "optim_step #1; one: BAD_RESPONSE, may have run \"request_id: JSON: is missing at byte "
          "2\"; optim_step #2; poll; two: done" },
        { POLL,
          { { 200, 0, NULL, NULL, "{\"error\":\"no\",\"category\":\"user\"}" } },
          "optim_step #1; poll; one: REQUEST_FAILED 200, by the caller, not retriable \"no\"; "
          "optim_step #2; poll; two: done" },
        { POLL,
          { { 404, 0, NULL, NULL, "{\"detail\":\"lost\"}" } },
          "optim_step #1; poll; one: NOT_FOUND 404, may have run, in retrieval \"HTTP 404: lost\"; "
          "optim_step #2; poll; two: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        tinkc_trainer *t = begin_again(s, "{}", &one_attempt);
        for (size_t k = 0; k < 2 && rows[i].o[k].status; k++)
            answer_with(s, rows[i].path, &rows[i].o[k]);
        step(s, "one", t);
        step(s, "two", t);
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* A step of which every attempt was lost is sent again, once, before the next; what that is answered decides. */
TEST(a_lost_step_is_sent_again)
{
    static const struct {
        int32_t status;
        const char *seen;
    } rows[] = { { 200, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; optim_step #2; poll; "
                        "two: done; optim_step #3; poll; three: done" },
                 { 400, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; optim_step #1; poll; "
                        "two: done; optim_step #2; poll; three: done" },
                 { 403, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; two: SEQUENCE, cause "
                        "CONNECTION; optim_step #1; optim_step #2; poll; three: done" },
                 { 404, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; optim_step #1; poll; "
                        "two: done; optim_step #2; poll; three: done" },
                 { 405, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; optim_step #1; poll; "
                        "two: done; optim_step #2; poll; three: done" },
                 { 409, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; two: SEQUENCE, cause "
                        "CONNECTION; optim_step #1; optim_step #2; poll; three: done" },
                 { 413, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; optim_step #1; poll; "
                        "two: done; optim_step #2; poll; three: done" },
                 { 422, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; optim_step #1; poll; "
                        "two: done; optim_step #2; poll; three: done" },
                 { 500, "optim_step #1; lost: CONNECTION, may have run; optim_step #1; two: SEQUENCE, cause "
                        "CONNECTION; optim_step #1; optim_step #2; poll; three: done" } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    scene_shows(s, HIDE_MESSAGES);
    for (size_t i = 0; i < LEN(rows); i++) {
        tinkc_trainer *t = begin_again(s, "{}", &one_attempt);
        answer_with(s, STEP, &lost);
        step(s, "lost", t);
        answer(s, STEP, rows[i].status, rows[i].status == 200 ? "{\"request_id\":\"r-1\"}" : "{\"detail\":\"x\"}");
        step(s, "two", t);
        step(s, "three", t);
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* A 409 to a repeated save may mean that it was saved, where the option conflict_recovery is set; the name then makes the
 * path. To a first attempt, and to anything without a name, it is what it says. */
TEST(a_409_to_a_repeated_save_may_mean_that_it_is_saved)
{
    static const struct {
        int operation;
        bool recovery, repeated;
        const char *seen;
    } rows[] = {
        { OPTIM, true, true,
          "optim_step #1; +500 optim_step #1 again (1); +1000 optim_step #1 again; CONFLICT 409, "
          "may have run \"HTTP 409: exists\"" },
        { SAVE, false, true,
          "save_weights #1; +1000 save_weights #1 again; +500 save_weights #1 again; CONFLICT 409, "
          "may have run \"HTTP 409: exists\"" },
        { SAVE, true, false, "save_weights #1; +1000 save_weights #1 again; CONFLICT 409 \"HTTP 409: exists\"" },
        { SAVE, true, true, "save_weights #1; +1000 save_weights #1 again; done; /weights/n" },
        { SAVE_FOR_SAMPLER, true, true,
          "save_weights_for_sampler #1; +1000 save_weights_for_sampler #1 again; done; "
          "/sampler_weights/n" },
        { SAVE_EXTERNAL, true, true,
          "save_weights_external #1; +1000 save_weights_external #1 again; +500 "
          "save_weights_external #1 again; CONFLICT 409, may have run \"HTTP 409: exists\"" },
        { LOAD, true, true,
          "load_weights #1; +500 load_weights #1 again (1); +1000 load_weights #1 again; CONFLICT "
          "409, may have run \"HTTP 409: exists\"" },
        { OPEN_SAMPLER, true, true,
          "save_weights_for_sampler #1; +1000 save_weights_for_sampler #1 again; +500 "
          "save_weights_for_sampler #1 again; CONFLICT 409, may have run \"HTTP 409: exists\"" },
        { UNLOADING, true, true,
          "unload_model; +500 unload_model again (1); CONFLICT 409, may have run \"HTTP 409: "
          "exists\"" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        const tinkc_client_options o = { .max_retries = 1,
                                         .retry_window_ms = 1500,
                                         .conflict_recovery = rows[i].recovery };
        tinkc_trainer *t = begin_again(s, "{}", &o);
        const char *path = paths[rows[i].operation];
        for (int k = 0; k < 6; k++)
            answer(s, path, rows[i].repeated && !k ? 500 : 409, "{\"detail\":\"exists\"}");
        tinkc_future *f = follow(s, "", begin_operation(s, t, rows[i].operation));
        finish(s, f, 4000);
        const char *made = rows[i].operation >= SAVE && rows[i].operation <= SAVE_EXTERNAL
                               ? tinkc_future_path(f, 0, scene_err(s))
                               : NULL;
        *scene_err(s) = (tinkc_error){ 0 };
        if (made)
            note(s, "%s", strchr(made + strlen("tinker://"), '/'));
        EXPECT_ROW(s, i, rows[i].seen);
        use_up(s, path);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* What a result must hold, operation by operation: nothing, then a path and metrics that are none. */
TEST(results_without_sense)
{
    static const struct {
        int operation;
        const char *empty, *odd;
    } rows[] = { { OPTIM, "optim_step; poll; done",
                   "optim_step; poll; BAD_RESPONSE, may have run, in retrieval \"metrics: JSON: an object "
                   "is needed at byte 21\"" },
                 { SAVE,
                   "save_weights; poll; BAD_RESPONSE, may have run, in retrieval \"path: JSON: is missing "
                   "at byte 2\"",
                   "save_weights; poll; BAD_RESPONSE, may have run, in retrieval \"trainer_save: the answer "
                   "names no path\"" },
                 { SAVE_FOR_SAMPLER,
                   "save_weights_for_sampler; poll; BAD_RESPONSE, may have run, in retrieval "
                   "\"trainer_save_for_sampler: the answer names no path\"",
                   "save_weights_for_sampler; poll; BAD_RESPONSE, may have run, in retrieval "
                   "\"trainer_save_for_sampler: the answer names no path\"" },
                 { SAVE_EXTERNAL,
                   "save_weights_external; poll; BAD_RESPONSE, may have run, in retrieval "
                   "\"trainer_save_external: the answer names no path\"",
                   "save_weights_external; poll; BAD_RESPONSE, may have run, in retrieval "
                   "\"trainer_save_external: the answer names no path\"" },
                 { LOAD, "load_weights; poll; done",
                   "load_weights; poll; BAD_RESPONSE, may have run, in retrieval \"trainer_load: the answer "
                   "names no path\"" },
                 { OPEN_SAMPLER,
                   "save_weights_for_sampler; poll; BAD_RESPONSE, may have run, in retrieval "
                   "\"trainer_open_sampler: the answer names none\"",
                   "save_weights_for_sampler; poll; BAD_RESPONSE, may have run, in retrieval "
                   "\"trainer_open_sampler: the answer names none\"" } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = begin_again(s, "{}", &one_attempt);
    scene_shows(s, HIDE_NUMBERS);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer(s, POLL, 200, "{}");
        complete(s, "", begin_operation(s, t, rows[i].operation));
        EXPECT_ROW(s, i, rows[i].empty);
        answer(s, POLL, 200, "{\"path\":\"\",\"metrics\":5}");
        complete(s, "", begin_operation(s, t, rows[i].operation));
        EXPECT_ROW(s, i, rows[i].odd);
    }
    answer(s, API "get_info", 200, "{}");
    complete(s, "info", begin_operation(s, t, INFO));
    EXPECT(s, "get_info; info: BAD_RESPONSE 200 \"model_id: JSON: is missing at byte 2\"");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* After an unload the model cannot be used, and not be unloaded again; one that failed for sure changes nothing. */
TEST(after_an_unload_the_trainer_is_closed)
{
    static const struct {
        outcome o;
        const char *seen;
    } rows[] = {
        { { 200, 0, NULL, NULL, "{\"request_id\":\"r-1\"}" },
          "unload_model; poll; unload: done; step: CLOSED \"trainer: its model was unloaded\"; "
          "again: CLOSED \"trainer: its model was unloaded\"" },
        { { 200, 0, NULL, NULL, "{\"model_id\":\"model-1\",\"type\":\"unload_model\"}" },
          "unload_model; unload: done; step: CLOSED \"trainer: its model was unloaded\"; again: "
          "CLOSED \"trainer: its model was unloaded\"" },
        { { 200, 0, NULL, NULL, "{}" },
          "unload_model; unload: BAD_RESPONSE, may have run, in retrieval \"model_id: JSON: is "
          "missing at byte 2\"; optim_step #1; poll; step: done; unload_model; poll; again: done" },
        { { 200, 0, NULL, NULL, "not JSON" },
          "unload_model; unload: BAD_RESPONSE, may have run, in retrieval \"JSON: an object is "
          "needed at byte 0\"; optim_step #1; poll; step: done; unload_model; poll; again: done" },
        { { 403, 0, NULL, NULL, "" },
          "unload_model; unload: FORBIDDEN 403 \"HTTP 403\"; optim_step #1; poll; step: done; "
          "unload_model; poll; again: done" },
        { { 404, 0, NULL, NULL, "" },
          "unload_model; unload: NOT_FOUND 404 \"HTTP 404\"; optim_step #1; poll; step: done; "
          "unload_model; poll; again: done" },
        { { 500, 0, NULL, NULL, "" },
          "unload_model; unload: SERVER 500, may have run \"HTTP 500\"; optim_step #1; poll; step: "
          "done; unload_model; poll; again: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        tinkc_trainer *t = begin_again(s, "{}", &one_attempt);
        answer_with(s, UNLOAD, &rows[i].o);
        if (i == 0)
            answer(s, POLL, 200, "{\"model_id\":\"model-1\",\"type\":\"unload_model\"}");
        complete(s, "unload", tinkc_trainer_unload(t, scene_err(s)));
        complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
        complete(s, "again", tinkc_trainer_unload(t, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* ---- passes of several parts ---- */

/* A pass of three parts, of which the first or the second request is answered like this until its attempts are used up; a step
 * behind it, and one later. Parts leave one after the other, or together. NULL: as for the first. */
TEST(a_part_that_fails_fails_its_pass_and_nothing_behind_it)
{
    static const struct {
        outcome o;
        const char *first, *second, *together_first, *together_second;
    } rows[] = {
        { { 400, 0, NULL, NULL, "{\"detail\":\"bad\"}" },
          "pass #1; pass: BAD_REQUEST 400; optim_step #1; poll; +100 poll 1; behind: done; +3900 "
          "optim_step #2; poll; later: done",
          "pass #1; pass #2; poll; pass: BAD_REQUEST 400; optim_step #2; poll; behind: done; +4000 "
          "optim_step #3; poll; later: done",
          "pass #2; pass #3; pass: BAD_REQUEST 400; optim_step #1; poll; +100 poll 1; behind: "
          "done; +3900 optim_step #2; poll; later: done",
          "pass #2; pass #3; pass: BAD_REQUEST 400; behind: SEQUENCE, cause BAD_REQUEST; +4000 "
          "later: SEQUENCE, cause BAD_REQUEST" },
        { { 415, 0, NULL, NULL, "" },
          "pass #1; pass #1 {Content-Type: application/json}; pass: HTTP 415; optim_step #1; poll; "
          "+100 poll 1; behind: done; +3900 optim_step #2; poll; later: done",
          "pass #1; pass #2; poll; pass #2 {Content-Type: application/json}; pass: HTTP 415; "
          "optim_step #2; poll; behind: done; +4000 optim_step #3; poll; later: done",
          "pass #2; pass #3; pass #2 {Content-Type: application/json}; pass #3 {Content-Type: "
          "application/json}; pass: HTTP 415; optim_step #1; poll; +100 poll 1; behind: done; "
          "+3900 optim_step #2; poll; later: done",
          "pass #2; pass #3; pass #3 {Content-Type: application/json}; poll; pass: HTTP 415; "
          "behind: SEQUENCE, cause HTTP; +4000 later: SEQUENCE, cause HTTP" },
        { { 500, 0, NULL, NULL, "" },
          "pass #1; pass #1 {Content-Type: application/json}; +500 pass #1 again (1) "
          "{Content-Type: application/json}; +1000 pass #1 again {Content-Type: application/json}; "
          "pass #1 {Content-Type: application/json}; optim_step #1; poll; pass: SERVER 500, may "
          "have run; +100 poll 1; behind: done; +2400 optim_step #2; poll; later: done",
          NULL,
          "pass #2; pass #3; pass #2 {Content-Type: application/json}; pass #3 {Content-Type: "
          "application/json}; +500 pass #2 again (1) {Content-Type: application/json}; pass #3 "
          "again (1) {Content-Type: application/json}; pass #2; pass #3; pass #1; poll; poll; "
          "optim_step #4; poll; poll; behind: done; +100 poll 1; pass: done; +3400 optim_step #5; "
          "poll; later: done",
          NULL },
        { { 429, 0, "Retry-After", "2", "" },
          "pass #1; +1500 pass #1 again (1); optim_step #1; poll; pass: RATE_LIMITED 429, after "
          "2000; +100 poll 1; behind: done; +2400 optim_step #2; poll; later: done",
          NULL,
          "pass #2; pass #3; +1500 pass #2 again (1); pass #3 again (1); optim_step #1; poll; "
          "pass: RATE_LIMITED 429, after 2000; +100 poll 1; behind: done; +2400 optim_step #2; "
          "poll; later: done",
          NULL },
        { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
          "pass #1; +500 pass #1 again (1); +1000 pass #1 again; pass #1; pass: CONNECTION, may "
          "have run; behind: SEQUENCE, cause CONNECTION; +2500 pass #1; optim_step #2; poll; +100 "
          "poll 1; later: done",
          NULL,
          "pass #2; pass #3; +500 pass #2 again (1); pass #3 again (1); +1000 pass #2 again; pass "
          "#3 again; pass #1; poll; poll; optim_step #4; poll; poll; behind: done; +100 poll 1; "
          "pass: done; +2400 optim_step #5; poll; later: done",
          NULL },
        { { 200, TINKC_FAULT_RESET, NULL, NULL, "{}" },
          "pass #1; +500 pass #1 again (1); +1000 pass #1 again; pass #1; pass: CONNECTION, may "
          "have run; behind: SEQUENCE, cause CONNECTION; +2500 pass #1; optim_step #2; poll; +100 "
          "poll 1; later: done",
          NULL,
          "pass #2; pass #3; +500 pass #2 again (1); pass #3 again (1); +1000 pass #2 again; pass "
          "#3 again; pass #1; poll; poll; optim_step #4; poll; poll; behind: done; +100 poll 1; "
          "pass: done; +2400 optim_step #5; poll; later: done",
          NULL },
        { { 200, 0, NULL, NULL, "{}" },
          "pass #1; pass: BAD_RESPONSE, may have run; optim_step #2; poll; +100 poll 1; behind: "
          "done; +3900 optim_step #3; poll; later: done",
          "pass #1; pass #2; poll; pass: BAD_RESPONSE, may have run; optim_step #3; poll; behind: "
          "done; +4000 optim_step #4; poll; later: done",
          "pass #2; pass #3; pass: BAD_RESPONSE, may have run; pass #1; optim_step #4; poll; +100 "
          "poll 1; behind: done; +3900 optim_step #5; poll; later: done",
          "pass #2; pass #3; pass: BAD_RESPONSE, may have run; pass #1; optim_step #4; poll; +100 "
          "poll 1; behind: done; +3900 optim_step #5; poll; later: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    scene_shows(s, HIDE_MESSAGES);
    for (size_t i = 0; i < LEN(rows); i++)
        for (int which = 0; which < 4; which++) {
            const char *const seen[] = { rows[i].first, rows[i].second, rows[i].together_first,
                                         rows[i].together_second };
            if (!seen[which])
                continue;
            tinkc_trainer *t = begin_again(s,
                                           which > 1 ? "{\"fwdbwd_max_chunk_len\":1}"
                                                     : "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false}",
                                           &few_attempts);
            if (which % 2)
                answer(s, PASS, 200, "{\"request_id\":\"r-0\"}");
            for (int k = 0; k < 4; k++)
                answer_with(s, PASS, &rows[i].o);
            answer(s, POLL, 408, "");
            tinkc_batch *b = make_batch(s, 3);
            follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
            follow(s, "behind", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
            live(s, 4000);
            follow(s, "later", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
            live(s, 3000);
            EXPECT_ROW(s, i, seen[which]);
            tinkc_batch_free(b);
            tinkc_trainer_free(t);
            use_up(s, PASS);
            use_up(s, POLL);
        }
    scene_end(s);
}

/* Of two parts that left together the first is lost, the second accepted: the first's number cannot be used otherwise. */
TEST(a_lost_part)
{
    static const struct {
        const char *config;
        size_t n;
        bool as_json;
        int32_t again;
        const char *seen;
    } rows[] = {
        { "{\"fwdbwd_max_chunk_len\":1}", 2, false, 200,
          "pass #2; +500 pass #2 again (1); pass #1; poll; +500 pass #1 again (1); +1000 pass #1 "
          "again; pass: SERVER 503, may have run; then; pass #1; optim_step #3; poll; step: done; "
          "optim_step #4; poll; next: done" },
        { "{\"fwdbwd_max_chunk_len\":1}", 2, false, 400,
          "pass #2; +500 pass #2 again (1); pass #1; poll; +500 pass #1 again (1); +1000 pass #1 "
          "again; pass: SERVER 503, may have run; then; pass #1; step: SEQUENCE, cause SERVER; "
          "pass #1; next: SEQUENCE, cause SERVER" },
        { "{\"fwdbwd_max_chunk_len\":1}", 1, true, 200,
          "pass #1; pass #1 {Content-Type: application/json}; +500 pass #1 again (1) "
          "{Content-Type: application/json}; +1000 pass #1 again {Content-Type: application/json}; "
          "pass: SERVER 503, may have run; then; pass #1 {Content-Type: application/json}; "
          "optim_step #2; poll; step: done; optim_step #3; poll; next: done" },
        { "{\"fwdbwd_max_chunk_len\":1,\"proto_compress_fwdbwd\":true}", 1, false, 200,
          "pass #1 {Content-Encoding: zstd}; +500 pass #1 again (1) {Content-Encoding: zstd}; "
          "+1000 pass #1 again {Content-Encoding: zstd}; pass: SERVER 503, may have run; then; "
          "pass #1 {Content-Encoding: zstd}; optim_step #2; poll; step: done; optim_step #3; poll; "
          "next: done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    scene_shows(s, HIDE_MESSAGES);
    for (size_t i = 0; i < LEN(rows); i++) {
        tinkc_trainer *t = begin_again(s, rows[i].config, &few_attempts);
        tinkc_batch *b = make_batch(s, rows[i].n);
        if (rows[i].as_json)
            answer(s, PASS, 415, "");
        answer_with(s, PASS, &lost);
        if (rows[i].n == 2) {
            answer(s, PASS, 200, "{\"request_id\":\"r-1\"}");
            silence(s, POLL);
        }
        answer_always(s, PASS, 503, "");
        tinkc_future *f = follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
        finish(s, f, 4000);
        answer_always(s, PASS, rows[i].again,
                      rows[i].again == 200 ? "{\"request_id\":\"r-2\"}" : "{\"detail\":\"bad\"}");
        note(s, "then");
        step(s, "step", t);
        step(s, "next", t);
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_batch_free(b);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* The error of a pass is that of the part that failed, and names its request. */
TEST(the_error_of_a_part)
{
    static const struct {
        bool second;
        outcome o;
        const char *seen;
    } rows[] = {
        { false,
          { 200, 0, NULL, NULL, "{\"error\":\"it\\nfailed\",\"category\":\"user\"}" },
          "pass #2; pass #1; poll; REQUEST_FAILED 200, by the caller, not retriable, of 2 \"it "
          "failed\"" },
        { true,
          { 200, 0, NULL, NULL, "{\"error\":\"it failed\",\"category\":\"server\"}" },
          "pass #2; pass #1; poll; poll; REQUEST_FAILED 200, by the server, of 1 \"it failed\"" },
        { false,
          { 404, 0, NULL, NULL, "{\"detail\":\"gone\"}" },
          "pass #2; pass #1; poll; NOT_FOUND 404, may have run, in retrieval, of 2 \"HTTP 404: "
          "gone\"" },
        { true,
          { 410, 0, NULL, NULL, "{\"detail\":\"gone\"}" },
          "pass #2; pass #1; poll; poll; PROMISE_EXPIRED 410, may have run, in retrieval, of 1 "
          "\"the result is gone: HTTP 410: gone\"" },
        { true,
          { 200, 0, NULL, NULL, "not JSON" },
          "pass #2; pass #1; poll; poll; BAD_RESPONSE, may have run, in retrieval, of 1 \"JSON: an "
          "object is needed at byte 0\"" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        tinkc_trainer *t = begin_again(s, "{\"fwdbwd_max_chunk_len\":1}", NULL);
        tinkc_batch *b = make_batch(s, 2);
        scene_shows(s, SHOW_REQUEST_ID);
        if (rows[i].second)
            answer(s, POLL, 200, QUEUE("active", ""));
        answer_with(s, POLL, &rows[i].o);
        if (!rows[i].second)
            answer(s, POLL, 200, QUEUE("active", ""));
        complete(s, "", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        use_up(s, POLL);
        tinkc_batch_free(b);
        tinkc_trainer_free(t);
    }
    scene_end(s);
}

/* A pass that was refused gives the service's words as they came. */
TEST(the_body_of_a_refusal)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    tinkc_batch *b = make_batch(s, 1);
    scene_shows(s, SHOW_ERROR_BODY);
    answer(s, PASS, 403, "{\"detail\":\"no\",\"more\":1}");
    complete(s, "", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
    EXPECT(s, "pass #1; FORBIDDEN 403 \"HTTP 403: no\" {\"detail\":\"no\",\"more\":1}");
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    scene_end(s);
}

/* An error holds 63 bytes of an id. */
TEST(a_long_id)
{
    char id[300], body[400];
    memset(id, 'r', sizeof id - 1);
    id[sizeof id - 1] = '\0';
    (void)snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", id);
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    scene_shows(s, SHOW_REQUEST_ID);
    answer(s, STEP, 200, body);
    answer(s, POLL, 404, "{\"detail\":\"gone\"}");
    step(s, "step", t);
    EXPECT(s, "optim_step #1; poll; step: NOT_FOUND 404, may have run, in retrieval, of "
              "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr \"HTTP 404: gone\"");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* A part that was refused gives its bytes back. */
TEST(a_refused_part_leaves_its_room)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = begin_again(s, "{\"fwdbwd_dispatch_bytes_semaphore_size\":1}", NULL);
    tinkc_batch *b = make_batch(s, 1);
    answer(s, PASS, 400, "{\"detail\":\"no\"}");
    for (int i = 0; i < 2; i++)
        complete(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
    EXPECT(s, "pass #1; pass: BAD_REQUEST 400 \"HTTP 400: no\"; pass #1; poll; pass: done");
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    scene_end(s);
}

/* A pass that fails while its next part waits for room gives up its turn at once. */
TEST(a_part_that_waits_for_room)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = begin_again(s,
                                   "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false,"
                                   "\"fwdbwd_dispatch_bytes_semaphore_size\":1}",
                                   NULL);
    tinkc_trainer *other = open_trainer(s);
    tinkc_batch *two = make_batch(s, 2), *one = make_batch(s, 1);
    tinkc_mock_once(scene_mock(s), NULL, PASS,
                    &(tinkc_mock_answer){ .body = "{\"request_id\":\"r-1\"}", .delay_ms = 100 }, scene_err(s));
    silence(s, PASS);
    answer(s, POLL, 200, "{\"error\":\"it failed\",\"category\":\"user\"}");
    tinkc_future *f = follow(s, "pass", tinkc_forward_backward(t, two, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
    tinkc_future *g = follow(s, "other", tinkc_forward_backward(other, one, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
    finish(s, f, 1000);
    step(s, "step", t);
    tinkc_future_cancel(g);
    EXPECT(s, "pass #1; +100 poll; pass #1; pass: REQUEST_FAILED 200, by the caller, not retriable "
              "\"it failed\"; optim_step #2; poll; step: done; other: CANCELLED, may have run "
              "\"forward_backward: cancelled\"");
    tinkc_batch_free(one);
    tinkc_batch_free(two);
    tinkc_trainer_free(other);
    tinkc_trainer_free(t);
    scene_end(s);
}

/* ---- cancelled at every stage ---- */

TEST(a_cancelled_step_gives_its_number_back_if_it_was_not_sent)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    silence(s, STEP); /* while it is sent, with another one behind it that is cancelled before */
    tinkc_future *f = follow(s, "sent", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    tinkc_future *g = follow(s, "behind", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    tinkc_future *h = follow(s, "behind that", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    tinkc_future_cancel(g);
    settle(s);
    tinkc_future_cancel(f);
    settle(s);
    finish(s, h, 1000);
    EXPECT(s, "optim_step #1; behind: CANCELLED \"optim_step: cancelled\"; optim_step #1; optim_step "
              "#2; poll; sent: CANCELLED, may have run \"optim_step: cancelled\"; behind that: done");
    answer(s, STEP, 503, ""); /* between two attempts */
    f = begin_step(s, t);
    tinkc_future_cancel(f);
    settle(s);
    step(s, "after", t);
    EXPECT(s, "optim_step #3; step: CANCELLED, may have run \"optim_step: cancelled\"; optim_step "
              "#3; optim_step #4; poll; after: done");
    silence(s, POLL); /* while it is polled */
    f = begin_step(s, t);
    tinkc_future_cancel(f);
    step(s, "after", t);
    EXPECT(s, "optim_step #5; poll; optim_step #6; poll; step: CANCELLED, may have run "
              "\"optim_step: cancelled\"; after: done");
    silence(s, POLL); /* by its limit */
    f = begin_step(s, t);
    tinkc_future_limit(f, 777, scene_err(s));
    finish(s, f, 10000);
    EXPECT(s, "optim_step #7; poll; +777 step: DEADLINE, may have run \"optim_step: not complete "
              "within its time\"");
    silence(s, API "get_server_capabilities"); /* a call that reads, and one that changes something */
    f = follow(s, "read", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    tinkc_future_cancel(f);
    settle(s);
    silence(s, API "sessions/s-1/project");
    f = follow(s, "write", tinkc_session_assign(scene_client(s), "s-1", "p", scene_err(s)));
    tinkc_future_cancel(f);
    EXPECT(s, "models; read: CANCELLED \"capabilities_get: cancelled\"; sessions/s-1/project "
              "{PUT}; write: CANCELLED, may have run \"session_assign: cancelled\"");
    silence(s, POLL); /* by the end of the client */
    answer(s, API "healthz", 503, "");
    f = begin_step(s, t);
    g = follow(s, "waits", tinkc_health_check(scene_client(s), scene_err(s)));
    assert_false(tinkc_client_close(scene_client(s), 0, scene_err(s)));
    EXPECT(s, "optim_step #8; poll; healthz; step: CLOSED, may have run \"optim_step: the client "
              "was closed\"; waits: CLOSED \"health_check: the client was closed\"");
    tinkc_trainer_free(t);
    scene_end(s);
}
