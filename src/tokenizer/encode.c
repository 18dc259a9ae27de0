/* encode.c - the public encoding calls: checks, added tokens, normal form, threads.
 *
 * May touch: a scratch from the tokenizer's cache, the caller's arrays, threads of its own while a
 * call lasts. The result never depends on the number of threads: a text is cut only where every
 * pre-tokeniser ends a piece regardless of context.
 */
#include <assert.h>
#include <string.h>

#include "bpe/added.h"
#include "bpe/encoder.h"
#include "tokenizer/load.h"
#include "unicode/spaces.h"

typedef struct request {
    const tinkc_tokenizer *tok;
    tinkc_encode_options o;
    tinkc_error *err;
} request;

static bool check_options(request *r, const tinkc_encode_options *options)
{
    if (!r->tok)
        return tkc_fail(r->err, TINKC_E_ARGUMENT, "tokenizer: missing");
    if (!options)
        return true;
    r->o = *options;
    if (!tkc_all_zero(options->reserved, sizeof options->reserved) ||
        !tkc_all_zero(options->reserved_bools, sizeof options->reserved_bools))
        return tkc_fail(r->err, TINKC_E_ARGUMENT, "options: reserved fields must be zero");
    if (options->special < TINKC_SPECIAL_ALL || options->special > TINKC_SPECIAL_NONE)
        return tkc_fail(r->err, TINKC_E_ARGUMENT, "options.special: %d is not a valid value",
                        options->special);
    if (options->threads < 0 || options->threads > 1024)
        return tkc_fail(r->err, TINKC_E_ARGUMENT, "options.threads: %d is not 0 to 1024",
                        options->threads);
    return true;
}

/* ---- one text on one thread ---- */

typedef struct text_job {
    tkc_encoder e;
    const unsigned char *text; /* the whole text, for offsets */
    int32_t special;
    bool needs_nfc; /* a character of the text may change */
} text_job;

static bool put_id(text_job *t, int32_t id, size_t start, size_t end)
{
    tinkc_sizes *o = t->e.offsets;
    if (!tkc_encoder_room(&t->e, 1))
        return false;
    t->e.out->data[t->e.out->len++] = id;
    if (!o)
        return true;
    size_t *grown = tkc_grow(o->a, o->data, &o->cap, o->len + 2, sizeof *grown, t->e.err);
    if (!grown)
        return false;
    o->data = grown;
    grown[o->len++] = start;
    grown[o->len++] = end;
    return true;
}

/* Text between added tokens. Metaspace may put a space before it, which is not in the normal form. */
static bool encode_gap(text_job *t, const unsigned char *p, size_t len)
{
    const tinkc_tokenizer *tok = t->e.tok;
    tkc_scratch *s = t->e.s;
    tkc_origins *origins = t->e.offsets ? &s->origins : NULL;
    bool changes = false;
    if (!tok->metaspace)
        return tkc_encode_gap(&t->e, p, len);
    bool prefix = tok->space_first == TKC_SPACE_UNLESS ||
                  (tok->space_first == TKC_SPACE_FIRST && p == t->text);
    if (!tkc_spaces(p, len, prefix && !tkc_begins_with_space(p, len), &s->normal, origins, &changes,
                    t->e.err))
        return false;
    if (!changes)
        return tkc_encode_gap(&t->e, p, len);
    t->e.origins = origins;
    bool ok = tkc_encode_gap(&t->e, (const unsigned char *)s->normal.data, s->normal.len);
    t->e.origins = NULL;
    return ok;
}

/* Normalised text between the raw added tokens: finds the added tokens of normalised text. */
static bool encode_normal(text_job *t, const unsigned char *p, size_t len, size_t base)
{
    const tkc_added_set *set = t->special == TINKC_SPECIAL_NONE ? NULL : t->e.tok->norm_set;
    const tkc_origins *origins = t->e.origins;
    tkc_added_search search = { 0 };
    tkc_added_match m;
    size_t done = 0;
    t->e.base = base;
    if (!set)
        return encode_gap(t, p, len);
    for (;;) {
        bool found = tkc_added_next(set, p, len, t->special == TINKC_SPECIAL_SOME, &search, &m);
        size_t end = found ? m.start : len;
        tkc_origins rest = { 0 };
        if (end < done) {
            ; /* found in white space that the previous token took */
        } else if (origins) {
            rest = (tkc_origins){ origins->data + done, end - done, 0 };
            t->e.origins = &rest;
        } else {
            t->e.base = base + done;
        }
        if (end > done && !encode_gap(t, p + done, end - done))
            return false;
        t->e.origins = origins;
        if (!found)
            return true;
        size_t from = origins ? base + origins->data[m.start][0] : base + m.start;
        size_t to = origins ? base + origins->data[m.end - 1][1] : base + m.end;
        if (!put_id(t, m.token->id, from, to))
            return false;
        done = m.end;
    }
}

static bool encode_between(text_job *t, size_t from, size_t to)
{
    const unsigned char *p = t->text + from;
    const tinkc_tokenizer *tok = t->e.tok;
    tkc_scratch *s = t->e.s;
    tkc_origins *origins = t->e.offsets ? &s->origins : NULL;
    bool changes = false;
    t->e.origins = NULL;
    if (from == to)
        return true;
    if (tok->tables.pieces && !tok->metaspace &&
        !tkc_spaces(p, to - from, tok->space_first, &s->normal, origins, &changes, t->e.err))
        return false;
    if (t->needs_nfc && !tkc_nfc(p, to - from, &s->normal, origins, &changes, t->e.err))
        return false;
    if (!changes)
        return encode_normal(t, p, to - from, from);
    t->e.origins = origins;
    bool ok = encode_normal(t, (const unsigned char *)s->normal.data, s->normal.len, from);
    t->e.origins = NULL;
    return ok;
}

/* [from, to) of the text, well-formed: finds the added tokens of the raw text. */
static bool encode_valid(text_job *t, size_t from, size_t to)
{
    const tkc_added_set *set = t->special == TINKC_SPECIAL_NONE ? NULL : t->e.tok->raw_set;
    tkc_added_search search = { 0 };
    tkc_added_match m;
    size_t done = from;
    assert(from <= to);
    while (tkc_added_next(set, t->text + from, to - from, t->special == TINKC_SPECIAL_SOME, &search,
                          &m)) {
        bool gap = from + m.start > done; /* else inside white space that the last token took */
        if ((gap && !encode_between(t, done, from + m.start)) ||
            !put_id(t, m.token->id, from + m.start, from + m.end))
            return false;
        done = from + m.end;
    }
    return encode_between(t, done, to);
}

/* ---- how Kimi's wrapper splits text ---- */

/* Python's str.isspace. */
static bool python_space(uint32_t c)
{
    return (c >= 0x1C && c <= 0x1F) || tkc_class_of(c) & TKC_SPACE;
}

/* It encodes 400 000 characters at a time, and inside them splits runs of white space and of other
 * characters after every 25 000. */
static bool encode_kimi(text_job *t, size_t from, size_t to)
{
    enum { CHUNK = 400000, RUN = 25000 };
    size_t done = from, chars = 0, same = 0;
    bool space = false;
    for (size_t at = from; at < to;) {
        const unsigned char *p = t->text + at;
        bool now = python_space(tkc_next_char(&p));
        if (chars == CHUNK || (chars > 0 && now == space && same == RUN)) {
            if (!encode_valid(t, done, at))
                return false;
            done = at;
            same = 0;
            if (chars == CHUNK)
                chars = 0;
        } else if (chars == 0 || now != space) {
            same = 0;
        }
        space = now;
        same++;
        chars++;
        at = (size_t)(p - t->text);
    }
    return encode_valid(t, done, to);
}

static bool encode_checked(text_job *t, size_t from, size_t to)
{
    return t->e.tok->kimi_cuts ? encode_kimi(t, from, to) : encode_valid(t, from, to);
}

/* With any_bytes: encodes each well-formed span separately, and one token per byte between them. */
static bool encode_any(text_job *t, size_t len)
{
    for (size_t at = 0; at < len;) {
        size_t n = tkc_utf8_sound(t->text + at, len - at, &t->needs_nfc);
        t->needs_nfc &= t->e.tok->nfc;
        if (n && !encode_checked(t, at, at + n))
            return false;
        at += n;
        if (at == len)
            break;
        bool unused;
        for (size_t k = tkc_utf8_broken(t->text + at, len - at, &unused); k > 0; k--, at++) {
            int32_t id = t->e.t->byte_ids[t->text[at]];
            if (id >= 0 && !put_id(t, id, at, at + 1))
                return false;
        }
    }
    return true;
}

static bool put_marks(text_job *t, const int32_t *ids, size_t n, size_t at)
{
    for (size_t i = 0; i < n; i++)
        if (!put_id(t, ids[i], at, at))
            return false;
    return true;
}

static bool encode_text(const request *r, tkc_scratch *s, tinkc_str text, tinkc_tokens *out,
                        tinkc_sizes *offsets)
{
    const tinkc_tokenizer *tok = r->tok;
    text_job t = { .e = { .tok = tok,
                          .t = &tok->tables,
                          .s = s,
                          .out = out,
                          .offsets = offsets,
                          .err = r->err },
                   .text = (const unsigned char *)(text.data ? text.data : ""),
                   .special = r->o.special };
    if (tkc_pretok_has_regex(&tok->pretok))
        tkc_regex_budget_start(&t.e.budget, text.len);
    if (r->o.add_special && !put_marks(&t, tok->prefix, tok->n_prefix, 0))
        return false;
    if (r->o.any_bytes) {
        if (!encode_any(&t, text.len))
            return false;
    } else {
        size_t good = tkc_utf8_sound(t.text, text.len, tok->nfc ? &t.needs_nfc : NULL);
        if (good < text.len)
            return tkc_fail(r->err, TINKC_E_ARGUMENT, "text: not UTF-8 at byte %zu", good);
        t.needs_nfc &= tok->nfc;
        if (!encode_checked(&t, 0, text.len))
            return false;
    }
    return !r->o.add_special || put_marks(&t, tok->suffix, tok->n_suffix, text.len);
}

/* ---- several threads ---- */

enum { CHUNK_BYTES = 1 << 18 }; /* not worth a thread below this */

typedef struct part {
    tinkc_str text;
    tinkc_tokens out;
} part;

typedef struct crew {
    const request *r;
    part *parts;
    size_t n;
    atomic_size_t next;
    pthread_mutex_t lock; /* guards the first failure */
    tinkc_error err;
} crew;

static void work_on(crew *c)
{
    tinkc_error err = { 0 };
    request r = *c->r;
    r.err = &err;
    tkc_scratch *s = tkc_scratch_take(r.tok, &err);
    for (size_t i; s && !tkc_failed(&err) && (i = atomic_fetch_add(&c->next, 1)) < c->n;)
        encode_text(&r, s, c->parts[i].text, &c->parts[i].out, NULL);
    tkc_scratch_return(r.tok, s);
    if (tkc_failed(&err)) {
        pthread_mutex_lock(&c->lock);
        tkc_error_copy(&c->err, &err);
        pthread_mutex_unlock(&c->lock);
        atomic_store(&c->next, c->n); /* stops the other threads */
    }
}

static void *thread_main(void *arg)
{
    work_on(arg);
    return NULL;
}

/* Encodes all parts on up to `threads` threads, including this one. */
static bool run_crew(const request *r, part *parts, size_t n, size_t threads)
{
    crew c = { .r = r, .parts = parts, .n = n };
    pthread_t ids[64];
    size_t started = 0;
    tinkc_error ignored = { 0 };
    pthread_mutex_init(&c.lock, NULL);
    atomic_init(&c.next, 0);
    while (started + 1 < threads && started + 1 < n && started < 64 &&
           tkc_thread_start(&ids[started], thread_main, &c, "tinkc-encode", &ignored))
        started++;
    work_on(&c); /* also does the work of threads that could not be started */
    for (size_t i = 0; i < started; i++)
        pthread_join(ids[i], NULL);
    pthread_mutex_destroy(&c.lock);
    tkc_error_copy(r->err, &c.err);
    return !tkc_failed(r->err);
}

static bool ascii_letter(char c)
{
    return (unsigned char)((c | 0x20) - 'a') < 26;
}

/* The next place at or after `at` where every family ends a piece: between a letter and a space
 * that is followed by a letter. The text's length if there is none. */
static size_t cut_behind(tinkc_str text, size_t at)
{
    for (; at + 1 < text.len; at++)
        if (text.data[at] == ' ' && at > 0 && ascii_letter(text.data[at - 1]) &&
            ascii_letter(text.data[at + 1]))
            return at;
    return text.len;
}

/* True if nothing depends on text across such a cut: a known family, no added token with a space or
 * with rules about its surroundings. */
static bool may_cut(const request *r)
{
    const tinkc_tokenizer *tok = r->tok;
    if (tok->pretok.fast == TKC_SCAN_NONE || tok->kimi_cuts || r->o.any_bytes)
        return false;
    for (size_t i = 0; i < tok->n_added; i++)
        if (tok->added[i].lstrip || tok->added[i].rstrip || tok->added[i].single_word ||
            memchr(tok->added[i].text, ' ', tok->added[i].len))
            return false;
    return true;
}

static void release_parts(part *parts, size_t n, size_t cap)
{
    for (size_t i = 0; i < n; i++)
        tinkc_tokens_free(&parts[i].out);
    tkc_release(NULL, parts, cap * sizeof *parts);
}

static bool join_parts(const request *r, const part *parts, size_t n, tinkc_tokens *out,
                       tinkc_sizes *ends)
{
    for (size_t i = 0; i < n; i++) {
        if (parts[i].out.len &&
            !tinkc_tokens_append(out, parts[i].out.data, parts[i].out.len, r->err))
            return false;
        if (ends)
            ends->data[ends->len++] = out->len;
    }
    return true;
}

/* A long text in pieces on several threads. */
static bool encode_split(request *r, tinkc_str text, tinkc_tokens *out)
{
    size_t cap = text.len / CHUNK_BYTES + 2, n = 0;
    part *parts = tkc_zalloc(NULL, cap * sizeof *parts, r->err);
    if (!parts)
        return false;
    bool marks = r->o.add_special;
    const tinkc_tokenizer *tok = r->tok;
    r->o.add_special = false;
    for (size_t at = 0, end; at < text.len && n < cap; at = end) {
        end = text.len - at > CHUNK_BYTES ? cut_behind(text, at + CHUNK_BYTES) : text.len;
        parts[n++].text = tkc_strn(text.data + at, end - at);
    }
    bool ok =
        run_crew(r, parts, n, (size_t)r->o.threads) &&
        (!marks || !tok->n_prefix ||
         tinkc_tokens_append(out, tok->prefix, tok->n_prefix, r->err)) &&
        join_parts(r, parts, n, out, NULL) &&
        (!marks || !tok->n_suffix || tinkc_tokens_append(out, tok->suffix, tok->n_suffix, r->err));
    release_parts(parts, n, cap);
    return ok;
}

/* ---- public ---- */

static bool encode_span(request *r, tinkc_str text, tinkc_tokens *out, tinkc_sizes *offsets)
{
    if (r->o.threads > 1 && text.len >= 2 * CHUNK_BYTES && !offsets && may_cut(r)) {
        /* Checked here, so that the error names the place in the whole text. */
        size_t good = tkc_utf8_sound((const unsigned char *)text.data, text.len, NULL);
        if (good < text.len)
            return tkc_fail(r->err, TINKC_E_ARGUMENT, "text: not UTF-8 at byte %zu", good);
        return encode_split(r, text, out);
    }
    size_t before = out->len, before_offsets = offsets ? offsets->len : 0;
    tkc_scratch *s = tkc_scratch_take(r->tok, r->err);
    bool ok = s && encode_text(r, s, text, out, offsets);
    tkc_scratch_return(r->tok, s);
    if (!ok) { /* remove a failed text's tokens from the caller's arrays */
        out->len = before;
        if (offsets)
            offsets->len = before_offsets;
    }
    return ok;
}

bool tinkc_encode_span(const tinkc_tokenizer *tok, const char *text, size_t len,
                       const tinkc_encode_options *options, tinkc_tokens *out, tinkc_sizes *offsets,
                       tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    request r = { .tok = tok, .err = err };
    if (!check_options(&r, options))
        return false;
    if (!out || (!text && len))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: missing", out ? "text" : "out");
    return encode_span(&r, tkc_strn(text, len), out, offsets);
}

bool tinkc_encode(const tinkc_tokenizer *tok, const char *text, tinkc_tokens *out, tinkc_error *err)
{
    return tinkc_encode_span(tok, text, text ? strlen(text) : 1, NULL, out, NULL, err);
}

size_t tinkc_encode_count(const tinkc_tokenizer *tok, const char *text, size_t len,
                          const tinkc_encode_options *options, tinkc_error *err)
{
    tinkc_tokens out = { 0 };
    size_t n = tinkc_encode_span(tok, text, len, options, &out, NULL, err) ? out.len : 0;
    tinkc_tokens_free(&out);
    return n;
}

/* If there are few texts, long ones are split one by one; many short texts are one job each. */
bool tinkc_encode_many(const tinkc_tokenizer *tok, const tinkc_str *texts, size_t n,
                       const tinkc_encode_options *options, tinkc_tokens *out, tinkc_sizes *ends,
                       tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    request r = { .tok = tok, .err = err };
    if (!check_options(&r, options))
        return false;
    if ((!texts && n) || !out || !ends)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: missing",
                        !texts && n ? "texts"
                        : out       ? "ends"
                                    : "out");
    for (size_t i = 0; i < n; i++)
        if (!texts[i].data && texts[i].len)
            return tkc_fail(err, TINKC_E_ARGUMENT, "texts[%zu]: missing", i);
    size_t *grown = tkc_grow(ends->a, ends->data, &ends->cap, ends->len + n, sizeof *grown, err);
    if (!grown)
        return false;
    ends->data = grown;
    size_t before = out->len, before_ends = ends->len;
    bool ok = true;
    if (r.o.threads > 1 && n > 1) {
        part *parts = tkc_zalloc(NULL, n * sizeof *parts, err);
        if (!parts)
            return false;
        for (size_t i = 0; i < n; i++)
            parts[i].text = texts[i];
        ok = run_crew(&r, parts, n, (size_t)r.o.threads) && join_parts(&r, parts, n, out, ends);
        release_parts(parts, n, n);
    } else {
        for (size_t i = 0; ok && i < n; i++) {
            ok = encode_span(&r, texts[i], out, NULL);
            ends->data[ends->len++] = out->len;
        }
    }
    if (!ok) {
        out->len = before;
        ends->len = before_ends;
    }
    return ok;
}
