/* device_text.c - one line about where a local engine computes, for doctor and serve.
 *
 * May touch: the engine's status. Must not: know how a device is chosen.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "cli/serve/serving.h"

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

/* What was planned: "18.5 GiB for samples and training". */
static const char *plan_text(json_t *plan, char out[128])
{
    const double gib = (double)(1 << 30);
    json_int_t all, shared;
    const char *by;
    out[0] = '\0';
    if (json_unpack(plan, "{s:I, s:I, s:s}", "available_bytes", &all, "shared_bytes", &shared,
                    "bounded_by", &by) == 0)
        (void)snprintf(out, 128, "; memory: %.1f GiB (%s), of these %.1f for samples and training",
                       (double)all / gib, by, (double)shared / gib);
    return out;
}

bool cli_device_line(const char *status, char out[CLI_DEVICE_TEXT])
{
    const char *name = NULL, *text = NULL, *reason = NULL;
    char memory[96], plan[128];
    json_t *root = json_loads(status, 0, NULL);
    bool ok = root && json_unpack(root, "{s:{s:s, s:s, s:s}}", "device", "name", &name, "text",
                                  &text, "reason", &reason) == 0;
    if (ok)
        (void)snprintf(out, CLI_DEVICE_TEXT, "%s (%s): %s%s%s", name, text, reason,
                       memory_text(json_object_get(root, "device"), memory),
                       plan_text(json_object_get(root, "plan"), plan));
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
