/* examples.c - conversations as training examples. */
#include "cli/data/examples.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/text.h"

static size_t bytes_of(const tinkc_tokenizer *t, const int32_t *ids, const float *weights, size_t n)
{
    size_t bytes = 0;
    for (size_t i = 1; i < n; i++)
        if (weights[i] > 0 && !tinkc_tokenizer_is_special(t, ids[i]))
            bytes += tinkc_tokenizer_bytes(t, ids[i]).len;
    return bytes;
}

static bool make_room(cli_examples *set, size_t more)
{
    if (set->n + more <= set->cap)
        return true;
    size_t cap = set->cap ? set->cap * 2 : 256;
    if (cap < set->n + more)
        cap = set->n + more;
    cli_example *grown = realloc(set->items, cap * sizeof *grown);
    if (!grown)
        return false;
    set->items = grown;
    set->cap = cap;
    return true;
}

/* Copies one example; its weights (the first never counts) divided by their sum with `mean`. */
static bool store(cli_examples *set, const cli_example_options *how, const int32_t *ids,
                  const float *weights, size_t len, cli_example e, tinkc_error *err)
{
    double sum = 0;
    size_t trained = 0;
    e.cut = how->max_length && len > how->max_length;
    e.len = e.cut ? how->max_length : len;
    for (size_t i = 1; i < e.len; i++) {
        sum += (double)weights[i];
        trained += weights[i] > 0;
    }
    if (e.len < 2 || trained == 0) {
        set->n_empty++;
        return true;
    }
    if (!make_room(set, 1))
        return tinkc_error_set(err, TINKC_E_MEMORY, "out of memory"), false;
    e.ids = malloc(e.len * (sizeof *e.ids + sizeof *e.weights));
    if (!e.ids)
        return tinkc_error_set(err, TINKC_E_MEMORY, "out of memory"), false;
    e.weights = (float *)(void *)(e.ids + e.len);
    memcpy(e.ids, ids, e.len * sizeof *ids);
    for (size_t i = 0; i < e.len; i++)
        e.weights[i] = i == 0 ? 0 : how->mean ? (float)((double)weights[i] / sum) : weights[i];
    e.trained_bytes = bytes_of(how->tokenizer, ids, weights, e.len);
    set->items[set->n++] = e;
    set->n_tokens += e.len - 1;
    set->n_trained += trained;
    set->n_cut += e.cut;
    if (e.len > set->n_longest)
        set->n_longest = e.len;
    return true;
}

bool cli_examples_add(cli_examples *set, const cli_example_options *how, cli_span line,
                      uint32_t number, tinkc_error *err)
{
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_sizes ends = { 0 };
    char *text = strndup(line.data, line.len);
    tinkc_chat_options chat = { .renderer = how->renderer,
                                .train_on = how->train_on,
                                .split_turns = how->split_turns,
                                .openai_calls = true };
    bool ok = text && tinkc_chat_train(how->tokenizer, text, &chat, &ids, &weights, &ends, err);
    size_t from = 0;
    cli_example e = { .line = number };
    for (size_t i = 0; ok && i < ends.len; i++) {
        ok = store(set, how, ids.data + from, weights.data + from, ends.data[i] - from, e, err);
        from = ends.data[i];
    }
    free(text);
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    tinkc_sizes_free(&ends);
    return ok;
}

bool cli_examples_move(cli_examples *into, cli_examples *from, size_t before, uint16_t file)
{
    if (!make_room(into, from->n))
        return false;
    for (size_t i = 0; i < from->n; i++) {
        cli_example e = from->items[i];
        e.line += (uint32_t)before;
        e.file = file;
        into->items[into->n++] = e;
    }
    into->n_tokens += from->n_tokens;
    into->n_trained += from->n_trained;
    into->n_cut += from->n_cut;
    into->n_empty += from->n_empty;
    if (from->n_longest > into->n_longest)
        into->n_longest = from->n_longest;
    free(from->items);
    *from = (cli_examples){ 0 };
    return true;
}

void cli_examples_free(cli_examples *set)
{
    for (size_t i = 0; i < set->n; i++)
        free(set->items[i].ids);
    free(set->items);
    *set = (cli_examples){ 0 };
}

void cli_preview(const cli_app *app, FILE *f, const tinkc_tokenizer *t, const cli_example *e)
{
    for (size_t i = 0, from = 0; i < e->len; i = from) {
        tinkc_text text = { 0 };
        int sign = e->weights[i] > 0 ? 1 : e->weights[i] < 0 ? -1 : 0;
        while (from < e->len && (e->weights[from] > 0 ? 1 : e->weights[from] < 0 ? -1 : 0) == sign)
            from++;
        tinkc_decode_span(t, e->ids + i, from - i, NULL, &text, NULL);
        const char *mark = sign > 0 ? "\033[32m" : sign < 0 ? "\033[31m" : "\033[33m";
        fprintf(f, "%s%s%s",
                app->color ? mark
                : sign > 0 ? "[["
                           : "",
                text.data ? text.data : "",
                app->color ? "\033[0m"
                : sign > 0 ? "]]"
                           : "");
        tinkc_text_free(&text);
    }
    fputc('\n', f);
}
