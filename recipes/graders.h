/* graders.h - graders that run here: functions of a text, an answer and a row. */
#ifndef TKR_GRADERS_H
#define TKR_GRADERS_H

#include "recipes/jsontext.h"
#include "recipes/pattern.h"

typedef struct tkr_grader {
    const char *name;
    double (*grade)(const struct tkr_grader *, const char *text, const char *answer,
                    const char *row_json, tinkc_error *err);
    tkr_pattern *pattern;
    tkc_tree *schema;
    tkc_arena arena; /* of the schema */
    bool needs_answer;
} tkr_grader;

/* From "exact", "regex:^a" and so on (tinkc_reward_grader). Errors: ARGUMENT, FILE, UNSUPPORTED. */
bool tkr_grader_open(tkr_grader *, const char *spec, tinkc_error *err);
void tkr_grader_close(tkr_grader *);

#endif
