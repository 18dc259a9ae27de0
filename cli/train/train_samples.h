/* train_samples.h - what the model says while it is trained, in samples.jsonl: one object a sample
 * with "step", "prompt" (a text or messages), "completion", and "reward" where there is one.
 *
 * A recipe that samples anyway notes some of its answers; others ask --sample-prompt between steps.
 */
#ifndef CLI_TRAIN_SAMPLES_H
#define CLI_TRAIN_SAMPLES_H

#include "cli/train/train_job.h"

/* The options of recipes that do not sample by themselves. */
#define CLI_SAMPLE_OPTIONS \
    OPT_TEXT("sample-prompt", "TEXT", "answer this while training, for LOG_DIR/samples.jsonl; may be repeated", \
             .repeats = true), \
    OPT_COUNT("sample-every", "N", "steps between such answers; 0 = only at the end", "20"), \
    OPT_COUNT("sample-tokens", "N", "longest such answer", "64")

/* Are prompts to be answered before this step? */
bool cli_samples_due(const cli_job *, size_t step);
/* Answers the prompts with the weights as they are, with no step in flight. What fails warns: the
 * training is worth more. False only after a signal. */
bool cli_samples_take(cli_job *);
/* Writes one sample. prompt: taken over. */
void cli_samples_note(cli_job *, size_t step, const tkc_tree *prompt, const char *completion,
                      const double *reward);

#endif
