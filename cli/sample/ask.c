/* ask.c - one question to a model: prompt in, answers out. */
#include "cli/sample/ask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"
#include "cli/output/text.h"

static size_t count_given(const cli_app *app, const char *name)
{
    size_t n = 0;
    if (cli_find_option(app->command, name, strlen(name)))
        while (cli_text_at(app, name, n))
            n++;
    return n;
}

static bool stop_at_texts(tinkc_sampling *out, const char *const *texts, size_t n)
{
    const char **list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = texts[i];
    out->stop = list;
    return list != NULL;
}

static bool stop_at_tokens(tinkc_sampling *out, const int32_t *tokens, size_t n)
{
    int32_t *list = calloc(n, sizeof *list);
    for (size_t i = 0; list && i < n; i++)
        list[i] = tokens[i];
    out->stop_tokens = list;
    out->n_stop_tokens = list ? n : 0;
    return list != NULL;
}

/* The chat format's own, else the tokens that end an answer: not every server knows these. As
 * tokens where each is one: servers that decode without special tokens would never find the text.
 */
bool cli_stop_as_usual(const cli_asked *asked, bool raw, tinkc_sampling *out)
{
    size_t n = 0, n_ids = 0;
    const char *const *usual =
        raw ? NULL : tinkc_chat_stops(asked->tokenizer, asked->renderer, NULL);
    while (usual && usual[n])
        n++;
    if (!n) {
        tinkc_i32s ends = tinkc_tokenizer_ends(asked->tokenizer);
        return ends.len == 0 || stop_at_tokens(out, ends.data, ends.len);
    }
    int32_t *ids = calloc(n, sizeof *ids);
    for (size_t i = 0; ids && i < n; i++) {
        int32_t id = tinkc_tokenizer_id(asked->tokenizer, usual[i]);
        if (tinkc_tokenizer_is_special(asked->tokenizer, id))
            ids[n_ids++] = id;
    }
    bool ok = ids && (n == n_ids ? stop_at_tokens(out, ids, n) : stop_at_texts(out, usual, n));
    free(ids);
    return ok;
}

/* Stops: those given, else the usual ones. */
static bool set_stops(const cli_app *app, const cli_asked *asked, bool raw, tinkc_sampling *out)
{
    size_t n = count_given(app, "stop"), m = count_given(app, "stop-token");
    if (!n && !m)
        return cli_stop_as_usual(asked, raw, out);
    const char **texts = calloc(n + 1, sizeof *texts);
    int32_t *ids = calloc(m + 1, sizeof *ids);
    int64_t id = 0;
    for (size_t i = 0; texts && i < n; i++)
        texts[i] = cli_text_at(app, "stop", i);
    for (size_t i = 0; ids && i < m; i++) {
        (void)cli_parse_int(cli_text_at(app, "stop-token", i), &id); /* checked by the caller */
        ids[i] = (int32_t)id;
    }
    bool ok = texts && ids && (n ? stop_at_texts(out, texts, n) : stop_at_tokens(out, ids, m));
    free(texts);
    free(ids);
    return ok;
}

bool cli_prompts_raw(const cli_app *app, const cli_asked *asked)
{
    return !asked->chat || (cli_given(app, "raw") ? cli_flag(app, "raw") : asked->raw);
}

/* What is wrong with such numbers: a member's name; NULL = nothing. *wanted says what it must be.
 */
static const char *bad_number(int64_t max_tokens, double temperature, double top_p, int64_t top_k,
                              const char **wanted)
{
    if (max_tokens < 1 || max_tokens > INT32_MAX)
        return *wanted = "must be at least 1 and fit 31 bits", "max_tokens";
    if (temperature < 0)
        return *wanted = "must not be negative", "temperature";
    if (top_p <= 0 || top_p > 1)
        return *wanted = "must be above 0 and at most 1", "top_p";
    if (top_k < -1 || top_k > INT32_MAX)
        return *wanted = "must be -1 (all) or more, and fit 31 bits", "top_k";
    return NULL;
}

int cli_check_sampling(const cli_app *app)
{
    int64_t id;
    const char *wanted,
        *name = bad_number(cli_int(app, "max-tokens"), cli_number(app, "temperature"),
                           cli_number(app, "top-p"), cli_int(app, "top-k"), &wanted);
    if (name) {
        char option[32];
        (void)snprintf(option, sizeof option, "--%s", name);
        option[5] = option[5] == '_' ? '-' : option[5]; /* --max_tokens, --top_p, --top_k */
        return cli_fail(app, "usage", NULL, "%s %s", option, wanted);
    }
    if (count_given(app, "stop") && count_given(app, "stop-token"))
        return cli_fail(app, "usage", NULL, "give either --stop or --stop-token");
    for (size_t i = 0; i < count_given(app, "stop-token"); i++)
        if (!cli_parse_int(cli_text_at(app, "stop-token", i), &id) || id > INT32_MAX)
            return cli_fail(app, "usage", NULL, "--stop-token: '%s' is not a token id",
                            cli_text_at(app, "stop-token", i));
    return 0;
}

int cli_sampling_options(cli_app *app, const cli_asked *asked, bool raw, tinkc_sampling *out)
{
    *out = (tinkc_sampling)TINKC_SAMPLING_INIT;
    out->max_tokens = (int32_t)cli_int(app, "max-tokens");
    out->temperature = (float)cli_number(app, "temperature");
    out->top_p = (float)cli_number(app, "top-p");
    out->top_k = (int32_t)cli_int(app, "top-k");
    if (cli_given(app, "seed")) {
        out->has_seed = true;
        out->seed = (uint64_t)cli_int(app, "seed");
    }
    if (!set_stops(app, asked, raw, out))
        return cli_fail(app, "internal", NULL, "out of memory");
    return 0;
}

/* What the service says about the base model; -1 = nothing. */
static int64_t ask_context(cli_app *app, const cli_asked *asked)
{
    tinkc_error err = { 0 }; /* a convenience: the service refuses what does not fit */
    tinkc_future *f = tinkc_capabilities_get(app->client, &err);
    const tinkc_capabilities *all =
        cli_wait(app, f, NULL, &err) ? tinkc_future_capabilities(f, 0, &err) : NULL;
    const tinkc_model *m =
        all && asked->base_model ? tinkc_capabilities_find(all, asked->base_model) : NULL;
    int64_t context = m && m->max_context_length > 0 ? m->max_context_length : -1;
    tinkc_future_free(f);
    return context;
}

void cli_clamp_tokens(cli_app *app, cli_asked *asked, size_t n_prompt, tinkc_sampling *how)
{
    enum { SMALL = 1024 }; /* fits into any model: not worth a question */
    if (n_prompt + (size_t)how->max_tokens <= SMALL)
        return;
    if (asked->context == 0)
        asked->context = ask_context(app, asked);
    int64_t left = asked->context - (int64_t)n_prompt;
    if (asked->context < 0 || left < 1 || how->max_tokens <= left)
        return;
    cli_note(app,
             "--max-tokens lowered from %d to %lld: the model's context is %lld tokens, the prompt "
             "has %zu",
             (int)how->max_tokens, (long long)left, (long long)asked->context, n_prompt);
    how->max_tokens = (int32_t)left;
}

void cli_free_sampling(tinkc_sampling *s)
{
    free((void *)(uintptr_t)s->stop);
    free((void *)(uintptr_t)s->stop_tokens);
    s->stop = NULL;
    s->stop_tokens = NULL;
}

/* The number under a name, or what is there already. False if it is something else; `whole`: or has
 * a fraction. */
static bool take_number(const tkc_tree *v, const char *name, bool whole, double *out,
                        char why[CLI_WHY])
{
    const tkc_tree *x = tkc_tree_get(v, name);
    if (!x || tkc_tree_is_null(x))
        return true;
    if (whole ? !tkc_tree_is_i64(x) : !tkc_tree_is_number(x)) {
        (void)snprintf(why, CLI_WHY, "%s: not a %snumber", name, whole ? "whole " : "");
        return false;
    }
    *out = tkc_tree_number(x);
    return true;
}

bool cli_sampling_members(const tkc_tree *v, tinkc_sampling *s, char why[CLI_WHY])
{
    double max_tokens = s->max_tokens, temperature = (double)s->temperature,
           top_p = (double)s->top_p, top_k = s->top_k;
    const tkc_tree *seed = tkc_tree_get(v, "seed");
    const char *wanted, *name;
    if (!take_number(v, "max_tokens", true, &max_tokens, why) ||
        !take_number(v, "temperature", false, &temperature, why) ||
        !take_number(v, "top_p", false, &top_p, why) ||
        !take_number(v, "top_k", true, &top_k, why) ||
        !take_number(v, "seed", true, &(double){ 0 }, why))
        return false;
    enum { FAR = INT32_MAX };
    int64_t tokens = max_tokens > (double)FAR ? (int64_t)FAR + 1 : (int64_t)fmax(max_tokens, -FAR);
    int64_t most = top_k > (double)FAR ? (int64_t)FAR + 1 : (int64_t)fmax(top_k, -FAR);
    name = bad_number(tokens, temperature, top_p, most, &wanted);
    if (name)
        return (void)snprintf(why, CLI_WHY, "%s %s", name, wanted), false;
    s->max_tokens = (int32_t)tokens;
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    s->top_k = (int32_t)most;
    if (tkc_tree_is_i64(seed)) {
        s->has_seed = true;
        s->seed = (uint64_t)tkc_tree_i64(seed);
    }
    return true;
}

int cli_check_message(const cli_app *app, const char *text, size_t len)
{
    if (len == 0)
        return cli_fail(app, "data_invalid", NULL, "the prompt is empty");
    if (memchr(text, '\0', len) || !cli_is_utf8(text, len))
        return cli_fail(app, "data_invalid", NULL, "the prompt is not UTF-8 text");
    return 0;
}

size_t cli_strip_newline(char *text, size_t len)
{
    if (len && text[len - 1] == '\n')
        len--;
    if (len && text[len - 1] == '\r')
        len--;
    text[len] = '\0';
    return len;
}

bool cli_token_list(const tkc_tree *list, tinkc_tokens *out)
{
    size_t n = tkc_tree_length(list), before = out->len;
    bool ok = n > 0;
    for (size_t i = 0; ok && i < n; i++) {
        const tkc_tree *x = tkc_tree_at(list, i);
        int64_t value = tkc_tree_i64(x);
        int32_t id = (int32_t)value;
        ok = tkc_tree_is_i64(x) && value >= 0 && value <= INT32_MAX &&
             tinkc_tokens_append(out, &id, 1, NULL);
    }
    if (!ok)
        out->len = before;
    return ok;
}

tkc_tree *cli_with_system(const cli_app *app, tkc_arena *arena, const tkc_tree *messages)
{
    tkc_tree *out = tkc_tree_array(arena);
    const char *first = tkc_tree_get_text(tkc_tree_at(messages, 0), "role");
    if (cli_given(app, "system") && !(first && strcmp(first, "system") == 0))
        tkc_tree_add(out, tkc_tree_pack(arena, "{s:s,s:s}", "role", "system", "content",
                                        cli_text(app, "system")));
    tkc_tree_add_all(out, messages);
    return out;
}

/* Whether the prompt is the same without the tools. */
static bool leaves_out(const cli_asked *asked, const char *messages, tinkc_chat_options how,
                       const tinkc_tokens *with)
{
    tinkc_tokens without = { 0 };
    how.tools_json = NULL;
    bool same = tinkc_chat_encode(asked->tokenizer, messages, &how, &without, NULL) &&
                without.len == with->len &&
                memcmp(without.data, with->data, with->len * sizeof *with->data) == 0;
    tinkc_tokens_free(&without);
    return same;
}

bool cli_render_prompt(const cli_asked *asked, const tkc_tree *messages, const tkc_tree *tools,
                       tinkc_tokens *out, tinkc_error *err)
{
    char *text = cli_json_print(messages, TKC_TREE_COMPACT);
    char *offered = tools ? cli_json_print(tools, TKC_TREE_COMPACT) : NULL;
    tinkc_chat_options how = { .renderer = asked->renderer,
                               .generation_prompt = true,
                               .openai_calls = true,
                               .tools_json = offered };
    bool memory = text && (offered || !tools);
    bool ok = memory && tinkc_chat_encode(asked->tokenizer, text, &how, out, err);
    if (!memory)
        tinkc_error_set(err, TINKC_E_MEMORY, "out of memory");
    if (ok && offered && leaves_out(asked, text, how, out)) {
        tinkc_error_set(err, TINKC_E_ARGUMENT, "tools: the model's chat template leaves them out");
        ok = false;
    }
    free(text);
    free(offered);
    return ok;
}

/* The next piece, waiting in slices so that signals and --timeout are seen; NULL = the end. */
static const tinkc_delta *next_delta(const cli_app *app, tinkc_deltas *deltas, tinkc_error *err)
{
    while (!err->code && !cli_stop_signal()) {
        tinkc_error slice = { 0 };
        if (cli_now_ms() > app->deadline_ms) {
            cli_run_out(err);
            break;
        }
        const tinkc_delta *d = tinkc_deltas_next(deltas, 100, &slice);
        if (d || !slice.code)
            return d;
        if (slice.code != TINKC_E_TIMEOUT)
            *err = slice;
    }
    return NULL;
}

bool cli_stream(cli_app *app, const cli_asked *asked, const tinkc_tokens *prompt,
                const tinkc_sampling *how, cli_text_fn *fn, void *user, tinkc_tokens *answer,
                int32_t *stop, tinkc_error *err)
{
    tinkc_text piece = { 0 };
    tinkc_deltas *deltas = tinkc_sample_stream(asked->sampler, prompt->data, prompt->len, how, err);
    tinkc_decoder *decoder =
        tinkc_decoder_new(asked->tokenizer, &(tinkc_decode_options){ .skip_special = true }, err);
    bool any = false, last = false;
    for (const tinkc_delta *d; !last && (d = next_delta(app, deltas, err));) {
        any = true;
        piece.len = 0;
        tinkc_tokens_append(answer, d->tokens.data, d->tokens.len, err);
        tinkc_decoder_push(decoder, d->tokens.data, d->tokens.len, &piece, err);
        if (piece.len)
            fn(piece.data, piece.len, user);
        *stop = d->stop_reason;
        last = d->last;
    }
    tinkc_deltas_free(deltas);
    tinkc_decoder_free(decoder);
    tinkc_text_free(&piece);
    if (any || (err->code != TINKC_E_UNSUPPORTED && err->code != TINKC_E_NOT_FOUND))
        return true;
    *err = (tinkc_error){ 0 };
    return false;
}

static bool is_end(const cli_asked *asked, int32_t id)
{
    tinkc_i32s ends = tinkc_tokenizer_ends(asked->tokenizer);
    for (size_t i = 0; i < ends.len; i++)
        if (ends.data[i] == id)
            return true;
    return tinkc_tokenizer_is_special(asked->tokenizer, id);
}

const char *cli_termination(const cli_asked *asked, const tinkc_sequence *seq)
{
    if (seq->stop_reason == TINKC_STOP_LENGTH || seq->tokens.len == 0)
        return "malformed";
    return is_end(asked, seq->tokens.data[seq->tokens.len - 1]) ? "eos" : "stop_sequence";
}

char *cli_answer_text(const cli_asked *asked, const tinkc_sequence *seq, const tinkc_sampling *how)
{
    tinkc_text text = { 0 };
    size_t n = seq->tokens.len;
    bool stopped = seq->stop_reason != TINKC_STOP_LENGTH;
    if (stopped && n && is_end(asked, seq->tokens.data[n - 1]))
        n--;
    tinkc_decode_span(asked->tokenizer, seq->tokens.data, n, NULL, &text, NULL);
    char *out = strndup(text.data ? text.data : "", text.len);
    for (const char *const *s = stopped ? how->stop : NULL; out && s && *s; s++) {
        size_t len = strlen(out), m = strlen(*s);
        if (m && len >= m && strcmp(out + len - m, *s) == 0) {
            out[len - m] = '\0';
            break;
        }
    }
    tinkc_text_free(&text);
    return out;
}

void cli_warn_empty(const cli_app *app, const char *text, size_t n_tokens)
{
    if (text && text[strspn(text, " \t\r\n")])
        return;
    cli_warn(app, "the answer is empty (%zu token%s)", n_tokens, n_tokens == 1 ? "" : "s");
}

char *cli_thinking(const char *text, const char *how)
{
    const char *end = strstr(text, "</think>");
    if (!end || strcmp(how, "show") == 0)
        return strdup(text);
    const char *begin = strstr(text, "<think>");
    begin = begin && begin < end ? begin + 7 : text;
    if (strcmp(how, "only") == 0)
        return strndup(begin, (size_t)(end - begin));
    end += 8;
    return strdup(end + strspn(end, "\r\n"));
}

tkc_tree *cli_sequence_json(tkc_arena *arena, const cli_asked *asked, const tinkc_sequence *seq,
                            const tinkc_sampling *how, bool chat)
{
    tkc_tree *tokens = tkc_tree_array(arena), *logprobs = tkc_tree_array(arena),
             *out = tkc_tree_object(arena);
    char *text = cli_answer_text(asked, seq, how);
    for (size_t i = 0; i < seq->tokens.len; i++)
        tkc_tree_add_i64(tokens, seq->tokens.data[i]);
    for (size_t i = 0; i < seq->logprobs.len; i++)
        tkc_tree_add_real(logprobs, (double)seq->logprobs.data[i]);
    tkc_tree_set(out, "text", cli_json_text(arena, text ? text : ""));
    if (chat)
        tkc_tree_set(
            out, "message",
            tkc_tree_pack(arena, "{s:s,s:s}", "role", "assistant", "content", text ? text : ""));
    tkc_tree_set_text(out, "termination", cli_termination(asked, seq));
    tkc_tree_set(out, "tokens", tokens);
    tkc_tree_set(out, "logprobs", seq->logprobs.len ? logprobs : tkc_tree_null());
    tkc_tree_set_text(out, "stop_reason",
                      seq->stop_reason == TINKC_STOP_LENGTH ? "length" : "stop");
    free(text);
    return out;
}
