/* env.c - environments: commands and functions that speak the line protocol (docs/protocol.md).
 *
 * Reads and checks answers; what an episode does with them is decided in episodes.c.
 */
#include "recipes/env.h"

#include <stdio.h>
#include <string.h>

struct tinkc_env {
    tkr_children *children; /* or */
    tinkc_env_fn *fn;
    void *user;
    size_t processes, next;
    uint64_t last_id;
};

tinkc_env *tinkc_env_command(const char *command, size_t processes, int64_t timeout_ms,
                             tinkc_recipe_log_fn *log, void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!command || !*command || processes > 256 || timeout_ms < 0)
        tkc_fail(err, TINKC_E_ARGUMENT,
                 "environment: needs a command, up to 256 processes, a time limit");
    tinkc_env *e = tkc_failed(err) ? NULL : tkc_zalloc(NULL, sizeof *e, err);
    if (!e)
        return NULL;
    e->processes = processes ? processes : 1;
    e->children =
        tkr_children_new(&(tkr_children_options){ .command = command,
                                                  .name = "environment",
                                                  .processes = e->processes,
                                                  .asks_each = SIZE_MAX,
                                                  .attempts = 1,
                                                  .timeout_ms = timeout_ms ? timeout_ms : 60000,
                                                  .log = log,
                                                  .user = user },
                         err);
    if (e->children)
        return e;
    tinkc_env_free(e);
    return NULL;
}

bool tinkc_env_pass_env(tinkc_env *e, const char *name, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!e || !e->children)
        return tkc_fail(err, TINKC_E_ARGUMENT, "environment: not a command");
    return tkr_children_pass(e->children, name, err);
}

tinkc_env *tinkc_env_function(tinkc_env_fn *fn, void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!fn)
        tkc_fail(err, TINKC_E_ARGUMENT, "fn: must not be NULL");
    tinkc_env *e = tkc_failed(err) ? NULL : tkc_zalloc(NULL, sizeof *e, err);
    if (e)
        *e = (tinkc_env){ .fn = fn, .user = user, .processes = 1 };
    return e;
}

void tinkc_env_free(tinkc_env *e)
{
    if (!e)
        return;
    tkr_children_free(e->children);
    tkc_release(NULL, e, sizeof *e);
}

int tkr_env_assign(tinkc_env *e)
{
    return (int)(e->next++ % e->processes);
}

size_t tkr_env_starts(const tinkc_env *e, int child)
{
    return e->children ? tkr_children_starts(e->children, child) : 1;
}

tkr_children *tkr_env_children(const tinkc_env *e)
{
    return e->children;
}

void tkr_env_forget(tinkc_env *e, const void *user)
{
    if (e->children)
        tkr_children_forget(e->children, user);
}

/* ---- asking ---- */

static void ask_function(tinkc_env *e, const char *line, tkr_answer_fn *fn, void *user)
{
    tinkc_error err = { 0 };
    tinkc_text text = { 0 };
    tkc_arena arena = { 0 };
    const tkc_tree *v = NULL;
    if (!e->fn(line, &text, e->user, &err))
        tinkc_error_set(&err, TINKC_E_CALLBACK, "the environment's function failed");
    else
        v = tkr_json_parse(&arena, text.data ? text.data : "", text.len, "environment", &err);
    fn(user, v, err.message);
    tkc_arena_free(&arena);
    tinkc_text_free(&text);
}

bool tkr_env_ask(tinkc_env *e, int child, tkc_tree *request, tkr_answer_fn *fn, void *user,
                 tinkc_error *err)
{
    uint64_t id = ++e->last_id;
    tkc_tree_set_i64(request, "id", (int64_t)id);
    char *line = tkr_json_text(request, err);
    bool ok = line && (e->fn || tkr_children_ask(e->children, id, line, child, fn, user, err));
    if (ok && e->fn)
        ask_function(e, line, fn, user);
    tkc_release_str(NULL, line);
    return ok;
}

void tkr_env_close(tinkc_env *e, int child, uint64_t episode)
{
    char line[96];
    (void)snprintf(line, sizeof line, "{\"type\":\"close\",\"episode\":%llu}",
                   (unsigned long long)episode);
    if (e->children) {
        tkr_children_tell(e->children, line, child);
    } else {
        tinkc_text nothing = { 0 };
        (void)e->fn(line, &nothing, e->user, NULL);
        tinkc_text_free(&nothing);
    }
}

/* ---- answers ---- */

static bool broken(char why[TKR_ENV_WHY], const char *what)
{
    (void)snprintf(why, TKR_ENV_WHY, "%s", what);
    return false;
}

static bool are_messages(const tkc_tree *list)
{
    size_t i;
    tkc_tree *m;
    if (!tkc_tree_is_array(list))
        return false;
    for (i = 0; (m = tkc_tree_at(list, i)); i++) {
        const tkc_tree *content = tkc_tree_get(m, "content");
        if (!tkc_tree_get_text(m, "role") ||
            !(tkc_tree_is_text(content) || tkc_tree_is_array(content)))
            return false;
    }
    return true;
}

static bool are_numbers(const tkc_tree *metrics)
{
    const char *name;
    tkc_tree *one;
    if (!tkc_tree_is_object(metrics))
        return false;
    TKC_TREE_EACH (metrics, name, one) {
        if (!tkc_tree_is_number(one))
            return false;
    }
    return true;
}

bool tkr_env_read(const tkc_tree *v, bool reset, tkr_env_answer *out, char why[TKR_ENV_WHY])
{
    const tkc_tree *reward = tkc_tree_get(v, "reward"), *done = tkc_tree_get(v, "done");
    const char *said = tkc_tree_get_text(v, "error");
    *out = (tkr_env_answer){ .messages = tkc_tree_get(v, "messages"),
                             .tools = tkc_tree_get(v, "tools"),
                             .metrics = tkc_tree_get(v, "metrics"),
                             .done = tkc_tree_is_true(done) };
    if (said) {
        (void)snprintf(why, TKR_ENV_WHY, "the environment reports: %.150s", said);
        return false;
    }
    if (!tkc_tree_is_object(v))
        return broken(why, "the answer is not an object");
    if (out->messages && !are_messages(out->messages))
        return broken(why, "\"messages\" is not a list of {\"role\", \"content\"}");
    if (out->tools && !tkc_tree_is_array(out->tools))
        return broken(why, "\"tools\" is not a list");
    if (out->metrics && !are_numbers(out->metrics))
        return broken(why, "\"metrics\" is not an object of numbers");
    if (reward && !tkc_tree_is_null(reward) && !tkr_json_number(v, "reward", &out->reward))
        return broken(why, "\"reward\" is not a finite number");
    if (done && !tkc_tree_is_bool(done))
        return broken(why, "\"done\" is not true or false");
    if (reset && out->done)
        return broken(why, "an episode cannot be done at its reset");
    if (!out->done && tkc_tree_length(out->messages) == 0)
        return broken(
            why, "neither \"messages\" nor \"done\": true, so the model has nothing to answer");
    if (out->done && (!reward || tkc_tree_is_null(reward)))
        return broken(why, "\"done\" without a \"reward\"");
    return true;
}
