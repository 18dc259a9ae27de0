/* token_mask.c - walks a vocabulary in the order of its bytes through a grammar.
 *
 * Tokens with a common prefix are adjacent, so each prefix is walked once: states[d] is the state
 * after d bytes of the current token, and a failure at byte d holds for all tokens that share it.
 * Most masks of a text are those of "inside a string", so masks are cached by state.
 *
 * May touch: its order's work space, the cache. Must not: know of requests, logits, devices.
 */
#include "constrain/token_mask.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MOST_BYTES = 128 }; /* of a token; longer ones are never allowed */

typedef struct entry {
    const char *bytes;
    int32_t id;
    uint16_t len, shared; /* shared: bytes that it has in common with the one before */
} entry;

struct tke_token_order {
    tkc_arena arena;
    size_t vocab, n;
    entry *entries;  /* by bytes */
    uint32_t *where; /* [vocab]: index into entries + 1; 0 = not there */
    tke_grammar_state states[MOST_BYTES + 1];
};

struct tke_kept_mask {
    tke_grammar_state state;
    int64_t dearest; /* the highest cost to end after an allowed token */
    bool any;
    uint32_t words[];
};

/* ---- the order ---- */

static int by_bytes(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    order = order ? order : (int)x->len - (int)y->len;
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static void count_shared(tke_token_order *o)
{
    for (size_t i = 0; i < o->n; i++) {
        entry *e = &o->entries[i];
        const entry *before = i ? e - 1 : NULL;
        size_t most = !before ? 0 : before->len < e->len ? before->len : e->len, n = 0;
        while (n < most && before->bytes[n] == e->bytes[n])
            n++;
        e->shared = (uint16_t)n;
        o->where[e->id] = (uint32_t)i + 1;
    }
}

static bool check_characters(const tke_token_order *o, tinkc_error *err)
{
    bool there[256] = { false };
    for (size_t i = 0; i < o->n; i++)
        if (o->entries[i].len == 1)
            there[(uint8_t)o->entries[i].bytes[0]] = true;
    for (int c = 0x20; c < 0x7f; c++)
        if (!there[c])
            return tkc_fail(err, TINKC_E_UNSUPPORTED,
                            "constrained sampling needs a token for every character of ASCII; this "
                            "model has none for '%c'",
                            c);
    return true;
}

static bool fill(tke_token_order *o, tke_token_bytes_fn *fn, void *user, tinkc_error *err)
{
    o->entries = tkc_arena_array(&o->arena, o->vocab ? o->vocab : 1, sizeof *o->entries, err);
    o->where = tkc_arena_array(&o->arena, o->vocab ? o->vocab : 1, sizeof *o->where, err);
    for (size_t i = 0; i < o->vocab && !tkc_failed(err); i++) {
        const char *bytes = NULL;
        size_t len = fn(user, (int32_t)i, &bytes);
        if (!len || len > MOST_BYTES)
            continue;
        const char *copy = tkc_arena_str(&o->arena, (tinkc_str){ bytes, len }, err);
        o->entries[o->n++] = (entry){ .bytes = copy, .id = (int32_t)i, .len = (uint16_t)len };
    }
    if (tkc_failed(err))
        return false;
    qsort(o->entries, o->n, sizeof *o->entries, by_bytes);
    count_shared(o);
    return check_characters(o, err);
}

tke_token_order *tke_token_order_new(size_t vocab, tke_token_bytes_fn *fn, void *user,
                                     tinkc_error *err)
{
    tke_token_order *o = tkc_failed(err) ? NULL : tkc_zalloc(NULL, sizeof *o, err);
    if (!o)
        return NULL;
    tkc_arena_init(&o->arena, NULL, 0);
    o->vocab = vocab;
    if (fill(o, fn, user, err))
        return o;
    tke_token_order_free(o);
    return NULL;
}

void tke_token_order_free(tke_token_order *o)
{
    if (!o)
        return;
    tkc_arena_free(&o->arena);
    tkc_release(NULL, o, sizeof *o);
}

size_t tke_token_order_size(const tke_token_order *o)
{
    return o->vocab;
}

/* ---- masks ---- */

size_t tke_mask_words(size_t vocab)
{
    return (vocab + 31) / 32;
}

typedef struct walk {
    int64_t most,
        dearest; /* what may be spent to end; what the dearest of the allowed ones needs */
    bool any;
} walk;

/* Walks the token from its first unwalked byte. Returns how many bytes fit. */
static size_t walk_token(const tke_constraint *c, const entry *e, size_t from)
{
    tke_grammar_state *s = c->tokens->states;
    for (; from < e->len; from++) {
        tke_grammar_copy(&s[from + 1], &s[from]);
        if (!tke_grammar_step(c->grammar, &s[from + 1], (uint8_t)e->bytes[from]))
            break;
    }
    return from;
}

static void walk_all(const tke_constraint *c, const tke_grammar_state *start, walk *w,
                     uint32_t *mask)
{
    tke_token_order *o = c->tokens;
    size_t fits = 0; /* bytes of the token before that were walked */
    tke_grammar_copy(&o->states[0], start);
    for (size_t i = 0; i < o->n; i++) {
        const entry *e = &o->entries[i];
        bool walked = e->shared <= fits || i == 0;
        if (!walked)
            continue; /* it fails where the one before did */
        fits = walk_token(c, e, e->shared);
        if (fits < e->len)
            continue;
        int64_t cost = tke_grammar_cost(c->grammar, &o->states[fits]);
        if (cost > w->most)
            continue;
        w->any = true;
        w->dearest = cost > w->dearest ? cost : w->dearest;
        mask[e->id / 32] |= UINT32_C(1) << e->id % 32;
    }
}

static bool same_state(const tke_grammar_state *a, const tke_grammar_state *b)
{
    return a->depth == b->depth && memcmp(a->frames, b->frames, a->depth * sizeof *a->frames) == 0;
}

static size_t slot_of(const tke_grammar_state *s)
{
    const unsigned char *bytes = (const unsigned char *)s->frames;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < s->depth * sizeof *s->frames; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return (size_t)(hash >> 32) % TKE_MASKS_KEPT;
}

/* The cached mask of a state, without a limit on length. */
static const tke_kept_mask *unlimited(const tke_constraint *c, const tke_grammar_state *s,
                                      tke_mask_cache *cache, tinkc_error *err)
{
    size_t words = tke_mask_words(c->tokens->vocab);
    tke_kept_mask **slot = &cache->kept[slot_of(s)];
    if (*slot && same_state(&(*slot)->state, s))
        return *slot;
    if (!*slot)
        *slot = tkc_arena_alloc(cache->arena, sizeof **slot + words * sizeof(uint32_t), err);
    if (!*slot)
        return NULL;
    walk w = { .most = TKE_GRAMMAR_ENDLESS - 1 };
    memset((*slot)->words, 0, words * sizeof(uint32_t));
    tke_grammar_copy(&(*slot)->state, s);
    walk_all(c, s, &w, (*slot)->words);
    (*slot)->dearest = w.dearest;
    (*slot)->any = w.any;
    return *slot;
}

bool tke_constraint_mask(const tke_constraint *c, const tke_grammar_state *s, size_t left,
                         tke_mask_cache *cache, uint32_t *mask, tinkc_error *err)
{
    size_t bytes = tke_mask_words(c->tokens->vocab) * sizeof *mask;
    int64_t most = left > 0 ? (int64_t)(left - 1) : -1; /* at worst each byte is a token */
    const tke_kept_mask *kept = unlimited(c, s, cache, err);
    if (!kept)
        return false;
    if (kept->dearest <= most) {
        memcpy(mask, kept->words, bytes);
        return kept->any;
    }
    walk w = { .most = most };
    memset(mask, 0, bytes);
    walk_all(c, s, &w, mask);
    return w.any;
}

bool tke_constraint_step(const tke_constraint *c, tke_grammar_state *s, int32_t token)
{
    const tke_token_order *o = c->tokens;
    uint32_t at = (size_t)token < o->vocab ? o->where[token] : 0;
    if (!at)
        return false;
    const entry *e = &o->entries[at - 1];
    for (size_t i = 0; i < e->len; i++)
        if (!tke_grammar_step(c->grammar, s, (uint8_t)e->bytes[i]))
            return false;
    return true;
}
