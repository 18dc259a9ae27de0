/* cmd_auth.c - `tinkc auth`: credentials. Must not: print a secret, except `auth token`. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* One call with this credential. 0, or an exit code after reporting. */
static int try_credential(cli_app *app, const char *key, const char *command)
{
    tinkc_error err = { 0 };
    int bad = cli_connect_as(app, key, command);
    if (!bad && !cli_prove_credential(app, &err))
        bad = cli_fail_error(app, &err, "the credential was not stored");
    cli_disconnect(app);
    return bad;
}

static char *read_key(cli_app *app, int *bad)
{
    size_t len;
    char *key;
    if (cli_given(app, "api-key-file")) {
        key = cli_read_all(app, cli_text(app, "api-key-file"), &len, bad);
        if (key)
            key[strcspn(key, "\r\n")] = '\0';
        return key;
    }
    if (!app->stdin_tty) {
        *bad = cli_fail(app, "usage", "tinkc auth login --api-key-file FILE",
                        "cannot ask for the API key: standard input is not a terminal");
        return NULL;
    }
    key = cli_read_secret("API key (not shown): ");
    if (!key && cli_stop_signal())
        *bad = cli_stop_exit();
    else if (!key)
        *bad = cli_fail(app, "declined", NULL, "cancelled");
    return key;
}

int cli_auth_login(cli_app *app)
{
    int bad = 0;
    const char *command = cli_text(app, "credential-cmd");
    if (command && !command[strspn(command, " \t")])
        return cli_fail(app, "usage", NULL, "--credential-cmd: a command is needed");
    char *key = command ? NULL : read_key(app, &bad);
    if (bad)
        return bad;
    if (key && strncmp(key, "tml-", 4) != 0 && strncmp(key, "eyJ", 3) != 0)
        bad = cli_fail(app, "auth_rejected", "a key begins with tml-, a token with eyJ",
                       "this is not a Tinker credential");
    if (!bad && !cli_flag(app, "no-check"))
        bad = try_credential(app, key, command);
    if (!bad)
        bad = cli_config_write(app, app->config->profile, command ? "credential_cmd" : "api_key",
                               command ? command : key);
    if (!bad) /* one of the other kind must not stand in its way */
        bad = cli_config_write(app, app->config->profile, command ? "api_key" : "credential_cmd",
                               NULL);
    if (!bad) {
        const char *kind = command ? "command" : strncmp(key, "eyJ", 3) == 0 ? "jwt" : "api_key";
        tkc_tree *v = cli_pack(app, "{s:s,s:s}", "profile", app->config->profile, "kind", kind);
        bad = cli_print_done(app, v, "stored in profile %s", app->config->profile);
    }
    free(key);
    return bad;
}

int cli_auth_logout(cli_app *app)
{
    int bad = cli_config_write(app, app->config->profile, "api_key", NULL);
    if (!bad)
        bad = cli_config_write(app, app->config->profile, "credential_cmd", NULL);
    if (bad)
        return bad;
    tkc_tree *v = cli_pack(app, "{s:s,s:s}", "profile", app->config->profile, "kind", "none");
    return cli_print_done(app, v, "removed the credential of profile %s", app->config->profile);
}

/* Where the credential comes from, and what it is. */
static void find_source(const cli_app *app, const char **source, const char **kind)
{
    const char *env = getenv("TINKER_API_KEY"), *cmd = getenv("TINKER_CREDENTIAL_CMD");
    const char *key = NULL;
    *source = "none";
    *kind = "none";
    if (cli_given(app, "api-key-file"))
        *source = "--api-key-file", *kind = "api_key";
    else if (env && *env)
        *source = "TINKER_API_KEY", key = env;
    else if (cmd && *cmd)
        *source = "TINKER_CREDENTIAL_CMD", *kind = "command";
    else if ((key = cli_config_get(app, "api_key", source)))
        ;
    else if (cli_config_get(app, "credential_cmd", source))
        *kind = "command";
    if (key)
        *kind = strncmp(key, "eyJ", 3) == 0 ? "jwt" : "api_key";
}

/* Asks the service who this is; false with err set if it does not know. */
static bool ask_identity(cli_app *app, tinkc_client *client, tkc_tree *v, tinkc_error *err)
{
    tinkc_future *f = tinkc_identity_get(client, err);
    bool ok = cli_wait(app, f, NULL, err);
    if (ok) {
        const tinkc_identity *me = tinkc_future_identity(f, 0, err);
        tkc_tree_set_text(v, "user_urn", me->user_urn);
        tkc_tree_set(v, "email",
                     me->email ? tkc_tree_new_text(cli_arena(app), me->email) : tkc_tree_null());
    }
    tinkc_future_free(f);
    if (err->code == TINKC_E_NO_IDENTITY) { /* a plain key that works says nothing of its owner */
        *err = (tinkc_error){ 0 };
        ok = true;
    }
    return ok;
}

/* When the token ends; null where it does not say. */
static tkc_tree *expiry_json(const cli_app *app, const tinkc_token *t)
{
    char text[CLI_SHORT_TEXT];
    if (t->expires_us == TINKC_NO_TIME)
        return tkc_tree_null();
    cli_format_iso(t->expires_us, text);
    return tkc_tree_new_text(cli_arena(app), text);
}

static void ask_expiry(cli_app *app, tinkc_client *client, tkc_tree *v)
{
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_token_get(client, &err);
    if (cli_wait(app, f, NULL, &err))
        tkc_tree_set(v, "expires_at", expiry_json(app, tinkc_future_token(f, 0, &err)));
    tinkc_future_free(f);
}

/* Tries the credential of the profile that is selected now. True if it works. */
static bool try_profile(cli_app *app, tkc_tree *v, tinkc_error *err)
{
    bool valid = false;
    if (cli_connect(app) != 0) {
        tinkc_error_set(err, TINKC_E_CLOSED, "no client could be made");
        return false;
    }
    tkc_tree_set_text(v, "base_url", tinkc_client_base_url(app->client));
    if (cli_prove_credential(app, err) && ask_identity(app, app->client, v, err)) {
        valid = true;
        ask_expiry(app, app->client, v);
    }
    cli_disconnect(app);
    return valid;
}

/* One row; `profile` is made the selected one while it is looked at. */
static tkc_tree *profile_status(cli_app *app, char *profile, bool *valid, tinkc_error *err)
{
    const char *source, *kind;
    char *before = app->config->profile;
    app->config->profile = profile;
    find_source(app, &source, &kind);
    const char *url = cli_given(app, "base-url") ? cli_text(app, "base-url")
                                                 : cli_config_get(app, "base_url", NULL);
    tkc_tree *v =
        cli_pack(app, "{s:s,s:s?,s:s,s:s,s:b,s:n,s:n,s:n}", "profile", profile, "base_url", url,
                 "source", source, "kind", kind, "valid", 0, "user_urn", "email", "expires_at");
    *valid = strcmp(kind, "none") != 0 && !cli_flag(app, "no-check") && try_profile(app, v, err);
    tkc_tree_set_bool(v, "valid", *valid);
    app->config->profile = before;
    return v;
}

static int print_profiles(const cli_app *app, const tkc_tree *items)
{
    static const cli_column columns[] = {
        { .name = "profile", .header = "Profile", .path = "profile", .is_default = true },
        { .name = "user", .header = "User", .path = "user_urn", .is_default = true },
        { .name = "source",
          .header = "Source",
          .path = "source",
          .is_default = true,
          .cut_left = true },
        { .name = "expires",
          .header = "Expires",
          .path = "expires_at",
          .kind = CLI_CELL_TIME,
          .is_default = true },
        { .name = "url", .header = "URL", .path = "base_url", .is_default = true },
        { .name = "valid", .header = "Valid", .path = "valid", .kind = CLI_CELL_BOOL },
        { 0 }
    };
    cli_list list = { .key = "profiles", .columns = columns, .no_counts = true };
    return cli_print_list(app, &list, items);
}

/* The selected profile, then the others; 4 if the credential of none of them works. */
int cli_auth_status(cli_app *app)
{
    tkc_tree *names = cli_config_profile_names(app), *items = cli_array(app), *current;
    tinkc_error first = { 0 };
    const char *name;
    bool working = false, present = false;
    TKC_TREE_EACH (names, name, current) {
        tinkc_error err = { 0 };
        bool valid;
        char *copy = strdup(name);
        tkc_tree *v = profile_status(app, copy ? copy : app->config->profile, &valid, &err);
        working = working || valid;
        present = present || strcmp(tkc_tree_get_text(v, "kind"), "none") != 0;
        if (err.code && !first.code)
            first = err;
        tkc_tree_add(items, v);
        free(copy);
    }
    int bad = print_profiles(app, items);
    if (bad || working || (present && cli_flag(app, "no-check")))
        return bad;
    if (first.code)
        return cli_fail_error(app, &first, NULL);
    return cli_fail(app, "auth_missing", "create a key in the console, then: tinkc auth login",
                    "no credential");
}

int cli_auth_token(cli_app *app)
{
    tinkc_error err = { 0 };
    int bad = cli_connect(app);
    if (bad)
        return bad;
    tinkc_future *f = tinkc_token_get(app->client, &err);
    if (cli_wait(app, f, NULL, &err)) {
        const tinkc_token *t = tinkc_future_token(f, 0, &err);
        if (app->format == CLI_JSON) {
            tkc_tree *v =
                cli_pack(app, "{s:s,s:o}", "jwt", t->jwt, "expires_at", expiry_json(app, t));
            bad = cli_print_json(app, v);
        } else {
            printf("%s%s\n", cli_flag(app, "export") ? "export TINKER_API_KEY=" : "", t->jwt);
        }
    } else {
        bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    return bad;
}
