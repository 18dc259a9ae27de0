/* device_text.c - one line about where a local engine computes, for doctor and serve.
 *
 * May touch: the engine's status. Must not: know how a device is chosen.
 */
#include <stdio.h>
#include <string.h>

#include "base/json_tree.h"
#include "cli/serve/serving.h"

/* Only a card has memory of its own. */
static const char *memory_text(const tkc_tree *device, char out[96])
{
    const double gib = (double)(1 << 30);
    tkc_tree *all = tkc_tree_get(device, "memory_bytes"),
             *left = tkc_tree_get(device, "memory_free_bytes");
    out[0] = '\0';
    if (all)
        (void)snprintf(out, 96, "; %.1f of %.1f GiB free", (double)tkc_tree_i64(left) / gib,
                       (double)tkc_tree_i64(all) / gib);
    return out;
}

/* What was planned: "18.5 GiB for samples and training". */
static const char *plan_text(const tkc_tree *plan, char out[128])
{
    const double gib = (double)(1 << 30);
    const tkc_tree *all = tkc_tree_get(plan, "available_bytes"),
                   *shared = tkc_tree_get(plan, "shared_bytes");
    const char *by = tkc_tree_get_text(plan, "bounded_by");
    out[0] = '\0';
    if (by && tkc_tree_is_i64(all) && tkc_tree_is_i64(shared))
        (void)snprintf(out, 128, "; memory: %.1f GiB (%s), of these %.1f for samples and training",
                       (double)tkc_tree_i64(all) / gib, by, (double)tkc_tree_i64(shared) / gib);
    return out;
}

bool cli_device_line(const char *status, char out[CLI_DEVICE_TEXT])
{
    char memory[96], plan[128];
    tkc_arena arena = { 0 };
    const tkc_tree *root = tkc_tree_read(&arena, tkc_str(status), 0),
                   *device = tkc_tree_get(root, "device");
    const char *name = tkc_tree_get_text(device, "name"), *text = tkc_tree_get_text(device, "text"),
               *reason = tkc_tree_get_text(device, "reason");
    bool ok = name && text && reason;
    if (ok)
        (void)snprintf(out, CLI_DEVICE_TEXT, "%s (%s): %s%s%s", name, text, reason,
                       memory_text(device, memory), plan_text(tkc_tree_get(root, "plan"), plan));
    tkc_arena_free(&arena);
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
