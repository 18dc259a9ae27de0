/* graders.c - exact, contains, regex, number, boxed-math, json-schema.
 *
 * Each gives 1 or 0. A row that lacks what the grader needs is an error that says so, never a 0.
 */
#include "recipes/graders.h"

#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/str.h"
#include "recipes/mathtext.h"
#include "recipes/schema.h"

static double grade_exact(const tkr_grader *g, const char *text, const char *answer,
                          const char *row, tinkc_error *err)
{
    (void)g, (void)row, (void)err;
    return tkc_str_eq(tkc_str_trim(tkc_str(text)), tkc_str_trim(tkc_str(answer)));
}

static double grade_contains(const tkr_grader *g, const char *text, const char *answer,
                             const char *row, tinkc_error *err)
{
    (void)g, (void)row, (void)err;
    tinkc_str part = tkc_str_trim(tkc_str(answer));
    return part.len && memmem(text, strlen(text), part.data, part.len) != NULL;
}

static double grade_regex(const tkr_grader *g, const char *text, const char *answer,
                          const char *row, tinkc_error *err)
{
    (void)row;
    return g->pattern ? tkr_pattern_matches(g->pattern, text, err)
                      : tkr_pattern_found(answer, text, err);
}

static double grade_number(const tkr_grader *g, const char *text, const char *answer,
                           const char *row, tinkc_error *err)
{
    (void)g, (void)row;
    double given, right;
    if (!tkr_last_number(answer, &right)) {
        tkc_fail(err, TINKC_E_ARGUMENT, "the answer '%.60s' holds no number", answer);
        return 0;
    }
    return tkr_last_number(text, &given) && tkr_same_number(given, right);
}

static double grade_boxed(const tkr_grader *g, const char *text, const char *answer,
                          const char *row, tinkc_error *err)
{
    (void)g, (void)row;
    tinkc_str given = tkr_last_boxed(text), right = tkr_last_boxed(answer);
    if (!right.data)
        right = tkc_str(answer);
    return given.data && tkr_same_formula(given, right, err);
}

static double grade_schema(const tkr_grader *g, const char *text, const char *answer,
                           const char *row, tinkc_error *err)
{
    (void)answer;
    tkc_arena arena = { 0 };
    const tkc_tree *whole = g->schema ? NULL : tkr_json_parse(&arena, row, strlen(row), "row", err);
    const tkc_tree *schema = g->schema ? g->schema : tkc_tree_get(whole, "schema");
    tinkc_str body = tkc_str_trim(tkc_str(text));
    const tkc_tree *v = tkc_tree_read(&arena, body, TKC_TREE_UNIQUE | TKC_TREE_ANY);
    bool ok = false;
    if (!schema && !tkc_failed(err))
        tkc_fail(err, TINKC_E_ARGUMENT, "the row has no \"schema\" and no schema file was given");
    else if (g->schema || tkr_schema_check(schema, err))
        ok = v && tkr_schema_conforms(schema, v, err);
    tkc_arena_free(&arena);
    return ok;
}

static const tkr_grader table[] = {
    { .name = "exact", .grade = grade_exact, .needs_answer = true },
    { .name = "contains", .grade = grade_contains, .needs_answer = true },
    { .name = "regex", .grade = grade_regex, .needs_answer = true },
    { .name = "number", .grade = grade_number, .needs_answer = true },
    { .name = "boxed-math", .grade = grade_boxed, .needs_answer = true },
    { .name = "json-schema", .grade = grade_schema },
};

static bool read_schema(tkr_grader *g, const char *path, tinkc_error *err)
{
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes text = tkc_read_file(&arena, path, 16 << 20, err);
    g->schema = tkc_failed(err)
                    ? NULL
                    : tkr_json_parse(&g->arena, (const char *)text.data, text.len, path, err);
    tkc_arena_free(&arena);
    return g->schema && tkr_schema_check(g->schema, err);
}

bool tkr_grader_open(tkr_grader *g, const char *spec, tinkc_error *err)
{
    size_t name = strcspn(spec, ":");
    const char *setting = spec[name] ? spec + name + 1 : NULL;
    *g = (tkr_grader){ 0 };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strlen(table[i].name) == name && strncmp(table[i].name, spec, name) == 0)
            *g = table[i];
    if (!g->name)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "no grader is called %.*s: exact, contains, regex, number, boxed-math, "
                        "json-schema, rubric",
                        (int)(name > 40 ? 40 : name), spec);
    if (!setting)
        return true;
    if (g->grade == grade_regex) {
        g->needs_answer = false;
        g->pattern = tkr_pattern_new(setting, err);
    } else if (g->grade == grade_schema) {
        (void)read_schema(g, setting, err);
    } else {
        tkc_fail(err, TINKC_E_ARGUMENT, "grader %s takes no setting: %.80s", g->name, setting);
    }
    if (tkc_failed(err))
        tkr_grader_close(g);
    return !tkc_failed(err);
}

void tkr_grader_close(tkr_grader *g)
{
    tkr_pattern_free(g->pattern);
    tkc_arena_free(&g->arena);
    *g = (tkr_grader){ 0 };
}
