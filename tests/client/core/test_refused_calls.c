/* test_refused_calls.c - calls that are refused before anything is sent, each with an error that names what is wrong; beside some of
 * them what is just accepted. */
#include <math.h>

#include "support/client/client_scene.h"

#define PATH "tinker://r/weights/c"

#define RETRY(...)      (&(tinkc_sampler_options){ .retry = &(tinkc_retry_options)__VA_ARGS__ })
#define SAYS(call, why) says_at(s, call, why, __FILE__, __LINE__)
static void says_at(scene *s, tinkc_future *f, const char *why, const char *file, int line)
{
    if (f) {
        tinkc_future_free(f);
        settle(s);
        scene_forget(s);
        note(s, "accepted");
    } else {
        (void)follow(s, "", f);
    }
    expect_at(s, why, file, line);
}

TEST(calls_of_the_account_are_refused_before_anything_is_sent)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_client *c = scene_client(s);
    tinkc_error *e = scene_err(s);
    static char far[400];
    memset(far, 'a', sizeof far - 1);
    char path[500];
    (void)snprintf(path, sizeof path, "tinker://%s/weights/x", far);
    SAYS(tinkc_run_get(c, "", 0, e), "ARGUMENT \"run_id is empty\"");
    SAYS(tinkc_run_get(c, NULL, 0, e), "ARGUMENT \"run_id is empty\"");
    SAYS(tinkc_run_get(c, "..", 0, e), "ARGUMENT \"an id has an empty part, \".\" or \"..\" in it\"");
    SAYS(tinkc_run_get(c, "a/b", 0, e), "accepted");
    SAYS(tinkc_run_get(c, far, 0, e), "accepted");
    SAYS(tinkc_run_get(c, "r", 2, e), "ARGUMENT \"scope 2 is neither TINKC_OWNED nor TINKC_ACCESSIBLE\"");
    SAYS(tinkc_run_get(c, "r", -1, e), "ARGUMENT \"scope -1 is neither TINKC_OWNED nor TINKC_ACCESSIBLE\"");
    SAYS(tinkc_run_get_by_path(c, "http://x", 0, e), "PATH \"not a tinker path (tinker://RUN/weights/NAME or "
                                                     "tinker://RUN/sampler_weights/NAME): http://x\"");
    SAYS(tinkc_run_get_by_path(c, path, 0, e), "accepted");
    SAYS(tinkc_checkpoint_get(c, "x", e), "PATH \"path: must begin with tinker://, not 'x'\"");
    SAYS(tinkc_checkpoint_get(c, NULL, e), "ARGUMENT \"path: must not be NULL\"");
    SAYS(tinkc_checkpoint_set_ttl(c, PATH, 0, e), "ARGUMENT \"ttl_s is 0, must be above 0\"");
    SAYS(tinkc_checkpoint_set_ttl(c, PATH, -1, e), "ARGUMENT \"ttl_s is -1, must be above 0\"");
    SAYS(tinkc_checkpoint_delete(c, path, e), "accepted");
    SAYS(tinkc_checkpoint_publish(c, NULL, e), "ARGUMENT \"path: must not be NULL\"");
    SAYS(tinkc_checkpoint_unpublish(c, "", e), "PATH \"not a tinker path (tinker://RUN/weights/NAME or "
                                               "tinker://RUN/sampler_weights/NAME): \"");
    SAYS(tinkc_checkpoint_archive(c, "tinker://", e), "PATH \"not a tinker path (tinker://RUN/weights/NAME or "
                                                      "tinker://RUN/sampler_weights/NAME): tinker://\"");
    SAYS(tinkc_checkpoint_links(c, PATH, e), "PATH \"path: not of external weights: tinker://r/weights/c\"");
    SAYS(tinkc_checkpoint_copy(c, PATH, NULL, e), "ARGUMENT \"project_id: none given, and the client has none\"");
    SAYS(tinkc_checkpoint_copy(c, PATH, &(tinkc_copy_options){ .ttl_s = -1, .project_id = "p" }, e),
         "ARGUMENT \"ttl_s: must not be negative\"");
    SAYS(tinkc_checkpoint_copy(c, PATH, &(tinkc_copy_options){ .reserved = { 1 }, .project_id = "p" }, e),
         "ARGUMENT \"copy options: reserved must be zero\"");
    SAYS(tinkc_session_get(c, "", 0, e), "ARGUMENT \"session_id is empty\"");
    SAYS(tinkc_session_get(c, "s", 3, e), "ARGUMENT \"scope 3 is neither TINKC_OWNED nor TINKC_ACCESSIBLE\"");
    SAYS(tinkc_session_assign(c, "s", "", e), "ARGUMENT \"project_id is empty\"");
    SAYS(tinkc_session_assign(c, "", "p", e), "ARGUMENT \"session_id is empty\"");
    SAYS(tinkc_session_finish(c, "s", 3, NULL, e), "ARGUMENT \"how 3 is not a TINKC_FINISH_* value\"");
    SAYS(tinkc_session_finish(c, "s", -1, NULL, e), "ARGUMENT \"how -1 is not a TINKC_FINISH_* value\"");
    SAYS(tinkc_session_finish(c, NULL, 0, NULL, e), "ARGUMENT \"session_id is empty\"");
    SAYS(tinkc_session_trace(c, "", e), "ARGUMENT \"session_id is empty\"");
    SAYS(tinkc_audit_get(c, "some", NULL, e),
         "ARGUMENT \"event_type must be \"all\", \"checkpoints\", \"projects\", \"teams\" or "
         "\"organizations\"\"");
    SAYS(tinkc_audit_get(c, NULL, "2026-02-30", e), "ARGUMENT \"day must have the form YYYY-MM-DD\"");
    SAYS(tinkc_audit_get(c, NULL, "2026-2-3", e), "ARGUMENT \"day must have the form YYYY-MM-DD\"");
    SAYS(tinkc_audit_get(c, NULL, "2026-02-3x", e), "ARGUMENT \"day must have the form YYYY-MM-DD\"");
    SAYS(tinkc_audit_get(c, NULL, "2026/02/03", e), "ARGUMENT \"day must have the form YYYY-MM-DD\"");
    SAYS(tinkc_audit_get(c, NULL, "2026-02-031", e), "ARGUMENT \"day must have the form YYYY-MM-DD\"");
    SAYS(tinkc_usage_get(c, "2026-01-01", "2026-01-02T00:00:00Z", e),
         "ARGUMENT \"starting_on must have the form YYYY-MM-DDTHH:MM:SSZ\"");
    SAYS(tinkc_usage_get(c, "2026-01-01T00:00:00Z", NULL, e),
         "ARGUMENT \"ending_before must have the form YYYY-MM-DDTHH:MM:SSZ\"");
    SAYS(tinkc_sampler_get(c, "", e), "ARGUMENT \"sampler_id is empty\"");
    SAYS(tinkc_sampler_info(NULL, e), "ARGUMENT \"sampler: must not be NULL\"");
    scene_end(s);
}

TEST(opening_a_sampler_or_trainer_is_refused_before_anything_is_sent)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_client *c = scene_client(s);
    tinkc_error *e = scene_err(s);
    SAYS(tinkc_sampler_open(c, NULL, e), "ARGUMENT \"options: must not be NULL\"");
    SAYS(tinkc_sampler_open(c, &(tinkc_sampler_options){ 0 }, e),
         "ARGUMENT \"base_model: this or model_path is needed\"");
    SAYS(tinkc_sampler_open(c, &(tinkc_sampler_options){ .model_path = "x" }, e),
         "PATH \"model_path: must begin with tinker://\"");
    SAYS(tinkc_sampler_open(c, &(tinkc_sampler_options){ .base_model = "x", .reserved = { 0, 1 } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_open(c, NULL, e), "ARGUMENT \"options: must not be NULL\"");
    SAYS(tinkc_trainer_open(c, &(tinkc_lora_options){ .rank = 1 }, e), "ARGUMENT \"base_model: must not be empty\"");
    SAYS(tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .rank = -1 }, e),
         "ARGUMENT \"rank: must not be negative\"");
    SAYS(tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .freeze = 7 }, e),
         "ARGUMENT \"freeze: leaves nothing to train\"");
    SAYS(tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .freeze = 8 }, e),
         "ARGUMENT \"freeze: unknown bits\"");
    SAYS(tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .has_seed = true, .seed = (uint64_t)1 << 63 },
                            e),
         "ARGUMENT \"seed: must be below 2^63\"");
    SAYS(tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .reserved_bools = { true } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_open(c, &(tinkc_lora_options){ .base_model = "m", .user_metadata = PAIRS("odd") }, e),
         "ARGUMENT \"user_metadata: a name without a value\"");
    SAYS(tinkc_trainer_open_from(c, NULL, e), "ARGUMENT \"options: must not be NULL\"");
    SAYS(tinkc_trainer_open_from(c, &(tinkc_state_options){ .path = "x" }, e),
         "PATH \"path: must begin with tinker://, not 'x'\"");
    SAYS(tinkc_trainer_open_from(
             c, &(tinkc_state_options){ .path = PATH, .optimizer = "dimuon", .with_optimizer = true }, e),
         "ARGUMENT \"optimizer: with_optimizer restores the other one\"");
    SAYS(tinkc_trainer_open_from(c, &(tinkc_state_options){ .path = PATH, .reserved = { 1 } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_open_live(c, "", e), "ARGUMENT \"model_id: must not be empty\"");
    SAYS(tinkc_trainer_open_live(NULL, "m", e), "ARGUMENT \"client: must not be NULL\"");
    SAYS(tinkc_health_check(NULL, e), "ARGUMENT \"client: must not be NULL\"");
    scene_end(s);
}

TEST(calls_of_a_trainer_are_refused_before_anything_is_sent)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    tinkc_error *e = scene_err(s);

    SAYS(tinkc_trainer_save(t, NULL, NULL, e), "ARGUMENT \"name: must not be empty\"");
    SAYS(tinkc_trainer_save(t, "", NULL, e), "ARGUMENT \"name: must not be empty\"");
    SAYS(tinkc_trainer_save(t, "a/b", NULL, e), "ARGUMENT \"name: must be one segment of a path\"");
    SAYS(tinkc_trainer_save(t, ".", NULL, e), "ARGUMENT \"name: must be one segment of a path\"");
    SAYS(tinkc_trainer_save(t, "..", NULL, e), "ARGUMENT \"name: must be one segment of a path\"");
    SAYS(tinkc_trainer_save(t, "a\x1f", NULL, e), "ARGUMENT \"name: holds a control character\"");
    SAYS(tinkc_trainer_save(t, "a\x7f", NULL, e), "ARGUMENT \"name: holds a control character\"");
    SAYS(tinkc_trainer_save(t, "...", NULL, e), "accepted");
    SAYS(tinkc_trainer_save_for_sampler(t, "a", &(tinkc_save_options){ .overwrite = true }, e),
         "ARGUMENT \"overwrite: of full states only\"");
    SAYS(tinkc_trainer_save_for_sampler(t, "a", &(tinkc_save_options){ .ttl_s = -1 }, e),
         "ARGUMENT \"ttl_s: must not be negative\"");
    SAYS(tinkc_trainer_save(t, "a", &(tinkc_save_options){ .reserved = { 0, 0, 1 } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_save(t, "a", &(tinkc_save_options){ .reserved_bools = { true } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_save(t, "a", &(tinkc_save_options){ .user_metadata = PAIRS("a") }, e),
         "ARGUMENT \"user_metadata: a name without a value\"");
    SAYS(tinkc_trainer_save_external(t, "/", NULL, e), "ARGUMENT \"name: must be one segment of a path\"");
    SAYS(tinkc_trainer_save_external(t, "a", &(tinkc_external_options){ .ttl_s = -1 }, e),
         "ARGUMENT \"ttl_s: must not be negative\"");
    SAYS(tinkc_trainer_save_external(t, "a", &(tinkc_external_options){ .reserved = { 1 } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_save_external(t, "a", &(tinkc_external_options){ .recipients = (const char *const[]){ NULL } },
                                     e),
         "ARGUMENT \"recipients: an empty list would encrypt nothing\"");
    SAYS(tinkc_trainer_save_external(t, "a", &(tinkc_external_options){ .recipients = PAIRS("a", "") }, e),
         "ARGUMENT \"recipients: one is empty\"");
    SAYS(tinkc_trainer_save_external(
             t, "a",
             &(tinkc_external_options){ .recipients = PAIRS("1", "2", "3", "4", "5", "6", "7", "8", "9", "10") }, e),
         "accepted");
    SAYS(tinkc_trainer_save_external(
             t, "a",
             &(tinkc_external_options){ .recipients = PAIRS("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11") },
             e),
         "ARGUMENT \"recipients: more than 10\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0, 0.5, 0, 0, 0, { 0 } }, e), "accepted");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 1, 0.5, 0, 0, 0, { 0 } }, e),
         "ARGUMENT \"beta1: must lie between 0 and 1; start from TINKC_ADAM_INIT\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0.5, 1, 0, 0, 0, { 0 } }, e),
         "ARGUMENT \"beta2: must lie between 0 and 1; start from TINKC_ADAM_INIT\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0.5, 0, 0, 0, 0, { 0 } }, e),
         "ARGUMENT \"beta2: must lie between 0 and 1; start from TINKC_ADAM_INIT\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ -1, 0, 0.5, 0, 0, 0, { 0 } }, e),
         "ARGUMENT \"learning_rate: must be a number of 0 or more\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, -1, 0.5, 0, 0, 0, { 0 } }, e),
         "ARGUMENT \"beta1: must be a number of 0 or more\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0, -1, 0, 0, 0, { 0 } }, e),
         "ARGUMENT \"beta2: must be a number of 0 or more\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0, 0.5, -1, 0, 0, { 0 } }, e),
         "ARGUMENT \"eps: must be a number of 0 or more\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0, 0.5, 0, -1, 0, { 0 } }, e),
         "ARGUMENT \"weight_decay: must be a number of 0 or more\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0, 0.5, 0, 0, -1, { 0 } }, e),
         "ARGUMENT \"grad_clip_norm: must be a number of 0 or more\"");
    SAYS(tinkc_optim_step(t, &(tinkc_adam){ 0, 0, 0.5, 0, 0, 0, { 1 } }, e), "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_optim_step(t, NULL, e), "ARGUMENT \"adam: must not be NULL\"");
    SAYS(tinkc_dimuon_step(t, &(tinkc_dimuon){ 0, 0, 0, { 0 } }, e), "accepted");
    SAYS(tinkc_dimuon_step(t, &(tinkc_dimuon){ -1, 0, 0, { 0 } }, e),
         "ARGUMENT \"learning_rate: must be a number of 0 or more\"");
    SAYS(tinkc_dimuon_step(t, &(tinkc_dimuon){ 0, 1, 0, { 0 } }, e), "ARGUMENT \"beta1: must lie from 0 to below 1\"");
    SAYS(tinkc_dimuon_step(t, &(tinkc_dimuon){ 0, -1, 0, { 0 } }, e), "ARGUMENT \"beta1: must lie from 0 to below 1\"");
    SAYS(tinkc_dimuon_step(t, &(tinkc_dimuon){ 0, 0, -1, { 0 } }, e),
         "ARGUMENT \"grad_clip_norm: must be a number of 0 or more\"");
    SAYS(tinkc_dimuon_step(t, &(tinkc_dimuon){ 0, 0, 0, { 1 } }, e), "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_dimuon_step(t, NULL, e), "ARGUMENT \"dimuon: must not be NULL\"");
    SAYS(tinkc_trainer_load(t, &(tinkc_state_options){ .path = "x" }, e),
         "PATH \"path: must begin with tinker://, not 'x'\"");
    SAYS(tinkc_trainer_open_sampler(t, &(tinkc_sampler_options){ .reserved = { 1 } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .progress_timeout_ms = -1 }), e),
         "ARGUMENT \"progress_timeout_ms: TINKC_FOREVER makes no sense here\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .delay_base_ms = -1 }), e),
         "ARGUMENT \"delay_base_ms: TINKC_FOREVER makes no sense here\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .delay_max_ms = -1 }), e),
         "ARGUMENT \"delay_max_ms: TINKC_FOREVER makes no sense here\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .max_attempts = -1 }), e),
         "ARGUMENT \"max_attempts: TINKC_FOREVER makes no sense here\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .jitter = 2, .has_jitter = true }), e),
         "ARGUMENT \"jitter: must lie between 0 and 1\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .jitter = -1, .has_jitter = true }), e),
         "ARGUMENT \"jitter: must lie between 0 and 1\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .reserved = { 1 } }), e), "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .reserved_bools = { true } }), e),
         "ARGUMENT \"reserved: must be zero\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .jitter = 1, .has_jitter = true }), e), "accepted");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .progress_timeout_ms = TINKC_ZERO }), e),
         "ARGUMENT \"progress_timeout_ms: TINKC_ZERO makes no sense here\"");
    SAYS(tinkc_trainer_open_sampler(t, RETRY({ .jitter = 0.5 }), e), "accepted");
    tinkc_batch *b = make_batch(s, 1);
    static const double infinite[] = { INFINITY };
    SAYS(tinkc_forward_backward(t, b, "", NULL, e), "ARGUMENT \"loss: must not be empty\"");
    SAYS(tinkc_forward_backward(t, b, NULL, NULL, e), "ARGUMENT \"loss: must not be empty\"");
    SAYS(tinkc_forward_backward(t, b, "x", &(tinkc_loss_options){ .names = PAIRS("a") }, e),
         "ARGUMENT \"values: must not be NULL\"");
    SAYS(tinkc_forward_backward(t, b, "x", &(tinkc_loss_options){ .names = PAIRS("a"), .values = infinite }, e),
         "ARGUMENT \"values: a is not finite\"");
    SAYS(tinkc_forward_backward(t, b, "x", &(tinkc_loss_options){ .reserved = { 1 } }, e),
         "ARGUMENT \"reserved: must be zero\"");
    tinkc_batch_clear(b);
    SAYS(tinkc_forward_backward(t, b, "x", NULL, e), "ARGUMENT \"batch: must not be empty\"");
    tinkc_batch_free(b);

    tinkc_trainer_free(t);
    scene_end(s);
}
