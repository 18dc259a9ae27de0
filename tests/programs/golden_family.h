/* golden_family.h - part of golden_check: a tiny model of one family against PyTorch. */

enum { FAMILY_LOSSES = 16, FAMILY_STEPS = 64 };

typedef struct family_loss {
    char name[48];
    double sum;
} family_loss;

typedef struct family {
    const char *folder, *name;
    tkc_arena arena;
    tke_model *model;
    tke_device_model *loaded;
    tke_trainer *trainer;
    tke_tensor_file golden;
    bool *used; /* tensors of the file that were compared or read */
    size_t batch, length, vocab;
    double alpha, clip_low, clip_high, beta; /* NaN = not said */
    int32_t rank;
    uint32_t train;
    family_loss losses[FAMILY_LOSSES];
    size_t n_losses, n_norms;
    double norms[FAMILY_STEPS];
    tke_adam_params adam;
    const int32_t *ids;
    const int64_t *targets;
    tinkc_error err;
} family;

static void family_die(const family *f, const char *what, const char *name)
{
    fprintf(stderr, "golden_check: %s: %s '%s'\n", f->folder, what, name);
    exit(2);
}

/* ---- golden.json ---- */

static void family_read_losses(family *f, tkc_json *j)
{
    tinkc_str key;
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (f->n_losses == FAMILY_LOSSES)
            family_die(f, "too many losses, at", key.data);
        family_loss *l = &f->losses[f->n_losses++];
        snprintf(l->name, sizeof l->name, "%.*s", (int)key.len, key.data);
        l->sum = tkc_json_double(j);
    }
}

static void family_read_adam(family *f, tkc_json *j)
{
    const struct {
        const char *name;
        double *value;
    } known[] = { { "learning_rate", &f->adam.learning_rate },
                  { "beta1", &f->adam.beta1 },
                  { "beta2", &f->adam.beta2 },
                  { "eps", &f->adam.eps },
                  { "weight_decay", &f->adam.weight_decay },
                  { "grad_clip_norm", &f->adam.grad_clip_norm } };
    enum { KNOWN = sizeof known / sizeof *known };
    tinkc_str key;
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        size_t i = 0;
        while (i < KNOWN && !tkc_str_is(key, known[i].name))
            i++;
        if (i < KNOWN) {
            *known[i].value = tkc_json_double(j);
        } else if (tkc_str_is(key, "grad_norms")) {
            tkc_json_array(j);
            while (tkc_json_item(j)) {
                double norm = tkc_json_double(j);
                if (f->n_norms < FAMILY_STEPS)
                    f->norms[f->n_norms++] = norm;
            }
        } else {
            char name[64];
            snprintf(name, sizeof name, "golden.json: adam.%.*s (unknown)", (int)key.len, key.data);
            report(f->name, name, NAN, 0);
            tkc_json_skip(j);
        }
    }
}

static void family_json(family *f)
{
    tkc_json j;
    tinkc_str key;
    char *path = tkc_path_join(&f->arena, f->folder, "golden.json", &f->err);
    tinkc_bytes text = tkc_read_file(&f->arena, path, 1 << 20, &f->err);
    f->alpha = f->clip_low = f->clip_high = f->beta = NAN;
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), &f->arena, &f->err);
    tkc_json_object(&j);
    while (tkc_json_key(&j, &key)) {
        if (tkc_str_is(key, "alpha"))
            f->alpha = tkc_json_double(&j);
        else if (tkc_str_is(key, "r"))
            f->rank = (int32_t)tkc_json_i64(&j);
        else if (tkc_str_is(key, "clip_low_threshold"))
            f->clip_low = tkc_json_double(&j);
        else if (tkc_str_is(key, "clip_high_threshold"))
            f->clip_high = tkc_json_double(&j);
        else if (tkc_str_is(key, "beta") || tkc_str_is(key, "dro_beta"))
            f->beta = tkc_json_double(&j);
        else if (tkc_str_is(key, "losses"))
            family_read_losses(f, &j);
        else if (tkc_str_is(key, "adam"))
            family_read_adam(f, &j);
        else {
            printf("%-28s golden.json: '%.*s' is not compared\n", f->name, (int)key.len, key.data);
            tkc_json_skip(&j);
        }
    }
    if (f->err.code)
        die(&f->err);
    if (f->rank < 1 || isnan(f->alpha) || !f->n_losses)
        family_die(f, "golden.json lacks one of", "r, alpha, losses");
}

/* ---- golden.safetensors ---- */

static const tke_file_tensor *family_find(family *f, const char *name)
{
    const tke_file_tensor *t = tke_tensor_file_find(&f->golden, name);
    if (t)
        f->used[t - f->golden.tensors] = true;
    return t;
}

static const tke_file_tensor *family_tensor(family *f, const char *name)
{
    const tke_file_tensor *t = family_find(f, name);
    if (!t)
        family_die(f, "no tensor", name);
    return t;
}

/* Numbers of any real type; their count is checked. */
static const float *family_floats(family *f, const char *name, size_t count)
{
    const tke_file_tensor *t = family_tensor(f, name);
    if (!tke_tensor_is_real(t) || tke_tensor_count(t) != count)
        family_die(f, "wrong type or shape:", name);
    if (t->dtype == TKE_FILE_F32)
        return (const float *)(const void *)t->data;
    float *wide = tkc_arena_array(&f->arena, count, sizeof *wide, &f->err);
    if (!wide)
        die(&f->err);
    for (size_t i = 0; i < count; i++) {
        double x = 0;
        if (t->dtype == TKE_FILE_F64)
            memcpy(&x, t->data + i * sizeof x, sizeof x);
        else
            x = (double)tke_load((tke_dtype)t->dtype, t->data, (int64_t)i);
        wide[i] = (float)x;
    }
    return wide;
}

static const int64_t *family_ints(family *f, const char *name, size_t count)
{
    const tke_file_tensor *t = family_tensor(f, name);
    bool wide = t->dtype == TKE_FILE_I64;
    if ((!wide && t->dtype != TKE_FILE_I32) || tke_tensor_count(t) != count)
        family_die(f, "wrong type or shape:", name);
    int64_t *out = tkc_arena_array(&f->arena, count, sizeof *out, &f->err);
    if (!out)
        die(&f->err);
    for (size_t i = 0; i < count; i++) {
        int32_t x;
        memcpy(wide ? (void *)&out[i] : (void *)&x, t->data + i * (wide ? 8 : 4), wide ? 8 : 4);
        if (!wide)
            out[i] = x;
    }
    return out;
}

static const int32_t *family_tokens(family *f, const char *name, size_t count)
{
    const int64_t *from = family_ints(f, name, count);
    int32_t *out = tkc_arena_array(&f->arena, count, sizeof *out, &f->err);
    if (!out)
        die(&f->err);
    for (size_t i = 0; i < count; i++)
        out[i] = (int32_t)from[i];
    return out;
}

/* What the file holds and nothing here has looked at is a quantity that was not checked. */
static void family_report_unused(family *f)
{
    for (size_t i = 0; i < f->golden.n_tensors; i++)
        if (!f->used[i])
            report(f->name, f->golden.tensors[i].name, NAN, 0);
}

/* ---- adapters ---- */

/* The adapter tensors of the file: walks the layout and passes over what has none there. */
static bool family_next(family *f, const tke_lora_layout *l, size_t *place, const char *prefix, char name[160],
                        tke_tensor_ref *ref)
{
    while (tke_layout_next(l, place, ref)) {
        const char *path = ref->weight->path;
        snprintf(name, 160, "init/base_model.model.%s.lora_%c.weight", path, "AB"[ref->is_b]);
        if (!family_find(f, name))
            continue;
        snprintf(name, 160, "%sbase_model.model.%s.lora_%c.weight", prefix, path, "AB"[ref->is_b]);
        return true;
    }
    return false;
}

/* Which flags the adapters of the file need. */
static uint32_t family_flags(family *f)
{
    uint32_t train = 0;
    char name[160];
    for (size_t i = 0; i < f->model->n_groups; i++)
        for (size_t k = 0; k < f->model->groups[i]->n; k++) {
            snprintf(name, sizeof name, "init/base_model.model.%s.lora_A.weight", f->model->groups[i]->w[k].path);
            if (tke_tensor_file_find(&f->golden, name))
                train |= f->model->groups[i]->train;
        }
    if (!train)
        family_die(f, "no tensor", "init/...");
    return train;
}

typedef struct family_error {
    double worst;  /* relative error in norm of a tensor */
    double turned; /* 1 - cosine of all numbers as one vector */
    double norm;   /* relative error of its norm */
} family_error;

/* A tensor that should be (nearly) zero, as the gradients of q and k are for a single token, is
 * judged beside the whole. */
static family_error family_compare(family *f, tke_adapter *a, const tke_block *block, const char *prefix)
{
    enum { MOST = 4096 };
    char name[160];
    size_t place = 0, n = 0;
    tke_tensor_ref ref;
    tke_view view;
    double off[MOST], norm[MOST], all = 0, got = 0, dot = 0, worst = 0;
    if (!tke_view_open(&view, a->device, block, a->layout->n_floats, &f->err))
        die(&f->err);
    while (n < MOST && family_next(f, a->layout, &place, prefix, name, &ref)) {
        size_t count = ref.count;
        const float *want = family_floats(f, name, count);
        off[n] = norm[n] = 0;
        for (size_t i = 0; i < count; i++) {
            double x = (double)view.data[ref.offset + i], y = (double)want[i];
            off[n] += (x - y) * (x - y);
            norm[n] += y * y;
            got += x * x;
            dot += x * y;
        }
        all += norm[n++];
    }
    tke_view_close(&view, a->device, NULL, &f->err);
    for (size_t i = 0; i < n; i++) {
        double error = sqrt(off[i]) / (sqrt(norm[i]) + 1e-3 * sqrt(all) + 1e-30);
        worst = error > worst || isnan(error) ? error : worst;
    }
    if (!n)
        return (family_error){ NAN, NAN, NAN };
    return (family_error){ worst, 1 - dot / sqrt(got * all), fabs(sqrt(got / all) - 1) };
}

static tke_adapter *family_adapter(family *f)
{
    tke_adapter_spec spec = { .rank = f->rank, .train = f->train, .alpha = f->alpha };
    tke_adapter *a = tke_adapter_new(f->loaded->device, f->model, &spec, &f->err);
    char name[160];
    size_t place = 0;
    tke_tensor_ref ref;
    tke_view view;
    if (!a || !tke_view_open(&view, a->device, a->weights, a->layout->n_floats, &f->err))
        die(&f->err);
    memset(view.data, 0, a->layout->n_floats * sizeof *view.data);
    while (family_next(f, a->layout, &place, "init/", name, &ref))
        memcpy(view.data + ref.offset, family_floats(f, name, ref.count), ref.count * sizeof(float));
    if (!tke_view_close(&view, a->device, a->weights, &f->err))
        die(&f->err);
    return a;
}

/* ---- passes ---- */

static bool family_loss_parse(family *f, const char *name, tke_loss *loss, tinkc_error *err)
{
    const struct {
        const char *key;
        double value;
        bool wanted;
    } settings[] = {
        { "clip_low_threshold", f->clip_low, strcmp(name, "ppo") == 0 || strcmp(name, "cispo") == 0 },
        { "clip_high_threshold", f->clip_high, strcmp(name, "ppo") == 0 || strcmp(name, "cispo") == 0 },
        { "beta", f->beta, strcmp(name, "dro") == 0 },
    };
    tke_loss_key keys[3];
    size_t n = 0;
    for (int i = 0; i < 3; i++)
        if (settings[i].wanted && !isnan(settings[i].value))
            keys[n++] = (tke_loss_key){ tkc_str(settings[i].key), settings[i].value };
    return tke_loss_parse(loss, tkc_str(name), keys, n, false, err);
}

static tke_pass family_pass(family *f, tke_adapter *a, const tke_loss *loss)
{
    tke_pass pass = { .adapter = a, .backward = true, .n_data = f->batch, .loss = *loss };
    bool rl = tke_loss_row_of(loss)->ratios;
    size_t all = f->batch * f->length, n = f->length;
    const float *values = family_floats(f, rl ? "advantages" : "weights", all);
    const float *q = rl ? family_floats(f, "sampling_logprobs", all) : values;
    tke_datum *data = tkc_arena_array(&f->arena, f->batch, sizeof *data, &f->err);
    for (size_t b = 0; data && b < f->batch; b++) {
        data[b] = (tke_datum){ .tokens = f->ids + b * n, .n = n };
        tke_input inputs[3] = {
            { tkc_str("target_tokens"), false, f->targets + b * n, n, 1, 1 },
            { tkc_str(rl ? "advantages" : "weights"), true, values + b * n, n, 1, 1 },
            { tkc_str("logprobs"), true, q + b * n, n, 1, 1 },
        };
        tke_datum_bind(&data[b], &pass.loss, inputs, rl ? 3 : 2, false, b, &f->err);
    }
    if (f->err.code)
        die(&f->err);
    pass.data = data;
    tke_pass *list[1] = { &pass };
    tke_trainer_run(f->trainer, list, 1);
    if (pass.err.code)
        die(&pass.err);
    return pass;
}

/* All log-probs of all positions, through soft targets that name the whole vocabulary. */
static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The largest error of a row of log-probs of all tokens; z: its logits. */
static double row_error(const float *z, const tke_real *logprobs, size_t v)
{
    double max = -INFINITY, sum = 0, worst = 0;
    for (size_t k = 0; k < v; k++)
        max = z[k] > max ? z[k] : max;
    for (size_t k = 0; k < v; k++)
        sum += exp(z[k] - max);
    for (size_t k = 0; k < v; k++) {
        double off = fabs(z[k] - max - log(sum) - logprobs[k]);
        worst = off > worst || isnan(off) ? off : worst;
    }
    return worst;
}

/* The worst row, and the one in the middle: where a router's choice falls differently, rows jump. */
static void family_logits(family *f, tke_adapter *a, const char *tensor)
{
    size_t n = f->length, v = f->vocab, rows = f->batch * n;
    const float *logits = family_floats(f, tensor, rows * v);
    int64_t *all = tkc_arena_array(&f->arena, n * v, sizeof *all, &f->err);
    double *errors = tkc_arena_array(&f->arena, rows, sizeof *errors, &f->err), worst = 0;
    char name[64];
    for (size_t i = 0; i < n * v; i++)
        all[i] = (int64_t)(i % v);
    for (size_t b = 0; b < f->batch; b++) {
        tke_datum d = { .tokens = f->ids + b * n, .n = n, .k = v, .targets = all };
        tke_pass pass = { .adapter = a, .data = &d, .n_data = 1 }, *list[1] = { &pass };
        tke_trainer_run(f->trainer, list, 1);
        if (pass.err.code)
            die(&pass.err);
        for (size_t i = 0; i < n; i++) {
            double off = row_error(logits + (b * n + i) * v, pass.out.logprobs + i * v, v);
            errors[b * n + i] = off;
            worst = off > worst || isnan(off) ? off : worst;
        }
        tke_pass_free(&pass);
    }
    qsort(errors, rows, sizeof *errors, by_size);
    snprintf(name, sizeof name, "%s (row in the middle)", tensor);
    report(f->name, tensor, worst, 2e-5);
    report(f->name, name, errors[rows / 2], 2e-5);
}

/* The sum of the tokens' losses without their signs: what rounding errors are relative to. */
static double family_size(const tke_pass *pass)
{
    double sum = 0;
    for (size_t i = 0; i < pass->out.elementwise_at[pass->n_data]; i++)
        sum += fabs((double)pass->out.elementwise[i]);
    return sum;
}

static void family_logprobs(family *f, const tke_pass *pass)
{
    size_t n = f->batch * f->length;
    const float *want = family_floats(f, "logprobs", n);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)want[i] - (double)pass->out.logprobs[i]);
        worst = off > worst || isnan(off) ? off : worst;
    }
    report(f->name, "logprobs", worst, 2e-5);
}

static void family_loss_and_grads(family *f, const family_loss *l, bool first)
{
    char name[96], prefix[64];
    tke_loss loss;
    tinkc_error err = { 0 };
    snprintf(name, sizeof name, "loss/%s (of the sum of sizes)", l->name);
    if (!family_loss_parse(f, l->name, &loss, &err)) {
        fprintf(stderr, "golden_check: %s: %s\n", f->folder, err.message);
        report(f->name, name, NAN, 0);
        return;
    }
    tke_adapter *a = family_adapter(f);
    tke_pass pass = family_pass(f, a, &loss);
    if (first)
        family_logprobs(f, &pass);
    report(f->name, name, fabs(pass.out.metrics[0].value - l->sum) / (family_size(&pass) + 1e-30), 1e-5);
    snprintf(prefix, sizeof prefix, "grad/%s/", l->name);
    family_error off = family_compare(f, a, a->grads, prefix);
    snprintf(name, sizeof name, "grad/%s (norm, worst tensor)", l->name);
    report(f->name, name, off.worst, 1e-4);
    snprintf(name, sizeof name, "grad/%s (1 - cosine)", l->name);
    report(f->name, name, off.turned, 1e-8);
    snprintf(name, sizeof name, "grad/%s (norm of all)", l->name);
    report(f->name, name, off.norm, 1e-4);
    tke_pass_free(&pass);
    tke_adapter_free(a);
}

static void family_adam(family *f)
{
    tke_loss loss;
    if (!f->n_norms || !tke_loss_parse(&loss, tkc_str("cross_entropy"), NULL, 0, false, &f->err))
        family_die(f, "golden.json has no", "adam.grad_norms");
    tke_adapter *a = family_adapter(f);
    for (size_t step = 0; step < f->n_norms; step++) {
        char name[64], prefix[32];
        tke_metric metrics[TKE_MAX_METRICS];
        size_t n;
        tke_pass pass = family_pass(f, a, &loss);
        tke_pass_free(&pass);
        if (!tke_optim_step(a, &f->adam, metrics, &n, &f->err))
            die(&f->err);
        snprintf(name, sizeof name, "adam%zu grad_norm (relative)", step + 1);
        report(f->name, name, fabs(metrics[0].value - f->norms[step]) / f->norms[step], 1e-4);
        snprintf(name, sizeof name, "adam%zu (norm, worst tensor)", step + 1);
        snprintf(prefix, sizeof prefix, "adam%zu/", step + 1);
        report(f->name, name, family_compare(f, a, a->weights, prefix).worst, 1e-5);
    }
    tke_adapter_free(a);
}

/* Runs one request to its end. */
static tke_gen *generate(tke_infer *e, const tke_gen_request *request, tinkc_error *err)
{
    tke_gen *g = tke_infer_add(e, request, err);
    if (!g)
        die(err);
    while (tke_infer_step(e))
        ;
    g = tke_infer_next_done(e);
    if (tke_gen_error(g)->code)
        die(tke_gen_error(g));
    return g;
}

static void family_greedy(family *f)
{
    size_t n = tke_tensor_count(family_tensor(f, "greedy"));
    const int32_t *ids = family_tokens(f, "greedy", n);
    if (n <= f->length)
        family_die(f, "nothing is continued in", "greedy");
    tke_adapter *a = family_adapter(f);
    tke_snapshot *s = tke_snapshot_take(a, &f->err);
    tke_infer_options options = { .kv_bytes = 64 << 20 };
    tke_infer *e = tke_infer_new(f->loaded, &options, &f->err);
    if (f->err.code)
        die(&f->err);
    tke_gen_request request = { .snapshot = s,
                                .prompt = ids,
                                .n_prompt = f->length,
                                .n_samples = 1,
                                .max_tokens = n - f->length,
                                .never_stop = true,
                                .rule = { .temperature = 0, .top_p = 1 } };
    tke_gen *g = generate(e, &request, &f->err);
    tke_sequence seq = tke_gen_sequence(g, 0);
    double wrong = seq.n == n - f->length ? 0 : 1;
    for (size_t i = 0; i < seq.n && f->length + i < n; i++)
        wrong += seq.tokens[i] != ids[f->length + i];
    report(f->name, "greedy (tokens that differ)", wrong, 0);
    tke_gen_free(g);
    tke_infer_free(e);
    tke_snapshot_drop(s);
    tke_adapter_free(a);
}

void check_family(const char *folder, const char *name, tke_device *device)
{
    family f = { .folder = folder, .name = name };
    tkc_arena_init(&f.arena, NULL, 0);
    tke_trainer_options options = { 0 };
    f.model = tke_model_open(folder, &f.err);
    char *path = tkc_path_join(&f.arena, folder, "golden.safetensors", &f.err);
    if (f.model)
        f.loaded = device->ops->model_load(device, f.model, &f.err);
    if (f.loaded)
        f.trainer = tke_trainer_new(f.loaded, &options, &f.err);
    if (!f.err.code)
        tke_tensor_file_open(&f.golden, path, &f.err);
    if (f.err.code)
        die(&f.err);
    f.used = tkc_arena_array(&f.arena, f.golden.n_tensors + 1, sizeof *f.used, &f.err);
    if (f.err.code)
        die(&f.err);
    const tke_file_tensor *ids = family_tensor(&f, "input_ids");
    if (ids->n_dims != 2 || ids->dims[0] < 1 || ids->dims[1] < 1)
        family_die(&f, "wrong type or shape:", "input_ids");
    f.batch = (size_t)ids->dims[0];
    f.length = (size_t)ids->dims[1];
    f.vocab = tke_model_config(f.model)->vocab;
    f.ids = family_tokens(&f, "input_ids", f.batch * f.length);
    f.targets = family_ints(&f, "target_tokens", f.batch * f.length);
    family_json(&f);
    f.train = family_flags(&f);
    family_logits(&f, NULL, "base_logits");
    tke_adapter *a = family_adapter(&f);
    family_logits(&f, a, "lora_logits");
    tke_adapter_free(a);
    for (size_t i = 0; i < f.n_losses; i++)
        family_loss_and_grads(&f, &f.losses[i], i == 0);
    family_adam(&f);
    family_greedy(&f);
    family_report_unused(&f);
    tke_tensor_file_close(&f.golden);
    tke_trainer_free(f.trainer);
    device_unload(f.loaded);
    tke_model_drop(f.model);
    tkc_arena_free(&f.arena);
}
