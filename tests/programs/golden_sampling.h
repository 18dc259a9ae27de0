/* golden_sampling.h - part of golden_check: filters, draws, Philox, top-k, LoRA initialisation. */

typedef struct sampling_errors {
    double philox, uniform, kept, prob, token, lp, refused, topk, topk_lp, init;
} sampling_errors;

typedef struct sampling_case {
    float *logits;
    size_t n, cap;
    double temperature, top_p;
    int64_t top_k;
    tinkc_i32s kept;
    tinkc_f32s probs;
    bool error;
} sampling_case;

static void worst(double *so_far, double error)
{
    if (error > *so_far || isnan(error))
        *so_far = error;
}

static uint32_t hex_word(const char **at)
{
    uint32_t x = 0;
    while (**at == ' ')
        ++*at;
    for (int i = 0; i < 8; i++, ++*at)
        x = x << 4 | (uint32_t)(**at <= '9' ? **at - '0' : **at - 'a' + 10);
    return x;
}

static void hex_words(tinkc_str text, uint32_t *out, int n)
{
    const char *at = text.data;
    for (int i = 0; i < n; i++)
        out[i] = hex_word(&at);
}

/* Decimal text of any 64-bit integer, signed or not. */
static uint64_t seed_of(tinkc_str text)
{
    uint64_t u = 0;
    int64_t i = 0;
    if (tkc_parse_u64(text, &u))
        return u;
    tkc_parse_i64(text, &i);
    return (uint64_t)i;
}

static void read_philox(tkc_json *j, sampling_errors *e)
{
    tinkc_str key;
    uint32_t counter[4], keys[2], words[4], got[4];
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        tinkc_str text = tkc_json_string(j);
        if (tkc_str_is(key, "counter"))
            hex_words(text, counter, 4);
        else if (tkc_str_is(key, "key"))
            hex_words(text, keys, 2);
        else if (tkc_str_is(key, "words"))
            hex_words(text, words, 4);
    }
    tke_philox(counter, keys, got);
    e->philox += memcmp(got, words, sizeof got) != 0;
}

static void read_uniform(tkc_json *j, sampling_errors *e)
{
    tinkc_str key, seed = { 0 }, want = { 0 };
    int64_t sample = 0, position = 0;
    uint64_t integer = 0;
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "seed"))
            seed = tkc_json_string(j);
        else if (tkc_str_is(key, "sample"))
            sample = tkc_json_i64(j);
        else if (tkc_str_is(key, "position"))
            position = tkc_json_i64(j);
        else if (tkc_str_is(key, "uniform_times_2_53"))
            want = tkc_json_string(j);
        else
            tkc_json_skip(j);
    }
    tkc_parse_u64(want, &integer);
    double u = tke_uniform(seed_of(seed), (uint32_t)sample, (uint32_t)position);
    e->uniform += u * 0x1p53 != (double)integer;
}

static tke_norm norm_of(const sampling_case *c)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < c->n; i++)
        max = c->logits[i] > max ? c->logits[i] : max;
    for (size_t i = 0; i < c->n; i++)
        sum += exp(c->logits[i] - max);
    return (tke_norm){ (float)max, (float)log(sum) };
}

/* Every case has all of its numbers: a vector that is too short would be compared with nothing. */
static void need(bool there, const char *what)
{
    if (there)
        return;
    fprintf(stderr, "golden_check: sampling: a case lacks %s\n", what);
    exit(2);
}

static void read_logits(tkc_json *j, sampling_case *c)
{
    tkc_json_array(j);
    while (tkc_json_item(j)) {
        float z = -INFINITY;
        if (!tkc_json_null(j))
            z = (float)tkc_json_double(j);
        float *more = tkc_grow(NULL, c->logits, &c->cap, c->n + 1, sizeof *more, j->err);
        if (!more)
            die(j->err);
        c->logits = more;
        c->logits[c->n++] = z;
    }
}

static void free_logits(sampling_case *c)
{
    tkc_release(NULL, c->logits, c->cap * sizeof *c->logits);
}

static void check_draw(tkc_json *j, const sampling_case *c, tke_sample_space *space, sampling_errors *e)
{
    static const char *const kinds[3] = { "scaled", "raw", "processed" };
    tinkc_str key, seed = { 0 };
    int64_t sample = 0, position = 0, token = -1;
    double want[3] = { 0 };
    tinkc_error err = { 0 };
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "seed"))
            seed = tkc_json_string(j);
        else if (tkc_str_is(key, "sample"))
            sample = tkc_json_i64(j);
        else if (tkc_str_is(key, "position"))
            position = tkc_json_i64(j);
        else if (tkc_str_is(key, "token"))
            token = tkc_json_i64(j);
        else if (tkc_str_is(key, "logprob")) {
            tkc_json_object(j);
            while (tkc_json_key(j, &key)) {
                double value = tkc_json_double(j);
                for (int k = 0; k < 3; k++)
                    if (tkc_str_is(key, kinds[k]))
                        want[k] = value;
            }
        } else
            tkc_json_skip(j);
    }
    for (int k = 0; k < 3; k++) {
        tke_sample_rule rule = { c->temperature, c->top_p, c->top_k, k };
        int32_t got = -1;
        float lp = NAN;
        tke_draw d = {
            .rule = &rule, .seed = seed_of(seed), .sample = (uint32_t)sample, .position = (uint32_t)position
        };
        if (!tke_sample_draw(c->logits, c->n, norm_of(c), &d, space, &got, &lp, &err))
            die(&err);
        e->token += got != token;
        worst(&e->lp, fabs((double)lp - want[k]) / fmax(1, fabs(want[k])));
    }
}

static void check_kept(const sampling_case *c, tke_sample_space *space, sampling_errors *e)
{
    tinkc_error err = { 0 };
    tke_sample_rule rule = { c->temperature, c->top_p, c->top_k, 0 };
    bool ok = tke_sample_filter(c->logits, c->n, &rule, space, &err);
    if (c->error) {
        e->refused += ok;
        return;
    }
    if (!ok)
        die(&err);
    double sum = 0;
    size_t k = 0;
    for (size_t i = 0; i < c->n; i++)
        sum += space->mass[i];
    for (size_t i = 0; i < c->n; i++) {
        double p = space->mass[i] / sum;
        if (k < c->kept.len && c->kept.data[k] == (int32_t)i) {
            worst(&e->prob, fabs(p - (double)c->probs.data[k]) / (double)c->probs.data[k]);
            e->kept += !(p > 0);
            k++;
        } else {
            e->kept += p >= 1e-12;
        }
    }
    e->kept += (double)(c->kept.len - k); /* ids out of order or past the end */
}

static void read_case(tkc_json *j, sampling_errors *e)
{
    tinkc_str key, draws = { 0 };
    sampling_case c = { .temperature = 1, .top_p = 1, .top_k = -1 };
    tke_sample_space space = { 0 };
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "logits"))
            read_logits(j, &c);
        else if (tkc_str_is(key, "temperature"))
            c.temperature = tkc_json_double(j);
        else if (tkc_str_is(key, "top_p"))
            c.top_p = tkc_json_double(j);
        else if (tkc_str_is(key, "top_k"))
            c.top_k = tkc_json_i64(j);
        else if (tkc_str_is(key, "kept"))
            c.kept = tkc_json_i32s(j);
        else if (tkc_str_is(key, "probs"))
            c.probs = tkc_json_f32s(j);
        else if (tkc_str_is(key, "draws"))
            draws = tkc_json_skip(j);
        else if (tkc_str_is(key, "error"))
            c.error = !tkc_str_is(tkc_json_skip(j), "false");
        else
            tkc_json_skip(j);
    }
    if (j->err->code || !tke_sample_space_init(&space, c.n, j->err))
        die(j->err);
    need(c.n > 0, "logits");
    need(c.error || (c.kept.len > 0 && c.probs.len == c.kept.len), "kept ids with probs");
    check_kept(&c, &space, e);
    if (draws.len && !c.error) {
        tkc_json d;
        tkc_json_open(&d, draws, j->arena, j->err);
        tkc_json_array(&d);
        while (tkc_json_item(&d))
            check_draw(&d, &c, &space, e);
    }
    tke_sample_space_free(&space);
    free_logits(&c);
}

static void read_topk(tkc_json *j, sampling_errors *e)
{
    tinkc_str key;
    sampling_case c = { 0 };
    int64_t k = 0;
    tinkc_i32s ids = { 0 };
    tinkc_f32s lps = { 0 };
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "logits"))
            read_logits(j, &c);
        else if (tkc_str_is(key, "k"))
            k = tkc_json_i64(j);
        else if (tkc_str_is(key, "token_ids"))
            ids = tkc_json_i32s(j);
        else if (tkc_str_is(key, "logprobs"))
            lps = tkc_json_f32s(j);
        else
            tkc_json_skip(j);
    }
    need(c.n > 0 && k > 0 && ids.len == (size_t)k && lps.len == (size_t)k, "logits, k, token_ids");
    int32_t *got = tkc_arena_array(j->arena, (size_t)k, sizeof *got, j->err);
    float *lp = tkc_arena_array(j->arena, (size_t)k, sizeof *lp, j->err);
    if (!got || !lp)
        die(j->err);
    tke_top_k(c.logits, c.n, norm_of(&c), (size_t)k, got, lp);
    for (size_t i = 0; i < (size_t)k; i++) {
        e->topk += got[i] != ids.data[i];
        worst(&e->topk_lp, fabs((double)lp[i] - (double)lps.data[i]));
    }
    free_logits(&c);
}

static void read_init(tkc_json *j, sampling_errors *e)
{
    tinkc_str key, seed = { 0 }, module = { 0 };
    int64_t in = 0;
    tinkc_i64s elements = { 0 };
    uint32_t bits[4096];
    size_t n = 0;
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "seed"))
            seed = tkc_json_string(j);
        else if (tkc_str_is(key, "module"))
            module = tkc_json_string(j);
        else if (tkc_str_is(key, "in"))
            in = tkc_json_i64(j);
        else if (tkc_str_is(key, "elements"))
            elements = tkc_json_i64s(j);
        else if (tkc_str_is(key, "bits")) {
            tkc_json_array(j);
            while (tkc_json_item(j))
                hex_words(tkc_json_string(j), &bits[n++ % 4096], 1);
        } else
            tkc_json_skip(j);
    }
    need(n > 0 && n <= 4096 && n == elements.len && in > 0, "elements with bits");
    for (size_t i = 0; i < n; i++)
        e->init += tke_f32_to_bits(tke_lora_init(tkc_hash(module.data, module.len), seed_of(seed), (size_t)in,
                                                 (uint64_t)elements.data[i])) != bits[i];
}

void check_sampling(const char *file, const char *name)
{
    static const struct {
        const char *key;
        void (*read)(tkc_json *, sampling_errors *);
    } parts[] = { { "philox", read_philox },
                  { "uniforms", read_uniform },
                  { "cases", read_case },
                  { "topk", read_topk },
                  { "lora_init", read_init } };
    sampling_errors e = { 0 };
    size_t n_items[5] = { 0 };
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_json j;
    tinkc_str key;
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes text = tkc_read_file(&arena, file, 16 << 20, &err);
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), &arena, &err);
    tkc_json_object(&j);
    while (tkc_json_key(&j, &key)) {
        size_t i = 0;
        while (i < 5 && !tkc_str_is(key, parts[i].key))
            i++;
        if (i == 5) {
            if (!tkc_str_is(key, "about"))
                printf("%-28s '%.*s' is not compared\n", name, (int)key.len, key.data);
            tkc_json_skip(&j);
            continue;
        }
        tkc_json_array(&j);
        for (; tkc_json_item(&j); n_items[i]++)
            parts[i].read(&j, &e);
    }
    if (err.code)
        die(&err);
    size_t total = 0;
    for (size_t i = 0; i < 5; i++) {
        total += n_items[i];
        if (!n_items[i])
            printf("%-28s no '%s' there\n", name, parts[i].key);
    }
    if (!total) /* nothing compared is nothing shown */
        report(name, "cases", NAN, 0);
    report(name, "philox words that differ", e.philox, 0);
    report(name, "uniforms that differ", e.uniform, 0);
    report(name, "kept tokens that differ", e.kept, 0);
    report(name, "probabilities (relative)", e.prob, 1e-6);
    report(name, "draws that differ", e.token, 0);
    report(name, "log-probs of draws", e.lp, 1e-5);
    report(name, "faulty logits not refused", e.refused, 0);
    report(name, "top-k tokens that differ", e.topk, 0);
    report(name, "top-k log-probs", e.topk_lp, 1e-5);
    report(name, "seeded adapter bits that differ", e.init, 0);
    tkc_arena_free(&arena);
}
