/* openai_format.h - what a chat request says of the form of its answer: response_format, tools. Internal. */
#ifndef TKE_SERVICE_OPENAI_FORMAT_H
#define TKE_SERVICE_OPENAI_FORMAT_H

#include "service/service_state.h"

enum tke_call_style { /* how a model writes the calls of functions */
                      TKE_CALLS_NONE = 0,
                      TKE_CALLS_TAGGED, /* <tool_call>{"name", "arguments"}</tool_call>: Hermes, Qwen 2.5, Qwen 3 */
                      TKE_CALLS_BARE /* {"name", "parameters"} as the whole answer: Llama 3 */
};

typedef struct tke_answer_form {
    tinkc_str response_format, tools, tool_choice; /* as they came; data NULL = not given */
    bool offers;                                   /* the model is shown the tools */
    bool must_call;
    tinkc_str only; /* the one function to call; data NULL = any */
    int32_t style;  /* TKE_CALLS_*; set by tke_form_style */
} tke_answer_form;

/* Reads tool_choice and checks what stands beside it. Each of these: false = err and *param say why. */
bool tke_form_read(tke_answer_form *, tkc_arena *, const char **param, tinkc_error *err);
/* How the model with this chat template (may be NULL) writes calls. UNSUPPORTED: not in a way that is
 * known, though the request offers tools. */
bool tke_form_style(tke_answer_form *, const char *chat_template, const char **param,
                    tinkc_error *err);
/* The grammar that the answer must follow; NULL without err = none. */
const tke_grammar *tke_form_grammar(const tke_answer_form *, tkc_arena *, const char **param,
                                    tinkc_error *err);

/* ---- answers ---- */

/* How many bytes of a text that grows are surely not part of a call. */
size_t tke_calls_certain(int32_t style, tinkc_str text);

typedef struct tke_tool_call {
    tinkc_str name, arguments; /* arguments: a JSON object as text */
} tke_tool_call;
enum { TKE_MOST_CALLS = 32 };
/* The calls of a whole text, and how many bytes of it come before them. 0 = there are none, or they
 * cannot be read: then all of it is text. */
size_t tke_calls_read(int32_t style, tinkc_str text, tkc_arena *, tke_tool_call *out,
                      size_t *before);

#endif
