/* openai_format.h - the form of a chat's answer: response_format and tools. Internal. */
#ifndef TKE_SERVICE_OPENAI_FORMAT_H
#define TKE_SERVICE_OPENAI_FORMAT_H

#include "base/arena.h"
#include "constrain/grammar.h"
#include "service/core/service_types.h"


#define TKE_CALL_END "</tool_call>"

enum tke_call_style { /* how a model writes tool calls */
                      TKE_CALLS_NONE = 0,
                      TKE_CALLS_TAGGED, /* <tool_call>...</tool_call> around {"name", "arguments"} (Hermes, Qwen 2.5, Qwen 3) or <function=...> (Qwen3-Coder) */
                      TKE_CALLS_BARE    /* {"name", "parameters"} as the whole answer: Llama 3 */
};

typedef struct tke_answer_form {
    tinkc_str response_format, tools, tool_choice; /* as received; data NULL = not given */
    bool offers;                                   /* the model is shown the tools */
    bool must_call;
    tinkc_str only; /* the one function to call; data NULL = any */
    int32_t style;  /* TKE_CALLS_*; set by tke_form_style */
} tke_answer_form;

/* Reads tool_choice and checks it against tools. Each of these: false = err and *param say why. */
bool tke_form_read(tke_answer_form *, tkc_arena *, const char **param, tinkc_error *err);
/* Finds how the model with this chat template (may be NULL) writes calls. UNSUPPORTED: the request
 * offers tools, but the template's style is unknown. */
bool tke_form_style(tke_answer_form *, const char *chat_template, const char **param,
                    tinkc_error *err);
/* The grammar that the answer must follow; NULL without err = none. */
const tke_grammar *tke_form_grammar(const tke_answer_form *, tkc_arena *, const char **param,
                                    tinkc_error *err);

/* ---- answers ---- */

/* How many bytes of a growing text are certainly not part of a call. */
size_t tke_calls_certain(int32_t style, tinkc_str text);

typedef struct tke_tool_call {
    tinkc_str name, arguments; /* arguments: a JSON object as text */
} tke_tool_call;
enum { TKE_MOST_CALLS = 32 };
/* Finds the calls in a complete text, and how many bytes come before them. 0 = none, or not
 * readable: then all of it is text, and *before says nothing. tools: the request's, which tell the
 * types of arguments that are written without; data NULL = none. */
size_t tke_calls_read(int32_t style, tinkc_str tools, tinkc_str text, tkc_arena *,
                      tke_tool_call *out, size_t *before);

#endif
