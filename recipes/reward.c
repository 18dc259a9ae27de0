/* reward.c - rewards: a grader, a function, a command, a URL, or a model with a rubric.
 *
 * An external answer must be one finite number for the rollout in question. Anything else fails
 * that rollout, with an error that names it; it never becomes a reward of 0.
 */
#include "recipes/reward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "recipes/graders.h"
#include "recipes/mathtext.h"
#include "tinkc/rest.h"

enum { GRADER, FUNCTION, COMMAND, URL, RUBRIC };

struct tinkc_reward {
    int kind;
    double weight;
    tkr_grader grader;
    tinkc_reward_fn *fn;
    void *fn_user;
    tkr_children *children;
    tinkc_client *client; /* of a URL */
    tinkc_sampler *sampler;
    tinkc_tokenizer *tokenizer;
    char *name, *url, *renderer, *rubric;
    int64_t timeout_ms;
};

/* ---- making ---- */

static tinkc_reward *make(int kind, const char *name, tinkc_error *err)
{
    tinkc_reward *r = tkc_zalloc(NULL, sizeof *r, err);
    if (!r)
        return NULL;
    r->kind = kind;
    r->weight = 1;
    r->name = name ? tkc_copy_str(NULL, tkc_str(name), err) : NULL;
    return r;
}

static tinkc_reward *whole(tinkc_reward *r, const tinkc_error *err)
{
    if (!tkc_failed(err))
        return r;
    tinkc_reward_free(r);
    return NULL;
}

void tinkc_reward_free(tinkc_reward *r)
{
    if (!r)
        return;
    tkr_grader_close(&r->grader);
    tkr_children_free(r->children);
    tinkc_client_free(r->client);
    tinkc_tokenizer_free(r->tokenizer);
    tkc_release_str(NULL, r->name);
    tkc_release_str(NULL, r->url);
    tkc_release_str(NULL, r->renderer);
    tkc_release_str(NULL, r->rubric);
    tkc_release(NULL, r, sizeof *r);
}

tinkc_reward *tinkc_reward_grader(const char *spec, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!spec)
        tkc_fail(err, TINKC_E_ARGUMENT, "spec: must not be NULL");
    tinkc_reward *r = tkc_failed(err) ? NULL : make(GRADER, NULL, err);
    if (!r)
        return NULL;
    if (tkr_grader_open(&r->grader, spec, err)) /* in its place: what it has read does not move */
        r->name = tkc_copy_str(NULL, tkc_str(r->grader.name), err);
    return whole(r, err);
}

tinkc_reward *tinkc_reward_function(const char *name, tinkc_reward_fn *fn, void *user,
                                    tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!fn)
        tkc_fail(err, TINKC_E_ARGUMENT, "fn: must not be NULL");
    tinkc_reward *r = tkc_failed(err) ? NULL : make(FUNCTION, name ? name : "function", err);
    if (r) {
        r->fn = fn;
        r->fn_user = user;
    }
    return r ? whole(r, err) : NULL;
}

tinkc_reward *tinkc_reward_command(const char *command, size_t processes, int64_t timeout_ms,
                                   tinkc_recipe_log_fn *log, void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!command || !*command || processes > 256 || timeout_ms < 0)
        tkc_fail(err, TINKC_E_ARGUMENT,
                 "reward command: needs a command, up to 256 processes, a time limit");
    tinkc_reward *r = tkc_failed(err) ? NULL : make(COMMAND, "command", err);
    tkr_children_options how = { .command = command,
                                 .name = "reward command",
                                 .processes = processes ? processes : 4,
                                 .asks_each = 1,
                                 .attempts = 2,
                                 .timeout_ms = timeout_ms ? timeout_ms : 60000,
                                 .log = log,
                                 .user = user };
    if (r)
        r->children = tkr_children_new(&how, err);
    return r ? whole(r, err) : NULL;
}

bool tinkc_reward_pass_env(tinkc_reward *r, const char *name, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!r || !r->children)
        return tkc_fail(err, TINKC_E_ARGUMENT, "reward: not a command");
    return tkr_children_pass(r->children, name, err);
}

tinkc_reward *tinkc_reward_url(const char *url, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!url || (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0))
        tkc_fail(err, TINKC_E_ARGUMENT, "reward URL: must begin with http:// or https://: %.100s",
                 url ? url : "");
    (void)tkc_check_range(timeout_ms, 0, INT64_MAX, "reward URL: timeout_ms", err);
    tinkc_reward *r = tkc_failed(err) ? NULL : make(URL, "url", err);
    if (!r)
        return NULL;
    /* The key must never be sent: the URL is a third party's. A service whose name can never exist (RFC 2606)
     * keeps $TINKER_BASE_URL out of it, which may be "local:" or the grader's own address. */
    tinkc_client_options o = { .base_url = "https://service.invalid",
                               .api_key = "tml-not-sent",
                               .telemetry = TINKC_TELEMETRY_OFF,
                               .log_level = TINKC_LOG_ERROR };
    r->url = tkc_copy_str(NULL, tkc_str(url), err);
    r->timeout_ms = timeout_ms ? timeout_ms : 60000;
    r->client = tinkc_client_new(&o, err);
    return whole(r, err);
}

tinkc_reward *tinkc_reward_rubric(tinkc_sampler *sampler, const tinkc_tokenizer *tokenizer,
                                  const char *renderer, const char *rubric, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!sampler || !tokenizer)
        tkc_fail(err, TINKC_E_ARGUMENT, "rubric: needs a sampler and its tokenizer");
    tinkc_reward *r = tkc_failed(err) ? NULL : make(RUBRIC, "rubric", err);
    if (!r)
        return NULL;
    r->sampler = sampler;
    r->tokenizer = tinkc_tokenizer_keep(tokenizer);
    r->renderer = renderer ? tkc_copy_str(NULL, tkc_str(renderer), err) : NULL;
    r->rubric = rubric ? tkc_copy_str(NULL, tkc_str(rubric), err) : NULL;
    r->timeout_ms = 300000;
    return whole(r, err);
}

bool tinkc_reward_weigh(tinkc_reward *r, double weight, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!r || !isfinite(weight))
        return tkc_fail(err, TINKC_E_ARGUMENT, "weight: must be a finite number");
    r->weight = weight;
    return true;
}

bool tinkc_reward_needs_answer(const tinkc_reward *r)
{
    return r && r->kind == GRADER && r->grader.needs_answer;
}

const char *tkr_reward_name(const tinkc_reward *r)
{
    return r->name;
}

int64_t tkr_reward_timeout_ms(const tinkc_reward *r)
{
    return r->timeout_ms;
}

double tkr_reward_weight(const tinkc_reward *r)
{
    return r->weight;
}

bool tkr_reward_is_grader(const tinkc_reward *r)
{
    return r->kind == GRADER;
}

tkr_children *tkr_reward_children(const tinkc_reward *r)
{
    return r->children;
}

/* ---- graders and functions: at once ---- */

bool tinkc_reward_grade(tinkc_reward *r, const char *text, const char *answer, const char *row_json,
                        double *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!r || r->kind != GRADER)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "only graders that run here grade a single text");
    if (r->grader.needs_answer && !answer)
        return tkc_fail(err, TINKC_E_ARGUMENT, "grader %s needs an answer, and the row has none",
                        r->name);
    *out = r->grader.grade(&r->grader, text ? text : "", answer, row_json ? row_json : "{}", err);
    return !tkc_failed(err);
}

static bool grade_here(tkr_asking *a, const tinkc_rollout *rollout)
{
    tinkc_error why = { 0 };
    double value = 0;
    tinkc_reward *r = a->reward;
    bool ok = r->kind == FUNCTION ? r->fn(rollout, r->fn_user, &value, &why)
                                  : tinkc_reward_grade(r, rollout->text, rollout->answer,
                                                       rollout->row_json, &value, &why);
    if (ok && !isfinite(value)) {
        tinkc_error_set(&why, TINKC_E_CALLBACK, "the reward is not a finite number");
        ok = false;
    }
    a->waits = false;
    a->fn(a->user, a->which, ok, value, NULL,
          why.code ? why.message : "the reward function failed");
    return true;
}

/* ---- answers from outside ---- */

static void deliver(tkr_asking *a, const tkc_tree *answer, const char *why)
{
    double value = 0;
    char text[240];
    const char *said = tkc_tree_get_text(answer, "error");
    const tkc_tree *metrics = tkc_tree_get(answer, "metrics");
    bool ok = answer && !said && tkr_json_number(answer, "reward", &value);
    const char *name;
    tkc_tree *one;
    a->waits = false;
    if (!answer)
        (void)snprintf(text, sizeof text, "%s", why);
    else if (said)
        (void)snprintf(text, sizeof text, "the grader reports: %.200s", said);
    else if (!ok)
        (void)snprintf(text, sizeof text, "the answer has no finite number under \"reward\"");
    if (ok && metrics && !tkc_tree_is_object(metrics)) {
        ok = false;
        (void)snprintf(text, sizeof text, "\"metrics\" in the answer is not an object");
    }
    TKC_TREE_EACH (metrics, name, one) {
        if (ok && !tkc_tree_is_number(one)) {
            ok = false;
            (void)snprintf(text, sizeof text, "metric %.60s in the answer is not a number", name);
        }
    }
    a->fn(a->user, a->which, ok, value, metrics, text);
}

static void on_line(void *user, const tkc_tree *answer, const char *why)
{
    deliver(user, answer, why);
}

static void on_response(tinkc_future *f, void *user)
{
    tkr_asking *a = user;
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    tinkc_bytes body = tinkc_response_body(tinkc_future_response(f, 0, &err));
    tkc_tree *v =
        err.code ? NULL
                 : tkr_json_parse(&arena, (const char *)body.data, body.len, a->reward->url, &err);
    if (err.code == TINKC_E_DEADLINE) {
        err = (tinkc_error){ 0 };
        tkc_fail(&err, TINKC_E_DEADLINE, "%s did not answer within %lld ms", a->reward->url,
                 (long long)tkr_reward_timeout_ms(a->reward));
    }
    a->future = NULL;
    deliver(a, tkc_tree_is_object(v) ? v : NULL,
            err.code ? err.message : "the answer is not an object");
    tkc_arena_free(&arena);
    tinkc_future_free(f);
}

/* ---- requests ---- */

/* {"id", "row", "messages", "text", "answer", "stop_reason"}, one line. */
static char *request_line(const tinkc_rollout *rollout, uint64_t id, tinkc_error *err)
{
    tkc_arena arena = { 0 };
    const tkc_tree *row =
        tkr_json_parse(&arena, rollout->row_json, strlen(rollout->row_json), "row", err);
    tkc_tree *messages = tkr_json_parse(&arena, rollout->messages_json,
                                        strlen(rollout->messages_json), "messages", err);
    tkc_tree *v =
        tkc_tree_pack(&arena, "{s:I,s:o?,s:o?,s:s,s:s?,s:s}", "id", (int64_t)id, "row", row,
                      "messages", messages, "text", rollout->text, "answer", rollout->answer,
                      "stop_reason", rollout->stop_reason == TINKC_STOP ? "stop" : "length");
    if (!v)
        tkc_fail_memory(err);
    char *line = v ? tkr_json_text(v, err) : NULL;
    tkc_arena_free(&arena);
    return line;
}

static tinkc_future *post(const tinkc_reward *r, const char *line, tinkc_error *err)
{
    tinkc_http_options o = {
        .method = "POST", .path = r->url, .body = line, .body_len = strlen(line)
    };
    tinkc_future *f = tinkc_http_call(r->client, &o, err);
    if (f)
        tinkc_future_limit(f, r->timeout_ms, err);
    return f;
}

/* ---- a rubric ---- */

static void add_speech(tkc_buf *out, const tkc_tree *messages, tinkc_error *err)
{
    size_t i;
    tkc_tree *m;
    for (i = 0; (m = tkc_tree_at(messages, i)); i++) {
        const char *role = tkc_tree_get_text(m, "role"), *content = tkc_tree_get_text(m, "content");
        tkc_buf_printf(out, err, "[%s]\n%s\n\n", role ? role : "?", content ? content : "");
    }
}

static char *rubric_prompt(const tinkc_reward *r, const tinkc_rollout *rollout, tinkc_error *err)
{
    tkc_buf text;
    tkc_buf_init(&text, NULL, 64 << 20);
    tkc_arena arena = { 0 };
    const tkc_tree *row =
        tkr_json_parse(&arena, rollout->row_json, strlen(rollout->row_json), "row", err);
    tkc_tree *said = tkr_json_parse(&arena, rollout->messages_json, strlen(rollout->messages_json),
                                    "messages", err);
    const char *own = tkc_tree_get_text(row, "rubric"), *rubric = own ? own : r->rubric;
    if (!rubric && !tkc_failed(err))
        tkc_fail(err, TINKC_E_ARGUMENT, "the row has no \"rubric\" and no rubric was given");
    tkc_buf_printf(&text, err,
                   "Grade the last answer of this conversation.\n\nWhat to look for:\n%s\n\n"
                   "Conversation:\n",
                   rubric ? rubric : "");
    add_speech(&text, said, err);
    tkc_buf_cstr(&text, "Answer with one number from 0 (worst) to 10 (best), and nothing else.",
                 err);
    tkc_buf_terminate(&text, err);
    tkc_tree *v = tkc_failed(err)
                      ? NULL
                      : tkc_tree_pack(&arena, "[{s:s,s:s}]", "role", "user", "content", text.data);
    char *line = v ? tkr_json_text(v, err) : NULL;
    tkc_arena_free(&arena);
    tkc_buf_free(&text);
    return line;
}

static void on_verdict(tinkc_future *f, void *user)
{
    tkr_asking *a = user;
    tinkc_error err = { 0 };
    tinkc_text text = { 0 };
    double grade;
    char why[560];
    const tinkc_sequence *s = tinkc_samples_at(tinkc_future_samples(f, 0, &err), 0);
    if (s)
        tinkc_decode(a->reward->tokenizer, s->tokens.data, s->tokens.len, &text, &err);
    bool ok = !err.code && text.data && tkr_read_grade(text.data, &grade);
    (void)snprintf(why, sizeof why, "%s%.120s",
                   err.code ? err.message
                            : "the rubric's model gave no single number from 0 to 10: ",
                   err.code || !text.data ? "" : text.data);
    a->future = NULL;
    a->waits = false;
    a->fn(a->user, a->which, ok, ok ? grade / 10 : 0, NULL, why);
    tinkc_text_free(&text);
    tinkc_future_free(f);
}

static tinkc_future *ask_model(const tinkc_reward *r, const tinkc_rollout *rollout,
                               tinkc_error *err)
{
    tinkc_tokens prompt = { 0 };
    tinkc_future *f = NULL;
    char *messages = rubric_prompt(r, rollout, err);
    tinkc_chat_options chat = { .renderer = r->renderer, .generation_prompt = true };
    if (messages && tinkc_chat_encode(r->tokenizer, messages, &chat, &prompt, err)) {
        tinkc_sampling how = TINKC_SAMPLING_INIT;
        how.temperature = 0;
        how.max_tokens = 512;
        how.stop = tinkc_chat_stops(r->tokenizer, r->renderer, err);
        if (how.stop && !how.stop[0])
            how.stop = NULL;
        f = tinkc_sample(r->sampler, prompt.data, prompt.len, 1, &how, err);
        if (f)
            tinkc_future_limit(f, r->timeout_ms, err);
    }
    tinkc_tokens_free(&prompt);
    tkc_release_str(NULL, messages);
    return f;
}

/* ---- asking ---- */

bool tkr_reward_begin(tkr_asking *a, tinkc_reward *r, const tinkc_rollout *rollout, uint64_t id,
                      tinkc_queue *queue, tinkc_error *err)
{
    a->reward = r;
    a->waits = true;
    if (r->kind == GRADER || r->kind == FUNCTION)
        return grade_here(a, rollout);
    char *line = r->kind == RUBRIC ? NULL : request_line(rollout, id, err);
    if (r->kind == COMMAND && line)
        tkr_children_ask(r->children, id, line, TKR_ANY_CHILD, on_line, a, err);
    else if (r->kind == URL && line)
        a->future = post(r, line, err);
    else if (r->kind == RUBRIC)
        a->future = ask_model(r, rollout, err);
    if (a->future)
        tinkc_future_on_done(a->future, queue, r->kind == URL ? on_response : on_verdict, a, err);
    tkc_release_str(NULL, line);
    if (tkc_failed(err))
        tkr_reward_cancel(a);
    return !tkc_failed(err);
}

void tkr_reward_cancel(tkr_asking *a)
{
    if (!a->waits)
        return;
    a->waits = false;
    tinkc_future_free(a->future);
    a->future = NULL;
    if (a->reward->children)
        tkr_children_forget(a->reward->children, a);
}
