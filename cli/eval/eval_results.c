/* eval_results.c - an evaluation on disk, and what it comes to. Must not: need a model or a network. */
#include "cli/eval/eval_results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <dirent.h>
#include <unistd.h>

#include "cli/output/out.h"
#include "cli/output/text.h"

/* ---- writing ---- */

tkc_tree *cli_eval_line(tkc_arena *arena, const char *benchmark, size_t index,
                        const char *example_id, size_t sample, const tinkc_rollout *r)
{
    tkc_tree *turns = tkc_tree_array(arena), *metrics = tkc_tree_object(arena),
             *said = tkc_tree_read(arena, tkc_str(r->messages_json), 0);
    for (size_t i = 0; i < tkc_tree_length(said); i++) {
        const tkc_tree *m = tkc_tree_at(said, i);
        bool last = i + 1 == tkc_tree_length(said);
        tkc_tree_add(turns, tkc_tree_pack(arena, "{s:o,s:o?,s:o}", "role", tkc_tree_get(m, "role"),
                                          "content", tkc_tree_get(m, "content"), "token_count",
                                          last ? tkc_tree_new_i64(arena, (int64_t)r->sampled_tokens)
                                               : tkc_tree_null()));
    }
    for (size_t i = 0; r->metric_names[i]; i++)
        tkc_tree_set_real(metrics, r->metric_names[i], r->metric_values[i]);
    tkc_tree *v = tkc_tree_pack(
        arena, "{s:I,s:s,s:s,s:I,s:o,s:s,s:s?,s:f,s:o,s:s?,s:s,s:f}", "idx", (int64_t)index,
        "benchmark", benchmark, "example_id", example_id, "sample", (int64_t)sample, "turns", turns,
        "text", r->text, "answer", r->answer, "reward", r->reward, "metrics", metrics, "error",
        r->error, "stop_reason", r->stop_reason == TINKC_STOP ? "stop" : "length", "time_seconds",
        (double)r->took_ms / 1000);
    return v;
}

/* ---- reading ---- */

static char *copy_of(const tkc_tree *v)
{
    if (tkc_tree_is_text(v))
        return strdup(tkc_tree_text(v));
    return v && !tkc_tree_is_null(v) ? cli_json_print(v, TKC_TREE_COMPACT) : NULL;
}

static char *last_question(const tkc_tree *turns)
{
    const tkc_tree *found = NULL;
    for (size_t i = 0; i < tkc_tree_length(turns); i++) {
        const tkc_tree *t = tkc_tree_at(turns, i);
        const char *role = tkc_tree_get_text(t, "role");
        if (role && strcmp(role, "assistant") != 0)
            found = tkc_tree_get(t, "content");
    }
    char *text = copy_of(found);
    return text ? text : strdup("");
}

/* The harness has one metric of each task under its own name. */
static bool harness_reward(const tkc_tree *v, double *out)
{
    static const char *const names[] = { "exact_match", "acc", "acc_norm", "pass@1", "f1" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tkc_tree_is_number(tkc_tree_get(v, names[i]))) {
            *out = tkc_tree_get_number(v, names[i]);
            return true;
        }
    return false;
}

static void free_row(cli_eval_row *r)
{
    free(r->example_id);
    free(r->text);
    free(r->prompt);
    free(r->answer);
    free(r->error);
}

static bool row_of(const tkc_tree *v, cli_eval_row *out)
{
    const tkc_tree *id = tkc_tree_get(v, "example_id"), *reward = tkc_tree_get(v, "reward");
    const tkc_tree *stop = tkc_tree_get(v, "stop_reason");
    *out = (cli_eval_row){ 0 };
    if (!id && tkc_tree_get(v, "doc_id")) { /* lm-evaluation-harness */
        const tkc_tree *text = tkc_tree_at(tkc_tree_get(v, "filtered_resps"), 0);
        if (!harness_reward(v, &out->reward))
            return false;
        out->example_id = copy_of(tkc_tree_get(v, "doc_id"));
        out->text = copy_of(tkc_tree_is_array(text) ? tkc_tree_at(text, 0) : text);
        out->answer = copy_of(tkc_tree_get(v, "target"));
        out->prompt = strdup("");
    } else if (id && tkc_tree_is_number(reward)) {
        out->example_id = copy_of(id);
        out->reward = tkc_tree_number(reward);
        out->text = copy_of(tkc_tree_get(v, "text"));
        out->answer = copy_of(tkc_tree_get(v, "answer"));
        out->error = copy_of(tkc_tree_get(v, "error"));
        out->prompt = last_question(tkc_tree_get(v, "turns"));
        out->truncated = tkc_tree_is_text(stop) && strcmp(tkc_tree_text(stop), "length") == 0;
    }
    if (!out->example_id) {
        free_row(out);
        return false;
    }
    if (!out->text)
        out->text = strdup("");
    return true;
}

static char *place_key(const char *example_id, long long sample)
{
    return cli_printf("%lld %s", sample, example_id);
}

/* The row is kept or freed. A line that repeats an answer replaces it: a failed one was asked again. */
static void keep(cli_eval *e, cli_eval_row *row, const tkc_tree *sample)
{
    char *key = sample ? place_key(row->example_id, tkc_tree_i64(sample)) : NULL;
    const tkc_tree *place = key ? tkc_tree_get(e->places, key) : NULL;
    if (place) {
        cli_eval_row *before = &e->rows[tkc_tree_i64(place)];
        free_row(before);
        *before = *row;
        free(key);
        return;
    }
    if (e->n == e->cap) {
        size_t cap = e->cap ? 2 * e->cap : 64;
        cli_eval_row *grown = realloc(e->rows, cap * sizeof *grown);
        if (!grown) {
            free_row(row);
            free(key);
            return;
        }
        e->rows = grown;
        e->cap = cap;
    }
    if (key)
        tkc_tree_set_i64(e->places, key, (int64_t)e->n);
    free(key);
    e->rows[e->n++] = *row;
}

bool cli_eval_load(const char *file, cli_eval *out)
{
    FILE *f = fopen(file, "re");
    char *line = NULL;
    size_t cap = 0;
    tkc_arena arena = { 0 };
    *out = (cli_eval){ 0 };
    out->places = tkc_tree_object(&out->arena);
    while (f && getline(&line, &cap, f) > 0) {
        const tkc_tree *v = tkc_tree_read(&arena, tkc_str(line), 0);
        cli_eval_row row;
        if (v && row_of(v, &row))
            keep(out, &row, tkc_tree_get(v, "sample"));
        if (v && !out->name && tkc_tree_is_text(tkc_tree_get(v, "benchmark")))
            out->name = strdup(tkc_tree_get_text(v, "benchmark"));
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
    free(line);
    if (f)
        fclose(f);
    return f != NULL;
}

/* The folder itself, or the only benchmark in it. */
static char *find_file(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
        return strdup(path);
    char *file = cli_printf("%s/trajectories.jsonl", path);
    if (file && access(file, R_OK) == 0)
        return file;
    free(file);
    file = NULL;
    DIR *d = opendir(path);
    for (const struct dirent *e; d && !file && (e = readdir(d));) {
        file = e->d_name[0] == '.' ? NULL : cli_printf("%s/%s/trajectories.jsonl", path, e->d_name);
        if (file && access(file, R_OK) != 0) {
            free(file);
            file = NULL;
        }
    }
    if (d)
        closedir(d);
    return file;
}

int cli_eval_read(cli_app *app, const char *path, cli_eval *out)
{
    char *file = find_file(path);
    *out = (cli_eval){ 0 };
    bool found = file && cli_eval_load(file, out);
    free(file);
    if (!found || out->n == 0)
        return cli_fail(app, "not_found",
                        "it is a folder that `tinkc eval run` wrote, or samples of the "
                        "lm-evaluation-harness",
                        "%s holds no evaluation", path);
    if (!out->name)
        out->name = strdup(path);
    return 0;
}

void cli_eval_free(cli_eval *e)
{
    for (size_t i = 0; i < e->n; i++)
        free_row(&e->rows[i]);
    free(e->rows);
    free(e->name);
    tkc_arena_free(&e->arena);
    *e = (cli_eval){ 0 };
}

bool cli_eval_has(const cli_eval *e, const char *example_id, size_t sample)
{
    char *key = place_key(example_id, (long long)sample);
    const tkc_tree *place = key ? tkc_tree_get(e->places, key) : NULL;
    free(key);
    return place && !e->rows[tkc_tree_i64(place)].error;
}

/* ---- what it comes to ---- */

static int by_id(const void *a, const void *b)
{
    const cli_eval_row *x = ((const cli_eval_example *)a)->first,
                       *y = ((const cli_eval_example *)b)->first;
    int order = strcmp(x->example_id, y->example_id);
    return order ? order : (x > y) - (x < y);
}

cli_eval_example *cli_eval_examples(const cli_eval *e, size_t *n)
{
    cli_eval_example *all = calloc(e->n + 1, sizeof *all);
    size_t answers = 0, used = 0;
    for (size_t i = 0; all && i < e->n; i++) {
        const cli_eval_row *r = &e->rows[i];
        if (!r->error)
            all[answers++] = (cli_eval_example){ r, 1, r->reward >= 0.5, r->reward };
    }
    if (answers)
        qsort(all, answers, sizeof *all, by_id);
    for (size_t i = 0; i < answers; i++) {
        cli_eval_example *last = used ? &all[used - 1] : NULL;
        if (last && strcmp(last->first->example_id, all[i].first->example_id) == 0) {
            last->n++;
            last->right += all[i].right;
            last->mean += all[i].mean;
        } else {
            all[used++] = all[i];
        }
    }
    for (size_t i = 0; i < used; i++)
        all[i].mean /= (double)all[i].n;
    *n = used;
    return all;
}

static tkc_tree *pass_at_k(tkc_arena *arena, const cli_eval_example *all, size_t n)
{
    tkc_tree *out = tkc_tree_object(arena);
    size_t most = 0;
    char name[32];
    for (size_t i = 0; i < n; i++)
        most = all[i].n > most ? all[i].n : most;
    for (size_t k = 1; k <= most && most > 1; k *= 2) {
        double sum = 0;
        size_t counted = 0;
        for (size_t i = 0; i < n; i++)
            if (all[i].n >= k) {
                sum += tinkc_recipe_pass_at_k(all[i].n, all[i].right, k);
                counted++;
            }
        (void)snprintf(name, sizeof name, "%zu", k);
        tkc_tree_set_real(out, name, sum / (double)counted);
    }
    return out;
}

bool cli_eval_is_binary(const double *scores, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (scores[i] != 0 && scores[i] != 1)
            return false;
    return true;
}

/* Bootstrap cannot see beyond its examples: of 20 right answers in 20 it makes a certainty. */
static tinkc_interval interval_of(const double *scores, size_t n, size_t right)
{
    if (cli_eval_is_binary(scores, n))
        return tinkc_recipe_wilson(right, n, 0.95);
    return tinkc_recipe_bootstrap(scores, n, 0.95, 0);
}

tkc_tree *cli_eval_result(tkc_arena *arena, const cli_eval *e, double seconds)
{
    size_t n, right = 0, errors = 0, truncated = 0;
    cli_eval_example *all = cli_eval_examples(e, &n);
    double *scores = calloc(n + 1, sizeof *scores);
    for (size_t i = 0; scores && i < n; i++) {
        scores[i] = all[i].mean;
        right += scores[i] >= 0.5;
    }
    for (size_t i = 0; i < e->n; i++) {
        errors += e->rows[i].error != NULL;
        truncated += e->rows[i].truncated;
    }
    tinkc_interval ci = interval_of(scores, scores ? n : 0, right);
    tkc_tree *v = tkc_tree_pack(
        arena, "{s:s,s:o,s:[oo],s:I,s:I,s:I,s:I,s:f,s:o}", "name", e->name ? e->name : "", "score",
        isfinite(ci.mean) ? tkc_tree_new_real(arena, ci.mean) : tkc_tree_null(), "interval_95",
        isfinite(ci.low) ? tkc_tree_new_real(arena, ci.low) : tkc_tree_null(),
        isfinite(ci.high) ? tkc_tree_new_real(arena, ci.high) : tkc_tree_null(), "num_examples",
        (int64_t)n, "num_correct", (int64_t)right, "num_errors", (int64_t)errors, "num_truncated",
        (int64_t)truncated, "time_seconds", seconds, "pass_at_k", pass_at_k(arena, all, n));
    free(all);
    free(scores);
    return v;
}
