/* read_legacy.c - folders without tokenizer.json: vocab.json and merges.txt, with added_tokens.json
 * and special_tokens_map.json if they exist.
 *
 * Such files do not name the pre-tokeniser; the class in tokenizer_config.json does. The contents
 * are rewritten as a tokenizer.json in memory, which is then read like any other.
 * May touch: the model's folder.
 */
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json_write.h"
#include "tokenizer/load.h"

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":"
static const char gpt2_part[] = "\"normalizer\":null,\"pre_tokenizer\":" BYTE_LEVEL "true},";
static const char qwen2_part[] =
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}"
    "\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|"
    "\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "false}]},";
static const char rest_part[] = "\"version\":\"1.0\",\"post_processor\":null,\"decoder\":"
                                "{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":";

#define END_OF_TEXT "\"<|endoftext|>\""
static const char gpt2_names[] =
    "{\"unk_token\":" END_OF_TEXT ",\"eos_token\":" END_OF_TEXT ",\"bos_token\":" END_OF_TEXT "}";
static const char qwen2_names[] =
    "{\"unk_token\":" END_OF_TEXT ",\"eos_token\":" END_OF_TEXT ",\"pad_token\":" END_OF_TEXT "}";

typedef struct legacy {
    const char *folder;
    tkc_arena *temp;
    tinkc_error *err;
} legacy;

static tinkc_str read_part(legacy *l, const char *name, size_t max)
{
    char *path = tkc_path_join(l->temp, l->folder, name, l->err);
    if (!path || !tkc_is_file(path))
        return (tinkc_str){ NULL, 0 };
    tinkc_bytes bytes = tkc_read_file(l->temp, path, max, l->err);
    return tkc_strn((const char *)bytes.data, bytes.len);
}

/* tokenizer_class of the config: which of the two known pipelines; NULL = another one (an
 * error). */
static const char *pipeline(legacy *l)
{
    tinkc_str config = read_part(l, "tokenizer_config.json", TKC_MAX_CONFIG_FILE), key;
    tinkc_str class = tkc_str("GPT2Tokenizer");
    tkc_json j;
    if (config.data) {
        tkc_json_open(&j, config, l->temp, l->err);
        j.code = TINKC_E_TOKENIZER;
        if (tkc_json_object(&j))
            while (tkc_json_key(&j, &key)) {
                if (tkc_str_is(key, "tokenizer_class"))
                    class = tkc_json_string(&j);
                else
                    tkc_json_skip(&j);
            }
    }
    if (tkc_failed(l->err)) {
        tkc_fail_before(l->err, "%s/tokenizer_config.json: ", l->folder);
        return NULL;
    }
    if (tkc_str_is(class, "GPT2Tokenizer") || tkc_str_is(class, "GPT2TokenizerFast"))
        return gpt2_part;
    if (tkc_str_is(class, "Qwen2Tokenizer") || tkc_str_is(class, "Qwen2TokenizerFast"))
        return qwen2_part;
    tkc_fail(l->err, TINKC_E_TOKENIZER,
             "%s: vocab.json and merges.txt of the class %.*s are not supported without a "
             "tokenizer.json",
             l->folder, (int)(class.len < 60 ? class.len : 60), class.data);
    return NULL;
}

/* "left right" per line, after a line with the version. */
static bool write_merges(legacy *l, tkc_jsonw *w, tinkc_str merges)
{
    tinkc_str line;
    bool first = true;
    tkc_jsonw_array(w);
    while (!tkc_failed(l->err) && tkc_str_cut(&merges, '\n', &line)) {
        bool version = first && tkc_starts_with(line, "#version");
        first = false;
        if (line.len && line.data[line.len - 1] == '\r')
            line.len--;
        if (line.len && !version)
            tkc_jsonw_str(w, line);
    }
    tkc_jsonw_end(w);
    return !tkc_failed(l->err);
}

typedef struct legacy_token {
    tinkc_str text;
    int64_t id;
} legacy_token;

/* added_tokens.json, {"<|im_end|>": 151645}, in the order of their ids. */
static size_t read_added(legacy *l, tinkc_str text, legacy_token *out, size_t max)
{
    size_t n = 0;
    tinkc_str key;
    tkc_json j;
    tkc_json_open(&j, text, l->temp, l->err);
    j.code = TINKC_E_TOKENIZER;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            legacy_token token = { key, tkc_json_i64(&j) };
            size_t at = n++;
            if (n > max) {
                tkc_json_fail(&j, "too many tokens");
                break;
            }
            for (; at > 0 && out[at - 1].id > token.id; at--)
                out[at] = out[at - 1];
            out[at] = token;
        }
    if (tkc_failed(l->err))
        tkc_fail_before(l->err, "%s/added_tokens.json: ", l->folder);
    return n > max ? 0 : n;
}

static bool write_added(legacy *l, tkc_jsonw *w)
{
    enum { MOST = 4096 };
    tinkc_str text = read_part(l, "added_tokens.json", TKC_MAX_CONFIG_FILE);
    legacy_token *tokens = tkc_arena_array(l->temp, MOST, sizeof *tokens, l->err);
    size_t n = tokens && text.data ? read_added(l, text, tokens, MOST) : 0;
    tkc_jsonw_array(w);
    for (size_t i = 0; i < n; i++) {
        tkc_jsonw_object(w);
        tkc_jsonw_key(w, "id");
        tkc_jsonw_i64(w, tokens[i].id);
        tkc_jsonw_key(w, "content");
        tkc_jsonw_str(w, tokens[i].text);
        tkc_jsonw_key(w, "normalized");
        tkc_jsonw_bool(w, false);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
    return !tkc_failed(l->err);
}

/* The vocabulary is inserted into a larger text, so it must be exactly one object. */
static bool check_vocab(legacy *l, tinkc_str vocab)
{
    tkc_json j;
    tkc_json_open(&j, vocab, l->temp, l->err);
    j.code = TINKC_E_TOKENIZER;
    if (tkc_json_peek(&j) != TKC_JSON_OBJECT)
        tkc_json_fail(&j, "an object is needed");
    else if (tkc_json_skip(&j).data)
        tkc_json_close(&j);
    return !tkc_failed(l->err) || tkc_fail_before(l->err, "%s/vocab.json: ", l->folder);
}

bool tkc_is_legacy(const char *folder, tkc_arena *temp, tinkc_error *err)
{
    const char *vocab = tkc_path_join(temp, folder, "vocab.json", err);
    const char *merges = tkc_path_join(temp, folder, "merges.txt", err);
    return vocab && merges && tkc_is_file(vocab) && tkc_is_file(merges);
}

bool tkc_read_legacy(const char *folder, tkc_tables *out, const char **defaults, tkc_arena *temp,
                     tinkc_error *err)
{
    legacy l = { folder, temp, err };
    const char *part = pipeline(&l);
    tinkc_str vocab = read_part(&l, "vocab.json", TKC_MAX_TOKENIZER_FILE);
    tinkc_str merges = read_part(&l, "merges.txt", TKC_MAX_TOKENIZER_FILE);
    tkc_buf json;
    tkc_jsonw w;
    if (!part || !vocab.data || !merges.data || !check_vocab(&l, vocab))
        return false;
    *defaults = part == gpt2_part ? gpt2_names : qwen2_names;
    tkc_buf_init(&json, NULL, TKC_MAX_TOKENIZER_FILE);
    bool ok = tkc_buf_cstr(&json, "{", err) && tkc_buf_cstr(&json, part, err) &&
              tkc_buf_cstr(&json, rest_part, err) && tkc_buf_str(&json, vocab, err) &&
              tkc_buf_cstr(&json, ",\"merges\":", err);
    tkc_jsonw_open(&w, &json, err);
    ok = ok && write_merges(&l, &w, merges) && tkc_buf_cstr(&json, "},\"added_tokens\":", err);
    tkc_jsonw_open(&w, &json, err);
    ok = ok && write_added(&l, &w) && tkc_buf_cstr(&json, "}", err);
    if (ok && !tkc_read_tokenizer_json(tkc_buf_view(&json), (tkc_origin){ 0 }, out, temp, err))
        ok = tkc_fail_before(err, "%s: vocab.json and merges.txt: ", folder);
    tkc_buf_free(&json);
    return ok;
}
