/* tokenizer_config.c - tokenizer_config.json: names of special tokens, tokens that tokenizer.json
 * lacks, begin and end marks, chat templates; and what a tiktoken file leaves to its wrapper.
 *
 * May touch: the tokenizer being built.
 */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/load.h"

const char *const tkc_special_names[TKC_NAMES] = { "bos_token", "eos_token", "unk_token",
                                                   "sep_token", "pad_token", "cls_token",
                                                   "mask_token" };

#define CONFIG_FILE "tokenizer_config.json"
enum { UNSAID = -1, MAX_EXTRA = 4096 };

typedef struct config {
    tinkc_tokenizer *tok;
    tinkc_error *err;
    tinkc_str names[TKC_NAMES];
    tinkc_str decoder, extra, additional; /* raw */
    int add_bos, add_eos;
} config;

static void open_json(tkc_json *j, tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    tkc_json_open(j, text, arena, err);
    j->code = TINKC_E_TOKENIZER;
}

/* A string, null, or an object with "content". */
static tinkc_str read_token_text(tkc_json *j)
{
    tinkc_str key, text = { NULL, 0 };
    switch (tkc_json_peek(j)) {
    case TKC_JSON_STRING:
        return tkc_json_string(j);
    case TKC_JSON_OBJECT:
        (void)tkc_json_object(j);
        while (tkc_json_key(j, &key))
            if (tkc_str_is(key, "content"))
                text = tkc_json_string(j);
            else
                tkc_json_skip(j);
        return text;
    default:
        tkc_json_skip(j);
        return text;
    }
}

bool tkc_add_template(tinkc_tokenizer *tok, tinkc_str name, tinkc_str text, tinkc_error *err)
{
    enum { MOST = 256 };
    tkc_template_text *t = NULL;
    for (size_t i = 0; i < tok->n_templates; i++)
        if (tkc_str_is(name, tok->templates[i].name))
            t = &tok->templates[i];
    if (!t && tok->n_templates == MOST)
        return tkc_fail(err, TINKC_E_TOKENIZER, "more than %d chat templates", MOST);
    if (!t) {
        tkc_template_text *grown =
            tkc_arena_alloc(&tok->arena, (tok->n_templates + 1) * sizeof *grown, err);
        if (!grown)
            return false;
        if (tok->n_templates)
            memcpy(grown, tok->templates, tok->n_templates * sizeof *grown);
        tok->templates = grown;
        t = &grown[tok->n_templates];
        t->name = tkc_arena_str(&tok->arena, name, err);
        if (!t->name)
            return false;
        tok->n_templates++;
    }
    t->text = tkc_strn(tkc_arena_str(&tok->arena, text, err), text.len);
    return t->text.data != NULL;
}

static void read_templates(tinkc_tokenizer *tok, tkc_json *j)
{
    tinkc_str key;
    int kind = tkc_json_peek(j);
    if (kind == TKC_JSON_STRING) {
        tinkc_str text = tkc_json_string(j);
        if (!tkc_failed(j->err))
            tkc_add_template(tok, tkc_str("default"), text, j->err);
    } else if (kind != TKC_JSON_ARRAY) {
        tkc_json_skip(j);
    } else if (tkc_json_array(j)) {
        while (tkc_json_item(j)) {
            tinkc_str name = { NULL, 0 }, text = { NULL, 0 };
            if (!tkc_json_object(j))
                return;
            while (tkc_json_key(j, &key))
                if (tkc_str_is(key, "name"))
                    name = tkc_json_string(j);
                else if (tkc_str_is(key, "template"))
                    text = tkc_json_string(j);
                else
                    tkc_json_skip(j);
            if (!tkc_failed(j->err) && name.data && text.data)
                tkc_add_template(tok, name, text, j->err);
        }
    }
}

static int read_flag(tkc_json *j)
{
    int kind = tkc_json_peek(j);
    if (kind == TKC_JSON_TRUE || kind == TKC_JSON_FALSE)
        return tkc_json_bool(j);
    tkc_json_skip(j);
    return UNSAID;
}

static bool read_name(config *c, tkc_json *j, tinkc_str key)
{
    for (size_t i = 0; i < TKC_NAMES; i++)
        if (tkc_str_is(key, tkc_special_names[i])) {
            c->names[i] = read_token_text(j);
            return true;
        }
    return false;
}

static void read_fields(config *c, tkc_json *j)
{
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (!tkc_failed(c->err) && tkc_json_key(j, &key)) {
        if (read_name(c, j, key))
            continue;
        if (tkc_str_is(key, "added_tokens_decoder"))
            c->decoder = tkc_json_skip(j);
        else if (tkc_str_is(key, "extra_special_tokens"))
            c->extra = tkc_json_skip(j);
        else if (tkc_str_is(key, "additional_special_tokens"))
            c->additional = tkc_json_skip(j);
        else if (tkc_str_is(key, "add_bos_token"))
            c->add_bos = read_flag(j);
        else if (tkc_str_is(key, "add_eos_token"))
            c->add_eos = read_flag(j);
        else if (tkc_str_is(key, "chat_template"))
            read_templates(c->tok, j);
        else if (tkc_str_is(key, "tokenizer_class") && tkc_json_peek(j) == TKC_JSON_STRING) {
            tinkc_str class = tkc_json_string(j);
            if (class.data)
                c->tok->tokenizer_class = tkc_arena_str(&c->tok->arena, class, c->err);
        } else
            tkc_json_skip(j);
    }
    if (!tkc_failed(c->err))
        tkc_json_close(j);
}

/* ---- tokens that only the config has ---- */

typedef struct decoder_entry {
    int64_t id;
    tkc_added_token token;
} decoder_entry;

static int by_id(const void *a, const void *b)
{
    int64_t x = ((const decoder_entry *)a)->id, y = ((const decoder_entry *)b)->id;
    return x < y ? -1 : x > y;
}

/* Adds the entries of "added_tokens_decoder" in the order of their ids. */
static void merge_decoder(config *c, tkc_arena *temp)
{
    tkc_json j;
    tinkc_str key;
    int64_t given;
    decoder_entry *entries = NULL;
    size_t n = 0, cap = 0;
    open_json(&j, c->decoder, temp, c->err);
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key)) {
        decoder_entry entry;
        if (!tkc_parse_i64(key, &entry.id)) {
            tkc_json_fail(&j, "a key is not a token id");
            break;
        }
        entry.token = tkc_read_added_token(&j, &c->tok->arena, &given);
        decoder_entry *grown = tkc_grow(NULL, entries, &cap, n + 1, sizeof *grown, c->err);
        if (!grown)
            break;
        entries = grown;
        entries[n++] = entry;
    }
    if (n && !tkc_failed(c->err))
        qsort(entries, n, sizeof *entries, by_id);
    for (size_t i = 0; i < n && !tkc_failed(c->err); i++) {
        entries[i].token.id = -1;
        tkc_add_token(c->tok, entries[i].token, c->err);
    }
    tkc_fail_before(c->err, "added_tokens_decoder: ");
    tkc_release(NULL, entries, cap * sizeof *entries);
}

static tkc_added_token *add_special(config *c, tinkc_str text)
{
    if (!text.data || text.len == 0)
        return NULL;
    tkc_added_token *known = tkc_find_added(c->tok, text);
    if (!known) {
        tkc_added_token token = { .len = text.len, .id = -1, .special = true };
        token.text = tkc_arena_str(&c->tok->arena, text, c->err);
        known = token.text ? tkc_add_token(c->tok, token, c->err) : NULL;
    }
    if (known)
        known->special = true;
    return known;
}

static void note_extra(config *c, tinkc_str text)
{
    tkc_added_token *token = add_special(c, text);
    if (token && c->tok->n_extra_special < MAX_EXTRA)
        c->tok->extra_special[c->tok->n_extra_special++] = token->id;
}

/* A list of tokens, or an object of name and token. */
static void merge_extra(config *c, tinkc_str raw, const char *name, tkc_arena *temp)
{
    tkc_json j;
    tinkc_str key;
    if (!raw.data || tkc_failed(c->err))
        return;
    open_json(&j, raw, temp, c->err);
    int kind = tkc_json_peek(&j);
    if (kind == TKC_JSON_ARRAY && tkc_json_array(&j))
        while (tkc_json_item(&j))
            note_extra(c, read_token_text(&j));
    else if (kind == TKC_JSON_OBJECT && tkc_json_object(&j))
        while (tkc_json_key(&j, &key))
            note_extra(c, read_token_text(&j));
    tkc_fail_before(c->err, "%s: ", name);
}

static void set_names(config *c)
{
    for (size_t i = 0; i < TKC_NAMES; i++) {
        c->tok->specials[i].id = -1;
        tkc_added_token *token = add_special(c, c->names[i]);
        if (token)
            c->tok->specials[i] = (tkc_special_token){ token->text, token->id };
    }
}

/* If the config has either flag, it decides about the marks, not tokenizer.json. */
static void set_marks(config *c)
{
    tinkc_tokenizer *tok = c->tok;
    int32_t bos = tok->specials[TKC_NAME_BOS].id, eos = tok->specials[TKC_NAME_EOS].id;
    if (tok->tiktoken || (c->add_bos == UNSAID && c->add_eos == UNSAID))
        return;
    tok->prefix = tkc_arena_array(&tok->arena, 2, sizeof *tok->prefix, c->err);
    if (!tok->prefix)
        return;
    tok->suffix = tok->prefix + 1;
    tok->n_prefix = c->add_bos == 1 && bos >= 0;
    tok->n_suffix = c->add_eos == 1 && eos >= 0;
    tok->prefix[0] = bos;
    tok->suffix[0] = eos;
}

/* ---- ids that end an answer ---- */

static void add_end(tinkc_tokenizer *tok, int64_t id)
{
    if (id < 0 || id >= tok->size || tok->n_ends == 16)
        return;
    for (size_t i = 0; i < tok->n_ends; i++)
        if (tok->ends[i] == id)
            return;
    tok->ends[tok->n_ends++] = (int32_t)id;
}

static void set_ends(config *c, tinkc_str generation, tkc_arena *temp)
{
    tkc_json j;
    tinkc_str key;
    c->tok->ends = tkc_arena_array(&c->tok->arena, 16, sizeof *c->tok->ends, c->err);
    if (!c->tok->ends)
        return;
    add_end(c->tok, c->tok->specials[TKC_NAME_EOS].id);
    if (!generation.data)
        return;
    open_json(&j, generation, temp, c->err);
    (void)tkc_json_object(&j);
    while (!tkc_failed(c->err) && tkc_json_key(&j, &key)) {
        int kind = tkc_json_peek(&j);
        if (!tkc_str_is(key, "eos_token_id") ||
            (kind != TKC_JSON_NUMBER && kind != TKC_JSON_ARRAY)) {
            tkc_json_skip(&j);
            continue;
        }
        if (kind == TKC_JSON_NUMBER)
            add_end(c->tok, tkc_json_i64(&j));
        else if (tkc_json_array(&j))
            while (tkc_json_item(&j))
                add_end(c->tok, tkc_json_i64(&j));
    }
    tkc_fail_before(c->err, "generation_config.json: ");
}

/* The tokens that the config names, and the settings derived from them. */
static void take_tokens(config *c, tkc_arena *temp)
{
    tinkc_error *err = c->err;
    if (c->tok->tiktoken)
        tkc_set_up_tiktoken(c->tok, c->decoder, err);
    else if (c->decoder.data && !tkc_str_is(c->decoder, "null"))
        merge_decoder(c, temp);
    if (!tkc_failed(err)) {
        set_names(c);
        merge_extra(c, c->additional, "additional_special_tokens", temp);
        merge_extra(c, c->extra, "extra_special_tokens", temp);
        set_marks(c);
    }
    tkc_fail_before(err, CONFIG_FILE ": ");
}

bool tkc_read_config(tinkc_tokenizer *tok, const tkc_configs *from, tinkc_error *err)
{
    const tinkc_str texts[] = { from->defaults, from->special_map, from->config };
    static const char *const files[] = { "", "special_tokens_map.json", CONFIG_FILE };
    config c = { .tok = tok, .err = err, .add_bos = UNSAID, .add_eos = UNSAID };
    tkc_arena temp;
    tkc_json j;
    tkc_arena_init(&temp, tok->a, 0);
    tok->tokenizer_class = "";
    tok->extra_special = tkc_arena_array(&tok->arena, MAX_EXTRA, sizeof *tok->extra_special, err);
    for (size_t i = 0; i < 3 && tok->extra_special && !tkc_failed(err); i++)
        if (texts[i].data) {
            open_json(&j, texts[i], &temp, err);
            read_fields(&c, &j);
            if (tkc_failed(err))
                tkc_fail_before(err, "%s: ", files[i]);
        }
    if (!tkc_failed(err))
        take_tokens(&c, &temp);
    if (!tkc_failed(err))
        set_ends(&c, from->generation, &temp);
    tkc_arena_free(&temp);
    return !tkc_failed(err);
}

/* ---- tiktoken ---- */

typedef struct known_ranks {
    uint32_t n;
    int scanner;
    struct {
        const char *text;
        int32_t id;
    } special[5];
} known_ranks;

/* Rank files carry no description; these are recognised by their size. */
static const known_ranks known[] = {
    { 199998, TKC_SCAN_O200K, { { "<|endoftext|>", 199999 }, { "<|endofprompt|>", 200018 } } },
    { 100256,
      TKC_SCAN_CL100K,
      { { "<|endoftext|>", 100257 },
        { "<|fim_prefix|>", 100258 },
        { "<|fim_middle|>", 100259 },
        { "<|fim_suffix|>", 100260 },
        { "<|endofprompt|>", 100276 } } },
    { 50256, TKC_SCAN_GPT2, { { "<|endoftext|>", 50256 } } },
};
enum { KIMI_RANKS = 163584, KIMI_SPECIALS = 256 };

static bool add_named(tinkc_tokenizer *tok, tinkc_str text, int32_t id, tinkc_error *err)
{
    tkc_added_token token = { .len = text.len, .id = id, .special = true };
    token.text = tkc_arena_str(&tok->arena, text, err);
    if (!token.text)
        return false;
    if (tkc_find_added(tok, text))
        return tkc_fail(err, TINKC_E_TOKENIZER, "two special tokens have the text %s", token.text);
    return tkc_add_token(tok, token, err) != NULL;
}

/* Names from the config; the others are reserved. */
static bool name_kimi(tinkc_tokenizer *tok, tinkc_str decoder, tinkc_error *err)
{
    tkc_json j;
    tkc_arena temp;
    tinkc_str key, names[KIMI_SPECIALS] = { { NULL, 0 } };
    int64_t id, unused;
    tkc_arena_init(&temp, tok->a, 0);
    if (decoder.data) {
        open_json(&j, decoder, &temp, err);
        if (tkc_json_object(&j))
            while (tkc_json_key(&j, &key)) {
                tkc_added_token token = tkc_read_added_token(&j, &temp, &unused);
                if (tkc_parse_i64(key, &id) && id >= tok->tables.n &&
                    id < (int64_t)tok->tables.n + KIMI_SPECIALS)
                    names[id - tok->tables.n] = tkc_strn(token.text, token.len);
            }
    }
    for (int32_t i = 0; i < KIMI_SPECIALS && !tkc_failed(err); i++) {
        char *reserved =
            tkc_arena_printf(&temp, err, "<|reserved_token_%d|>", (int32_t)tok->tables.n + i);
        if (reserved)
            add_named(tok, names[i].len ? names[i] : tkc_str(reserved), (int32_t)tok->tables.n + i,
                      err);
    }
    tkc_arena_free(&temp);
    tok->kimi_cuts = true;
    tok->named_specials_only = true;
    return !tkc_failed(err);
}

bool tkc_set_up_tiktoken(tinkc_tokenizer *tok, tinkc_str decoder, tinkc_error *err)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].n != tok->tables.n)
            continue;
        tkc_pretok_scanner(&tok->pretok, known[i].scanner);
        for (size_t k = 0; k < 5 && known[i].special[k].text; k++)
            if (!add_named(tok, tkc_str(known[i].special[k].text), known[i].special[k].id, err))
                return false;
        return true;
    }
    if (tok->tables.n != KIMI_RANKS && !tkc_cstr_eq(tok->tokenizer_class, "TikTokenTokenizer"))
        return tkc_fail(err, TINKC_E_TOKENIZER,
                        "no pattern is known for a tiktoken file of %u ranks", tok->tables.n);
    tkc_pretok_scanner(&tok->pretok, TKC_SCAN_KIMI);
    return name_kimi(tok, decoder, err);
}
