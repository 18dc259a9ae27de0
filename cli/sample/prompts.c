/* prompts.c - files of prompts. Must not: need a model or the network. */
#include "cli/sample/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "cli/data/data_rows.h"
#include "cli/output/out.h"
#include "cli/data/row_turns.h"
#include "cli/data/shuffle.h"
#include "cli/output/text.h"

typedef struct reading {
    cli_app *app;
    const cli_prompt_options *how;
    cli_prompts *out;
    cli_bad_lines bad;
    const char *path;
} reading;

/* The member that was named, else the first of the usual ones that is there. */
static tkc_tree *member(const cli_app *app, const tkc_tree *row, const char *option,
                        const char *const *usual)
{
    const char *named = cli_text(app, option);
    if (named)
        return tkc_tree_get(row, named);
    tkc_tree *found = NULL;
    for (size_t i = 0; usual[i] && !found; i++)
        found = tkc_tree_get(row, usual[i]);
    return found;
}

/* Texts stay as they are; numbers and other values as JSON writes them. */
static char *as_text(const tkc_tree *v)
{
    return tkc_tree_is_text(v) ? strdup(tkc_tree_text(v)) : cli_json_print(v, TKC_TREE_COMPACT);
}

/* A message that calls tools need not say anything. */
static bool is_message(const tkc_tree *m)
{
    const tkc_tree *content = tkc_tree_get(m, "content");
    return tkc_tree_is_text(tkc_tree_get(m, "role")) &&
           (tkc_tree_is_text(content) || tkc_tree_is_array(content) ||
            tkc_tree_length(tkc_tree_get(m, "tool_calls")) > 0);
}

static bool are_messages(const tkc_tree *v)
{
    for (size_t i = 0; i < tkc_tree_length(v); i++)
        if (!is_message(tkc_tree_at(v, i)))
            return false;
    return tkc_tree_length(v) > 0;
}

/* Messages up to where the assistant is to speak: a last answer is the answer, not the prompt. */
static tkc_tree *prompt_of(tkc_arena *arena, const tkc_tree *v, tkc_tree **answer)
{
    if (tkc_tree_is_text(v))
        return tkc_tree_pack(arena, "[{s:s,s:o}]", "role", "user", "content", v);
    if (!are_messages(v))
        return NULL;
    tkc_tree *list = tkc_tree_copy(arena, v);
    const tkc_tree *last = tkc_tree_at(list, tkc_tree_length(list) - 1);
    const char *role = tkc_tree_get_text(last, "role");
    if (tkc_tree_length(list) > 1 && strcmp(role, "assistant") == 0) {
        if (!*answer && tkc_tree_is_text(tkc_tree_get(last, "content")))
            *answer = tkc_tree_get(last, "content");
        tkc_tree_take_out(list, tkc_tree_length(list) - 1);
    }
    return list;
}

/* The prompt as the library takes it. */
static char *prompt_text(tkc_arena *arena, const tkc_tree *messages, const tkc_tree *tools)
{
    if (!tools)
        return cli_json_print(messages, TKC_TREE_COMPACT);
    return cli_json_print(tkc_tree_pack(arena, "{s:o,s:o}", "messages", messages, "tools", tools),
                          TKC_TREE_COMPACT);
}

static bool keep(cli_prompts *p, tinkc_task task, size_t file)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 64;
        tinkc_task *items = realloc(p->items, cap * sizeof *items);
        if (items)
            p->items = items;
        size_t *files = items ? realloc(p->file, cap * sizeof *files) : NULL;
        if (!files)
            return false;
        p->file = files;
        p->cap = cap;
    }
    p->file[p->n] = file;
    p->items[p->n++] = task;
    return true;
}

static void take_row(void *user, tkc_arena *arena, const tkc_tree *row, cli_span line,
                     size_t number)
{
    reading *r = user;
    static const char *const prompts[] = { "messages", "prompt", "question",
                                           "problem",  "input",  NULL };
    static const char *const answers[] = { "answer", "solution", "target", "label", NULL };
    tkc_tree *answer = member(r->app, row, "answer-field", answers);
    if (!answer) /* verl's rows */
        answer = tkc_tree_get(tkc_tree_get(row, "reward_model"), "ground_truth");
    if (tkc_tree_is_null(answer))
        answer = NULL;
    const tkc_tree *given = member(r->app, row, "prompt-field", prompts);
    tkc_tree *prompt = given ? prompt_of(arena, given, &answer) : NULL;
    /* An environment reads the row itself. */
    cli_row_fault why = { 0 };
    tkc_tree *tools = r->how->need_prompt ? cli_turns_tools(arena, row, &why) : NULL;
    if (given && !prompt)
        cli_bad_line(&r->bad, r->path, number, "prompt",
                     "the prompt is neither a text nor a list of messages");
    else if (!given && r->how->need_prompt)
        cli_bad_line(&r->bad, r->path, number, "prompt",
                     "the row has no prompt: messages, prompt, question, problem or input");
    else if (!answer && r->how->need_answer)
        cli_bad_line(&r->bad, r->path, number, "answer",
                     "the row has no answer to grade against: answer, solution, target or label");
    else if (why.text[0])
        cli_bad_line(&r->bad, r->path, number, "tools", why.text);
    else {
        const tkc_tree *tag =
            cli_text(r->app, "tag-field") ? tkc_tree_get(row, cli_text(r->app, "tag-field")) : NULL;
        tinkc_task t = { .row_json = strndup(line.data, line.len),
                         .messages_json = prompt ? prompt_text(arena, prompt, tools) : NULL,
                         .answer = answer ? as_text(answer) : NULL,
                         .where = cli_printf("%s:%zu", r->path, number),
                         .tag = tag ? as_text(tag) : NULL };
        (void)keep(r->out, t, r->out->n_paths - 1);
    }
}

static int read_one(reading *r, const char *path)
{
    r->path = path;
    return cli_data_rows(r->app, path, &r->out->paths, &r->out->n_paths, &r->bad, take_row, r);
}

static int finish(reading *r, int bad)
{
    if (bad)
        r->bad.n = 0; /* which was reported; so were the lines */
    int unusable = cli_bad_lines_end(&r->bad, r->out->n_paths == 1 ? r->out->paths[0] : NULL,
                                     "nothing was sent");
    bad = bad ? bad : unusable;
    if (!bad && r->out->n == 0)
        bad = cli_fail(r->app, "data_invalid", NULL, "%s holds no prompts",
                       r->out->n_paths ? r->out->paths[0] : "the data");
    if (!bad) {
        const char *slash = strrchr(r->out->paths[0], '/');
        r->out->dataset = slash ? slash + 1 : r->out->paths[0];
    }
    return bad;
}

int cli_prompts_read(cli_app *app, const cli_prompt_options *how, cli_prompts *out)
{
    reading r = { .app = app, .how = how, .out = out };
    int bad = 0;
    *out = (cli_prompts){ 0 };
    cli_bad_lines_begin(&r.bad, app);
    for (size_t i = 0; i < app->n_args && !bad; i++)
        bad = read_one(&r, app->args[i]);
    for (size_t i = 0; cli_text_at(app, "data", i) && !bad; i++)
        bad = read_one(&r, cli_text_at(app, "data", i));
    if (!bad && out->n_paths == 0)
        return cli_fail(app, "usage", "name a file of JSON lines", "no prompts were given");
    return finish(&r, bad);
}

int cli_prompts_read_file(cli_app *app, const char *path, const cli_prompt_options *how,
                          cli_prompts *out)
{
    reading r = { .app = app, .how = how, .out = out };
    *out = (cli_prompts){ 0 };
    cli_bad_lines_begin(&r.bad, app);
    return finish(&r, read_one(&r, path));
}

bool cli_prompts_shuffle(cli_prompts *p, uint64_t seed)
{
    size_t *order = cli_shuffled(p->n, seed);
    tinkc_task *items = malloc((p->n + 1) * sizeof *items);
    size_t *file = malloc((p->n + 1) * sizeof *file);
    bool ok = order && items && file;
    for (size_t i = 0; ok && i < p->n; i++) {
        items[i] = p->items[order[i]];
        file[i] = p->file[order[i]];
    }
    free(order);
    free(ok ? p->items : items);
    free(ok ? p->file : file);
    if (ok) {
        p->items = items;
        p->file = file;
        p->cap = p->n;
    }
    return ok;
}

bool cli_prompts_split(cli_prompts *p, size_t n, cli_prompts *out)
{
    *out = (cli_prompts){ 0 };
    for (; n && p->n; n--, p->n--)
        if (!keep(out, p->items[p->n - 1], p->file[p->n - 1]))
            return false;
    return true;
}

void cli_prompts_free(cli_prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free((char *)(uintptr_t)p->items[i].row_json);
        free((char *)(uintptr_t)p->items[i].messages_json);
        free((char *)(uintptr_t)p->items[i].answer);
        free((char *)(uintptr_t)p->items[i].where);
        free((char *)(uintptr_t)p->items[i].tag);
    }
    for (size_t i = 0; i < p->n_paths; i++)
        free(p->paths[i]);
    free(p->paths);
    free(p->items);
    free(p->file);
    *p = (cli_prompts){ 0 };
}
