/* cmd_convert.c - `tinkc data convert`: other people's formats to conversations. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
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

/* A JSON array of objects, or JSON lines. 0, or an exit code after reporting all bad places. */
static int convert_json(cli_app *app, const char *text, size_t len, convert_fn *fn, FILE *f)
{
    json_t *whole = json_loadb(text, len, 0, NULL), *item;
    size_t i, failed = 0;
    if (json_is_array(whole)) {
        json_array_foreach(whole, i, item)
        {
            json_t *messages = fn(item);
            if (messages)
                put(f, messages);
            else
                fprintf(stderr, "%s: item %zu: not of this form\n", app->args[0], i + 1), failed++;
        }
        json_decref(whole);
    } else {
        json_decref(whole);
        size_t number = 0;
        for (const char *p = text; *p;) {
            size_t n = strcspn(p, "\n");
            number++;
            json_t *v = n > 1 ? json_loadb(p, n, 0, NULL) : NULL;
            json_t *messages = v ? fn(v) : NULL;
            if (messages)
                put(f, messages);
            else if (n > 1)
                fprintf(stderr, "%s:%zu: %s\n", app->args[0], number,
                        v ? "not of this form" : "not JSON"),
                    failed++;
            json_decref(v);
            p += n + (p[n] == '\n');
        }
    }
    return failed ? cli_fail(app, "data_invalid", NULL, "%zu items could not be converted", failed)
                  : 0;
}

/* Paragraphs: each becomes an assistant message to an empty request. */
static int convert_text(cli_app *app, const char *text, FILE *f)
{
    for (const char *p = text + strspn(text, "\r\n"); *p;) {
        const char *end = strstr(p, "\n\n");
        size_t n = end ? (size_t)(end - p) : strlen(p);
        while (n && strchr("\r\n", p[n - 1]))
            n--;
        char *part = strndup(p, n);
        json_t *messages = exchange("", part);
        free(part);
        if (json_array_size(messages) != 2) { /* JSON takes no other text */
            json_decref(messages);
            return cli_fail(app, "data_invalid", NULL, "%s: not UTF-8", app->args[0]);
        }
        put(f, messages);
        p = end ? end + strspn(end, "\r\n") : p + strlen(p);
    }
    return 0;
}

int cli_data_convert(cli_app *app)
{
    int bad;
    size_t len;
    const char *from = cli_text(app, "from"), *target = cli_text(app, "output");
    if (!from)
        return cli_fail(app, "usage", "sharegpt, alpaca, openai, pairs or text",
                        "--from is needed");
    char *text = cli_read_all(app, app->args[0], &len, &bad);
    if (!text)
        return bad;
    cli_save s;
    cli_save_begin(&s, target, 0666);
    if (s.f && strcmp(from, "text") == 0)
        bad = convert_text(app, text, s.f);
    for (size_t i = 0; s.f && i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, from) == 0)
            bad = convert_json(app, text, len, forms[i].fn, s.f);
    int unsaved = cli_save_end(&s, app, !bad);
    bad = bad ? bad : unsaved;
    free(text);
    return bad;
}
