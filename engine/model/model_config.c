/* model_config.c - reads and validates config.json.
 *
 * May touch: two files of a folder. Must not: guess. An unknown member that could change a result
 * is refused by name.
 */
#include "model/model_config.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/json_read.h"
#include "base/str.h"
#include "tensor/dtype.h"

/* Generous bounds that keep every later product far from overflow. */
enum { MAX_WIDTH = 1 << 20, MAX_LAYERS = 1024, MAX_VOCAB = 1 << 24, MAX_CONTEXT = 1 << 26 };
enum { CONFIG_MAX = 16 << 20 };

/* The values in the file, before validation. -1 = absent. */
typedef struct said {
    tinkc_str architecture, model_type, act, rope_type;
    int64_t hidden, inner, layers, heads, kv_heads, head_dim, vocab, context;
    int64_t window, max_window_layers;
    bool use_window, has_layer_types;
    int tied, attention_bias, mlp_bias; /* -1, 0, 1 */
    double eps, theta;
    tinkc_str layer_types; /* its JSON text */
    bool quantized, rope_nested;
} said;

typedef struct parser {
    tke_config *c;
    said s;
    tkc_json json;
    const char *what;
    tinkc_error *err;
} parser;

static bool bad(parser *p, const char *fault)
{
    return tkc_fail(p->err, TINKC_E_MODEL, "%s: %s", p->what, fault);
}

static bool refuse(parser *p, const char *feature, tinkc_str name)
{
    return tkc_fail(p->err, TINKC_E_UNSUPPORTED, "%s: %s '%.*s' is not supported", p->what, feature,
                    (int)(name.len < 60 ? name.len : 60), name.data ? name.data : "");
}

/* An integer, or -1 for null. */
static int64_t maybe_i64(tkc_json *j)
{
    return tkc_json_null(j) ? -1 : tkc_json_i64(j);
}

static double maybe_double(tkc_json *j, double otherwise)
{
    return tkc_json_null(j) ? otherwise : tkc_json_double(j);
}

static int maybe_bool(tkc_json *j)
{
    return tkc_json_null(j) ? -1 : tkc_json_bool(j);
}

static tinkc_str maybe_string(tkc_json *j)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_json_string(j);
    tkc_json_skip(j);
    return (tinkc_str){ 0 };
}

static void read_eos(tke_config *c, tkc_json *j)
{
    c->n_eos = 0;
    if (tkc_json_peek(j) == TKC_JSON_ARRAY) {
        tkc_json_array(j);
        while (tkc_json_item(j)) {
            int64_t id = tkc_json_i64(j);
            if (id >= 0 && id <= INT32_MAX && c->n_eos < TKE_MAX_EOS)
                c->eos[c->n_eos++] = (int32_t)id;
        }
        return;
    }
    int64_t id = maybe_i64(j);
    if (id >= 0 && id <= INT32_MAX)
        c->eos[c->n_eos++] = (int32_t)id;
}

/* rope_scaling (old) or rope_parameters (new): the same keys, but theta is only in the new one. */
static void read_rope(parser *p)
{
    tkc_json *j = &p->json;
    tke_config *c = p->c;
    tinkc_str key;
    if (tkc_json_null(j) || !tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "rope_type"))
            p->s.rope_type = maybe_string(j);
        else if (tkc_str_is(key, "type")) {
            tinkc_str old = maybe_string(j);
            if (!p->s.rope_type.data)
                p->s.rope_type = old;
        } else if (tkc_str_is(key, "rope_theta"))
            p->s.theta = maybe_double(j, p->s.theta);
        else if (tkc_str_is(key, "factor"))
            c->rope_factor = maybe_double(j, 0);
        else if (tkc_str_is(key, "low_freq_factor"))
            c->rope_low = maybe_double(j, 0);
        else if (tkc_str_is(key, "high_freq_factor"))
            c->rope_high = maybe_double(j, 0);
        else if (tkc_str_is(key, "original_max_position_embeddings"))
            c->rope_original = maybe_double(j, 0);
        else if (tkc_str_is(key, "beta_fast"))
            c->rope_beta_fast = maybe_double(j, 32);
        else if (tkc_str_is(key, "beta_slow"))
            c->rope_beta_slow = maybe_double(j, 1);
        else if (tkc_str_is(key, "attention_factor"))
            c->rope_attention = maybe_double(j, 0);
        else if (tkc_str_is(key, "partial_rotary_factor")) {
            if (maybe_double(j, 1) != 1)
                refuse(p, "feature", tkc_str("partial_rotary_factor"));
        } else
            tkc_json_skip(j);
    }
}

static void read_first_architecture(parser *p)
{
    tkc_json *j = &p->json;
    if (tkc_json_peek(j) != TKC_JSON_ARRAY) {
        tkc_json_skip(j);
        return;
    }
    tkc_json_array(j);
    while (tkc_json_item(j)) {
        tinkc_str name = maybe_string(j);
        if (!p->s.architecture.data)
            p->s.architecture = name;
    }
}

static const struct {
    const char *key;
    size_t place;
} integers[] = {
    { "hidden_size", offsetof(said, hidden) },
    { "intermediate_size", offsetof(said, inner) },
    { "num_hidden_layers", offsetof(said, layers) },
    { "num_attention_heads", offsetof(said, heads) },
    { "num_key_value_heads", offsetof(said, kv_heads) },
    { "head_dim", offsetof(said, head_dim) },
    { "vocab_size", offsetof(said, vocab) },
    { "max_position_embeddings", offsetof(said, context) },
    { "sliding_window", offsetof(said, window) },
    { "max_window_layers", offsetof(said, max_window_layers) },
};

static bool read_integer(parser *p, tinkc_str key)
{
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (tkc_str_is(key, integers[i].key)) {
            int64_t value = maybe_i64(&p->json);
            memcpy((char *)&p->s + integers[i].place, &value, sizeof value);
            return true;
        }
    return false;
}

static void read_key(parser *p, tinkc_str key)
{
    tkc_json *j = &p->json;
    if (read_integer(p, key))
        return;
    if (tkc_str_is(key, "architectures"))
        read_first_architecture(p);
    else if (tkc_str_is(key, "model_type"))
        p->s.model_type = maybe_string(j);
    else if (tkc_str_is(key, "hidden_act"))
        p->s.act = maybe_string(j);
    else if (tkc_str_is(key, "rms_norm_eps"))
        p->s.eps = maybe_double(j, p->s.eps);
    else if (tkc_str_is(key, "rope_theta") && !p->s.rope_nested)
        p->s.theta = maybe_double(j, p->s.theta);
    else if (tkc_str_is(key, "rope_scaling") && !p->s.rope_nested)
        read_rope(p);
    else if (tkc_str_is(key, "rope_parameters")) {
        p->s.rope_nested = tkc_json_peek(j) == TKC_JSON_OBJECT;
        read_rope(p);
    } else if (tkc_str_is(key, "tie_word_embeddings"))
        p->s.tied = maybe_bool(j);
    else if (tkc_str_is(key, "attention_bias"))
        p->s.attention_bias = maybe_bool(j);
    else if (tkc_str_is(key, "mlp_bias"))
        p->s.mlp_bias = maybe_bool(j);
    else if (tkc_str_is(key, "use_sliding_window"))
        p->s.use_window = maybe_bool(j) == 1;
    else if (tkc_str_is(key, "layer_types"))
        p->s.layer_types = tkc_json_skip(j);
    else if (tkc_str_is(key, "eos_token_id"))
        read_eos(p->c, j);
    else if (tkc_str_is(key, "quantization_config"))
        p->s.quantized = !tkc_json_null(j) && tkc_json_skip(j).len;
    else
        tkc_json_skip(j);
}

/* ---- validation ---- */

static bool choose_family(parser *p)
{
    static const struct {
        const char *architecture, *type;
        int family;
    } known[] = { { "LlamaForCausalLM", "llama", TKE_LLAMA },
                  { "Qwen2ForCausalLM", "qwen2", TKE_QWEN2 },
                  { "Qwen3ForCausalLM", "qwen3", TKE_QWEN3 } };
    tinkc_str name = p->s.architecture.data ? p->s.architecture : p->s.model_type;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (tkc_str_is(name, known[i].architecture) || tkc_str_is(name, known[i].type)) {
            p->c->family = known[i].family;
            p->c->arch = known[i].type;
            return true;
        }
    return tkc_fail(p->err, TINKC_E_UNSUPPORTED,
                    "%s: architecture '%.*s' is not supported; supported are %s, %s and %s",
                    p->what, (int)(name.len < 60 ? name.len : 60), name.data ? name.data : "",
                    known[0].architecture, known[1].architecture, known[2].architecture);
}

static bool choose_rope(parser *p)
{
    tke_config *c = p->c;
    tinkc_str type = p->s.rope_type;
    assert(c->head_dim); /* sizes were chosen before */
    if (!type.data || tkc_str_is(type, "default"))
        c->rope = TKE_ROPE_DEFAULT;
    else if (tkc_str_is(type, "linear"))
        c->rope = TKE_ROPE_LINEAR;
    else if (tkc_str_is(type, "llama3"))
        c->rope = TKE_ROPE_LLAMA3;
    else if (tkc_str_is(type, "yarn"))
        c->rope = TKE_ROPE_YARN;
    else
        return refuse(p, "rope type", type);
    c->rope_theta = p->s.theta;
    if (!(c->rope_theta > 1) || !isfinite(c->rope_theta))
        return bad(p, "rope_theta must be above 1");
    if (c->rope != TKE_ROPE_DEFAULT && !(c->rope_factor >= 1 && isfinite(c->rope_factor)))
        return bad(p, "rope_scaling: factor must be at least 1");
    if (c->rope == TKE_ROPE_YARN && c->rope_original == 0)
        c->rope_original = (double)p->s.context;
    if (c->rope == TKE_ROPE_LLAMA3 &&
        !(c->rope_low > 0 && c->rope_high > c->rope_low && isfinite(c->rope_high)))
        return bad(p, "rope_scaling: low_freq_factor must be above 0 and below high_freq_factor");
    if ((c->rope == TKE_ROPE_LLAMA3 || c->rope == TKE_ROPE_YARN) &&
        !(c->rope_original >= 1 && c->rope_original < MAX_CONTEXT))
        return bad(p, "rope_scaling: original_max_position_embeddings is out of range");
    if (c->rope == TKE_ROPE_YARN && !(c->rope_beta_fast > 0 && c->rope_beta_slow > 0 &&
                                      c->rope_attention >= 0 && isfinite(c->rope_beta_fast) &&
                                      isfinite(c->rope_beta_slow) && isfinite(c->rope_attention)))
        return bad(p, "rope_scaling (yarn): beta_fast and beta_slow must be above 0, "
                      "attention_factor at least 0");
    return true;
}

static bool size_ok(parser *p, const char *key, int64_t value, int64_t max)
{
    if (value >= 1 && value <= max)
        return true;
    return tkc_fail(p->err, TINKC_E_MODEL, "%s: %s is missing or out of range", p->what, key);
}

static bool choose_sizes(parser *p)
{
    said *s = &p->s;
    tke_config *c = p->c;
    if (!size_ok(p, "hidden_size", s->hidden, MAX_WIDTH) ||
        !size_ok(p, "intermediate_size", s->inner, MAX_WIDTH) ||
        !size_ok(p, "num_hidden_layers", s->layers, MAX_LAYERS) ||
        !size_ok(p, "num_attention_heads", s->heads, 4096) ||
        !size_ok(p, "vocab_size", s->vocab, MAX_VOCAB) ||
        !size_ok(p, "max_position_embeddings", s->context, MAX_CONTEXT))
        return false;
    if (s->kv_heads < 0)
        s->kv_heads = s->heads;
    if (s->head_dim < 0)
        s->head_dim = c->family == TKE_QWEN3 ? 128 : s->hidden / s->heads;
    if (!size_ok(p, "num_key_value_heads", s->kv_heads, s->heads) ||
        !size_ok(p, "head_dim", s->head_dim, TKE_MAX_HEAD_DIM))
        return false;
    if (s->heads % s->kv_heads)
        return bad(p, "num_attention_heads is not a multiple of num_key_value_heads");
    if (s->heads / s->kv_heads > TKE_MAX_HEAD_GROUP)
        return bad(p, "num_attention_heads is too many times num_key_value_heads");
    if (s->head_dim % 2)
        return bad(p, "head_dim is odd");
    c->hidden = (size_t)s->hidden;
    c->inner = (size_t)s->inner;
    c->n_layers = (size_t)s->layers;
    c->n_heads = (size_t)s->heads;
    c->n_kv_heads = (size_t)s->kv_heads;
    c->head_dim = (size_t)s->head_dim;
    c->vocab = (size_t)s->vocab;
    c->context = (size_t)s->context;
    return true;
}

static bool read_layer_types(parser *p, tkc_arena *arena)
{
    tkc_json j;
    size_t n = 0;
    tke_config *c = p->c;
    assert(c->n_layers && c->window);
    if (!p->s.layer_types.len || p->s.layer_types.data[0] != '[')
        return true;
    c->layer_slides = tkc_arena_array(arena, c->n_layers, sizeof *c->layer_slides, p->err);
    if (!c->layer_slides)
        return false;
    tkc_json_open(&j, p->s.layer_types, arena, p->err);
    j.code = TINKC_E_MODEL;
    tkc_json_array(&j);
    while (tkc_json_item(&j)) {
        tinkc_str type = maybe_string(&j);
        bool slides = tkc_str_is(type, "sliding_attention");
        if (!slides && !tkc_str_is(type, "full_attention"))
            return refuse(p, "layer type", type);
        if (n < c->n_layers)
            c->layer_slides[n] = slides;
        n++;
    }
    if (!tkc_failed(p->err) && n != c->n_layers)
        return bad(p, "layer_types has the wrong length");
    return !tkc_failed(p->err);
}

static bool judge(parser *p, tkc_arena *arena)
{
    said *s = &p->s;
    tke_config *c = p->c;
    if (s->quantized)
        return refuse(p, "feature", tkc_str("quantization_config"));
    if (s->act.data && !tkc_str_is(s->act, "silu"))
        return refuse(p, "hidden_act", s->act);
    if (!choose_family(p) || !choose_sizes(p) || !choose_rope(p))
        return false;
    c->rms_eps = s->eps;
    if (!(c->rms_eps > 0 && c->rms_eps < 1))
        return bad(p, "rms_norm_eps must be above 0 and below 1");
    c->tied = s->tied == 1;
    c->bias_qkv = c->family == TKE_QWEN2 || s->attention_bias == 1;
    c->bias_o = c->family != TKE_QWEN2 && s->attention_bias == 1;
    c->bias_mlp = c->family == TKE_LLAMA && s->mlp_bias == 1;
    c->qk_norm = c->family == TKE_QWEN3;
    if (s->use_window && c->family != TKE_LLAMA && s->window > 0) {
        c->window = (size_t)s->window;
        c->first_window_layer = s->max_window_layers < 0 ? 0 : (size_t)s->max_window_layers;
        return read_layer_types(p, arena);
    }
    return true;
}

bool tke_config_parse(tke_config *c, tinkc_str config, tinkc_str generation, const char *what,
                      tkc_arena *arena, tinkc_error *err)
{
    tinkc_str key;
    *c = (tke_config){ .rope_beta_fast = 32, .rope_beta_slow = 1 };
    parser p = { .c = c, .what = what, .err = err };
    p.s = (said){ .hidden = -1,
                  .inner = -1,
                  .layers = -1,
                  .heads = -1,
                  .kv_heads = -1,
                  .head_dim = -1,
                  .vocab = -1,
                  .context = -1,
                  .window = -1,
                  .max_window_layers = -1,
                  .tied = -1,
                  .attention_bias = -1,
                  .mlp_bias = -1,
                  .eps = 1e-6,
                  .theta = 10000 };
    tkc_json_open(&p.json, config, arena, err);
    p.json.code = TINKC_E_MODEL;
    if (tkc_json_object(&p.json))
        while (tkc_json_key(&p.json, &key))
            read_key(&p, key);
    tkc_json_close(&p.json);
    if (tkc_failed(err) || !judge(&p, arena))
        return false;
    if (!generation.len)
        return true;
    tkc_json_open(&p.json, generation, arena, err);
    p.json.code = TINKC_E_MODEL;
    if (tkc_json_object(&p.json))
        while (tkc_json_key(&p.json, &key)) {
            if (tkc_str_is(key, "eos_token_id") && tkc_json_peek(&p.json) != TKC_JSON_NULL)
                read_eos(c, &p.json);
            else
                tkc_json_skip(&p.json);
        }
    tkc_json_close(&p.json);
    return !tkc_failed(err);
}

bool tke_config_load(tke_config *c, const char *folder, tkc_arena *arena, tinkc_error *err)
{
    tinkc_bytes generation = { 0 };
    char *path = tkc_path_join(arena, folder, "config.json", err);
    char *beside = tkc_path_join(arena, folder, "generation_config.json", err);
    if (!path || !beside)
        return false;
    if (!tkc_is_file(path))
        return tkc_fail(err, TINKC_E_MODEL, "%s: file not found", path);
    tinkc_bytes text = tkc_read_file(arena, path, CONFIG_MAX, err);
    if (tkc_is_file(beside))
        generation = tkc_read_file(arena, beside, CONFIG_MAX, err);
    if (tkc_failed(err))
        return false;
    if (tke_config_parse(c, tkc_strn((const char *)text.data, text.len),
                         tkc_strn((const char *)generation.data, generation.len), path, arena, err))
        return true;
    if (strncmp(err->message, path, strlen(path)) != 0) { /* the JSON reader knows no file */
        char message[sizeof err->message];
        snprintf(message, sizeof message, "%.200s: %.180s", path, err->message);
        memcpy(err->message, message, sizeof message);
    }
    return false;
}

/* ---- rope ---- */

static double llama3_frequency(const tke_config *c, double f)
{
    double wave = 2 * M_PI / f;
    if (wave < c->rope_original / c->rope_high)
        return f;
    if (wave > c->rope_original / c->rope_low)
        return f / c->rope_factor;
    double t = (c->rope_original / wave - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - t) * f / c->rope_factor + t * f;
}

static double yarn_dim(const tke_config *c, double rotations)
{
    return (double)c->head_dim * log(c->rope_original / (2 * M_PI * rotations)) /
           (2 * log(c->rope_theta));
}

static double yarn_frequency(const tke_config *c, size_t j, double f)
{
    double lo = fmax(floor(yarn_dim(c, c->rope_beta_fast)), 0);
    double hi = fmin(ceil(yarn_dim(c, c->rope_beta_slow)), (double)c->head_dim - 1);
    if (lo == hi)
        hi += 0.001;
    double ramp = fmin(fmax(((double)j - lo) / (hi - lo), 0), 1);
    return f / c->rope_factor * ramp + f * (1 - ramp);
}

void tke_rope_frequencies(const tke_config *c, double *out, double *scale)
{
    assert(c->head_dim % 2 == 0 && c->rope_theta > 1);
    *scale = 1;
    if (c->rope == TKE_ROPE_YARN)
        *scale = c->rope_attention > 0 ? c->rope_attention : 0.1 * log(c->rope_factor) + 1;
    for (size_t j = 0; j < c->head_dim / 2; j++) {
        double f = pow(c->rope_theta, -2.0 * (double)j / (double)c->head_dim);
        switch (c->rope) {
        case TKE_ROPE_LINEAR:
            f /= c->rope_factor;
            break;
        case TKE_ROPE_LLAMA3:
            f = llama3_frequency(c, f);
            break;
        case TKE_ROPE_YARN:
            f = yarn_frequency(c, j, f);
            break;
        default:
            break;
        }
        out[j] = f;
    }
}
