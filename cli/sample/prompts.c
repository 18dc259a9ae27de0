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
static json_t *member(const cli_app *app, const json_t *row, const char *option,
                      const char *const *usual)
{
    const char *named = cli_text(app, option);
    if (named)
        return json_object_get(row, named);
    json_t *found = NULL;
    for (size_t i = 0; usual[i] && !found; i++)
        found = json_object_get(row, usual[i]);
    return found;
}

/* Texts stay as they are; numbers and other values as JSON writes them. */
static char *as_text(const json_t *v)
{
    return json_is_string(v) ? strdup(json_string_value(v))
                             : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
}

/* A message that calls tools need not say anything. */
static bool is_message(const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    return json_is_string(json_object_get(m, "role")) &&
           (json_is_string(content) || json_is_array(content) ||
            json_array_size(json_object_get(m, "tool_calls")) > 0);
}

static bool are_messages(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!is_message(json_array_get(v, i)))
            return false;
    return json_array_size(v) > 0;
}

/* Messages up to where the assistant is to speak: a last answer is the answer, not the prompt. */
static json_t *prompt_of(const json_t *v, json_t **answer)
{
    if (json_is_string(v))
        return json_pack("[{s:s,s:O}]", "role", "user", "content", v);
    if (!are_messages(v))
        return NULL;
    json_t *list = json_copy((json_t *)(uintptr_t)v);
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (json_array_size(list) > 1 && strcmp(role, "assistant") == 0) {
        if (!*answer && json_is_string(json_object_get(last, "content")))
            *answer = json_object_get(last, "content");
        json_array_remove(list, json_array_size(list) - 1);
    }
    return list;
}

/* The prompt as the library takes it. */
static char *prompt_text(json_t *messages, json_t *tools)
{
    if (!tools)
        return json_dumps(messages, JSON_COMPACT);
    json_t *both = json_pack("{s:O,s:O}", "messages", messages, "tools", tools);
    char *text = json_dumps(both, JSON_COMPACT);
    json_decref(both);
    return text;
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

static void take_row(void *user, const json_t *row, cli_span line, size_t number)
{
    reading *r = user;
    static const char *const prompts[] = { "messages", "prompt", "question",
                                           "problem",  "input",  NULL };
    static const char *const answers[] = { "answer", "solution", "target", "label", NULL };
    json_t *answer = member(r->app, row, "answer-field", answers);
    if (!answer) /* verl's rows */
        answer = json_object_get(json_object_get(row, "reward_model"), "ground_truth");
    if (json_is_null(answer))
        answer = NULL;
    const json_t *given = member(r->app, row, "prompt-field", prompts);
    json_t *prompt = given ? prompt_of(given, &answer) : NULL;
    /* An environment reads the row itself. */
    cli_row_fault why = { 0 };
    json_t *tools = r->how->need_prompt ? cli_turns_tools(row, &why) : NULL;
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
        const json_t *tag = cli_text(r->app, "tag-field")
                                ? json_object_get(row, cli_text(r->app, "tag-field"))
                                : NULL;
        tinkc_task t = { .row_json = strndup(line.data, line.len),
                         .messages_json = prompt ? prompt_text(prompt, tools) : NULL,
                         .answer = answer ? as_text(answer) : NULL,
                         .where = cli_printf("%s:%zu", r->path, number),
                         .tag = tag ? as_text(tag) : NULL };
        (void)keep(r->out, t, r->out->n_paths - 1);
    }
    json_decref(prompt);
    json_decref(tools);
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
