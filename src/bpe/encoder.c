/* encoder.c - the hot path: scan a word, find it in the cache, write its ids.
 *
 * May touch: the scratch and the output of its encoder. Must not: take locks, or allocate for a
 * word that the cache knows.
 *
 * Most text is ASCII words, so these are scanned sixteen bytes at a time without a branch per
 * letter; everything else goes through the family's scanner. The loop is written once and compiled
 * for each family.
 */
#include "bpe/encoder.h"

#include <assert.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- scratch ---- */

/* A multiple of a large page: the system uses none for less. */
enum { LARGE_PAGE = 2 << 20 };
static const size_t caches_size = (sizeof(tkc_caches) + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;

tkc_scratch *tkc_scratch_take(const tinkc_tokenizer *tok, tinkc_error *err)
{
    /* The cache is a part of the tokenizer that changes; it has its own lock. */
    tinkc_tokenizer *shared = (tinkc_tokenizer *)(uintptr_t)tok;
    pthread_mutex_lock(&shared->cache.lock);
    tkc_scratch *s = shared->cache.first;
    if (s)
        shared->cache.first = s->next;
    pthread_mutex_unlock(&shared->cache.lock);
    if (s)
        return s;
    s = tkc_zalloc(tok->a, sizeof *s, err);
    if (!s)
        return NULL;
    s->a = s->work.a = tok->a;
    tkc_buf_init(&s->normal, tok->a, TKC_BUF_NO_MAX);
    s->caches = tkc_alloc_pages(caches_size, err);
    if (s->caches)
        return s;
    tkc_scratch_free(s);
    return NULL;
}

void tkc_scratch_return(const tinkc_tokenizer *tok, tkc_scratch *s)
{
    enum { KEEP = 1 << 20 }; /* do not keep the memory of one long text forever */
    tinkc_tokenizer *shared = (tinkc_tokenizer *)(uintptr_t)tok;
    if (!s)
        return;
    if (s->work.cap > KEEP)
        tkc_bpe_work_free(&s->work);
    if (s->normal.cap > KEEP)
        tkc_buf_free(&s->normal);
    tkc_origins_free(&s->origins);
    pthread_mutex_lock(&shared->cache.lock);
    s->next = shared->cache.first;
    shared->cache.first = s;
    pthread_mutex_unlock(&shared->cache.lock);
}

void tkc_scratch_free(tkc_scratch *s)
{
    if (!s)
        return;
    const tinkc_allocator *a = s->a;
    tkc_release_pages(s->caches, caches_size);
    tkc_bpe_work_free(&s->work);
    tkc_buf_free(&s->normal);
    tkc_origins_free(&s->origins);
    tkc_release(a, s, sizeof *s);
}

bool tkc_encoder_room(tkc_encoder *e, size_t n)
{
    size_t need;
    if (!tkc_add_size(e->out->len, n, &need))
        return tkc_fail_memory(e->err);
    if (e->out->data && need <= e->out->cap)
        return true;
    int32_t *grown = tkc_grow(e->out->a, e->out->data, &e->out->cap, need, sizeof *grown, e->err);
    if (!grown)
        return false;
    e->out->data = grown;
    return true;
}

/* ---- words ---- */

typedef struct key {
    uint64_t lo, hi;
} key;

/* The first `len` bytes of sixteen, the others zero. */
static const uint64_t keep[16][2] = {
    { 0, 0 },
    { 0xFF, 0 },
    { 0xFFFF, 0 },
    { 0xFFFFFF, 0 },
    { 0xFFFFFFFF, 0 },
    { 0xFFFFFFFFFF, 0 },
    { 0xFFFFFFFFFFFF, 0 },
    { 0xFFFFFFFFFFFFFF, 0 },
    { UINT64_MAX, 0 },
    { UINT64_MAX, 0xFF },
    { UINT64_MAX, 0xFFFF },
    { UINT64_MAX, 0xFFFFFF },
    { UINT64_MAX, 0xFFFFFFFF },
    { UINT64_MAX, 0xFFFFFFFFFF },
    { UINT64_MAX, 0xFFFFFFFFFFFF },
    { UINT64_MAX, 0xFFFFFFFFFFFFFF },
};

/* mark: the length, with the top bit set for parts of pieces if whole pieces follow another rule.
 * Reads sixteen bytes. */
TKC_INLINE key key_of(const unsigned char *p, size_t len, uint64_t mark)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t lo = tkc_load64(p), hi = tkc_load64(p + 8);
#else
    uint64_t lo = __builtin_bswap64(tkc_load64(p)), hi = __builtin_bswap64(tkc_load64(p + 8));
#endif
    return (key){ lo & keep[len][0], (hi & keep[len][1]) | mark << 56 };
}

TKC_INLINE uint64_t hash_of(key k)
{
    uint64_t h = (k.lo ^ (k.hi << 23 | k.hi >> 41)) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ k.hi * UINT64_C(0xC2B2AE3D27D4EB4F);
}

TKC_INLINE tkc_word_entry *slot_of(const tkc_scratch *s, key k)
{
    return &s->caches->words[hash_of(k) >> (64 - TKC_WORD_BITS) << 1];
}

enum { PART = 0x80 }; /* in a mark */

TKC_INLINE bool is_part(key k)
{
    return k.hi >> 63;
}

static const tkc_phrase_entry *find_phrase(const tkc_scratch *s, const unsigned char *p, size_t len,
                                           uint64_t hash)
{
    const tkc_phrase_entry *entry = &s->caches->phrases[hash >> (64 - TKC_PHRASE_BITS)];
    return entry->hash == hash && entry->len == len && memcmp(entry->key, p, len) == 0 ? entry
                                                                                       : NULL;
}

static void keep_phrase(tkc_scratch *s, const unsigned char *p, size_t len, uint64_t hash,
                        const int32_t *ids, size_t n)
{
    if (len > TKC_PHRASE_BYTES || n > TKC_PHRASE_IDS)
        return;
    tkc_phrase_entry *entry = &s->caches->phrases[hash >> (64 - TKC_PHRASE_BITS)];
    entry->hash = hash;
    entry->len = (uint8_t)len;
    entry->n = (uint8_t)n;
    memcpy(entry->key, p, len);
    memcpy(entry->ids, ids, n * sizeof *ids);
}

/* The end of the part that begins at p: between two characters that no token contains side by
 * side. */
TKC_INLINE const unsigned char *part_end(const tkc_tables *t, const unsigned char *p,
                                         const unsigned char *end)
{
    const unsigned char *at = p, *next;
    uint32_t before = tkc_next_char(&at);
    for (; at < end; at = next) {
        next = at;
        uint32_t c = tkc_next_char(&next);
        if ((before | c) >= 0x80 && tkc_can_cut(t, before, c, at[-1], at[0]))
            break;
        before = c;
    }
    return at;
}

/* The ids of a word, from the vocabulary or by BPE. Returns how many it wrote, at most len.
 * `flag`: the flag that a token needs to be used for the whole word. */
static size_t merge_word(const tkc_encoder *e, const unsigned char *p, size_t len, uint8_t flag,
                         int32_t *out)
{
    bool foreign = p[len - 1] >= 0x80 && e->t->all_bytes && !e->t->pieces;
    /* Merges find a token for the whole word anyway, unless whole words follow their own rule
     * (ignore_merges). A word that can be cut is not a single token. */
    bool look = !foreign || (e->t->ignore_merges && flag == TKC_TOKEN_WHOLE &&
                             part_end(e->t, p, p + len) == p + len);
    int32_t id = look ? tkc_find_word(e->t, p, len) : -1;
    if (id >= 0 && e->t->flags[id] & flag) {
        out[0] = id;
        return 1;
    }
    return foreign ? tkc_bpe_chars(e->t, e->s->caches->chars, p, len, out)
                   : tkc_bpe_short(e->t, p, len, out);
}

/* A word that is not in its cache line: from the cache of words with more ids, or new. Returns how
 * many ids it wrote, at most len. */
static __attribute__((noinline)) size_t new_word(const tkc_encoder *e, const unsigned char *p,
                                                 size_t len, key k, tkc_word_entry *slot,
                                                 int32_t *out)
{
    tkc_split_entry *split = &e->s->caches->splits[hash_of(k) >> (64 - TKC_SPLIT_BITS)];
    if (split->lo == k.lo && split->hi == k.hi) {
        memcpy(out, split->ids, split->n * sizeof *out);
        return split->n;
    }
    assert(len > 0 && len <= TKC_WORD_BYTES);
    size_t n = merge_word(e, p, len, is_part(k) ? TKC_TOKEN_REACHABLE : TKC_TOKEN_WHOLE, out);
    assert(n <= len);
    if (n <= TKC_WORD_IDS) {
        slot[1] = slot[0];
        slot->lo = k.lo;
        slot->hi = k.hi;
        slot->n = (uint32_t)n;
        memcpy(slot->ids, out, n * sizeof *out);
    } else if (n <= TKC_SPLIT_IDS) {
        split->lo = k.lo;
        split->hi = k.hi;
        split->n = (uint32_t)n;
        memcpy(split->ids, out, n * sizeof *out);
    }
    return n;
}

/* Writes the ids of a word of at most TKC_WORD_BYTES; there is room for sixteen. */
TKC_INLINE int32_t *put_word(const tkc_encoder *e, const unsigned char *p, size_t len, key k,
                             tkc_word_entry *line, int32_t *out)
{
    tkc_word_entry *slot = line;
    slot += ((slot->lo ^ k.lo) | (slot->hi ^ k.hi)) != 0;
    if (UNLIKELY(((slot->lo ^ k.lo) | (slot->hi ^ k.hi)) != 0))
        return out + new_word(e, p, len, k, line, out);
    memcpy(out, slot->ids, sizeof slot->ids);
    return out + slot->n;
}

/* Queued words: each is looked up some words after its cache line was prefetched, which hides the
 * memory latency. */
enum { QUEUE = 16, SPARE = 32 }; /* SPARE: room for ids written past the last one */
typedef struct queue {
    struct {
        key k;
        tkc_word_entry *line;
        const unsigned char *p;
        size_t len;
    } word[QUEUE];
} queue;

/* Position in the text and in the output: passed by value, so that it stays in registers. */
typedef struct place {
    const unsigned char *p; /* NULL = failed */
    int32_t *out;
    size_t queued;
} place;

TKC_INLINE place flush(const tkc_encoder *e, const queue *q, place at)
{
    for (size_t i = 0; i < at.queued; i++)
        at.out = put_word(e, q->word[i].p, q->word[i].len, q->word[i].k, q->word[i].line, at.out);
    at.queued = 0;
    return at;
}

TKC_INLINE place push_word(const tkc_encoder *e, queue *q, place at, size_t len, key k)
{
    size_t n = at.queued++;
    assert(n < QUEUE && len > 0 && len <= TKC_WORD_BYTES);
    q->word[n].k = k;
    q->word[n].line = slot_of(e->s, k);
    q->word[n].p = at.p;
    q->word[n].len = len;
    __builtin_prefetch(q->word[n].line);
    at.p += len;
    return n + 1 == QUEUE ? flush(e, q, at) : at;
}

/* The key of a word at any position, also close to the end of the text. */
TKC_INLINE key any_key(const tkc_encoder *e, const unsigned char *p, size_t len, uint64_t mark)
{
    if (p < e->readable)
        return key_of(p, len, mark);
    unsigned char copy[16] = { 0 };
    memcpy(copy, p, len);
    return key_of(copy, len, mark);
}

static bool put_short(tkc_encoder *e, const unsigned char *p, size_t len)
{
    if (!tkc_encoder_room(e, 16))
        return false;
    int32_t *out = e->out->data + e->out->len;
    key k = any_key(e, p, len, len);
    int32_t *end = put_word(e, p, len, k, slot_of(e->s, k), out);
    e->out->len += (size_t)(end - out);
    return true;
}

/* ---- long pieces ---- */

static bool put_merged(tkc_encoder *e, const unsigned char *p, size_t len)
{
    if (!tkc_encoder_room(e, len + 1))
        return false;
    int64_t n = tkc_bpe(e->t, &e->s->work, p, len, e->out->data + e->out->len, e->err);
    if (n < 0)
        return false;
    assert((size_t)n <= len);
    e->out->len += (size_t)n;
    return true;
}

static bool has_high(const unsigned char *p, size_t len)
{
    uint64_t all = 0;
    size_t i = 0;
    for (; i + 8 <= len; i += 8)
        all |= tkc_load64(p + i);
    for (; i < len; i++)
        all |= p[i];
    return all & UINT64_C(0x8080808080808080);
}

/* Whether a piece may be cut where no token crosses. Not if a byte has no token: bytes that are
 * left out make others adjacent that were not. */
static bool may_cut(const tkc_encoder *e, const unsigned char *p, size_t len)
{
    return e->t->all_bytes && has_high(p, len);
}

static bool put_in_parts(tkc_encoder *e, const unsigned char *p, size_t len);

/* A piece, or part of one, that is too long for the cache of words. `flag` as for new_word;
 * `parts`: it may be cut. */
static __attribute__((noinline)) bool put_phrase(tkc_encoder *e, const unsigned char *p, size_t len,
                                                 uint8_t flag, bool parts)
{
    enum { MANY_CHARACTERS = 32 }; /* longer pieces of other scripts rarely repeat */
    uint64_t hash = 0;
    bool cut = parts && may_cut(e, p, len),
         remember = len <= (cut ? MANY_CHARACTERS : TKC_PHRASE_BYTES);
    if (remember) {
        hash = tkc_word_hash(p, len) ^ flag;
        const tkc_phrase_entry *known = find_phrase(e->s, p, len, hash);
        if (known) {
            if (!tkc_encoder_room(e, known->n))
                return false;
            memcpy(e->out->data + e->out->len, known->ids, known->n * sizeof *known->ids);
            e->out->len += known->n;
            return true;
        }
    }
    size_t before = e->out->len;
    /* Merges would find a reachable token too, so the lookup is needed only under another rule
     * (ignore_merges), and only if the piece cannot be cut. */
    bool look = len <= e->t->max_len &&
                (!cut || (e->t->ignore_merges && part_end(e->t, p, p + len) == p + len));
    int32_t id = look ? tkc_find_word(e->t, p, len) : -1;
    if (id >= 0 && e->t->flags[id] & flag) {
        if (!tkc_encoder_room(e, 1))
            return false;
        e->out->data[e->out->len++] = id;
    } else if (cut ? !put_in_parts(e, p, len) : !put_merged(e, p, len)) {
        return false;
    }
    if (remember)
        keep_phrase(e->s, p, len, hash, e->out->data + before, e->out->len - before);
    return true;
}

/* Leaves the fast path: writes the queued words and updates the length of `out`. */
static place leave(tkc_encoder *e, const queue *q, place at)
{
    at = flush(e, q, at);
    e->out->len = (size_t)(at.out - e->out->data);
    return at;
}

/* Returns to the fast path at p, after the ids that were written to `out` directly; makes room for
 * the ids of the text before `kept`. */
static place come_back(tkc_encoder *e, const unsigned char *p, const unsigned char *kept)
{
    if (!tkc_encoder_room(e, (kept > p ? (size_t)(kept - p) : 0) + SPARE))
        return (place){ 0 };
    return (place){ .p = p, .out = e->out->data + e->out->len };
}

/* Cuts [at.p, end), a piece or the rest of one, into parts that are merged separately, and encodes
 * those that begin before `stop`. There must be room for the ids of the text before `kept`, and
 * there is again afterwards. If whole pieces follow their own rule (ignore_merges), parts have
 * cache keys of their own. */
static place push_parts(tkc_encoder *e, queue *q, place at, const unsigned char *end,
                        const unsigned char *stop, const unsigned char *kept)
{
    const uint64_t mark = e->t->ignore_merges ? PART : 0;
    const uint8_t flag = e->t->ignore_merges ? TKC_TOKEN_REACHABLE : TKC_TOKEN_WHOLE;
    assert(stop <= end);
    while (at.p && at.p < stop) {
        const unsigned char *p = at.p, *next = part_end(e->t, p, end);
        size_t n = (size_t)(next - p);
        if (n <= TKC_WORD_BYTES) {
            at = push_word(e, q, at, n, any_key(e, p, n, n | mark));
            continue;
        }
        leave(e, q, at);
        at = put_phrase(e, p, n, flag, false) ? come_back(e, next, kept) : (place){ 0 };
    }
    return at;
}

static bool put_in_parts(tkc_encoder *e, const unsigned char *p, size_t len)
{
    enum { LONGEST = 1 << 16 }; /* bytes of text for which room is made at once */
    const unsigned char *end = p + len;
    while (p < end) {
        const unsigned char *stop = end - p > LONGEST ? p + LONGEST : end;
        queue q;
        place at = come_back(e, p, stop);
        if (at.p)
            at = push_parts(e, &q, at, end, stop, stop);
        if (!at.p)
            return false;
        p = leave(e, &q, at).p;
    }
    return true;
}

static bool encode_piece(tkc_encoder *e, const unsigned char *p, size_t len)
{
    return len <= TKC_WORD_BYTES ? put_short(e, p, len)
                                 : put_phrase(e, p, len, TKC_TOKEN_WHOLE, true);
}

/* ---- the loop ---- */

enum { LETTER = 1, PREFIX = 2, CASED = 4, QUOTE_ENDS = 8, SAFE = 32, BLOCK = 1 << 14 };

/* The kind of an ASCII byte on the fast path: a letter, or a byte that may precede a word and
 * belong to it. */
static const uint8_t kinds_any[256], kinds_no_quote[256], kinds_space[256];

#define L LETTER
#define P PREFIX
#define ASCII_KINDS(space, quote, other)                                                           \
    {                                                                                              \
        other, other, other, other, other, other, other, other, other, other, 0, other, other, 0,  \
            other, other, other, other, other, other, other, other, other, other, other, other,    \
            other, other, other, other, other, other, space, other, other, other, other, other,    \
            other, quote, other, other, other, other, other, other, other, other, 0, 0, 0, 0, 0,   \
            0, 0, 0, 0, 0, other, other, other, other, other, other, other, L, L, L, L, L, L, L,   \
            L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, other, other, other, other,   \
            other, other, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L,  \
            L, L, other, other, other, other, other, 0                                             \
    }
static const uint8_t kinds_any[256] = ASCII_KINDS(P, P, P);
static const uint8_t kinds_no_quote[256] = ASCII_KINDS(P, 0, P);
static const uint8_t kinds_space[256] = ASCII_KINDS(P, 0, 0);
#undef L
#undef P

/* Length of the ASCII word at q, looking at sixteen bytes: letters, or capitals and then small
 * letters. 16 = it may continue. */
TKC_INLINE size_t word_length(const unsigned char *q, bool cased)
{
#ifdef __SSE2__
    const __m128i text = _mm_loadu_si128((const __m128i *)(const void *)q);
    const __m128i above = _mm_set1_epi8(101), small = _mm_set1_epi8(127 - 'z');
    if (!cased) {
        __m128i folded = _mm_or_si128(text, _mm_set1_epi8(0x20));
        __m128i is_letter = _mm_cmpgt_epi8(_mm_add_epi8(folded, small), above);
        return (size_t)__builtin_ctz(~(unsigned)_mm_movemask_epi8(is_letter) | 0x10000u);
    }
    __m128i capital = _mm_cmpgt_epi8(_mm_add_epi8(text, _mm_set1_epi8(127 - 'Z')), above);
    __m128i lower = _mm_cmpgt_epi8(_mm_add_epi8(text, small), above);
    unsigned n = (unsigned)__builtin_ctz(~(unsigned)_mm_movemask_epi8(capital) | 0x10000u);
    unsigned rest = (~(unsigned)_mm_movemask_epi8(lower) | 0x10000u) >> n;
    return n + (unsigned)__builtin_ctz(rest);
#else
    size_t n = 0;
    if (cased)
        while (n < 16 && q[n] >= 'A' && q[n] <= 'Z')
            n++;
    while (n < 16 && (unsigned char)((cased ? q[n] : q[n] | 0x20) - 'a') < 26)
        n++;
    return n;
#endif
}

/* Length of the word at p, with the byte that may precede it, if it consists of ASCII letters and
 * fits into the cache; 0 if not, or if that is uncertain. */
TKC_INLINE size_t quick_word(const unsigned char *p, const uint8_t *kinds, int flags)
{
    uint8_t kind = kinds[p[0]];
    size_t lead = kind != LETTER;
    if (!(kind & LETTER || (kind & PREFIX && kinds[p[1]] & LETTER)))
        return 0;
    size_t len = lead + word_length(p + lead, flags & CASED);
    unsigned char behind = p[len];
    bool ends = behind < 0x80 && !(flags & QUOTE_ENDS && behind == '\'');
    return len <= TKC_WORD_BYTES && ends ? len : 0;
}

/* A piece too long for the word cache: in parts that go through the queue like other words, or by
 * itself. */
static __attribute__((noinline)) place push_long(tkc_encoder *e, queue *q, place at,
                                                 const unsigned char *next,
                                                 const unsigned char *stop)
{
    const unsigned char *p = at.p;
    size_t len = (size_t)(next - p);
    if (next <= stop && may_cut(e, p, len) && part_end(e->t, p, next) < next)
        return push_parts(e, q, at, next, next, stop);
    leave(e, q, at);
    return encode_piece(e, p, len) ? come_back(e, next, stop) : (place){ 0 };
}

/* Queues the words that begin before `stop`, which is at least SAFE bytes before the end. */
TKC_INLINE place push_until(tkc_encoder *e, queue *q, place at, const unsigned char *stop,
                            const unsigned char *end, tkc_scan_fn *scan, const uint8_t *kinds,
                            int flags)
{
    while (at.p && at.p < stop) {
        size_t len = quick_word(at.p, kinds, flags);
        if (len) {
            at = push_word(e, q, at, len, key_of(at.p, len, len));
            continue;
        }
        const unsigned char *next = scan(at.p, end);
        len = (size_t)(next - at.p);
        at = len <= TKC_WORD_BYTES ? push_word(e, q, at, len, key_of(at.p, len, len))
                                   : push_long(e, q, at, next, stop);
    }
    return at;
}

TKC_INLINE bool encode_loop(tkc_encoder *e, const unsigned char *p, const unsigned char *end,
                            tkc_scan_fn *scan, const uint8_t *kinds, int flags)
{
    while (end - p > SAFE) {
        const unsigned char *stop = end - p - SAFE > BLOCK ? p + BLOCK : end - SAFE;
        queue q;
        place at = come_back(e, p, stop);
        at = push_until(e, &q, at, stop, end, scan, kinds, flags);
        if (!at.p)
            return false;
        p = leave(e, &q, at).p;
    }
    for (const unsigned char *next; p < end; p = next) {
        next = scan(p, end);
        if (!encode_piece(e, p, (size_t)(next - p)))
            return false;
    }
    return true;
}

static bool gap_cl100k(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_CL100K], kinds_no_quote, 0);
}

static bool gap_qwen2(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_QWEN2], kinds_no_quote, 0);
}

static bool gap_qwen35(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_QWEN35], kinds_no_quote, 0);
}

static bool gap_gpt2(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_GPT2], kinds_space, 0);
}

static bool gap_o200k(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_O200K], kinds_any, CASED | QUOTE_ENDS);
}

static bool gap_tekken(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_TEKKEN], kinds_any, CASED);
}

static bool gap_kimi(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_KIMI], kinds_any, CASED | QUOTE_ENDS);
}

static bool gap_deepseek(tkc_encoder *e, const unsigned char *p, const unsigned char *end)
{
    return encode_loop(e, p, end, tkc_scanners[TKC_SCAN_DEEPSEEK], kinds_any, 0);
}

/* ---- the slow path: any chain, offsets ---- */

/* Where the token bytes [from, to) of a piece lie in the text. */
static void place_of(const tkc_encoder *e, size_t from, size_t to, size_t out[2])
{
    if (e->origins && to > from) {
        out[0] = e->base + e->origins->data[from][0];
        out[1] = e->base + e->origins->data[to - 1][1];
    } else {
        out[0] = e->base + from;
        out[1] = e->base + to;
    }
}

static bool add_offsets(tkc_encoder *e, const unsigned char *p, size_t skew, size_t origin,
                        size_t first)
{
    tinkc_sizes *o = e->offsets;
    size_t n = e->out->len - first, at = 0;
    size_t *grown = tkc_grow(o->a, o->data, &o->cap, o->len + 2 * n, sizeof *grown, e->err);
    if (!grown)
        return false;
    o->data = grown;
    for (size_t i = first; i < e->out->len; i++) {
        while (e->t->byte_ids[p[at]] < 0) /* left out by BPE */
            at++;
        size_t end = at + tkc_token_text(e->t, (uint32_t)e->out->data[i]).len;
        place_of(e, origin + (at > skew ? at - skew : 0), origin + (end > skew ? end - skew : 0),
                 grown + o->len);
        o->len += 2;
        at = end;
    }
    return true;
}

static bool encode_one(void *self, const unsigned char *p, size_t len, size_t skew, size_t origin)
{
    tkc_encoder *e = self;
    size_t first = e->out->len;
    return encode_piece(e, p, len) && (!e->offsets || add_offsets(e, p, skew, origin, first));
}

bool tkc_encode_gap(tkc_encoder *e, const unsigned char *p, size_t len)
{
    static bool (*const quick[TKC_SCANS])(tkc_encoder *, const unsigned char *,
                                          const unsigned char *) = {
        [TKC_SCAN_GPT2] = gap_gpt2,   [TKC_SCAN_CL100K] = gap_cl100k,
        [TKC_SCAN_QWEN2] = gap_qwen2, [TKC_SCAN_QWEN35] = gap_qwen35,
        [TKC_SCAN_O200K] = gap_o200k, [TKC_SCAN_TEKKEN] = gap_tekken,
        [TKC_SCAN_KIMI] = gap_kimi,   [TKC_SCAN_DEEPSEEK] = gap_deepseek,
    };
    if (len == 0)
        return true;
    e->readable = p + (len < 16 ? 0 : len - 15);
    if (!e->offsets && quick[e->tok->pretok.fast])
        return quick[e->tok->pretok.fast](e, p, p + len);
    e->readable = NULL; /* pieces may be copies */
    return tkc_pretok_run(&e->tok->pretok, p, len, encode_one, e, &e->budget, e->err);
}
