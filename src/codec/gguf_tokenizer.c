/* gguf_tokenizer.c - tokenizer.ggml.* as tokenizer.json and tokenizer_config.json.
 *
 * A GGUF file has tables and the name of a pre-tokenizer; what the name stands for is here. Must
 * not: guess. A name that is not known is refused, because it would split text differently.
 */
#include "codec/gguf_tokenizer.h"

#include <math.h>
#include <string.h>
#include "base/json_write.h"
#include "base/str.h"
#include "codec/utf8.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4 }; /* token types */
enum { MOST_TOKENS = 1 << 24 };

/* ---- pre-tokenizers by name ---- */

#define WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED(first, rest)                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]" first                             \
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]" rest "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"

typedef struct pretokenizer {
    const char *name;
    const char *pattern; /* NULL: that of GPT-2, which the byte-level step has itself */
    bool digits;         /* each digit is a piece of its own, first */
    bool nfc, ignore_merges, add_bos;
} pretokenizer;

static const pretokenizer pretokenizers[] = {
    { "gpt-2", NULL, false, false, false, false },
    { "smollm", NULL, true, false, false, false },
    { "starcoder", NULL, true, false, false, false },
    { "refact", NULL, true, false, false, false },
    { "command-r", NULL, true, false, false, false },
    { "qwen2", WORDS "\\p{N}" REST, false, true, false, false },
    { "llama-bpe", WORDS "\\p{N}{1,3}" REST, false, false, true, true },
    { "gpt-4o",
      CASED("*", "+") CASED("+", "*") "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
                                      "\\s+(?!\\S)|\\s+",
      false, false, false, false },
};

static const pretokenizer *find_pretokenizer(tinkc_str name)
{
    for (size_t i = 0; i < sizeof pretokenizers / sizeof *pretokenizers; i++)
        if (tkc_str_is(name, pretokenizers[i].name))
            return &pretokenizers[i];
    return NULL;
}

/* ---- the file's tables ---- */

typedef struct vocab {
    tkc_gguf *g;
    const pretokenizer *pre; /* NULL: pieces, with scores */
    tinkc_str *tokens, *merges;
    int32_t *types;
    float *scores;
    size_t n, n_types, n_merges, n_scores;
    bool add_bos, add_eos, add_space;
} vocab;

static bool refuse_value(const tkc_gguf *g, const char *key, tinkc_str value, const char *works,
                         tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_UNSUPPORTED,
                    "%s: key '%s': '%.*s' is not supported; supported: %s", g->what, key,
                    (int)(value.len < 60 ? value.len : 60), value.data ? value.data : "", works);
}

static bool bad(const tkc_gguf *g, const char *key, const char *fault, tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_MODEL, "%s: key '%s' %s", g->what, key, fault);
}

static bool choose_kind(vocab *v, tinkc_error *err)
{
    static const char names[] = "gpt-2, smollm, starcoder, refact, command-r, qwen2, llama-bpe and "
                                "gpt-4o";
    tinkc_str model = tkc_gguf_str(v->g, "tokenizer.ggml.model", err);
    tinkc_str pre = tkc_gguf_str(v->g, "tokenizer.ggml.pre", err);
    if (tkc_failed(err))
        return false;
    if (tkc_str_is(model, "llama"))
        return true;
    if (!tkc_str_is(model, "gpt2"))
        return refuse_value(v->g, "tokenizer.ggml.model", model,
                            "gpt2 (byte-level BPE) and llama (SentencePiece)", err);
    v->pre = find_pretokenizer(pre);
    return v->pre || refuse_value(v->g, "tokenizer.ggml.pre", pre, names, err);
}

static bool check_texts(const tkc_gguf *g, const char *key, const tinkc_str *list, size_t n,
                        tinkc_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!list[i].len || !tkc_utf8_valid(list[i].data, list[i].len))
            return tkc_fail(err, TINKC_E_MODEL, "%s: key '%s': item %zu is empty or not UTF-8",
                            g->what, key, i);
    return true;
}

/* Scores decide only about tokens that encoding produces. */
static bool check_scores(const vocab *v, tinkc_error *err)
{
    const char *key = "tokenizer.ggml.scores";
    if (v->n_scores != v->n)
        return bad(v->g, key, "does not have as many items as tokens", err);
    for (size_t i = 0; i < v->n; i++) {
        bool produced = v->types[i] == NORMAL || v->types[i] == USER_DEFINED;
        if (produced && !isfinite(v->scores[i]))
            return bad(v->g, key, "has an item that is not a finite number", err);
        if (!produced)
            v->scores[i] = NAN;
    }
    return true;
}

/* What the text goes through before and is not in the other tables. */
static bool check_pieces(vocab *v, tinkc_error *err)
{
    const char *charsmap = "tokenizer.ggml.precompiled_charsmap",
               *extra = "tokenizer.ggml.remove_extra_whitespaces";
    if (tkc_gguf_find(v->g, charsmap))
        return bad(v->g, charsmap, "is not supported: it changes characters", err);
    if (tkc_gguf_bool(v->g, extra, false, err))
        return bad(v->g, extra, "is true, which is not supported", err);
    v->add_space = tkc_gguf_bool(v->g, "tokenizer.ggml.add_space_prefix", true, err);
    return !tkc_failed(err);
}

static bool read_tables(vocab *v, tinkc_error *err)
{
    tkc_gguf *g = v->g;
    v->tokens = tkc_gguf_strs(g, "tokenizer.ggml.tokens", &v->n, err);
    v->merges = tkc_gguf_strs(g, "tokenizer.ggml.merges", &v->n_merges, err);
    v->types = tkc_gguf_i32s(g, "tokenizer.ggml.token_type", &v->n_types, err);
    v->scores = v->pre ? NULL : tkc_gguf_f32s(g, "tokenizer.ggml.scores", &v->n_scores, err);
    if (tkc_failed(err))
        return false;
    if (!v->n || v->n > MOST_TOKENS)
        return bad(g, "tokenizer.ggml.tokens", "is missing, empty or too long", err);
    if (v->pre && !v->merges)
        return bad(g, "tokenizer.ggml.merges", "is missing", err);
    if (v->n_types != v->n && (v->n_types || !v->pre))
        return bad(g, "tokenizer.ggml.token_type", "does not have as many items as tokens", err);
    if (!v->pre && !check_scores(v, err))
        return false;
    return check_texts(g, "tokenizer.ggml.tokens", v->tokens, v->n, err) &&
           check_texts(g, "tokenizer.ggml.merges", v->merges, v->n_merges, err);
}

/* The token that a key names; data NULL = none. */
static tinkc_str token_of(const vocab *v, const char *key, tinkc_error *err)
{
    uint64_t id = tkc_gguf_u64(v->g, key, UINT64_MAX, err);
    if (id == UINT64_MAX || tkc_failed(err))
        return (tinkc_str){ 0 };
    if (id == UINT32_MAX) /* some converters write -1 */
        return (tinkc_str){ 0 };
    if (id >= v->n) {
        bad(v->g, key, "names a token that is not there", err);
        return (tinkc_str){ 0 };
    }
    return v->tokens[id];
}

static bool open_vocab(vocab *v, tkc_gguf *g, tinkc_error *err)
{
    *v = (vocab){ .g = g };
    if (!choose_kind(v, err) || !read_tables(v, err))
        return false;
    if (!v->pre && !check_pieces(v, err))
        return false;
    v->add_bos =
        tkc_gguf_bool(g, "tokenizer.ggml.add_bos_token", v->pre ? v->pre->add_bos : true, err);
    v->add_eos = tkc_gguf_bool(g, "tokenizer.ggml.add_eos_token", false, err);
    return !tkc_failed(err);
}

/* ---- tokenizer.json ---- */

static void put_type(tkc_jsonw *w, const char *type)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "type");
    tkc_jsonw_cstr(w, type);
}

static void put_bool(tkc_jsonw *w, const char *key, bool value)
{
    tkc_jsonw_key(w, key);
    tkc_jsonw_bool(w, value);
}

static void put_added(tkc_jsonw *w, const vocab *v)
{
    tkc_jsonw_key(w, "added_tokens");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < v->n_types; i++) {
        if (v->types[i] != CONTROL && v->types[i] != USER_DEFINED && v->types[i] != UNKNOWN)
            continue;
        tkc_jsonw_object(w);
        tkc_jsonw_key(w, "id");
        tkc_jsonw_u64(w, i);
        tkc_jsonw_key(w, "content");
        tkc_jsonw_str(w, v->tokens[i]);
        put_bool(w, "single_word", false);
        put_bool(w, "lstrip", false);
        put_bool(w, "rstrip", false);
        put_bool(w, "normalized", false);
        put_bool(w, "special", v->types[i] != USER_DEFINED);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
}

static void put_byte_level(tkc_jsonw *w, bool use_regex)
{
    put_type(w, "ByteLevel");
    put_bool(w, "add_prefix_space", false);
    put_bool(w, "trim_offsets", true);
    put_bool(w, "use_regex", use_regex);
    tkc_jsonw_end(w);
}

static void put_pretokenizer(tkc_jsonw *w, const pretokenizer *p)
{
    tkc_jsonw_key(w, "pre_tokenizer");
    put_type(w, "Sequence");
    tkc_jsonw_key(w, "pretokenizers");
    tkc_jsonw_array(w);
    if (p->digits) {
        put_type(w, "Digits");
        put_bool(w, "individual_digits", true);
        tkc_jsonw_end(w);
    }
    if (p->pattern) {
        put_type(w, "Split");
        tkc_jsonw_key(w, "pattern");
        tkc_jsonw_object(w);
        tkc_jsonw_key(w, "Regex");
        tkc_jsonw_cstr(w, p->pattern);
        tkc_jsonw_end(w);
        tkc_jsonw_key(w, "behavior");
        tkc_jsonw_cstr(w, "Isolated");
        put_bool(w, "invert", false);
        tkc_jsonw_end(w);
    }
    put_byte_level(w, !p->pattern);
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

/* A step with texts; the second and third may be NULL. */
static void put_step(tkc_jsonw *w, const char *type, const char *key, const char *text,
                     const char *pattern)
{
    put_type(w, type);
    if (key) {
        tkc_jsonw_key(w, key);
        tkc_jsonw_cstr(w, text);
    }
    if (pattern) {
        tkc_jsonw_key(w, "pattern");
        tkc_jsonw_object(w);
        tkc_jsonw_key(w, "String");
        tkc_jsonw_cstr(w, pattern);
        tkc_jsonw_end(w);
    }
    if (!strcmp(type, "Strip")) {
        tkc_jsonw_key(w, "start");
        tkc_jsonw_i64(w, 1);
        tkc_jsonw_key(w, "stop");
        tkc_jsonw_i64(w, 0);
    }
    tkc_jsonw_end(w);
}

#define MARK "\xE2\x96\x81" /* U+2581 */

static void put_sequence(tkc_jsonw *w, const char *key, const char *list)
{
    tkc_jsonw_key(w, key);
    put_type(w, "Sequence");
    tkc_jsonw_key(w, list);
    tkc_jsonw_array(w);
}

/* Spaces are U+2581 inside; one comes before each text between tokens that are found first. */
static void put_space_steps(tkc_jsonw *w, bool add_space)
{
    put_sequence(w, "normalizer", "normalizers");
    if (add_space)
        put_step(w, "Prepend", "prepend", MARK, NULL);
    put_step(w, "Replace", "content", MARK, " ");
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
    put_sequence(w, "decoder", "decoders");
    put_step(w, "Replace", "content", " ", MARK);
    put_step(w, "ByteFallback", NULL, NULL, NULL);
    put_step(w, "Fuse", NULL, NULL, NULL);
    if (add_space)
        put_step(w, "Strip", "content", " ", NULL);
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

static void put_model(tkc_jsonw *w, const vocab *v)
{
    tkc_jsonw_key(w, "model");
    put_type(w, "BPE");
    put_bool(w, "ignore_merges", v->pre && v->pre->ignore_merges);
    put_bool(w, "byte_fallback", !v->pre);
    if (!v->pre) {
        tkc_jsonw_key(w, "scores");
        tkc_jsonw_f32s(w, v->scores, v->n);
    }
    tkc_jsonw_key(w, "vocab");
    tkc_jsonw_object(w);
    for (size_t i = 0; i < v->n; i++) { /* added ones too: they keep their ids so */
        tkc_jsonw_key_str(w, v->tokens[i]);
        tkc_jsonw_u64(w, i);
    }
    tkc_jsonw_end(w);
    if (v->pre) {
        tkc_jsonw_key(w, "merges");
        tkc_jsonw_array(w);
        for (size_t i = 0; i < v->n_merges; i++)
            tkc_jsonw_str(w, v->merges[i]);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
}

static void put_byte_steps(tkc_jsonw *w, const pretokenizer *pre)
{
    tkc_jsonw_key(w, "normalizer");
    if (pre->nfc) {
        put_type(w, "NFC");
        tkc_jsonw_end(w);
    } else {
        tkc_jsonw_null(w);
    }
    put_pretokenizer(w, pre);
    tkc_jsonw_key(w, "decoder");
    put_byte_level(w, true);
}

bool tkc_gguf_tokenizer_json(tkc_gguf *g, tkc_buf *out, tinkc_error *err)
{
    vocab v;
    tkc_jsonw w;
    if (!open_vocab(&v, g, err))
        return false;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    put_added(&w, &v);
    if (v.pre)
        put_byte_steps(&w, v.pre);
    else
        put_space_steps(&w, v.add_space);
    put_model(&w, &v);
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}

/* ---- tokenizer_config.json ---- */

bool tkc_gguf_tokenizer_config(tkc_gguf *g, tkc_buf *out, tinkc_error *err)
{
    static const char *const names[][2] = {
        { "bos_token", "tokenizer.ggml.bos_token_id" },
        { "eos_token", "tokenizer.ggml.eos_token_id" },
        { "pad_token", "tokenizer.ggml.padding_token_id" },
        { "unk_token", "tokenizer.ggml.unknown_token_id" },
    };
    vocab v;
    tkc_jsonw w;
    if (!open_vocab(&v, g, err))
        return false;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tinkc_str token = token_of(&v, names[i][1], err);
        if (!token.data)
            continue;
        tkc_jsonw_key(&w, names[i][0]);
        tkc_jsonw_str(&w, token);
    }
    put_bool(&w, "add_bos_token",
             v.add_bos); /* with the names above, these are the post-processor */
    put_bool(&w, "add_eos_token", v.add_eos);
    tinkc_str template = tkc_gguf_str(g, "tokenizer.chat_template", err);
    if (template.data && !tkc_utf8_valid(template.data, template.len))
        return bad(g, "tokenizer.chat_template", "is not UTF-8", err);
    if (template.data) {
        tkc_jsonw_key(&w, "chat_template");
        tkc_jsonw_str(&w, template);
    }
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}
