/* sample_batch.c - `tinkc sample --batch`: many prompts, up to --jobs in flight, order kept.
 *
 * Lines are read as places become free, so the input may be larger than memory. After an
 * interrupt no new one starts and what has come back is written; signals are caught since the
 * sampler was waited for.
 */
#include "cli/sample/sample_batch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/data/dataset.h"
#include "cli/output/out.h"
#include "cli/data/row_turns.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

typedef struct slot {
    tkc_arena arena; /* of the line and its answer */
    tkc_tree *line;  /* the input object */
    tinkc_future *future;
    tinkc_sampling how;
    const char **stops; /* the line's own; the texts are in `line` */
    char *error;        /* found before anything was sent */
    bool chat;          /* the prompt was rendered */
    bool used;
} slot;

typedef struct batch {
    cli_app *app;
    const cli_asked *asked;
    tinkc_sampling how;
    FILE *in, *out;
    slot *slots;
    size_t n_slots, first, n_used; /* a ring in the order of the input */
    tkc_tree *have;                /* --resume: ids that the output has */
    size_t n_read, n_done, n_failed;
    bool ended;
    bool lost; /* the service stopped answering: the rest is not waited for */
} batch;

/* What a line may have. "metadata" is only copied to the output, and so are "answer" and "choices" of
 * lines for `tinkc eval`; "sequences" and "error" are of an earlier output that is asked again. */
static const char *const members[] = { "id",         "prompt",      "messages", "tokens", "tools",
                                       "max_tokens", "temperature", "top_p",    "top_k",  "seed",
                                       "stop",       "num_samples", "metadata", "answer", "choices",
                                       "sequences",  "error",       NULL };

#define UNKNOWN_MEMBER "unknown member \"%.*s\"; put what is only to be copied under \"metadata\""

static bool is_member(cli_span name)
{
    for (const char *const *m = members; *m; m++)
        if (cli_span_is(name, *m))
            return true;
    return false;
}

/* Length of a name in a message: whole characters. */
static int shown(cli_span name)
{
    enum { MOST = 60 };
    size_t n = name.len < MOST ? name.len : MOST;
    while (n && n < name.len && ((unsigned char)name.data[n] & 0xC0) == 0x80)
        n--;
    return (int)n;
}

/* Of prompt, messages and tokens only one can be asked. False with *why. */
static bool one_question(const tkc_tree *line, char why[CLI_WHY])
{
    static const char *const forms[] = { "tokens", "messages", "prompt" };
    const char *found = NULL;
    for (size_t i = 0; i < 3; i++) {
        const tkc_tree *v = tkc_tree_get(line, forms[i]);
        if (!v || tkc_tree_is_null(v))
            continue;
        if (found)
            return (void)snprintf(why, CLI_WHY, "give either %s or %s", found, forms[i]), false;
        found = forms[i];
    }
    return true;
}

/* What a line asks, with --system. */
static tkc_tree *line_messages(const batch *b, slot *s)
{
    const tkc_tree *given = tkc_tree_get(s->line, "messages");
    const char *text = tkc_tree_get_text(s->line, "prompt");
    const tkc_tree *own =
        tkc_tree_is_array(given) ? given
        : text ? tkc_tree_pack(&s->arena, "[{s:s,s:s}]", "role", "user", "content", text)
               : tkc_tree_array(&s->arena); /* token ids */
    return cli_with_system(b->app, &s->arena, own);
}

static bool is_chat(const batch *b, const tkc_tree *line)
{
    return tkc_tree_is_array(tkc_tree_get(line, "messages")) ||
           (tkc_tree_is_text(tkc_tree_get(line, "prompt")) && !cli_prompts_raw(b->app, b->asked));
}

static void render(const batch *b, slot *s, tinkc_tokens *ids, tinkc_error *err)
{
    cli_row_fault why = { 0 };
    tkc_tree *tools = cli_turns_tools(&s->arena, s->line, &why);
    tkc_tree *asked = line_messages(b, s);
    s->chat = true;
    if (why.text[0])
        tinkc_error_set(err, TINKC_E_ARGUMENT, why.text);
    else
        cli_render_prompt(b->asked, asked, tools, ids, err);
}

/* The prompt of one line; false with a text in s->error. */
static bool line_prompt(const batch *b, slot *s, tinkc_tokens *ids)
{
    const tkc_tree *line = s->line;
    const tkc_tree *tokens = tkc_tree_get(line, "tokens");
    const char *text = tkc_tree_get_text(line, "prompt");
    tinkc_error err = { 0 };
    const tkc_tree *tools = tkc_tree_get(line, "tools");
    if (tools && !tkc_tree_is_null(tools) && !is_chat(b, line)) {
        tinkc_error_set(&err, TINKC_E_ARGUMENT, "tools: only a chat prompt can offer them");
    } else if (tkc_tree_is_array(tokens)) {
        if (tkc_tree_length(tokens) && !cli_token_list(tokens, ids))
            tinkc_error_set(&err, TINKC_E_ARGUMENT, "tokens: not a list of token ids");
    } else if (is_chat(b, line)) {
        render(b, s, ids, &err);
    } else if (text) {
        tinkc_encode_options how = { .add_special = true };
        tinkc_encode_span(b->asked->tokenizer, text, strlen(text), &how, ids, NULL, &err);
    } else {
        tinkc_error_set(&err, TINKC_E_ARGUMENT, "a line needs prompt, messages or tokens");
    }
    if (!err.code && ids->len == 0)
        tinkc_error_set(&err, TINKC_E_ARGUMENT, "the prompt is empty");
    if (err.code)
        s->error = strdup(err.message);
    return !err.code;
}

static bool line_samples(const batch *b, const tkc_tree *line, size_t *out, char why[CLI_WHY])
{
    const tkc_tree *n = tkc_tree_get(line, "num_samples");
    *out = (size_t)cli_int(b->app, "num-samples");
    if (!n || tkc_tree_is_null(n))
        return true;
    if (!tkc_tree_is_i64(n) || tkc_tree_i64(n) < 1 || tkc_tree_i64(n) > INT32_MAX)
        return (void)snprintf(why, CLI_WHY, "num_samples: not a whole number above 0"), false;
    *out = (size_t)tkc_tree_i64(n);
    return true;
}

/* "stop" of a line: a text or a list of texts, instead of the usual ones. */
static bool line_stops(slot *s, char why[CLI_WHY])
{
    const tkc_tree *given = tkc_tree_get(s->line, "stop");
    size_t n = tkc_tree_is_array(given) ? tkc_tree_length(given) : tkc_tree_is_text(given), at = 0;
    bool texts =
        !given || tkc_tree_is_null(given) || tkc_tree_is_text(given) || tkc_tree_is_array(given);
    for (size_t i = 0; i < tkc_tree_length(given); i++)
        texts = texts && tkc_tree_is_text(tkc_tree_at(given, i));
    if (!texts)
        return (void)snprintf(why, CLI_WHY, "stop: neither a text nor a list of texts"), false;
    s->stops = n ? calloc(n + 1, sizeof *s->stops) : NULL;
    if (!s->stops)
        return true;
    if (tkc_tree_is_text(given))
        s->stops[at++] = tkc_tree_text(given);
    for (size_t i = 0; i < tkc_tree_length(given); i++)
        s->stops[at++] = tkc_tree_text(tkc_tree_at(given, i));
    s->how.stop = s->stops;
    s->how.stop_tokens = NULL;
    s->how.n_stop_tokens = 0;
    return true;
}

static slot *next_slot(const batch *b)
{
    return &b->slots[(b->first + b->n_used) % b->n_slots];
}

/* The line is of the next slot's arena. */
static void start(batch *b, tkc_tree *line)
{
    slot *s = next_slot(b);
    tinkc_tokens ids = { 0 };
    tinkc_error err = { 0 };
    b->n_used++;
    s->line = line;
    s->how = b->how;
    s->used = true;
    char why[CLI_WHY];
    size_t samples = 0;
    if (!one_question(line, why) || !cli_sampling_members(line, &s->how, why) ||
        !line_samples(b, line, &samples, why) || !line_stops(s, why))
        s->error = strdup(why);
    else if (line_prompt(b, s, &ids)) {
        s->future = tinkc_sample(b->asked->sampler, ids.data, ids.len, samples, &s->how, &err);
        if (err.code)
            s->error = strdup(err.message);
    }
    tinkc_tokens_free(&ids);
}

/* --as-conversation: the input's messages and the answer, as training data. */
static tkc_tree *conversation(const batch *b, slot *s, const tinkc_sequence *seq)
{
    tkc_tree *messages = line_messages(b, s);
    tkc_tree *kept = tkc_tree_array(&s->arena);
    for (size_t i = 0; i < tkc_tree_length(messages); i++) {
        tkc_tree *m = tkc_tree_at(messages, i);
        const char *role = tkc_tree_get_text(m, "role");
        if (!cli_flag(b->app, "drop-system") || !role || strcmp(role, "system") != 0)
            tkc_tree_add(kept, m);
    }
    char *text = cli_answer_text(b->asked, seq, &s->how);
    tkc_tree_add(kept, tkc_tree_pack(&s->arena, "{s:s,s:s}", "role", "assistant", "content",
                                     text ? text : ""));
    free(text);
    /* The id goes along, so that --resume knows what is done. */
    return tkc_tree_pack(&s->arena, "{s:o,s:o*,s:o*,s:o*}", "messages", kept, "tools",
                         tkc_tree_get(s->line, "tools"), "id", tkc_tree_get(s->line, "id"),
                         "metadata", tkc_tree_get(s->line, "metadata"));
}

static void write_line(batch *b, const tkc_tree *v)
{
    cli_write_json(b->out, v, 0);
    fputc('\n', b->out);
}

static void write_slot(batch *b, slot *s, const tinkc_samples *got, const char *error)
{
    if (got && cli_flag(b->app, "as-conversation")) {
        for (size_t i = 0; i < tinkc_samples_count(got); i++)
            write_line(b, conversation(b, s, tinkc_samples_at(got, i)));
        return;
    }
    tkc_tree *v = tkc_tree_copy(&s->arena, s->line), *sequences = tkc_tree_array(&s->arena);
    tkc_tree_remove(v, "sequences");
    tkc_tree_remove(v, "error");
    for (size_t i = 0; i < tinkc_samples_count(got); i++)
        tkc_tree_add(sequences, cli_sequence_json(&s->arena, b->asked, tinkc_samples_at(got, i),
                                                  &s->how, s->chat));
    if (error)
        tkc_tree_set_text(v, "error", error);
    else
        tkc_tree_set(v, "sequences", sequences);
    write_line(b, v);
}

/* Ends one: waits for it, writes it, frees its place. After a signal only what is here already is
 * written. */
static void finish(batch *b, size_t index)
{
    slot *s = &b->slots[index];
    tinkc_error err = { 0 };
    bool dropped = (b->lost || cli_stop_signal()) && !s->error && !tinkc_future_done(s->future);
    if (dropped)
        tinkc_future_cancel(s->future);
    bool ok = !dropped && !s->error && cli_wait(b->app, s->future, NULL, &err);
    if (!dropped && (ok || s->error || !cli_stop_signal())) {
        write_slot(b, s, ok ? tinkc_future_samples(s->future, 0, &err) : NULL,
                   ok         ? NULL
                   : s->error ? s->error
                              : err.message);
        b->n_done++;
        b->n_failed += !ok;
        b->lost = b->lost || err.code == TINKC_E_CONNECTION;
        b->ended = b->ended || b->lost || ferror(b->out);
    }
    tinkc_future_free(s->future);
    free(s->error);
    free(s->stops);
    tkc_arena_free(&s->arena);
    *s = (slot){ 0 };
}

static bool already_there(const batch *b, const tkc_tree *line)
{
    const tkc_tree *id = tkc_tree_get(line, "id");
    char *key = id ? cli_json_print(id, TKC_TREE_SPACED) : NULL;
    bool there = key && tkc_tree_get(b->have, key);
    free(key);
    return there;
}

static const char *unknown_member(const tkc_tree *line)
{
    const char *name;
    tkc_tree *value;
    TKC_TREE_EACH (line, name, value)
        if (!is_member((cli_span){ name, strlen(name) }))
            return name;
    return NULL;
}

/* Reads the next line and starts it. False at the end or at a broken line (then reported). */
static bool read_one(batch *b, int *bad)
{
    char *text = NULL;
    size_t cap = 0;
    tkc_tree *line = NULL;
    slot *s = next_slot(b);
    while (!line && getline(&text, &cap, b->in) > 0) {
        tinkc_error why = { 0 };
        b->n_read++;
        tkc_arena_reset(&s->arena);
        if (text[strspn(text, " \t\r\n")] == '\0')
            continue;
        bool mark = b->n_read == 1 && strncmp(text, "\xEF\xBB\xBF", 3) == 0;
        line = tkc_tree_parse(&s->arena, tkc_str(text + (mark ? 3 : 0)), TKC_TREE_UNIQUE, &why);
        const char *unknown = unknown_member(line);
        if (!tkc_tree_is_object(line) || unknown) {
            char fault[CLI_WHY];
            const char *name = unknown ? unknown : "";
            (void)snprintf(fault, sizeof fault, UNKNOWN_MEMBER,
                           shown((cli_span){ name, strlen(name) }), name);
            *bad = cli_fail(b->app, "data_invalid", NULL, "%s:%zu: %s", cli_text(b->app, "batch"),
                            b->n_read,
                            unknown ? fault
                            : line  ? "not an object"
                                    : cli_json_why(&why));
            line = NULL;
            break;
        }
        if (!tkc_tree_get(line, "id")) /* its place in the file, from 0 */
            tkc_tree_set_i64(line, "id", (int64_t)b->n_read - 1);
        if (already_there(b, line))
            line = NULL;
    }
    free(text);
    if (line)
        start(b, line);
    else
        tkc_arena_free(&s->arena);
    return line != NULL;
}

/* --resume: the ids that the output has without an error. *torn: its last line has no end. */
static void read_have(batch *b, const char *path, bool *torn)
{
    FILE *old = fopen(path, "re");
    char *text = NULL;
    size_t cap = 0;
    tkc_arena arena = { 0 };
    for (ssize_t n; old && (n = getline(&text, &cap, old)) > 0;) {
        const tkc_tree *v = tkc_tree_read(&arena, tkc_str(text), 0), *id = tkc_tree_get(v, "id");
        char *key = id && !tkc_tree_get(v, "error") ? cli_json_print(id, TKC_TREE_SPACED) : NULL;
        if (key)
            tkc_tree_set_bool(b->have, key, true);
        *torn = text[n - 1] != '\n';
        free(key);
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    free(text);
    if (old)
        fclose(old);
}

/* A file that can be read twice is read once before. */
int cli_check_batch(cli_app *app)
{
    struct stat st;
    cli_data_file f;
    cli_lines lines;
    cli_span line;
    cli_bad_lines broken;
    const char *path = cli_text(app, "batch");
    if (strcmp(path, "-") == 0 || stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    int bad = cli_data_open(app, path, &f);
    if (bad)
        return bad;
    cli_bad_lines_begin(&broken, app);
    cli_lines_open(&lines, &f);
    while (cli_lines_next(&lines, &line)) {
        cli_scan scan;
        cli_span name, unknown = { NULL, 0 };
        cli_scan_open(&scan, line.data, line.len);
        bool object = cli_scan_peek(&scan) == '{';
        if (!object)
            cli_scan_skip(&scan);
        else if (cli_scan_object(&scan))
            while (cli_scan_key(&scan, &name)) {
                if (!unknown.data && !is_member(name))
                    unknown = name;
                cli_scan_skip(&scan);
            }
        bool whole = cli_scan_close(&scan);
        char fault[CLI_WHY];
        (void)snprintf(fault, sizeof fault, UNKNOWN_MEMBER, shown(unknown),
                       unknown.data ? unknown.data : "");
        if (!whole || !object)
            cli_bad_line(&broken, path, lines.number, "json",
                         scan.fault ? scan.fault : "not an object");
        else if (unknown.data)
            cli_bad_line(&broken, path, lines.number, "member", fault);
    }
    cli_data_close(&f);
    return cli_bad_lines_end(&broken, path, "nothing was sent");
}

static int open_files(batch *b)
{
    cli_app *app = b->app;
    const char *in = cli_text(app, "batch"), *out = cli_text(app, "output");
    bool file = out && strcmp(out, "-") != 0, resume = cli_flag(app, "resume"), torn = false;
    if (resume && !file)
        return cli_fail(app, "usage", NULL, "--resume needs --output FILE");
    b->in = strcmp(in, "-") == 0 ? stdin : fopen(in, "re");
    if (!b->in)
        return cli_fail(app, errno == ENOENT ? "not_found" : "local_io", NULL, "%s: %s", in,
                        tkc_errno_text(errno));
    b->have = cli_object(app);
    if (resume)
        read_have(b, out, &torn);
    b->out = file ? fopen(out, resume ? "ae" : "we") : stdout;
    if (b->out && torn)
        fputc('\n', b->out);
    return b->out ? 0 : cli_fail(app, "local_io", NULL, "%s: %s", out, tkc_errno_text(errno));
}

/* Which place to end next: the oldest, or with --unordered one that is done, as soon as there is
 * one. */
static size_t choose(const batch *b)
{
    enum { SLICE_MS = 20 };
    while (cli_flag(b->app, "unordered") && !cli_stop_signal() &&
           cli_now_ms() <= b->app->deadline_ms) {
        tinkc_error slice = { 0 };
        for (size_t i = 0; i < b->n_used; i++) {
            const slot *s = &b->slots[(b->first + i) % b->n_slots];
            if (s->used && (s->error || tinkc_future_done(s->future)))
                return (b->first + i) % b->n_slots;
        }
        (void)tinkc_future_wait(b->slots[b->first].future, SLICE_MS, &slice);
    }
    return b->first;
}

static int run_batch(batch *b)
{
    int bad = 0;
    cli_progress bar;
    cli_progress_begin(&bar, b->app, "Sampling", -1, false);
    for (;;) {
        while (!bad && !b->ended && b->n_used < b->n_slots && !cli_stop_signal())
            b->ended = !read_one(b, &bad);
        if (b->n_used == 0)
            break;
        size_t at = choose(b);
        if (b->slots[at].used)
            finish(b, at);
        while (b->n_used && !b->slots[b->first].used) {
            b->first = (b->first + 1) % b->n_slots;
            b->n_used--;
        }
        cli_progress_step(&bar, (int64_t)b->n_done, -1, NULL);
    }
    cli_progress_end(&bar);
    if (cli_stop_signal())
        return cli_stop_exit();
    if (!bad && b->lost)
        bad = cli_fail(b->app, "network", "run it again with --resume to continue",
                       "the service does not answer; stopped after %zu lines", b->n_done);
    if (!bad && b->n_failed)
        bad = cli_fail(b->app, b->n_failed == b->n_done ? "request_failed" : "partial_failure",
                       NULL, "%zu of %zu lines failed", b->n_failed, b->n_done);
    return bad;
}

int cli_sample_batch(cli_app *app, const cli_asked *asked)
{
    batch b = { .app = app, .asked = asked };
    b.n_slots = (size_t)cli_int(app, "jobs");
    b.slots = calloc(b.n_slots, sizeof *b.slots);
    int bad = b.slots ? open_files(&b) : cli_fail(app, "internal", NULL, "out of memory");
    if (!bad)
        bad = cli_sampling_options(app, asked, cli_flag(app, "raw"), &b.how);
    if (!bad)
        bad = run_batch(&b);
    if (b.out && b.out != stdout) {
        bool whole = !ferror(b.out);
        whole = fclose(b.out) == 0 && whole;
        if (!whole && !bad)
            bad = cli_fail(app, "local_io", NULL, "%s: %s", cli_text(app, "output"),
                           tkc_errno_text(errno));
    }
    if (b.in && b.in != stdin)
        fclose(b.in);
    cli_free_sampling(&b.how);
    free(b.slots);
    return bad;
}
