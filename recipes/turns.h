/* turns.h - from messages to tokens, turn by turn, without encoding again what was sampled. */
#ifndef TKR_TURNS_H
#define TKR_TURNS_H

#include "recipes/jsontext.h"
#include "tinkc/recipes.h"

typedef struct tkr_format {
    const tinkc_tokenizer *tokenizer;
    const char *renderer;
    const char *const *stop; /* list or NULL */
} tkr_format;

/* The messages of a task's prompt, and its tools (NULL = none). NULL with err set. */
tkc_tree *tkr_turn_task(tkc_arena *, const tinkc_task *, tkc_tree **tools, tinkc_error *err);

/* The prompt for a conversation in which the assistant is to speak next. Appends. */
bool tkr_turn_prompt(const tkr_format *, const tkc_tree *messages, const tkc_tree *tools,
                     tinkc_tokens *out, tinkc_error *err);

/* What follows an answer: `before` ends with the assistant's message, `after` adds to it. If the
 * format keeps the sampled text as it was, *extends is true and the tokens between the answer and
 * the next turn are appended; else the conversation must be begun again with tkr_turn_prompt. */
bool tkr_turn_between(const tkr_format *, const tkc_tree *before, const tkc_tree *after,
                      const tkc_tree *tools, const int32_t *sampled, size_t n, tinkc_tokens *out,
                      bool *extends, tinkc_error *err);

/* The answer as text: without the token or the string that ended it. Replaces. */
bool tkr_turn_text(const tkr_format *, const int32_t *sampled, size_t n, bool stopped,
                   tinkc_text *out, tinkc_error *err);

/* The assistant's message for an environment: content, and tool_calls where the text has
 * <tool_call>{...}</tool_call> blocks. */
tkc_tree *tkr_turn_message(tkc_arena *, const char *text);

#endif
