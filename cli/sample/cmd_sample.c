/* cmd_sample.c - `tinkc sample` and `tinkc logprobs`: one question, or one text to score.
 * Batches of many are in sample_batch.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/sample/ask.h"
#include "cli/data/row_turns.h"
#include "cli/sample/sample_batch.h"
#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/sample/token_text.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* ---- the prompt ---- */

typedef struct prompt {
    tinkc_tokens ids;
    bool raw;
} prompt;

/* A JSON array of ids, or {"tokens": [...]}. False if the text is neither. */
static bool ids_of(const char *text, tinkc_tokens *out)
{
    tkc_arena arena = { 0 };
    const tkc_tree *v = tkc_tree_read(&arena, tkc_str(text), 0);
    bool ok = cli_token_list(tkc_tree_is_object(v) ? tkc_tree_get(v, "tokens") : v, out);
    tkc_arena_free(&arena);
    return ok;
}

static int count_sources(const cli_app *app)
{
    return (int)(app->n_args > 0) + cli_given(app, "prompt") + cli_given(app, "prompt-file") +
           cli_given(app, "messages");
}

/* Options that would have no effect beside each other are refused, as far as that can be seen
 * without the model. */
static int check_together(const cli_app *app)
{
    static const char *const of_batch[] = { "jobs", "unordered", "resume", "as-conversation",
                                            "drop-system" };
    static const char *const of_one[] = { "prompt-logprobs", "topk-prompt-logprobs", "stream",
                                          "logprobs", "thinking" };
    static const char *const of_json[] = { "prompt-logprobs", "topk-prompt-logprobs" };
    bool batch = cli_given(app, "batch");
    if (count_sources(app) + batch > 1)
        return cli_fail(app, "usage", NULL, "more than one prompt was given");
    for (size_t i = 0; !batch && i < sizeof of_batch / sizeof *of_batch; i++)
        if (cli_on_the_line(app, of_batch[i]))
            return cli_fail(app, "usage", NULL, "--%s needs --batch", of_batch[i]);
    for (size_t i = 0; batch && i < sizeof of_one / sizeof *of_one; i++)
        if (cli_on_the_line(app, of_one[i]))
            return cli_fail(app, "usage", NULL, "--%s cannot be combined with --batch", of_one[i]);
    bool json = app->format == CLI_JSON || app->format == CLI_JSONL;
    if (json && cli_on_the_line(app, "stream") && cli_flag(app, "stream"))
        return cli_fail(app, "usage", NULL, "--stream cannot be combined with JSON");
    if (batch && !json && cli_on_the_line(app, "format"))
        return cli_fail(app, "usage", "leave --format out: --batch writes JSON lines",
                        "--format %s cannot be combined with --batch", cli_text(app, "format"));
    for (size_t i = 0; !json && i < sizeof of_json / sizeof *of_json; i++)
        if (cli_on_the_line(app, of_json[i]))
            return cli_fail(app, "usage", NULL, "--%s needs --json", of_json[i]);
    if (cli_flag(app, "drop-system") && !cli_flag(app, "as-conversation"))
        return cli_fail(app, "usage", NULL, "--drop-system needs --as-conversation");
    if (batch && (cli_int(app, "jobs") < 1 || cli_int(app, "jobs") > CLI_MOST_JOBS))
        return cli_fail(app, "usage", NULL, "--jobs must be from 1 to %d", CLI_MOST_JOBS);
    const char *chat = cli_on_the_line(app, "system")     ? "system"
                       : cli_given(app, "messages")       ? "messages"
                       : cli_on_the_line(app, "renderer") ? "renderer"
                                                          : NULL;
    if (chat && cli_on_the_line(app, "raw") && cli_flag(app, "raw"))
        return cli_fail(app, "usage", "leave one of them out",
                        "--raw continues the text as it is, so --%s has no effect", chat);
    return 0;
}

/* Some models continue text unless asked not to: a system message would be lost. */
static int check_system(const cli_app *app, const cli_asked *asked)
{
    if (!cli_on_the_line(app, "system") || cli_given(app, "messages") ||
        !cli_prompts_raw(app, asked))
        return 0;
    return cli_fail(app, "usage",
                    asked->chat ? "--no-raw renders the prompt as a chat"
                                : "name a chat format with --renderer",
                    "%s continues text as it is, so --system has no effect",
                    asked->base_model ? asked->base_model : "the model");
}

/* A member that a file of messages does not have; NULL = none. */
static const char *unknown_member(const tkc_tree *file)
{
    const char *name;
    tkc_tree *value;
    TKC_TREE_EACH (file, name, value)
        if (strcmp(name, "messages") != 0 && strcmp(name, "tools") != 0)
            return name;
    return NULL;
}

/* Messages from a file: an array, or an object with one under "messages" and perhaps "tools". NULL
 * after reporting. */
static tkc_tree *read_messages(cli_app *app, const char *path, tkc_tree **tools, int *bad)
{
    size_t len;
    char *text = cli_read_all(app, path, &len, bad);
    tkc_tree *v = text ? tkc_tree_read(cli_arena(app), tkc_strn(text, len), TKC_TREE_UNIQUE) : NULL,
             *out = NULL;
    const char *unknown = unknown_member(v);
    cli_row_fault why = { 0 };
    *tools = tkc_tree_is_object(v) ? cli_turns_tools(cli_arena(app), v, &why) : NULL;
    if (unknown || why.text[0])
        *bad = cli_fail(app, "data_invalid", NULL, "%s: %s%.60s%s", path,
                        unknown ? "unknown member \"" : "", unknown ? unknown : why.text,
                        unknown ? "\"" : "");
    else if (tkc_tree_is_array(v))
        out = v;
    else if (tkc_tree_is_array(tkc_tree_get(v, "messages")))
        out = tkc_tree_get(v, "messages");
    else if (text)
        *bad =
            cli_fail(app, "data_invalid", "the file must hold an array of {\"role\", \"content\"}",
                     "%s: not a list of messages", path);
    free(text);
    return out;
}

/* The prompt of these messages and --system. */
static bool render(const cli_app *app, const cli_asked *asked, const tkc_tree *messages,
                   const tkc_tree *tools, prompt *out, tinkc_error *err)
{
    const tkc_tree *whole = cli_with_system(app, cli_arena(app), messages);
    return cli_render_prompt(asked, whole, tools, &out->ids, err);
}

static int text_prompt(cli_app *app, const cli_asked *asked, const char *text, size_t len,
                       prompt *out)
{
    tinkc_error err = { 0 };
    int bad = cli_check_message(app, text, len);
    if (bad)
        return bad;
    out->raw = cli_prompts_raw(app, asked);
    if (out->raw) {
        tinkc_encode_options how = { .add_special = true };
        tinkc_encode_span(asked->tokenizer, text, len, &how, &out->ids, NULL, &err);
    } else {
        render(app, asked, cli_pack(app, "[{s:s,s:s}]", "role", "user", "content", text), NULL, out,
               &err);
    }
    return err.code ? cli_fail_error(app, &err, NULL) : 0;
}

static int read_prompt(cli_app *app, const cli_asked *asked, prompt *out)
{
    int bad = 0;
    size_t len;
    if (cli_given(app, "messages")) {
        tinkc_error err = { 0 };
        tkc_tree *tools, *messages = read_messages(app, cli_text(app, "messages"), &tools, &bad);
        if (messages && !render(app, asked, messages, tools, out, &err))
            bad = cli_fail_error(app, &err, NULL);
        return bad;
    }
    const char *given = cli_given(app, "prompt")                        ? cli_text(app, "prompt")
                        : app->n_args && strcmp(app->args[0], "-") != 0 ? app->args[0]
                                                                        : NULL;
    if (given)
        return text_prompt(app, asked, given, strlen(given), out);
    const char *file = cli_given(app, "prompt-file") ? cli_text(app, "prompt-file") : "-";
    char *text = cli_read_all(app, file, &len, &bad);
    if (text && ids_of(text, &out->ids)) {
        out->raw = true;
        if (cli_on_the_line(app, "system"))
            bad =
                cli_fail(app, "usage", NULL, "%s holds token ids, so --system has no effect", file);
    } else if (text) {
        bad = text_prompt(app, asked, text, cli_strip_newline(text, len), out);
    }
    free(text);
    return bad;
}

/* ---- the answers ---- */

static tkc_tree *prompt_logprobs_json(const cli_app *app, const tinkc_samples *got)
{
    tinkc_f32s p = tinkc_samples_prompt_logprobs(got);
    if (!p.len)
        return tkc_tree_null();
    tkc_tree *out = cli_array(app);
    for (size_t i = 0; i < p.len; i++)
        tkc_tree_add(out, isnan(p.data[i]) ? tkc_tree_null()
                                           : tkc_tree_new_real(cli_arena(app), (double)p.data[i]));
    return out;
}

static tkc_tree *topk_json(const cli_app *app, const tinkc_samples *got, size_t n_prompt)
{
    tkc_tree *all = cli_array(app);
    for (size_t i = 0; i < n_prompt; i++) {
        const int32_t *ids;
        const float *logprobs;
        size_t n = tinkc_samples_topk(got, i, &ids, &logprobs);
        tkc_tree *row = n ? cli_array(app) : tkc_tree_null();
        for (size_t k = 0; k < n; k++)
            tkc_tree_add(row, cli_pack(app, "[i,f]", (int)ids[k], (double)logprobs[k]));
        tkc_tree_add(all, row);
    }
    return all;
}

static tkc_tree *result_json(const cli_app *app, const cli_asked *asked, const prompt *p,
                             const tinkc_samples *got, const tinkc_sampling *how)
{
    tkc_tree *sequences = cli_array(app);
    size_t tokens = 0;
    for (size_t i = 0; i < tinkc_samples_count(got); i++) {
        const tinkc_sequence *seq = tinkc_samples_at(got, i);
        tkc_tree_add(sequences, cli_sequence_json(cli_arena(app), asked, seq, how, !p->raw));
        tokens += seq->tokens.len;
    }
    tkc_tree *v = cli_pack(app, "{s:s,s:s?,s:s?,s:s?,s:o,s:I,s:I}", "type", "sample", "base_model",
                           asked->base_model, "model_path", asked->model_path, "renderer",
                           asked->renderer, "sequences", sequences, "prompt_tokens",
                           (int64_t)p->ids.len, "completion_tokens", (int64_t)tokens);
    tkc_tree_set(v, "prompt_logprobs", prompt_logprobs_json(app, got));
    tkc_tree_set(v, "topk_prompt_logprobs",
                 cli_int(app, "topk-prompt-logprobs") ? topk_json(app, got, p->ids.len)
                                                      : tkc_tree_null());
    return v;
}

static void print_answer(const cli_app *app, const cli_asked *asked, FILE *f,
                         const tinkc_sequence *seq, const tinkc_sampling *how)
{
    char *text = cli_answer_text(asked, seq, how);
    char *shown = text ? cli_thinking(text, cli_text(app, "thinking")) : NULL;
    cli_put_text(app, f, shown ? shown : "", shown ? strlen(shown) : 0);
    fputc('\n', f);
    for (size_t i = 0; cli_flag(app, "logprobs") && i < seq->logprobs.len; i++) {
        char *piece = cli_piece(asked->tokenizer, seq->tokens.data[i]);
        fprintf(f, "%d\t%.4f\t%s\n", (int)seq->tokens.data[i], (double)seq->logprobs.data[i],
                piece ? piece : "");
        free(piece);
    }
    cli_warn_empty(app, shown, seq->tokens.len);
    if (seq->stop_reason == TINKC_STOP_LENGTH)
        cli_warn(app, "the answer was cut at --max-tokens");
    free(shown);
    free(text);
}

static int print_result(cli_app *app, const cli_asked *asked, const prompt *p,
                        const tinkc_samples *got, const tinkc_sampling *how)
{
    const char *path = cli_text(app, "output");
    cli_save save;
    cli_save_begin(&save, path ? path : "-", 0666);
    FILE *f = save.f;
    size_t n = f ? tinkc_samples_count(got) : 0;
    int bad = 0;
    if (f && (app->format == CLI_JSON || app->format == CLI_JSONL)) {
        tkc_tree *v = result_json(app, asked, p, got, how);
        bad = cli_print_json_to(app, f, v);
    } else {
        for (size_t i = 0; i < n; i++) {
            if (n > 1)
                fprintf(f, "%s==> sample %zu <==\n", i ? "\n" : "", i + 1);
            print_answer(app, asked, f, tinkc_samples_at(got, i), how);
        }
    }
    int unsaved = cli_save_end(&save, app, !bad);
    return bad ? bad : unsaved;
}

static void print_piece(const char *text, size_t len, void *user)
{
    cli_put_text(user, stdout, text, len);
    fflush(stdout);
}

/* Tokens as they come. False: the service cannot; ask in the plain way. */
static bool stream_answer(cli_app *app, const cli_asked *asked, const prompt *p,
                          const tinkc_sampling *how, int *bad)
{
    tinkc_error err = { 0 };
    tinkc_tokens answer = { 0 };
    int32_t stop = TINKC_STOP;
    bool can = cli_stream(app, asked, &p->ids, how, print_piece, app, &answer, &stop, &err);
    if (can && answer.len)
        putchar('\n');
    tinkc_sequence seq = { .tokens = { answer.data, answer.len }, .stop_reason = stop };
    char *text = cli_answer_text(asked, &seq, how);
    *bad = cli_stop_signal() ? cli_stop_exit() : err.code ? cli_fail_error(app, &err, NULL) : 0;
    if (can && !*bad)
        cli_warn_empty(app, text, answer.len);
    free(text);
    tinkc_tokens_free(&answer);
    if (can && !*bad && stop == TINKC_STOP_LENGTH)
        cli_warn(app, "the answer was cut at --max-tokens");
    return can;
}

static bool wants_stream(const cli_app *app)
{
    if (app->format == CLI_JSON || app->format == CLI_JSONL || cli_int(app, "num-samples") != 1 ||
        cli_given(app, "output") || cli_flag(app, "logprobs") || cli_flag(app, "prompt-logprobs") ||
        strcmp(cli_text(app, "thinking"), "show") != 0)
        return false;
    return cli_given(app, "stream") ? cli_flag(app, "stream") : app->stdout_tty;
}

static int ask_once(cli_app *app, const cli_asked *asked, const prompt *p, tinkc_sampling *how)
{
    tinkc_error err = { 0 };
    how->prompt_logprobs = cli_flag(app, "prompt-logprobs");
    how->topk_prompt_logprobs = (int32_t)cli_int(app, "topk-prompt-logprobs");
    int bad;
    if (wants_stream(app) && stream_answer(app, asked, p, how, &bad))
        return bad;
    tinkc_future *f = tinkc_sample(asked->sampler, p->ids.data, p->ids.len,
                                   (size_t)cli_int(app, "num-samples"), how, &err);
    if (cli_wait(app, f, "sampling", &err))
        bad = print_result(app, asked, p, tinkc_future_samples(f, 0, &err), how);
    else
        bad = cli_fail_error(app, &err, NULL);
    tinkc_future_free(f);
    return bad;
}

int cli_sample(cli_app *app)
{
    cli_asked asked;
    prompt p = { 0 };
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    if (cli_int(app, "num-samples") < 1 || cli_int(app, "num-samples") > INT32_MAX)
        return cli_fail(app, "usage", NULL, "--num-samples must be at least 1 and fit 31 bits");
    int bad = check_together(app);
    bad = bad ? bad : cli_check_sampling(app);
    if (!bad && cli_given(app, "batch"))
        bad = cli_check_batch(app);
    bad = bad ? bad : cli_open_sampler(app, &asked);
    if (bad)
        return bad;
    bad = check_system(app, &asked);
    if (bad) {
        cli_asked_free(&asked);
        return bad;
    }
    if (cli_given(app, "batch")) {
        bad = cli_sample_batch(app, &asked);
    } else {
        bad = read_prompt(app, &asked, &p);
        if (!bad && p.ids.len == 0)
            bad = cli_fail(app, "data_invalid", NULL, "the prompt is empty");
        if (!bad)
            bad = cli_sampling_options(app, &asked, p.raw, &how);
        if (!bad)
            cli_clamp_tokens(app, &asked, p.ids.len, &how);
        if (!bad)
            bad = ask_once(app, &asked, &p, &how);
        cli_free_sampling(&how);
    }
    tinkc_tokens_free(&p.ids);
    cli_asked_free(&asked);
    return bad;
}

/* ---- logprobs ---- */

static int read_scored(cli_app *app, const cli_asked *asked, tinkc_tokens *ids)
{
    int bad = 0;
    size_t len = 0;
    tinkc_error err = { 0 };
    char *text = cli_given(app, "text")
                     ? strndup(cli_text(app, "text"), len = strlen(cli_text(app, "text")))
                     : cli_read_all(app, app->n_args ? app->args[0] : "-", &len, &bad);
    if (!text)
        return bad;
    if (cli_flag(app, "tokens")) {
        if (!ids_of(text, ids))
            bad = cli_fail(app, "data_invalid", NULL, "not a JSON array of token ids");
    } else if (cli_flag(app, "messages")) {
        tinkc_chat_options how = { .renderer = asked->renderer, .openai_calls = true };
        tinkc_chat_encode(asked->tokenizer, text, &how, ids, &err);
    } else {
        tinkc_encode_options how = { .add_special = true };
        tinkc_encode_span(asked->tokenizer, text, len, &how, ids, NULL, &err);
    }
    free(text);
    return err.code ? cli_fail_error(app, &err, NULL) : bad;
}

/* Over the tokens that have a score and are text: the first has none, and special tokens are not
 * bytes. */
static double bits_per_byte(const cli_asked *asked, const tinkc_tokens *ids, tinkc_f32s scores)
{
    double sum = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < scores.len; i++) {
        if (isnan(scores.data[i]) || tinkc_tokenizer_is_special(asked->tokenizer, ids->data[i]))
            continue;
        sum += (double)scores.data[i];
        bytes += tinkc_tokenizer_bytes(asked->tokenizer, ids->data[i]).len;
    }
    return bytes ? -sum / (log(2) * (double)bytes) : 0;
}

static int show_scores(cli_app *app, const cli_asked *asked, const tinkc_tokens *ids,
                       tinkc_f32s scores)
{
    static const cli_column columns[] = {
        { .name = "token", .header = "Token", .path = "token", .is_default = true },
        { .name = "id", .header = "ID", .path = "id", .is_default = true },
        { .name = "logprob", .header = "Logprob", .path = "logprob", .is_default = true },
        { 0 }
    };
    double sum = 0;
    tkc_tree *items = cli_array(app);
    for (size_t i = 0; i < scores.len; i++) {
        char *piece = cli_piece(asked->tokenizer, ids->data[i]);
        bool none = isnan(scores.data[i]);
        sum += none ? 0 : (double)scores.data[i];
        tkc_tree *row = cli_pack(
            app, "{s:s,s:i,s:o}", "token", piece ? piece : "", "id", (int)ids->data[i], "logprob",
            none ? tkc_tree_null() : tkc_tree_new_real(cli_arena(app), (double)scores.data[i]));
        tkc_tree_add(items, row);
        free(piece);
    }
    int bad = 0;
    double bpb = bits_per_byte(asked, ids, scores);
    if (app->format != CLI_JSON && (cli_flag(app, "sum") || cli_flag(app, "bpb"))) {
        char text[CLI_SHORT_TEXT];
        cli_format_number(cli_flag(app, "sum") ? sum : bpb, text);
        puts(text);
    } else {
        tkc_tree *head = cli_pack(app, "{s:f,s:f}", "sum", sum, "bits_per_byte", bpb);
        cli_list list = { .key = "tokens", .columns = columns, .head = head, .no_counts = true };
        bad = cli_print_list(app, &list, items);
    }
    return bad;
}

int cli_logprobs(cli_app *app)
{
    cli_asked asked;
    tinkc_tokens ids = { 0 };
    tinkc_error err = { 0 };
    if (cli_given(app, "text") && app->n_args)
        return cli_fail(app, "usage", NULL, "give either --text or a file");
    if (app->n_args && strcmp(app->args[0], "-") != 0 && access(app->args[0], F_OK) != 0)
        return cli_fail(app, "not_found", "to score a text itself, write --text TEXT",
                        "there is no such file: %s", app->args[0]);
    if (cli_flag(app, "tokens") && cli_flag(app, "messages"))
        return cli_fail(app, "usage", NULL, "give either --tokens or --messages");
    if (cli_flag(app, "sum") && cli_flag(app, "bpb"))
        return cli_fail(app, "usage", "--json has both", "give either --sum or --bpb");
    int bad = cli_open_sampler(app, &asked);
    if (bad)
        return bad;
    bad = read_scored(app, &asked, &ids);
    tinkc_future *f = bad ? NULL : tinkc_logprobs(asked.sampler, ids.data, ids.len, &err);
    if (!bad) {
        if (cli_wait(app, f, "scoring", &err))
            bad = show_scores(app, &asked, &ids, tinkc_future_logprobs(f, 0, &err));
        else
            bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    tinkc_tokens_free(&ids);
    cli_asked_free(&asked);
    return bad;
}
