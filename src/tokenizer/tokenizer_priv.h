/* tokenizer_priv.h - the tokenizer's internal struct.
 *
 * A tokenizer is immutable once it is returned to the caller: tables (one block, built or mapped),
 * some data read from the model's folder, and a cache of scratch memory that encoders borrow. Only
 * the cache and the slot for chat templates change afterwards, each under its own lock.
 */
#ifndef TKC_TOKENIZER_TOKENIZER_PRIV_H
#define TKC_TOKENIZER_TOKENIZER_PRIV_H

#include "base/arena.h"
#include "base/map.h"
#include "base/str.h"
#include "base/thread.h"
#include "base/tokenizer_json.h"
#include "tinkc/tokenizer.h"
#include "bpe/pretok.h"
#include "bpe/tables.h"

/* The named special tokens of tokenizer_config.json, as chat templates see them. */
enum {
    TKC_NAME_BOS,
    TKC_NAME_EOS,
    TKC_NAME_UNK,
    TKC_NAME_SEP,
    TKC_NAME_PAD,
    TKC_NAME_CLS,
    TKC_NAME_MASK,
    TKC_NAMES
};
/* "bos_token" and so on: the variable's name in a template. */
extern const char *const tkc_special_names[TKC_NAMES];

typedef struct tkc_special_token {
    const char *text; /* terminated; NULL = the model has none */
    int32_t id;       /* -1 = none */
} tkc_special_token;

typedef struct tkc_template_text {
    const char *name; /* "default", "tool_use", ...; terminated */
    tinkc_str text;   /* terminated as well */
} tkc_template_text;

/* Which texts get a space before them. */
enum {
    TKC_SPACE_NEVER,
    TKC_SPACE_ALWAYS, /* between added tokens, too */
    TKC_SPACE_UNLESS, /* the same, unless there is one */
    TKC_SPACE_FIRST   /* the same, but only at the beginning of the whole text */
};

typedef struct tkc_added_set tkc_added_set; /* added.h */
typedef struct tkc_scratch tkc_scratch;     /* encoder.h */

struct tinkc_tokenizer {
    /* Set while opening, constant after. */
    const tinkc_allocator *a;
    tkc_arena arena;    /* owns the small data below */
    const char *source; /* path or "memory" */
    tkc_tables tables;
    tkc_pretok pretok;
    bool nfc;                 /* the normalizer is NFC */
    int space_first;          /* TKC_SPACE_*: of a vocabulary of pieces */
    bool metaspace;           /* that is the pre-tokenizer's work, not the normalizer's */
    bool strip_space;         /* decoding leaves out one space at the beginning */
    bool tiktoken;            /* from a rank file */
    bool kimi_cuts;           /* the model's wrapper splits long runs before it encodes */
    bool named_specials_only; /* skip_special drops only tokens that the config names (tiktoken) */
    int32_t size;             /* every id is below it */
    tkc_added_token *added;
    size_t n_added;
    tkc_map added_index;          /* text to index + 1 in added */
    const tkc_added_token **late; /* by id minus the size of the tables; NULL = none */
    tkc_map literals;             /* tokens that are not byte-level text, to id + 1 */
    bool literals_known;          /* else there is no such index */
    tkc_added_set *raw_set;       /* found in the raw text */
    tkc_added_set *norm_set;      /* found in the rest, after normalisation */
    int32_t *extra_special;       /* further special ids that the config names */
    size_t n_extra_special;
    unsigned char *special_ids; /* a bit for each id: dropped by skip_special */
    tkc_special_token specials[TKC_NAMES];
    int32_t *prefix, *suffix; /* ids that add_special puts around a text */
    size_t n_prefix, n_suffix;
    int32_t *ends; /* ids that end an answer */
    size_t n_ends;
    tkc_template_text *templates; /* "default" first, if there is one */
    size_t n_templates;
    const char *tokenizer_class; /* of the config; "" = absent */

    tkc_refs refs; /* any thread */

    /* Any thread, lock held. A leaf: no other lock is taken inside it. */
    struct {
        pthread_mutex_t lock;
        tkc_scratch *first;
    } cache;

    /* The chat layer's parsed templates: created on first use, freed with the tokenizer. */
    struct {
        pthread_mutex_t lock;
        void *value;
        void (*end)(void *value);
    } chat;
};

/* The text of the template with this name (NULL = "default"); NULL if there is none. */
const tkc_template_text *tkc_find_template(const tinkc_tokenizer *, const char *name);
/* The id of a token of the vocabulary by its text as in the files; -1 = none. */
int32_t tkc_spelled_id(const tinkc_tokenizer *, tinkc_str text);
/* The id of exactly this token, added or ordinary; -1 = none. */
int32_t tkc_token_id(const tinkc_tokenizer *, tinkc_str token);

#endif
