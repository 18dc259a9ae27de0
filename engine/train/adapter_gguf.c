/* adapter_gguf.c - a model, with an adapter merged into it, as one GGUF file.
 *
 * Or the adapter alone, which llama.cpp adds to a file of the base. Names and shapes are llama.cpp's. Matrices get the requested type, norms and biases stay f32.
 * Llama's q and k are stored for llama.cpp's rotation of neighbouring pairs (not halves), so their
 * rows are permuted; Qwen's are not. May touch: the model's folder, the adapter, the target.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/str.h"
#include "math/format.h"
#include "model/family.h"
#include "model/gguf.h"
#include "model/gguf_model.h"
#include "train/adapter_export.h"

enum { NAME_LEN = 64 };

typedef struct entry { /* one tensor of the file */
    char name[NAME_LEN];
    const tke_weight *w;    /* a matrix, or */
    const tke_real *vector; /* a vector of `cols`, or `rows` of them; or */
    const tke_stack *stack; /* a matrix of each expert, and its adapter's path */
    const char *path;
    size_t n, step, first; /* experts; every step-th row or number from the first on is meant */
    size_t rows, cols;
    size_t heads; /* > 0: rows of each head are permuted */
    int type;
    const tke_file_tensor *a, *b; /* NULL = nothing to merge */
    tinkc_bytes raw; /* as it is stored in a base in GGUF; data NULL = none of these */
} entry;

typedef struct writer {
    tke_export *j;
    tke_model *model;
    tke_gguf file;
    int type;
    entry *entries;
    size_t n, cap;
    float *freqs; /* of llama 3's scaling, or NULL */
    tke_gguf_files base; /* of a base in GGUF: keys, types and most numbers are its own */
} writer;

enum { OWN_TYPES = -1 }; /* a type of the writer: each tensor's in the base */

static bool is_oss(const writer *w)
{
    return w->model->config.family == &tke_family_gpt_oss;
}

/* ---- the tensors ---- */

static entry *add(writer *w, const char *name)
{
    entry *grown = tkc_grow(NULL, w->entries, &w->cap, w->n + 1, sizeof *grown, w->j->err);
    if (!grown)
        return NULL;
    w->entries = grown;
    entry *e = &w->entries[w->n++];
    *e = (entry){ .type = TKE_GGUF_F32 };
    snprintf(e->name, sizeof e->name, "%s", name);
    return e;
}

static void add_vector(writer *w, const char *name, const tke_real *vector, size_t n, size_t heads)
{
    entry *e = vector ? add(w, name) : NULL;
    if (!e)
        return;
    e->vector = vector;
    e->cols = n;
    e->heads = heads;
}

/* f16 where rows are not whole blocks. */
static int type_of(const writer *w, size_t cols)
{
    bool blocks = w->type == TKE_GGUF_Q8_0 || w->type == TKE_GGUF_Q4_0;
    return blocks && cols % TKE_GGUF_BLOCK ? TKE_GGUF_F16 : w->type;
}

/* Embedding and output layer lose more by four bits than they take. */
static void spare(entry *e)
{
    if (e && e->type == TKE_GGUF_Q4_0)
        e->type = TKE_GGUF_Q8_0;
}

static entry *add_matrix(writer *w, const char *name, const tke_weight *m, size_t heads)
{
    entry *e = add(w, name);
    if (!e)
        return NULL;
    e->w = m;
    e->rows = m->out;
    e->cols = m->in;
    e->heads = heads;
    e->type = type_of(w, m->in);
    return e;
}

/* "blk.3.attn_q": weight, what the adapter adds to it, bias. */
static void add_layer_matrix(writer *w, size_t layer, const char *name, const tke_weight *m,
                             size_t heads)
{
    char full[NAME_LEN];
    snprintf(full, sizeof full, "blk.%zu.%s.weight", layer, name);
    entry *e = add_matrix(w, full, m, heads);
    if (e) {
        e->a = tke_export_part(w->j, m->path, "lora_A");
        e->b = tke_export_part(w->j, m->path, "lora_B");
    }
    snprintf(full, sizeof full, "blk.%zu.%s.bias", layer, name);
    add_vector(w, full, m->bias, m->out, heads);
}

/* One matrix of all experts, or of gates and ups in turn one of the two; with its biases. */
static void add_stack(writer *w, size_t layer, const char *name, const tke_stack *s,
                      const tke_group *g, size_t which, bool paired)
{
    char full[NAME_LEN];
    size_t rows = paired ? s->out / 2 : s->out;
    snprintf(full, sizeof full, "blk.%zu.%s.weight", layer, name);
    entry *e = add(w, full);
    if (!e)
        return;
    e->stack = s;
    e->path = g->w[which].path;
    e->n = g->n_experts;
    e->rows = rows;
    e->cols = s->in;
    e->step = paired ? 2 : 1;
    e->first = paired ? which : 0;
    e->type = type_of(w, s->in);
    e->a = tke_export_part(w->j, e->path, "lora_A");
    e->b = tke_export_part(w->j, e->path, "lora_B");
    snprintf(full, sizeof full, "blk.%zu.%s.bias", layer, name);
    entry *bias = s->bias ? add(w, full) : NULL;
    if (!bias)
        return;
    bias->vector = s->bias;
    bias->rows = g->n_experts;
    bias->cols = rows;
    bias->step = paired ? 2 : 1;
    bias->first = paired ? which : 0;
}

static void add_experts(writer *w, size_t i, const tke_experts *x)
{
    char full[NAME_LEN];
    snprintf(full, sizeof full, "blk.%zu.ffn_gate_inp.weight", i);
    entry *router = add_matrix(w, full, &x->router, 0);
    if (router)
        router->type = TKE_GGUF_F32;
    snprintf(full, sizeof full, "blk.%zu.ffn_gate_inp.bias", i);
    add_vector(w, full, x->router.bias, x->n, 0);
    add_stack(w, i, "ffn_gate_exps", &x->gate, x->gate_up, 0, x->paired);
    add_stack(w, i, "ffn_up_exps", x->paired ? &x->gate : &x->up, x->gate_up, 1, x->paired);
    add_stack(w, i, "ffn_down_exps", &x->out, x->down, 0, false);
}

static void add_norm(writer *w, size_t layer, const char *name, const tke_real *norm, size_t n)
{
    char full[NAME_LEN];
    snprintf(full, sizeof full, "blk.%zu.%s.weight", layer, name);
    add_vector(w, full, norm, n, 0);
}

static void add_layer(writer *w, size_t i)
{
    const tke_layer *l = &w->model->layers[i];
    const tke_config *c = &w->model->config;
    const tke_attn *a = l->attn;
    const tke_dense *d = l->dense;
    bool permuted = c->family->gguf_pairs;
    add_norm(w, i, "attn_norm", l->mixer_norm, c->hidden);
    add_layer_matrix(w, i, "attn_q", &a->qkv->w[0], permuted ? c->n_heads : 0);
    add_layer_matrix(w, i, "attn_k", &a->qkv->w[1], permuted ? c->n_kv_heads : 0);
    add_layer_matrix(w, i, "attn_v", &a->qkv->w[2], 0);
    add_norm(w, i, "attn_q_norm", a->q_norm, c->head_dim);
    add_norm(w, i, "attn_k_norm", a->k_norm, c->head_dim);
    add_layer_matrix(w, i, "attn_output", &a->o->w[0], 0);
    add_norm(w, i, "attn_sinks", a->sinks, c->n_heads);
    add_norm(w, i, is_oss(w) ? "post_attention_norm" : "ffn_norm", l->feed_norm, c->hidden);
    if (l->experts) {
        add_experts(w, i, l->experts);
        return;
    }
    add_layer_matrix(w, i, "ffn_gate", &d->gate_up->w[0], 0);
    add_layer_matrix(w, i, "ffn_up", &d->gate_up->w[1], 0);
    add_layer_matrix(w, i, "ffn_down", &d->down->w[0], 0);
}

/* llama.cpp divides the plain frequencies by these. */
static void add_frequencies(writer *w)
{
    const tke_config *c = &w->model->config;
    size_t n = c->head_dim / 2;
    if (c->rope != TKE_ROPE_LLAMA3)
        return;
    w->freqs = tkc_arena_array(&w->j->arena, n, sizeof *w->freqs, w->j->err);
    for (size_t i = 0; w->freqs && i < n; i++)
        w->freqs[i] = (float)(pow(c->rope_theta, -2.0 * (double)i / (double)c->head_dim) /
                              w->model->rope_frequency[i]);
    add_vector(w, "rope_freqs.weight", w->freqs, n, 0);
}

static void gather(writer *w)
{
    const tke_config *c = &w->model->config;
    bool trained = w->j->adapter.n_tensors && tke_export_head(w->j, "lora_A");
    spare(add_matrix(w, "token_embd.weight", &w->model->embed, 0));
    add_frequencies(w);
    for (size_t i = 0; i < c->n_layers && !tkc_failed(w->j->err); i++)
        add_layer(w, i);
    add_vector(w, "output_norm.weight", w->model->norm, c->hidden, 0);
    if (c->tied && !trained && !is_oss(w))
        return; /* readers use the embedding */
    entry *e = add_matrix(w, "output.weight", &w->model->head.w[0], 0);
    spare(e);
    if (e && trained) {
        e->a = tke_export_head(w->j, "lora_A");
        e->b = tke_export_head(w->j, "lora_B");
    }
}

/* ---- a base in GGUF: its tensors in its order ---- */

static const entry *gathered(const writer *w, const char *name)
{
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->entries[i].name, name) == 0)
            return &w->entries[i];
    return NULL;
}

/* What is merged into a tensor of two bits' precision would be lost. */
static int own_type(uint32_t type)
{
    bool packs = !tke_is_packed(tke_format_dtype(tke_format_of_gguf(type))) ||
                 tke_format_of_gguf(type)->pack;
    return packs ? (int)type : TKE_GGUF_BF16;
}

static bool take_tensor(writer *w, const tkc_gguf *g, const tkc_gguf_tensor *t, entry *to)
{
    const entry *e = gathered(w, t->name);
    bool matrix = e && (e->w || e->stack), merged = e && e->a && e->b;
    if (t->n_dims > 3 || strlen(t->name) >= NAME_LEN)
        return tkc_fail(w->j->err, TINKC_E_UNSUPPORTED, "%s: tensor '%.100s' cannot be copied",
                        w->j->o->base_model, t->name);
    if (matrix && (merged || w->type != OWN_TYPES)) {
        *to = *e;
        to->type = w->type == OWN_TYPES ? own_type(t->type) : e->type;
        return true;
    }
    uint64_t rows = t->dims[1] * t->dims[2];
    size_t bytes = tke_format_bytes(tke_format_of_gguf(t->type), (size_t)t->dims[0]);
    *to = (entry){ .type = (int)t->type,
                   .n = t->n_dims > 2 ? (size_t)t->dims[2] : 0,
                   .rows = t->n_dims > 1 ? (size_t)t->dims[1] : 0,
                   .cols = (size_t)t->dims[0],
                   .raw = { g->data.data + t->offset, bytes * (size_t)rows } };
    snprintf(to->name, sizeof to->name, "%s", t->name);
    return true;
}

/* Replaces the list by the file's; an output layer that only the adapter has comes last. */
static bool take_base(writer *w)
{
    size_t n = 0, at = 0;
    for (size_t p = 0; p < w->base.n_parts; p++)
        n += w->base.parts[p].g.n_tensors;
    entry *list = tkc_arena_array(&w->j->arena, n + 1, sizeof *list, w->j->err);
    bool ok = list != NULL;
    for (size_t p = 0; p < w->base.n_parts; p++)
        for (size_t i = 0; ok && i < w->base.parts[p].g.n_tensors; i++)
            ok = take_tensor(w, &w->base.parts[p].g, &w->base.parts[p].g.tensors[i], &list[at++]);
    const entry *head = gathered(w, "output.weight");
    bool listed = false;
    for (size_t i = 0; i < at; i++)
        listed |= strcmp(list[i].name, "output.weight") == 0;
    if (ok && head && head->a && !listed) {
        const tkc_gguf_tensor *t = tkc_gguf_tensor_find(&w->base.parts[0].g, "token_embd.weight");
        list[at] = *head;
        list[at++].type = w->type != OWN_TYPES ? head->type : t ? own_type(t->type) : TKE_GGUF_F16;
    }
    tkc_release(NULL, w->entries, w->cap * sizeof *w->entries);
    w->entries = list;
    w->cap = 0; /* the arena's */
    w->n = at;
    return ok;
}

/* ---- keys ---- */

static uint64_t file_type(const writer *w)
{
    return w->type == TKE_GGUF_F32    ? 0
           : w->type == TKE_GGUF_F16  ? 1
           : w->type == TKE_GGUF_Q4_0 ? 2
           : w->type == TKE_GGUF_Q8_0 ? 7
                                      : 32;
}

/* The base's own, but for how it was divided into parts. */
static void copy_keys(writer *w)
{
    const tkc_gguf *g = &w->base.parts[0].g;
    const tkc_map_entry *e;
    bool own = w->type == OWN_TYPES;
    for (size_t at = 0; (e = tkc_map_next(&g->keys, &at));) {
        bool type = strcmp(e->key, "general.file_type") == 0;
        if (!strncmp(e->key, "split.", 6) || !strcmp(e->key, "general.alignment") || (type && !own))
            continue;
        tke_gguf_value(&w->file, e->key, e->value, w->j->err);
    }
    if (!own)
        tke_gguf_u32(&w->file, "general.file_type", file_type(w), w->j->err);
}

static void number(writer *w, const char *name, uint64_t value)
{
    char key[NAME_LEN];
    snprintf(key, sizeof key, "%s.%s", w->model->config.arch, name);
    tke_gguf_u32(&w->file, key, value, w->j->err);
}

static void real(writer *w, const char *name, double value)
{
    char key[NAME_LEN];
    snprintf(key, sizeof key, "%s.%s", w->model->config.arch, name);
    tke_gguf_f32(&w->file, key, value, w->j->err);
}

static bool write_rope(writer *w)
{
    char key[NAME_LEN];
    const tke_config *c = &w->model->config;
    real(w, "rope.freq_base", c->rope_theta);
    number(w, "rope.dimension_count", c->head_dim);
    if (c->rope != TKE_ROPE_LINEAR && c->rope != TKE_ROPE_YARN)
        return true;
    if (c->rope == TKE_ROPE_YARN &&
        (c->rope_beta_fast < 32 || c->rope_beta_fast > 32 || c->rope_beta_slow < 1 ||
         c->rope_beta_slow > 1 || c->rope_attention > 0))
        return tkc_fail(w->j->err, TINKC_E_UNSUPPORTED,
                        "%s: rope_scaling (yarn) with attention_factor or betas of its own has no "
                        "GGUF form",
                        w->j->o->base_model);
    snprintf(key, sizeof key, "%s.rope.scaling.type", c->arch);
    tke_gguf_str(&w->file, key, tkc_str(c->rope == TKE_ROPE_YARN ? "yarn" : "linear"), w->j->err);
    real(w, "rope.scaling.factor", c->rope_factor);
    if (c->rope == TKE_ROPE_YARN)
        number(w, "rope.scaling.original_context_length", (uint64_t)c->rope_original);
    return true;
}

/* The folder's last part; a snapshot in the hub's cache is called by a commit, which says
 * nothing. */
static tinkc_str model_name(const char *folder)
{
    tinkc_str s = tkc_str(folder);
    while (s.len && s.data[s.len - 1] == '/')
        s.len--;
    size_t from = s.len;
    while (from && s.data[from - 1] != '/')
        from--;
    return tkc_strn(s.data + from, s.len - from);
}

static bool write_keys(writer *w)
{
    const tke_config *c = &w->model->config;
    tinkc_error *err = w->j->err;
    if (w->base.n_parts) {
        copy_keys(w);
        return !tkc_failed(err);
    }
    tke_gguf_str(&w->file, "general.architecture", tkc_str(c->arch), err);
    tke_gguf_str(&w->file, "general.type", tkc_str("model"), err);
    tke_gguf_str(&w->file, "general.name", model_name(w->j->o->base_model), err);
    tke_gguf_u32(&w->file, "general.file_type", file_type(w), err);
    tke_gguf_u32(&w->file, "general.quantization_version", 2, err);
    number(w, "block_count", c->n_layers);
    number(w, "context_length", c->context);
    number(w, "embedding_length", c->hidden);
    const tke_experts *x = w->model->layers[0].experts;
    number(w, "feed_forward_length", c->inner ? c->inner : x->inner);
    if (x) {
        number(w, "expert_count", x->n);
        number(w, "expert_used_count", x->top);
        number(w, "expert_feed_forward_length", x->inner);
    }
    if (c->window)
        number(w, "attention.sliding_window", c->window);
    number(w, "attention.head_count", c->n_heads);
    number(w, "attention.head_count_kv", c->n_kv_heads);
    number(w, "attention.key_length", c->head_dim);
    number(w, "attention.value_length", c->head_dim);
    number(w, "vocab_size", c->vocab);
    real(w, "attention.layer_norm_rms_epsilon", c->rms_eps);
    return write_rope(w) && tke_gguf_vocab(&w->file, w->j->o->base_model, c, &w->j->arena, err);
}

/* ---- numbers ---- */

/* The model's row for row i of the file: pairs (i, i + d/2) become neighbours. */
static size_t source_row(const entry *e, size_t i, size_t n)
{
    if (!e->heads)
        return i;
    size_t d = n / e->heads, head = i / d, at = i % d;
    return head * d + at % 2 * (d / 2) + at / 2;
}

static bool write_vector(writer *w, const entry *e)
{
    float *row = tkc_alloc(NULL, e->cols * sizeof *row, w->j->err);
    size_t rows = e->rows ? e->rows : 1, step = e->step ? e->step : 1;
    bool ok = row != NULL;
    for (size_t r = 0; ok && r < rows; r++) {
        for (size_t i = 0; i < e->cols; i++)
            row[i] =
                (float)e->vector[r * e->cols * step + e->first + step * source_row(e, i, e->cols)];
        ok = tke_gguf_row(&w->file, TKE_GGUF_F32, row, e->cols, e->name, w->j->err);
    }
    tkc_release(NULL, row, e->cols * sizeof *row);
    return ok;
}

static bool write_matrix(writer *w, const entry *e)
{
    tke_merge m = { 0 };
    const tke_matrix *from = &e->w->m;
    float *row = tkc_alloc(NULL, e->cols * sizeof *row, w->j->err);
    bool merge = e->a && e->b;
    bool ok =
        row && (!merge || tke_merge_begin(&m, w->j, e->w->path, e->rows, e->cols, e->a, e->b, 0));
    for (size_t i = 0; ok && i < e->rows; i++) {
        size_t at = source_row(e, i, e->rows);
        tke_matrix_row(from, (int64_t)at, 0, (int64_t)e->cols, row);
        if (merge)
            tke_merge_row(&m, at, row);
        ok = tke_gguf_row(&w->file, e->type, row, e->cols, e->name, w->j->err);
    }
    if (merge)
        tke_merge_end(&m);
    tkc_release(NULL, row, e->cols * sizeof *row);
    return ok;
}

/* Row `at` of an expert's matrix, however it is stored. */
static void stack_row(const tke_stack *s, size_t expert, size_t at, float *row)
{
    const tke_matrix *m = &s->m[expert];
    size_t size = tke_dtype_size(m->dtype), ld = (size_t)m->ld;
    const unsigned char *data = m->data;
    if (!s->transposed)
        tke_matrix_row(m, (int64_t)at, 0, (int64_t)s->in, row);
    for (size_t i = 0; s->transposed && i < s->in; i++)
        tke_widen(m->dtype, data + (i * ld + at) * size, 1, row + i);
}

static bool write_expert(writer *w, const entry *e, size_t expert, float *row)
{
    tke_merge m = { 0 };
    bool merge = e->a && e->b;
    bool ok = !merge || tke_merge_begin(&m, w->j, e->path, e->rows, e->cols, e->a, e->b, expert);
    for (size_t i = 0; ok && i < e->rows; i++) {
        stack_row(e->stack, expert, e->first + i * e->step, row);
        if (merge)
            tke_merge_row(&m, i, row);
        ok = tke_gguf_row(&w->file, e->type, row, e->cols, e->name, w->j->err);
    }
    if (merge)
        tke_merge_end(&m);
    return ok;
}

static bool write_stack(writer *w, const entry *e)
{
    float *row = tkc_alloc(NULL, e->cols * sizeof *row, w->j->err);
    bool ok = row != NULL;
    for (size_t x = 0; ok && x < e->n; x++)
        ok = write_expert(w, e, x, row);
    tkc_release(NULL, row, e->cols * sizeof *row);
    return ok;
}

static bool write_all(writer *w)
{
    tke_export *j = w->j;
    for (size_t i = 0; i < w->n; i++) {
        const entry *e = &w->entries[i];
        tke_gguf_tensor(&w->file, e->name, e->type, e->n, e->rows, e->cols, j->err);
    }
    j->total = (int64_t)w->file.data_bytes;
    bool ok = !tkc_failed(j->err) && tke_gguf_open(&w->file, j->o->target, &j->arena, j->err);
    for (size_t i = 0; ok && i < w->n; i++) {
        const entry *e = &w->entries[i];
        ok = e->raw.data ? tke_gguf_raw(&w->file, e->raw.data, e->raw.len, j->err)
             : e->w      ? write_matrix(w, e)
             : e->stack  ? write_stack(w, e)
                         : write_vector(w, e);
        size_t bytes = (size_t)w->file.written;
        ok = ok && tke_gguf_pad(&w->file, j->err) && tke_export_advance(j, bytes);
    }
    return ok && tke_gguf_close(&w->file, j->err);
}

static bool no_form(const writer *w, const char *what)
{
    return tkc_fail(w->j->err, TINKC_E_UNSUPPORTED,
                    "%s: %s has no GGUF form for %s models; export "
                    "to a Hugging Face folder instead",
                    w->j->o->base_model, what, w->model->config.arch);
}

/* ---- the adapter alone: NAME.lora_a [rank, in] and NAME.lora_b [out, rank] for each of its matrices ---- */

static void factor_name(const entry *e, bool b, char out[NAME_LEN + 8])
{
    snprintf(out, NAME_LEN + 8, "%s.lora_%c", e->name, b ? 'b' : 'a');
}

/* Rows of A as they are, of B in the order of the matrix's. */
static bool write_factor(writer *w, const entry *e, bool b)
{
    const tke_file_tensor *t = b ? e->b : e->a;
    size_t rank = (size_t)w->j->spec.rank, rows = b ? e->rows : rank, cols = b ? rank : e->cols;
    char name[NAME_LEN + 8];
    float *row = tkc_alloc(NULL, cols * sizeof *row, w->j->err);
    bool ok = row != NULL;
    factor_name(e, b, name);
    for (size_t i = 0; ok && i < rows; i++) {
        size_t at = b ? source_row(e, i, rows) : i;
        tke_widen((tke_dtype)t->dtype, t->data + at * cols * tke_file_dtype_size(t->dtype), cols,
                  row);
        ok = tke_gguf_row(&w->file, type_of(w, cols), row, cols, name, w->j->err);
    }
    tkc_release(NULL, row, cols * sizeof *row);
    size_t bytes = (size_t)w->file.written;
    return ok && tke_gguf_pad(&w->file, w->j->err) && tke_export_advance(w->j, bytes);
}

/* Only what the adapter has is kept; a matrix that a file of the base model lacks is refused. */
static bool keep_adapted(writer *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n; i++) {
        const entry *e = &w->entries[i];
        bool head = strcmp(e->name, "output.weight") == 0;
        if (!e->a || !e->b || (head && w->j->o->drop_unembed))
            continue;
        if (e->n)
            return no_form(w, "an adapter of experts alone");
        if (head && w->model->config.tied && !is_oss(w))
            return tkc_fail(w->j->err, TINKC_E_UNSUPPORTED,
                            "%s: it has an output layer, which files of this model do not have beside "
                            "the embedding: leave it out (drop_unembed), or merge it",
                            w->j->o->adapter);
        w->entries[n++] = *e;
    }
    w->n = n;
    return n > 0 || tkc_fail(w->j->err, TINKC_E_UNSUPPORTED, "%s: nothing is left of it",
                             w->j->o->adapter);
}

static bool write_adapter(writer *w)
{
    tke_export *j = w->j;
    char name[NAME_LEN + 8];
    size_t rank = (size_t)j->spec.rank;
    tke_gguf_str(&w->file, "general.architecture", tkc_str(w->model->config.arch), j->err);
    tke_gguf_str(&w->file, "general.type", tkc_str("adapter"), j->err);
    tke_gguf_str(&w->file, "adapter.type", tkc_str("lora"), j->err);
    tke_gguf_f32(&w->file, "adapter.lora.alpha", j->spec.alpha, j->err);
    for (size_t i = 0; i < 2 * w->n; i++) {
        const entry *e = &w->entries[i / 2];
        bool b = i % 2;
        factor_name(e, b, name);
        tke_gguf_tensor(&w->file, name, type_of(w, b ? rank : e->cols), 0, b ? e->rows : rank,
                        b ? rank : e->cols, j->err);
    }
    j->total = (int64_t)w->file.data_bytes;
    bool ok = !tkc_failed(j->err) && tke_gguf_open(&w->file, j->o->target, &j->arena, j->err);
    for (size_t i = 0; ok && i < 2 * w->n; i++)
        ok = write_factor(w, &w->entries[i / 2], i % 2);
    return ok && tke_gguf_close(&w->file, j->err);
}

/* ---- the call ---- */

static bool choose_type(writer *w)
{
    static const struct {
        const char *name;
        int type;
    } types[] = { { "f16", TKE_GGUF_F16 },
                  { "bf16", TKE_GGUF_BF16 },
                  { "q8_0", TKE_GGUF_Q8_0 },
                  { "q4_0", TKE_GGUF_Q4_0 },
                  { "f32", TKE_GGUF_F32 } };
    const char *asked = w->j->o->gguf_type;
    bool can_own = w->base.n_parts && w->j->o->format != TINKC_ADAPTER_GGUF_LORA;
    asked = asked ? asked : can_own ? "base" : "f16";
    if (strcmp(asked, "base") == 0 && can_own) {
        w->type = OWN_TYPES;
        return true;
    }
    if (strcmp(asked, "base") == 0)
        return tkc_fail(w->j->err, TINKC_E_ARGUMENT,
                        "gguf_type \"base\" is for merging into a base in a GGUF file");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(asked, types[i].name) == 0) {
            w->type = types[i].type;
            return true;
        }
    return tkc_fail(w->j->err, TINKC_E_ARGUMENT,
                    "gguf_type \"%.20s\" is none of base, f16, bf16, q8_0, q4_0, f32", asked);
}

/* llama.cpp knows one form of gpt-oss: windows in even layers, clamps at 7. */
static bool check_oss(const writer *w)
{
    const tke_config *c = &w->model->config;
    for (size_t i = 0; i < c->n_layers; i++) {
        const tke_layer *l = &w->model->layers[i];
        if ((l->attn->window > 0) != (i % 2 == 0))
            return no_form(w, "a sliding window in other layers than the even ones");
        if (fabs(l->experts->limit - 7) > 0 || fabs(l->experts->alpha - 1.702) > 0)
            return no_form(w, "swiglu_limit or swiglu_alpha");
    }
    return c->bias_qkv || no_form(w, "attention_bias: false");
}

static bool check_model(const writer *w)
{
    const tke_config *c = &w->model->config;
    bool oss = is_oss(w);
    if (c->window && !oss)
        return no_form(w, "a sliding window");
    for (size_t i = 0; i < c->n_layers; i++) {
        const tke_layer *l = &w->model->layers[i];
        bool experts = l->experts && (oss || c->family == &tke_family_qwen3_moe);
        if (!l->attn || l->attn->gate || (!l->dense && !experts))
            return tkc_fail(w->j->err, TINKC_E_UNSUPPORTED,
                            "%s: GGUF files of %s models cannot be written yet; export to a "
                            "Hugging Face folder instead",
                            w->j->o->base_model, c->arch);
        if ((l->experts != NULL) != (w->model->layers[0].experts != NULL))
            return no_form(w, "a layer without experts");
        if (l->experts && l->experts->route != TKE_ROUTE_CHOSEN)
            return no_form(w, "norm_topk_prob: false");
    }
    return !oss || check_oss(w);
}

bool tke_export_gguf(tke_export *j)
{
    writer w = { .j = j, .model = j->base };
    const char *base = j->base->folder;
    tke_gguf_init(&w.file);
    bool ok = (tkc_is_dir(base) || tke_gguf_files_open(&w.base, base, &j->arena, j->err)) &&
              choose_type(&w) && check_model(&w);
    if (ok)
        gather(&w);
    ok = ok && !tkc_failed(j->err);
    if (j->o->format == TINKC_ADAPTER_GGUF_LORA)
        ok = ok && keep_adapted(&w) && write_adapter(&w);
    else
        ok = ok && (!w.base.n_parts || take_base(&w)) && write_keys(&w) && write_all(&w);
    tke_gguf_end(&w.file);
    tke_gguf_files_close(&w.base);
    if (w.cap)
        tkc_release(NULL, w.entries, w.cap * sizeof *w.entries);
    return ok;
}
