/* row_forms.c - the forms of rows. Pure: JSON in, JSON out; called by many threads. */
#include "cli/data/row_forms.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"
#include "cli/output/text.h"

/* What a form finds in a row. */
typedef struct parts {
    tkc_arena *arena;       /* of what is made */
    tkc_tree *asked;        /* the messages before the answer, or all; NULL = none */
    const tkc_tree *better; /* the answer; NULL = it is among the messages */
    const tkc_tree *worse;  /* an answer that is not to be given; NULL = none */
    bool tie;
    const char *used[8]; /* members of the row that were read */
    size_t n_used;
} parts;

struct cli_row_form {
    const char *name;                                                /* as --from takes it */
    const char *example;                                             /* one line */
    bool (*read)(const tkc_tree *row, parts *out,
                 cli_row_fault *why); /* false = not of this form */
};

static const tkc_tree *at(const tkc_tree *v, const char *key)
{
    return tkc_tree_get(v, key);
}

static const char *text_of(const tkc_tree *v, const char *key)
{
    return tkc_tree_text(at(v, key));
}

/* A member that the form reads; NULL = it is not there. */
static const tkc_tree *take(const tkc_tree *row, const char *key, parts *out)
{
    const tkc_tree *v = at(row, key);
    if (v && out->n_used < sizeof out->used / sizeof *out->used)
        out->used[out->n_used++] = key;
    return v;
}

/* ---- the forms ---- */

/* `name`: of the member, for the fault. */
static bool read_asked(const tkc_tree *v, const char *name, parts *out, cli_row_fault *why)
{
    out->asked = tkc_tree_is_number(v) ? NULL : cli_turns_of(out->arena, v, "user", false);
    if (!out->asked)
        cli_row_fault_set(why, "\"%s\" is neither a text nor a list of messages", name);
    return out->asked != NULL;
}

/* The last answer may stand apart, beside one that is worse. A whole conversation there says again
 * what the messages say. */
static void read_choice(const tkc_tree *row, parts *out)
{
    const tkc_tree *chosen = take(row, "chosen", out), *rejected = take(row, "rejected", out);
    if (tkc_tree_is_object(chosen) || tkc_tree_is_text(chosen)) {
        out->better = chosen;
        out->worse = rejected;
    }
}

/* Faults in them are left to the check of messages, which says more. */
static bool read_openai(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    const tkc_tree *messages = take(row, "messages", out);
    (void)why;
    out->asked =
        tkc_tree_is_array(messages) ? cli_turns_of(out->arena, messages, NULL, true) : NULL;
    read_choice(row, out);
    return out->asked != NULL;
}

static bool read_sharegpt(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    const char *name = at(row, "conversations") ? "conversations" : "conversation";
    const tkc_tree *turns = take(row, name, out);
    if (!turns)
        return false;
    out->asked = tkc_tree_is_array(turns) ? cli_turns_of(out->arena, turns, NULL, false) : NULL;
    read_choice(row, out);
    if (!out->asked)
        cli_row_fault_set(why,
                          "\"%s\" must be a list of turns, each with texts \"from\" and \"value\"; "
                          "the value of a function_call is JSON with name and arguments",
                          name);
    return out->asked != NULL;
}

/* Turns before the request, as pairs of texts. */
static bool put_history(tkc_arena *arena, const tkc_tree *history, tkc_tree *asked)
{
    for (size_t i = tkc_tree_length(history); i-- > 0;) {
        const tkc_tree *pair = tkc_tree_at(history, i);
        const char *ask = tkc_tree_text(tkc_tree_at(pair, 0)),
                   *answer = tkc_tree_text(tkc_tree_at(pair, 1));
        if (!ask || !answer || tkc_tree_length(pair) != 2)
            return false;
        tkc_tree_insert(asked, 0,
                        tkc_tree_pack(arena, "{s:s,s:s}", "role", "assistant", "content", answer));
        tkc_tree_insert(asked, 0,
                        tkc_tree_pack(arena, "{s:s,s:s}", "role", "user", "content", ask));
    }
    return !history || tkc_tree_is_null(history) || tkc_tree_is_array(history);
}

/* Alpaca's, Dolly's with other names, and LLaMA-Factory's with two answers. */
static bool read_alpaca(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    const char *ask = tkc_tree_text(take(row, "instruction", out));
    if (!ask)
        return false;
    const char *more = tkc_tree_text(take(row, at(row, "input") ? "input" : "context", out));
    char *whole = more && *more ? cli_printf("%s\n\n%s", ask, more) : strdup(ask);
    if (whole)
        out->asked = tkc_tree_pack(out->arena, "[{s:s,s:s}]", "role", "user", "content", whole);
    free(whole);
    out->better = take(row, at(row, "output") ? "output" : "response", out);
    if (!out->better)
        read_choice(row, out);
    if (!out->better)
        cli_row_fault_set(why, "\"instruction\" needs \"output\", \"response\" or \"chosen\"");
    else if (out->asked && !put_history(out->arena, take(row, "history", out), out->asked))
        cli_row_fault_set(why, "\"history\" must be a list of [request, answer], both texts");
    else
        return out->asked != NULL;
    return false;
}

/* OpenAI's old form and TRL's: texts, or messages on both sides. */
static bool read_completion(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    out->better = take(row, "completion", out);
    return out->better && read_asked(take(row, "prompt", out), "prompt", out, why);
}

/* The cookbook's: two answers, and which of them is better. */
static bool read_comparison(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    const tkc_tree *c = take(row, "comparison", out), *a = at(c, "completion_A"),
                   *b = at(c, "completion_B");
    const char *label = tkc_tree_text(take(row, "label", out));
    bool second = label && strcmp(label, "B") == 0;
    out->tie = label && strcmp(label, "Tie") == 0;
    out->better = second ? b : a;
    out->worse = second ? a : b;
    out->asked = cli_turns_of(out->arena, at(c, "prompt_conversation"), "user", false);
    if (out->asked && a && b && label && (second || out->tie || strcmp(label, "A") == 0))
        return true;
    cli_row_fault_set(why, "\"comparison\" needs prompt_conversation, completion_A, completion_B, "
                           "and a label A, B or Tie");
    return false;
}

static bool read_preferred_output(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    out->better = take(row, "preferred_output", out);
    out->worse = take(row, "non_preferred_output", out);
    return read_asked(at(take(row, "input", out), "messages"), "input.messages", out, why);
}

/* Sft learns the better answer; both are for `train dpo`. Answers may be whole conversations. */
static bool read_preference(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    if (at(row, "comparison"))
        return read_comparison(row, out, why);
    if (at(row, "preferred_output"))
        return read_preferred_output(row, out, why);
    out->better = take(row, "chosen", out);
    out->worse = take(row, "rejected", out);
    const char *name = at(row, "prompt") ? "prompt" : "question";
    const tkc_tree *ask = out->better ? take(row, name, out) : NULL;
    return out->better && (!ask || read_asked(ask, name, out, why));
}

/* verl: the prompt's messages, and the answer that a reward compares with. */
static bool read_verl(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    const tkc_tree *model = take(row, "reward_model", out);
    if (!model)
        return false;
    out->better = at(model, "ground_truth");
    if (tkc_tree_is_text(out->better) || tkc_tree_is_number(out->better))
        return read_asked(take(row, "prompt", out), "prompt", out, why);
    cli_row_fault_set(why,
                      "reward_model.ground_truth is not a text or a number that can be learnt; "
                      "tinkc train rl takes rows with rewards");
    return false;
}

static const char *first_of(const tkc_tree *row, const char *const *names)
{
    while (*names && !at(row, *names))
        names++;
    return *names;
}

static bool read_pairs(const tkc_tree *row, parts *out, cli_row_fault *why)
{
    static const char *const asks[] = { "prompt", "question", "problem", "input", "query", NULL },
                             *const answers[] = { "answer", "response", "output", "solution",
                                                  NULL };
    const char *ask = first_of(row, asks), *answer = first_of(row, answers);
    if (ask && !answer)
        cli_row_fault_set(why,
                          "\"%s\" has no answer beside it (\"completion\", \"answer\", ...); "
                          "tinkc train rl takes prompts alone",
                          ask);
    if (!ask || !answer)
        return false;
    out->better = take(row, answer, out);
    return read_asked(take(row, ask, out), ask, out, why);
}

static const cli_row_form forms[] = {
    { "openai",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
      "\"content\": \"Hello\"}]}",
      read_openai },
    { "sharegpt",
      "{\"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": \"gpt\", "
      "\"value\": \"Hello\"}]}",
      read_sharegpt },
    { "alpaca", "{\"instruction\": \"Greet.\", \"input\": \"\", \"output\": \"Hello\"}",
      read_alpaca },
    { "completion", "{\"prompt\": \"Hi\", \"completion\": \"Hello\"}", read_completion },
    { "preference", "{\"prompt\": \"Hi\", \"chosen\": \"Hello\", \"rejected\": \"Go away\"}",
      read_preference },
    { "verl",
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2?\"}], \"reward_model\": "
      "{\"ground_truth\": \"4\"}}",
      read_verl },
    { "pairs", "{\"question\": \"2+2?\", \"answer\": \"4\"}", read_pairs },
};
enum { FORMS = sizeof forms / sizeof *forms };

bool cli_row_form_at(size_t i, const char **name, const char **example)
{
    if (i >= FORMS)
        return false;
    *name = forms[i].name;
    *example = forms[i].example;
    return true;
}

const cli_row_form *cli_row_form_named(const char *name)
{
    for (size_t i = 0; i < FORMS; i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    return NULL;
}

/* ---- members ---- */

/* Nothing is lost with it. */
static bool is_empty(const tkc_tree *v)
{
    return tkc_tree_is_null(v) || (tkc_tree_is_text(v) && tkc_tree_str(v).len == 0) ||
           (tkc_tree_is_array(v) && tkc_tree_length(v) == 0) ||
           (tkc_tree_is_object(v) && tkc_tree_members(v) == 0);
}

/* ---- whole rows ---- */

/* Which member is now the first message; NULL = none, as the messages bring their own. */
static const char *put_system(tkc_arena *arena, const tkc_tree *row, tkc_tree *messages)
{
    const char *name = text_of(row, "system") ? "system" : "system_prompt",
               *text = text_of(row, name);
    if (!text || !*text || strcmp(cli_turns_begin(messages), "system") == 0)
        return NULL;
    tkc_tree_insert(messages, 0,
                    tkc_tree_pack(arena, "{s:s,s:s}", "role", "system", "content", text));
    return name;
}

/* true and false, which some data sets write as 1 and 0. */
static bool is_label(const tkc_tree *v)
{
    return tkc_tree_is_bool(v) ||
           (tkc_tree_is_i64(v) && (tkc_tree_i64(v) == 0 || tkc_tree_i64(v) == 1));
}

/* The member that marks an answer as good or bad, as KTO needs it; NULL = there is none. */
static const char *label_of(const tkc_tree *row)
{
    const tkc_tree *label = at(row, "label");
    if (is_label(at(row, "kto_tag")))
        return "kto_tag";
    bool answer = tkc_tree_is_bool(label) || (at(row, "prompt") && at(row, "completion"));
    return answer && is_label(label) ? "label" : NULL;
}

static bool is_good(const tkc_tree *label)
{
    return tkc_tree_is_true(label) || tkc_tree_i64(label) == 1;
}

static bool was_read(const parts *p, const char *member)
{
    for (size_t i = 0; i < p->n_used; i++)
        if (strcmp(p->used[i], member) == 0)
            return true;
    return strcmp(member, "messages") == 0 || strcmp(member, "tools") == 0 ||
           strcmp(member, "functions") == 0;
}

/* The row around messages (NULL gives NULL): its tools, and what was not read. */
static tkc_tree *whole_row(const tkc_tree *row, const parts *p, tkc_tree *messages,
                           cli_row_fault *why)
{
    tkc_tree *tools = messages ? cli_turns_tools(p->arena, row, why) : NULL, *value;
    if (!messages || (!tools && why->text[0]))
        return NULL;
    const char *system = put_system(p->arena, row, messages), *label = label_of(row), *key;
    tkc_tree *out = tkc_tree_pack(p->arena, "{s:o}", "messages", messages);
    if (tools)
        tkc_tree_set(out, "tools", tools);
    TKC_TREE_EACH (row, key, value) {
        bool used = was_read(p, key) || (system && strcmp(key, system) == 0) ||
                    (label && strcmp(key, label) == 0);
        if (!used && !is_empty(value))
            tkc_tree_set(out, key, value);
    }
    return out;
}

/* The messages with this answer; NULL = it does not fit (why). */
static tkc_tree *answered(const parts *p, const tkc_tree *answer, cli_row_fault *why)
{
    if (!answer)
        return tkc_tree_copy(p->arena, p->asked);
    tkc_tree *said = cli_turns_of(p->arena, answer, "assistant", false);
    const char *first = cli_turns_begin(said);
    if (said && strcmp(first, "assistant") != 0)
        return said; /* a whole conversation */
    tkc_tree *all = said && p->asked ? tkc_tree_copy(p->arena, p->asked) : NULL;
    if (all)
        tkc_tree_add_all(all, said);
    else
        cli_row_fault_set(why, said ? "the answer needs a \"prompt\", or messages that begin with "
                                      "the request"
                                    : "the answer is neither a text nor messages");
    return all;
}

/* Rows that no form may take, with what to do. */
static bool is_refused(const tkc_tree *row, cli_row_fault *why)
{
    static const struct {
        const char *member, *why;
    } refused[] = {
        { "images", "\"images\" cannot be learnt: remove such rows" },
        { "videos", "\"videos\" cannot be learnt: remove such rows" },
        { "audios", "\"audios\" cannot be learnt: remove such rows" },
        { "completions",
          "\"completions\" are steps that are judged one by one: write the good ones "
          "as one \"completion\"" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (at(row, refused[i].member) && !is_empty(at(row, refused[i].member)))
            return cli_row_fault_set(why, "%s", refused[i].why) == NULL;
    return false;
}

/* Both answers, or the better one alone, in this form. */
static cli_row_sides read_as(tkc_arena *arena, const tkc_tree *row, const cli_row_form *form,
                             bool both, cli_row_fault *why)
{
    parts p = { .arena = arena };
    cli_row_sides s = { 0 };
    cli_row_fault own = { "" };
    if (form->read(row, &p, &own) && (p.worse || !both)) {
        s.tie = p.tie;
        if (!p.tie)
            s.chosen = whole_row(row, &p, answered(&p, p.better, &own), &own);
        if (s.chosen && both)
            s.rejected = whole_row(row, &p, answered(&p, p.worse, &own), &own);
    }
    bool meant = !both || p.worse || form->read == read_preference;
    if (own.text[0] && meant)
        cli_row_fault_set(why, "%s", own.text);
    return s;
}

static tkc_tree *any_conversation(tkc_arena *arena, const tkc_tree *row, const cli_row_form *form,
                                  cli_row_fault *why)
{
    cli_row_sides s = { 0 };
    for (size_t i = 0; i < FORMS && !s.chosen && !s.tie; i++)
        if (!form || form == &forms[i])
            s = read_as(arena, row, &forms[i], false, why);
    if (s.chosen)
        why->text[0] = '\0';
    else if (s.tie)
        cli_row_fault_set(why, "a tie has no better answer to learn");
    else if (text_of(row, "text"))
        cli_row_fault_set(why, "\"text\" has no turns: write it as \"prompt\" and \"completion\"");
    return s.chosen;
}

tkc_tree *cli_row_conversation(tkc_arena *arena, const tkc_tree *row, const cli_row_form *form,
                               cli_row_fault *why)
{
    const char *label = label_of(row);
    why->text[0] = '\0';
    if (!tkc_tree_is_object(row) || is_refused(row, why))
        return NULL;
    if (label && !is_good(at(row, label)))
        return cli_row_fault_set(why, "the answer is marked as a bad one, and sft would learn it: "
                                      "remove such rows, or use tinkc train dpo --loss kto");
    return any_conversation(arena, row, form, why);
}

tkc_tree *cli_row_marked(tkc_arena *arena, const tkc_tree *row, bool *good, cli_row_fault *why)
{
    const char *label = label_of(row);
    why->text[0] = '\0';
    *good = label && is_good(at(row, label));
    tkc_tree *made =
        label && !is_refused(row, why) ? any_conversation(arena, row, NULL, why) : NULL;
    const tkc_tree *given = at(row, "label");
    if (made)
        return made;
    return cli_row_fault_set(why, given && !is_label(given)
                                      ? "\"label\" is neither true nor false (nor 1 or 0)"
                                      : "needs \"prompt\", \"completion\" and \"label\": true or "
                                        "false");
}

cli_row_sides cli_row_preference(tkc_arena *arena, const tkc_tree *row, cli_row_fault *why)
{
    cli_row_sides s = { 0 };
    why->text[0] = '\0';
    bool refused = is_refused(row, why);
    for (size_t i = 0; i < FORMS && !refused && !s.rejected && !s.tie; i++)
        s = read_as(arena, row, &forms[i], true, why);
    if (!s.rejected && !s.tie)
        cli_row_fault_set(why, "needs \"chosen\" and \"rejected\": texts with a \"prompt\", or "
                               "messages");
    return s;
}

/* ---- lines ---- */

/* Members that make a line with "messages" more than a conversation. */
static bool counts(const char *end, size_t before, const char *value, const char *stop)
{
    static const char *const names[] = {
        "from",   "label",         "kto_tag",          "chosen",        "system",
        "tools",  "images",        "preferred_output", "functions",     "videos",
        "audios", "system_prompt", "completions",      "function_call", "content"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (before > n && memcmp(end - n, names[i], n) == 0 && end[-1 - (ptrdiff_t)n] == '"')
            return strcmp(names[i], "content") != 0 || (value < stop && *value == '[');
    }
    return false;
}

/* Most lines are conversations and need not be read twice. Each member ends with '":'. */
static bool is_plain(cli_span line)
{
    const char *stop = line.data + line.len, *p = line.data;
    if (!memmem(line.data, line.len, "\"messages\"", 10))
        return false;
    for (; (p = memchr(p, ':', (size_t)(stop - p))); p++) {
        const char *end = p, *value = p + 1;
        while (end > line.data && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        while (value < stop && (*value == ' ' || *value == '\t'))
            value++;
        if (end > line.data && end[-1] == '"' &&
            counts(end - 1, (size_t)(end - 1 - line.data), value, stop))
            return false;
    }
    return true;
}

cli_span cli_row_line(cli_span line, char **owned, cli_row_fault *why)
{
    *owned = NULL;
    why->text[0] = '\0';
    if (is_plain(line))
        return line;
    tkc_arena arena = { 0 };
    const tkc_tree *row = tkc_tree_read(&arena, tkc_strn(line.data, line.len), 0);
    const tkc_tree *whole = row ? cli_row_conversation(&arena, row, NULL, why) : NULL;
    *owned = whole ? cli_json_dump(whole) : NULL;
    tkc_arena_free(&arena);
    return *owned ? (cli_span){ *owned, strlen(*owned) } : line;
}
