/* command_table.h - the one description of every command and option.
 *
 * The parser, --help, the manual pages, the completions and `help --json` all read this table
 * and nothing else, so they cannot disagree. A new command is one row in commands.c and one
 * function in a cmd_*.c file.
 */
#ifndef CLI_COMMAND_TABLE_H
#define CLI_COMMAND_TABLE_H

#include <stdbool.h>
#include <stdio.h>
#include <stddef.h>

typedef struct cli_app cli_app;
typedef struct cli_column cli_column; /* out.h */

enum {           /* what an option's value is; checked by the parser */
       CLI_FLAG, /* none; --no-NAME turns it off                      */
       CLI_TEXT,
       CLI_INT,      /* whole number                                      */
       CLI_COUNT,    /* whole number, not negative                        */
       CLI_NUMBER,   /* any finite number                                 */
       CLI_DURATION, /* 90, 30s, 5m, 2h, 7d, 1w                           */
       CLI_SIZE,     /* 4096, 64K, 2G                                     */
       CLI_DATE,     /* ISO 8601, now, today, yesterday, -7d              */
       CLI_CHOICE,   /* one of `choices`                                  */
       CLI_FILE,     /* a path, or - for a standard stream                */
       CLI_DIR
};

typedef struct cli_option {
    const char *name;          /* long, without dashes; NULL ends a list     */
    const char *value;         /* how help shows the value: "N", "FILE"      */
    const char *help;          /* one sentence, no full stop                 */
    const char *default_value; /* the default as text; NULL = none           */
    const char *choices;       /* "a|b|c"                                    */
    const char *env;           /* variable that stands in for it             */
    const char *complete;      /* "run", "checkpoint", "model", "profile"    */
    const char *cookbook;      /* name=value field that means this option    */
    int kind;                  /* CLI_FLAG and so on                         */
    char letter;               /* short form; 0 = none                       */
    bool repeats;              /* may be given several times                 */
    bool optional_value;       /* --json and --json=FIELDS                   */
} cli_option;

typedef struct cli_command {
    const char *noun;     /* "checkpoint"; or the verb itself           */
    const char *verb;     /* NULL for `tinkc chat` etc.                */
    const char *args;     /* "PATH..." as usage shows it; "" = none     */
    const char *summary;  /* one line                                   */
    const char *details;  /* paragraphs for the long help, or NULL      */
    const char *arg_kind; /* for completion, as cli_option.complete     */
    const cli_option *options;
    const cli_column *columns;   /* what --columns knows; NULL = it depends on the data */
    const char *const *examples; /* list; each "command\0" with a comment before it by "# " */
    int (*run)(cli_app *);
    void (*more)(FILE *);   /* writes what else the help shows, lines indented by two; or NULL */
    int min_args, max_args; /* max -1 = any number */
    bool fields;            /* positional name=value means a cookbook field */
    bool hidden;
    bool any_profile; /* works without the profile that is selected: makes, shows or needs none */
    bool any_config; /* works whatever is wrong with the configuration files: shows it, fixes it, or
                        does not look at them */
} cli_command;

/* Every command, in the order help shows them; ends with noun NULL. */
extern const cli_command cli_commands[];
size_t cli_count_commands(void);
/* Options that every command takes. */
extern const cli_option cli_globals[];

/* What a noun is about, for its own help; NULL if there is no such noun. */
const char *cli_noun_summary(const char *noun);

/* Aliases resolved: ls, rm, ckpt, tok. */
const char *cli_real_name(const char *word);
const cli_command *cli_find(const char *noun, const char *verb);
bool cli_is_noun(const char *word); /* has verbs of its own */

/* The option of this name (without dashes) or letter, of the command or of all; NULL = none. */
const cli_option *cli_find_option(const cli_command *, const char *name, size_t len);
const cli_option *cli_find_letter(const cli_command *, char letter);

#endif
