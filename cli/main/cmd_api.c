/* cmd_api.c - `tinkc api`: any request, with the client's credential and retries. */
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* -F k=v: numbers, true, false and null as themselves, all else as text. */
static tkc_tree *field_value(const cli_app *app, const char *text)
{
    tkc_tree *v = tkc_tree_read(cli_arena(app), tkc_str(text), TKC_TREE_ANY);
    return v && !tkc_tree_is_object(v) && !tkc_tree_is_array(v)
               ? v
               : tkc_tree_new_text(cli_arena(app), text);
}

static int read_fields(cli_app *app, tkc_tree *body, const char ***query)
{
    size_t n = 0;
    while (cli_text_at(app, "field", n))
        n++;
    *query = calloc(2 * n + 3, sizeof **query); /* room for the offset of a later page */
    for (size_t i = 0; i < n && *query; i++) {
        const char *text = cli_text_at(app, "field", i), *equals = strchr(text, '=');
        if (!equals)
            return cli_fail(app, "usage", NULL, "--field: '%s' is not K=V", text);
        char *name = strndup(text, (size_t)(equals - text));
        tkc_tree_set(body, name, field_value(app, equals + 1));
        (*query)[2 * i] = name;
        (*query)[2 * i + 1] = equals + 1;
    }
    return 0;
}

static void print_head(const tinkc_response *r)
{
    printf("HTTP/%s %d\n", tinkc_response_http_version(r), (int)tinkc_response_status(r));
    for (const char *const *h = tinkc_response_headers(r); h && *h; h += 2)
        printf("%s: %s\n", h[0], h[1]);
    putchar('\n');
}

/* A page's cursor: where the next begins; 0 = this was the last. */
static int64_t next_offset(const tinkc_response *r)
{
    tinkc_bytes body = tinkc_response_body(r);
    tkc_arena arena = { 0 };
    const tkc_tree *v = tkc_tree_read(&arena, tkc_strn((const char *)body.data, body.len), 0);
    const tkc_tree *cursor = tkc_tree_get(v, "cursor");
    int64_t offset = tkc_tree_get_i64(cursor, "offset");
    int64_t limit = tkc_tree_get_i64(cursor, "limit");
    int64_t total = tkc_tree_get_i64(cursor, "total_count");
    int64_t next = limit > 0 && offset + limit < total ? offset + limit : 0;
    tkc_arena_free(&arena);
    return next;
}

static const char *status_code(int32_t status)
{
    return status == 404   ? "not_found"
           : status == 401 ? "auth_rejected"
           : status == 403 ? "permission_denied"
           : status == 409 ? "conflict"
           : status == 429 ? "rate_limited"
           : status == 402 ? "billing_blocked"
           : status >= 500 ? "server_error"
                           : "invalid_request";
}

static int call_once(cli_app *app, const tinkc_http_options *call, int64_t *next)
{
    tinkc_error err = { 0 };
    int bad = 0;
    tinkc_future *f = tinkc_http_call(app->client, call, &err);
    if (cli_wait(app, f, NULL, &err)) {
        const tinkc_response *r = tinkc_future_response(f, 0, &err);
        tinkc_bytes body = tinkc_response_body(r);
        if (cli_flag(app, "include"))
            print_head(r);
        fwrite(body.data, 1, body.len, stdout);
        int32_t status = tinkc_response_status(r);
        *next = next_offset(r);
        bool more = *next && cli_flag(app, "paginate");
        if (body.len && body.data[body.len - 1] != '\n' && (app->stdout_tty || more))
            putchar('\n');
        if (status >= 400) {
            cli_problem p = { .code = status_code(status), .status = status };
            (void)snprintf(p.message, sizeof p.message, "the service answered with status %d",
                           (int)status);
            bad = cli_report(app, &p);
        }
    } else {
        bad = cli_fail_error(app, &err, NULL);
    }
    tinkc_future_free(f);
    return bad;
}

int cli_api(cli_app *app)
{
    const char **query = NULL;
    tkc_tree *body = cli_object(app);
    char *text = NULL;
    size_t len = 0;
    int bad = read_fields(app, body, &query);
    const char *method = app->args[0];
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "DELETE") == 0;
    if (!bad && cli_given(app, "input"))
        text = cli_read_all(app, cli_text(app, "input"), &len, &bad);
    else if (!bad && !get && tkc_tree_members(body)) {
        text = cli_json_print(body, TKC_TREE_COMPACT);
        len = text ? strlen(text) : 0;
    }
    if (!bad)
        bad = cli_connect(app);
    tinkc_http_options call = {
        .method = method, .path = app->args[1], .body = text, .body_len = len, .any_status = true
    };
    if (get)
        call.query = query;
    size_t fields = 0;
    while (query && query[fields])
        fields += 2;
    char offset[24];
    for (int64_t next = 1; !bad && next;) {
        bad = call_once(app, &call, &next);
        if (!get || !query || !cli_flag(app, "paginate"))
            break;
        (void)snprintf(offset, sizeof offset, "%lld", (long long)next);
        query[fields] = "offset"; /* behind the fields given, which stay */
        query[fields + 1] = offset;
    }
    for (size_t i = 0; i < fields; i += 2)
        free((char *)(uintptr_t)query[i]);
    free(query);
    free(text);
    return bad;
}
