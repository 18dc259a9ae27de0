/* tokenizer_json.c - the one reader of tokenizer.json. May touch: the text it is given.
 *
 * The file is large (10 to 30 MB), so the model is read in place; the small parts around it are kept
 * as they are, because what they mean depends on all of the model.
 */
#include "base/tokenizer_json.h"

#include <string.h>

#include "base/str.h"

/* ---- byte-level text ---- */

void tkc_byte_letters(uint16_t map[TKC_BYTE_LETTERS])
{
    uint32_t next = 0x100;
    for (uint32_t i = 0; i < TKC_BYTE_LETTERS; i++)
        map[i] = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        map[itself ? b : next++] = (uint16_t)b;
    }
}

size_t tkc_from_letters(const uint16_t map[TKC_BYTE_LETTERS], tinkc_str text, unsigned char *out)
{
    const unsigned char *p = (const unsigned char *)text.data, *end = p + text.len;
    size_t n = 0;
    while (p < end) {
        uint32_t c = *p;
        if (c < 0x80) {
            p++;
        } else if (c < 0xC6) { /* U+0080 to U+017F: two bytes */
            c = (c & 0x1F) << 6 | (p[1] & 0x3Fu);
            p += 2;
        } else {
            return SIZE_MAX;
        }
        if (c >= TKC_BYTE_LETTERS || map[c] > 255)
            return SIZE_MAX;
        out[n++] = (unsigned char)map[c];
    }
    return n;
}

/* ---- pieces ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int tkc_piece_byte(tinkc_str text)
{
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return -1;
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

size_t tkc_from_piece(tinkc_str text, unsigned char *out)
{
    size_t n = 0;
    int byte = tkc_piece_byte(text);
    if (byte >= 0) {
        out[0] = (unsigned char)byte;
        return 1;
    }
    for (size_t i = 0; i < text.len;) {
        bool mark = text.len - i >= 3 && memcmp(text.data + i, "\xE2\x96\x81", 3) == 0;
        out[n++] = mark ? ' ' : (unsigned char)text.data[i];
        i += mark ? 3 : 1;
    }
    return n;
}

/* ---- the model ---- */

typedef struct walk {
    tkc_tokenizer_json *file;
    const tkc_tokenizer_reader *reader;
    void *user;
} walk;

static void read_vocab(walk *w)
{
    tkc_json *j = &w->file->j;
    tinkc_str key;
    if (w->file->has_vocab) {
        tkc_fail(j->err, j->code, "two vocabularies");
        return;
    }
    w->file->has_vocab = true;
    (void)tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        int64_t id = tkc_json_i64(j);
        if (tkc_failed(j->err) || !w->reader->token(w->user, key, id))
            return;
    }
}

/* "a b", or ["a", "b"] */
static bool read_merge(walk *w, tkc_json *j)
{
    tinkc_str parts[2] = { { NULL, 0 }, { NULL, 0 } };
    const char *wanted = "two tokens";
    size_t n = 0;
    if (tkc_json_peek(j) == TKC_JSON_STRING) {
        tinkc_str text = tkc_json_string(j);
        size_t space = tkc_str_find(text, ' ');
        wanted = "two tokens with a space between them";
        if (space < text.len && !memchr(text.data + space + 1, ' ', text.len - space - 1)) {
            parts[0] = tkc_strn(text.data, space);
            parts[1] = tkc_strn(text.data + space + 1, text.len - space - 1);
            n = 2;
        }
    } else if (tkc_json_array(j)) {
        for (; tkc_json_item(j); n++) {
            tinkc_str part = tkc_json_string(j);
            if (n < 2)
                parts[n] = part;
        }
    }
    if (!tkc_failed(j->err) && n != 2)
        tkc_fail(j->err, j->code, "merge %zu: it is not %s", w->file->n_merges, wanted);
    if (tkc_failed(j->err) || !w->reader->merge(w->user, parts[0], parts[1]))
        return false;
    w->file->n_merges++;
    return true;
}

static void read_merges(walk *w, tkc_json *j)
{
    if (tkc_json_array(j))
        while (tkc_json_item(j))
            if (!read_merge(w, j))
                return;
}

static void read_rest(walk *w, void (*wanted)(void *, tkc_json *, tinkc_str), tinkc_str key)
{
    if (wanted)
        wanted(w->user, &w->file->j, key);
    else
        (void)tkc_json_skip(&w->file->j);
}

static void read_model(walk *w)
{
    tkc_json *j = &w->file->j;
    tinkc_str key, early = { NULL, 0 }; /* merges that come before the vocabulary */
    w->file->has_model = true;
    static const char fallback[] = "\"ByteFallback\"";
    w->file->pieces = w->file->decoder.data && memmem(w->file->decoder.data, w->file->decoder.len,
                                                      fallback, sizeof fallback - 1);
    if (!tkc_json_object(j))
        return;
    while (!tkc_failed(j->err) && tkc_json_key(j, &key)) {
        int kind = tkc_json_peek(j);
        if (tkc_str_is(key, "vocab") && kind == TKC_JSON_OBJECT) {
            read_vocab(w);
        } else if (tkc_str_is(key, "merges") && kind == TKC_JSON_ARRAY && w->reader->merge) {
            if (w->file->has_merges)
                tkc_fail(j->err, j->code, "two lists of merges");
            w->file->has_merges = true;
            if (w->file->has_vocab)
                read_merges(w, j);
            else
                early = tkc_json_skip(j);
        } else {
            read_rest(w, w->reader->option, key);
        }
    }
    if (early.data && w->file->has_vocab && !tkc_failed(j->err)) {
        tkc_json part;
        tkc_tokenizer_part(w->file, early, &part);
        read_merges(w, &part);
    }
}

/* ---- the file ---- */

bool tkc_tokenizer_read(tkc_tokenizer_json *file, const tkc_tokenizer_reader *reader, void *user)
{
    walk w = { file, reader, user };
    tkc_json *j = &file->j;
    tinkc_str key, early = { NULL, 0 }; /* a model that comes before the decoder */
    *file = (tkc_tokenizer_json){ .j = file->j };
    if (!tkc_json_object(j))
        return false;
    while (!tkc_failed(j->err) && tkc_json_key(j, &key)) {
        tinkc_str *part = tkc_str_is(key, "added_tokens")     ? &file->added
                          : tkc_str_is(key, "normalizer")     ? &file->normalizer
                          : tkc_str_is(key, "pre_tokenizer")  ? &file->pre_tokenizer
                          : tkc_str_is(key, "post_processor") ? &file->post_processor
                          : tkc_str_is(key, "decoder")        ? &file->decoder
                                                              : NULL;
        if (part)
            *part = tkc_json_skip(j);
        else if (tkc_str_is(key, "model") && file->decoder.data)
            read_model(&w);
        else if (tkc_str_is(key, "model"))
            early = tkc_json_skip(j);
        else
            read_rest(&w, reader->other, key);
    }
    if (early.data && !tkc_failed(j->err)) {
        tkc_json whole = file->j, part;
        tkc_tokenizer_part(file, early, &part);
        file->j = part;
        read_model(&w);
        file->j = whole;
    }
    return !tkc_failed(j->err) && tkc_json_close(j);
}

void tkc_tokenizer_part(const tkc_tokenizer_json *file, tinkc_str part, tkc_json *j)
{
    tkc_json_open(j, part, file->j.arena, file->j.err);
    j->code = file->j.code;
    if (part.data)
        j->begin = file->j.begin;
}

tkc_added_token tkc_read_added_token(tkc_json *j, tkc_arena *arena, int64_t *id)
{
    tkc_added_token t = { .text = "", .normalized = true, .id = -1 };
    tinkc_str key;
    bool normalized_said = false;
    *id = -1;
    if (!tkc_json_object(j))
        return t;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "id"))
            *id = tkc_json_i64(j);
        else if (tkc_str_is(key, "content")) {
            tinkc_str text = tkc_json_string(j);
            const char *copy = tkc_failed(j->err) ? NULL : tkc_arena_str(arena, text, j->err);
            if (copy) {
                t.text = copy;
                t.len = text.len;
            }
        } else if (tkc_str_is(key, "special"))
            t.special = tkc_json_bool(j);
        else if (tkc_str_is(key, "normalized")) {
            t.normalized = tkc_json_bool(j);
            normalized_said = true;
        } else if (tkc_str_is(key, "single_word"))
            t.single_word = tkc_json_bool(j);
        else if (tkc_str_is(key, "lstrip"))
            t.lstrip = tkc_json_bool(j);
        else if (tkc_str_is(key, "rstrip"))
            t.rstrip = tkc_json_bool(j);
        else
            tkc_json_skip(j);
    }
    if (!normalized_said)
        t.normalized = !t.special;
    return t;
}

bool tkc_tokenizer_added(const tkc_tokenizer_json *file, tkc_arena *arena,
                         bool (*added)(void *user, tkc_added_token, int64_t id), void *user)
{
    tkc_json j;
    int64_t id;
    if (!file->added.data || tkc_str_is(file->added, "null"))
        return true;
    tkc_tokenizer_part(file, file->added, &j);
    (void)tkc_json_array(&j);
    while (tkc_json_item(&j)) {
        tkc_added_token token = tkc_read_added_token(&j, arena, &id);
        if (tkc_failed(j.err) || !added(user, token, id))
            return false;
    }
    return !tkc_failed(j.err);
}
