/* chat_translate.h - a request in another form becomes OpenAI's messages and tools: what the readers of
 * those forms share. Internal.
 *
 * The readers walk over members and items of their own form; everything that is written, in the form
 * that templates take, is written here. The first failure wins, and nothing is checked in between. */
#ifndef TKE_SERVICE_CHAT_TRANSLATE_H
#define TKE_SERVICE_CHAT_TRANSLATE_H

#include "base/json_read.h"
#include "base/json_write.h"

/* Both are false. */
bool tke_chat_wrong(tinkc_error *, const char *what);
bool tke_chat_wrong_member(tinkc_error *, const char *where, tinkc_str key);

/* Errors in the text are the client's. */
tkc_json tke_chat_reader(tinkc_str text, tkc_arena *, tinkc_error *);

/* Reads the next part of a content; its text. data NULL: it is none, and err says why. */
typedef tinkc_str tke_chat_part_fn(tkc_json *, const char *where);
/* The text of a string or of a list of parts, appended to out; null and no value are empty. */
bool tke_chat_texts(tinkc_str value, const char *where, tkc_arena *, tke_chat_part_fn *,
                    tkc_buf *out, tinkc_error *);

/* ---- messages ---- */

typedef struct tke_chat_writer {
    tkc_jsonw w;
    tkc_buf out;
    tkc_arena *arena;
    tkc_buf text, thought; /* of the message that is being gathered */
    tkc_buf calls;         /* of it: items of tool_calls, with commas */
    bool any;              /* there is one */
    tinkc_error *err;
} tke_chat_writer;

void tke_chat_writer_open(tke_chat_writer *, tkc_arena *, tinkc_error *);
/* All messages, in the arena; data NULL: err says why. */
tinkc_str tke_chat_writer_close(tke_chat_writer *);
/* Writes the message that was gathered, if there is one. */
void tke_chat_flush(tke_chat_writer *, const char *role);
/* Writes a message of its own. call_id: of the call whose result it is; data NULL = none. */
void tke_chat_message(tke_chat_writer *, const char *role, tinkc_str call_id, tinkc_str text);
/* Adds a call to the message that is being gathered. arguments: JSON, or a text that is JSON. */
void tke_chat_call(tke_chat_writer *, tinkc_str id, tinkc_str name, tinkc_str arguments,
                   bool is_text);

/* ---- tools ---- */

/* Reads one tool and writes it with tke_chat_tool. */
typedef void tke_chat_tool_fn(tkc_json *, tkc_jsonw *, tinkc_error *);
tinkc_str tke_chat_tools(tinkc_str tools, tkc_arena *, tke_chat_tool_fn *, tinkc_error *);
/* about, schema: data NULL = none. */
void tke_chat_tool(tkc_jsonw *, tinkc_str name, tinkc_str about, tinkc_str schema);
/* A tool_choice that names a function, in the arena. */
tinkc_str tke_chat_named_choice(tinkc_str name, tkc_arena *, tinkc_error *);

#endif
