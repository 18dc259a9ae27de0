/* prices.c - what a plan would cost.
 *
 * The user's table comes first: lines of MODEL PREFILL SAMPLE TRAIN in dollars per million tokens, '#'
 * begins a comment. Without one, the few prices below are used for hosted models; they are dated, since
 * the service changes them (Qwen3-8B cost a third less in January 2026), and the output says so.
 */
#include "cli/manage/prices.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/term.h"
#include "cli/output/text.h"

typedef struct price {
    double prefill, sample, train;
} price;

#define PRICES_READ "2026-10-07"
#define PRICES_PAGE "https://tinker-docs.thinkingmachines.ai/tinker/models/"

/* As published on PRICES_PAGE on that day, without temporary discounts. Only what could be checked. */
static const struct {
    const char *model;
    price price;
} published[] = {
    { "Qwen/Qwen3-8B", { 0.195, 0.60, 0.44 } },
    { "thinkingmachines/Inkling", { 3.74, 9.36, 11.22 } },
};

static bool find_published(const char *model, price *out)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (strcmp(published[i].model, model) == 0) {
            *out = published[i].price;
            return true;
        }
    return false;
}

static bool next_word(char **at, char **word)
{
    *at += strspn(*at, " \t");
    *word = *at;
    *at += strcspn(*at, " \t");
    if (**at)
        *(*at)++ = '\0';
    return **word != '\0';
}

/* One line. 1 = it is the model's, 0 = another's or empty, -1 = cannot be read. */
static int read_line(char *line, const char *model, price *out)
{
    char *word, *at = line;
    double *fields[] = { &out->prefill, &out->sample, &out->train };
    price p;
    double *parsed[] = { &p.prefill, &p.sample, &p.train };
    line[strcspn(line, "#\r")] = '\0';
    if (!next_word(&at, &word))
        return 0;
    bool ours = strcmp(word, model) == 0;
    for (size_t i = 0; i < 3; i++)
        if (!next_word(&at, &word) || !cli_parse_number(word, parsed[i]) || *parsed[i] < 0)
            return -1;
    if (next_word(&at, &word))
        return -1;
    for (size_t i = 0; ours && i < 3; i++)
        *fields[i] = *parsed[i];
    return ours;
}

/* 1 = found, 0 = not, below 0 = an exit code, negated, after reporting. */
static int find_price(cli_app *app, const char *path, const char *model, price *out)
{
    int bad = 0, found = 0;
    size_t len, number = 0;
    char *text = cli_read_all(app, path, &len, &bad);
    for (char *line = text, *end; line && *line && !bad; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = '\0';
        number++;
        int got = read_line(line, model, out);
        if (got < 0)
            bad = cli_fail(app, "config_invalid", "a line is: MODEL PREFILL SAMPLE TRAIN",
                           "%s:%zu: not a line of prices", path, number);
        found = got > 0 ? 1 : found;
    }
    free(text);
    return bad ? -bad : found;
}

static double cost_of(const cli_tokens_planned *t, const price *p)
{
    return ((double)t->prefill * p->prefill + (double)t->sample * p->sample +
            (double)t->train * p->train) /
           1e6;
}

int cli_show_cost(cli_app *app, const char *model, const cli_tokens_planned *t)
{
    char prefill[CLI_SHORT_TEXT], sample[CLI_SHORT_TEXT], train[CLI_SHORT_TEXT];
    const char *path = cli_text(app, "prices");
    price p = { 0 };
    cli_format_count(t->prefill, prefill);
    cli_format_count(t->sample, sample);
    cli_format_count(t->train, train);
    cli_note(app, "tokens     at most %s read, %s sampled, %s trained", prefill, sample, train);
    int found = path ? find_price(app, path, model, &p) : 0;
    if (found < 0)
        return -found;
    if (found)
        cli_note(app, "cost       at most $%.2f", cost_of(t, &p));
    else if (path)
        cli_note(app, "cost       %s has no line for %s", path, model);
    else if (cli_wants_local(app))
        cli_note(app, "cost       none: it runs on this machine");
    else if (find_published(model, &p))
        cli_note(app,
                 "cost       at most $%.2f by the prices of " PRICES_READ
                 "; --prices FILE gives newer ones (" PRICES_PAGE ")",
                 cost_of(t, &p));
    else
        cli_note(app,
                 "cost       no price of %s is known: write MODEL PREFILL SAMPLE TRAIN in dollars "
                 "per million tokens into a file and give it with --prices (" PRICES_PAGE ")",
                 model);
    return 0;
}
