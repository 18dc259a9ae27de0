/* tinkc_nif.c - the library for Elixir and Erlang: open a model, train it, ask it.
 *
 * Each function waits, so all run on dirty schedulers; a failure is {error, Text}. A session belongs to
 * the Erlang VM's garbage collector and ends with its last reference. One lock for each session: trainers
 * take requests in order.
 */
#include <string.h>

#include <erl_nif.h>
#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

typedef struct session {
    tinkc_engine *engine;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_tokenizer *tok;
    ErlNifMutex *lock;
} session;

static ErlNifResourceType *session_type;

static void session_end(ErlNifEnv *env, void *object)
{
    session *s = object;
    (void)env;
    tinkc_tokenizer_free(s->tok);
    tinkc_trainer_free(s->trainer);
    tinkc_client_free(s->client);
    tinkc_engine_free(s->engine);
    if (s->lock)
        enif_mutex_destroy(s->lock);
}

static ERL_NIF_TERM binary(ErlNifEnv *env, const char *text)
{
    ERL_NIF_TERM out;
    memcpy(enif_make_new_binary(env, strlen(text), &out), text, strlen(text));
    return out;
}

/* {ok, value}, or {error, message} if a call has failed. */
static ERL_NIF_TERM result(ErlNifEnv *env, const tinkc_error *err, ERL_NIF_TERM value)
{
    return err->code
               ? enif_make_tuple2(env, enif_make_atom(env, "error"), binary(env, err->message))
               : enif_make_tuple2(env, enif_make_atom(env, "ok"), value);
}

/* A copy with a NUL at its end; NULL = not a binary, or one with a NUL inside. Free with enif_free. */
static char *text_of(ErlNifEnv *env, ERL_NIF_TERM term)
{
    ErlNifBinary data;
    if (!enif_inspect_binary(env, term, &data) || memchr(data.data, 0, data.size))
        return NULL;
    char *text = enif_alloc(data.size + 1);
    memcpy(text, data.data, data.size);
    text[data.size] = '\0';
    return text;
}

static ERL_NIF_TERM open_model(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    tinkc_error err = { 0 };
    char *folder = text_of(env, argv[0]);
    (void)argc;
    if (!folder)
        return enif_make_badarg(env);
    session *s = enif_alloc_resource(session_type, sizeof *s);
    memset(s, 0, sizeof *s);
    s->lock = enif_mutex_create("tinkc");
    s->engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(s->engine, "model", folder, &err);
    s->client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(s->engine) }, &err);
    s->trainer = tinkc_trainer_new(
        s->client, &(tinkc_lora_options){ .base_model = "model", .seed = 1, .has_seed = true },
        &err);
    s->tok = tinkc_tokenizer_open(folder, NULL, &err);
    ERL_NIF_TERM handle = enif_make_resource(env, s);
    enif_release_resource(s);
    enif_free(folder);
    return result(env, &err, handle);
}

static void add_lesson(session *s, tinkc_batch *batch, const char *messages, tinkc_error *err)
{
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_chat_train(s->tok, messages, NULL, &ids, &weights, NULL, err);
    tinkc_batch_add_weighted(batch, ids.data, ids.len, weights.data, err);
    tinkc_floats_free(&weights);
    tinkc_tokens_free(&ids);
}

static double train_step(session *s, const tinkc_batch *batch, double rate, tinkc_error *err)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = rate;
    tinkc_future *grads = tinkc_forward_backward(s->trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
    tinkc_future *moved = tinkc_optim_step(s->trainer, &adam, err);
    double loss =
        tinkc_fwdbwd_metric(tinkc_future_fwdbwd(grads, TINKC_FOREVER, err), "loss:sum", 0);
    tinkc_future_wait(moved, TINKC_FOREVER, err);
    tinkc_future_free(moved);
    tinkc_future_free(grads);
    return loss;
}

/* train(Session, [MessagesJson], Steps, LearningRate) -> {ok, [Loss]}, the last step first */
static ERL_NIF_TERM train(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    session *s;
    int steps;
    double rate;
    tinkc_error err = { 0 };
    (void)argc;
    if (!enif_get_resource(env, argv[0], session_type, (void **)&s) ||
        !enif_is_list(env, argv[1]) || !enif_get_int(env, argv[2], &steps) ||
        !enif_get_double(env, argv[3], &rate))
        return enif_make_badarg(env);
    enif_mutex_lock(s->lock);
    tinkc_batch *batch = tinkc_batch_new(s->client, &err);
    for (ERL_NIF_TERM head, rest = argv[1]; enif_get_list_cell(env, rest, &head, &rest);) {
        char *messages = text_of(env, head);
        add_lesson(s, batch, messages ? messages : "", &err);
        enif_free(messages);
    }
    ERL_NIF_TERM losses = enif_make_list(env, 0);
    for (int i = 0; i < steps && !err.code; i++) {
        double loss = train_step(s, batch, rate, &err);
        losses = enif_make_list_cell(env, enif_make_double(env, loss), losses);
    }
    tinkc_batch_free(batch);
    enif_mutex_unlock(s->lock);
    return result(env, &err, losses);
}

/* ask(Session, MessagesJson, MaxTokens) -> {ok, Text} */
static ERL_NIF_TERM ask(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    session *s;
    int most;
    tinkc_error err = { 0 };
    tinkc_tokens prompt = { 0 };
    tinkc_text text = { 0 };
    char *messages = text_of(env, argv[1]);
    (void)argc;
    if (!messages || !enif_get_resource(env, argv[0], session_type, (void **)&s) ||
        !enif_get_int(env, argv[2], &most)) {
        enif_free(messages);
        return enif_make_badarg(env);
    }
    enif_mutex_lock(s->lock);
    tinkc_chat_encode(s->tok, messages, &(tinkc_chat_options){ .generation_prompt = true }, &prompt,
                      &err);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = most;
    how.temperature = 0;
    tinkc_sampler *sampler = tinkc_trainer_sampler(s->trainer, &err);
    tinkc_future *reply = tinkc_sample(sampler, prompt.data, prompt.len, 1, &how, &err);
    const tinkc_sequence *seq = tinkc_samples_at(tinkc_future_samples(reply, 60000, &err), 0);
    if (seq)
        tinkc_decode_span(s->tok, seq->tokens.data, seq->tokens.len,
                          &(tinkc_decode_options){ .skip_special = true }, &text, &err);
    ERL_NIF_TERM answer = binary(env, text.data ? text.data : "");
    tinkc_future_free(reply);
    tinkc_sampler_free(sampler);
    tinkc_text_free(&text);
    tinkc_tokens_free(&prompt);
    enif_mutex_unlock(s->lock);
    enif_free(messages);
    return result(env, &err, answer);
}

static int load(ErlNifEnv *env, void **data, ERL_NIF_TERM info)
{
    (void)data, (void)info;
    session_type =
        enif_open_resource_type(env, NULL, "tinkc_session", session_end, ERL_NIF_RT_CREATE, NULL);
    return session_type ? 0 : -1;
}

static ErlNifFunc functions[] = {
    { "open", 1, open_model, ERL_NIF_DIRTY_JOB_IO_BOUND },
    { "train", 4, train, ERL_NIF_DIRTY_JOB_IO_BOUND },
    { "ask_json", 3, ask, ERL_NIF_DIRTY_JOB_IO_BOUND },
};

ERL_NIF_INIT(Elixir.Tinkc, functions, load, NULL, NULL, NULL)
