/* doctor_service.c - the part of `tinkc doctor` that asks others: the way to the service step by
 * step, what it answers, and whether the hub can be reached. Nothing is tried twice, and no check
 * takes more than CHECK_SECONDS.
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/config_file.h"
#include "cli/doctor/doctor.h"
#include "cli/output/text.h"

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
    size_t digits = *p == ':' ? strcspn(p + 1, "/?#") : 0;
    if (digits)
        (void)snprintf(port, 8, "%.*s", (int)digits, p + 1);
    return digits < 8;
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

/* 0 with *out connected (yours), or why not within that time. */
static int connect_to(const struct addrinfo *a, int64_t left_ms, int *out)
{
    int fd = tkc_socket(a->ai_family, SOCK_STREAM, 0), fault = 0;
    socklen_t size = sizeof fault;
    if (fd < 0)
        return errno;
    (void)tkc_set_nonblocking(fd);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0)
        fault = errno;
    if (fault == EINPROGRESS) {
        struct pollfd p = { .fd = fd, .events = POLLOUT };
        if (poll(&p, 1, (int)left_ms) != 1)
            fault = ETIMEDOUT;
        else
            (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size);
    }
    if (fault)
        close(fd);
    *out = fault ? -1 : fd;
    return fault;
}

/* Each address in turn, all of them within the time of one check. */
static int connect_any(const doctor *d, const lookup *l, char address[128], int *fd)
{
    int fault = EHOSTUNREACH;
    int64_t begun_ms = cli_now_ms();
    address[0] = '\0';
    for (const struct addrinfo *a = l->found; a && fault; a = a->ai_next) {
        int64_t left_ms = cli_doctor_left_ms(d, begun_ms);
        if (left_ms == 0)
            break;
        (void)getnameinfo(a->ai_addr, a->ai_addrlen, address, 128, NULL, 0, NI_NUMERICHOST);
        fault = connect_to(a, left_ms, fd);
    }
    return fault;
}

static void check_tcp(doctor *d, const lookup *l, bool tls)
{
    int fd = -1;
    char address[128];
    int fault = connect_any(d, l, address, &fd);
    if (!fault && tls)
        (void)cli_tls_probe(fd, l->host, CHECK_SECONDS, &d->tls);
    if (!fault)
        close(fd);
    cli_config_value(d, "network.tcp", fault ? CHECK_FAIL : CHECK_OK,
                     "check the address, a firewall, or the proxy", "%s port %s: %s", address,
                     l->port, fault ? tkc_errno_text(fault) : "connects");
}

/* The way to the service, step by step; behind a proxy it is the proxy's business. */
static void check_route(doctor *d, const char *url)
{
    static lookup l = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
    bool tls = strncmp(url, "https://", 8) == 0;
    if (getenv(tls ? "HTTPS_PROXY" : "HTTP_PROXY") || getenv(tls ? "https_proxy" : "http_proxy")) {
        cli_config_value(d, "network.dns", CHECK_SKIP, NULL, "a proxy is used");
        return;
    }
    if (!split_url(url, l.host, l.port)) {
        cli_config_value(d, "network.dns", CHECK_FAIL, "tinkc config list --show-origin",
                         "not an address: %s", url);
        return;
    }
    start_lookup(&l);
    if (!finish_lookup(&l)) {
        cli_config_value(d, "network.dns", CHECK_FAIL, "check the name server",
                         "%s: no answer within %d s", l.host, CHECK_SECONDS);
        return;
    }
    if (l.fault)
        cli_config_value(d, "network.dns", CHECK_FAIL, "check the address and the name server",
                         "%s: %s", l.host, gai_strerror(l.fault));
    else
        cli_config_value(d, "network.dns", CHECK_OK, NULL, "%s resolves", l.host);
    if (!l.fault)
        check_tcp(d, &l, tls);
    if (l.found)
        freeaddrinfo(l.found);
}

/* The version from a handshake of our own; whether libcurl trusts the chain stands in its message.
 */
static void check_tls(doctor *d, const char *url, const tinkc_error *err)
{
    bool tls = strncmp(url, "https://", 8) == 0;
    bool refused = strncmp(err->message, "TLS", 3) == 0;
    const char *version = *d->tls.version ? d->tls.version : "TLS 1.2 or newer";
    if (!tls)
        cli_config_value(d, "network.tls", CHECK_SKIP, NULL, "the address is plain http");
    else if (err->code && !refused)
        cli_config_value(d, "network.tls", CHECK_SKIP, NULL, "not checked: the request failed");
    else
        cli_config_value(
            d, "network.tls", refused ? CHECK_FAIL : CHECK_OK,
            "check the clock, SSL_CERT_FILE and SSL_CERT_DIR, or a proxy that decrypts TLS",
            "%s: %s", version,
            !refused        ? "the chain is trusted"
            : *d->tls.fault ? d->tls.fault
                            : err->message);
}

/* ---- what the service answers ---- */

/* What is asked at once and awaited one by one. */
typedef struct question {
    tinkc_future *f;
    tinkc_error err;
    int64_t begun_ms;
} question;

static question begin(tinkc_future *f, const tinkc_error *err)
{
    return (question){ f, *err, cli_now_ms() };
}

/* True once it has been answered; otherwise q->err says why not. */
static bool answered(doctor *d, question *q)
{
    if (!q->err.code)
        tinkc_future_wait(q->f, cli_doctor_left_ms(d, q->begun_ms), &q->err);
    if (q->err.code == TINKC_E_TIMEOUT || q->err.code == TINKC_E_DEADLINE) {
        q->err = (tinkc_error){ 0 };
        tinkc_error_set(&q->err, TINKC_E_TIMEOUT, "no answer in time");
    }
    return !q->err.code;
}

static void question_free(question *q)
{
    tinkc_future_free(q->f);
    q->f = NULL;
}

/* Somebody answers, and wants another credential, or none. */
static bool is_rejection(const tinkc_error *err)
{
    switch (err->code) {
    case TINKC_E_AUTH:
    case TINKC_E_FORBIDDEN:
    case TINKC_E_NO_CREDENTIAL:
    case TINKC_E_BAD_CREDENTIAL:
    case TINKC_E_CREDENTIAL_CMD:
    case TINKC_E_TOKEN:
        return true;
    default:
        return false;
    }
}

/* A failure with what helps against it, in the words that other commands have for it. */
static void failed(doctor *d, const char *id, const tinkc_error *err, const char *what)
{
    cli_problem p;
    cli_problem_of(err, &p);
    cli_config_value(d, id, CHECK_FAIL, *p.hint ? p.hint : "try again later; -v shows each call",
                     "%s%s", what, err->message);
}

/* A call whose head shows the protocol and the service's clock. */
static void check_call(doctor *d, int64_t first_ms)
{
    tinkc_error err = { 0 };
    tinkc_http_options call = { .method = "GET", .path = "/api/v1/healthz", .any_status = true };
    int64_t theirs;
    question q = begin(tinkc_http_call(d->app->client, &call, &err), &err);
    if (answered(d, &q)) {
        const tinkc_response *r = tinkc_future_response(q.f, 0, &err);
        cli_config_value(d, "network.latency", CHECK_OK, NULL,
                         "HTTP/%s, %lld ms the first time, then %lld ms",
                         tinkc_response_http_version(r), (long long)first_ms,
                         (long long)(cli_now_ms() - q.begun_ms));
        for (const char *const *h = tinkc_response_headers(r); h && *h; h += 2) {
            if (strcasecmp(h[0], "date") != 0 || !http_date(h[1], &theirs))
                continue;
            long long skew = (long long)(cli_now_us() / 1000000 - theirs);
            cli_config_value(d, "network.clock", cli_doctor_is_skewed(skew) ? CHECK_WARN : CHECK_OK,
                             "correct the clock of this machine",
                             "the clock of this machine differs from the service's by %lld s",
                             skew);
        }
    }
    question_free(&q);
}

/* The short-lived token that stands in for a key, where the service gives one. */
static void check_token(doctor *d, question *q)
{
    char when[CLI_SHORT_TEXT];
    const tinkc_token *t = answered(d, q) ? tinkc_future_token(q->f, 0, &q->err) : NULL;
    if (t && t->expires_us > 0) {
        cli_format_iso(t->expires_us, when);
        cli_config_value(d, "service.token", CHECK_OK, NULL, "received a token, valid until %s",
                         when);
    } else {
        cli_config_value(d, "service.token", CHECK_SKIP, NULL, "%s",
                         t ? "received a token" : q->err.message);
    }
}

/* The call that needs the credential: what comes of it says whether that is accepted. */
static void check_models(doctor *d, question *q)
{
    size_t n =
        answered(d, q) ? tinkc_capabilities_count(tinkc_future_capabilities(q->f, 0, &q->err)) : 0;
    bool blocked = q->err.code == TINKC_E_BILLING;
    if (is_rejection(&q->err))
        failed(d, "service.credential", &q->err, "");
    else
        cli_config_value(d, "service.credential", q->err.code && !blocked ? CHECK_SKIP : CHECK_OK,
                         NULL, q->err.code && !blocked ? "not known" : "it is accepted");
    if (q->err.code)
        failed(d, "service.models", &q->err, "");
    else
        cli_config_value(d, "service.models", n ? CHECK_OK : CHECK_WARN, "ask who runs the service",
                         n == 1 ? "%zu model is offered" : "%zu models are offered", n);
    cli_config_value(d, "service.billing",
                     blocked       ? CHECK_FAIL
                     : q->err.code ? CHECK_SKIP
                                   : CHECK_OK,
                     "see the billing page of the console", "%s",
                     blocked       ? "the account is blocked"
                     : q->err.code ? "not known"
                                   : "not blocked");
}

static void check_account(doctor *d)
{
    tinkc_error err = { 0 }, token_err = { 0 }, models_err = { 0 };
    question token = begin(tinkc_token_get(d->app->client, &token_err), &token_err);
    question models = begin(tinkc_capabilities_get(d->app->client, &models_err), &models_err);
    tinkc_client_connect(d->app->client, cli_doctor_left_ms(d, token.begun_ms), &err);
    if (err.code)
        failed(d, "service.settings", &err, "");
    else
        cli_config_value(d, "service.settings", CHECK_OK, NULL, "received");
    check_token(d, &token);
    check_models(d, &models);
    question_free(&token);
    question_free(&models);
}

/* Makes the client that asks; without a credential one that can ask only what everybody may. */
static bool open_client(doctor *d, bool credential, bool local)
{
    int bad = 0;
    if (!cli_given(d->app, "retry-for")) /* the first failure is what is looked for */
        bad = cli_set_value(d->app, "retry-for", "0", CLI_FROM_PROGRAM, "doctor");
    if (!bad)
        bad = local || credential ? cli_connect(d->app) : cli_connect_as(d->app, "tml-none", NULL);
    if (bad)
        cli_config_value(d, "service.client", CHECK_FAIL, "see the error above",
                         "no client could be made");
    return !bad;
}

/* Whether somebody is there who answers. */
static bool check_health(doctor *d, bool local)
{
    tinkc_error err = { 0 };
    const char *url = tinkc_client_base_url(d->app->client);
    question q = begin(tinkc_health_check(d->app->client, &err), &err);
    if (!local)
        check_route(d, url);
    bool there = answered(d, &q) || is_rejection(&q.err);
    int64_t took_ms = cli_now_ms() - q.begun_ms;
    if (!local)
        check_tls(d, url, &q.err);
    if (!there)
        cli_config_value(d, "service.health", CHECK_FAIL, "check the network, proxy and address",
                         "%s: %s", url, q.err.message);
    else
        cli_config_value(d, "service.health", CHECK_OK, NULL, "%s: answers", url);
    if (!q.err.code)
        check_call(d, took_ms);
    question_free(&q);
    return there;
}

static void check_proxies(doctor *d)
{
    static const char *const proxies[] = { "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy",
                                           "NO_PROXY" };
    for (size_t i = 0; i < sizeof proxies / sizeof *proxies; i++)
        if (getenv(proxies[i]))
            cli_config_value(d, "network.proxy", CHECK_OK, NULL, "%s is set", proxies[i]);
}

void cli_doctor_service(doctor *d, bool credential)
{
    cli_app *app = d->app;
    const char *url = cli_text(app, "base-url");
    url = url && *url ? url : cli_config_get(app, "base_url", NULL);
    bool local = cli_flag(app, "local") || (url && strcmp(url, "local:") == 0);
    check_proxies(d);
    if (app->offline || (!credential && !url && !local && !d->online)) {
        cli_config_value(d, "service.health", CHECK_SKIP, NULL, "not asked: %s",
                         app->offline ? "--offline" : "no credential; --online checks anyway");
        return;
    }
    if (!open_client(d, credential, local) || !check_health(d, local))
        return;
    if (credential || local)
        check_account(d);
    else
        cli_config_value(d, "service.credential", d->online ? CHECK_FAIL : CHECK_SKIP,
                         "tinkc auth login", "no credential to try");
}

/* ---- hub ---- */

static lookup hub = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };

static const char *hub_url(void)
{
    const char *url = getenv("HF_ENDPOINT");
    return url && *url ? url : "https://huggingface.co";
}

bool cli_doctor_begin_hub(const doctor *d)
{
    const char *offline = getenv("HF_HUB_OFFLINE");
    if (d->app->offline || (offline && cli_doctor_is_on(offline)) || getenv("HTTPS_PROXY") ||
        getenv("https_proxy") || !split_url(hub_url(), hub.host, hub.port))
        return false;
    start_lookup(&hub);
    return true;
}

void cli_doctor_hub_reach(doctor *d, bool begun)
{
    int fd;
    char address[128];
    if (!begun) {
        bool is_url = split_url(hub_url(), hub.host, hub.port);
        cli_config_value(d, "hub.reach", is_url ? CHECK_SKIP : CHECK_WARN,
                         "set HF_ENDPOINT to an address such as https://huggingface.co", "%s: %s",
                         hub_url(),
                         is_url ? "not asked (offline, or behind a proxy)" : "not an address");
        return;
    }
    bool known = finish_lookup(&hub) && !hub.fault;
    int fault = known ? connect_any(d, &hub, address, &fd) : 0;
    if (known && !fault)
        close(fd);
    cli_config_value(d, "hub.reach", known && !fault ? CHECK_OK : CHECK_WARN,
                     "tokenizers that are not cached cannot be fetched; a local folder still works",
                     "%s: %s", hub_url(),
                     !known  ? "its name cannot be resolved"
                     : fault ? tkc_errno_text(fault)
                             : "connects");
}
