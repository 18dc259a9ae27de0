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
#include "base/str.h"
#include "math/dtype.h"
#include "model/family.h"

/* Generous bounds that keep every later product far from overflow. */
enum { MAX_VOCAB = 1 << 24, MAX_CONTEXT = 1 << 26, MAX_HEADS = 4096 };
enum { CONFIG_MAX = 16 << 20 };

/* ---- keys that many families have ---- */

/* FP8 in squares of 128 x 128. */
static bool check_fp8(const tke_config_keys *k, const tke_config_keys *q)
{
    int64_t sides[2] = { 0 };
    return (tke_key_integers(q, "weight_block_size", sides, 2) == 2 && sides[0] == 128 &&
            sides[1] == 128) ||
           tke_keys_refuse(
               k, "feature",
               tkc_str("quantization_config: fp8 without weight_block_size [128, 128]"));
}

static bool check_nf4(const tke_config_keys *k, const tke_config_keys *q)
{
    tinkc_str type = tke_key_str(q, "bnb_4bit_quant_type");
    return (tke_key_bool(q, "load_in_4bit", false) && tkc_str_is(type, "nf4")) ||
           tke_keys_refuse(k, "feature",
                           tkc_str("quantization_config: bitsandbytes other than nf4"));
}

/* Only what is read here or by the family itself. */
static bool check_quantization(const tke_config_keys *k, const tke_config *c)
{
    tke_config_keys q;
    if (!tke_key_given(k, "quantization_config"))
        return true;
    tke_keys_inside(k, "quantization_config", &q);
    tinkc_str method = tke_key_str(&q, "quant_method");
    if (!method.data)
        return tke_keys_refuse(k, "feature", tkc_str("quantization_config"));
    if (tkc_str_is(method, "fp8"))
        return check_fp8(k, &q);
    if (tkc_str_is(method, "bitsandbytes"))
        return check_nf4(k, &q);
    return (c->family->quant_method && tkc_str_is(method, c->family->quant_method)) ||
           tke_keys_refuse(k, "quantization_config: quant_method", method);
}

bool tke_config_common(const tke_config_keys *k, tke_config *c)
{
    tinkc_str act = tke_key_str(k, "hidden_act");
    int64_t hidden = tke_key_i64(k, "hidden_size", -1);
    int64_t layers = tke_key_i64(k, "num_hidden_layers", -1);
    int64_t vocab = tke_key_i64(k, "vocab_size", -1);
    int64_t context = tke_key_i64(k, "max_position_embeddings", -1);
    if (!check_quantization(k, c))
        return false;
    if (act.data && !tkc_str_is(act, "silu"))
        return tke_keys_refuse(k, "hidden_act", act);
    if (!tke_keys_size(k, "hidden_size", hidden, TKE_MAX_WIDTH) ||
        (!c->family->counts_layers &&
         !tke_keys_size(k, "num_hidden_layers", layers, TKE_MAX_LAYERS)) ||
        !tke_keys_size(k, "vocab_size", vocab, MAX_VOCAB) ||
        !tke_keys_size(k, "max_position_embeddings", context, MAX_CONTEXT))
        return false;
    c->hidden = (size_t)hidden;
    c->n_layers = c->family->counts_layers ? 0 : (size_t)layers;
    c->vocab = (size_t)vocab;
    c->context = (size_t)context;
    c->tied = tke_key_bool(k, "tie_word_embeddings", c->tied);
    return !tkc_failed(k->err);
}

bool tke_config_inner(const tke_config_keys *k, tke_config *c)
{
    int64_t inner = tke_key_i64(k, "intermediate_size", -1);
    if (!tke_keys_size(k, "intermediate_size", inner, TKE_MAX_WIDTH))
        return false;
    c->inner = (size_t)inner;
    return true;
}

bool tke_config_heads(const tke_config_keys *k, tke_config *c, int64_t head_dim)
{
    int64_t heads = tke_key_i64(k, "num_attention_heads", -1);
    if (!tke_keys_size(k, "num_attention_heads", heads, MAX_HEADS))
        return false;
    int64_t kv_heads = tke_key_i64(k, "num_key_value_heads", heads);
    int64_t d = tke_key_i64(k, "head_dim", head_dim ? head_dim : (int64_t)c->hidden / heads);
    if (!tke_keys_size(k, "num_key_value_heads", kv_heads, heads) ||
        !tke_keys_size(k, "head_dim", d, TKE_MAX_HEAD_DIM))
        return false;
    if (heads % kv_heads)
        return tke_keys_bad(k, "num_attention_heads is not a multiple of num_key_value_heads");
    if (heads / kv_heads > TKE_MAX_HEAD_GROUP)
        return tke_keys_bad(k, "num_attention_heads is too many times num_key_value_heads");
    if (d % 2)
        return tke_keys_bad(k, "head_dim is odd");
    c->n_heads = (size_t)heads;
    c->n_kv_heads = (size_t)kv_heads;
    c->head_dim = (size_t)d;
    return true;
}

bool tke_config_eps(const tke_config_keys *k, tke_config *c, const char *key, double otherwise)
{
    c->rms_eps = tke_key_double(k, key, otherwise);
    if (!(c->rms_eps > 0 && c->rms_eps < 1))
        return tkc_fail(k->err, TINKC_E_MODEL, "%s: %s must be above 0 and below 1", k->what, key);
    return true;
}

bool tke_config_layer_types(const tke_config_keys *k, tke_config *c)
{
    tinkc_str *types = tkc_arena_array(k->arena, c->n_layers, sizeof *types, k->err);
    int64_t n = types ? tke_key_strings(k, "layer_types", types, c->n_layers) : -1;
    if (n < 0)
        return !tkc_failed(k->err);
    if (n != (int64_t)c->n_layers)
        return tke_keys_bad(k, "layer_types has the wrong length");
    c->layer_slides = tkc_arena_array(k->arena, c->n_layers, sizeof *c->layer_slides, k->err);
    for (size_t i = 0; c->layer_slides && i < c->n_layers; i++) {
        c->layer_slides[i] = tkc_str_is(types[i], "sliding_attention");
        if (!c->layer_slides[i] && !tkc_str_is(types[i], "full_attention"))
            return tke_keys_refuse(k, "layer type", types[i]);
    }
    return c->layer_slides != NULL;
}

bool tke_config_window(const tke_config_keys *k, tke_config *c)
{
    int64_t window = tke_key_i64(k, "sliding_window", -1);
    int64_t first = tke_key_i64(k, "max_window_layers", 0);
    if (!tke_key_bool(k, "use_sliding_window", false) || window <= 0)
        return !tkc_failed(k->err);
    c->window = (size_t)window;
    c->first_window_layer = first < 0 ? 0 : (size_t)first;
    return tke_config_layer_types(k, c);
}

bool tke_config_experts(const tke_config_keys *k, size_t *n, size_t *top)
{
    int64_t local = tke_key_i64(k, "num_local_experts", -1);
    int64_t experts = tke_key_i64(k, "num_experts", local);
    int64_t chosen = tke_key_i64(k, "num_experts_per_tok", tke_key_i64(k, "experts_per_token", -1));
    if (local >= 0 && local != experts)
        return tke_keys_bad(k, "num_experts and num_local_experts differ");
    if (!tke_keys_size(k, "num_experts", experts, TKE_MAX_EXPERTS) ||
        !tke_keys_size(k, "num_experts_per_tok", chosen,
                       experts < TKE_MAX_TOP ? experts : TKE_MAX_TOP))
        return false;
    *n = (size_t)experts;
    *top = (size_t)chosen;
    return true;
}

/* ---- rope ---- */

/* How much of a head rotates: beside the other keys, or among them. */
static bool read_rotary(const tke_config_keys *k, const tke_config_keys *rope, tke_config *c)
{
    double otherwise = c->rotary ? (double)c->rotary / (double)c->head_dim : 1;
    double part = tke_key_double(k, "partial_rotary_factor", otherwise);
    part = tke_key_double(rope, "partial_rotary_factor", part);
    if (!(part > 0 && part <= 1))
        return tke_keys_bad(k, "partial_rotary_factor must be above 0 and at most 1");
    c->rotary = (size_t)((double)c->head_dim * part);
    if (c->rotary == 0 || c->rotary % 2)
        return tke_keys_bad(k, "the part of a head that rotates must be even and above 0");
    return !tkc_failed(k->err);
}

/* The keys of the scaling, from rope_parameters (new) or rope_scaling (old). */
static bool read_rope(const tke_config_keys *k, tke_config *c, tinkc_str *type)
{
    tke_config_keys rope;
    c->rope_theta = tke_key_double(k, "rope_theta", c->rope_theta);
    if (!tke_keys_inside(k, "rope_parameters", &rope))
        tke_keys_inside(k, "rope_scaling", &rope);
    *type = tke_key_str(&rope, "rope_type");
    if (!type->data)
        *type = tke_key_str(&rope, "type");
    c->rope_theta = tke_key_double(&rope, "rope_theta", c->rope_theta);
    c->rope_factor = tke_key_double(&rope, "factor", 0);
    c->rope_low = tke_key_double(&rope, "low_freq_factor", 0);
    c->rope_high = tke_key_double(&rope, "high_freq_factor", 0);
    c->rope_original = tke_key_double(&rope, "original_max_position_embeddings", 0);
    c->rope_beta_fast = tke_key_double(&rope, "beta_fast", 32);
    c->rope_beta_slow = tke_key_double(&rope, "beta_slow", 1);
    c->rope_attention = tke_key_double(&rope, "attention_factor", 0);
    c->rope_exact = !tke_key_bool(&rope, "truncate", true);
    if (tke_key_double(&rope, "mscale", 0) != 0 || tke_key_double(&rope, "mscale_all_dim", 0) != 0)
        return tke_keys_refuse(k, "feature", tkc_str("rope_scaling: mscale"));
    return !tkc_failed(k->err) && read_rotary(k, &rope, c);
}

static bool check_scaling(const tke_config_keys *k, tke_config *c)
{
    if (c->rope != TKE_ROPE_DEFAULT && !(c->rope_factor >= 1 && isfinite(c->rope_factor)))
        return tke_keys_bad(k, "rope_scaling: factor must be at least 1");
    if (c->rope == TKE_ROPE_LLAMA3 &&
        !(c->rope_low > 0 && c->rope_high > c->rope_low && isfinite(c->rope_high)))
        return tke_keys_bad(k, "rope_scaling: low_freq_factor must be above 0 and below "
                               "high_freq_factor");
    if ((c->rope == TKE_ROPE_LLAMA3 || c->rope == TKE_ROPE_YARN) &&
        !(c->rope_original >= 1 && c->rope_original < (double)MAX_CONTEXT))
        return tke_keys_bad(k, "rope_scaling: original_max_position_embeddings is out of range");
    if (c->rope == TKE_ROPE_YARN && !(c->rope_beta_fast > 0 && c->rope_beta_slow > 0 &&
                                      c->rope_attention >= 0 && isfinite(c->rope_beta_fast) &&
                                      isfinite(c->rope_beta_slow) && isfinite(c->rope_attention)))
        return tke_keys_bad(k, "rope_scaling (yarn): beta_fast and beta_slow must be above 0, "
                               "attention_factor at least 0");
    return true;
}

bool tke_config_rope(const tke_config_keys *k, tke_config *c, double theta)
{
    static const char *const types[] = { "default", "linear", "llama3", "yarn" }; /* TKE_ROPE_* */
    tinkc_str type;
    assert(c->head_dim); /* heads were read before */
    c->rope_theta = theta;
    if (!read_rope(k, c, &type))
        return false;
    while (type.data && c->rope <= TKE_ROPE_YARN && !tkc_str_is(type, types[c->rope]))
        c->rope++;
    if (c->rope > TKE_ROPE_YARN)
        return tke_keys_refuse(k, "rope type", type);
    if (!(c->rope_theta > 1) || !isfinite(c->rope_theta))
        return tke_keys_bad(k, "rope_theta must be above 1");
    if (c->rope == TKE_ROPE_YARN && c->rope_original == 0)
        c->rope_original = (double)c->context;
    return check_scaling(k, c);
}

/* ---- the file ---- */

static bool choose_family(const tke_config_keys *k, tke_config *c)
{
    tinkc_str name = { 0 };
    if (tke_key_strings(k, "architectures", &name, 1) < 1 || !name.data)
        name = tke_key_str(k, "model_type");
    c->family = tke_family_find(name);
    if (!c->family)
        return tkc_fail(k->err, TINKC_E_UNSUPPORTED,
                        "%s: architecture '%.*s' is not supported; supported are %s", k->what,
                        (int)(name.len < 60 ? name.len : 60), name.data ? name.data : "",
                        tke_family_list());
    c->arch = c->family->arch;
    return true;
}

/* One id or a list. */
static void read_eos(const tke_config_keys *k, tke_config *c)
{
    int64_t ids[TKE_MAX_EOS] = { 0 }, n = tke_key_integers(k, "eos_token_id", ids, TKE_MAX_EOS);
    if (n < 0) {
        ids[0] = tke_key_i64(k, "eos_token_id", -1);
        n = 1;
    }
    c->n_eos = 0;
    for (int64_t i = 0; i < n && i < TKE_MAX_EOS; i++)
        if (ids[i] >= 0 && ids[i] <= INT32_MAX)
            c->eos[c->n_eos++] = (int32_t)ids[i];
}

/* Published folders have a bare Infinity, which is not JSON. It becomes null, at the same place. */
static tinkc_str without_infinity(tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    static const char word[] = "Infinity", instead[] = "null    ";
    char *copy = tkc_arena_str(arena, text, err);
    bool quoted = false;
    for (size_t i = 0; copy && i < text.len; i++) {
        if (quoted && copy[i] == '\\')
            i++;
        else if (copy[i] == '"')
            quoted = !quoted;
        else if (!quoted && text.len - i >= sizeof word - 1 &&
                 memcmp(copy + i, word, sizeof word - 1) == 0)
            memcpy(copy + i, instead, sizeof word - 1);
    }
    return copy ? tkc_strn(copy, text.len) : text;
}

bool tke_config_parse(tke_config *c, tinkc_str config, tinkc_str generation, const char *what,
                      tkc_arena *arena, tinkc_error *err)
{
    tke_config_keys keys, nested;
    *c = (tke_config){ .prefix = "model." };
    config = without_infinity(config, arena, err);
    if (!tke_keys_read(&keys, config, what, arena, err) || !choose_family(&keys, c))
        return false;
    if (c->family->nested && tke_keys_inside(&keys, "text_config", &nested)) {
        c->prefix = "model.language_model.";
        c->tied = tke_key_bool(&keys, "tie_word_embeddings", false);
        keys = nested;
    }
    if (!tke_config_common(&keys, c) || !c->family->config(&keys, c))
        return false;
    read_eos(&keys, c);
    if (generation.len && tke_keys_read(&keys, generation, what, arena, err) &&
        tke_key_given(&keys, "eos_token_id"))
        read_eos(&keys, c);
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

/* ---- frequencies ---- */

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
    return (double)c->rotary * log(c->rope_original / (2 * M_PI * rotations)) /
           (2 * log(c->rope_theta));
}

static double yarn_frequency(const tke_config *c, size_t j, double f)
{
    double lo = yarn_dim(c, c->rope_beta_fast), hi = yarn_dim(c, c->rope_beta_slow);
    lo = fmax(c->rope_exact ? lo : floor(lo), 0);
    hi = fmin(c->rope_exact ? hi : ceil(hi), (double)c->rotary - 1);
    if (lo == hi)
        hi += 0.001;
    double ramp = fmin(fmax(((double)j - lo) / (hi - lo), 0), 1);
    return f / c->rope_factor * ramp + f * (1 - ramp);
}

void tke_rope_frequencies(const tke_config *c, double *out, double *scale)
{
    assert(c->rotary % 2 == 0 && (!c->rotary || c->rope_theta > 1));
    *scale = 1;
    if (c->rope == TKE_ROPE_YARN)
        *scale = c->rope_attention > 0 ? c->rope_attention : 0.1 * log(c->rope_factor) + 1;
    for (size_t j = 0; j < c->rotary / 2; j++) {
        double f = pow(c->rope_theta, -2.0 * (double)j / (double)c->rotary);
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
