/* openai.h - shared by the handlers of /v1/ and the code that writes their answers. Internal. */
#ifndef TKE_SERVICE_OPENAI_H
#define TKE_SERVICE_OPENAI_H

#include "service/openai_format.h"

/* One choice in progress. */
typedef struct tke_openai_choice {
    tkc_buf held;      /* bytes that may still become a stop string or a call */
    size_t n_seen;     /* tokens of the sequence that went into held */
    size_t n_sent;     /* bytes sent as text */
    size_t n_told;     /* tokens whose log-probs are sent, echo included */
    size_t told_bytes; /* bytes of those that were generated */
    size_t told_chars; /* characters of all */
    bool begun, finished;
} tke_openai_choice;

/* One prompt: a job with its choices. Only the worker uses it once it is queued. */
typedef struct tke_openai_part {
    struct tke_openai_answer *answer;
    const tke_job *job;         /* has the stop rules; valid until its end */
    size_t index;               /* of its first choice */
    tke_openai_choice *choices; /* [n_samples] */
    tkc_buf text;               /* of a whole answer: its choices as JSON, with commas */
} tke_openai_part;

/* An answer; lives until the last of its parts has ended. */
typedef struct tke_openai_answer {
    tkc_arena arena;   /* holds the answer itself too */
    const char *model; /* as in the request */
    char id[40];
    int64_t created_s;
    bool chat, echo, logprobs;
    int32_t calls;             /* TKE_CALLS_*: how the text contains tool calls */
    size_t top;                /* alternatives reported for each token */
    bool usage;                /* of a stream: the last event has the token counts */
    tke_token_bytes_fn *names; /* the bytes of every token, special ones too */
    tke_openai_part *parts;
    size_t n_parts, n_left;
    int64_t prompt_tokens, made;
    tinkc_error failed; /* the error of the first part that failed */
} tke_openai_answer;

/* A copy of `like` with n_parts and n_choices; NULL: err says why. The end of its last part frees
 * it; if no part was started, call tke_openai_answer_free. */
tke_openai_answer *tke_openai_answer_new(const tinkc_allocator *, const tke_openai_answer *like,
                                         size_t n_parts, size_t n_choices, tinkc_error *err);
void tke_openai_answer_free(tke_openai_answer *, size_t n_choices);

/* Appends the messages (a JSON array) to `out` with contents of parts joined. Errors: BAD_REQUEST. */
bool tke_openai_messages(tinkc_str messages, const char *template, tkc_arena *, tkc_buf *out,
                         tinkc_error *err);

extern const tke_stream_style tke_openai_whole, tke_openai_events;

#endif
