/* chat.h - conversations to text: shared by the chat files.
 *
 * A chat is opened once from the caller's JSON and may then be rendered several times, completely
 * or in part, as the training view needs. [one thread]
 */
#ifndef TKC_TOKENIZER_CHAT_H
#define TKC_TOKENIZER_CHAT_H

#include "chat/template.h"

/* A special token as a template sees it: bos_token and its text. */
typedef struct tkc_chat_name {
    const char *name;
    tinkc_str text;
} tkc_chat_name;

enum { TKC_CHAT_NAMES = 8 };

/* How conversations are written: a template and what belongs to it. */
typedef struct tkc_chat_source {
    const tinkc_template *t;
    tkc_chat_name names[TKC_CHAT_NAMES];
    size_t n_names;
    const char *preset; /* variables of a renderer, a JSON object; NULL = none */
    tinkc_str tools;    /* of the conversation itself, a JSON array; data NULL = none */
    bool cookbook;      /* messages may have parts of type "thinking", as the cookbook's do */
    bool cut_system;    /* leave out the system message that the template adds */
    bool no_thinking;   /* reasoning in a message is an error */
} tkc_chat_source;

/* A cookbook renderer: its own template or the model's, with variables. */
typedef struct tkc_renderer {
    const char *name;
    const char *text;   /* NULL = the model's own template */
    const char *preset; /* NULL = none */
    const char *const *stops;
    bool cut_system, no_thinking, unsupported;
} tkc_renderer;
/* NULL if there is no such renderer. */
const tkc_renderer *tkc_find_renderer(const char *name);

typedef struct tkc_chat {
    const tkc_chat_source *source;
    tkc_arena arena;   /* messages, variables, kept texts */
    tkc_arena scratch; /* of one rendering */
    tkc_arena brief;   /* texts of renderings while keep_briefly is set: its user resets it */
    bool keep_briefly;
    tkc_jev reader; /* the evaluator that made the values */
    tkc_jlimits limits;
    tinkc_error *err;
    tkc_jv messages; /* list of dicts */
    tkc_jv base;     /* dict: every variable except messages and add_generation_prompt */
    tkc_jv wins;     /* dict: the caller's own variables */
} tkc_chat;

/* The result of one rendering. */
typedef struct tkc_rendered {
    tinkc_str text; /* in the chat's arena, or in `brief` */
    tkc_jspan *spans;
    size_t n_spans;
    bool nested_spans;
} tkc_rendered;

/* options may be NULL. A chat that failed to open must be closed as well. */
bool tkc_chat_open(tkc_chat *, const tkc_chat_source *, const char *messages_json,
                   const tinkc_chat_options *, tinkc_error *err);
void tkc_chat_close(tkc_chat *);
/* Renders a list of messages. Pass an err other than the chat's for a rendering that may fail. */
bool tkc_chat_run(tkc_chat *, tkc_jv messages, bool generation_prompt, tkc_rendered *out,
                  tinkc_error *err);
/* The first n messages, as a list. */
tkc_jv tkc_chat_first(tkc_chat *, size_t n);
/* The string under a key of message i; data NULL = not a string. */
tinkc_str tkc_chat_field(tkc_chat *, size_t i, const char *key);

/* Tool calls and empty contents in the forms that the template reads (openai_calls). */
bool tkc_chat_adapt(tkc_chat *);

/* tinkc_chat_render without the search for the template. */
bool tkc_chat_text(const tkc_chat_source *, const char *messages_json, const tinkc_chat_options *,
                   tinkc_text *out, tinkc_error *err);
/* Checks the arguments of the public chat functions. */
bool tkc_chat_check(const tinkc_tokenizer *, const char *messages_json, const tinkc_chat_options *,
                    const void *out, const char *what, tinkc_error *err);
/* The template, special tokens and renderer for a tokenizer, options and a conversation, which stays
 * the caller's and may bring tools (NULL = none does). */
bool tkc_chat_source_of(const tinkc_tokenizer *, const tinkc_chat_options *,
                        const char *messages_json, tkc_chat_source *out, tinkc_error *err);

/* A list with one stop, stored in the tokenizer. Any thread. */
const char *const *tkc_chat_keep_stop(const tinkc_tokenizer *, tinkc_str stop, tinkc_error *err);

#endif
