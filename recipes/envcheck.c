/* envcheck.c - does a command speak the environment protocol? (docs/protocol.md)
 *
 * Plays the part of the trainer against one process and looks at every answer. Each check stands
 * for a sentence of the page; a check that fails names the line that broke it.
 */
#include <stdio.h>
#include <string.h>

#include "recipes/env.h"

enum { MOST_TURNS = 64 };

typedef struct checking {
    tkr_children *child;
    int64_t timeout_ms;
    tinkc_env_check_fn *say;
    void *user;
    uint64_t last_id;
    bool all_passed;
    tkc_tree *row;
    tkc_arena arena; /* of row, requests and answers */
} checking;

typedef struct reply {
    tkc_arena *arena;
    tkc_tree *answer;
    char why[TKR_ENV_WHY];
    bool came;
} reply;

static void on_answer(void *user, const tkc_tree *answer, const char *why)
{
    reply *r = user;
    r->came = true;
    r->answer = tkc_tree_clone(r->arena, answer);
    (void)snprintf(r->why, sizeof r->why, "%s", why ? why : "");
}

static bool verdict(checking *c, const char *check, bool passed, const char *detail)
{
    c->all_passed = c->all_passed && passed;
    c->say(check, passed, passed ? "" : detail, c->user);
    return passed;
}

/* Asks and waits for the answer. */
static void ask(checking *c, tkc_tree *request, reply *out)
{
    tinkc_error err = { 0 };
    uint64_t id = ++c->last_id;
    *out = (reply){ .arena = &c->arena };
    tkc_tree_set_i64(request, "id", (int64_t)id);
    char *line = tkr_json_text(request, &err);
    if (line)
        tkr_children_ask(c->child, id, line, 0, on_answer, out, &err);
    while (!out->came && !err.code && tkr_children_run(c->child, &err)) {
        struct pollfd fds[8];
        int64_t until = tkr_now_ms() + c->timeout_ms;
        size_t n = out->came ? 0 : tkr_children_poll(c->child, fds, 8, &until);
        int64_t left = until - tkr_now_ms();
        if (!out->came)
            (void)poll(fds, (nfds_t)n, (int)(left < 0 ? 0 : left));
    }
    if (err.code && !out->came) {
        tkr_children_forget(c->child, out);
        (void)snprintf(out->why, sizeof out->why, "%.190s", err.message);
    }
    tkc_release_str(NULL, line);
}

static tkc_tree *reset_of(checking *c, int episode, int seed)
{
    return tkc_tree_pack(&c->arena, "{s:s,s:i,s:o,s:i}", "type", "reset", "episode", episode, "row",
                         c->row, "seed", seed);
}

static tkc_tree *step_of(checking *c, int episode, const char *text, size_t turn)
{
    return tkc_tree_pack(&c->arena, "{s:s,s:i,s:{s:s,s:s},s:I,s:s}", "type", "step", "episode",
                         episode, "message", "role", "assistant", "content", text, "turn",
                         (int64_t)turn, "stop_reason", "stop");
}

/* ---- the checks ---- */

static bool check_reset(checking *c, int episode, int seed, const char *name, tkc_tree **messages)
{
    reply r;
    tkr_env_answer a;
    char why[TKR_ENV_WHY];
    ask(c, reset_of(c, episode, seed), &r);
    if (!r.answer)
        return verdict(c, name, false, r.why);
    bool ok = tkr_env_read(r.answer, true, &a, why);
    if (ok && messages)
        *messages = (tkc_tree *)(uintptr_t)a.messages;
    return verdict(c, name, ok, why);
}

static void check_seed(checking *c)
{
    tkc_tree *first = NULL, *second = NULL;
    if (check_reset(c, 1, 7, "reset gives messages", &first) &&
        check_reset(c, 2, 7, "a second episode begins beside the first", &second))
        verdict(c, "the same row and seed give the same messages", tkc_tree_equal(first, second),
                "two resets with seed 7 differ");
}

/* Plays a complete episode with answers that every environment must accept. */
static bool play(checking *c, int episode, const char *const *texts, size_t n,
                 char why[TKR_ENV_WHY])
{
    for (size_t turn = 0; turn < MOST_TURNS; turn++) {
        reply r;
        tkr_env_answer a;
        ask(c, step_of(c, episode, texts[turn % n], turn + 1), &r);
        bool ok = r.answer && tkr_env_read(r.answer, false, &a, why);
        bool done = ok && a.done;
        if (!r.answer)
            (void)snprintf(why, TKR_ENV_WHY, "%s", r.why);
        if (!ok || done)
            return ok;
    }
    (void)snprintf(why, TKR_ENV_WHY, "it did not end within %d turns", MOST_TURNS);
    return false;
}

static void check_steps(checking *c)
{
    static const char *const plain[] = { "1", "50", "Hello.", "7" };
    static const char *const odd[] = { "", "\n\n", "\xF0\x9F\x90\x99 \"quoted\" \\ {}", "-1e309",
                                       "<tool_call>{\"name\": 7}</tool_call>" };
    char why[TKR_ENV_WHY] = "";
    bool ok = play(c, 1, plain, 4, why);
    verdict(c, "steps are answered and the episode ends", ok, why);
    ok = play(c, 2, odd, 5, why);
    verdict(c, "the other episode stands odd answers", ok, why);
}

static void check_faults(checking *c)
{
    reply r;
    ask(c, step_of(c, 1, "1", 1), &r);
    verdict(c, "a step of an episode that is over is answered with an error",
            r.answer && tkc_tree_get_text(r.answer, "error"),
            r.answer ? "the answer has no \"error\"" : r.why);
    ask(c, tkc_tree_pack(&c->arena, "{s:s,s:i}", "type", "sing", "episode", 1), &r);
    verdict(c, "an unknown type is answered with an error",
            r.answer && tkc_tree_get_text(r.answer, "error"),
            r.answer ? "the answer has no \"error\"" : r.why);
}

static void check_close(checking *c)
{
    if (!check_reset(c, 3, 9, "a later episode begins", NULL))
        return;
    tkr_children_tell(c->child, "{\"type\":\"close\",\"episode\":3}", 0);
    size_t before = tkr_children_starts(c->child, 0);
    if (check_reset(c, 4, 9, "close ends an episode without an answer", NULL))
        verdict(c, "one process served all episodes",
                tkr_children_starts(c->child, 0) == before && before == 1,
                "the process ended during the check");
}

bool tinkc_env_check(const char *command, const char *row_json, int64_t timeout_ms,
                     tinkc_env_check_fn *say, void *user, tinkc_error *err)
{
    return tinkc_env_check_passing(NULL, command, row_json, timeout_ms, say, user, err);
}

bool tinkc_env_check_passing(const char *const *pass, const char *command, const char *row_json,
                             int64_t timeout_ms, tinkc_env_check_fn *say, void *user,
                             tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!command || !say)
        return tkc_fail(err, TINKC_E_ARGUMENT, "a command and a function are required");
    checking c = {
        .timeout_ms = timeout_ms ? timeout_ms : 10000, .say = say, .user = user, .all_passed = true
    };
    const char *row = row_json ? row_json : "{}";
    c.row = tkr_json_parse(&c.arena, row, strlen(row), "row", err);
    tkr_children_options how = { .command = command,
                                 .name = "environment",
                                 .processes = 1,
                                 .asks_each = SIZE_MAX,
                                 .attempts = 1,
                                 .timeout_ms = c.timeout_ms };
    c.child = c.row ? tkr_children_new(&how, err) : NULL;
    for (; c.child && pass && *pass && !tkc_failed(err); pass++)
        (void)tkr_children_pass(c.child, *pass, err);
    if (c.child && !tkc_failed(err)) {
        check_seed(&c);
        if (c.all_passed) {
            check_steps(&c);
            check_faults(&c);
            check_close(&c);
        }
    }
    tkr_children_free(c.child);
    tkc_arena_free(&c.arena);
    return c.all_passed && !tkc_failed(err);
}
