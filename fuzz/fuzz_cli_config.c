/* Configuration files: whatever is in them, reading ends with settings or with a reported problem;
 * a setting that is written must read back as it was. */
#include "harness.h"

#include "../cli/main/config_file.c"

/* What config.c needs of the rest of the program, as quiet as possible. */
const cli_command cli_commands[] = { { 0 } };
const cli_value *cli_value_of(const cli_app *app, const char *name)
{
    (void)app, (void)name;
    return NULL;
}
bool cli_given(const cli_app *app, const char *name)
{
    return cli_value_of(app, name) != NULL;
}
bool cli_flag(const cli_app *app, const char *name)
{
    return cli_given(app, name);
}
const char *cli_text(const cli_app *app, const char *name)
{
    (void)app, (void)name;
    return NULL;
}
const cli_option *cli_find_option(const cli_command *command, const char *name, size_t len)
{
    (void)command, (void)name, (void)len;
    return NULL;
}
bool cli_check_value(const cli_option *option, const char *text, char why[CLI_WHY])
{
    (void)option, (void)text, (void)why;
    return true;
}
int cli_set_value(cli_app *app, const char *name, const char *text, cli_source source,
                  const char *origin)
{
    (void)app, (void)name, (void)text, (void)source, (void)origin;
    return 0;
}
int cli_fail_at(const cli_app *app, const char *file, int line, const char *code, const char *hint,
                const char *format, ...)
{
    (void)app, (void)file, (void)line, (void)code, (void)hint, (void)format;
    return 2;
}
void cli_say_at(const cli_app *app, const char *file, int line, const char *level,
                const char *format, ...)
{
    (void)app, (void)file, (void)line, (void)level, (void)format;
}
#include "../cli/main/files.c"
#include "../cli/output/text.c"

/* False: something in it is wrong. */
static bool read_as(cli_app *app, const char *text, int layer)
{
    reader r = { .app = app, .file = "f", .at = text, .layer = layer };
    read_text(&r);
    for (size_t i = 0; i < app->config->n_findings; i++)
        if (app->config->findings[i].error)
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > FUZZ_MAX_INPUT)
        return 0;
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    for (int layer = CLI_LAYER_PROJECT; layer <= CLI_LAYER_SYSTEM; layer++) {
        cli_app app = { .config = calloc(1, sizeof(cli_config)) };
        app.config->profile = strdup("default");
        bool good = read_as(&app, text, layer);
        for (size_t i = 0; layer == CLI_LAYER_PROJECT && i < app.config->n_settings; i++)
            MUST(!strstr(app.config->settings[i].key, "base_url") ||
                 strncmp(app.config->settings[i].key, "train.", 6) == 0 ||
                 strncmp(app.config->settings[i].key, "chat.", 5) == 0);
        (void)cli_config_get(&app, "model", NULL);
        cli_config_free(app.config);
        if (!good || layer != CLI_LAYER_USER || memchr(text, '\0', size))
            continue;
        /* What could be read can be edited, and then read again. */
        char *edited = edit_text(text, "profile.default", "model", "a\"b\\c");
        cli_app again = { .config = calloc(1, sizeof(cli_config)) };
        again.config->profile = strdup("default");
        if (read_as(&again, edited, layer)) {
            const cli_setting *s = find_setting(&again, layer, "profile.default.model");
            MUST(s);
        }
        cli_config_free(again.config);
        free(edited);
    }
    free(text);
    return 0;
}
