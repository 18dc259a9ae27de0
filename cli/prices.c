/* prices.c - what a plan would cost.
 *
 * Prices change and are not ours to say, so there is no table in the program: the user keeps one, as
 * lines of MODEL PREFILL SAMPLE TRAIN in dollars per million tokens. '#' begins a comment.
 */
#include "prices.h"

#include <stdlib.h>
#include <string.h>

#include "config_file.h"
#include "term.h"
#include "text.h"

typedef struct price {
    double prefill, sample, train;
} price;

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

int cli_show_cost(cli_app *app, const char *model, const cli_tokens_planned *t)
{
    char prefill[CLI_SHORT_TEXT], sample[CLI_SHORT_TEXT], train[CLI_SHORT_TEXT];
    const char *path = cli_text(app, "prices");
    price p = { 0 };
    cli_format_count(t->prefill, prefill);
    cli_format_count(t->sample, sample);
    cli_format_count(t->train, train);
    cli_note(app, "tokens     at most %s read, %s sampled, %s trained", prefill, sample, train);
    if (!path)
        path = cli_config_get(app, "prices", NULL);
    int found = path ? find_price(app, path, model, &p) : 0;
    if (found < 0)
        return -found;
    if (found)
        cli_note(app, "cost       at most $%.2f",
                 ((double)t->prefill * p.prefill + (double)t->sample * p.sample +
                  (double)t->train * p.train) /
                     1e6);
    else if (path)
        cli_note(app, "cost       %s has no line for %s", path, model);
    else if (!cli_wants_local(app))
        cli_note(app, "cost       not known: give a table with --prices FILE");
    return 0;
}
