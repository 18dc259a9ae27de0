/* device_text.c - one line about where a local engine computes, for doctor and serve.
 *
 * May touch: the engine's status. Must not: know how a device is chosen.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "serving.h"

/* Only a card has memory of its own. */
static const char *memory_text(const json_t *device, char out[96])
{
    const double gib = (double)(1 << 30);
    json_t *all = json_object_get(device, "memory_bytes"),
           *left = json_object_get(device, "memory_free_bytes");
    out[0] = '\0';
    if (all)
        (void)snprintf(out, 96, "; %.1f of %.1f GiB free", (double)json_integer_value(left) / gib,
                       (double)json_integer_value(all) / gib);
    return out;
}

bool cli_device_line(const char *status, char out[CLI_DEVICE_TEXT])
{
    const char *name = NULL, *text = NULL, *reason = NULL;
    char memory[96];
    json_t *root = json_loads(status, 0, NULL);
    bool ok = root && json_unpack(root, "{s:{s:s, s:s, s:s}}", "device", "name", &name, "text",
                                  &text, "reason", &reason) == 0;
    if (ok)
        (void)snprintf(out, CLI_DEVICE_TEXT, "%s (%s): %s%s", name, text, reason,
                       memory_text(json_object_get(root, "device"), memory));
    json_decref(root);
    return ok;
}

bool cli_device_text(tinkc_engine *engine, char out[CLI_DEVICE_TEXT])
{
    tinkc_error err = { 0 };
    tinkc_text status = { 0 };
    bool ok = cli_device_line(tinkc_engine_status(engine, &status, &err), out);
    tinkc_text_free(&status);
    return ok;
}
