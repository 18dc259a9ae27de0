/* token_decode.c - tokens back to text, at once or incrementally. May touch: the caller's text.
 *
 * Bytes are collected first; invalid UTF-8 becomes U+FFFD, one for each maximal part that could
 * have begun a character. A decoder holds back at most three bytes that may still become a
 * character.
 */
#include <assert.h>
#include <string.h>

#include "tokenizer/tokenizer_priv.h"
#include "unicode/unicode.h"

struct tinkc_decoder {
    tinkc_tokenizer *tok;
    tinkc_decode_options o;
    bool started; /* something was written */
    struct tail {
        unsigned char bytes[4];
        size_t n;
    } held; /* bytes that could still become a character */
};
typedef struct tail tail;

static bool check_options(const tinkc_decode_options *o, tinkc_error *err)
{
    if (o && (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
              !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools)))
        return tkc_fail(err, TINKC_E_ARGUMENT, "options: reserved fields must be zero");
    return true;
}

static char *text_room(tinkc_text *out, size_t more, tinkc_error *err)
{
    size_t need;
    if (!tkc_add_size(out->len, more, &need) || !tkc_add_size(need, 1, &need)) {
        tkc_fail_memory(err);
        return NULL;
    }
    if (out->data && need <= out->cap)
        return out->data + out->len;
    char *grown = tkc_grow(out->a, out->data, &out->cap, need, 1, err);
    if (!grown)
        return NULL;
    out->data = grown;
    return grown + out->len;
}

/* An id that is not in the tables, or that needs a closer look. */
static tinkc_bytes unusual(const tinkc_tokenizer *tok, int32_t id)
{
    return tinkc_tokenizer_bytes(tok, id);
}

/* Where the text being built may be ill-formed: tokens that hold parts of characters form runs, and
 * only these are checked. */
typedef struct runs {
    size_t start; /* of the current run, SIZE_MAX = none */
    bool broken;  /* a run was not well-formed */
} runs;

static void end_run(runs *r, const char *data, size_t end)
{
    if (r->start == SIZE_MAX)
        return;
    size_t len = end - r->start;
    r->broken |= tkc_utf8_sound((const unsigned char *)data + r->start, len, NULL) != len;
    r->start = SIZE_MAX;
}

/* Appends the bytes of all ids. *strip: a space at the beginning is left out; false once there was a
 * byte. Short tokens are copied sixteen bytes at a time: the room after
 * them is reserved, and nothing after the last token's text is ever read. */
static bool gather(const tinkc_tokenizer *tok, const int32_t *ids, size_t len, bool skip_special,
                   bool *strip, runs *r, tinkc_text *out, tinkc_error *err)
{
    enum { BLOCK = 512 };
    const tkc_tables *t = &tok->tables;
    const unsigned char *text_end = t->text + t->offset[t->n];
    for (size_t start = 0; start < len; start += BLOCK) {
        size_t end = len - start < BLOCK ? len : start + BLOCK, need = 32;
        for (size_t i = start; i < end; i++)
            need += (uint32_t)ids[i] < t->n ? t->offset[ids[i] + 1] - t->offset[ids[i]]
                                            : unusual(tok, ids[i]).len;
        char *at = text_room(out, need, err);
        if (!at)
            return false;
        for (size_t i = start; i < end; i++) {
            if (skip_special && tinkc_tokenizer_is_special(tok, ids[i]))
                continue;
            bool usual = (uint32_t)ids[i] < t->n;
            tinkc_bytes b = usual ? tkc_token_text(t, (uint32_t)ids[i]) : unusual(tok, ids[i]);
            if (*strip && b.len) {
                size_t space = *b.data == ' ';
                b = (tinkc_bytes){ b.data + space, b.len - space };
                *strip = false;
            }
            if (usual && b.len && !(t->flags[ids[i]] & TKC_TOKEN_SOUND)) {
                if (r->start == SIZE_MAX)
                    r->start = (size_t)(at - out->data);
            } else if (b.len) {
                end_run(r, out->data, (size_t)(at - out->data));
            }
            if (usual && b.len <= 16 && text_end - b.data >= 16)
                memcpy(at, b.data, 16);
            else if (b.len)
                memcpy(at, b.data, b.len);
            at += b.len;
        }
        out->len = (size_t)(at - out->data);
    }
    end_run(r, out->data, out->len);
    return true;
}

static bool append(tinkc_text *out, const void *bytes, size_t len, tinkc_error *err)
{
    char *at = text_room(out, len, err);
    if (!at)
        return false;
    if (len)
        memcpy(at, bytes, len);
    out->len += len;
    return true;
}

/* Appends `len` bytes with U+FFFD for invalid UTF-8. Bytes that could still become a character go
 * to *left; with left NULL they are replaced as well. */
static bool append_repaired(tinkc_text *out, const unsigned char *p, size_t len, tail *left,
                            tinkc_error *err)
{
    while (len) {
        size_t good = tkc_utf8_sound(p, len, NULL);
        if (!append(out, p, good, err))
            return false;
        p += good;
        len -= good;
        if (!len)
            break;
        bool may_go_on;
        size_t n = tkc_utf8_broken(p, len, &may_go_on);
        if (may_go_on && left) {
            assert(len < sizeof left->bytes);
            memcpy(left->bytes, p, len);
            left->n = len;
            break;
        }
        if (!append(out, "\xEF\xBF\xBD", 3, err))
            return false;
        p += n;
        len -= n;
    }
    return true;
}

static void terminate(tinkc_text *out)
{
    if (out->data)
        out->data[out->len] = '\0';
}

/* Repairs out->data[from, len) in place; see append_repaired. */
static bool repair(tinkc_text *out, size_t from, tail *left, tinkc_error *err)
{
    unsigned char *p = (unsigned char *)out->data + from;
    size_t len = out->len - from, good = tkc_utf8_sound(p, len, NULL);
    if (good == len)
        return true;
    size_t rest = len - good;
    unsigned char *copy = tkc_alloc(NULL, rest, err);
    if (!copy)
        return false;
    memcpy(copy, p + good, rest);
    out->len = from + good;
    bool ok = append_repaired(out, copy, rest, left, err);
    tkc_release(NULL, copy, rest);
    return ok;
}

bool tinkc_decode_span(const tinkc_tokenizer *tok, const int32_t *ids, size_t len,
                       const tinkc_decode_options *options, tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(options, err))
        return false;
    if (!tok || !out || (!ids && len))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: missing",
                        !tok   ? "tokenizer"
                        : !out ? "out"
                               : "ids");
    size_t before = out->len;
    bool strip = tok->strip_space;
    runs r = { SIZE_MAX, false };
    bool ok = gather(tok, ids, len, options && options->skip_special, &strip, &r, out, err) &&
              ((options && options->raw_bytes) || !r.broken || repair(out, before, NULL, err)) &&
              text_room(out, 0, err);
    if (!ok)
        out->len = before;
    terminate(out);
    return ok;
}

const char *tinkc_decode(const tinkc_tokenizer *tok, const int32_t *ids, size_t len,
                         tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return "";
    if (!out) {
        tkc_fail(err, TINKC_E_ARGUMENT, "out: missing");
        return "";
    }
    out->len = 0;
    terminate(out);
    return tinkc_decode_span(tok, ids, len, NULL, out, err) && out->data ? out->data : "";
}

/* ---- incremental decoding ---- */

tinkc_decoder *tinkc_decoder_new(const tinkc_tokenizer *tok, const tinkc_decode_options *options,
                                 tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(options, err))
        return NULL;
    if (!tok) {
        tkc_fail(err, TINKC_E_ARGUMENT, "tokenizer: missing");
        return NULL;
    }
    tinkc_decoder *d = tkc_zalloc(tok->a, sizeof *d, err);
    if (!d)
        return NULL;
    d->tok = tinkc_tokenizer_keep(tok);
    if (options)
        d->o = *options;
    return d;
}

bool tinkc_decoder_push(tinkc_decoder *d, const int32_t *ids, size_t len, tinkc_text *out,
                        tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!d || !out || (!ids && len))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: missing",
                        !d     ? "decoder"
                        : !out ? "out"
                               : "ids");
    size_t before = out->len;
    tail left = { .n = 0 };
    bool strip = d->tok->strip_space && !d->started;
    runs r = { d->held.n ? before : SIZE_MAX, false }; /* what is held back begins a run */
    bool ok = append(out, d->held.bytes, d->held.n, err) &&
              gather(d->tok, ids, len, d->o.skip_special, &strip, &r, out, err) &&
              (d->o.raw_bytes || !r.broken || repair(out, before, &left, err));
    if (ok) {
        d->held = left;
        d->started = !strip;
    } else {
        out->len = before;
    }
    terminate(out);
    return ok;
}

bool tinkc_decoder_finish(tinkc_decoder *d, tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!d || !out)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: missing", !d ? "decoder" : "out");
    if (!append_repaired(out, d->held.bytes, d->held.n, NULL, err))
        return false;
    d->held.n = 0;
    terminate(out);
    return true;
}

void tinkc_decoder_free(tinkc_decoder *d)
{
    if (!d)
        return;
    tinkc_tokenizer *tok = d->tok;
    tkc_release(tok->a, d, sizeof *d);
    tinkc_tokenizer_free(tok);
}
