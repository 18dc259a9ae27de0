/* cmd_convert.c - `tinkc data convert`: other people's formats to conversations. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "dataset.h"
#include "files.h"
#include "out.h"
#include "term.h"
#include "text.h"

static json_t *message(const char *role, const char *content)
{
    return json_pack("{s:s,s:s}", "role", role, "content", content ? content : "");
}

static const char *text_of(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

/* {"conversations": [{"from": "human", "value": ...}]} */
static json_t *from_sharegpt(const json_t *v)
{
    json_t *turns = json_object_get(v, "conversations"), *turn, *out = json_array();
    size_t i;
    json_array_foreach(turns, i, turn)
    {
        const char *from = text_of(turn, "from"), *value = text_of(turn, "value");
        if (!from || !value)
            return json_decref(out), NULL;
        const char *role = strcmp(from, "human") == 0 || strcmp(from, "user") == 0 ? "user"
                           : strcmp(from, "system") == 0                           ? "system"
                                                                                   : "assistant";
        json_array_append_new(out, message(role, value));
    }
    return json_array_size(out) ? out : (json_decref(out), NULL);
}

static json_t *exchange(const char *ask, const char *answer)
{
    if (!ask || !answer)
        return NULL;
    json_t *out = json_array();
    json_array_append_new(out, message("user", ask));
    json_array_append_new(out, message("assistant", answer));
    return out;
}

/* {"instruction", "input", "output"} */
static json_t *from_alpaca(const json_t *v)
{
    const char *ask = text_of(v, "instruction"), *more = text_of(v, "input"),
               *answer = text_of(v, "output");
    if (!ask || !answer)
        return NULL;
    char *whole = more && *more ? cli_printf("%s\n\n%s", ask, more) : strdup(ask);
    json_t *out = exchange(whole, answer);
    free(whole);
    return out;
}

/* {"messages": [...]} already; or {"prompt", "completion"} */
static json_t *from_openai(const json_t *v)
{
    json_t *messages = json_object_get(v, "messages");
    if (json_is_array(messages))
        return json_incref(messages);
    const char *ask = text_of(v, "prompt"), *answer = text_of(v, "completion");
    return exchange(ask, answer);
}

/* {"prompt" | "question", "chosen" | "answer" | "response"}: the good answer is kept. */
static json_t *from_pairs(const json_t *v)
{
    static const char *const asks[] = { "prompt", "question", "input" };
    static const char *const answers[] = { "chosen", "answer", "response", "output" };
    const char *ask = NULL, *answer = NULL;
    for (size_t i = 0; i < 3 && !ask; i++)
        ask = text_of(v, asks[i]);
    for (size_t i = 0; i < 4 && !answer; i++)
        answer = text_of(v, answers[i]);
    return exchange(ask, answer);
}

typedef json_t *convert_fn(const json_t *);

static const struct {
    const char *name;
    convert_fn *fn;
} forms[] = { { "sharegpt", from_sharegpt },
              { "alpaca", from_alpaca },
              { "openai", from_openai },
              { "pairs", from_pairs } };

static void put(FILE *f, json_t *messages)
{
    json_t *line = json_pack("{s:o}", "messages", messages);
    cli_write_json(f, line, -1);
    fputc('\n', f);
    json_decref(line);
}

/* What goes where, and what could not. */
typedef struct conversion {
    convert_fn *fn;
    FILE *to;
    const char *path;
    cli_bad_lines broken;
    size_t n;
} conversion;

/* `place`: which line or item it is. */
static void convert_one(conversion *c, const json_t *v, size_t place)
{
    json_t *messages = v ? c->fn(v) : NULL;
    if (!messages) {
        cli_bad_line(&c->broken, c->path, place, v ? "form" : "json",
                     v ? "not of this form" : "not JSON");
        return;
    }
    put(c->to, messages);
    c->n++;
}

/* A JSON array of objects, or JSON lines. */
static void convert_json(conversion *c, const char *text, size_t len)
{
    json_t *whole = json_loadb(text, len, 0, NULL), *item;
    size_t i;
    json_array_foreach(whole, i, item) convert_one(c, item, i + 1);
    bool lines = !json_is_array(whole);
    json_decref(whole);
    cli_lines all = { text, text + len, 0 };
    for (cli_span line; lines && cli_lines_next(&all, &line);) {
        json_t *v = json_loadb(line.data, line.len, 0, NULL);
        convert_one(c, v, all.number);
        json_decref(v);
    }
}

/* Paragraphs: each becomes an assistant message to an empty request. */
static void convert_text(conversion *c, const char *text)
{
    for (const char *p = text + strspn(text, "\r\n"); *p; c->n++) {
        const char *end = strstr(p, "\n\n");
        size_t n = end ? (size_t)(end - p) : strlen(p);
        while (n && strchr("\r\n", p[n - 1]))
            n--;
        char *part = strndup(p, n);
        put(c->to, exchange("", part));
        free(part);
        p = end ? end + strspn(end, "\r\n") : p + strlen(p);
    }
}

int cli_data_convert(cli_app *app)
{
    int bad;
    size_t len;
    const char *from = cli_text(app, "from"), *target = cli_text(app, "output");
    conversion c = { .path = app->args[0] };
    if (!from)
        return cli_fail(app, "usage", "sharegpt, alpaca, openai, pairs or text",
                        "--from is needed");
    char *all = cli_read_all(app, app->args[0], &len, &bad);
    if (!all)
        return bad;
    size_t mark = len >= 3 && memcmp(all, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    const char *text = all + mark;
    len -= mark;
    if (strcmp(from, "text") == 0 && (memchr(text, '\0', len) || !cli_is_utf8(text, len))) {
        free(all);
        return cli_fail(app, "data_invalid", NULL, "%s is not UTF-8 text", app->args[0]);
    }
    cli_save s;
    cli_save_begin(&s, target, 0666);
    c.to = s.f;
    cli_bad_lines_begin(&c.broken, app);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, from) == 0)
            c.fn = forms[i].fn;
    if (c.to && c.fn)
        convert_json(&c, text, len);
    else if (c.to)
        convert_text(&c, text);
    bad = cli_bad_lines_end(&c.broken, app->args[0], "see the form with: tinkc help data convert");
    int unsaved = cli_save_end(&s, app, !bad);
    bad = bad ? bad : unsaved;
    if (!bad && strcmp(target, "-") != 0)
        bad = cli_print_done(
            app,
            json_pack("{s:o,s:I}", "path", cli_json_text(target), "conversations", (json_int_t)c.n),
            "%s: %zu conversation%s", target, c.n, c.n == 1 ? "" : "s");
    free(all);
    return bad;
}
