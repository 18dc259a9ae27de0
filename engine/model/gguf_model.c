/* gguf_model.c - opens GGUF files as a model.
 *
 * Weights stay mapped and packed. Rows of q and k are copied where the converter has put the two
 * halves of a rotation side by side. May touch: the files. Must not: trust a header; every tensor is
 * checked against its part before the first is handed out.
 */
#include "model/gguf_model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/json_write.h"
#include "base/str.h"
#include "math/format.h"
#include "model/family.h"

enum { MOST_PARTS = 1000, NAME_LEN = 256 };

/* ---- tensors of a part ---- */

typedef struct place {
    const tkc_gguf_tensor *t;
    uint64_t bytes;
} place;

static bool bad_tensor(const tkc_gguf *g, const char *name, const char *fault, tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_MODEL, "%s: tensor '%.100s': %s", g->what, name, fault);
}

static const char *type_name(uint32_t type)
{
    static const struct {
        uint32_t type;
        const char *name;
    } known[] = {
        { 10, "Q2_K" },    { 11, "Q3_K" },  { 15, "Q8_K" },  { 16, "IQ2_XXS" }, { 17, "IQ2_XS" },
        { 18, "IQ3_XXS" }, { 19, "IQ1_S" }, { 21, "IQ3_S" }, { 22, "IQ2_S" },   { 23, "IQ4_XS" },
        { 24, "I8" },      { 25, "I16" },   { 26, "I32" },   { 27, "I64" },     { 29, "IQ1_M" },
        { 34, "TQ1_0" },   { 35, "TQ2_0" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == type)
            return known[i].name;
    return "unknown";
}

static bool check_tensor(const tkc_gguf *g, const tkc_gguf_tensor *t, place *p, tinkc_error *err)
{
    const tke_format *f = tke_format_of_gguf(t->type);
    if (!f || t->type == (uint32_t)tke_format_of(TKE_F64)->gguf)
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "%s: tensor '%.100s': type %u (%s) is not supported; supported are %s",
                        g->what, t->name, (unsigned)t->type, f ? f->name : type_name(t->type),
                        tke_format_list());
    if (t->dims[0] % (uint64_t)f->block)
        return bad_tensor(g, t->name, "its rows are not whole blocks of its type", err);
    size_t bytes = (size_t)(t->dims[0] / (uint64_t)f->block);
    bool fits = tkc_mul_size(bytes, (size_t)f->block_bytes, &bytes);
    for (int i = 1; fits && i < TKC_GGUF_MAX_DIMS; i++)
        fits = tkc_mul_size(bytes, (size_t)t->dims[i], &bytes);
    if (!fits || t->offset > g->data.len || bytes > g->data.len - t->offset)
        return bad_tensor(g, t->name, "its data lie outside the file", err);
    *p = (place){ t, bytes };
    return true;
}

static int by_offset(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->t->offset < y->t->offset ? -1 : x->t->offset > y->t->offset;
}

static bool check_tensors(const tkc_gguf *g, tkc_arena *arena, tinkc_error *err)
{
    place *list = tkc_arena_array(arena, g->n_tensors + 1, sizeof *list, err);
    for (size_t i = 0; list && i < g->n_tensors; i++)
        if (!check_tensor(g, &g->tensors[i], &list[i], err))
            return false;
    if (!list)
        return false;
    if (g->n_tensors)
        qsort(list, g->n_tensors, sizeof *list, by_offset);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (list[i].t->offset < list[i - 1].t->offset + list[i - 1].bytes)
            return bad_tensor(g, list[i].t->name, "its data overlap another tensor's", err);
    return true;
}

/* ---- parts ---- */

static bool read_part(tke_gguf_files *f, tinkc_bytes bytes, const char *what, tinkc_error *err)
{
    tkc_gguf *g = &f->parts[f->n_parts++].g;
    return tkc_gguf_read(g, bytes, what, err) && check_tensors(g, f->arena, err);
}

static bool open_part(tke_gguf_files *f, const char *path, tinkc_error *err)
{
    tkc_mapping *map = &f->parts[f->n_parts].map;
    if (!tkc_is_file(path))
        return tkc_fail(err, TINKC_E_MODEL, "%s: file not found", path);
    return tkc_map_file(path, map, err) &&
           read_part(f, (tinkc_bytes){ map->data, map->len }, path, err);
}

/* "x-00002-of-00003.gguf": the path of another part; NULL = not named like a part. */
static const char *part_path(tkc_arena *arena, const char *path, unsigned part, unsigned n,
                             tinkc_error *err)
{
    enum { TAIL = sizeof "-00001-of-00003.gguf" - 1 };
    char end[TAIL + 1];
    size_t len = strlen(path);
    if (len < TAIL)
        return NULL;
    const char *tail = path + len - TAIL;
    snprintf(end, sizeof end, "-of-%05u.gguf", n % 100000u);
    if (tail[0] != '-' || strspn(tail + 1, "0123456789") != 5 || strcmp(tail + 6, end) != 0)
        return NULL;
    return tkc_arena_printf(arena, err, "%.*s-%05u%s", (int)(len - TAIL), path, part, end);
}

static bool open_others(tke_gguf_files *f, const char *path, tinkc_error *err)
{
    uint64_t n = tkc_gguf_u64(&f->parts[0].g, "split.count", 1, err);
    if (tkc_failed(err) || n <= 1)
        return !tkc_failed(err);
    if (n > MOST_PARTS)
        return tkc_fail(err, TINKC_E_MODEL, "%s: key 'split.count' is above %d", path, MOST_PARTS);
    for (unsigned i = 2; i <= n; i++) {
        const char *other = part_path(f->arena, path, i, (unsigned)n, err);
        if (!other)
            return tkc_failed(err)
                       ? false
                       : tkc_fail(
                             err, TINKC_E_MODEL,
                             "%s: key 'split.count' says %llu parts, but the file is not named "
                             "like one (NAME-00001-of-%05llu.gguf)",
                             path, (unsigned long long)n, (unsigned long long)n);
        if (!open_part(f, other, err))
            return false;
        if (tkc_gguf_u64(&f->parts[i - 1].g, "split.no", i - 1, err) != i - 1)
            return tkc_fail(err, TINKC_E_MODEL, "%s: key 'split.no' is not %u", other, i - 1);
    }
    return !tkc_failed(err);
}

/* Any part may be named; the first has the keys. */
static const char *first_path(tkc_arena *arena, const char *path, tinkc_error *err)
{
    size_t len = strlen(path);
    uint64_t n = 0;
    if (len < 10 || !tkc_parse_u64(tkc_strn(path + len - 10, 5), &n))
        return path;
    const char *first = n ? part_path(arena, path, 1, (unsigned)n, err) : NULL;
    return first ? first : path;
}

static bool begin(tke_gguf_files *f, size_t parts, tkc_arena *arena, tinkc_error *err)
{
    *f = (tke_gguf_files){ .arena = arena, .err = err };
    f->parts = tkc_arena_array(arena, parts, sizeof *f->parts, err);
    return f->parts != NULL;
}

bool tke_gguf_files_open(tke_gguf_files *f, const char *path, tkc_arena *arena, tinkc_error *err)
{
    path = begin(f, MOST_PARTS, arena, err) ? first_path(arena, path, err) : NULL;
    return path && open_part(f, path, err) && open_others(f, path, err);
}

bool tke_gguf_files_read(tke_gguf_files *f, tinkc_bytes bytes, const char *what, tkc_arena *arena,
                         tinkc_error *err)
{
    return begin(f, 1, arena, err) && read_part(f, bytes, what, err);
}

void tke_gguf_files_close(tke_gguf_files *f)
{
    for (size_t i = 0; i < f->n_parts; i++) {
        tkc_gguf_free(&f->parts[i].g);
        if (f->parts[i].map.data)
            tkc_unmap_file(&f->parts[i].map);
    }
    f->n_parts = 0;
}

static const tkc_gguf_tensor *find_tensor(const tke_gguf_files *f, const char *name,
                                          const tkc_gguf **in)
{
    for (size_t i = 0; i < f->n_parts; i++) {
        const tkc_gguf_tensor *t = tkc_gguf_tensor_find(&f->parts[i].g, name);
        *in = &f->parts[i].g;
        if (t)
            return t;
    }
    return NULL;
}

/* ---- configuration: as the text of a config.json, which the families read ---- */

typedef struct writer {
    tkc_gguf *g;
    const char *arch;
    tkc_jsonw w;
    tinkc_error *err;
} writer;

/* ARCH.name as a number, if it is there. */
static void put_number(writer *w, const char *name, const char *as)
{
    char key[NAME_LEN];
    snprintf(key, sizeof key, "%s.%s", w->arch, name);
    const tkc_gguf_value *v = tkc_gguf_find(w->g, key);
    if (!v)
        return;
    tkc_jsonw_key(&w->w, as);
    if (v->kind == TKC_GGUF_F32 || v->kind == TKC_GGUF_F64)
        tkc_jsonw_double(&w->w, tkc_gguf_double(w->g, key, 0, w->err));
    else
        tkc_jsonw_u64(&w->w, tkc_gguf_u64(w->g, key, 0, w->err));
}

static void put_text(writer *w, const char *key, tinkc_str text)
{
    tkc_jsonw_key(&w->w, key);
    tkc_jsonw_str(&w->w, text);
}

static void put_flag(writer *w, const char *key, bool value)
{
    tkc_jsonw_key(&w->w, key);
    tkc_jsonw_bool(&w->w, value);
}

static bool is_oss(const writer *w)
{
    return strcmp(w->arch, "gpt-oss") == 0;
}

static bool put_rope(writer *w)
{
    char key[NAME_LEN];
    snprintf(key, sizeof key, "%s.rope.scaling.type", w->arch);
    tinkc_str type = tkc_gguf_str(w->g, key, w->err);
    put_number(w, "rope.freq_base", "rope_theta");
    if (!type.data || tkc_str_is(type, "none"))
        return !tkc_failed(w->err);
    tkc_jsonw_key(&w->w, "rope_scaling");
    tkc_jsonw_object(&w->w);
    put_text(w, "rope_type", type);
    put_number(w, "rope.scaling.factor", "factor");
    put_number(w, "rope.scaling.original_context_length", "original_max_position_embeddings");
    if (is_oss(w)) /* as published; files do not say it */
        put_flag(w, "truncate", false);
    tkc_jsonw_end(&w->w);
    return !tkc_failed(w->err);
}

/* Ids that end a text: those that keys name, and the ends of a turn that chat templates write. */
static bool put_ends(writer *w)
{
    static const char *const keys[] = { "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    static const char *const turns[] = { "<|im_end|>", "<|eot_id|>", "<|eom_id|>",   "<|end|>",
                                         "<|return|>", "<|call|>",   "<|endoftext|>" };
    size_t n, n_types;
    int64_t ids[TKE_MAX_EOS];
    size_t n_ids = 0;
    tinkc_str *tokens = tkc_gguf_strs(w->g, "tokenizer.ggml.tokens", &n, w->err);
    int32_t *types = tkc_gguf_i32s(w->g, "tokenizer.ggml.token_type", &n_types, w->err);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t id = tkc_gguf_u64(w->g, keys[i], UINT64_MAX, w->err);
        if (id < n)
            ids[n_ids++] = (int64_t)id;
    }
    for (size_t i = 0; i < n && i < n_types; i++)
        for (size_t k = 0; types[i] == 3 && k < sizeof turns / sizeof *turns; k++)
            if (tkc_str_is(tokens[i], turns[k]) && n_ids < TKE_MAX_EOS)
                ids[n_ids++] = (int64_t)i;
    if (!n_ids)
        return !tkc_failed(w->err);
    tkc_jsonw_key(&w->w, "eos_token_id");
    tkc_jsonw_i64s(&w->w, ids, n_ids);
    return !tkc_failed(w->err);
}

/* The rows of the embedding, which must be as many as there are tokens. */
static bool put_vocab(writer *w, const tke_gguf_files *f)
{
    const tkc_gguf *in;
    const tkc_gguf_tensor *embed = find_tensor(f, "token_embd.weight", &in);
    const tkc_gguf_value *tokens = tkc_gguf_find(w->g, "tokenizer.ggml.tokens");
    if (!embed)
        return tkc_fail(w->err, TINKC_E_MODEL, "%s: tensor 'token_embd.weight' is missing",
                        w->g->what);
    if (tokens && tokens->n != embed->dims[1])
        return tkc_fail(
            w->err, TINKC_E_MODEL,
            "%s: key 'tokenizer.ggml.tokens' has %llu tokens, but 'token_embd.weight' has "
            "%llu rows",
            w->g->what, (unsigned long long)tokens->n, (unsigned long long)embed->dims[1]);
    tkc_jsonw_key(&w->w, "vocab_size");
    tkc_jsonw_u64(&w->w, embed->dims[1]);
    put_flag(w, "tie_word_embeddings", !find_tensor(f, "output.weight", &in));
    return true;
}

static void put_sizes(writer *w)
{
    put_number(w, "block_count", "num_hidden_layers");
    put_number(w, "context_length", "max_position_embeddings");
    put_number(w, "embedding_length", "hidden_size");
    if (!is_oss(w)) /* all of its layers have experts */
        put_number(w, "feed_forward_length", "intermediate_size");
    put_number(w, "attention.head_count", "num_attention_heads");
    put_number(w, "attention.head_count_kv", "num_key_value_heads");
    put_number(w, "attention.key_length", "head_dim");
    put_number(w, "attention.layer_norm_rms_epsilon", "rms_norm_eps");
    put_number(w, "expert_count", "num_experts");
    put_number(w, "expert_used_count", "num_experts_per_tok");
    put_number(w, "expert_feed_forward_length", is_oss(w) ? "intermediate_size" : "moe_intermediate_size");
    if (is_oss(w))
        put_number(w, "attention.sliding_window", "sliding_window");
    put_flag(w, "norm_topk_prob", true);
}

/* Keys that would change results and that nothing here reads. */
static bool refuse_features(writer *w)
{
    static const char *const keys[] = { "attention.sliding_window", "attention.clamp_kqv",
                                        "expert_weights_scale",     "expert_shared_count",
                                        "attention.scale",          "logit_scale",
                                        "residual_scale",           "embedding_scale" };
    char key[NAME_LEN];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", w->arch, keys[i]);
        bool reads = is_oss(w) && strcmp(keys[i], "attention.sliding_window") == 0;
        if (!reads && tkc_gguf_find(w->g, key) && tkc_gguf_double(w->g, key, 0, w->err) > 0)
            return tkc_fail(w->err, TINKC_E_UNSUPPORTED, "%s: key '%s' is not supported",
                            w->g->what, key);
    }
    return !tkc_failed(w->err);
}

/* The dimensions that rotate must be those of a head. */
static bool check_rotary(writer *w, const tke_config *c)
{
    char key[NAME_LEN];
    snprintf(key, sizeof key, "%s.rope.dimension_count", w->arch);
    uint64_t n = tkc_gguf_u64(w->g, key, c->head_dim, w->err);
    if (!tkc_failed(w->err) && n != c->head_dim)
        return tkc_fail(w->err, TINKC_E_UNSUPPORTED, "%s: key '%s' is not the size of a head, %zu",
                        w->g->what, key, c->head_dim);
    return !tkc_failed(w->err);
}

static bool choose_arch(writer *w, tinkc_str *model_type)
{
    static const char *const archs[][2] = { { "llama", "llama" },
                                            { "qwen2", "qwen2" },
                                            { "qwen3", "qwen3" },
                                            { "qwen3moe", "qwen3_moe" },
                                            { "gpt-oss", "gpt_oss" } };
    tinkc_str name = tkc_gguf_str(w->g, "general.architecture", w->err);
    for (size_t i = 0; name.data && i < sizeof archs / sizeof *archs; i++)
        if (tkc_str_is(name, archs[i][0])) {
            w->arch = archs[i][0];
            *model_type = tkc_str(archs[i][1]);
            return true;
        }
    if (tkc_failed(w->err))
        return false;
    return tkc_fail(w->err, TINKC_E_UNSUPPORTED,
                    "%s: key 'general.architecture': '%.*s' is not supported; supported are llama, "
                    "qwen2, qwen3, qwen3moe and gpt-oss",
                    w->g->what, (int)(name.len < 60 ? name.len : 60), name.data ? name.data : "");
}

static bool write_config(writer *w, const tke_gguf_files *f, tinkc_str model_type)
{
    const tkc_gguf *in;
    tkc_jsonw_object(&w->w);
    put_text(w, "model_type", model_type);
    put_sizes(w);
    bool qkv = find_tensor(f, "blk.0.attn_q.bias", &in) != NULL;
    put_flag(w, "attention_bias", qkv && find_tensor(f, "blk.0.attn_output.bias", &in) != NULL);
    put_flag(w, "mlp_bias", find_tensor(f, "blk.0.ffn_down.bias", &in) != NULL);
    if (!put_vocab(w, f) || !put_rope(w) || !put_ends(w))
        return false;
    tkc_jsonw_end(&w->w);
    return !tkc_failed(w->err);
}

bool tke_gguf_config(tke_gguf_files *f, tke_config *c, tinkc_error *err)
{
    tkc_buf text;
    tinkc_str type = { 0 };
    writer w = { .g = &f->parts[0].g, .err = err };
    tkc_buf_init(&text, NULL, 1 << 20);
    tkc_jsonw_open(&w.w, &text, err);
    bool ok = choose_arch(&w, &type) && refuse_features(&w) && write_config(&w, f, type) &&
              tke_config_parse(c, tkc_strn(text.data, text.len), (tinkc_str){ 0 }, w.g->what,
                               f->arena, err) &&
              check_rotary(&w, c);
    tkc_buf_free(&text);
    f->config = c;
    return ok;
}

/* ---- tensors by the names of model folders ---- */

typedef struct renamed {
    char name[NAME_LEN];
    int64_t expert; /* which part of a tensor of three dimensions; -1 = all of it */
    size_t heads;   /* whose rows the converter has put in pairs; 0 = none */
} renamed;

static const struct {
    const char *ours, *theirs;
    bool experts;
} modules[] = {
    { "input_layernorm", "attn_norm", false },    { "post_attention_layernorm", "ffn_norm", false },
    { "self_attn.q_proj", "attn_q", false },      { "self_attn.k_proj", "attn_k", false },
    { "self_attn.v_proj", "attn_v", false },      { "self_attn.o_proj", "attn_output", false },
    { "self_attn.q_norm", "attn_q_norm", false }, { "self_attn.k_norm", "attn_k_norm", false },
    { "mlp.gate_proj", "ffn_gate", false },       { "mlp.up_proj", "ffn_up", false },
    { "mlp.down_proj", "ffn_down", false },       { "mlp.gate", "ffn_gate_inp", false },
    { "gate_proj", "ffn_gate_exps", true },       { "up_proj", "ffn_up_exps", true },
    { "down_proj", "ffn_down_exps", true },
    { "mlp.router", "ffn_gate_inp", false },
};

/* "12." before what follows. */
static bool take_index(tinkc_str *rest, uint64_t *index)
{
    tinkc_str digits;
    return tkc_str_cut(rest, '.', &digits) && rest->data && tkc_parse_u64(digits, index);
}

/* gpt-oss has a norm of another name, and one number of each head. */
static bool own_name(uint64_t layer, tinkc_str rest, renamed *out)
{
    static const char *const names[][2] = {
        { "post_attention_layernorm.weight", "post_attention_norm.weight" },
        { "self_attn.sinks", "attn_sinks.weight" },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tkc_str_is(rest, names[i][0])) {
            snprintf(out->name, sizeof out->name, "blk.%llu.%s", (unsigned long long)layer,
                     names[i][1]);
            return true;
        }
    return false;
}

static bool rename_module(const tke_config *c, uint64_t layer, tinkc_str rest, renamed *out)
{
    static const char prefix[] = "mlp.experts.";
    if (c->family == &tke_family_gpt_oss && own_name(layer, rest, out))
        return true;
    const char *end = tkc_ends_with(rest, ".weight") ? ".weight" : ".bias";
    uint64_t expert = 0;
    if (!tkc_ends_with(rest, end))
        return false;
    rest.len -= strlen(end);
    bool experts = tkc_starts_with(rest, prefix);
    if (experts) {
        rest = tkc_strn(rest.data + sizeof prefix - 1, rest.len - sizeof prefix + 1);
        if (!take_index(&rest, &expert))
            return false;
    }
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (modules[i].experts == experts && tkc_str_is(rest, modules[i].ours)) {
            snprintf(out->name, sizeof out->name, "blk.%llu.%s%s", (unsigned long long)layer,
                     modules[i].theirs, end);
            out->expert = experts ? (int64_t)expert : -1;
            bool paired = c->family->gguf_pairs;
            out->heads = paired && tkc_str_is(rest, "self_attn.q_proj")   ? c->n_heads
                         : paired && tkc_str_is(rest, "self_attn.k_proj") ? c->n_kv_heads
                                                                          : 0;
            return true;
        }
    return false;
}

static bool rename_tensor(const tke_config *c, const char *name, renamed *out)
{
    static const char *const whole[][2] = { { "model.embed_tokens.weight", "token_embd.weight" },
                                            { "model.norm.weight", "output_norm.weight" },
                                            { "lm_head.weight", "output.weight" } };
    static const char layers[] = "model.layers.";
    tinkc_str rest = tkc_str(name);
    uint64_t layer;
    *out = (renamed){ .expert = -1 };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(name, whole[i][0]) == 0) {
            snprintf(out->name, sizeof out->name, "%s", whole[i][1]);
            return true;
        }
    if (!tkc_starts_with(rest, layers))
        return false;
    rest = tkc_strn(rest.data + sizeof layers - 1, rest.len - sizeof layers + 1);
    return take_index(&rest, &layer) && rename_module(c, layer, rest, out);
}

/* Rows in the order of model folders: of each head first the even ones, then the odd ones. */
static const unsigned char *unpaired(const tke_gguf_files *f, const unsigned char *from,
                                     size_t row_bytes, size_t rows, size_t heads)
{
    unsigned char *to = tkc_arena_alloc(f->arena, rows * row_bytes, f->err);
    size_t d = rows / heads;
    for (size_t i = 0; to && i < rows; i++) {
        size_t at = i % d, source = i - at + at % (d / 2) * 2 + at / (d / 2);
        memcpy(to + i * row_bytes, from + source * row_bytes, row_bytes);
    }
    return to;
}

static const tke_file_tensor *describe(const tke_gguf_files *f, const tkc_gguf *in,
                                       const tkc_gguf_tensor *t, const renamed *as)
{
    const tke_format *format = tke_format_of_gguf(t->type);
    tke_dtype dtype = tke_format_dtype(format);
    tke_file_tensor *out = tkc_arena_array(f->arena, 1, sizeof *out, f->err);
    size_t row_bytes = tke_format_bytes(format, (size_t)t->dims[0]), rows = (size_t)t->dims[1];
    if (as->expert >= 0 && t->n_dims == 2) /* biases */
        rows = 1;
    if (!out)
        return NULL;
    out->name = t->name;
    out->dtype = tke_is_packed(dtype) ? TKE_FILE_U8 : (int32_t)dtype;
    out->packed = tke_is_packed(dtype) ? (int32_t)dtype : 0;
    out->n_dims = as->expert >= 0 ? t->n_dims - 1 : t->n_dims;
    for (int i = 0; i < out->n_dims; i++)
        out->dims[i] = (int64_t)t->dims[out->n_dims - 1 - i];
    out->data = in->data.data + t->offset;
    out->n_bytes = row_bytes * rows * (size_t)(as->expert >= 0 ? 1 : t->dims[2] * t->dims[3]);
    if (as->expert >= 0)
        out->data += (size_t)as->expert * row_bytes * rows;
    if (as->heads && out->n_dims == 1) { /* a bias: its numbers are the rows */
        rows = (size_t)t->dims[0];
        row_bytes /= rows;
    }
    if (as->heads && out->n_dims <= 2 && rows % (2 * as->heads) == 0)
        out->data = unpaired(f, out->data, row_bytes, rows, as->heads);
    return out->data ? out : NULL;
}

/* A matrix of each expert, or a bias. */
static bool has_expert(const tkc_gguf_tensor *t, uint64_t expert)
{
    bool bias = tkc_ends_with(tkc_str(t->name), ".bias");
    return t->n_dims == (bias ? 2 : 3) && expert < t->dims[t->n_dims - 1];
}

const tke_file_tensor *tke_gguf_files_find(void *files, const char *name)
{
    const tke_gguf_files *f = files;
    const tkc_gguf *in;
    renamed as;
    if (!rename_tensor(f->config, name, &as))
        return NULL;
    const tkc_gguf_tensor *t = find_tensor(f, as.name, &in);
    if (!t || (as.expert >= 0 && !has_expert(t, (uint64_t)as.expert)))
        return NULL;
    return describe(f, in, t, &as);
}

bool tke_gguf_frequencies(const tke_gguf_files *f, double *frequencies, size_t n, tinkc_error *err)
{
    const tkc_gguf *in;
    const tkc_gguf_tensor *t = find_tensor(f, "rope_freqs.weight", &in);
    if (!t)
        return true;
    if (t->type != 0 || t->n_dims != 1 || t->dims[0] != n)
        return bad_tensor(in, t->name, "not one F32 number for each pair that rotates", err);
    for (size_t i = 0; i < n; i++) {
        float factor;
        memcpy(&factor, in->data.data + t->offset + i * sizeof factor, sizeof factor);
        if (!(factor > 0 && isfinite(factor)))
            return bad_tensor(in, t->name, "a factor is not above 0", err);
        frequencies[i] /= (double)factor;
    }
    return true;
}
