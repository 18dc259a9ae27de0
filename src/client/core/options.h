/* options.h - reading tinkc_client_options and, only here, the environment. */
#ifndef TKC_API_OPTIONS_H
#define TKC_API_OPTIONS_H

#include "client/core/client_priv.h"

#define TKC_DEFAULT_URL "https://tinker.thinkingmachines.dev/services/tinker-prod"

/* What can be refused before anything is made of them: the allocator is one of them. */
bool tkc_options_check(const tinkc_client_options *, tinkc_error *err);
/* Fills in the client's constant fields, texts in client->texts. The options have been checked. */
bool tkc_options_apply(tinkc_client *, const tinkc_client_options *, tinkc_error *err);

/* A machine as the Python SDK names it in X-Stainless-Arch: "x64", "arm64", "other:riscv64". */
const char *tkc_arch_name(const char *machine, tkc_arena *, tinkc_error *err);

/* What is in a text made by tkc_boot_save; all in the arena. Members that are not there are NULL
 * or 0. */
typedef struct tkc_saved {
    const char *base_url, *jwt, *api_key, *credential_cmd, *session_id, *sampler_id;
    const char *const *headers;
    tinkc_str config;
    uint64_t account;
    int64_t refresh_interval_s;
    bool record_stability_info;
} tkc_saved;
bool tkc_saved_read(const char *text, const char *argument, tkc_arena *, tkc_saved *,
                    tinkc_error *err);

/* Numbers of options (types.h): 0 = not given, TINKC_ZERO, TINKC_FOREVER. `special` says which of the
 * last two make sense. Errors: ARGUMENT, naming the option. */
enum { TKC_MAY_BE_ZERO = 1, TKC_MAY_BE_ENDLESS = 2 };
bool tkc_check_number(int64_t value, int special, const char *name, tinkc_error *err);
/* The number itself, with `normal` where none was given; TINKC_FOREVER stays. */
int64_t tkc_number_or(int64_t value, int64_t normal);

#endif
