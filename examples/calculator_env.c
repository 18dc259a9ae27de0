/* calculator_env.c - an environment with a tool: the model may calculate before it answers.
 *
 * A row gives the task: {"question": "What is 17 * 23?", "answer": 391}; without one the seed makes a
 * product. The model calls the tool as its chat format does (<tool_call>{"name": "calculate",
 * "arguments": {"expression": "17 * 23"}}</tool_call>) or, for models without one, writes a line
 * "calculate: 17 * 23". Anything else is its answer. Line protocol as in guess_env.c.
 *
 *     tinkc env check build/examples/calculator_env
 */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CALLS = 4, MOST_EPISODES = 4096 };

typedef struct episode {
    json_int_t id; /* 0 = free */
    double answer;
    int calls;
} episode;

static episode episodes[MOST_EPISODES];

static episode *find(json_int_t id)
{
    for (size_t i = 0; i < MOST_EPISODES; i++)
        if (episodes[i].id == id)
            return &episodes[i];
    return NULL;
}

/* ---- the tool: one of + - * / between two numbers ---- */

static void calculate(const char *expression, char out[64])
{
    char *end, *last;
    double a = strtod(expression, &end);
    bool ok = end != expression;
    end += strspn(end, " ");
    char op = *end ? *end++ : '\0';
    double b = strtod(end, &last);
    double value = op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b;
    last += strspn(last, " \n");
    if (ok && op && strchr("+-*/", op) && last != end && !*last && isfinite(value))
        (void)snprintf(out, 64, "%.10g", value);
    else
        (void)snprintf(out, 64, "error: not two numbers with + - * / between them");
}

/* ---- the episode ---- */

static json_t *reset(json_int_t id, const json_t *row, unsigned long long seed)
{
    char text[200];
    episode *e = find(0);
    const char *question = json_string_value(json_object_get(row, "question"));
    int a = (int)(seed % 90) + 10, b = (int)(seed / 90 % 90) + 10;
    if (!e)
        return json_pack("{s:s}", "error", "too many episodes at once");
    *e = (episode){ .id = id, .answer = (double)a * b };
    if (question)
        e->answer = json_number_value(json_object_get(row, "answer"));
    (void)snprintf(text, sizeof text, "What is %d * %d?", a, b);
    return json_pack("{s:[{s:s,s:s}],s:[{s:s,s:{s:s,s:s,s:{s:s,s:{s:{s:s}},s:[s]}}}]}", "messages",
                     "role", "user", "content", question ? question : text, "tools", "type",
                     "function", "function", "name", "calculate", "description",
                     "adds, subtracts, multiplies or divides two numbers", "parameters", "type",
                     "object", "properties", "expression", "type", "string", "required",
                     "expression");
}

/* What the model wants calculated; NULL = it does not. */
static const char *wanted(const json_t *message, const char *text)
{
    const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    const char *expression = json_string_value(json_object_get(
        json_object_get(json_object_get(call, "function"), "arguments"), "expression"));
    if (call)
        return expression ? expression : "";
    return strncmp(text, "calculate:", 10) == 0 ? text + 10 : NULL;
}

static json_t *finish(episode *e, double reward)
{
    int calls = e->calls;
    e->id = 0;
    return json_pack("{s:f,s:b,s:{s:i}}", "reward", reward, "done", 1, "metrics", "tool_calls",
                     calls);
}

static json_t *step(json_int_t id, const json_t *message)
{
    char result[64];
    const char *text = json_string_value(json_object_get(message, "content"));
    episode *e = id ? find(id) : NULL;
    if (!e || !text)
        return json_pack("{s:s}", "error", e ? "the message has no text" : "no such episode");
    const char *expression = wanted(message, text);
    if (expression && e->calls++ < MOST_CALLS) {
        calculate(expression, result);
        return json_pack("{s:[{s:s,s:s}]}", "messages", "role", "tool", "content", result);
    }
    const char *number = strpbrk(text, "-0123456789");
    double given = number ? strtod(number, NULL) : NAN;
    return finish(e, fabs(given - e->answer) < 1e-6);
}

static json_t *answer(const json_t *request)
{
    const char *type = json_string_value(json_object_get(request, "type"));
    json_int_t id = json_integer_value(json_object_get(request, "episode"));
    if (type && strcmp(type, "reset") == 0)
        return reset(id, json_object_get(request, "row"),
                     (unsigned long long)json_integer_value(json_object_get(request, "seed")));
    if (type && strcmp(type, "step") == 0)
        return step(id, json_object_get(request, "message"));
    if (type && strcmp(type, "close") == 0) {
        episode *e = id ? find(id) : NULL;
        if (e)
            e->id = 0;
        return NULL; /* is not answered */
    }
    return json_pack("{s:s}", "error", "unknown type");
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, stdin) > 0) {
        json_t *request = json_loads(line, 0, NULL), *reply = request ? answer(request) : NULL;
        if (reply) {
            json_object_set(reply, "id", json_object_get(request, "id"));
            json_dumpf(reply, stdout, JSON_COMPACT);
            putchar('\n');
            fflush(stdout);
        }
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    return 0;
}
