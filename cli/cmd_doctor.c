/* cmd_doctor.c - `tinkc doctor`: is everything in order? Prints no secret: its output may go into
 * a bug report. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
#include "config.h"
#include "out.h"
#include "term.h"
#include "text.h"
#include "tlsprobe.h"

typedef struct doctor {
    cli_app *app;
    json_t *checks;
    int64_t begun_ms;
    size_t counts[4];
    cli_tls tls; /* what a handshake settled on; empty = there was none */
} doctor;

enum { OK, WARN, FAIL, SKIP };
enum { CHECK_SECONDS = 5 };
static const char *const status_names[] = { "ok", "warn", "fail", "skip" };

static void found(doctor *d, const char *id, int status, const char *hint, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void found(doctor *d, const char *id, int status, const char *hint, const char *format, ...)
{
    char message[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    json_array_append_new(d->checks, json_pack("{s:s,s:s,s:s,s:s?,s:I}", "id", id, "status",
                                               status_names[status], "message", message, "hint",
                                               status == WARN || status == FAIL ? hint : NULL, "ms",
                                               (json_int_t)(cli_now_ms() - d->begun_ms)));
    d->counts[status]++;
    d->begun_ms = cli_now_ms();
}

/* ---- tool, configuration, credential ---- */

static void check_tool(doctor *d)
{
    found(d, "tool.version", OK, NULL, "tinkc %s, for Tinker SDK %s; %s", tinkc_version(),
          tinkc_version_tinker(), tinkc_version_detail("features"));
    const char *nano = cli_nano_folder();
    found(d, "tool.nano", nano ? OK : WARN, "set TINKC_NANO to its folder",
          nano ? "the shipped model is at %s" : "the shipped model was not found%s",
          nano ? nano : "");
}

/* Another tinkc that a shell would find first. */
static void check_path(doctor *d)
{
    char self[4096], other[4096];
    const char *path = getenv("PATH");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    for (const char *p = path ? path : ""; *p;) {
        size_t len = strcspn(p, ":");
        char *file = cli_printf("%.*s/tinkc", (int)len, p);
        bool here = file && access(file, X_OK) == 0 && realpath(file, other);
        free(file);
        if (here) {
            bool same = strcmp(self, other) == 0;
            found(d, "tool.path", same ? OK : WARN, "change PATH, or give the whole path",
                  same ? "%s is the one on the PATH" : "%s stands before this one on the PATH",
                  other);
            return;
        }
        p += len + (p[len] == ':');
    }
    found(d, "tool.path", SKIP, NULL, "tinkc is not on the PATH");
}

/* Every value that is in force, and where it comes from. */
static void check_values(doctor *d)
{
    for (size_t i = 0; cli_profile_keys[i]; i++) {
        const char *origin = NULL, *key = cli_profile_keys[i];
        const char *value = cli_config_get(d->app, key, &origin);
        if (value)
            found(d, "config.value", OK, NULL, "%s = %s (%s)", key,
                  cli_config_is_secret(key) ? "(secret)" : value, origin);
    }
    for (const cli_option *o = cli_globals; o->name; o++)
        if (o->env && getenv(o->env) && *getenv(o->env))
            found(d, "config.value", OK, NULL, "--%s = %s (%s)", o->name, getenv(o->env), o->env);
}

/* As the library reads TINKER_TELEMETRY. */
static bool is_on(const char *text)
{
    static const char *const words[] = { "1", "true", "yes", "on" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(words[i], text) == 0)
            return true;
    return false;
}

static void check_config(doctor *d)
{
    const cli_config *c = d->app->config;
    const char *const files[][2] = { { "config.project", c->project_file },
                                     { "config.user", c->user_file },
                                     { "config.credentials", c->credentials_file },
                                     { "config.system", c->system_file } };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bool there = files[i][1] && access(files[i][1], R_OK) == 0;
        found(d, files[i][0], there ? OK : SKIP, NULL, "%s: %s",
              files[i][1] ? files[i][1] : "no file", there ? "read" : "not there");
    }
    found(d, "config.profile", cli_config_has_profile(d->app, c->profile) ? OK : FAIL,
          "tinkc config profiles lists those there are", "%s (%s), %zu settings", c->profile,
          c->profile_origin, c->n_settings);
    check_values(d);
    const char *wanted = getenv("TINKER_TELEMETRY"),
               *stored = cli_config_get(d->app, "telemetry", NULL);
    bool on = wanted && *wanted ? is_on(wanted) : stored && strcmp(stored, "true") == 0;
    found(d, "config.telemetry", OK, NULL, "telemetry is %s", on ? "on" : "off");
}

/* The seconds since 1970 at which a token ends; 0 = it does not say. */
static int64_t token_end(const char *token)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const char *p = strchr(token, '.');
    char text[4096];
    size_t n = 0;
    uint32_t bits = 0;
    int held = 0;
    for (p = p ? p + 1 : ""; *p && *p != '.' && n + 1 < sizeof text; p++) {
        const char *digit = strchr(digits, *p);
        if (!digit)
            return 0;
        bits = bits << 6 | (uint32_t)(digit - digits);
        held += 6;
        if (held >= 8) {
            held -= 8;
            text[n++] = (char)(bits >> held & 0xFF);
        }
    }
    json_t *v = json_loadb(text, n, 0, NULL);
    int64_t end = json_integer_value(json_object_get(v, "exp"));
    json_decref(v);
    return end;
}

static void check_expiry(doctor *d, const char *token)
{
    char when[CLI_SHORT_TEXT];
    int64_t end = token_end(token);
    if (end <= 0 || end > INT64_MAX / 1000000) {
        found(d, "credential.expiry", SKIP, NULL, "the token does not say when it ends");
        return;
    }
    bool over = end * 1000000 <= cli_now_us();
    cli_format_iso(end * 1000000, when);
    found(d, "credential.expiry", over ? FAIL : OK, "get a fresh one: tinkc auth login",
          over ? "the token ended at %s" : "the token is good until %s", when);
}

static bool check_credential(doctor *d)
{
    const char *key = getenv("TINKER_API_KEY"), *cmd = getenv("TINKER_CREDENTIAL_CMD");
    const char *stored = cli_config_get(d->app, "api_key", NULL);
    const char *used = key && *key ? key : stored;
    if (used) {
        bool shape = strncmp(used, "tml-", 4) == 0 || strncmp(used, "eyJ", 3) == 0;
        found(d, "credential.shape", shape ? OK : FAIL, "a key begins with tml-, a token with eyJ",
              "a %s from %s", strncmp(used, "eyJ", 3) == 0 ? "token" : "key",
              key && *key ? "TINKER_API_KEY" : "the profile");
        if (strncmp(used, "eyJ", 3) == 0)
            check_expiry(d, used);
        return shape;
    }
    if ((cmd && *cmd) || cli_config_get(d->app, "credential_cmd", NULL)) {
        found(d, "credential.command", OK, NULL, "a command gives the credential");
        return true;
    }
    found(d, "credential.present", WARN, "tinkc auth login",
          "no credential: commands use the engine inside this program");
    return false;
}

/* ---- network and service ---- */

/* Date: Sun, 15 Nov 2026 09:30:00 GMT */
static bool http_date(const char *text, int64_t *seconds)
{
    struct tm t = { 0 };
    const char *end = strptime(text, "%a, %d %b %Y %H:%M:%S", &t);
    *seconds = end ? (int64_t)timegm(&t) : 0;
    return end != NULL;
}

/* "https://host:443/path" in pieces; false if it is none. */
static bool split_url(const char *url, char host[256], char port[8])
{
    bool tls = strncmp(url, "https://", 8) == 0;
    const char *p = strstr(url, "://");
    if (!p)
        return false;
    p += 3;
    bool bracket = *p == '[';
    size_t n = bracket ? strcspn(++p, "]") : strcspn(p, ":/?#");
    if (n == 0 || n >= 256)
        return false;
    memcpy(host, p, n);
    host[n] = '\0';
    p += n + bracket;
    (void)snprintf(port, 8, "%s", tls ? "443" : "80");
    if (*p == ':' && strcspn(p + 1, "/?#") < 8)
        (void)snprintf(port, 8, "%.*s", (int)strcspn(p + 1, "/?#"), p + 1);
    return true;
}

/* A name that no server knows keeps a resolver busy for long: it works on a thread of its own,
 * which is left behind when the time is over. */
typedef struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    char host[256], port[8];
    struct addrinfo *found;
    int fault;
    bool started, done;
    time_t until;
} lookup;

static void *resolve(void *arg)
{
    lookup *l = arg;
    struct addrinfo *found = NULL, hints = { .ai_socktype = SOCK_STREAM };
    int fault = getaddrinfo(l->host, l->port, &hints, &found);
    pthread_mutex_lock(&l->lock);
    l->found = found;
    l->fault = fault;
    l->done = true;
    pthread_cond_signal(&l->cond);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void start_lookup(lookup *l)
{
    pthread_t thread;
    l->until = time(NULL) + CHECK_SECONDS;
    l->started = pthread_create(&thread, NULL, resolve, l) == 0;
    if (l->started)
        pthread_detach(thread);
}

static bool finish_lookup(lookup *l)
{
    struct timespec until = { .tv_sec = l->until };
    if (!l->started)
        return false;
    pthread_mutex_lock(&l->lock);
    while (!l->done && pthread_cond_timedwait(&l->cond, &l->lock, &until) == 0)
        ;
    bool done = l->done;
    pthread_mutex_unlock(&l->lock);
    return done;
}

/* 0 with *out connected (yours), or why not. */
static int connect_to(const struct addrinfo *a, int *out)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), fault = 0;
    socklen_t size = sizeof fault;
    if (fd < 0)
        return errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0)
        fault = errno;
    if (fault == EINPROGRESS) {
        struct pollfd p = { .fd = fd, .events = POLLOUT };
        if (poll(&p, 1, CHECK_SECONDS * 1000) != 1)
            fault = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size) != 0)
            fault = errno;
    }
    if (fault)
        close(fd);
    *out = fault ? -1 : fd;
    return fault;
}

static int connect_any(const lookup *l, char address[128], int *fd)
{
    int fault = EHOSTUNREACH;
    address[0] = '\0';
    for (const struct addrinfo *a = l->found; a && fault; a = a->ai_next) {
        (void)getnameinfo(a->ai_addr, a->ai_addrlen, address, 128, NULL, 0, NI_NUMERICHOST);
        fault = connect_to(a, fd);
    }
    return fault;
}

static void check_tcp(doctor *d, const lookup *l, bool tls)
{
    int fd = -1;
    char address[128];
    int fault = connect_any(l, address, &fd);
    if (!fault && tls)
        (void)cli_tls_probe(fd, l->host, CHECK_SECONDS, &d->tls);
    if (!fault)
        close(fd);
    found(d, "network.tcp", fault ? FAIL : OK, "check the address, a firewall, or the proxy",
          "%s port %s: %s", address, l->port, fault ? strerrordesc_np(fault) : "connects");
}

/* The way to the service, step by step; behind a proxy it is the proxy's business. */
static void check_route(doctor *d, const char *url)
{
    static lookup l = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
    bool tls = strncmp(url, "https://", 8) == 0;
    if (getenv(tls ? "HTTPS_PROXY" : "HTTP_PROXY") || getenv(tls ? "https_proxy" : "http_proxy")) {
        found(d, "network.dns", SKIP, NULL, "a proxy is used");
        return;
    }
    if (!split_url(url, l.host, l.port)) {
        found(d, "network.dns", FAIL, "tinkc config list --show-origin", "not an address: %s", url);
        return;
    }
    start_lookup(&l);
    if (!finish_lookup(&l)) {
        found(d, "network.dns", FAIL, "check the name server", "%s: no answer within %d s", l.host,
              CHECK_SECONDS);
        return;
    }
    if (l.fault)
        found(d, "network.dns", FAIL, "check the address and the name server", "%s: %s", l.host,
              gai_strerror(l.fault));
    else
        found(d, "network.dns", OK, NULL, "%s is known", l.host);
    if (!l.fault)
        check_tcp(d, &l, tls);
    if (l.found)
        freeaddrinfo(l.found);
    l.found = NULL;
}

/* The version from a handshake of our own; whether libcurl trusts the chain stands in its message.
 */
static void check_tls(doctor *d, const char *url, const tinkc_error *err)
{
    bool tls = strncmp(url, "https://", 8) == 0;
    bool refused = strncmp(err->message, "TLS", 3) == 0;
    const char *version = d->tls.version[0] ? d->tls.version : "TLS 1.2 or newer";
    if (!tls)
        found(d, "network.tls", SKIP, NULL, "the address is plain http");
    else if (err->code && !refused)
        found(d, "network.tls", SKIP, NULL, "it did not come to that");
    else
        found(d, "network.tls", refused ? FAIL : OK,
              "check the clock, SSL_CERT_FILE and SSL_CERT_DIR, or a proxy that looks inside",
              "%s: %s", version,
              !refused          ? "the chain is trusted"
              : d->tls.fault[0] ? d->tls.fault
                                : err->message);
}

/* A call whose head shows the protocol and the service's clock. */
static void check_call(doctor *d, int64_t first_ms)
{
    tinkc_error err = { 0 };
    tinkc_call_options call = { .method = "GET", .path = "/api/v1/healthz", .any_status = true };
    int64_t begun = cli_now_ms(), theirs;
    tinkc_future *f = tinkc_call(d->app->client, &call, &err);
    if (!err.code && tinkc_future_wait(f, 5000, &err)) {
        const tinkc_response *r = tinkc_future_response(f, 0, &err);
        found(d, "network.latency", OK, NULL, "HTTP/%s, %lld ms the first time, then %lld ms",
              tinkc_response_http_version(r), (long long)first_ms,
              (long long)(cli_now_ms() - begun));
        for (const char *const *h = tinkc_response_headers(r); h && h[0]; h += 2) {
            if (strcasecmp(h[0], "date") != 0 || !http_date(h[1], &theirs))
                continue;
            long long skew = (long long)(cli_now_us() / 1000000 - theirs);
            found(d, "network.clock", skew > 30 || skew < -30 ? WARN : OK, "set this clock right",
                  "this clock is %lld s off the service's", skew);
        }
    }
    tinkc_future_free(f);
}

/* The short-lived token that stands in for a key, where the service gives one. */
static void check_token(doctor *d)
{
    tinkc_error err = { 0 };
    char when[CLI_SHORT_TEXT];
    tinkc_future *f = tinkc_token_get(d->app->client, &err);
    const tinkc_token *t = f && tinkc_future_wait(f, CHECK_SECONDS * 1000, &err)
                               ? tinkc_future_token(f, 0, &err)
                               : NULL;
    if (t && t->expires_us > 0) {
        cli_format_iso(t->expires_us, when);
        found(d, "service.token", OK, NULL, "a token came, good until %s", when);
    } else {
        found(d, "service.token", SKIP, NULL, "%s", t ? "a token came" : err.message);
    }
    tinkc_future_free(f);
}

static void check_service(doctor *d, bool credential)
{
    static const char *const proxies[] = { "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy",
                                           "NO_PROXY" };
    for (size_t i = 0; i < sizeof proxies / sizeof *proxies; i++)
        if (getenv(proxies[i]))
            found(d, "network.proxy", OK, NULL, "%s is set", proxies[i]);
    if (d->app->offline || (!credential && !cli_text(d->app, "base-url"))) {
        found(d, "service.health", SKIP, NULL, "not asked: %s",
              d->app->offline ? "--offline" : "no credential");
        return;
    }
    tinkc_error err = { 0 };
    if (cli_connect(d->app) != 0) {
        found(d, "service.client", FAIL, "see the error above", "no client could be made");
        return;
    }
    const char *url = tinkc_client_base_url(d->app->client);
    bool local = cli_wants_local(d->app);
    if (!local)
        check_route(d, url);
    int64_t begun = cli_now_ms();
    tinkc_future *f = tinkc_health_check(d->app->client, &err);
    tinkc_future_wait(f, 5000, &err);
    if (!local)
        check_tls(d, url, &err);
    found(d, "service.health", err.code ? FAIL : OK, "check the network, proxy and address",
          "%s: %s", tinkc_client_base_url(d->app->client), err.code ? err.message : "answers");
    tinkc_future_free(f);
    if (err.code)
        return;
    check_call(d, cli_now_ms() - begun);
    tinkc_client_connect(d->app->client, 5000, &err);
    found(d, "service.credential", err.code ? FAIL : OK, "check the key: tinkc auth status", "%s",
          err.code ? err.message : "the settings came, the credential is accepted");
    check_token(d);
    err = (tinkc_error){ 0 };
    f = tinkc_capabilities_get(d->app->client, &err);
    if (!err.code && tinkc_future_wait(f, 5000, &err))
        found(d, "service.models", OK, NULL, "%zu models are offered",
              tinkc_capabilities_count(tinkc_future_capabilities(f, 0, &err)));
    else
        found(d, "service.models", FAIL, "try again later", "%s", err.message);
    bool blocked = err.code == TINKC_E_BILLING;
    found(d, "service.billing",
          blocked    ? FAIL
          : err.code ? SKIP
                     : OK,
          "see the billing page of the console", "%s",
          blocked    ? "the account is blocked"
          : err.code ? "not known"
                     : "not blocked");
    tinkc_future_free(f);
}

/* ---- machine ---- */

static void check_space(doctor *d, const char *id, const char *path)
{
    struct statvfs st;
    char text[CLI_SHORT_TEXT];
    if (!path || statvfs(path, &st) != 0) {
        found(d, id, SKIP, NULL, "%s is not there yet", path ? path : "the folder");
        return;
    }
    int64_t free_bytes = (int64_t)st.f_bavail * (int64_t)st.f_frsize;
    cli_format_size(free_bytes, text);
    found(d, id, free_bytes < INT64_C(1) << 30 ? WARN : OK, "free some space", "%s: %s free", path,
          text);
}

static void cpu_features(char *out, size_t cap)
{
    out[0] = '\0';
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        (void)snprintf(out + strlen(out), cap - strlen(out), " avx2");
    if (__builtin_cpu_supports("avx512f"))
        (void)snprintf(out + strlen(out), cap - strlen(out), " avx512");
    if (__builtin_cpu_supports("avx512bf16"))
        (void)snprintf(out + strlen(out), cap - strlen(out), " bf16");
#else
    (void)snprintf(out, cap, " none that is used");
#endif
}

static void check_machine(doctor *d)
{
    struct utsname u;
    struct rlimit files;
    char memory[CLI_SHORT_TEXT], features[64];
    if (uname(&u) == 0)
        found(d, "machine.system", OK, NULL, "%s %s, %s", u.sysname, u.release, u.machine);
    cpu_features(features, sizeof features);
    cli_format_size((int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), memory);
    found(d, "machine.cpu", OK, NULL, "%ld cores, %s memory, vector units:%s",
          sysconf(_SC_NPROCESSORS_ONLN), memory, features);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        found(d, "machine.files", files.rlim_cur < 1024 ? WARN : OK, "ulimit -n 4096",
              "%llu open files allowed", (unsigned long long)files.rlim_cur);
    check_space(d, "machine.store", cli_store_folder(d->app));
    const char *tmp = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    check_space(d, "machine.tmp", tmp);
    struct statfs kind;
    if (statfs(tmp, &kind) == 0)
        found(d, "machine.tmp_kind", kind.f_type == TMPFS_MAGIC ? WARN : OK,
              "large files in it use memory: set TMPDIR to a folder on disk", "%s: %s", tmp,
              kind.f_type == TMPFS_MAGIC ? "in memory (tmpfs)" : "on disk");
    found(d, "machine.gpu", SKIP, NULL, "the engine computes on the CPU");
}

/* The folder, or the nearest above it that is there: what is missing can be made. */
static bool can_write(const char *folder)
{
    char *path = strdup(folder);
    while (path && path[0] && access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    bool ok = path && access(path[0] ? path : "/", W_OK) == 0;
    free(path);
    return ok;
}

static void check_cache(doctor *d)
{
    const char *home = getenv("HF_HOME"), *user = getenv("HOME");
    char *folder =
        home && *home ? strdup(home) : cli_printf("%s/.cache/huggingface", user ? user : "");
    bool ok = folder && can_write(folder);
    found(d, "hub.cache", ok ? OK : WARN, "set HF_HOME to a folder that can be written",
          "tokenizers are cached in %s%s%s", folder ? folder : "?",
          ok ? "" : ", which is read-only",
          getenv("HF_HUB_OFFLINE") ? "; HF_HUB_OFFLINE is set" : "");
    if (folder && access(folder, F_OK) == 0)
        check_space(d, "hub.space", folder);
    free(folder);
}

static lookup hub = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };

static const char *hub_url(void)
{
    const char *url = getenv("HF_ENDPOINT");
    return url && *url ? url : "https://huggingface.co";
}

/* Whether the hub can be asked at all: not offline, no proxy, an address. Its name is looked up
 * while the other checks run. */
static bool begin_hub(const doctor *d)
{
    const char *offline = getenv("HF_HUB_OFFLINE");
    if (d->app->offline || (offline && is_on(offline)) || getenv("HTTPS_PROXY") ||
        getenv("https_proxy") || !split_url(hub_url(), hub.host, hub.port))
        return false;
    start_lookup(&hub);
    return true;
}

static void check_hub_reach(doctor *d, bool begun)
{
    int fd = -1;
    char address[128];
    if (!begun) {
        found(d, "hub.reach", SKIP, NULL, "%s: not asked (offline, or behind a proxy)", hub_url());
        return;
    }
    bool known = finish_lookup(&hub) && !hub.fault;
    int fault = known ? connect_any(&hub, address, &fd) : 0;
    if (fd >= 0)
        close(fd);
    found(d, "hub.reach", known && !fault ? OK : WARN,
          "tokenizers that are not cached cannot be fetched; a local folder still works", "%s: %s",
          hub_url(),
          !known  ? "its name is not known"
          : fault ? strerrordesc_np(fault)
                  : "connects");
}

static void check_hub(doctor *d, bool begun)
{
    bool token = getenv("HF_TOKEN") || getenv("HUGGING_FACE_HUB_TOKEN") ||
                 cli_config_get(d->app, "hf_token", NULL);
    found(d, "hub.token", token ? OK : SKIP, NULL, "%s",
          token ? "there is one" : "none in HF_TOKEN: only open repositories can be read");
    check_hub_reach(d, begun);
    check_cache(d);
}

static void check_terminal(doctor *d)
{
    found(d, "terminal", d->app->utf8 ? OK : WARN, "use a UTF-8 locale", "width %zu, colour %s, %s",
          cli_term_width(d->app), d->app->color ? "on" : "off",
          d->app->utf8 ? "UTF-8" : "not UTF-8");
}

int cli_doctor(cli_app *app)
{
    static const cli_column columns[] = {
        { .name = "status", .header = "Status", .path = "status", .standard = true },
        { .name = "id", .header = "Check", .path = "id", .standard = true },
        { .name = "message", .header = "Finding", .path = "message", .standard = true },
        { .name = "hint", .header = "Hint", .path = "hint", .standard = true },
        { 0 }
    };
    doctor d = { .app = app, .checks = json_array(), .begun_ms = cli_now_ms() };
    bool begun = begin_hub(&d);
    check_tool(&d);
    check_path(&d);
    check_config(&d);
    check_service(&d, check_credential(&d));
    check_hub(&d, begun);
    check_machine(&d);
    check_terminal(&d);
    int bad;
    if (app->format == CLI_JSON) {
        json_t *summary = json_object();
        for (size_t i = 0; i < 4; i++)
            json_object_set_new(summary, status_names[i], json_integer((json_int_t)d.counts[i]));
        json_t *v = json_pack("{s:O,s:o}", "checks", d.checks, "summary", summary);
        bad = cli_print_json(app, v);
        json_decref(v);
    } else {
        cli_list list = { .key = "checks", .columns = columns, .total = -1, .no_counts = true };
        bad = cli_print_list(app, &list, d.checks);
    }
    json_decref(d.checks);
    return bad ? bad : d.counts[FAIL] ? CLI_EXIT_CHECK : 0;
}
