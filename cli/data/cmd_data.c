/* cmd_data.c - `tinkc data`: check, stats, preview, split. Converting is in cmd_convert.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/data/conversations.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/data/row_forms.h"
#include "cli/data/shuffle.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_on.h"

/* ---- problems ---- */

typedef struct report {
    const cli_app *app;
    tkc_tree *problems;
    size_t errors, warnings;
} report;

static void note_problem(const char *file, size_t line, int level, const char *code,
                         const char *message, void *user)
{
    report *r = user;
    bool error = level == CLI_LEVEL_ERROR;
    r->errors += error;
    r->warnings += !error;
    if (r->problems) {
        tkc_tree_add(r->problems,
                     cli_pack(r->app, "{s:o,s:I,s:s,s:s,s:o}", "path",
                              cli_json_text(cli_arena(r->app), file), "line", (int64_t)line,
                              "level", error ? "error" : "warning", "code", code, "message",
                              cli_json_text(cli_arena(r->app), message)));
        return;
    }
    char *safe = cli_escape(message), *name = cli_escape(file);
    printf("%s:%zu: %s: %s\n", name ? name : "", line, error ? "error" : "warning",
           safe ? safe : "");
    free(safe);
    free(name);
}

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

static bool json_wanted(const cli_app *app)
{
    return app->format == CLI_JSON || app->format == CLI_JSONL;
}

/* Fills the options of a model's view of the data; tokenizer NULL without -m. */
static int model_view(cli_app *app, cli_example_options *how, tinkc_tokenizer **t)
{
    int bad = 0;
    tinkc_error err = { 0 };
    const char *what =
        cli_find_option(app->command, "train-on", 8) ? cli_text(app, "train-on") : NULL;
    *how = (cli_example_options){ .mean = true };
    if (what)
        bad = cli_train_on(app, what, &how->train_on);
    if (cli_find_option(app->command, "max-length", 10))
        how->max_length = (size_t)cli_int(app, "max-length");
    if (!bad && cli_given(app, "renderer") && !cli_given(app, "model"))
        bad = cli_fail(app, "usage", "add -m MODEL", "--renderer needs a model's tokenizer");
    if (bad || !cli_given(app, "model"))
        return bad;
    *t = cli_tokenizer(app, cli_text(app, "model"), &err);
    how->tokenizer = *t;
    how->renderer = cli_renderer(app, cli_text(app, "model"));
    return *t ? 0 : cli_fail_error(app, &err, cli_text(app, "model"));
}

/* What is going on in one file. */
typedef struct file_report {
    report *r;
    const char *path;
    size_t good, tokens;
    tkc_tree
        *unused; /* what was said of members that are not used: said for their first line only */
} file_report;

static bool was_said(file_report *f, const cli_said *said)
{
    if (strcmp(said->code, "unused") != 0)
        return false;
    bool known = tkc_tree_get(f->unused, said->message) != NULL;
    tkc_tree_set_bool(f->unused, said->message, true);
    return known;
}

static void check_block(cli_block *b, size_t before, void *user)
{
    file_report *f = user;
    for (size_t i = 0; i < b->n_said; i++)
        if (!was_said(f, &b->said[i]))
            note_problem(f->path, before + b->said[i].line, b->said[i].level, b->said[i].code,
                         b->said[i].message, f->r);
    f->good += b->n_good;
    f->tokens += b->set.n_tokens;
}

static int check_file(cli_app *app, report *r, const char *path, const cli_example_options *how,
                      tkc_tree *files)
{
    cli_data_file f;
    file_report result = { .r = r, .path = path };
    size_t lines, errors = r->errors, warnings = r->warnings;
    int bad = cli_data_open(app, path, &f);
    if (bad)
        return bad;
    result.unused = cli_object(app);
    cli_convos convos = {
        .app = app, .file = &f, .label = path, .how = how, .deliver = check_block, .user = &result
    };
    bad = cli_convos_read(&convos, &lines);
    if (!bad && !result.good && r->errors == errors)
        note_problem(path, 0, CLI_LEVEL_ERROR, "empty",
                     lines ? "there are only blank lines" : "the file is empty", r);
    tkc_tree *v = cli_pack(
        app, "{s:o,s:I,s:I,s:o,s:I,s:I}", "path", cli_json_text(cli_arena(app), path), "lines",
        (int64_t)lines, "conversations", (int64_t)result.good, "tokens",
        how->tokenizer ? tkc_tree_new_i64(cli_arena(app), (int64_t)result.tokens) : tkc_tree_null(),
        "errors", (int64_t)(r->errors - errors), "warnings", (int64_t)(r->warnings - warnings));
    tkc_tree_add(files, v);
    if (!bad && !json_wanted(app))
        cli_note(app, "%s: %zu conversation%s, %zu error%s, %zu warning%s", path, result.good,
                 plural(result.good), r->errors - errors, plural(r->errors - errors),
                 r->warnings - warnings, plural(r->warnings - warnings));
    cli_data_close(&f);
    return bad;
}

int cli_data_check(cli_app *app)
{
    report r = { .app = app, .problems = json_wanted(app) ? cli_array(app) : NULL };
    cli_example_options how;
    tinkc_tokenizer *t = NULL;
    tkc_tree *files = cli_array(app);
    int bad = model_view(app, &how, &t);
    for (size_t i = 0; !bad && i < app->n_args; i++)
        bad = check_file(app, &r, app->args[i], &how, files);
    if (!bad && r.problems) {
        tkc_tree *v = cli_pack(app, "{s:o,s:o}", "files", files, "problems", r.problems);
        bad = cli_print_json(app, v);
    }
    tinkc_tokenizer_free(t);
    return bad ? bad : r.errors ? CLI_EXIT_CHECK : 0;
}

/* ---- stats ---- */

typedef struct stats {
    size_t conversations, duplicates, broken;
    cli_convo sum;
    uint64_t *hashes;
    size_t n_hashes, cap_hashes;
    size_t *lengths;
    size_t n_lengths, cap_lengths;
    bool no_memory;
} stats;

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int compare_size(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* Room for `more` behind the n items of `size` bytes at *items. */
static bool make_room(void *items, size_t n, size_t more, size_t *cap, size_t size)
{
    void *old, *grown;
    if (n + more <= *cap)
        return true;
    size_t wanted = *cap * 2 > n + more ? *cap * 2 : n + more;
    memcpy(&old, items, sizeof old);
    grown = realloc(old, wanted * size);
    if (!grown)
        return false;
    memcpy(items, &grown, sizeof grown);
    *cap = wanted;
    return true;
}

static void remember_block(cli_block *b, size_t before, void *user)
{
    stats *s = user;
    (void)before;
    s->conversations += b->n_good;
    s->sum.n_messages += b->sum.n_messages;
    s->sum.n_assistant += b->sum.n_assistant;
    s->sum.n_user += b->sum.n_user;
    s->sum.n_system += b->sum.n_system;
    s->sum.n_tool += b->sum.n_tool;
    s->broken += b->n_broken;
    if (!make_room(&s->hashes, s->n_hashes, b->n_good, &s->cap_hashes, sizeof *s->hashes) ||
        !make_room(&s->lengths, s->n_lengths, b->set.n, &s->cap_lengths, sizeof *s->lengths)) {
        s->no_memory = true;
        return;
    }
    if (b->n_good)
        memcpy(s->hashes + s->n_hashes, b->hashes, b->n_good * sizeof *s->hashes);
    s->n_hashes += b->n_good;
    for (size_t i = 0; i < b->set.n; i++)
        s->lengths[s->n_lengths++] = b->set.items[i].len;
}

static int stats_file(cli_app *app, const char *path, const cli_example_options *how, stats *s)
{
    cli_data_file f;
    size_t lines;
    int bad = cli_data_open(app, path, &f);
    if (bad)
        return bad;
    cli_convos convos = { .app = app,
                          .file = &f,
                          .label = path,
                          .how = how,
                          .hashes = true,
                          .deliver = remember_block,
                          .user = s };
    bad = cli_convos_read(&convos, &lines);
    if (!bad && s->no_memory)
        bad = cli_fail(app, "internal", NULL, "out of memory");
    cli_data_close(&f);
    return bad;
}

static void add_count(const cli_app *app, tkc_tree *rows, tkc_tree *v, const char *label,
                      const char *key, size_t n)
{
    char text[CLI_SHORT_TEXT];
    cli_format_count((int64_t)n, text);
    cli_row(app, rows, label, text);
    tkc_tree_set_i64(v, key, (int64_t)n);
}

static void add_percentiles(const cli_app *app, tkc_tree *rows, tkc_tree *v, stats *s)
{
    static const int points[] = { 50, 90, 99, 100 };
    size_t total = 0;
    if (!s->n_lengths)
        return;
    qsort(s->lengths, s->n_lengths, sizeof *s->lengths, compare_size);
    for (size_t i = 0; i < s->n_lengths; i++)
        total += s->lengths[i];
    add_count(app, rows, v, "Tokens", "tokens", total);
    for (size_t i = 0; i < 4; i++) {
        char label[32], key[32];
        (void)snprintf(label, sizeof label, "Tokens, %d%%", points[i]);
        (void)snprintf(key, sizeof key, "tokens_p%d", points[i]);
        add_count(app, rows, v, label, key,
                  s->lengths[(s->n_lengths - 1) * (size_t)points[i] / 100]);
    }
}

int cli_data_stats(cli_app *app)
{
    stats s = { 0 };
    cli_example_options how;
    tinkc_tokenizer *t = NULL;
    int bad = model_view(app, &how, &t);
    for (size_t i = 0; !bad && i < app->n_args; i++)
        bad = stats_file(app, app->args[i], &how, &s);
    if (!bad) {
        tkc_tree *rows = cli_array(app), *v = cli_object(app);
        if (s.n_hashes)
            qsort(s.hashes, s.n_hashes, sizeof *s.hashes, compare_u64);
        for (size_t i = 1; i < s.n_hashes; i++)
            s.duplicates += s.hashes[i] == s.hashes[i - 1];
        add_count(app, rows, v, "Conversations", "conversations", s.conversations);
        add_count(app, rows, v, "Broken lines", "broken_lines", s.broken);
        add_count(app, rows, v, "Duplicates", "duplicates", s.duplicates);
        add_count(app, rows, v, "Messages", "messages", s.sum.n_messages);
        add_count(app, rows, v, "  user", "user_messages", s.sum.n_user);
        add_count(app, rows, v, "  assistant", "assistant_messages", s.sum.n_assistant);
        add_count(app, rows, v, "  system", "system_messages", s.sum.n_system);
        add_count(app, rows, v, "  tool", "tool_messages", s.sum.n_tool);
        add_percentiles(app, rows, v, &s);
        bad = cli_show_record(app, NULL, rows, v);
    }
    free(s.hashes);
    free(s.lengths);
    tinkc_tokenizer_free(t);
    return bad;
}

/* ---- preview ---- */

static void print_message(const cli_app *app, const tkc_tree *m)
{
    const tkc_tree *content = tkc_tree_get(m, "content");
    const char *role = tkc_tree_get_text(m, "role");
    char *other = tkc_tree_is_text(content) ? NULL : cli_json_print(content, TKC_TREE_SPACED);
    const char *text = other ? other : tkc_tree_text(content);
    cli_put_text(app, stdout, role ? role : "?", strlen(role ? role : "?"));
    fputs(": ", stdout);
    cli_put_text(app, stdout, text ? text : "", strlen(text ? text : ""));
    putchar('\n');
    free(other);
}

/* The first lines as they are; in JSON as items of `out`. */
static int preview_plain(cli_app *app, const cli_data_file *f, tkc_tree *out)
{
    cli_lines lines;
    cli_span line;
    cli_bad_lines broken;
    cli_bad_lines_begin(&broken, app);
    cli_lines_open(&lines, f);
    for (int64_t n = cli_int(app, "number"); n > 0 && cli_lines_next(&lines, &line); n--) {
        const tkc_tree *v = tkc_tree_read(cli_arena(app), tkc_strn(line.data, line.len), 0);
        cli_row_fault why = { "" };
        const tkc_tree *whole = v ? cli_row_conversation(cli_arena(app), v, NULL, &why) : NULL;
        const tkc_tree *messages = tkc_tree_get(whole, "messages");
        if (!messages)
            cli_bad_line(&broken, f->path, lines.number, "messages",
                         !v          ? "not JSON"
                         : *why.text ? why.text
                                     : "there is no list of \"messages\"");
        else if (out)
            tkc_tree_add(out, cli_pack(app, "{s:I,s:o}", "line", (int64_t)lines.number, "messages",
                                       messages));
        for (size_t i = 0; !out && i < tkc_tree_length(messages); i++)
            print_message(app, tkc_tree_at(messages, i));
        if (messages && !out)
            putchar('\n');
    }
    return cli_bad_lines_end(&broken, f->path, "see: tinkc data check");
}

static tkc_tree *example_json(tkc_arena *arena, const tinkc_tokenizer *t, const cli_example *e)
{
    tkc_tree *tokens = tkc_tree_array(arena), *weights = tkc_tree_array(arena);
    tinkc_text text = { 0 };
    tinkc_decode_span(t, e->ids, e->len, NULL, &text, NULL);
    for (size_t i = 0; i < e->len; i++) {
        tkc_tree_add_i64(tokens, e->ids[i]);
        tkc_tree_add_real(weights, (double)e->weights[i]);
    }
    tkc_tree *v = tkc_tree_pack(arena, "{s:I,s:o,s:o,s:o}", "line", (int64_t)e->line, "text",
                                cli_json_text(arena, text.data ? text.data : ""), "tokens", tokens,
                                "weights", weights);
    tinkc_text_free(&text);
    return v;
}

/* The first lines as the model reads them. */
static int preview_rendered(cli_app *app, const cli_data_file *f, const cli_example_options *how,
                            tkc_tree *out)
{
    cli_examples set = { 0 };
    cli_lines lines;
    cli_span line;
    cli_bad_lines broken;
    cli_bad_lines_begin(&broken, app);
    cli_lines_open(&lines, f);
    for (int64_t n = cli_int(app, "number"); n > 0 && cli_lines_next(&lines, &line); n--) {
        tinkc_error err = { 0 };
        cli_row_fault why;
        char *owned;
        line = cli_row_line(line, &owned, &why);
        if (*why.text)
            cli_bad_line(&broken, f->path, lines.number, "form", why.text);
        else if (!cli_examples_add(&set, how, line, (uint32_t)lines.number, &err))
            cli_bad_line(&broken, f->path, lines.number, "render", err.message);
        free(owned);
    }
    for (size_t i = 0; i < set.n; i++) {
        if (out)
            tkc_tree_add(out, example_json(cli_arena(app), how->tokenizer, &set.items[i]));
        else
            cli_preview(app, stdout, how->tokenizer, &set.items[i]);
    }
    cli_examples_free(&set);
    return cli_bad_lines_end(&broken, f->path, "see: tinkc data check");
}

int cli_data_preview(cli_app *app)
{
    cli_data_file f;
    cli_example_options how;
    tinkc_tokenizer *t = NULL;
    int bad = model_view(app, &how, &t);
    if (!bad)
        bad = cli_data_open(app, app->args[0], &f);
    if (bad)
        return tinkc_tokenizer_free(t), bad;
    tkc_tree *out = json_wanted(app) ? cli_array(app) : NULL;
    how.mean = false;
    bad = t ? preview_rendered(app, &f, &how, out) : preview_plain(app, &f, out);
    if (!bad && out) {
        tkc_tree *v = cli_pack(app, "{s:o}", "examples", out);
        bad = cli_print_json(app, v);
    }
    cli_data_close(&f);
    tinkc_tokenizer_free(t);
    return bad;
}

/* ---- split ---- */

static int write_part(cli_app *app, const char *folder, const char *name, const cli_span *lines,
                      const size_t *order, size_t n, tkc_tree *files)
{
    char *path = cli_printf("%s/%s", folder, name);
    cli_save s;
    cli_save_begin(&s, path ? path : "", 0666);
    for (size_t i = 0; s.f && i < n; i++) {
        fwrite(lines[order[i]].data, 1, lines[order[i]].len, s.f);
        fputc('\n', s.f);
    }
    int bad = cli_save_end(&s, app, true);
    if (!bad && !json_wanted(app))
        cli_note(app, "%s: %zu conversation%s", path, n, plural(n));
    tkc_tree_add(files, cli_pack(app, "{s:o,s:I}", "path", cli_json_text(cli_arena(app), path),
                                 "conversations", (int64_t)n));
    free(path);
    return bad;
}

int cli_data_split(cli_app *app)
{
    cli_data_file f;
    cli_lines lines;
    cli_span line, *all = NULL;
    size_t n = 0, cap = 0, held = (size_t)cli_int(app, "test");
    const char *folder = cli_text(app, "output");
    if (!cli_given(app, "test"))
        return cli_fail(app, "usage", NULL, "--test is needed: how many to hold out");
    if (!cli_make_folder(folder, 0777))
        return cli_fail(app, "local_io", NULL, "%s: %s", folder, tkc_errno_text(errno));
    int bad = cli_data_open(app, app->args[0], &f);
    if (bad)
        return bad;
    cli_lines_open(&lines, &f);
    while (cli_lines_next(&lines, &line)) {
        if (n == cap) {
            cap = cap ? cap * 2 : 1024;
            cli_span *grown = realloc(all, cap * sizeof *grown);
            if (!grown)
                break;
            all = grown;
        }
        all[n++] = line;
    }
    size_t *order = cli_shuffled(n, (uint64_t)cli_int(app, "seed"));
    tkc_tree *files = cli_array(app), *v = cli_pack(app, "{s:o}", "files", files);
    if (held >= n)
        bad = cli_fail(app, "data_invalid", NULL,
                       "%s has %zu conversations; %zu cannot be held out", app->args[0], n, held);
    if (!bad && order)
        bad = write_part(app, folder, "test.jsonl", all, order, held, files);
    if (!bad && !order)
        bad = cli_fail(app, "internal", NULL, "out of memory");
    if (!bad)
        bad = write_part(app, folder, "train.jsonl", all, order + held, n - held, files);
    if (!bad && json_wanted(app))
        bad = cli_print_json(app, v);
    free(order);
    free(all);
    cli_data_close(&f);
    return bad;
}
