/* row_forms.c - the forms of rows. Pure: JSON in, JSON out; called by many threads. */
#include "row_forms.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

static const char *text_of(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

static json_t *message(const char *role, const char *content)
{
    return json_pack("{s:s,s:s}", "role", role, "content", content);
}

/* A text by this role, or messages as they are; yours, NULL = neither. */
static json_t *messages_of(const json_t *v, const char *role)
{
    if (json_is_string(v))
        return json_pack("[o]", message(role, json_string_value(v)));
    if (json_array_size(v) == 0)
        return NULL;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_object_get(json_array_get(v, i), "role")))
            return NULL;
    return json_copy((json_t *)(uintptr_t)v);
}

/* What was asked and what was answered, each a text or messages. An answer that begins with what was
 * asked (a whole conversation) stands alone. */
static json_t *exchange(const json_t *ask, const json_t *answer)
{
    json_t *said = messages_of(answer, "assistant");
    const char *first = text_of(json_array_get(said, 0), "role");
    if (said && first && strcmp(first, "assistant") != 0)
        return said;
    json_t *all = said ? messages_of(ask, "user") : NULL;
    if (all)
        json_array_extend(all, said);
    json_decref(said);
    return all;
}

/* ---- the forms ---- */

static json_t *from_openai(const json_t *v)
{
    return messages_of(json_object_get(v, "messages"), "user");
}

static const char *sharegpt_role(const char *from)
{
    static const char *const roles[][2] = {
        { "human", "user" },          { "user", "user" },         { "gpt", "assistant" },
        { "assistant", "assistant" }, { "chatgpt", "assistant" }, { "bing", "assistant" },
        { "bard", "assistant" },      { "model", "assistant" },   { "system", "system" },
        { "tool", "tool" },           { "observation", "tool" },  { "function_response", "tool" },
    };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(from, roles[i][0]) == 0)
            return roles[i][1];
    return from; /* the check flags it */
}

static json_t *from_sharegpt(const json_t *v)
{
    json_t *turns = json_object_get(v, "conversations"), *turn, *out = json_array();
    const char *system = text_of(v, "system");
    size_t i;
    if (system && *system)
        json_array_append_new(out, message("system", system));
    json_array_foreach(turns, i, turn)
    {
        const char *from = text_of(turn, "from"), *value = text_of(turn, "value");
        from = from ? from : text_of(turn, "role");
        value = value ? value : text_of(turn, "content");
        if (!from || !value)
            return json_decref(out), NULL;
        json_array_append_new(out, message(sharegpt_role(from), value));
    }
    return json_array_size(turns) ? out : (json_decref(out), NULL);
}

static json_t *from_alpaca(const json_t *v)
{
    const char *ask = text_of(v, "instruction"), *more = text_of(v, "input"),
               *system = text_of(v, "system");
    json_t *answer = json_object_get(v, "output"), *out = NULL;
    if (!ask || !json_is_string(answer))
        return NULL;
    char *whole = more && *more ? cli_printf("%s\n\n%s", ask, more) : strdup(ask);
    json_t *asked = whole ? json_string(whole) : NULL;
    out = asked ? exchange(asked, answer) : NULL;
    if (out && system && *system)
        json_array_insert_new(out, 0, message("system", system));
    json_decref(asked);
    free(whole);
    return out;
}

/* OpenAI's old form and TRL's: texts, or messages on both sides. */
static json_t *from_completion(const json_t *v)
{
    return exchange(json_object_get(v, "prompt"), json_object_get(v, "completion"));
}

/* The preferred answer; preferences themselves are for `train dpo`. */
static json_t *from_preference(const json_t *v)
{
    const json_t *chosen = json_object_get(v, "chosen"), *ask = json_object_get(v, "prompt");
    if (!chosen)
        chosen = json_object_get(v, "preferred_output");
    if (!ask)
        ask = json_object_get(json_object_get(v, "input"), "messages");
    return chosen ? exchange(ask, chosen) : NULL;
}

/* verl: the prompt's messages, and the answer that a reward compares with. */
static json_t *from_verl(const json_t *v)
{
    const json_t *model = json_object_get(v, "reward_model");
    return exchange(json_object_get(v, "prompt"), json_object_get(model, "ground_truth"));
}

static json_t *from_pairs(const json_t *v)
{
    static const char *const asks[] = { "prompt", "question", "problem", "input", "query" };
    static const char *const answers[] = { "answer", "response", "output", "solution" };
    const json_t *ask = NULL, *answer = NULL;
    for (size_t i = 0; i < 5 && !ask; i++)
        ask = json_object_get(v, asks[i]);
    for (size_t i = 0; i < 4 && !answer; i++)
        answer = json_object_get(v, answers[i]);
    return ask && answer ? exchange(ask, answer) : NULL;
}

static const cli_row_form forms[] = {
    { "openai",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
      "\"content\": \"Hello\"}]}",
      from_openai },
    { "sharegpt",
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": \"gpt\", "
      "\"value\": \"Hello\"}]}",
      from_sharegpt },
    { "alpaca", "{\"instruction\": \"Greet.\", \"input\": \"\", \"output\": \"Hello\"}",
      from_alpaca },
    { "completion", "{\"prompt\": \"Hi\", \"completion\": \"Hello\"}", from_completion },
    { "preference", "{\"prompt\": \"Hi\", \"chosen\": \"Hello\", \"rejected\": \"Go away\"}",
      from_preference },
    { "verl",
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2?\"}], \"reward_model\": "
      "{\"ground_truth\": \"4\"}}",
      from_verl },
    { "pairs", "{\"question\": \"2+2?\", \"answer\": \"4\"}", from_pairs },
};

const cli_row_form *cli_row_form_at(size_t i)
{
    return i < sizeof forms / sizeof *forms ? &forms[i] : NULL;
}

const cli_row_form *cli_row_form_named(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    return NULL;
}

json_t *cli_row_messages(const json_t *row, const cli_row_form **form)
{
    for (size_t i = 0; json_is_object(row) && i < sizeof forms / sizeof *forms; i++) {
        json_t *messages = forms[i].convert(row);
        if (messages) {
            if (form)
                *form = &forms[i];
            return messages;
        }
    }
    return NULL;
}

cli_span cli_row_line(cli_span line, char **owned)
{
    static const char key[] = "\"messages\"", inner[] = "\"preferred_output\"";
    *owned = NULL;
    /* Most lines are conversations and need not be read twice; one form has its messages further in. */
    if (memmem(line.data, line.len, key, sizeof key - 1) &&
        !memmem(line.data, line.len, inner, sizeof inner - 1))
        return line;
    json_t *row = json_loadb(line.data, line.len, 0, NULL);
    json_t *messages = cli_row_messages(row, NULL);
    json_t *whole = messages ? json_pack("{s:o}", "messages", messages) : NULL;
    *owned = whole ? json_dumps(whole, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    json_decref(whole);
    json_decref(row);
    return *owned ? (cli_span){ *owned, strlen(*owned) } : line;
}
