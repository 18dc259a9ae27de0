/* conversations.c - a conversation file in blocks of whole lines. Must not: print but for the progress
 * bar, or ask the network anything: blocks are worked on by many threads. */
#include "cli/data/conversations.h"

#include <stdlib.h>
#include <string.h>

#include "cli/data/ordered_pool.h"
#include "cli/output/out.h"
#include "cli/data/row_forms.h"
#include "cli/output/term.h"

enum { BLOCK_BYTES = 256 << 10 };

typedef struct reading {
    const cli_convos *c;
    const char *at, *end; /* what has not been taken yet */
    cli_progress bar;
    size_t lines; /* delivered; these two are the caller's thread's */
    bool no_memory;
} reading;

/* ---- one block, on any thread ---- */

static void note(const char *file, size_t line, int level, const char *code, const char *message,
                 void *user)
{
    cli_block *b = user;
    (void)file;
    if (b->n_said == b->cap_said) {
        size_t cap = b->cap_said ? b->cap_said * 2 : 16;
        cli_said *grown = realloc(b->said, cap * sizeof *grown);
        if (!grown) {
            b->no_memory = true;
            return;
        }
        b->said = grown;
        b->cap_said = cap;
    }
    char *copy = strdup(message);
    if (copy)
        b->said[b->n_said++] = (cli_said){ copy, code, line, level };
    else
        b->no_memory = true;
}

static uint64_t hash_line(cli_span s)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < s.len; i++)
        h = (h ^ (unsigned char)s.data[i]) * 0x100000001B3u;
    return h;
}

static void keep_hash(cli_block *b, cli_span line)
{
    if (b->n_good == b->cap_hashes) {
        size_t cap = b->cap_hashes ? b->cap_hashes * 2 : 256;
        uint64_t *grown = realloc(b->hashes, cap * sizeof *grown);
        if (!grown) {
            b->no_memory = true;
            return;
        }
        b->hashes = grown;
        b->cap_hashes = cap;
    }
    b->hashes[b->n_good] = hash_line(line);
}

static void add_facts(cli_block *b, const cli_convo *facts)
{
    b->sum.n_messages += facts->n_messages;
    b->sum.n_assistant += facts->n_assistant;
    b->sum.n_user += facts->n_user;
    b->sum.n_system += facts->n_system;
    b->sum.n_tool += facts->n_tool;
    b->n_turning += facts->n_assistant > 1;
}

/* Reasoning as parts is refused by the library; in a text it would be learnt as words. */
static bool leaves_reasoning_out(const char *renderer)
{
    static const char suffix[] = "_disable_thinking";
    size_t n = renderer ? strlen(renderer) : 0;
    return n && (strcmp(renderer, "deepseekv3") == 0 ||
                 (n > sizeof suffix - 1 && strcmp(renderer + n - sizeof suffix + 1, suffix) == 0));
}

static char *rendered(const cli_example_options *how, const tkc_tree *row)
{
    tinkc_text out = { 0 };
    tinkc_chat_options chat = { .renderer = how->renderer, .openai_calls = true };
    char *text = cli_json_dump(row), *copy = NULL;
    if (text && tinkc_chat_render(how->tokenizer, text, &chat, &out, NULL))
        copy = strdup(out.data ? out.data : "");
    free(text);
    tinkc_text_free(&out);
    return copy;
}

/* Whether the row reads the same without its tools, or without the calls in its messages. */
static bool leaves_out(const cli_example_options *how, cli_span line, bool calls)
{
    tkc_arena arena = { 0 };
    tkc_tree *row = tkc_tree_read(&arena, tkc_strn(line.data, line.len), 0);
    const tkc_tree *messages = calls ? tkc_tree_get(row, "messages") : NULL;
    char *with = rendered(how, row), *without;
    if (!calls)
        tkc_tree_remove(row, "tools");
    for (size_t i = 0; i < tkc_tree_length(messages); i++)
        tkc_tree_remove(tkc_tree_at(messages, i), "tool_calls");
    without = rendered(how, row);
    bool same = with && without && strcmp(with, without) == 0;
    tkc_arena_free(&arena);
    free(with);
    free(without);
    return same;
}

/* A template that has no place for tools writes nothing of them. */
static void check_tools(cli_block *b, const cli_example_options *how, cli_span line, size_t number,
                        const cli_convo *facts)
{
    if (facts->calls && leaves_out(how, line, true))
        note(NULL, number, facts->bare ? CLI_LEVEL_ERROR : CLI_LEVEL_WARNING,
             facts->bare ? "tool_calls" : "unused",
             facts->bare
                 ? "the chat template leaves tool_calls out: an empty answer would be learnt"
                 : "\"tool_calls\" is not used: the chat template leaves tools out",
             b);
    else if (facts->tools && leaves_out(how, line, false))
        note(NULL, number, CLI_LEVEL_WARNING, "unused",
             "\"tools\" is not used: the chat template leaves tools out", b);
}

/* What only a model can say about a line: whether it can be rendered, and what is learnt from it.
 */
static void render(cli_block *b, const cli_example_options *how, cli_span line, size_t number,
                   const cli_convo *facts)
{
    tinkc_error err = { 0 };
    size_t empty = b->set.n_empty, cut = b->set.n_cut;
    if (!cli_examples_add(&b->set, how, line, (uint32_t)number, &err)) {
        char text[sizeof err.message + 32]; /* lines in it are the template's, not the file's */
        (void)snprintf(text, sizeof text, "%s%s",
                       err.code == TINKC_E_TEMPLATE ? "chat template: " : "", err.message);
        note(NULL, number, CLI_LEVEL_ERROR, "render", text, b);
    } else if (facts->reasoning && leaves_reasoning_out(how->renderer)) {
        note(NULL, number, CLI_LEVEL_WARNING, "reasoning",
             "an answer has <think> in it, but this renderer is for answers without reasoning", b);
    }
    if (!err.code)
        check_tools(b, how, line, number, facts);
    if (b->set.n_empty > empty)
        note(NULL, number, CLI_LEVEL_WARNING, "untrained", "no token of it is learnt", b);
    if (b->set.n_cut > cut)
        note(NULL, number, CLI_LEVEL_WARNING, "cut", "longer than --max-length: cut at the right",
             b);
}

static void work_on(void *piece, void *user)
{
    cli_block *b = piece;
    const cli_convos *c = ((const reading *)user)->c;
    cli_lines lines = { b->text.data, b->text.data + b->text.len, 0 };
    cli_span line;
    cli_convo facts;
    for (char *owned = NULL; !b->no_memory && cli_lines_next(&lines, &line); free(owned)) {
        cli_row_fault why;
        line = cli_row_line(line, &owned, &why);
        if (why.text[0])
            note(NULL, lines.number, CLI_LEVEL_ERROR, "form", why.text, b);
        if (why.text[0] ||
            !cli_check_conversation(c->file->path, lines.number, line,
                                    c->how->train_on == TINKC_TRAIN_MARKED, &facts, note, b)) {
            b->n_broken++;
            continue;
        }
        add_facts(b, &facts);
        if (c->hashes)
            keep_hash(b, line);
        b->n_good++;
        if (c->how->tokenizer)
            render(b, c->how, line, lines.number, &facts);
    }
    b->n_lines = lines.number;
}

/* ---- one block after the other ---- */

static bool take(void *piece, void *user)
{
    reading *r = user;
    cli_block *b = piece;
    if (r->at == r->end)
        return false;
    const char *stop = r->end;
    if ((size_t)(r->end - r->at) > BLOCK_BYTES) {
        const char *newline =
            memchr(r->at + BLOCK_BYTES, '\n', (size_t)(r->end - r->at) - BLOCK_BYTES);
        stop = newline ? newline + 1 : r->end;
    }
    b->text = (cli_span){ r->at, (size_t)(stop - r->at) };
    r->at = stop;
    return true;
}

static void deliver(void *piece, void *user)
{
    reading *r = user;
    cli_block *b = piece;
    const cli_data_file *f = r->c->file;
    r->c->deliver(b, r->lines, r->c->user);
    r->lines += b->n_lines;
    r->no_memory = r->no_memory || b->no_memory;
    for (size_t i = 0; i < b->n_said; i++)
        free(b->said[i].message);
    free(b->said);
    free(b->hashes);
    cli_examples_free(&b->set);
    cli_progress_step(&r->bar, (int64_t)(b->text.data + b->text.len - f->text), (int64_t)f->len,
                      NULL);
}

int cli_convos_read(const cli_convos *c, size_t *lines)
{
    cli_lines whole;
    cli_lines_open(&whole, c->file);
    reading r = { .c = c, .at = whole.at, .end = whole.end };
    cli_inorder how = { sizeof(cli_block), take, work_on, deliver, &r };
    size_t blocks = c->file->len / BLOCK_BYTES + 1, cores = cli_cores();
    cli_progress_begin(&r.bar, c->app, c->label, (int64_t)c->file->len, true);
    bool ok = cli_inorder_run(&how, blocks < cores ? blocks : cores);
    cli_progress_end(&r.bar);
    *lines = r.lines;
    return ok && !r.no_memory ? 0 : cli_fail(c->app, "internal", NULL, "out of memory");
}
