/* hub_session.c - a hub session: the environment, requests with retries, messages for statuses.
 *
 * May touch: the environment (once, in tinkc_hub_new), the network through net/fetch.h.
 */
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/str.h"
#include "base/thread.h"
#include "codec/retry.h"
#include "codec/url.h"
#include "hub/hub_priv.h"

enum {
    FIRST_PAUSE_MS = 200,
    LAST_PAUSE_MS = 10000,
    SLEEP_STEP_MS = 50,
    USUAL_WINDOW_MS = 30000,
    UNREACHED_WINDOW_MS = 2000, /* without a network, or with a wrong address, waiting is useless */
    TOKEN_MAX = 64 * 1024
};

/* ---- the environment ---- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool is_on(const char *name)
{
    tinkc_str s = tkc_str(variable(name));
    return tkc_str_is(s, "1") || tkc_str_is_nocase(s, "true") || tkc_str_is_nocase(s, "yes") ||
           tkc_str_is_nocase(s, "on");
}

static const char *read_home(tkc_arena *arena, tinkc_error *err)
{
    const char *home = variable("HF_HOME"), *xdg = variable("XDG_CACHE_HOME");
    if (home)
        return tkc_arena_cstr(arena, home, err);
    if (xdg)
        return tkc_path_join(arena, xdg, "huggingface", err);
    home = variable("HOME");
    return tkc_path_join(arena, home ? home : ".", ".cache/huggingface", err);
}

/* One line without white space around it, or NULL. */
static const char *read_token(tkc_arena *arena, const char *home, tinkc_error *err)
{
    tinkc_error ignored = { 0 };
    const char *token = variable("HF_TOKEN"), *file = variable("HF_TOKEN_PATH");
    token = token ? token : variable("HUGGING_FACE_HUB_TOKEN");
    if (token)
        return tkc_arena_str(arena, tkc_str_trim(tkc_str(token)), err);
    if (!file)
        file = tkc_path_join(arena, home, "token", err);
    tinkc_bytes text = { 0 };
    if (file && tkc_is_file(file))
        text = tkc_read_file(arena, file, TOKEN_MAX, &ignored);
    tinkc_str line = tkc_str_trim(tkc_strn((const char *)text.data, text.data ? text.len : 0));
    return line.len ? tkc_arena_str(arena, line, err) : NULL;
}

static const char *pick(tkc_arena *arena, const char *given, const char *otherwise,
                        tinkc_error *err)
{
    const char *text = given && *given ? given : otherwise;
    return text ? tkc_arena_cstr(arena, text, err) : NULL;
}

/* Checks the URL and removes a trailing slash. */
static bool set_url(tinkc_hub *h, const char *url, tinkc_error *err)
{
    tkc_url parsed;
    char *text = tkc_arena_cstr(&h->texts, url, err);
    if (!text || !tkc_url_parse(tkc_str(text), &h->texts, &parsed, err))
        return tkc_fail_before(err, "the hub's address: ");
    for (size_t len = strlen(text); len && text[len - 1] == '/'; len--)
        text[len - 1] = 0;
    h->url = text;
    return true;
}

static bool read_places(tinkc_hub *h, const tinkc_hub_options *o, tinkc_error *err)
{
    const char *home = read_home(&h->texts, err), *cache = variable("HF_HUB_CACHE");
    const char *url = variable("HF_ENDPOINT");
    if (!home)
        return false;
    if (!cache)
        cache = tkc_path_join(&h->texts, home, "hub", err);
    h->cache = pick(&h->texts, o->cache_dir, cache, err);
    if (o->url && *o->url)
        url = o->url;
    if (!set_url(h, url ? url : "https://huggingface.co", err))
        return false;
    h->token = o->token ? pick(&h->texts, o->token, NULL, err) : read_token(&h->texts, home, err);
    h->fetch.proxy = o->proxy ? tkc_arena_cstr(&h->texts, o->proxy, err) : NULL;
    h->fetch.ca_file = pick(&h->texts, o->ca_file, variable("SSL_CERT_FILE"), err);
    return !tkc_failed(err);
}

/* ---- new and free ---- */

static bool check_options(const tinkc_hub_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) ||
        !tkc_all_zero(o->reserved, sizeof o->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "hub options: reserved must be zero");
    if (o->jobs < 0 || o->jobs > TKC_HUB_MAX_JOBS)
        return tkc_fail(err, TINKC_E_ARGUMENT, "hub options: jobs must be 1 to %d",
                        TKC_HUB_MAX_JOBS);
    const char *negative = o->connect_timeout_ms < 0 ? "connect_timeout_ms"
                           : o->idle_timeout_ms < 0  ? "idle_timeout_ms"
                           : o->retry_window_ms < 0 && o->retry_window_ms != TINKC_FOREVER
                               ? "retry_window_ms"
                               : NULL;
    return !negative ||
           tkc_fail(err, TINKC_E_ARGUMENT, "hub options: %s must not be negative", negative);
}

tinkc_hub *tinkc_hub_new(const tinkc_hub_options *o, tinkc_error *err)
{
    static const tinkc_hub_options defaults = { 0 };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    o = o ? o : &defaults;
    tinkc_hub *h = check_options(o, err) ? tkc_zalloc(o->allocator, sizeof *h, err) : NULL;
    if (!h)
        return NULL;
    h->a = o->allocator;
    tkc_arena_init(&h->texts, h->a, 0);
    h->log = (tkc_log){ o->log, o->log_user, o->log_level ? o->log_level : TINKC_LOG_WARN };
    h->jobs = o->jobs ? o->jobs : 4;
    h->retry_window_ms = o->retry_window_ms ? o->retry_window_ms : USUAL_WINDOW_MS;
    h->unreached_window_ms = o->retry_window_ms ? o->retry_window_ms : UNREACHED_WINDOW_MS;
    h->no_retries = o->no_retries;
    h->offline = o->offline || is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
    h->fetch.connect_ms = o->connect_timeout_ms ? o->connect_timeout_ms : 10000;
    h->fetch.idle_ms = o->idle_timeout_ms ? o->idle_timeout_ms : 60000;
    h->fetch.stop = &h->stop;
    if (read_places(h, o, err))
        return h;
    tinkc_hub_free(h);
    return NULL;
}

tinkc_hub *tkc_hub_with(const tinkc_hub *base, const char *url, const char *token,
                        const char *cache_dir, bool offline, tinkc_error *err)
{
    tinkc_hub *h = tkc_zalloc(base->a, sizeof *h, err);
    if (!h)
        return NULL;
    *h = *base;
    atomic_init(&h->stop, false);
    atomic_init(&h->answered, false);
    h->fetch.stop = &h->stop;
    tkc_arena_init(&h->texts, h->a, 0);
    h->offline = base->offline || offline;
    h->token = pick(&h->texts, token, base->token, err);
    h->cache = pick(&h->texts, cache_dir, base->cache, err);
    h->fetch.proxy = base->fetch.proxy ? tkc_arena_cstr(&h->texts, base->fetch.proxy, err) : NULL;
    h->fetch.ca_file = pick(&h->texts, NULL, base->fetch.ca_file, err);
    if (!tkc_failed(err) && set_url(h, url && *url ? url : base->url, err))
        return h;
    tinkc_hub_free(h);
    return NULL;
}

void tinkc_hub_free(tinkc_hub *h)
{
    if (!h)
        return;
    tkc_arena_free(&h->texts);
    tkc_release(h->a, h, sizeof *h);
}

void tinkc_hub_stop(tinkc_hub *h)
{
    if (h)
        atomic_store(&h->stop, true);
}

const char *tinkc_hub_url(const tinkc_hub *h)
{
    return h ? h->url : "";
}

const char *tinkc_hub_cache(const tinkc_hub *h)
{
    return h ? h->cache : "";
}

bool tinkc_hub_has_token(const tinkc_hub *h)
{
    return h && h->token;
}

/* ---- requests ---- */

bool tkc_hub_sleep(const tinkc_hub *h, int64_t ms)
{
    for (; ms > 0 && !atomic_load(&h->stop); ms -= SLEEP_STEP_MS) {
        int64_t step = ms < SLEEP_STEP_MS ? ms : SLEEP_STEP_MS;
        struct timespec t = { .tv_sec = 0, .tv_nsec = (long)(step * 1000000) };
        (void)nanosleep(&t, NULL);
    }
    return !atomic_load(&h->stop);
}

const char *tkc_hub_quote(tkc_arena *arena, const char *text, bool keep_slashes, tinkc_error *err)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t len = strlen(text), n = 0;
    char *out = tkc_arena_alloc(arena, len * 3 + 1, err);
    for (size_t i = 0; out && i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-_.~", c) || (keep_slashes && c == '/');
        if (plain) {
            out[n++] = (char)c;
            continue;
        }
        out[n++] = '%';
        out[n++] = digits[c >> 4];
        out[n++] = digits[c & 15];
    }
    if (out)
        out[n] = 0;
    return out;
}

static bool is_temporary(const tinkc_error *err)
{
    int32_t s = err->http_status;
    return s == 408 || s == 429 || s >= 500 ||
           (!s && (err->code == TINKC_E_CONNECTION || err->code == TINKC_E_NET_TIMEOUT));
}

bool tkc_hub_try_again(tinkc_hub *h, tkc_hub_patience *p, const tkc_fetch *r, tinkc_error *err)
{
    const tinkc_clock *clock = tkc_clock_real();
    int64_t now = tkc_now_ms(clock);
    if (!is_temporary(err) || h->no_retries)
        return false;
    bool unreached = r->nobody_there && !atomic_load(&h->answered);
    if (!p->failures++)
        p->since_ms = now - (unreached ? r->took_ms : 0);
    int64_t window = unreached ? h->unreached_window_ms : h->retry_window_ms;
    if (window != TINKC_FOREVER && now - p->since_ms >= window)
        return false;
    int64_t pause = (int64_t)FIRST_PAUSE_MS << (p->failures < 7 ? p->failures - 1 : 6);
    pause = pause < LAST_PAUSE_MS ? pause : LAST_PAUSE_MS;
    pause = (int64_t)((double)pause * (0.75 + 0.5 * tkc_random_unit(clock)));
    int64_t asked = tkc_retry_after_ms(tkc_fetch_header(r, "retry-after-ms"),
                                       tkc_fetch_header(r, "retry-after"), tkc_wall_us(clock));
    pause = asked > 0 ? asked : pause;
    tkc_log_line(&h->log, TINKC_LOG_INFO, "hub: %s; trying again in %lld ms", err->message,
                 (long long)pause);
    if (!tkc_hub_sleep(h, pause)) {
        *err = (tinkc_error){ 0 };
        return tkc_fail(err, TINKC_E_CANCELLED, "the transfer was stopped");
    }
    *err = (tinkc_error){ 0 };
    return true;
}

/* The error for a status: what it means for `what`, and what to do. */
static void explain_status(tinkc_hub *h, const tkc_fetch *r, const char *what, tinkc_error *err)
{
    const char *reason = tkc_fetch_header(r, "x-error-message");
    const char *kind = tkc_fetch_header(r, "x-error-code");
    int32_t s = r->status, code = tkc_code_of_status(s);
    kind = kind ? kind : "";
    if (s == 401 && !h->token)
        tkc_fail(err, code,
                 "%s: the hub refuses access without a token (HTTP 401): check the name, or set "
                 "HF_TOKEN to a token that may read it",
                 what);
    else if (s == 401)
        tkc_fail(err, code,
                 "%s: the hub does not accept the token, or the name is wrong (HTTP 401): check "
                 "HF_TOKEN",
                 what);
    else if (s == 403 && strcmp(kind, "GatedRepo") == 0)
        tkc_fail(err, code, "%s: access is restricted (HTTP 403): ask for it on %s/%s%s", what,
                 h->url, what, h->token ? "" : ", and set HF_TOKEN");
    else if (s == 403)
        tkc_fail(err, code, "%s: access is forbidden (HTTP 403): %.150s", what,
                 reason ? reason : "the token ($HF_TOKEN) does not allow this");
    else if (s == 404 && strcmp(kind, "RevisionNotFound") == 0)
        tkc_fail(err, code, "no such revision on the hub: %s (HTTP 404)", what);
    else if (s == 404)
        tkc_fail(err, code, "not found on the hub: %s (HTTP 404)", what);
    else if (s == 429)
        tkc_fail(err, code, "%s: the hub limits the rate of requests (HTTP 429): try again later%s",
                 what, h->token ? "" : ", or set HF_TOKEN");
    else
        tkc_fail(err, code, "%s: the hub answers HTTP %d%s%.150s", what, (int)s, reason ? ": " : "",
                 reason ? reason : "");
    err->http_status = s;
}

void tkc_hub_explain(tinkc_hub *h, const tkc_fetch *r, const char *what, tinkc_error *err)
{
    if (r->status)
        atomic_store(&h->answered, true);
    if (!tkc_failed(err) && r->status >= 300)
        explain_status(h, r, what, err);
    else if (!r->status && (err->code == TINKC_E_CONNECTION || err->code == TINKC_E_NET_TIMEOUT))
        tkc_fail_before(err, "the hub could not be reached (%s): ", h->url);
}

bool tkc_hub_call(tinkc_hub *h, tkc_fetcher *f, tkc_fetch *r, const char *what, tinkc_error *err)
{
    tkc_hub_patience patience = { 0 };
    r->token = h->token;
    do {
        tkc_fetch_run(f, r, err);
        tkc_hub_explain(h, r, what, err);
    } while (tkc_failed(err) && tkc_hub_try_again(h, &patience, r, err));
    return !tkc_failed(err);
}
