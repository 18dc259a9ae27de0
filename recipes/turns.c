/* turns.c - from messages to tokens, turn by turn.
 *
 * The tokens of an answer are those that were sampled. What the template puts between an answer and
 * the next turn is found in the rendered text: the conversation up to the answer (A) and with what
 * followed (B). If B continues A and A ends with the sampled text and some closing marks, those
 * marks and B's rest are all that must be encoded. Templates that change earlier answers
 * (drop thinking, trim white space) do not allow this; then the caller begins a new example.
 */
#include "recipes/turns.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

tkc_tree *tkr_turn_task(tkc_arena *arena, const tinkc_task *task, tkc_tree **tools,
                        tinkc_error *err)
{
    tkc_tree *v =
        tkr_json_parse(arena, task->messages_json, strlen(task->messages_json), "the prompt", err);
    tkc_tree *list = tkc_tree_is_object(v) ? tkc_tree_get(v, "messages") : v;
    tkc_tree *offered = tkc_tree_get(v, "tools");
    *tools = NULL;
    if (v && tkc_tree_length(list) == 0)
        tkc_fail(err, TINKC_E_ARGUMENT, "the prompt has no messages");
    else if (offered && !tkc_tree_is_null(offered) && !tkc_tree_is_array(offered))
        tkc_fail(err, TINKC_E_ARGUMENT, "\"tools\" is not a list");
    if (tkc_failed(err))
        return NULL;
    if (tkc_tree_length(offered))
        *tools = offered;
    return list;
}

static bool render(const tkr_format *f, const tkc_tree *messages, const tkc_tree *tools,
                   bool prompt, tinkc_text *text, tinkc_tokens *tokens, tinkc_error *err)
{
    char *said = tkr_json_text(messages, err);
    char *tools_text = tkc_tree_length(tools) ? tkr_json_text(tools, err) : NULL;
    tinkc_chat_options o = { .renderer = f->renderer,
                             .tools_json = tools_text,
                             .generation_prompt = prompt,
                             .openai_calls = true };
    bool ok = said && (text ? tinkc_chat_render(f->tokenizer, said, &o, text, err)
                            : tinkc_chat_encode(f->tokenizer, said, &o, tokens, err));
    tkc_release_str(NULL, said);
    tkc_release_str(NULL, tools_text);
    return ok && !tkc_failed(err);
}

bool tkr_turn_prompt(const tkr_format *f, const tkc_tree *messages, const tkc_tree *tools,
                     tinkc_tokens *out, tinkc_error *err)
{
    return render(f, messages, tools, true, NULL, out, err);
}

/* Where the last copy of `part` in `text` ends; 0 = there is none. */
static size_t end_of_last(const tinkc_text *text, const tinkc_text *part)
{
    size_t found = 0;
    for (size_t at = 0; part->len && at + part->len <= text->len;) {
        const char *p = memmem(text->data + at, text->len - at, part->data, part->len);
        if (!p)
            break;
        at = (size_t)(p - text->data) + 1;
        found = at - 1 + part->len;
    }
    return found;
}

bool tkr_turn_between(const tkr_format *f, const tkc_tree *before, const tkc_tree *after,
                      const tkc_tree *tools, const int32_t *sampled, size_t n, tinkc_tokens *out,
                      bool *extends, tinkc_error *err)
{
    tinkc_text a = { 0 }, b = { 0 }, said = { 0 };
    *extends = false;
    bool ok = render(f, before, tools, false, &a, NULL, err) &&
              render(f, after, tools, true, &b, NULL, err);
    if (ok)
        tinkc_decode(f->tokenizer, sampled, n, &said, err);
    size_t end = tkc_failed(err) ? 0 : end_of_last(&a, &said);
    enum { MOST_MARKS = 64 }; /* more than that behind an answer is not a closing mark */
    if (end && a.len - end <= MOST_MARKS && b.len >= a.len && memcmp(a.data, b.data, a.len) == 0) {
        *extends = true;
        tinkc_encode_span(f->tokenizer, b.data + end, b.len - end, NULL, out, NULL, err);
    }
    tinkc_text_free(&a);
    tinkc_text_free(&b);
    tinkc_text_free(&said);
    return !tkc_failed(err);
}

static bool ends_answer(const tkr_format *f, int32_t id)
{
    tinkc_i32s ends = tinkc_tokenizer_ends(f->tokenizer);
    for (size_t i = 0; i < ends.len; i++)
        if (ends.data[i] == id)
            return true;
    return false;
}

bool tkr_turn_text(const tkr_format *f, const int32_t *sampled, size_t n, bool stopped,
                   tinkc_text *out, tinkc_error *err)
{
    if (stopped && n && ends_answer(f, sampled[n - 1]))
        n--;
    tinkc_decode(f->tokenizer, sampled, n, out, err);
    for (size_t i = 0; stopped && f->stop && f->stop[i] && out->data; i++) {
        size_t len = strlen(f->stop[i]);
        if (len && out->len >= len && memcmp(out->data + out->len - len, f->stop[i], len) == 0) {
            out->len -= len;
            out->data[out->len] = '\0';
            break;
        }
    }
    return !tkc_failed(err);
}

/* One call as OpenAI's clients write it; NULL = the block does not hold one. */
static tkc_tree *tool_call(tkc_arena *arena, const char *from, size_t len, size_t number)
{
    const tkc_tree *v = tkc_tree_read(arena, tkc_strn(from, len), 0);
    char id[32];
    const char *name = tkc_tree_get_text(v, "name");
    const tkc_tree *arguments = tkc_tree_get(v, "arguments");
    (void)snprintf(id, sizeof id, "call_%zu", number);
    return name ? tkc_tree_pack(arena, "{s:s,s:s,s:{s:s,s:o?}}", "id", id, "type", "function",
                                "function", "name", name, "arguments", arguments)
                : NULL;
}

tkc_tree *tkr_turn_message(tkc_arena *arena, const char *text)
{
    static const char open[] = "<tool_call>", close[] = "</tool_call>";
    tkc_tree *m = tkc_tree_pack(arena, "{s:s,s:s}", "role", "assistant", "content", text),
             *calls = tkc_tree_array(arena);
    for (const char *p = text; calls && (p = strstr(p, open));) {
        p += sizeof open - 1;
        const char *end = strstr(p, close);
        if (end)
            tkc_tree_add(calls, tool_call(arena, p, (size_t)(end - p), tkc_tree_length(calls)));
    }
    if (tkc_tree_length(calls))
        tkc_tree_set(m, "tool_calls", calls);
    return m;
}
