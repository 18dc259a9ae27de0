/* check_rules.h - what the checks of the rules with a state share: numbers that host and card both see, packed sequences, and the
 * same sequences cut into steps.
 */
#ifndef TKE_CHECK_RULES_H
#define TKE_CHECK_RULES_H

#include "cuda/cuda_rules.h"
#include "gpu_world.h"

typedef struct rules_check { /* one for all checks of a mode */
    tcu_device *device;
    int failures;
} rules_check;

void rules_verdict(rules_check *, bool ok, const char *what, double value);
/* Ends the program unless rc, a cudaError_t, is 0; waits for the card. */
void rules_done(rules_check *, int rc, const char *what);

/* Memory that host and card see. */
void *rules_room(size_t bytes);
void rules_drop(void *);
tcu_bf16 *rules_numbers(size_t n, uint64_t seed, float scale);
float *rules_floats(size_t n, uint64_t seed, float scale, float middle);
double rules_wide(tcu_bf16);

/* The largest distance of got from want, in units of want's largest number of the same row of n. */
double rules_distance(const tcu_bf16 *got, const double *want, size_t rows, size_t n, size_t ld);

enum { RULES_SEQS = 8 };
typedef struct rules_pack { /* sequences side by side */
    tcu_run *runs;          /* [RULES_SEQS] */
    int32_t rows, longest;
} rules_pack;
rules_pack rules_pack_new(void);

typedef struct rules_turn { /* a step: some of each sequence's next rows */
    tcu_run *runs;          /* [RULES_SEQS] rows of the step, slots */
    int32_t from[RULES_SEQS]; /* where they are in the pack */
    int32_t n_runs, rows, longest;
} rules_turn;
/* The next step; cut: 0 = the rest of each sequence, else up to so many rows of it. False at the end. */
bool rules_next(const rules_pack *, rules_turn *, int32_t at[RULES_SEQS], int32_t cut);
/* Rows of n numbers from the pack to the step; or, with `differ`, how many numbers differ. */
void rules_gather(const rules_turn *, tcu_bf16 *to, const tcu_bf16 *pack, size_t n);
uint64_t rules_differ(const rules_turn *, const tcu_bf16 *step, const tcu_bf16 *pack, size_t n);

/* The checks: check_rules.c for the convolution, check_space.c, check_delta.c. */
int check_rules(tcu_device *);
void speed_rules(tcu_device *);
void check_space(rules_check *);
void check_delta(rules_check *);
/* Prints what a layer of Qwen3.5-4B takes. */
void speed_delta(rules_check *);
/* Prints what a layer of Nemotron-3 Nano 30B-A3B takes. */
void speed_space(rules_check *);

#endif
