/* models.h - what is known about models by name. */
#ifndef CLI_MODELS_H
#define CLI_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_model_facts {
    const char *name;
    const char *kind; /* "chat", "base vision", ... */
    int64_t hidden;
    int64_t mlp, attn, unembed; /* LoRA parameters for each unit of rank; 0 = not known */
    const char *renderer;       /* recommended; NULL = the model's own template */
} cli_model_facts;

/* Memory of a parameter in the engine: weight, gradient, two moments, and the copy that a pass works on. */
enum { CLI_ADAPTER_BYTES = 5 * 4 };

/* The shipped model learns fastest here: measured with the quickstart's lesson. */
#define CLI_NANO_RATE 1e-3

/* Everything from the first ':' or '#' is ignored. NULL = not known. */
const cli_model_facts *cli_model_find(const char *name);
/* The known name that this one is a misspelling of: other case or punctuation, or up to two other
 * letters, but the same digits, which tell models apart. Without "ORG/" in front, too. NULL = none. */
const char *cli_model_meant(const char *name);
/* The i-th renderer that suits the model, the recommended one first; NULL past the end. */
const char *cli_model_renderer(const cli_model_facts *, size_t i);
/* The i-th name, for completion; NULL past the end. */
const char *cli_model_name(size_t i);
/* The formula's learning rate; 0 where it was never calibrated. */
double cli_model_rate(const char *name, int64_t hidden, bool lora);
/* For LoRA on a known model; 0 = none can be given. */
double cli_model_suggested_rate(const char *name);

#endif
