/* token_mask.h - which tokens may follow: applies a grammar over bytes to a vocabulary.
 *
 * Masks depend only on the state, the grammar and the number of tokens left, so a sample under a
 * constraint has the same bits whatever else runs. [one thread: the worker, except _new and _free]
 */
#ifndef TKE_CONSTRAIN_TOKEN_MASK_H
#define TKE_CONSTRAIN_TOKEN_MASK_H

#include "constrain/grammar.h"

/* The bytes of a token. Returns their number; 0 for an unknown id, and for special tokens. */
typedef size_t tke_token_bytes_fn(void *user, int32_t token, const char **bytes);

/* A vocabulary in the order of its bytes. */
typedef struct tke_token_order tke_token_order;

/* UNSUPPORTED: some character of ASCII has no token of its own, so a text could not always be
 * ended. */
tke_token_order *tke_token_order_new(size_t vocab, tke_token_bytes_fn *, void *user,
                                     tinkc_error *err);
void tke_token_order_free(tke_token_order *); /* NULL allowed */
size_t tke_token_order_size(const tke_token_order *);

typedef struct tke_constraint { /* both borrowed */
    const tke_grammar *grammar;
    tke_token_order *tokens;
} tke_constraint;

/* A cache of masks by state; zeroed = empty. In the arena. */
enum { TKE_MASKS_KEPT = 64 };
typedef struct tke_kept_mask tke_kept_mask;
typedef struct tke_mask_cache {
    tkc_arena *arena;
    tke_kept_mask *kept[TKE_MASKS_KEPT];
} tke_mask_cache;

/* Words of a mask: token t is bit t % 32 of word t / 32. */
size_t tke_mask_words(size_t vocab);
/* Sets the bits of tokens after which the text can still be ended within `left` - 1 more. False:
 * there is none. The caller adds the tokens that end a text. */
bool tke_constraint_mask(const tke_constraint *, const tke_grammar_state *, size_t left,
                         tke_mask_cache *, uint32_t *mask, tinkc_error *err);
/* Advances by a token; false = it does not fit. */
bool tke_constraint_step(const tke_constraint *, tke_grammar_state *, int32_t token);

#endif
