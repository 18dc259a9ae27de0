/* golden_prompts.h - part of golden_check: prompts with log-probs and greedy continuations. */

typedef struct prompts {
    const char *name;
    tke_infer *infer;
    tkc_arena arena;
    double lp_max, lp_sum, sampled_max;
    double lp_max_allowed, lp_mean_allowed;
    size_t n_lp, n_wrong, n_prompts;
    bool bf16;
    tinkc_error err;
} prompts;

/* A position where the two best logits lie closer than this may go either way with bf16 inputs. */
#define BF16_MARGIN 0.3f

static void compare_prompt(prompts *p, tinkc_i32s ids, tinkc_f32s lp, tinkc_i32s want, tinkc_f32s want_lp,
                           tinkc_f32s margins, bool by_length)
{
    if (!ids.len || lp.len != ids.len || !want.len || want_lp.len != want.len || (p->bf16 && margins.len != want.len)) {
        fprintf(stderr, "golden_check: %s: a prompt lacks ids, log-probs or margins\n", p->name);
        exit(2);
    }
    tke_gen_request request = { .prompt = ids.data,
                                .n_prompt = ids.len,
                                .n_samples = 1,
                                .max_tokens = by_length ? want.len : want.len + 24,
                                .prompt_logprobs = true,
                                .rule = { .temperature = 0, .top_p = 1 } };
    tke_gen *g = generate(p->infer, &request, &p->err);
    const float *mine = tke_gen_prompt_logprobs(g);
    for (size_t i = 1; i < ids.len; i++) {
        double off = fabs((double)mine[i] - lp.data[i]);
        p->lp_max = off > p->lp_max || isnan(off) ? off : p->lp_max;
        p->lp_sum += off;
        p->n_lp++;
    }
    tke_sequence seq = tke_gen_sequence(g, 0);
    bool same = true;
    for (size_t i = 0; i < want.len && same; i++) {
        if (p->bf16 && margins.data[i] < BF16_MARGIN)
            break;
        same = i < seq.n && seq.tokens[i] == want.data[i];
        if (!same)
            break;
        double off = fabs((double)seq.logprobs[i] - want_lp.data[i]);
        p->sampled_max = off > p->sampled_max || isnan(off) ? off : p->sampled_max;
        p->lp_sum += off;
        p->n_lp++;
    }
    if (same && !p->bf16)
        same = seq.n == want.len;
    p->n_wrong += !same;
    p->n_prompts++;
    tke_gen_free(g);
}

static void read_prompt(prompts *p, tkc_json *j)
{
    tinkc_str key;
    tinkc_i32s ids = { 0 }, want = { 0 };
    tinkc_f32s lp = { 0 }, want_lp = { 0 }, margins = { 0 };
    bool by_length = false;
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "ids"))
            ids = tkc_json_i32s(j);
        else if (tkc_str_is(key, "prompt_logprobs"))
            lp = tkc_json_f32s(j);
        else if (tkc_str_is(key, "continuation"))
            want = tkc_json_i32s(j);
        else if (tkc_str_is(key, "continuation_logprobs"))
            want_lp = tkc_json_f32s(j);
        else if (tkc_str_is(key, "margins"))
            margins = tkc_json_f32s(j);
        else if (tkc_str_is(key, "stop_reason"))
            by_length = tkc_str_is(tkc_json_string(j), "length");
        else
            tkc_json_skip(j);
    }
    if (p->err.code)
        die(&p->err);
    compare_prompt(p, ids, lp, want, want_lp, margins, by_length);
}

static void read_tolerance(prompts *p, tkc_json *j)
{
    tinkc_str key, inner;
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        bool mine = tkc_str_is(key, p->bf16 ? "bf16_dot_products" : "fp32");
        tkc_json_object(j);
        while (tkc_json_key(j, &inner)) {
            if (mine && tkc_str_is(inner, "max_abs"))
                p->lp_max_allowed = tkc_json_double(j);
            else if (mine && tkc_str_is(inner, "mean_abs"))
                p->lp_mean_allowed = tkc_json_double(j);
            else
                tkc_json_skip(j);
        }
    }
}

void check_prompts(const char *file, const char *model, const char *name, tke_device *device, bool bf16)
{
    prompts p = { .name = name, .bf16 = bf16 };
    p.lp_max_allowed = bf16 ? 0.3 : 1e-4;
    p.lp_mean_allowed = bf16 ? 0.01 : 1e-5;
    tkc_json j;
    tinkc_str key;
    tkc_arena_init(&p.arena, NULL, 0);
    tke_model *m = tke_model_open(model, &p.err);
    tke_infer_options options = { .kv_bytes = 64 << 20 };
    tke_device_model *loaded = m ? device_load(device, m) : NULL;
    if (loaded)
        p.infer = tke_infer_new(loaded, &options, &p.err);
    tinkc_bytes text = { 0 };
    if (p.infer)
        text = tkc_read_file(&p.arena, file, 16 << 20, &p.err);
    if (p.err.code)
        die(&p.err);
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), &p.arena, &p.err);
    tkc_json_object(&j);
    while (tkc_json_key(&j, &key)) {
        if (tkc_str_is(key, "tolerance")) {
            read_tolerance(&p, &j);
        } else if (tkc_str_is(key, "prompts")) {
            tkc_json_array(&j);
            while (tkc_json_item(&j))
                read_prompt(&p, &j);
        } else
            tkc_json_skip(&j);
    }
    if (p.err.code)
        die(&p.err);
    report(name, "prompt log-probs (largest)", p.lp_max, p.lp_max_allowed);
    report(name, "continuation log-probs (largest)", p.sampled_max, p.lp_max_allowed);
    report(name, "all log-probs (mean)", p.lp_sum / (double)p.n_lp, p.lp_mean_allowed);
    report(name, "continuations that differ", (double)p.n_wrong, 0);
    tke_infer_free(p.infer);
    device_unload(loaded);
    tke_model_drop(m);
    tkc_arena_free(&p.arena);
}
