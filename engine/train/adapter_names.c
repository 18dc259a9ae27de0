/* adapter_names.c - the forms that adapters have in files. May touch: lists of tensors and their arenas. */
#include "train/adapter_names.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "model/family.h"

static const char ours[] = "base_model.model.";
enum { PATH_LEN = 200, AB_LEN = sizeof ".lora_A.weight" - 1 };

/* ---- names ---- */

typedef struct name_parts { /* a tensor's name in parts */
    tinkc_str path;         /* of the matrix */
    char ab;                /* 'A', 'B'; 0 = not a tensor of an adapter */
} name_parts;

static name_parts parse(const char *text)
{
    tinkc_str s = tkc_str(text);
    bool a = tkc_ends_with(s, ".lora_A.weight"), b = tkc_ends_with(s, ".lora_B.weight");
    if (strncmp(text, ours, sizeof ours - 1) != 0 || s.len < sizeof ours - 1 + AB_LEN || !(a || b))
        return (name_parts){ 0 };
    return (name_parts){ tkc_strn(text + sizeof ours - 1, s.len - (sizeof ours - 1) - AB_LEN),
                         a ? 'A' : 'B' };
}

tinkc_str tke_names_leaf(const char *text)
{
    tinkc_str path = parse(text).path;
    size_t at = path.len;
    while (at && path.data[at - 1] != '.')
        at--;
    return tkc_strn(path.data + at, path.len - at);
}

static char *full_name(tkc_arena *arena, const char *path, char ab, tinkc_error *err)
{
    return tkc_arena_printf(arena, err, "%s%s.lora_%c.weight", ours, path, ab);
}

/* The path with `old` at `at` replaced. */
static char *replaced(tkc_arena *arena, const char *path, const char *at, size_t old,
                      const char *instead, tinkc_error *err)
{
    return tkc_arena_printf(arena, err, "%.*s%s%s", (int)(at - path), path, instead, at + old);
}

/* Another spelling of a matrix's path -> the model's. */
static const char *our_path(tkc_arena *arena, const char *path, tinkc_error *err)
{
    static const char nested[] = "model.language_model.", published[] = "backbone.";
    const char *attn;
    if (strcmp(path, "model.unembed_tokens") == 0 || strcmp(path, "model.embed_tokens") == 0 ||
        strcmp(path, "model.language_model.embed_tokens") == 0)
        return "lm_head";
    if (strncmp(path, nested, sizeof nested - 1) == 0)
        path = replaced(arena, path, path, sizeof nested - 1, "model.", err);
    else if (strncmp(path, published, sizeof published - 1) == 0)
        path = replaced(arena, path, path, sizeof published - 1, "model.", err);
    attn = path ? strstr(path, ".attn.") : NULL;
    return attn ? replaced(arena, path, attn, 6, ".self_attn.", err) : path;
}

/* Matrices that are not adapted here, and PEFT's form for parameters of three dimensions. */
static bool refuse_path(const char *path, const char *file, tinkc_error *err)
{
    static const char *const leaves[] = {
        ".in_proj_a", ".in_proj_b", ".in_proj_qkvz", ".in_proj_ba",         ".gate",
        ".router",    ".conv1d",    ".experts",      ".experts.base_layer", ".shared_expert_gate"
    };
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++)
        if (tkc_ends_with(tkc_str(path), leaves[i]))
            return tkc_fail(err, TINKC_E_UNSUPPORTED, "%s: an adapter on '%.120s' is not supported",
                            file, path);
    return true;
}

static bool is_empty(const tke_file_tensor *t)
{
    return t->n_dims > 0 && t->n_bytes == 0;
}

/* ---- a list being made ---- */

typedef struct list {
    tke_file_tensor *at;
    size_t n, cap;
    tkc_arena *arena;
    tinkc_error *err;
} list;

static bool list_init(list *l, size_t cap, tkc_arena *arena, tinkc_error *err)
{
    *l = (list){ .cap = cap, .arena = arena, .err = err };
    l->at = tkc_arena_array(arena, cap + 1, sizeof *l->at, err);
    return l->at != NULL;
}

static void list_add(list *l, const tke_file_tensor *t, const char *path, char ab)
{
    assert(l->n < l->cap);
    l->at[l->n] = *t;
    l->at[l->n].name = full_name(l->arena, path, ab, l->err);
    l->n += l->at[l->n].name != NULL;
}

/* A matrix [rows, cols] with memory of its own, zeroed. */
static tke_file_tensor new_matrix(list *l, int32_t dtype, size_t rows, size_t cols)
{
    tke_file_tensor t = { .dtype = dtype, .n_dims = 2 };
    t.dims[0] = (int64_t)rows;
    t.dims[1] = (int64_t)cols;
    t.n_bytes = rows * cols * tke_file_dtype_size(dtype);
    unsigned char *data = tkc_arena_alloc(l->arena, t.n_bytes, l->err);
    if (data)
        memset(data, 0, t.n_bytes);
    t.data = data;
    return t;
}

/* Copies a block between matrices of one element type. */
static void copy_block(const tke_file_tensor *from, size_t row, size_t col, size_t rows,
                       size_t cols, const tke_file_tensor *to, size_t to_row, size_t to_col)
{
    size_t size = tke_file_dtype_size(from->dtype);
    for (size_t i = 0; to->data && i < rows; i++)
        memcpy((unsigned char *)(uintptr_t)to->data +
                   ((to_row + i) * (size_t)to->dims[1] + to_col) * size,
               from->data + ((row + i) * (size_t)from->dims[1] + col) * size, cols * size);
}

static bool is_zero(const tke_file_tensor *t, size_t row, size_t col, size_t rows, size_t cols)
{
    size_t size = tke_file_dtype_size(t->dtype);
    for (size_t i = row; i < row + rows; i++)
        for (size_t k = 0; k < cols * size; k++)
            if (t->data[(i * (size_t)t->dims[1] + col) * size + k])
                return false;
    return true;
}

/* ---- stacked matrices: parts of one, each with its rows ---- */

typedef struct stacked {
    const char *leaf; /* of the whole */
    size_t n;
    const char *parts[3];
} stacked;
static const stacked stacks[] = { { "in_proj_qkv", 3, { "in_proj_q", "in_proj_k", "in_proj_v" } },
                                  { "in_proj", 2, { "gate_proj", "x_proj" } } };

size_t tke_stacked_parts(tinkc_str leaf)
{
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        if (tkc_str_is(leaf, stacks[i].leaf))
            return stacks[i].n;
    return 0;
}

/* The model's matrix of that path. */
static const tke_weight *weight_of(const tke_model *m, const char *path)
{
    for (size_t i = 0; i < m->n_groups; i++)
        for (size_t k = 0; k < m->groups[i]->n; k++)
            if (strcmp(m->groups[i]->w[k].path, path) == 0)
                return &m->groups[i]->w[k];
    return NULL;
}

/* Rows of the whole: of its parts, and those that no adapter has. */
static size_t whole_rows(const tke_model *m, const char *path, const stacked *s, size_t rows[3])
{
    static const char *const others[] = { "in_proj_b", "in_proj_c", "in_proj_dt" };
    char part[PATH_LEN];
    size_t all = 0;
    int stem = (int)(strlen(path) - strlen(s->leaf));
    for (size_t i = 0; i < s->n; i++) {
        snprintf(part, sizeof part, "%.*s%s", stem, path, s->parts[i]);
        const tke_weight *w = weight_of(m, part);
        if (!w)
            return 0;
        all += rows[i] = w->out;
    }
    for (size_t i = 0; s->n == 2 && i < 3; i++) {
        snprintf(part, sizeof part, "%.*s%s", stem, path, others[i]);
        const tke_weight *w = weight_of(m, part);
        all += w ? w->out : 0;
    }
    return all;
}

static const stacked *stack_of(const char *path)
{
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        char dotted[32];
        snprintf(dotted, sizeof dotted, ".%s", stacks[i].leaf);
        if (tkc_ends_with(tkc_str(path), dotted))
            return &stacks[i];
    }
    return NULL;
}

size_t tke_names_pieces(const tke_model *m, const char *path, tke_piece out[TKE_MAX_PIECES])
{
    const stacked *s = stack_of(path);
    size_t rows[TKE_MAX_PIECES];
    if (!s || !whole_rows(m, path, s, rows))
        return 0;
    for (size_t i = 0; i < s->n; i++) {
        snprintf(out[i].path, sizeof out[i].path, "%.*s%s", (int)(strlen(path) - strlen(s->leaf)),
                 path, s->parts[i]);
        out[i].rows = rows[i];
    }
    return s->n;
}

/* B is zero outside of the blocks on its diagonal. */
static bool is_diagonal(const tke_file_tensor *b, const stacked *s, const size_t rows[3],
                        size_t rank)
{
    for (size_t i = 0, row = 0; i < s->n; row += rows[i++])
        for (size_t k = 0; k < s->n; k++)
            if (k != i && !is_zero(b, row, k * rank, rows[i], rank))
                return false;
    return true;
}

typedef struct factors { /* a stacked matrix's two factors */
    const char *path;
    const stacked *s;
    const tke_file_tensor *a, *b;
    size_t rows[3];
} factors;

/* Either each part has its own rank, or all have the whole A. */
static void split(list *l, const factors *w, size_t rank)
{
    size_t in = (size_t)w->a->dims[1];
    bool own = (size_t)w->a->dims[0] == w->s->n * rank;
    int stem = (int)(strlen(w->path) - strlen(w->s->leaf));
    for (size_t i = 0, row = 0; i < w->s->n && !tkc_failed(l->err); row += w->rows[i++]) {
        char part[PATH_LEN];
        snprintf(part, sizeof part, "%.*s%s", stem, w->path, w->s->parts[i]);
        tke_file_tensor a = new_matrix(l, w->a->dtype, rank, in);
        tke_file_tensor b = new_matrix(l, w->b->dtype, w->rows[i], rank);
        copy_block(w->a, own ? i * rank : 0, 0, rank, in, &a, 0, 0);
        copy_block(w->b, row, own ? i * rank : 0, w->rows[i], rank, &b, 0, 0);
        list_add(l, &a, part, 'A');
        list_add(l, &b, part, 'B');
    }
}

static bool check_whole(factors *w, const tke_model *m, size_t rank, const char *file,
                        tinkc_error *err)
{
    if (!m)
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "%s: '%s' is divided by its base model: name the model", file, w->path);
    size_t all = whole_rows(m, w->path, w->s, w->rows), parts = 0;
    size_t wide = (size_t)(w->a->n_dims == 2 ? w->a->dims[0] : 0);
    for (size_t i = 0; i < w->s->n; i++)
        parts += w->rows[i];
    if (!all || !w->b || w->b->n_dims != 2 || w->b->dims[0] != (int64_t)all ||
        w->b->dims[1] != (int64_t)wide || !wide || (wide != rank && wide != w->s->n * rank))
        return tkc_fail(err, TINKC_E_MODEL, "%s: '%s' does not fit the model or the rank", file,
                        w->path);
    if (!is_zero(w->b, parts, 0, all - parts, wide))
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "%s: '%s' changes rows of B, C or the time step, which have no adapters "
                        "here",
                        file, w->path);
    if (wide != rank && !is_diagonal(w->b, w->s, w->rows, rank))
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "%s: '%s' has %zu times the rank and shares it between its parts", file,
                        w->path, w->s->n);
    return true;
}

/* ---- experts ---- */

/* "mlp.experts.3.gate_proj": where the number begins, or NULL. */
static const char *expert_number(const char *path)
{
    const char *at = strstr(path, ".experts."), *end = at ? at + 9 : NULL;
    while (end && *end >= '0' && *end <= '9')
        end++;
    return end && end > at + 9 && *end == '.' ? at + 9 : NULL;
}

/* w1 is gate, w3 up; without a gate w1 is up. */
static const char *expert_leaf(const char *path, const char *leaf)
{
    bool gated = !strstr(path, ".mixer.");
    return strcmp(leaf, "down_proj") == 0            ? "w2"
           : strcmp(leaf, "gate_proj") == 0 && gated ? "w1"
           : strcmp(leaf, "up_proj") == 0            ? gated ? "w3" : "w1"
                                                     : NULL;
}

static bool same_shape(const tke_file_tensor *x, const tke_file_tensor *y)
{
    return x->n_dims == 2 && y->n_dims == 2 && x->dims[0] == y->dims[0] &&
           x->dims[1] == y->dims[1] && x->dtype == y->dtype;
}

/* All experts' factors, of which `path` names the first, as one of three dimensions. */
static bool fold(list *l, const tke_tensor_file *f, const char *path, char ab, const char *file,
                 size_t *used)
{
    const char *at = expert_number(path), *leaf = strchr(at, '.') + 1, *w = expert_leaf(path, leaf);
    int stem = (int)(at - path);
    const tke_file_tensor *first = NULL, *t;
    size_t n = 0;
    if (!w)
        return tkc_fail(l->err, TINKC_E_MODEL, "%s: '%s' is not a matrix of an expert", file, path);
    bool shared = (ab == 'B') == (strcmp(w, "w2") == 0);
    for (;; n++) {
        char *name = tkc_arena_printf(l->arena, l->err, "%s%.*s%zu.%s.lora_%c.weight", ours, stem,
                                      path, n, leaf, ab);
        t = name ? tke_tensor_file_find(f, name) : NULL;
        if (!t)
            break;
        first = n ? first : t;
        if (!same_shape(t, first))
            return tkc_fail(l->err, TINKC_E_MODEL, "%s: '%s' has another shape than expert 0", file,
                            t->name);
        if (shared && memcmp(t->data, first->data, t->n_bytes) != 0)
            return tkc_fail(l->err, TINKC_E_UNSUPPORTED,
                            "%s: '%s' differs from expert 0, but this factor is shared by all "
                            "experts of a layer here",
                            file, t->name);
    }
    if (!first)
        return !tkc_failed(l->err);
    size_t copies = shared ? 1 : n;
    tke_file_tensor out = *first;
    out.n_dims = 3;
    out.dims[2] = out.dims[1];
    out.dims[1] = out.dims[0];
    out.dims[0] = (int64_t)copies;
    out.n_bytes = copies * first->n_bytes;
    unsigned char *data = tkc_arena_alloc(l->arena, out.n_bytes, l->err);
    for (size_t e = 0; data && e < copies; e++) {
        char *name = tkc_arena_printf(l->arena, l->err, "%s%.*s%zu.%s.lora_%c.weight", ours, stem,
                                      path, e, leaf, ab);
        t = name ? tke_tensor_file_find(f, name) : NULL;
        if (t)
            memcpy(data + e * first->n_bytes, t->data, first->n_bytes);
    }
    out.data = data;
    char whole_path[PATH_LEN];
    snprintf(whole_path, sizeof whole_path, "%.*s%s", stem, path, w);
    list_add(l, &out, whole_path, ab);
    *used += n;
    return !tkc_failed(l->err);
}

/* ---- reading ---- */

/* A list takes the place of the file's. */
static bool replace_list(tke_tensor_file *f, const list *l, const char *file)
{
    tke_file_tensor *copy = tkc_alloc(NULL, (l->n + 1) * sizeof *copy, l->err);
    if (!copy)
        return false;
    memcpy(copy, l->at, l->n * sizeof *copy);
    tkc_release(NULL, f->tensors, 0);
    tkc_map_free(&f->names);
    tkc_map_init(&f->names, NULL);
    f->tensors = copy;
    f->n_tensors = l->n;
    for (size_t i = 0; i < l->n; i++) {
        tinkc_str key = tkc_str(copy[i].name);
        if (tkc_map_has(&f->names, key))
            return tkc_fail(l->err, TINKC_E_MODEL, "%s: '%.120s' is there under two names", file,
                            copy[i].name);
        if (!tkc_map_set(&f->names, key, &copy[i], NULL, l->err))
            return false;
    }
    return !tkc_failed(l->err);
}

static bool rename_all(tke_tensor_file *f, const char *file, bool *folds, tinkc_error *err)
{
    list l;
    if (!list_init(&l, f->n_tensors, &f->arena, err))
        return false;
    for (size_t i = 0; i < f->n_tensors && !tkc_failed(err); i++) {
        const tke_file_tensor *t = &f->tensors[i];
        name_parts parts = parse(t->name);
        if (!parts.ab) {
            l.at[l.n++] = *t;
            continue;
        }
        char *path = tkc_arena_str(&f->arena, parts.path, err);
        const char *mine = path ? our_path(&f->arena, path, err) : NULL;
        if (!mine || strlen(mine) >= PATH_LEN - 16 || !refuse_path(mine, file, err) || is_empty(t))
            continue;
        *folds = *folds || expert_number(mine) || stack_of(mine);
        list_add(&l, t, mine, parts.ab);
    }
    return !tkc_failed(err) && replace_list(f, &l, file);
}

/* Folds experts and splits stacked matrices. */
static bool regroup(tke_tensor_file *f, const tke_model *m, size_t rank, const char *file,
                    tinkc_error *err)
{
    list l;
    size_t indexed = 0, used = 0;
    if (!list_init(&l, 3 * f->n_tensors, &f->arena, err))
        return false;
    for (size_t i = 0; i < f->n_tensors && !tkc_failed(err); i++) {
        const tke_file_tensor *t = &f->tensors[i];
        name_parts parts = parse(t->name);
        char *path = parts.ab ? tkc_arena_str(&f->arena, parts.path, err) : NULL;
        const char *number = path ? expert_number(path) : NULL;
        factors w = { .path = path, .s = path ? stack_of(path) : NULL };
        if (number) {
            indexed++;
            if (strncmp(number, "0.", 2) == 0)
                fold(&l, f, path, parts.ab, file, &used);
        } else if (w.s && parts.ab == 'A') {
            char *other = full_name(&f->arena, path, 'B', err);
            w.a = t;
            w.b = other ? tke_tensor_file_find(f, other) : NULL;
            if (check_whole(&w, m, rank, file, err))
                split(&l, &w, rank);
        } else if (!w.s) {
            l.at[l.n++] = *t;
        }
    }
    if (!tkc_failed(err) && used != indexed)
        return tkc_fail(err, TINKC_E_MODEL, "%s: adapters of some experts are missing", file);
    return !tkc_failed(err) && replace_list(f, &l, file);
}

bool tke_names_read(tke_tensor_file *f, const tke_model *m, size_t rank, const char *path,
                    tinkc_error *err)
{
    bool folds = false;
    return rename_all(f, path, &folds, err) && (!folds || regroup(f, m, rank, path, err));
}

/* ---- writing ---- */

static bool has_arch(const tke_model *m, const tke_family *f)
{
    return m && m->config.family == f;
}

/* Hosted names; and of Nemotron's experts an empty w3. */
static void write_hosted(list *l, const tke_spelling *s, const tke_file_tensor *t, const char *path,
                         char ab)
{
    const char *attn = strstr(path, ".self_attn."), *w1 = strstr(path, ".mixer.experts.w1");
    if (strcmp(path, "lm_head") == 0)
        path = "model.unembed_tokens";
    else if (attn && has_arch(s->model, &tke_family_gpt_oss))
        path = replaced(l->arena, path, attn, sizeof ".self_attn." - 1, ".attn.", l->err);
    if (path)
        list_add(l, t, path, ab);
    const char *w3 =
        w1 ? replaced(l->arena, path, w1, strlen(w1), ".mixer.experts.w3", l->err) : NULL;
    if (w3)
        list_add(l, &(tke_file_tensor){ .dtype = t->dtype, .n_dims = 1, .data = t->data }, w3, ab);
}

/* PEFT's path: with the prefix of nested models. */
static const char *peft_path(list *l, const tke_spelling *s, const char *path)
{
    bool nested = s->model && strcmp(s->model->config.prefix, "model.language_model.") == 0;
    if (!nested || strncmp(path, "model.", 6) != 0)
        return path;
    return replaced(l->arena, path, path, 6, "model.language_model.", l->err);
}

/* Two dimensions for each expert; the shared factor is repeated. */
static void write_experts(list *l, const tke_file_tensor *t, const char *path, char ab, size_t n)
{
    const char *w = strrchr(path, '.') + 1;
    bool gated = !strstr(path, ".mixer.");
    const char *leaf = strcmp(w, "w2") == 0   ? "down_proj"
                       : strcmp(w, "w3") == 0 ? "up_proj"
                       : gated                ? "gate_proj"
                                              : "up_proj";
    tke_file_tensor one = *t;
    if (t->dims[0] != 1 && t->dims[0] != (int64_t)n) {
        tkc_fail(l->err, TINKC_E_MODEL, "'%s' has neither one factor nor one for each expert",
                 path);
        return;
    }
    one.n_dims = 2;
    one.dims[0] = t->dims[1];
    one.dims[1] = t->dims[2];
    one.n_bytes = t->n_bytes / (size_t)t->dims[0];
    for (size_t e = 0; e < n && !tkc_failed(l->err); e++) {
        char *of = tkc_arena_printf(l->arena, l->err, "%.*s%zu.%s", (int)(w - path), path, e, leaf);
        one.data = t->data + (t->dims[0] > 1 ? e : 0) * one.n_bytes;
        if (of)
            list_add(l, &one, of, ab);
    }
}

static const tke_file_tensor *find_in(const tke_file_tensor *all, size_t n, const char *name)
{
    for (size_t i = 0; name && i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

/* gate_proj and x_proj as parts of in_proj: A one above the other, B block-diagonal. */
static bool write_stacked(list *l, tke_spelling *s, const tke_file_tensor *all, size_t n,
                          const char *first)
{
    const stacked *of = &stacks[1];
    size_t rows[3], row = 0;
    int stem = (int)(strlen(first) - strlen(of->parts[0]));
    char *path = tkc_arena_printf(l->arena, l->err, "%.*s%s", stem, first, of->leaf);
    if (!path)
        return false;
    if (!s->model)
        return tkc_fail(l->err, TINKC_E_UNSUPPORTED,
                        "'%s' is a part of '%s', whose size the base model says: name the model",
                        first, path);
    size_t whole = whole_rows(s->model, path, of, rows);
    const tke_file_tensor *parts[2][2];
    for (size_t i = 0; i < 2; i++)
        for (int b = 0; b < 2; b++) {
            char *name = tkc_arena_printf(l->arena, l->err, "%s%.*s%s.lora_%c.weight", ours, stem,
                                          first, of->parts[i], "AB"[b]);
            parts[i][b] = find_in(all, n, name);
            if (!whole || !parts[i][b] || parts[i][b]->n_dims != 2)
                return tkc_fail(l->err, TINKC_E_MODEL, "'%s' does not fit the model", first);
        }
    size_t rank = (size_t)parts[0][0]->dims[0], in = (size_t)parts[0][0]->dims[1];
    tke_file_tensor a = new_matrix(l, parts[0][0]->dtype, 2 * rank, in);
    tke_file_tensor b = new_matrix(l, parts[0][1]->dtype, whole, 2 * rank);
    for (size_t i = 0; i < 2; row += rows[i++]) {
        const tke_file_tensor *pa = parts[i][0], *pb = parts[i][1];
        if (pa->dims[0] != (int64_t)rank || pa->dims[1] != (int64_t)in ||
            pb->dims[0] != (int64_t)rows[i] || pb->dims[1] != (int64_t)rank ||
            pa->dtype != a.dtype || pb->dtype != b.dtype)
            return tkc_fail(l->err, TINKC_E_MODEL, "'%s' does not fit the model", first);
        copy_block(pa, 0, 0, rank, in, &a, i * rank, 0);
        copy_block(pb, 0, 0, rows[i], rank, &b, row, i * rank);
    }
    list_add(l, &a, path, 'A');
    list_add(l, &b, path, 'B');
    s->stacked = of->leaf;
    return !tkc_failed(l->err);
}

/* How many experts a layer's adapters have: of the factor that is not shared. */
static size_t experts_of(const tke_file_tensor *all, size_t n, const tke_file_tensor *t)
{
    size_t len = strlen(t->name) - AB_LEN, most = (size_t)t->dims[0];
    for (size_t i = 0; i < n; i++)
        if (all[i].n_dims == 3 && strncmp(all[i].name, t->name, len) == 0 &&
            (size_t)all[i].dims[0] > most)
            most = (size_t)all[i].dims[0];
    return most;
}

static void write_peft(list *l, tke_spelling *s, const tke_file_tensor *all, size_t n,
                       const tke_file_tensor *t, const char *path, char ab)
{
    bool gate = tkc_ends_with(tkc_str(path), ".mixer.gate_proj");
    if (gate || tkc_ends_with(tkc_str(path), ".mixer.x_proj")) {
        if (gate && ab == 'A')
            write_stacked(l, s, all, n, path);
        return;
    }
    size_t experts = t->n_dims == 3 ? experts_of(all, n, t) : 0;
    path = peft_path(l, s, path);
    if (path && experts)
        write_experts(l, t, path, ab, experts);
    else if (path)
        list_add(l, t, path, ab);
}

tke_file_tensor *tke_names_write(const tke_file_tensor *all, size_t n, tke_spelling *s,
                                 size_t *n_out, tkc_arena *arena, tinkc_error *err)
{
    list l;
    size_t room = 2 * n;
    for (size_t i = 0; i < n; i++)
        room += all[i].n_dims == 3 ? experts_of(all, n, &all[i]) : 0;
    s->stacked = NULL;
    if (!list_init(&l, room, arena, err))
        return NULL;
    for (size_t i = 0; i < n && !tkc_failed(err); i++) {
        name_parts parts = parse(all[i].name);
        char *path = parts.ab ? tkc_arena_str(arena, parts.path, err) : NULL;
        if (!parts.ab)
            l.at[l.n++] = all[i];
        else if (path && s->names == TKE_NAMES_HOSTED)
            write_hosted(&l, s, &all[i], path, parts.ab);
        else if (path)
            write_peft(&l, s, all, n, &all[i], path, parts.ab);
    }
    *n_out = l.n;
    return tkc_failed(err) ? NULL : l.at;
}
