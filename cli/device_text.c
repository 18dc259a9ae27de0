/* device_text.c - one line about where a local engine computes, for doctor and serve.
 *
 * May touch: the engine's status. Must not: know how a device is chosen.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "serving.h"

bool cli_device_text(tinkc_engine *engine, char out[CLI_DEVICE_TEXT])
{
    tinkc_error err = { 0 };
    tinkc_text status = { 0 };
    const char *name = NULL, *text = NULL, *reason = NULL;
    json_t *root = json_loads(tinkc_engine_status(engine, &status, &err), 0, NULL);
    bool ok = root && json_unpack(root, "{s:{s:s, s:s, s:s}}", "device", "name", &name, "text",
                                  &text, "reason", &reason) == 0;
    if (ok)
        (void)snprintf(out, CLI_DEVICE_TEXT, "%s (%s): %s", name, text, reason);
    json_decref(root);
    tinkc_text_free(&status);
    return ok;
}
