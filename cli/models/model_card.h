/* model_card.h - the README.md of a repository that holds an adapter or a model. Pure text. */
#ifndef CLI_MODEL_CARD_H
#define CLI_MODEL_CARD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cli_card {
    const char *repo;
    const char *base_model; /* NULL = not known */
    const char *source;     /* tinker://...; NULL = none */
    int32_t rank;           /* 0 = not known */
    uint32_t freeze;        /* TINKC_FREEZE_*, if has_flags */
    bool has_flags;
    bool is_model; /* merged weights, not an adapter */
} cli_card;

/* Yours; NULL = no memory. */
char *cli_model_card(const cli_card *);

#endif
