/* options.c - client options and the environment become the client's constant fields.
 *
 * The environment is read here and nowhere else, once for each client.
 */
#include "client/core/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/json_read.h"
#include "base/str.h"
#include "codec/query.h"
#include "codec/url.h"

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

/* The option, else the variable, else NULL; copied. An empty option means "none". */
static const char *text_or_env(tinkc_client *client, const char *option, const char *variable,
                               tinkc_error *err)
{
    const char *value = option ? option : environment(variable);
    return value && value[0] ? tkc_arena_cstr(&client->texts, value, err) : NULL;
}

static size_t list_length(const char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    return n;
}

static const char *const *copy_list(tinkc_client *client, const char *const *list, bool pairs,
                                    const char *name, tinkc_error *err)
{
    size_t n = list_length(list);
    if (!list)
        return NULL;
    if (pairs && n % 2) {
        tkc_fail(err, TINKC_E_ARGUMENT, "%s: a name without a value", name);
        return NULL;
    }
    const char **copy = tkc_arena_array(&client->texts, n + 1, sizeof *copy, err);
    for (size_t i = 0; copy && i < n; i++)
        copy[i] = tkc_arena_cstr(&client->texts, list[i], err);
    return (const char *const *)copy;
}

/* Split at commas, trimmed, without empty ones and without repetitions. */
static const char *const *tags_from_env(tinkc_client *client, tinkc_error *err)
{
    const char *value = environment("TINKER_TAGS");
    if (!value)
        return NULL;
    tinkc_str rest = tkc_str(value), part;
    /* The Python SDK neither trims tags nor drops empty ones: an empty variable would be one
     * tag. */
    size_t n = 0;
    const char **tags = tkc_arena_array(&client->texts, rest.len + 2, sizeof *tags, err);
    while (tags && tkc_str_cut(&rest, ',', &part)) {
        part = tkc_str_trim(part);
        bool seen = part.len == 0;
        for (size_t i = 0; i < n && !seen; i++)
            seen = tkc_str_is(part, tags[i]);
        if (!seen) {
            tags[n] = tkc_arena_str(&client->texts, part, err);
            if (!tags[n])
                return NULL;
            n++;
        }
    }
    return (const char *const *)tags;
}

static bool telemetry_from_env(bool own_transport)
{
    const char *value = getenv("TINKER_TELEMETRY");
    /* On, as in the Python SDK; off where the requests go to a transport of the caller's own. */
    if (!value)
        return !own_transport;
    /* The words that Python takes for yes; the empty text is no. */
    tinkc_str s = tkc_str(value);
    return tkc_str_is_nocase(s, "1") || tkc_str_is_nocase(s, "true") ||
           tkc_str_is_nocase(s, "yes") || tkc_str_is_nocase(s, "on");
}

static int32_t log_level_from_env(void)
{
    static const struct {
        const char *name;
        int32_t level;
    } levels[] = { { "debug", TINKC_LOG_DEBUG },
                   { "info", TINKC_LOG_INFO },
                   { "warn", TINKC_LOG_WARN },
                   { "error", TINKC_LOG_ERROR } };
    const char *value = getenv("TINKER_LOG");
    for (size_t i = 0; value && i < sizeof levels / sizeof *levels; i++)
        if (tkc_str_is_nocase(tkc_str(value), levels[i].name))
            return levels[i].level;
    return TINKC_LOG_DEFAULT;
}

/* One write, so that lines of several threads do not mix. There is nobody to report a failure to.
 * */
static void log_to_stderr(int32_t level, const char *line, void *user)
{
    static const char *const names[] = { "", "error", "warning", "info", "debug" };
    char text[1100];
    (void)user;
    (void)snprintf(text, sizeof text, "tinkc: %s: %s\n", names[level], line);
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

/* A log function of the caller's, or stderr for people who set $TINKER_LOG. */
static tkc_log make_log(const tinkc_client_options *o)
{
    int32_t from_env = log_level_from_env();
    int32_t level = o->log_level ? o->log_level : from_env ? from_env : TINKC_LOG_WARN;
    if (!o->log && from_env)
        return (tkc_log){ .fn = log_to_stderr, .level = level };
    return (tkc_log){ .fn = o->log, .user = o->log_user, .level = level };
}

/* ---- checks ---- */

bool tkc_check_number(int64_t value, int special, const char *name, tinkc_error *err)
{
    if (value >= 0 || (value == TINKC_FOREVER && special & TKC_MAY_BE_ENDLESS) ||
        (value == TINKC_ZERO && special & TKC_MAY_BE_ZERO))
        return true;
    if (value == TINKC_FOREVER || value == TINKC_ZERO)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: %s makes no sense here", name,
                        value == TINKC_ZERO ? "TINKC_ZERO" : "TINKC_FOREVER");
    return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must not be negative", name);
}

int64_t tkc_number_or(int64_t value, int64_t normal)
{
    return value == TINKC_ZERO ? 0 : value ? value : normal;
}

static bool check_numbers(const tinkc_client_options *o, tinkc_error *err)
{
    enum { PLAIN = 0, ENDLESS = TKC_MAY_BE_ENDLESS, ZERO = TKC_MAY_BE_ZERO };
    return tkc_check_number(o->connect_timeout_ms, PLAIN, "connect_timeout_ms", err) &&
           tkc_check_number(o->idle_timeout_ms, ENDLESS, "idle_timeout_ms", err) &&
           tkc_check_number(o->retry_window_ms, ENDLESS | ZERO, "retry_window_ms", err) &&
           tkc_check_number(o->operation_timeout_ms, PLAIN, "operation_timeout_ms", err) &&
           tkc_check_number(o->billing_pause_ms, ENDLESS | ZERO, "billing_pause_ms", err) &&
           tkc_check_number(o->max_retries, ZERO, "max_retries", err) &&
           tkc_check_number(o->max_connections, PLAIN, "max_connections", err) &&
           tkc_check_number(o->max_response_bytes, PLAIN, "max_response_bytes", err);
}

/* What is reserved must be zero: a later version may give it a meaning, and programs must not
 * have something there by accident. */
bool tkc_options_check(const tinkc_client_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (o->transport && (o->transport->abi != TINKC_TRANSPORT_ABI || !o->transport->send))
        return tkc_fail(err, TINKC_E_ARGUMENT, "transport: of another version, or without send");
    const tinkc_clock *c = o->clock;
    if (c && (!c->acquire || !c->release || !c->now_ms || !c->wall_us || !c->random || !c->attach ||
              !c->detach))
        return tkc_fail(err, TINKC_E_ARGUMENT, "clock: a function is missing");
    const tinkc_allocator *a = o->allocator;
    if (a && (!a->alloc || !a->resize || !a->release))
        return tkc_fail(err, TINKC_E_ARGUMENT, "allocator: a function is missing");
    if (o->log_level < TINKC_LOG_DEFAULT || o->log_level > TINKC_LOG_DEBUG)
        return tkc_fail(err, TINKC_E_ARGUMENT, "log_level: unknown value %d", (int)o->log_level);
    if (o->telemetry < TINKC_TELEMETRY_DEFAULT || o->telemetry > TINKC_TELEMETRY_OFF)
        return tkc_fail(err, TINKC_E_ARGUMENT, "telemetry: unknown value %d", (int)o->telemetry);
    return check_numbers(o, err);
}

/* ---- headers, query, URL ---- */

const char *tkc_arch_name(const char *machine, tkc_arena *arena, tinkc_error *err)
{
    if (strcmp(machine, "x86_64") == 0)
        return "x64";
    if (strcmp(machine, "aarch64") == 0 || strcmp(machine, "arm64") == 0)
        return "arm64";
    if (strcmp(machine, "arm") == 0 || strcmp(machine, "unknown") == 0)
        return tkc_arena_cstr(arena, machine, err);
    return tkc_arena_printf(arena, err, "other:%s", machine);
}

/* No line ends: a header must not become two. */
static bool check_header(const char *name, const char *value, tinkc_error *err)
{
    if (!name[0] || strpbrk(name, "\r\n: ") || strpbrk(value, "\r\n"))
        return tkc_fail(err, TINKC_E_ARGUMENT, "headers: a name or value that no header can have");
    return true;
}

/* Adds a pair, replacing one of the same name; "" removes it. Without memory for the value (NULL) nothing changes. */
static void put_client_header(const char **pairs, size_t *n, const char *name, const char *value)
{
    size_t at = 0;
    if (!value)
        return;
    while (at < *n && !tkc_str_is_nocase(tkc_str(pairs[at]), name))
        at += 2;
    if (at == *n)
        *n += 2;
    pairs[at] = name;
    pairs[at + 1] = value;
    if (!value[0]) {
        *n -= 2;
        pairs[at] = pairs[*n];
        pairs[at + 1] = pairs[*n + 1];
    }
    pairs[*n] = NULL;
}

static bool make_headers(tinkc_client *client, const tinkc_client_options *o, tinkc_error *err)
{
    static const char *const cf_names[] = { "CF-Access-Client-Id", "CF-Access-Client-Secret" };
    static const char *const cf_vars[] = { "CLOUDFLARE_ACCESS_CLIENT_ID",
                                           "CLOUDFLARE_ACCESS_CLIENT_SECRET" };
    tkc_arena *arena = &client->texts;
    client->user_headers = copy_list(client, o->headers, true, "headers", err);
    size_t n = 0, n_user = list_length(client->user_headers);
    const char **pairs = tkc_arena_array(arena, n_user + 24, sizeof *pairs, err);
    if (!pairs)
        return false;
    struct utsname host;
    if (uname(&host) != 0)
        memcpy(host.machine, "unknown", 8);
    /* In the order of precedence: what comes later replaces a header of the same name. */
    put_client_header(
        pairs, &n, "User-Agent",
        tkc_arena_cstr(arena, o->user_agent ? o->user_agent : "tinkc/" TINKC_VERSION, err));
    /* The Python SDK whose protocol is spoken: services switch features by this number. */
    put_client_header(pairs, &n, "X-Stainless-Package-Version", TINKC_TINKER_VERSION);
    put_client_header(pairs, &n, "X-Stainless-OS", "Linux");
    const char *arch = tkc_arch_name(host.machine, arena, err);
    put_client_header(pairs, &n, "X-Stainless-Arch", arch ? arch : "unknown");
    put_client_header(pairs, &n, "X-Stainless-Runtime", "C");
    put_client_header(pairs, &n, "X-Stainless-Runtime-Version", TINKC_VERSION);
    put_client_header(pairs, &n, "X-Stainless-Async", "async:tinkc");
    for (size_t i = 0; i < 2 && !tkc_failed(err); i++) {
        const char *value = environment(cf_vars[i]);
        if (value && check_header(cf_names[i], value, err))
            put_client_header(pairs, &n, cf_names[i], tkc_arena_cstr(arena, value, err));
    }
    for (size_t i = 0; i < n_user && !tkc_failed(err); i += 2)
        if (check_header(client->user_headers[i], client->user_headers[i + 1], err))
            put_client_header(pairs, &n, client->user_headers[i], client->user_headers[i + 1]);
    client->headers = (const char *const *)pairs;
    return !tkc_failed(err);
}

static bool make_query(tinkc_client *client, const tinkc_client_options *o, tinkc_error *err)
{
    const char *const *pairs = copy_list(client, o->query, true, "query", err);
    tkc_buf text;
    tkc_query q;
    tkc_buf_init(&text, client->a, 1 << 16);
    tkc_query_open(&q, &text, 0, err);
    for (size_t i = 0; pairs && pairs[i]; i += 2)
        tkc_query_str(&q, pairs[i], pairs[i + 1]);
    client->query = tkc_arena_str(&client->texts, tkc_buf_view(&text), err);
    tkc_buf_free(&text);
    return !tkc_failed(err);
}

static bool make_url(tinkc_client *client, const tinkc_client_options *o, tinkc_error *err)
{
    const char *text = text_or_env(client, o->base_url, "TINKER_BASE_URL", err);
    /* An engine or a mock has no address. */
    if (!text && o->transport) {
        client->base_url = client->origin = "";
        return true;
    }
    tkc_url url;
    if (!tkc_url_parse(tkc_str(text ? text : TKC_DEFAULT_URL), &client->texts, &url, err)) {
        if (err->code == TINKC_E_ARGUMENT) {
            tinkc_error named = { 0 };
            tkc_fail(&named, TINKC_E_ARGUMENT, "base_url: %.300s", err->message);
            *err = named;
        }
        return false;
    }
    size_t len = strlen(url.path);
    bool slash = len && url.path[len - 1] == '/';
    client->base_url =
        tkc_arena_printf(&client->texts, err, "%s%s%s", url.origin, url.path, slash ? "" : "/");
    client->origin = url.origin;
    return client->base_url != NULL;
}

bool tkc_options_apply(tinkc_client *client, const tinkc_client_options *o, tinkc_error *err)
{
    if (!make_url(client, o, err))
        return false;
    client->api_key = text_or_env(client, o->api_key, "TINKER_API_KEY", err);
    client->credential_cmd = text_or_env(client, o->credential_cmd, "TINKER_CREDENTIAL_CMD", err);
    client->project_id = text_or_env(client, o->project_id, "TINKER_PROJECT_ID", err);
    client->tags =
        o->tags ? copy_list(client, o->tags, false, "tags", err) : tags_from_env(client, err);
    client->user_metadata = copy_list(client, o->user_metadata, true, "user_metadata", err);
    if (o->display_name && o->display_name[0])
        client->display_name = tkc_arena_cstr(&client->texts, o->display_name, err);
    if (tkc_failed(err) || !make_headers(client, o, err) || !make_query(client, o, err))
        return false;
    client->log = make_log(o);
    client->telemetry_on = o->telemetry ? o->telemetry == TINKC_TELEMETRY_ON
                                        : telemetry_from_env(o->transport != NULL);
    /* Nobody reads reports in an engine of this very process. */
    if (o->transport && (o->transport->flags & TINKC_TRANSPORT_LOCAL))
        client->telemetry_on = false;
    /* The Python SDK's numbers: 5 s, 60 s, 300 s, 10 attempts. */
    client->connect_timeout_ms = tkc_number_or(o->connect_timeout_ms, 5000);
    client->idle_timeout_ms = tkc_number_or(o->idle_timeout_ms, 60000);
    client->retry_window_ms = tkc_number_or(o->retry_window_ms, 300000);
    client->operation_timeout_ms = o->operation_timeout_ms;
    client->billing_pause_ms = o->billing_pause_ms;
    client->max_response_bytes = tkc_number_or(o->max_response_bytes, (int64_t)1 << 30);
    client->max_retries = (int32_t)tkc_number_or(o->max_retries, 10);
    client->no_retries = o->no_retries;
    client->conflict_recovery = o->conflict_recovery;
    return true;
}

/* ---- saved texts ---- */

static const char *string_or_null(tkc_json *j)
{
    return tkc_json_null(j) ? NULL : tkc_arena_str(j->arena, tkc_json_string(j), j->err);
}

static const char *const *string_list(tkc_json *j)
{
    const char **list = tkc_arena_array(j->arena, 257, sizeof *list, j->err);
    size_t n = 0;
    if (tkc_json_array(j))
        while (tkc_json_item(j)) {
            const char *text = tkc_arena_str(j->arena, tkc_json_string(j), j->err);
            if (list && n < 256)
                list[n++] = text;
        }
    return (const char *const *)list;
}

bool tkc_saved_read(const char *text, const char *argument, tkc_arena *arena, tkc_saved *out,
                    tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    int64_t version = 0;
    tinkc_error bad = { 0 };
    *out = (tkc_saved){ 0 };
    tkc_json_open(&j, tkc_str(text), arena, &bad);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "tinkc"))
                version = tkc_json_i64(&j);
            else if (tkc_str_is(key, "base_url"))
                out->base_url = string_or_null(&j);
            else if (tkc_str_is(key, "account"))
                out->account = (uint64_t)tkc_json_i64(&j);
            else if (tkc_str_is(key, "config"))
                out->config = tkc_json_skip(&j);
            else if (tkc_str_is(key, "refresh_interval_sec"))
                out->refresh_interval_s = tkc_json_i64(&j);
            else if (tkc_str_is(key, "jwt"))
                out->jwt = string_or_null(&j);
            else if (tkc_str_is(key, "api_key"))
                out->api_key = string_or_null(&j);
            else if (tkc_str_is(key, "credential_cmd"))
                out->credential_cmd = string_or_null(&j);
            else if (tkc_str_is(key, "session_id"))
                out->session_id = string_or_null(&j);
            else if (tkc_str_is(key, "sampler_id"))
                out->sampler_id = string_or_null(&j);
            else if (tkc_str_is(key, "record_stability_info"))
                out->record_stability_info = tkc_json_bool(&j);
            else if (tkc_str_is(key, "headers"))
                out->headers = string_list(&j);
            else
                /* A newer version may have written more. */
                tkc_json_skip(&j);
        }
    tkc_json_close(&j);
    if (bad.code == TINKC_E_MEMORY)
        return tkc_fail_memory(err);
    if (tkc_failed(&bad) || version != 1)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: not an exported sampler", argument);
    return true;
}
