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

json_t *cli_eval_line(const char *benchmark, size_t index, const char *example_id, size_t sample,
                      const tinkc_rollout *r)
{
    json_t *turns = json_array(), *metrics = json_object(),
           *said = json_loads(r->messages_json, 0, NULL);
    for (size_t i = 0; i < json_array_size(said); i++) {
        const json_t *m = json_array_get(said, i);
        bool last = i + 1 == json_array_size(said);
        json_array_append_new(
            turns, json_pack("{s:O,s:O?,s:o}", "role", json_object_get(m, "role"), "content",
                             json_object_get(m, "content"), "token_count",
                             last ? json_integer((json_int_t)r->sampled_tokens) : json_null()));
    }
    for (size_t i = 0; r->metric_names[i]; i++)
        json_object_set_new(metrics, r->metric_names[i], json_real(r->metric_values[i]));
    json_t *v = json_pack("{s:I,s:s,s:s,s:I,s:o,s:s,s:s?,s:f,s:o,s:s?,s:s,s:f}", "idx",
                          (json_int_t)index, "benchmark", benchmark, "example_id", example_id,
                          "sample", (json_int_t)sample, "turns", turns, "text", r->text, "answer",
                          r->answer, "reward", r->reward, "metrics", metrics, "error", r->error,
                          "stop_reason", r->stop_reason == TINKC_STOP ? "stop" : "length",
                          "time_seconds", (double)r->took_ms / 1000);
    json_decref(said);
    return v;
}

/* ---- reading ---- */

static char *copy_of(const json_t *v)
{
    if (json_is_string(v))
        return strdup(json_string_value(v));
    return v && !json_is_null(v) ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
}

static char *last_question(const json_t *turns)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(turns); i++) {
        const json_t *t = json_array_get(turns, i);
        const char *role = json_string_value(json_object_get(t, "role"));
        if (role && strcmp(role, "assistant") != 0)
            found = json_object_get(t, "content");
    }
    char *text = copy_of(found);
    return text ? text : strdup("");
}

/* The harness has one metric of each task under its own name. */
static bool harness_reward(const json_t *v, double *out)
{
    static const char *const names[] = { "exact_match", "acc", "acc_norm", "pass@1", "f1" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is_number(json_object_get(v, names[i]))) {
            *out = json_number_value(json_object_get(v, names[i]));
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

static bool row_of(const json_t *v, cli_eval_row *out)
{
    const json_t *id = json_object_get(v, "example_id"), *reward = json_object_get(v, "reward");
    const json_t *stop = json_object_get(v, "stop_reason");
    *out = (cli_eval_row){ 0 };
    if (!id && json_object_get(v, "doc_id")) { /* lm-evaluation-harness */
        const json_t *text = json_array_get(json_object_get(v, "filtered_resps"), 0);
        if (!harness_reward(v, &out->reward))
            return false;
        out->example_id = copy_of(json_object_get(v, "doc_id"));
        out->text = copy_of(json_is_array(text) ? json_array_get(text, 0) : text);
        out->answer = copy_of(json_object_get(v, "target"));
        out->prompt = strdup("");
    } else if (id && json_is_number(reward)) {
        out->example_id = copy_of(id);
        out->reward = json_number_value(reward);
        out->text = copy_of(json_object_get(v, "text"));
        out->answer = copy_of(json_object_get(v, "answer"));
        out->error = copy_of(json_object_get(v, "error"));
        out->prompt = last_question(json_object_get(v, "turns"));
        out->truncated = json_is_string(stop) && strcmp(json_string_value(stop), "length") == 0;
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
static void keep(cli_eval *e, cli_eval_row *row, const json_t *sample)
{
    char *key = sample ? place_key(row->example_id, json_integer_value(sample)) : NULL;
    const json_t *place = key ? json_object_get(e->places, key) : NULL;
    if (place) {
        cli_eval_row *before = &e->rows[json_integer_value(place)];
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
        json_object_set_new(e->places, key, json_integer((json_int_t)e->n));
    free(key);
    e->rows[e->n++] = *row;
}

bool cli_eval_load(const char *file, cli_eval *out)
{
    FILE *f = fopen(file, "re");
    char *line = NULL;
    size_t cap = 0;
    *out = (cli_eval){ .places = json_object() };
    while (f && getline(&line, &cap, f) > 0) {
        json_t *v = json_loads(line, 0, NULL);
        cli_eval_row row;
        if (v && row_of(v, &row))
            keep(out, &row, json_object_get(v, "sample"));
        if (v && !out->name && json_is_string(json_object_get(v, "benchmark")))
            out->name = strdup(json_string_value(json_object_get(v, "benchmark")));
        json_decref(v);
    }
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
    json_decref(e->places);
    *e = (cli_eval){ 0 };
}

bool cli_eval_has(const cli_eval *e, const char *example_id, size_t sample)
{
    char *key = place_key(example_id, (long long)sample);
    const json_t *place = key ? json_object_get(e->places, key) : NULL;
    free(key);
    return place && !e->rows[json_integer_value(place)].error;
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

static json_t *pass_at_k(const cli_eval_example *all, size_t n)
{
    json_t *out = json_object();
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
        json_object_set_new(out, name, json_real(sum / (double)counted));
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

json_t *cli_eval_result(const cli_eval *e, double seconds)
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
    json_t *v = json_pack(
        "{s:s,s:o,s:[oo],s:I,s:I,s:I,s:I,s:f,s:o}", "name", e->name ? e->name : "", "score",
        isfinite(ci.mean) ? json_real(ci.mean) : json_null(), "interval_95",
        isfinite(ci.low) ? json_real(ci.low) : json_null(),
        isfinite(ci.high) ? json_real(ci.high) : json_null(), "num_examples", (json_int_t)n,
        "num_correct", (json_int_t)right, "num_errors", (json_int_t)errors, "num_truncated",
        (json_int_t)truncated, "time_seconds", seconds, "pass_at_k", pass_at_k(all, n));
    free(all);
    free(scores);
    return v;
}
