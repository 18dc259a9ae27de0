/* option_rows.h - how tables of commands state an option in one row: its kind, name, value, help and
 * default, in this order, then by name what else it has: .letter, .repeats, .complete, .cookbook, .env.
 *
 *   OPT_COUNT("max-steps", "N", "stop after so many", "100", .cookbook = "max_steps")
 */
#ifndef CLI_OPTION_ROWS_H
#define CLI_OPTION_ROWS_H

#include "cli/main/command_table.h"

/* clang-format off */

/* The rest follow .name in the order of cli_option: value, help, default_value. */
#define OPT_TEXT(...)     { .kind = CLI_TEXT, .name = __VA_ARGS__ }
#define OPT_INT(...)      { .kind = CLI_INT, .name = __VA_ARGS__ }
#define OPT_COUNT(...)    { .kind = CLI_COUNT, .name = __VA_ARGS__ }
#define OPT_NUMBER(...)   { .kind = CLI_NUMBER, .name = __VA_ARGS__ }
#define OPT_DURATION(...) { .kind = CLI_DURATION, .name = __VA_ARGS__ }
#define OPT_SIZE(...)     { .kind = CLI_SIZE, .name = __VA_ARGS__ }
#define OPT_DATE(...)     { .kind = CLI_DATE, .name = __VA_ARGS__ }
#define OPT_FILE(...)     { .kind = CLI_FILE, .name = __VA_ARGS__ }
#define OPT_DIR(...)      { .kind = CLI_DIR, .name = __VA_ARGS__ }
/* No value; "on" as default: --no-NAME turns it off. */
#define OPT_FLAG(option, ...) { .kind = CLI_FLAG, .name = option, .help = __VA_ARGS__ }
#define OPT_CHOICE(option, shown, names, ...) \
    { .kind = CLI_CHOICE, .name = option, .value = shown, .choices = names, .help = __VA_ARGS__ }

#define MODEL_OPTION \
    OPT_TEXT("model", "M", "base model, tinker:// path, log directory or local folder", .letter = 'm', \
             .complete = "model", .cookbook = "model_name")
#define RENDERER_OPTION \
    OPT_TEXT("renderer", "NAME", "chat format; default: the run's own, else the model's", \
             .cookbook = "renderer_name")

/* clang-format on */

#endif
