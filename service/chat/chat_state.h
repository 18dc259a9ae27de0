/* chat_state.h - requests for text in OpenAI's and Anthropic's forms: what their readers, the jobs and the
 * writers of their answers share. Internal. */
#ifndef TKE_SERVICE_CHAT_STATE_H
#define TKE_SERVICE_CHAT_STATE_H

#include "constrain/token_mask.h"
#include "device/device.h"
#include "infer/infer.h"
#include "infer/infer_state.h"
#include "service/chat/openai_format.h"
#include "service/worker/sample_events.h"
#include "wire/message_codec.h"

/* ---- requests ---- */

enum { TKE_CHAT_STOPS = 16 };

typedef struct tke_chat_prompt {
    tinkc_str text; /* data NULL: ids */
    tinkc_i32s ids;
} tke_chat_prompt;

/* A request as its form's reader has checked it. */
typedef struct tke_chat_request {
    bool chat;
    tinkc_str model;      /* a name, tinker://PATH, or NAME;tinker://PATH */
    tinkc_str messages;   /* of a chat: OpenAI's messages, a JSON array; data NULL = not given */
    tke_answer_form form; /* of a chat */
    tke_chat_prompt *prompts; /* of a chat: one, left empty */
    size_t n_prompts;
    bool stream, usage, echo, logprobs;
    bool two_limits;         /* max_tokens and max_completion_tokens, which differ */
    bool prefill;            /* the last message is the beginning of the answer */
    bool one_call;           /* at most one tool call */
    tinkc_str effort;        /* how much the model is to think; data NULL = as it does by default */
    const char *effort_name; /* of that member, in this form */
    tkc_opt_i64 max_tokens, seed;
    int64_t usual_tokens;  /* without max_tokens; 0 = all that fit */
    int64_t n, top, top_k; /* top_k 0 = off */
    double temperature, top_p, presence_penalty, frequency_penalty;
    const tke_bias *biases; /* sorted, each token once */
    size_t n_biases;
    tinkc_str stops[TKE_CHAT_STOPS];
    size_t n_stops;
    const char *prefix; /* of the answer's id */
    const tke_stream_style *whole, *events;
    const char *settings; /* JSON members of an answer that repeat the request; NULL = none */
} tke_chat_request;

/* Samples what a checked request asks for, and answers the call in its style. */
void tke_chat_complete(tke_call *, tke_chat_request *);
/* Answers with the number of tokens of a chat's prompt: {"input_tokens": N}. */
void tke_chat_count(tke_call *, tke_chat_request *);
/* Both answer the call, and are false. The second: with call->err; 404 becomes 400. */
bool tke_chat_refuse(tke_call *, const char *param, const char *text);
bool tke_chat_refuse_failure(tke_call *, const char *param);

/* ---- answers ---- */

/* One choice in progress. */
typedef struct tke_chat_choice {
    tkc_buf held;      /* bytes that may still become a stop string or a call */
    size_t n_seen;     /* tokens of the sequence that went into held */
    size_t n_sent;     /* bytes sent as text */
    size_t n_told;     /* tokens whose log-probs are sent, echo included */
    size_t told_bytes; /* bytes of those that were generated */
    size_t told_chars; /* characters of all */
    bool begun, finished;
    tinkc_str stopped_by; /* the stop string that ended it; data NULL = none */
    /* Of forms that tell thoughts from text: */
    tkc_buf unsent; /* text that may still become a mark */
    int32_t kind;   /* TKE_BLOCK_*: of what comes next; NONE = not known yet */
    int32_t block;  /* the block that is open; NONE = none */
    size_t n_blocks;
    bool skips_space; /* a mark was just passed */
    /* Of responses, whose events are numbered and whose last ones repeat the text: */
    tkc_buf block_text; /* of the block that is open */
    int64_t n_events;
} tke_chat_choice;

/* One prompt: a job with its choices. Only the worker uses it once it is queued. */
typedef struct tke_chat_part {
    struct tke_chat_answer *answer;
    const tke_job *job;       /* has the stop rules; valid until its end */
    size_t index;             /* of its first choice */
    tke_chat_choice *choices; /* [n_samples] */
    tkc_buf text;             /* of a whole answer: its choices as JSON, with commas */
} tke_chat_part;

/* An answer; lives until the last of its parts has ended. */
typedef struct tke_chat_answer {
    tkc_arena arena;   /* holds the answer itself too */
    const char *model; /* as in the request */
    char id[40];
    int64_t created_s;
    bool chat, echo, logprobs;
    bool thinks;               /* the prompt ends inside <think> */
    int32_t calls;             /* TKE_CALLS_*: how the text contains tool calls */
    tinkc_str tools;           /* of the request; data NULL = none */
    const char *settings;      /* as in the request */
    size_t top;                /* alternatives reported for each token */
    bool usage;                /* of a stream: the last event has the token counts */
    tke_token_bytes_fn *names; /* the bytes of every token, special ones too */
    tke_chat_part *parts;
    size_t n_parts, n_left;
    int64_t prompt_tokens, made;
    tinkc_error failed; /* the error of the first part that failed */
} tke_chat_answer;

/* A copy of `like` with n_parts and n_choices; NULL: err says why. The end of its last part frees
 * it; if no part was started, call tke_chat_answer_free. */
tke_chat_answer *tke_chat_answer_new(const tinkc_allocator *, const tke_chat_answer *like,
                                     size_t n_parts, size_t n_choices, tinkc_error *err);
void tke_chat_answer_free(tke_chat_answer *, size_t n_choices);

/* ---- openai_answer.c: what all forms share ---- */

/* Moves the text that can be sent now to *text; `last`: all that is left of the sequence. */
void tke_chat_take_text(const tke_chat_part *, tke_chat_choice *, tke_sequence, bool last,
                        tkc_buf *text, tinkc_error *err);

typedef struct tke_chat_said { /* the end of a choice, or all of it: text, then calls */
    tinkc_str text;
    tke_tool_call calls[TKE_MOST_CALLS];
    size_t n_calls;
} tke_chat_said;
tke_chat_said tke_chat_take_calls(const tke_chat_part *, tinkc_str text, tkc_arena *);

/* Why a choice without a limit of tokens was cut; NULL = it was not, or at the request's limit. */
const char *tke_chat_cut(const tke_chat_part *, const tke_gen *, size_t choice);

/* A part has finished or failed (answer->failed). True: it was the last. */
bool tke_chat_part_over(tke_chat_part *, const tke_gen *, const tinkc_error *why);

/* ---- chat_blocks.c ---- */

enum { TKE_BLOCK_NONE = 0, TKE_BLOCK_THINKING, TKE_BLOCK_TEXT, TKE_BLOCK_CALL };
typedef void tke_block_fn(const tke_chat_part *, tke_chat_choice *, int32_t kind, tinkc_str text,
                          void *arg);
/* Divides the text that comes next into thought and text, and sends what is certain. */
void tke_chat_blocks(const tke_chat_part *, tke_chat_choice *, tinkc_str text, bool last,
                     tke_block_fn *send, void *arg, tinkc_error *err);

/* Appends the messages (a JSON array) to `out` with contents of parts joined. Errors: BAD_REQUEST. */
bool tke_openai_messages(tinkc_str messages, const char *template, tkc_arena *, tkc_buf *out,
                         tinkc_error *err);

extern const tke_stream_style tke_openai_whole, tke_openai_events;
extern const tke_stream_style tke_anthropic_whole, tke_anthropic_events;
extern const tke_stream_style tke_responses_whole, tke_responses_events;
void tke_front_models(tke_call *);
void tke_front_model(tke_call *);
void tke_front_messages(tke_call *);
void tke_front_responses(tke_call *);
void tke_front_count_tokens(tke_call *);

#endif
