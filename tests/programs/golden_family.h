/* golden_family.h - part of golden_check: a tiny model of one family against PyTorch. */

typedef struct family {
    const char *folder, *name;
    tke_cpu *cpu;
    tkc_arena arena;
    tke_model *model;
    tke_trainer *trainer;
    tke_tensor_file golden;
    size_t batch, length, vocab;
    double alpha, clip_low, clip_high;
    int32_t rank;
    double losses[4], norms[2];
    tke_adam_params adam;
    tinkc_error err;
} family;

static const char *const family_losses[4] = { "cross_entropy", "importance_sampling", "ppo",
                                              "cispo" };

static void family_json(family *f)
{
    tkc_json j;
    tinkc_str key, inner;
    char *path = tkc_path_join(&f->arena, f->folder, "golden.json", &f->err);
    tinkc_bytes text = tkc_read_file(&f->arena, path, 1 << 20, &f->err);
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
        else if (tkc_str_is(key, "losses")) {
            tkc_json_object(&j);
            while (tkc_json_key(&j, &inner)) {
                double value = tkc_json_double(&j);
                for (int i = 0; i < 4; i++)
                    if (tkc_str_is(inner, family_losses[i]))
                        f->losses[i] = value;
            }
        } else if (tkc_str_is(key, "adam")) {
            tkc_json_object(&j);
            while (tkc_json_key(&j, &inner)) {
                if (tkc_str_is(inner, "grad_norms")) {
                    int n = 0;
                    tkc_json_array(&j);
                    while (tkc_json_item(&j))
                        f->norms[n++ & 1] = tkc_json_double(&j);
                    continue;
                }
                double value = tkc_json_double(&j);
                if (tkc_str_is(inner, "learning_rate"))
                    f->adam.learning_rate = value;
                else if (tkc_str_is(inner, "beta1"))
                    f->adam.beta1 = value;
                else if (tkc_str_is(inner, "beta2"))
                    f->adam.beta2 = value;
                else if (tkc_str_is(inner, "eps"))
                    f->adam.eps = value;
                else if (tkc_str_is(inner, "weight_decay"))
                    f->adam.weight_decay = value;
                else if (tkc_str_is(inner, "grad_clip_norm"))
                    f->adam.grad_clip_norm = value;
            }
        } else
            tkc_json_skip(&j);
    }
    if (f->err.code)
        die(&f->err);
}

static const tke_file_tensor *family_tensor(family *f, const char *name)
{
    const tke_file_tensor *t = tke_tensor_file_find(&f->golden, name);
    if (!t) {
        fprintf(stderr, "golden_check: %s: no tensor '%s'\n", f->folder, name);
        exit(2);
    }
    return t;
}

static const float *family_floats(family *f, const char *name)
{
    return (const float *)(const void *)family_tensor(f, name)->data;
}

/* The PEFT name of each adapter tensor: walks layers and modules as the files name them. */
typedef struct family_walk {
    size_t layer;
    int module;
    bool is_b;
} family_walk;

static bool family_next(family *f, family_walk *w, char name[160], const float **block_at,
                        const tke_lora_layout *l, size_t *count, const tke_real *block,
                        const char *prefix)
{
    if (w->layer == tke_model_config(f->model)->n_layers)
        return false;
    for (int g = 0; g < TKE_GROUPS; g++) {
        int first = tke_group_first(g);
        if (w->module < first || w->module >= first + (int)tke_group_size(g))
            continue;
        const tke_lora_group *group = &l->groups[w->layer * TKE_GROUPS + (size_t)g];
        size_t i = (size_t)(w->module - first);
        *block_at = block + (w->is_b ? group->b[i] : group->a + i * group->rank * group->in);
        *count = group->rank * (w->is_b ? group->out[i] : group->in);
    }
    snprintf(name, 160, "%sbase_model.model.model.layers.%zu.%s.lora_%c.weight", prefix, w->layer,
             tke_module_path(w->module), w->is_b ? 'B' : 'A');
    if (w->is_b && ++w->module == TKE_MODULES) {
        w->module = 0;
        w->layer++;
    }
    w->is_b = !w->is_b;
    return true;
}

/* Largest relative error in norm over all tensors. */
static double family_compare(family *f, const tke_lora_layout *l, const tke_real *block,
                             const char *prefix)
{
    family_walk w = { 0 };
    char name[160];
    const float *mine;
    size_t count;
    double worst = 0;
    while (family_next(f, &w, name, &mine, l, &count, block, prefix)) {
        const float *want = family_floats(f, name);
        double off = 0, norm = 0;
        for (size_t i = 0; i < count; i++) {
            off += ((double)mine[i] - want[i]) * ((double)mine[i] - want[i]);
            norm += (double)want[i] * want[i];
        }
        double error = sqrt(off) / (sqrt(norm) + 1e-30);
        worst = error > worst || isnan(error) ? error : worst;
    }
    return worst;
}

static tke_adapter *family_adapter(family *f)
{
    tke_adapter_spec spec = { .rank = f->rank,
                              .train = TKE_TRAIN_ATTN | TKE_TRAIN_MLP,
                              .alpha = f->alpha };
    tke_adapter *a = tke_adapter_new(f->model, &spec, &f->err);
    if (!a)
        die(&f->err);
    const tke_lora_layout *l = tke_adapter_lora(a)->layout;
    family_walk w = { 0 };
    char name[160];
    const float *at;
    size_t count;
    while (family_next(f, &w, name, &at, l, &count, tke_adapter_weights(a), "init/"))
        memcpy(tke_adapter_weights(a) + (at - tke_adapter_weights(a)), family_floats(f, name),
               count * sizeof(float));
    return a;
}

static tke_pass family_pass(family *f, tke_adapter *a, int loss, bool backward)
{
    tke_loss_key keys[2] = { { tkc_str("clip_low_threshold"), f->clip_low },
                             { tkc_str("clip_high_threshold"), f->clip_high } };
    const int32_t *ids = (const int32_t *)(const void *)family_tensor(f, "input_ids")->data;
    const int64_t *targets = (const int64_t *)(const void *)family_tensor(f, "target_tokens")->data;
    tke_pass pass = { .adapter = a, .backward = backward, .n_data = f->batch };
    tke_loss_parse(&pass.loss, tkc_str(family_losses[loss]), keys, loss >= 2 ? 2 : 0, false,
                   &f->err);
    tke_datum *data = tkc_arena_array(&f->arena, f->batch, sizeof *data, &f->err);
    for (size_t b = 0; b < f->batch; b++) {
        data[b] = (tke_datum){ .tokens = ids + b * f->length, .n = f->length };
        tke_input inputs[3] = {
            { tkc_str("target_tokens"), false, targets + b * f->length, f->length, 1 },
            { tkc_str(loss ? "advantages" : "weights"), true,
              family_floats(f, loss ? "advantages" : "weights") + b * f->length, f->length, 1 },
            { tkc_str("logprobs"), true, family_floats(f, "sampling_logprobs") + b * f->length,
              f->length, 1 }
        };
        if (!tke_datum_bind(&data[b], &pass.loss, inputs, loss ? 3 : 2, false, b, &f->err))
            die(&f->err);
    }
    pass.data = data;
    tke_pass *list[1] = { &pass };
    tke_trainer_run(f->trainer, list, 1);
    if (pass.err.code)
        die(&pass.err);
    return pass;
}

/* All log-probs of all positions, through soft targets that name the whole vocabulary. */
static void family_logits(family *f, tke_adapter *a, const char *tensor)
{
    size_t n = f->length, v = f->vocab;
    const float *logits = family_floats(f, tensor);
    const int32_t *ids = (const int32_t *)(const void *)family_tensor(f, "input_ids")->data;
    int64_t *all = tkc_arena_array(&f->arena, n * v, sizeof *all, &f->err);
    for (size_t i = 0; i < n * v; i++)
        all[i] = (int64_t)(i % v);
    double worst = 0;
    for (size_t b = 0; b < f->batch; b++) {
        tke_datum d = { .tokens = ids + b * n, .n = n, .k = v, .targets = all };
        tke_pass pass = { .adapter = a, .data = &d, .n_data = 1 }, *list[1] = { &pass };
        tke_trainer_run(f->trainer, list, 1);
        if (pass.err.code)
            die(&pass.err);
        for (size_t i = 0; i < n; i++) {
            const float *z = logits + (b * n + i) * v;
            double max = -INFINITY, sum = 0;
            for (size_t k = 0; k < v; k++)
                max = z[k] > max ? z[k] : max;
            for (size_t k = 0; k < v; k++)
                sum += exp(z[k] - max);
            for (size_t k = 0; k < v; k++) {
                double off = fabs(z[k] - max - log(sum) - pass.out.logprobs[i * v + k]);
                worst = off > worst || isnan(off) ? off : worst;
            }
        }
        tke_pass_free(&pass);
    }
    report(f->name, tensor, worst, 2e-5);
}

/* The sum of the tokens' losses without their signs: what rounding errors are relative to. */
static double family_size(const tke_pass *pass)
{
    double sum = 0;
    for (size_t i = 0; i < pass->out.elementwise_at[pass->n_data]; i++)
        sum += fabs((double)pass->out.elementwise[i]);
    return sum;
}

static void family_losses_and_grads(family *f)
{
    char name[80];
    for (int loss = 0; loss < 4; loss++) {
        tke_adapter *a = family_adapter(f);
        tke_pass pass = family_pass(f, a, loss, true);
        if (loss == 0) {
            const float *want = family_floats(f, "logprobs");
            double worst = 0;
            for (size_t i = 0; i < f->batch * f->length; i++) {
                double off = fabs((double)want[i] - pass.out.logprobs[i]);
                worst = off > worst || isnan(off) ? off : worst;
            }
            report(f->name, "logprobs", worst, 2e-5);
        }
        snprintf(name, sizeof name, "loss/%s (of the sum of sizes)", family_losses[loss]);
        report(f->name, name,
               fabs(pass.out.metrics[0].value - f->losses[loss]) / family_size(&pass), 1e-5);
        snprintf(name, sizeof name, "grad/%s (norm, worst tensor)", family_losses[loss]);
        char prefix[64];
        snprintf(prefix, sizeof prefix, "grad/%s/", family_losses[loss]);
        report(f->name, name,
               family_compare(f, tke_adapter_lora(a)->layout, tke_adapter_grads(a), prefix), 1e-4);
        tke_pass_free(&pass);
        tke_adapter_free(a);
    }
}

static void family_adam(family *f)
{
    tke_adapter *a = family_adapter(f);
    for (int step = 0; step < 2; step++) {
        char name[40], prefix[16];
        tke_metric metrics[TKE_MAX_METRICS];
        size_t n;
        tke_pass pass = family_pass(f, a, 0, true);
        tke_pass_free(&pass);
        if (!tke_optim_step(a, &f->adam, f->cpu, metrics, &n, &f->err))
            die(&f->err);
        snprintf(name, sizeof name, "adam%d grad_norm (relative)", step + 1);
        report(f->name, name, fabs(metrics[0].value - f->norms[step]) / f->norms[step], 1e-5);
        snprintf(name, sizeof name, "adam%d (norm, worst tensor)", step + 1);
        snprintf(prefix, sizeof prefix, "adam%d/", step + 1);
        report(f->name, name,
               family_compare(f, tke_adapter_lora(a)->layout, tke_adapter_weights(a), prefix),
               1e-5);
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
    const int32_t *ids = (const int32_t *)(const void *)family_tensor(f, "greedy")->data;
    size_t n = tke_tensor_count(family_tensor(f, "greedy"));
    tke_adapter *a = family_adapter(f);
    tke_snapshot *s = tke_snapshot_take(a, &f->err);
    tke_infer_options options = { .cpu = f->cpu, .kv_bytes = 1 << 20 };
    tke_infer *e = tke_infer_new(f->model, &options, &f->err);
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

void check_family(const char *folder, const char *name, tke_cpu *cpu)
{
    family f = { .folder = folder, .name = name, .cpu = cpu };
    tkc_arena_init(&f.arena, NULL, 0);
    tke_trainer_options options = { .cpu = cpu };
    f.model = tke_model_open(folder, &f.err);
    char *path = tkc_path_join(&f.arena, folder, "golden.safetensors", &f.err);
    if (f.model)
        f.trainer = tke_trainer_new(f.model, &options, &f.err);
    if (!f.err.code)
        tke_tensor_file_open(&f.golden, path, &f.err);
    if (f.err.code)
        die(&f.err);
    const tke_file_tensor *ids = family_tensor(&f, "input_ids");
    f.batch = (size_t)ids->dims[0];
    f.length = (size_t)ids->dims[1];
    f.vocab = tke_model_config(f.model)->vocab;
    family_json(&f);
    family_logits(&f, NULL, "base_logits");
    tke_adapter *a = family_adapter(&f);
    family_logits(&f, a, "lora_logits");
    tke_adapter_free(a);
    family_losses_and_grads(&f);
    family_adam(&f);
    family_greedy(&f);
    tke_tensor_file_close(&f.golden);
    tke_trainer_free(f.trainer);
    tke_model_drop(f.model);
    tkc_arena_free(&f.arena);
}
