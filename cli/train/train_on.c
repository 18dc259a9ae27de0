/* train_on.c - the cookbook's names for what a conversation teaches. */
#include "cli/train/train_on.h"

#include <string.h>

int cli_train_on(const cli_app *app, const char *name, int32_t *out)
{
    static const char *const names[] = {
        [TINKC_TRAIN_ALL_ASSISTANT] = "all_assistant_messages",
        [TINKC_TRAIN_LAST_ASSISTANT] = "last_assistant_message",
        [TINKC_TRAIN_LAST_TURN] = "last_assistant_turn",
        [TINKC_TRAIN_ALL_MESSAGES] = "all_messages",
        [TINKC_TRAIN_ALL_TOKENS] = "all_tokens",
        [TINKC_TRAIN_USER_AND_SYSTEM] = "all_user_and_system_messages",
        [TINKC_TRAIN_MARKED] = "customized",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], name) == 0) {
            *out = (int32_t)i;
            return 0;
        }
    }
    return cli_fail(app, "usage", "see: tinkc train sft --help", "--train-on: unknown '%s'", name);
}
