/* guess_env.c - an environment for `tinkc train rl --env-cmd`: guess a number from 1 to 100.
 *
 * Speaks the line protocol (docs/protocol.md): one JSON object a line on standard input, one answer a
 * line on standard output. Many episodes at once; each has a number of its own, chosen by the seed.
 * The reward is 1 for a hit, less for late ones, 0 after seven wrong guesses.
 *
 *     tinkc env check build/examples/guess_env
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GUESSES = 7, HIGHEST = 100, MOST_EPISODES = 4096 };

typedef struct episode {
    json_int_t id; /* 0 = free */
    int number, guesses;
} episode;

static episode episodes[MOST_EPISODES];

static episode *find(json_int_t id)
{
    for (size_t i = 0; i < MOST_EPISODES; i++)
        if (episodes[i].id == id)
            return &episodes[i];
    return NULL;
}

static json_t *say(const char *text)
{
    return json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", text);
}

static json_t *reset(json_int_t id, unsigned long long seed)
{
    episode *e = find(0);
    if (!e)
        return json_pack("{s:s}", "error", "too many episodes at once");
    seed = (seed ^ seed >> 31) * 0x9E3779B97F4A7C15u;
    *e = (episode){ .id = id, .number = (int)(seed >> 33) % HIGHEST + 1 };
    return say("I think of a number from 1 to 100. Answer with a guess, a number alone.");
}

/* The first whole number in the text; 0 = there is none from 1 to 100. */
static int read_guess(const char *text)
{
    const char *digits = strpbrk(text, "0123456789");
    long n = digits ? strtol(digits, NULL, 10) : 0;
    return n >= 1 && n <= HIGHEST ? (int)n : 0;
}

static json_t *finish(episode *e, double reward)
{
    int guesses = e->guesses;
    e->id = 0;
    return json_pack("{s:f,s:b,s:{s:i}}", "reward", reward, "done", 1, "metrics", "guesses",
                     guesses);
}

static json_t *step(json_int_t id, const char *text)
{
    char hint[80];
    episode *e = id ? find(id) : NULL;
    if (!e)
        return json_pack("{s:s}", "error", "no such episode");
    int guess = read_guess(text);
    e->guesses++;
    if (guess == e->number)
        return finish(e, 1 - 0.1 * (e->guesses - 1));
    if (e->guesses == MOST_GUESSES)
        return finish(e, 0);
    if (guess)
        (void)snprintf(hint, sizeof hint, "%d is too %s.", guess,
                       guess < e->number ? "low" : "high");
    return say(guess ? hint : "A number from 1 to 100, please.");
}

static json_t *answer(const json_t *request)
{
    const char *type = json_string_value(json_object_get(request, "type"));
    const char *text =
        json_string_value(json_object_get(json_object_get(request, "message"), "content"));
    json_int_t id = json_integer_value(json_object_get(request, "episode"));
    if (type && strcmp(type, "reset") == 0)
        return reset(id, (unsigned long long)json_integer_value(json_object_get(request, "seed")));
    if (type && strcmp(type, "step") == 0)
        return step(id, text ? text : "");
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
            fflush(stdout); /* the trainer waits for this line */
        }
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    return 0;
}
