/* bpe.c - byte pair encoding of one piece. May touch: the tables, the work memory it is given. */
#include "bpe/bpe.h"

#include <assert.h>
#include <string.h>

#include "unicode/unicode.h"

void tkc_bpe_work_free(tkc_bpe_work *w)
{
    if (w->data)
        tkc_release(w->a, w->data, w->cap);
    w->data = NULL;
    w->cap = 0;
}

/* At least `bytes` of memory with undefined contents. */
static void *work_room(tkc_bpe_work *w, size_t bytes, tinkc_error *err)
{
    if (w->data && bytes <= w->cap)
        return w->data;
    tkc_bpe_work_free(w);
    w->data = tkc_alloc(w->a, bytes, err);
    w->cap = w->data ? bytes : 0;
    return w->data;
}

/* ---- what merging begins with ---- */

/* The tokens of the next byte or, in a vocabulary of pieces, of the next character: its own, or those
 * of its bytes. Returns how many bytes of the text they stand for. */
static inline size_t first_tokens(const tkc_tables *t, const unsigned char *p, size_t len,
                                  uint32_t ids[4], size_t *n)
{
    size_t size = t->pieces ? tkc_char_bytes(*p) : 1;
    size = size < len ? size : len;
    int32_t whole = size > 1 ? tkc_find_word(t, p, size) : -1;
    *n = 0;
    if (whole >= 0)
        ids[(*n)++] = (uint32_t)whole;
    for (size_t i = 0; whole < 0 && i < size; i++)
        if (t->byte_ids[p[i]] >= 0)
            ids[(*n)++] = (uint32_t)t->byte_ids[p[i]];
    return size;
}

/* ---- short pieces: find the lowest rank, merge, repeat ---- */

/* Fills in the first tokens, with the ranks of their pairs. Returns how many. */
static inline size_t start_short(const tkc_tables *t, const unsigned char *p, size_t len,
                                 uint32_t *ids, uint32_t *ranks)
{
    size_t n = 0;
    if (t->all_bytes && !t->pieces) {
        for (size_t i = 0; i + 1 < len; i++) {
            ids[i] = (uint32_t)t->byte_ids[p[i]];
            ranks[i] = t->byte_pairs[(size_t)p[i] << 8 | p[i + 1]];
        }
        ids[len - 1] = (uint32_t)t->byte_ids[p[len - 1]];
        return len;
    }
    for (size_t at = 0, more; at < len; n += more) {
        uint32_t next[4];
        at += first_tokens(t, p + at, len - at, next, &more);
        memcpy(ids + n, next, more * sizeof *ids);
    }
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = tkc_pair_rank(t, ids[i], ids[i + 1]);
    return n;
}

/* Merges n tokens, whose pairs have these ranks, until nothing is left to merge. whole (may be
 * NULL): for each token the rank before which it must not be merged; returns 0 if it would be.
 * leveled: there are levels; a constant, so that the compiler makes two functions. */
static inline __attribute__((always_inline)) size_t merge_short(const tkc_tables *t, uint32_t *ids,
                                                                uint32_t *ranks, uint32_t *whole,
                                                                size_t n, int32_t *out,
                                                                bool leveled)
{
    while (n > 1) {
        size_t best = 0;
        uint32_t lowest = leveled ? tkc_merge_level(t, ranks[0]) : ranks[0];
        for (size_t i = 1; i + 1 < n; i++) {
            uint32_t level = leveled ? tkc_merge_level(t, ranks[i]) : ranks[i];
            if (level < lowest) {
                lowest = level;
                best = i;
            }
        }
        if (lowest == TKC_NO_RANK)
            break;
        ids[best] = t->merged[ranks[best]];
        if (whole)
            whole[best] = 0;
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            ranks[i] = ranks[i + 1]; /* the last entry has no pair and is not used */
            if (whole)
                whole[i] = whole[i + 1];
        }
        if (best > 0) {
            ranks[best - 1] = tkc_pair_rank(t, ids[best - 1], ids[best]);
            if (whole && ranks[best - 1] < whole[best - 1])
                return 0;
        }
        if (best + 1 < n) {
            ranks[best] = tkc_pair_rank(t, ids[best], ids[best + 1]);
            if (whole && ranks[best] < whole[best + 1])
                return 0;
        }
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (int32_t)ids[i];
    return n;
}

size_t tkc_bpe_short(const tkc_tables *t, const unsigned char *p, size_t len, int32_t *out)
{
    uint32_t ids[TKC_BPE_SHORT + 1], ranks[TKC_BPE_SHORT + 1];
    assert(len <= TKC_BPE_SHORT);
    size_t n = len ? start_short(t, p, len, ids, ranks) : 0;
    return t->levels ? merge_short(t, ids, ranks, NULL, n, out, true)
                     : merge_short(t, ids, ranks, NULL, n, out, false);
}

/* ---- by characters: the same, starting from whole characters ---- */

/* The tokens of the character at p by itself, from the cache or computed. */
static inline const tkc_char_entry *char_tokens(const tkc_tables *t, tkc_char_entry *chars,
                                                uint32_t c, const unsigned char *p, size_t len)
{
    tkc_char_entry *entry = &chars[c & (TKC_BPE_CHARS - 1)];
    if (entry->c == c && entry->n)
        return entry;
    int32_t ids[4];
    entry->c = c;
    entry->n = (uint32_t)tkc_bpe_short(t, p, len, ids);
    entry->made = 0;
    for (uint32_t i = 0; i < entry->n; i++) {
        uint32_t made = t->split[ids[i]].made;
        entry->ids[i] = (uint32_t)ids[i];
        entry->made = made > entry->made ? made : entry->made;
        if (t->flags[ids[i]] & TKC_TOKEN_IRREGULAR)
            entry->made = UINT32_MAX; /* the order of the merges is unknown */
    }
    return entry;
}

/* Whether both tokens, merged side by side from their bytes, are complete before any merge crosses
 * the border between them. */
static bool whole_first(const tkc_tables *t, uint32_t left, uint32_t right)
{
    const tkc_split *l = &t->split[left], *r = &t->split[right];
    if (l->made > r->made)
        return tkc_pair_stays(t, l->right, right, l->made - 1);
    return r->made == 0 || tkc_pair_stays(t, left, r->left, r->made);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Fills in the characters as tokens, with the ranks of their pairs. Returns how many, or 0 if it is
 * not certain that characters are complete before they merge with each other.
 *
 * whole[i]: token i must not be merged before this rank, at which its character is complete. That
 * is enough if no token holds part of one character next to another: merges inside one character
 * then do not affect the other. If there is such a token, a neighbour that grew early could take
 * part of the next character, so both must be complete before either grows. */
static size_t start_chars(const tkc_tables *t, tkc_char_entry *chars, const unsigned char *p,
                          size_t len, uint32_t *ids, uint32_t *ranks, uint32_t *whole)
{
    size_t n = 0;
    for (size_t at = 0, size; at < len; at += size) {
        const unsigned char *next = p + at;
        uint32_t c = tkc_next_char(&next);
        size = (size_t)(next - (p + at));
        const tkc_char_entry *entry = char_tokens(t, chars, c, p + at, size);
        uint32_t made = entry->made;
        if (made == UINT32_MAX)
            return 0;
        if (n) {
            ranks[n - 1] = tkc_pair_rank(t, ids[n - 1], entry->ids[0]);
            if (tkc_is_ragged(t, p[at - 1], p[at])) {
                if (!whole_first(t, ids[n - 1], entry->ids[0]))
                    return 0;
                whole[n - 1] = made = larger(whole[n - 1], made);
            }
        }
        for (uint32_t i = 0; i < entry->n; i++) {
            ranks[n] = TKC_NO_RANK; /* else the tokens of a character would be one token */
            whole[n] = i ? entry->made : made;
            ids[n++] = entry->ids[i];
        }
    }
    for (size_t i = 0; i + 1 < n; i++)
        if (ranks[i] < whole[i] || ranks[i] < whole[i + 1])
            return 0;
    return n;
}

size_t tkc_bpe_chars(const tkc_tables *t, tkc_char_entry *chars, const unsigned char *p, size_t len,
                     int32_t *out)
{
    uint32_t ids[TKC_BPE_SHORT + 1], ranks[TKC_BPE_SHORT + 1], whole[TKC_BPE_SHORT + 1];
    assert(len <= TKC_BPE_SHORT && t->all_bytes);
    size_t n = start_chars(t, chars, p, len, ids, ranks, whole);
    if (n)
        n = merge_short(t, ids, ranks, whole, n, out, false);
    return n ? n : tkc_bpe_short(t, p, len, out);
}

/* ---- the heap: entries in order of (level, position); stale entries are dropped ---- */

typedef struct heap_symbol {
    uint32_t id, prev, next; /* UINT32_MAX = none; a merged-away symbol has id UINT32_MAX */
} heap_symbol;

static void sift_up(uint64_t *heap, size_t i)
{
    uint64_t item = heap[i];
    for (; i > 0 && heap[(i - 1) / 2] > item; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = item;
}

static uint64_t pop_heap(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

/* Pushes the pair that begins with symbol i, if it can merge. */
static void push_pair(const tkc_tables *t, const heap_symbol *s, uint32_t i, uint64_t *heap,
                      size_t *n)
{
    if (i == UINT32_MAX || s[i].next == UINT32_MAX)
        return;
    uint32_t rank = tkc_pair_rank(t, s[i].id, s[s[i].next].id);
    if (rank == TKC_NO_RANK)
        return;
    heap[*n] = (uint64_t)tkc_merge_level(t, rank) << 32 | i;
    sift_up(heap, (*n)++);
}

static void merge_at(const tkc_tables *t, heap_symbol *s, uint64_t top, uint64_t *heap, size_t *n)
{
    uint32_t i = (uint32_t)top, right;
    if (s[i].id == UINT32_MAX || (right = s[i].next) == UINT32_MAX)
        return;
    uint32_t rank = tkc_pair_rank(t, s[i].id, s[right].id);
    if (rank == TKC_NO_RANK || tkc_merge_level(t, rank) != top >> 32)
        return;
    s[i].id = t->merged[rank];
    s[i].next = s[right].next;
    if (s[i].next != UINT32_MAX)
        s[s[i].next].prev = i;
    s[right].id = UINT32_MAX;
    push_pair(t, s, s[i].prev, heap, n);
    push_pair(t, s, i, heap, n);
}

int64_t tkc_bpe_heap(const tkc_tables *t, tkc_bpe_work *w, const unsigned char *p, size_t len,
                     int32_t *out, tinkc_error *err)
{
    /* Each merge removes a symbol and adds at most two entries. */
    size_t symbols, entries, bytes;
    if (len > INT32_MAX) {
        tkc_fail(err, TINKC_E_ARGUMENT, "text: a word of more than %d bytes", INT32_MAX);
        return TKC_BPE_FAILED;
    }
    if (!tkc_mul_size(len, sizeof(heap_symbol), &symbols) || !tkc_mul_size(len, 3 * 8, &entries) ||
        !tkc_add_size(symbols + 8, entries, &bytes))
        return tkc_fail_memory(err), TKC_BPE_FAILED;
    uint64_t *heap = work_room(w, bytes, err);
    if (!heap)
        return TKC_BPE_FAILED;
    heap_symbol *s = (heap_symbol *)(heap + 3 * len);
    uint32_t n = 0;
    for (size_t at = 0, more; at < len;) {
        uint32_t ids[4];
        at += first_tokens(t, p + at, len - at, ids, &more);
        for (size_t i = 0; i < more; i++, n++)
            s[n] = (heap_symbol){ ids[i], n - 1, n + 1 };
    }
    if (n == 0)
        return 0;
    s[n - 1].next = UINT32_MAX;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        push_pair(t, s, i, heap, &n_heap);
    while (n_heap)
        merge_at(t, s, pop_heap(heap, &n_heap), heap, &n_heap);
    int64_t n_out = 0;
    for (uint32_t i = 0; i != UINT32_MAX; i = s[i].next)
        out[n_out++] = (int32_t)s[i].id;
    return n_out;
}

/* ---- the walk ----
 *
 * A sequence of tokens is the merge result for a text if and only if each token is the merge result
 * for its own bytes and no two neighbours merge across their border when merged by themselves: the
 * first merge across any border would also happen between these two alone. So the sequence is
 * unique, also for each prefix of the text, and can be searched from the left: the longest token
 * first, shorter ones after a dead end. A dead end is marked and never tried again, so each
 * position is tried once. */

typedef struct walk {
    const tkc_tables *t;
    const unsigned char *p;
    size_t len;
    uint64_t *dead; /* a bit for each dead end */
    uint32_t last_left, last_right;
    bool last_stays; /* the answer for the last pair asked about */
    /* The tokens that begin at `found_at`, shortest first. The same tokens begin wherever the
     * `looked` bytes that decided it repeat; 0 = the end of the text decided. */
    size_t found_at, looked, n_found;
    int32_t found[TKC_BPE_LONG_TOKEN];
} walk;

/* The child of a node for a byte, 0 if there is none. */
static inline uint32_t trie_step(const tkc_tables *t, uint32_t node, uint8_t byte)
{
    uint32_t lo = t->nodes[node].child, hi = t->nodes[node + 1].child;
    if (hi - lo == 256)
        return lo + byte;
    while (hi - lo > 8) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (t->labels[mid] <= byte)
            lo = mid;
        else
            hi = mid;
    }
    for (; lo < hi; lo++)
        if (t->labels[lo] == byte)
            return lo;
    return 0;
}

static void find_tokens(walk *w, size_t at)
{
    if (w->looked && w->looked <= w->len - at &&
        memcmp(w->p + w->found_at, w->p + at, w->looked) == 0)
        return; /* the fast path for long runs of one character */
    w->found_at = at;
    w->looked = w->n_found = 0;
    for (uint32_t node = 0; at < w->len && w->n_found < TKC_BPE_LONG_TOKEN; at++) {
        node = trie_step(w->t, node, w->p[at]);
        if (node == 0) {
            w->looked = at + 1 - w->found_at;
            break;
        }
        if (w->t->nodes[node].token >= 0)
            w->found[w->n_found++] = w->t->nodes[node].token;
    }
}

/* For tokens whose merges are out of order: actually merges the two. */
static bool stays_by_trial(const tkc_tables *t, uint32_t left, uint32_t right)
{
    unsigned char both[2 * TKC_BPE_LONG_TOKEN];
    int32_t ids[2 * TKC_BPE_LONG_TOKEN];
    tinkc_bytes l = tkc_token_text(t, left), r = tkc_token_text(t, right);
    tinkc_error err = { 0 };
    tkc_bpe_work work = { 0 };
    if (l.len + r.len > sizeof both)
        return false;
    memcpy(both, l.data, l.len);
    memcpy(both + l.len, r.data, r.len);
    int64_t n = tkc_bpe_heap(t, &work, both, l.len + r.len, ids, &err);
    tkc_bpe_work_free(&work);
    return n == 2 && ids[0] == (int32_t)left && ids[1] == (int32_t)right;
}

static bool stays(walk *w, uint32_t left, uint32_t right)
{
    if (left == w->last_left && right == w->last_right)
        return w->last_stays;
    w->last_left = left;
    w->last_right = right;
    bool odd = (w->t->flags[left] | w->t->flags[right]) & TKC_TOKEN_IRREGULAR;
    w->last_stays =
        odd ? stays_by_trial(w->t, left, right) : tkc_pair_stays(w->t, left, right, UINT32_MAX);
    return w->last_stays;
}

static bool is_dead(const walk *w, size_t at)
{
    return w->dead[at >> 6] >> (at & 63) & 1;
}

/* The longest token of at most max bytes at `at` that can follow `before` (-1: none). */
static int32_t next_token(walk *w, size_t at, size_t max, int32_t before)
{
    find_tokens(w, at);
    for (size_t n = w->n_found; n-- > 0;) {
        int32_t token = w->found[n];
        size_t len = tkc_token_text(w->t, (uint32_t)token).len;
        assert(len > 0 && len <= w->len - at);
        if (len > max || is_dead(w, at + len))
            continue;
        if (before < 0 || stays(w, (uint32_t)before, (uint32_t)token))
            return token;
    }
    return -1;
}

int64_t tkc_bpe_walk(const tkc_tables *t, tkc_bpe_work *work, const unsigned char *p, size_t len,
                     int32_t *out, tinkc_error *err)
{
    size_t words = len / 64 + 1;
    walk w; /* found[] is for find_tokens to fill */
    w.t = t;
    w.p = p;
    w.len = len;
    w.last_left = w.last_right = UINT32_MAX;
    w.last_stays = false;
    w.looked = w.n_found = w.found_at = 0;
    w.dead = work_room(work, words * 8, err);
    if (!w.dead)
        return TKC_BPE_FAILED;
    memset(w.dead, 0, words * 8);
    size_t at = 0, max = SIZE_MAX;
    int64_t n = 0;
    while (at < len) {
        int32_t token = next_token(&w, at, max, n ? out[n - 1] : -1);
        if (token >= 0) {
            out[n++] = token;
            at += tkc_token_text(t, (uint32_t)token).len;
            max = SIZE_MAX;
            continue;
        }
        if (n == 0) /* cannot happen with valid tables */
            return tkc_bpe_heap(t, work, p, len, out, err);
        w.dead[at >> 6] |= UINT64_C(1) << (at & 63);
        size_t taken = tkc_token_text(t, (uint32_t)out[--n]).len;
        at -= taken;
        max = taken - 1;
    }
    return n;
}

int64_t tkc_bpe(const tkc_tables *t, tkc_bpe_work *w, const unsigned char *p, size_t len,
                int32_t *out, tinkc_error *err)
{
    if (len <= TKC_BPE_SHORT)
        return (int64_t)tkc_bpe_short(t, p, len, out);
    if (t->max_len <= TKC_BPE_LONG_TOKEN && t->all_bytes && !t->pieces)
        return tkc_bpe_walk(t, w, p, len, out, err);
    return tkc_bpe_heap(t, w, p, len, out, err);
}
