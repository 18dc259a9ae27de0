/* pairs.c - preferences, rendered and checked line by line. Must not: know the forms of rows. */
#include "cli/data/pairs.h"

#include <stdlib.h>
#include <string.h>

#include "cli/data/data_rows.h"
#include "cli/output/out.h"
#include "cli/data/row_forms.h"

typedef struct reading {
    cli_app *app;
    const tinkc_tokenizer *tokenizer;
    const char *renderer;
    cli_pairs *out;
    cli_bad_lines bad;
    const char *path;
    size_t max_length;
} reading;

/* ---- tokens ---- */

static bool render(reading *r, const tkc_tree *conversation, cli_side *out, tinkc_error *err)
{
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_chat_options how = { .renderer = r->renderer,
                               .train_on = TINKC_TRAIN_LAST_ASSISTANT,
                               .openai_calls = true };
    char *text = cli_json_dump(conversation);
    bool ok = text && tinkc_chat_train(r->tokenizer, text, &how, &ids, &weights, NULL, err);
    size_t len = ids.len < r->max_length ? ids.len : r->max_length, trained = 0;
    for (size_t i = 1; ok && i < len; i++)
        trained += weights.data[i] > 0;
    if (ok && trained == 0) {
        tinkc_error_set(err, TINKC_E_ARGUMENT, "the answer has no token within --max-length");
        ok = false;
    }
    if (ok) {
        r->out->n_cut += len < ids.len;
        r->out->n_tokens += len;
        *out = (cli_side){ .ids = malloc(len * sizeof *out->ids),
                           .weights = malloc(len * sizeof *out->weights),
                           .len = len };
        ok = out->ids && out->weights;
        if (ok) {
            memcpy(out->ids, ids.data, len * sizeof *out->ids);
            memcpy(out->weights, weights.data, len * sizeof *out->weights);
        }
    }
    free(text);
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    return ok;
}

static void free_pair(cli_pair *p)
{
    free(p->chosen.ids);
    free(p->chosen.weights);
    free(p->rejected.ids);
    free(p->rejected.weights);
}

static void keep(reading *r, const cli_row_sides *s, bool good, size_t number)
{
    tinkc_error err = { 0 };
    cli_pairs *p = r->out;
    cli_pair one = { .good = good };
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 64;
        cli_pair *grown = realloc(p->items, cap * sizeof *grown);
        if (grown) {
            p->items = grown;
            p->cap = cap;
        }
    }
    bool ok = p->n < p->cap && render(r, s->chosen, &one.chosen, &err) &&
              (p->unpaired || render(r, s->rejected, &one.rejected, &err));
    if (ok) {
        p->items[p->n++] = one;
        return;
    }
    free_pair(&one);
    cli_bad_line(&r->bad, r->path, number, "render", err.code ? err.message : "out of memory");
}

static void take_row(void *user, tkc_arena *arena, const tkc_tree *row, cli_span line,
                     size_t number)
{
    reading *r = user;
    cli_row_fault why;
    cli_row_sides s = { 0 };
    bool good = false, pair = !r->out->unpaired;
    (void)line;
    if (pair)
        s = cli_row_preference(arena, row, &why);
    else
        s.chosen = cli_row_marked(arena, row, &good, &why);
    if (s.tie)
        ;
    else if (!s.chosen || (pair && !s.rejected))
        cli_bad_line(&r->bad, r->path, number, "pair", why.text);
    else if (pair && tkc_tree_equal(s.chosen, s.rejected))
        cli_bad_line(&r->bad, r->path, number, "equal",
                     "chosen and rejected are equal: there is nothing to prefer");
    else
        keep(r, &s, good, number);
}

/* ---- mismatched answers ---- */

/* Where the answer begins: after the prompt's tokens. */
static size_t answer_start(const cli_side *s)
{
    size_t i = 0;
    while (i < s->len && !(s->weights[i] > 0))
        i++;
    return i;
}

/* The prompt of one row with the answer of another, cut at the length limit. A prompt leaves room for a
 * token at least: its own answer has one (render). */
static bool cross(const cli_side *prompt, const cli_side *answer, size_t most, cli_side *out)
{
    size_t head = answer_start(prompt), from = answer_start(answer), tail = answer->len - from;
    tail = tail < most - head ? tail : most - head;
    *out = (cli_side){ .ids = malloc((head + tail) * sizeof *out->ids),
                       .weights = malloc((head + tail) * sizeof *out->weights),
                       .len = head + tail };
    if (!out->ids || !out->weights)
        return false;
    memcpy(out->ids, prompt->ids, head * sizeof *out->ids);
    memcpy(out->weights, prompt->weights, head * sizeof *out->weights);
    memcpy(out->ids + head, answer->ids + from, tail * sizeof *out->ids);
    memcpy(out->weights + head, answer->weights + from, tail * sizeof *out->weights);
    return true;
}

/* KTO compares with answers that do not belong to their prompts: each row takes those of the next. */
static int cross_all(const reading *r)
{
    cli_pairs *p = r->out;
    if (p->n < 2)
        return cli_fail(r->app, "data_invalid", "give more rows, or pairs with --loss dpo",
                        "KTO needs at least two answers: it estimates the KL from answers that "
                        "belong to other prompts");
    for (size_t i = 0; i < p->n; i++) {
        cli_pair *one = &p->items[i];
        if (!cross(&one->chosen, &p->items[(i + 1) % p->n].chosen, r->max_length, &one->rejected))
            return cli_fail(r->app, "internal", NULL, "out of memory");
        p->n_tokens += one->rejected.len;
    }
    return 0;
}

static int read_one(reading *r, const char *path)
{
    r->path = path;
    return cli_data_rows(r->app, path, &r->out->paths, &r->out->n_paths, &r->bad, take_row, r);
}

int cli_pairs_read(cli_app *app, const tinkc_tokenizer *tokenizer, const char *renderer,
                   bool unpaired, cli_pairs *out)
{
    reading r = { .app = app,
                  .tokenizer = tokenizer,
                  .renderer = renderer,
                  .out = out,
                  .max_length = (size_t)cli_int(app, "max-length") };
    int bad = 0;
    *out = (cli_pairs){ .unpaired = unpaired };
    cli_bad_lines_begin(&r.bad, app);
    for (size_t i = 0; i < app->n_args && !bad; i++)
        bad = read_one(&r, app->args[i]);
    for (size_t i = 0; cli_text_at(app, "data", i) && !bad; i++)
        bad = read_one(&r, cli_text_at(app, "data", i));
    if (!bad && out->n_paths == 0)
        return cli_fail(app, "usage", "tinkc train dpo PAIRS.jsonl", "no pairs were given");
    if (bad)
        r.bad.n = 0;
    int unusable =
        cli_bad_lines_end(&r.bad, out->n_paths == 1 ? out->paths[0] : NULL, "nothing was sent");
    bad = bad ? bad : unusable;
    if (!bad && out->n == 0)
        return cli_fail(app, "data_invalid", NULL, "%s holds no preferences", out->paths[0]);
    return !bad && unpaired ? cross_all(&r) : bad;
}

void cli_pairs_free(cli_pairs *p)
{
    for (size_t i = 0; i < p->n; i++)
        free_pair(&p->items[i]);
    for (size_t i = 0; i < p->n_paths; i++)
        free(p->paths[i]);
    free(p->paths);
    free(p->items);
    *p = (cli_pairs){ 0 };
}
