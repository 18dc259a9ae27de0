/* config_file.h - settings from files: user, project, system, credentials.
 *
 * Order, first that has a value wins: flag, environment, project file, selected profile,
 * [defaults] of the user file, system file, built in.
 */
#ifndef CLI_CONFIG_FILE_H
#define CLI_CONFIG_FILE_H

#include "cli/main/app.h"

typedef struct cli_setting {
    char *key;    /* dotted: "profile.work.base_url" */
    char *value;  /* as text; arrays joined by commas */
    char *origin; /* FILE:LINE */
    int layer;    /* CLI_LAYER_* */
} cli_setting;

enum { CLI_LAYER_PROJECT, CLI_LAYER_USER, CLI_LAYER_CREDENTIALS, CLI_LAYER_SYSTEM };

typedef struct cli_finding { /* what reading the files turned up */
    char *text;              /* FILE:LINE: what is wrong */
    const char *hint;        /* or NULL */
    int layer;
    bool error; /* the file cannot be used as it is; otherwise it is said, and that is all */
} cli_finding;

struct cli_config {
    cli_setting *settings;
    size_t n_settings;
    cli_finding *findings;
    size_t n_findings;
    char *user_file, *credentials_file, *project_file, *system_file; /* NULL = none */
    char *profile;
    const char *profile_origin;
};

/* Reads what there is, and keeps what is wrong with it (broken file, forbidden key) as findings: a
 * file is read up to its first error, the others completely. 0, or an exit code after reporting
 * that there is no memory. */
int cli_config_load(cli_app *);
/* Warns of what can be lived with; 0, or an exit code after reporting the first error. */
int cli_config_report(const cli_app *);
void cli_config_free(cli_config *);

/* Settings such as train.sft.lora_rank stand in for options that were not given. 0, or an exit
 * code after reporting. */
int cli_config_defaults(cli_app *);

/* Whether a value that comes from the project file, or from a file that it names, may be used; if not,
 * *why says what is forbidden. Paths are judged as they are now, with their links resolved. */
bool cli_project_may_set(const cli_app *, const cli_option *, const char *value, char why[CLI_WHY]);

/* Why only the user may choose this option, whatever its value: it runs commands, sends to an address,
 * overwrites. NULL = a file of a repository may. */
const char *cli_users_alone(const cli_option *);

/* The value of a profile key ("base_url") or dotted key ("train.sft.lora_rank") after the order
 * above (flags and environment excluded); NULL = none. *origin may be NULL. */
const char *cli_config_get(const cli_app *, const char *key, const char **origin);
/* Keys a profile may have; ends with NULL. Secrets are those of the credentials file. */
extern const char *const cli_profile_keys[];
bool cli_config_is_secret(const char *key);
/* Whether a profile's key may have this value; *why says what it may have instead. */
bool cli_config_check_value(const char *key, const char *value, char why[CLI_WHY]);
/* Writes one key into the user's file (or the credentials file, mode 0600); value NULL removes
 * it. 0, or an exit code after reporting. */
int cli_config_write(cli_app *, const char *profile, const char *key, const char *value);

/* The profiles there are, as keys of an object; true is the selected one, which comes first.
 * Yours. */
tkc_tree *cli_config_profile_names(const cli_app *);

bool cli_config_has_profile(const cli_app *, const char *name);
/* Reports that there is no such profile and what comes near; its exit code. */
int cli_config_no_profile(const cli_app *, const char *name, const char *origin);

/* $XDG_CONFIG_HOME/tinkc and its like, with a name behind; yours. */
char *cli_config_path(const char *name);
char *cli_cache_path(const char *name);
char *cli_state_path(const char *name);
char *cli_data_path(const char *name);

#endif
