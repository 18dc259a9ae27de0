/* unbuilt.c - commands whose rows are in the table but whose work is not written yet. */
#include "commands.h"

static int not_yet(const cli_app *app)
{
    return cli_fail(app, "unsupported", NULL, "tinkc %s%s%s is not built yet", app->command->noun,
                    app->command->verb ? " " : "", app->command->verb ? app->command->verb : "");
}

#define UNBUILT(name)                                                                              \
    int name(cli_app *app)                                                                         \
    {                                                                                              \
        return not_yet(app);                                                                       \
    }

UNBUILT(cli_chat)
UNBUILT(cli_doctor)
