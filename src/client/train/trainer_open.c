/* trainer_open.c - new trainers: from a base model, from a checkpoint, or on a model that is there.
 *
 *     lora:        create_model -> promise -> trainer
 *     from state:  load_weights with a new model's number -> promise -> trainer      (one request)
 *               or weights_info -> create_model -> promise -> trainer -> load -> promise
 *     live:        get_info -> trainer; or, if that has no number, training_run -> error
 *
 * Which of the two ways from a checkpoint is the service's choice (create_model_via_load_weights).
 */
#include <stdio.h>
#include <string.h>

#include "client/call/poller.h"
#include "client/train/trainer.h"
#include "base/str.h"
#include "codec/tinker_path.h"
#include "wire/endpoint.h"

typedef struct opening {
    tinkc_future f;
    /* what is asked for, in the arena */
    tkc_lora_config lora;
    const char *base_model; /* NULL = the checkpoint's */
    const char *path;       /* NULL = a new LoRA */
    const char *model_id;   /* one that is there; NULL = neither of the two above */
    const char *access_token;
    const char *const *metadata;
    tkc_optimizer_config optimizer; /* type NULL = not said: Adam */
    bool with_optimizer;
    int64_t model_seq;

    tkc_poller poller;
    tkc_log_gate pause_gate;
    char pause_prefix[200];
    tinkc_trainer *trainer; /* the result: a reference */
    bool loading;           /* the model is there, its weights are not */
} opening;

static void fail_opening(opening *o, const tinkc_error *err)
{
    tinkc_error noted = *err;
    if (o->loading) /* the model stays at the service: say which */
        (void)snprintf(noted.message, sizeof noted.message, "%.280s (model %.90s was made)",
                       err->message, o->trainer->model_id);
    tkc_op_finish(&o->f, &noted);
}

static void poll_failed(tkc_poller *poller, const tinkc_error *err)
{
    fail_opening(TKC_OWNER(poller, opening, poller), err);
}

/* ---- requests ---- */

static void opening_ask(opening *o, const tkc_call_spec *spec, const tkc_message *type,
                        const void *message, tkc_poller_step *next)
{
    tinkc_error err = { 0 };
    tkc_call *call = type ? tkc_call_with(o->f.client, spec, type, message, &err)
                          : tkc_call_new(o->f.client, spec, &err);
    tkc_poller_ask(&o->poller, call, &err, next);
}

static bool read_answer(opening *o, const tkc_message *type, void *answer, tinkc_error *err)
{
    const tkc_call *call = o->poller.answer;
    *err = call->err;
    if (err->code)
        tkc_op_error_body(&o->f, call->body);
    else
        (void)tkc_message_decode(type, tkc_strn((const char *)call->body.data, call->body.len),
                                 TINKC_E_BAD_RESPONSE, &o->f.arena, answer, err);
    return !err->code;
}

static bool make_trainer(opening *o, const char *model_id)
{
    tinkc_error err = { 0 };
    if (!model_id || !model_id[0])
        tkc_fail(&err, TINKC_E_BAD_RESPONSE, "%s: the answer names no model",
                 o->f.class->operation);
    else
        o->trainer =
            tkc_trainer_new(o->f.client, model_id, o->base_model ? o->base_model : "", &err);
    if (!o->trainer) {
        fail_opening(o, &err);
        return false;
    }
    o->f.result = o->trainer;
    tkc_client_log(o->f.client, TINKC_LOG_INFO, "model %s", model_id);
    return true;
}

/* ---- loading into a model that was just made ---- */

static void load_done(tkc_poller *poller)
{
    tkc_load_weights_result result = { 0 };
    if (tkc_poller_result(poller, &result))
        tkc_op_finish(poller->f, NULL);
}

static void load_weights(opening *o)
{
    o->loading = true;
    tkc_load_weights_request message = { .model_id = o->trainer->model_id,
                                         .seq_id = TKC_SOME(o->trainer->io.next_seq),
                                         .path = o->path,
                                         .optimizer = o->with_optimizer,
                                         .weights_access_token = o->access_token };
    /* Without a turn: nobody else has the trainer yet. */
    o->trainer->io.next_seq++;
    tkc_poller_submit(&o->poller, TKC_EP_LOAD_WEIGHTS, &message, load_done);
}

/* ---- a new model ---- */

static void model_done(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    tkc_create_model_result result = { 0 };
    if (!tkc_poller_result(poller, &result) || !make_trainer(o, result.model_id))
        return;
    if (o->path)
        load_weights(o);
    else
        tkc_op_finish(&o->f, NULL);
}

static const tkc_optimizer_config *optimizer_of(const opening *o)
{
    return o->optimizer.type ? &o->optimizer : NULL;
}

static void create_model(opening *o)
{
    (void)snprintf(o->pause_prefix, sizeof o->pause_prefix, "Model creation for %.150s",
                   o->base_model);
    tkc_create_model_request message = { .session_id = o->f.client->shared.session_id,
                                         .model_seq_id = o->model_seq,
                                         .base_model = o->base_model,
                                         .user_metadata = { .pairs = o->metadata },
                                         .lora_config = &o->lora,
                                         .optimizer_config = optimizer_of(o) };
    tkc_poller_submit(&o->poller, TKC_EP_CREATE_MODEL, &message, model_done);
}

/* ---- from a checkpoint ---- */

static void info_done(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    tkc_weights_info_response info = { 0 };
    tinkc_error err;
    if (read_answer(o, &tkc_weights_info_response_type, &info, &err) &&
        /* In every way to open one: of the Python SDK's four only two check it. */
        (!info.is_lora || info.lora_rank.is != TKC_GIVEN || info.lora_rank.value < 1))
        tkc_fail(&err, TINKC_E_NOT_LORA, "path: %.300s is not a LoRA adapter or has no rank",
                 o->path);
    if (err.code) {
        fail_opening(o, &err);
        return;
    }
    if (!o->base_model)
        o->base_model = info.base_model;
    if (o->with_optimizer && info.optimizer_config) /* its state fits no other */
        o->optimizer = *info.optimizer_config;
    o->lora = (tkc_lora_config){
        .rank = info.lora_rank.value,
        /* Not said means trained. */
        .train_unembed = info.train_unembed.is != TKC_GIVEN || info.train_unembed.value,
        .train_mlp = info.train_mlp.is != TKC_GIVEN || info.train_mlp.value,
        .train_attn = info.train_attn.is != TKC_GIVEN || info.train_attn.value,
    };
    create_model(o);
}

static void ask_info(opening *o)
{
    tkc_weights_info_request message = { .tinker_path = o->path };
    /* The other account's credential, for this one question: the client's own may not see the
     * checkpoint. */
    const char *headers[] = { "X-API-Key", o->access_token, NULL };
    tkc_call_spec spec = tkc_call_to(TKC_EP_WEIGHTS_INFO);
    spec.headers = o->access_token ? headers : NULL;
    opening_ask(o, &spec, &tkc_weights_info_request_type, &message, info_done);
}

/* The token of another account is exchanged like our own, where the service exchanges tokens: what
 * it then sees is the short-lived one. */
static void exchange_done(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    const tkc_call *call = poller->answer;
    tkc_auth_token_response answer = { 0 };
    tinkc_error err = call->err;
    if (!err.code &&
        tkc_message_decode(&tkc_auth_token_response_type,
                           tkc_strn((const char *)call->body.data, call->body.len), TINKC_E_TOKEN,
                           &o->f.arena, &answer, &err) &&
        (!answer.jwt || !answer.jwt[0]))
        tkc_fail(&err, TINKC_E_TOKEN, "access_token: the exchange gave no token");
    if (err.code) {
        fail_opening(o, &err);
        return;
    }
    o->access_token = answer.jwt;
    ask_info(o);
}

static void exchange_token(opening *o)
{
    const char *headers[] = { "X-API-Key", o->access_token, NULL };
    tkc_call_spec spec = tkc_call_to(TKC_EP_AUTH_TOKEN);
    spec.need = TKC_NEED_CONFIG; /* a foreign credential is exchanged long after the start-up */
    spec.headers = headers;
    opening_ask(o, &spec, &tkc_empty_type, &(tkc_empty){ 0 }, exchange_done);
}

static void via_load_done(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    tkc_load_weights_result result = { 0 };
    char *id;
    tinkc_error err = { 0 };
    if (!tkc_poller_result(poller, &result))
        return;
    /* An answer without an id: the service makes it of these two, and so does the Python SDK. */
    id = tkc_arena_printf(&o->f.arena, &err, "%s:train:%lld", o->f.client->shared.session_id,
                          (long long)o->model_seq);
    if (!id)
        fail_opening(o, &err);
    else if (make_trainer(o, result.model_id ? result.model_id : id))
        tkc_op_finish(&o->f, NULL);
}

static void create_via_load(opening *o)
{
    (void)snprintf(o->pause_prefix, sizeof o->pause_prefix, "Model creation for %.150s", o->path);
    tkc_load_weights_request message = { .session_id = o->f.client->shared.session_id,
                                         .model_seq_id = TKC_SOME(o->model_seq),
                                         .base_model = o->base_model,
                                         .user_metadata = { .pairs = o->metadata },
                                         .path = o->path,
                                         .optimizer = o->with_optimizer,
                                         .weights_access_token = o->access_token,
                                         .optimizer_config = optimizer_of(o) };
    tkc_poller_submit(&o->poller, TKC_EP_LOAD_WEIGHTS, &message, via_load_done);
}

/* ---- a model that is there ---- */

/* Only the service knows the next number, and this one does not say: what is left is a checkpoint.
 * */
static void run_told(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    tkc_training_run run = { 0 };
    tinkc_error ignored, err = { 0 };
    /* If this fails, too, the message only says less. */
    (void)read_answer(o, &tkc_training_run_type, &run, &ignored);
    const tkc_checkpoint *last = run.last_checkpoint;
    if (last && last->tinker_path && last->tinker_path[0])
        tkc_fail(&err, TINKC_E_SEQUENCE,
                 "the service does not say the model's next sequence number: resume from %.250s",
                 last->tinker_path);
    else
        tkc_fail(&err, TINKC_E_SEQUENCE,
                 "the service does not say the model's next sequence number, and no checkpoint of "
                 "it was saved: start again");
    fail_opening(o, &err);
}

static void ask_run(opening *o)
{
    tinkc_error err = { 0 };
    tkc_buf path;
    const char *const ids[] = { o->model_id, NULL };
    tkc_call_spec spec = tkc_call_to(TKC_EP_TRAINING_RUN);
    tkc_buf_init(&path, o->f.client->a, TKC_BUF_NO_MAX);
    tkc_endpoint_path(tkc_endpoint_get(TKC_EP_TRAINING_RUN), ids, &path, &err);
    spec.path = tkc_buf_terminate(&path, &err);
    if (tkc_failed(&err))
        fail_opening(o, &err);
    else
        opening_ask(o, &spec, NULL, NULL, run_told);
    tkc_buf_free(&path);
}

static void model_told(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    tkc_get_info_response info = { 0 };
    tinkc_error err;
    if (!read_answer(o, &tkc_get_info_response_type, &info, &err)) {
        fail_opening(o, &err);
        return;
    }
    o->base_model = info.model_data.model_name ? info.model_data.model_name : info.model_name;
    /* A guess would leave a gap, for which the service waits, or repeat a number, to which it
     * gives the old answer. */
    if (info.next_seq_id.is != TKC_GIVEN || info.next_seq_id.value < 1) {
        ask_run(o);
    } else if (make_trainer(o, o->model_id)) {
        o->trainer->io.next_seq = info.next_seq_id.value;
        tkc_op_finish(&o->f, NULL);
    }
}

static void ask_model(opening *o)
{
    tkc_call_spec spec = tkc_call_to(TKC_EP_GET_INFO);
    opening_ask(o, &spec, &tkc_get_info_request_type,
                &(tkc_get_info_request){ .model_id = o->model_id }, model_told);
}

/* ---- life ---- */

static void session_ready(tkc_poller *poller)
{
    opening *o = TKC_OWNER(poller, opening, poller);
    if (o->model_id)
        ask_model(o);
    else if (!o->path)
        create_model(o);
    else if (o->f.client->io.flags.create_model_via_load_weights)
        create_via_load(o);
    else if (o->access_token && o->f.client->io.flags.pjwt_auth_enabled)
        exchange_token(o);
    else
        ask_info(o);
}

static void opening_start(tinkc_future *f)
{
    opening *o = (opening *)f;
    tkc_poller_begin(&o->poller, f, poll_failed);
    o->poller.pause_prefix = o->pause_prefix;
    o->poller.pause_gate = &o->pause_gate;
    tkc_poller_need(&o->poller, TKC_NEED_SESSION, session_ready);
}

static void opening_stop(tinkc_future *f, const tinkc_error *why)
{
    tinkc_error err = *why;
    if (tkc_poller_end(&((opening *)f)->poller))
        err.flags |= TINKC_MAY_HAVE_RUN;
    tkc_op_finish(f, &err);
}

static void opening_destroy(tinkc_future *f)
{
    tkc_trainer_drop(((opening *)f)->trainer);
}

static const char *const *keep_pairs(opening *o, const char *const *pairs, tinkc_error *err)
{
    size_t n = 0;
    while (pairs && pairs[n])
        n++;
    if (n % 2) {
        tkc_fail(err, TINKC_E_ARGUMENT, "user_metadata: a name without a value");
        return NULL;
    }
    if (!pairs)
        return NULL;
    const char **copy = tkc_arena_array(&o->f.arena, n + 1, sizeof *copy, err);
    for (size_t i = 0; copy && i < n; i++)
        copy[i] = tkc_arena_cstr(&o->f.arena, pairs[i], err);
    return (const char *const *)copy;
}

static const char *keep_text(opening *o, const char *text, tinkc_error *err)
{
    return text && text[0] ? tkc_arena_cstr(&o->f.arena, text, err) : NULL;
}

static void keep_optimizer(opening *o, const char *name, tinkc_error *err)
{
    o->optimizer.type = keep_text(o, name, err);
    if (o->optimizer.type && strcmp(o->optimizer.type, "dimuon") == 0)
        o->optimizer.version = (tkc_opt_i64)TKC_SOME(1);
}

enum { FROM_BASE = 0, FROM_STATE, FROM_LIVE };

static opening *opening_new(tinkc_client *client, int32_t how, tinkc_error *err)
{
    static const tkc_op_class lora = { "trainer_open", "trainer",    sizeof(opening),
                                       opening_start,  opening_stop, opening_destroy };
    static const tkc_op_class state = { "trainer_open_from", "trainer",    sizeof(opening),
                                        opening_start,       opening_stop, opening_destroy };
    static const tkc_op_class live = { "trainer_open_live", "trainer",    sizeof(opening),
                                       opening_start,       opening_stop, opening_destroy };
    static const tkc_op_class *const classes[] = { &lora, &state, &live };
    if (!tkc_client_check(client, err))
        return NULL;
    if (client->imported) {
        tkc_fail(err, TINKC_E_NO_SESSION, "the client of an imported sampler makes no trainers");
        return NULL;
    }
    return (opening *)tkc_op_new(client, classes[how], err);
}

/* In the order of the calls, like everything that has a number. */
static int64_t next_model_seq(tinkc_client *client)
{
    pthread_mutex_lock(&client->shared.lock);
    int64_t seq = client->shared.next_model_seq++;
    pthread_mutex_unlock(&client->shared.lock);
    return seq;
}

static tinkc_future *submit_opening(opening *o, const tinkc_error *err)
{
    if (tkc_failed(err)) {
        tkc_future_drop(&o->f);
        return NULL;
    }
    o->model_seq = next_model_seq(o->f.client);
    return tkc_op_submit(&o->f);
}

static bool check_lora(const tinkc_lora_options *o, tinkc_error *err)
{
    if (!o)
        return tkc_fail(err, TINKC_E_ARGUMENT, "options: must not be NULL");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (!o->base_model || !o->base_model[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "base_model: must not be empty");
    if (o->rank < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "rank: must not be negative");
    const uint32_t all = TINKC_FREEZE_MLP | TINKC_FREEZE_ATTN | TINKC_FREEZE_UNEMBED;
    if (o->freeze & ~all || o->freeze == all)
        return tkc_fail(err, TINKC_E_ARGUMENT, "freeze: %s",
                        o->freeze == all ? "leaves nothing to train" : "unknown bits");
    if (o->has_seed && o->seed > INT64_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "seed: must be below 2^63");
    return true;
}

tinkc_future *tinkc_trainer_open(tinkc_client *client, const tinkc_lora_options *options,
                                 tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_lora(options, err))
        return NULL;
    opening *o = opening_new(client, FROM_BASE, err);
    if (!o)
        return NULL;
    o->base_model = keep_text(o, options->base_model, err);
    o->metadata = keep_pairs(o, options->user_metadata, err);
    /* The Python SDK's default rank. */
    o->lora = (tkc_lora_config){ .rank = options->rank ? options->rank : 32,
                                 .train_mlp = !(options->freeze & TINKC_FREEZE_MLP),
                                 .train_attn = !(options->freeze & TINKC_FREEZE_ATTN),
                                 .train_unembed = !(options->freeze & TINKC_FREEZE_UNEMBED) };
    if (options->has_seed)
        o->lora.seed = (tkc_opt_seed)TKC_SOME(options->seed);
    keep_optimizer(o, options->optimizer, err);
    return submit_opening(o, err);
}

bool tkc_state_check(const tinkc_state_options *o, tinkc_error *err)
{
    if (!o)
        return tkc_fail(err, TINKC_E_ARGUMENT, "options: must not be NULL");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (o->optimizer && o->with_optimizer)
        return tkc_fail(err, TINKC_E_ARGUMENT, "optimizer: with_optimizer restores the other one");
    return tkc_tinker_path_given(o->path, err);
}

tinkc_future *tinkc_trainer_open_from(tinkc_client *client, const tinkc_state_options *options,
                                      tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_state_check(options, err))
        return NULL;
    opening *o = opening_new(client, FROM_STATE, err);
    if (!o)
        return NULL;
    o->path = keep_text(o, options->path, err);
    o->base_model = keep_text(o, options->base_model, err);
    o->access_token = keep_text(o, options->access_token, err);
    o->metadata = keep_pairs(o, options->user_metadata, err);
    o->with_optimizer = options->with_optimizer;
    keep_optimizer(o, options->optimizer, err);
    return submit_opening(o, err);
}

tinkc_future *tinkc_trainer_open_live(tinkc_client *client, const char *model_id, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!model_id || !model_id[0]) {
        tkc_fail(err, TINKC_E_ARGUMENT, "model_id: must not be empty");
        return NULL;
    }
    opening *o = opening_new(client, FROM_LIVE, err);
    if (!o)
        return NULL;
    o->model_id = keep_text(o, model_id, err);
    if (tkc_failed(err)) {
        tkc_future_drop(&o->f);
        return NULL;
    }
    return tkc_op_submit(&o->f);
}

tinkc_trainer *tinkc_future_trainer(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_trainer *trainer = tkc_future_get(f, "trainer", timeout_ms, err);
    if (trainer)
        tkc_trainer_keep(trainer);
    return trainer;
}

static tinkc_trainer *wait_for_trainer(tinkc_future *f, tinkc_error *err)
{
    tinkc_trainer *trainer = tinkc_future_trainer(f, TINKC_FOREVER, err);
    tinkc_future_free(f);
    return trainer;
}

tinkc_trainer *tinkc_trainer_new(tinkc_client *client, const tinkc_lora_options *options,
                                 tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return wait_for_trainer(tinkc_trainer_open(client, options, err), err);
}

tinkc_trainer *tinkc_trainer_new_from(tinkc_client *client, const tinkc_state_options *options,
                                      tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return wait_for_trainer(tinkc_trainer_open_from(client, options, err), err);
}

tinkc_trainer *tinkc_trainer_new_live(tinkc_client *client, const char *model_id, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return wait_for_trainer(tinkc_trainer_open_live(client, model_id, err), err);
}
