/* scripted_curl.c - see scripted_curl.h. Everything runs on the thread that calls it. */
#include "support/client/scripted_curl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/curl_lib.h"

enum { MOST_EASIES = 1024, MOST_MULTIS = 64 };

const char *scripted_curl_fails;
void (*scripted_curl_performs)(scripted_easy *);
void (*scripted_curl_acts)(scripted_multi *, curl_socket_t);

static scripted_easy *added[MOST_EASIES];
static size_t n_added, n_easies;
static scripted_multi multis[MOST_MULTIS];
static size_t n_multis, n_lines, n_misuses, n_polls;
static long poll_ms;

static bool fails(const char *name)
{
    if (!scripted_curl_fails || strcmp(scripted_curl_fails, name) != 0)
        return false;
    scripted_curl_fails = NULL;
    return true;
}

/* ---- names of settings ---- */

#define NAME(n)                                                                                                        \
    {                                                                                                                  \
        CURLOPT_##n, #n                                                                                                \
    }
static const struct {
    CURLoption option;
    const char *name;
} names[] = {
    NAME(URL),
    NAME(POST),
    NAME(HTTPGET),
    NAME(NOBODY),
    NAME(UPLOAD),
    NAME(CUSTOMREQUEST),
    NAME(POSTFIELDS),
    NAME(POSTFIELDSIZE_LARGE),
    NAME(INFILESIZE_LARGE),
    NAME(UNIX_SOCKET_PATH),
    NAME(PROXY),
    NAME(NOPROXY),
    NAME(SSL_VERIFYPEER),
    NAME(SSL_VERIFYHOST),
    NAME(SSLVERSION),
    NAME(CAINFO),
    NAME(CAPATH),
    NAME(PIPEWAIT),
    NAME(NOSIGNAL),
    NAME(TCP_KEEPALIVE),
    NAME(SUPPRESS_CONNECT_HEADERS),
    NAME(HTTP_VERSION),
    NAME(BUFFERSIZE),
    NAME(CONNECTTIMEOUT_MS),
    NAME(LOW_SPEED_LIMIT),
    NAME(LOW_SPEED_TIME),
    NAME(ACCEPT_ENCODING),
    NAME(NOPROGRESS),
    NAME(FORBID_REUSE),
    NAME(HTTPHEADER),
#if LIBCURL_VERSION_NUM >= 0x075700
    NAME(QUICK_EXIT),
#endif
};

static void note(char *to, size_t cap, const char *name, const char *value)
{
    size_t used = strlen(to);
    (void)snprintf(to + used, cap - used, "%s=%s\n", name, value);
}

static const char *name_of(CURLoption option)
{
    static char other[32];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].option == option)
            return names[i].name;
    (void)snprintf(other, sizeof other, "%d", (int)option);
    return other;
}

/* ---- easy handles ---- */

static CURL *easy_init(void)
{
    scripted_easy *e = fails("easy_init") ? NULL : calloc(1, sizeof *e);
    n_easies += e != NULL;
    return e;
}

static void easy_cleanup(CURL *easy)
{
    n_misuses += ((scripted_easy *)easy)->multi != NULL;
    for (size_t i = 0; i < n_added; i++)
        if (added[i] == easy)
            added[i] = NULL;
    n_easies--;
    free(easy);
}

static void easy_reset(CURL *easy)
{
    scripted_easy *e = easy;
    *e = (scripted_easy){ .multi = e->multi };
}

/* Callbacks and their arguments are kept; true if the option was one of them. */
static bool keep(scripted_easy *e, CURLoption option, va_list *args)
{
    switch ((int)option) {
    case CURLOPT_HEADERFUNCTION:
        e->header_fn = va_arg(*args, curl_write_callback);
        return true;
    case CURLOPT_WRITEFUNCTION:
        e->body_fn = va_arg(*args, curl_write_callback);
        return true;
    case CURLOPT_READFUNCTION:
        e->read_fn = va_arg(*args, curl_read_callback);
        return true;
    case CURLOPT_SEEKFUNCTION:
        e->seek_fn = va_arg(*args, curl_seek_callback);
        return true;
    case CURLOPT_XFERINFOFUNCTION:
        e->progress_fn = va_arg(*args, curl_xferinfo_callback);
        return true;
    case CURLOPT_HEADERDATA:
        e->header_data = va_arg(*args, void *);
        return true;
    case CURLOPT_WRITEDATA:
        e->body_data = va_arg(*args, void *);
        return true;
    case CURLOPT_READDATA:
        e->read_data = va_arg(*args, void *);
        return true;
    case CURLOPT_SEEKDATA:
        e->seek_data = va_arg(*args, void *);
        return true;
    case CURLOPT_XFERINFODATA:
        e->progress_data = va_arg(*args, void *);
        return true;
    case CURLOPT_OPENSOCKETFUNCTION: /* it opens none */
        return true;
    case CURLOPT_PRIVATE:
        e->own = va_arg(*args, void *);
        return true;
    case CURLOPT_ERRORBUFFER:
        e->error_text = va_arg(*args, char *);
        return true;
    default:
        return false;
    }
}

static CURLcode easy_setopt(CURL *easy, CURLoption option, ...)
{
    scripted_easy *e = easy;
    char value[2048] = "";
    va_list args;
    if (fails(name_of(option)))
        return CURLE_OUT_OF_MEMORY;
    va_start(args, option);
    if (!keep(e, option, &args)) {
        if (option == CURLOPT_HTTPHEADER) {
            for (const struct curl_slist *l = va_arg(args, struct curl_slist *); l; l = l->next)
                (void)snprintf(value + strlen(value), sizeof value - strlen(value), "%s|", l->data);
        } else if ((int)option >= CURLOPTTYPE_OFF_T) {
            (void)snprintf(value, sizeof value, "%lld", (long long)va_arg(args, curl_off_t));
        } else if ((int)option >= CURLOPTTYPE_OBJECTPOINT) {
            (void)snprintf(value, sizeof value, "%s", va_arg(args, const char *));
        } else {
            (void)snprintf(value, sizeof value, "%ld", va_arg(args, long));
        }
        note(e->settings, sizeof e->settings, name_of(option), value);
    }
    va_end(args);
    return CURLE_OK;
}

static CURLcode easy_getinfo(CURL *easy, CURLINFO info, ...)
{
    scripted_easy *e = easy;
    va_list args;
    if (fails("easy_getinfo"))
        return CURLE_UNKNOWN_OPTION;
    va_start(args, info);
    void *to = va_arg(args, void *);
    va_end(args);
    if (info == CURLINFO_PRIVATE)
        *(void **)to = e->own;
    else if (info == CURLINFO_HTTP_VERSION)
        *(long *)to = e->http_version;
    else if (info == CURLINFO_OS_ERRNO)
        *(long *)to = e->os_error;
    else if (info == CURLINFO_REDIRECT_URL)
        *(const char **)to = e->redirect;
    else if (info == CURLINFO_PRETRANSFER_TIME_T)
        *(curl_off_t *)to = e->pretransfer;
    else if (info == CURLINFO_TOTAL_TIME_T)
        *(curl_off_t *)to = e->total;
    else
        return CURLE_UNKNOWN_OPTION;
    return CURLE_OK;
}

static CURLcode easy_pause(CURL *easy, int what)
{
    ((scripted_easy *)easy)->pauses += what == CURLPAUSE_CONT;
    return CURLE_OK;
}

/* ---- multi handles ---- */

static CURLM *multi_init(void)
{
    if (n_multis == MOST_MULTIS || fails("multi_init"))
        return NULL;
    multis[n_multis] = (scripted_multi){ .open = true };
    return (CURLM *)&multis[n_multis++];
}

static CURLMcode multi_cleanup(CURLM *multi)
{
    ((scripted_multi *)multi)->open = false;
    for (size_t i = 0; i < n_added; i++)
        n_misuses += added[i] && added[i]->multi == (scripted_multi *)multi;
    return CURLM_OK;
}

static CURLMcode multi_setopt(CURLM *multi, CURLMoption option, ...)
{
    scripted_multi *m = (scripted_multi *)multi;
    char value[32];
    va_list args;
    va_start(args, option);
    if (option == CURLMOPT_TIMERFUNCTION) {
        m->timer_fn = va_arg(args, curl_multi_timer_callback);
    } else if (option == CURLMOPT_TIMERDATA) {
        m->timer_data = va_arg(args, void *);
    } else if (option == CURLMOPT_SOCKETFUNCTION) {
        m->socket_fn = va_arg(args, curl_socket_callback);
    } else if (option == CURLMOPT_SOCKETDATA) {
        m->socket_data = va_arg(args, void *);
    } else {
        const char *name = option == CURLMOPT_PIPELINING               ? "PIPELINING"
                           : option == CURLMOPT_MAXCONNECTS            ? "MAXCONNECTS"
                           : option == CURLMOPT_MAX_CONCURRENT_STREAMS ? "MAX_CONCURRENT_STREAMS"
                           : option == CURLMOPT_MAX_HOST_CONNECTIONS   ? "MAX_HOST_CONNECTIONS"
                                                                       : "?";
        (void)snprintf(value, sizeof value, "%ld", va_arg(args, long));
        note(m->settings, sizeof m->settings, name, value);
    }
    va_end(args);
    return CURLM_OK;
}

static CURLMcode multi_add_handle(CURLM *multi, CURL *easy)
{
    scripted_easy *e = easy;
    if (n_added == MOST_EASIES || fails("multi_add_handle"))
        return CURLM_OUT_OF_MEMORY;
    n_misuses += e->multi != NULL;
    e->multi = (scripted_multi *)multi;
    e->done = false;
    added[n_added++] = e;
    return CURLM_OK;
}

static CURLMcode multi_remove_handle(CURLM *multi, CURL *easy)
{
    scripted_easy *e = easy; /* one that was not added may be taken out */
    n_misuses += e->multi && e->multi != (scripted_multi *)multi;
    e->multi = NULL;
    return CURLM_OK;
}

static CURLMcode multi_socket_action(CURLM *multi, curl_socket_t s, int events, int *running)
{
    scripted_multi *m = (scripted_multi *)multi;
    char text[64];
    if (s == CURL_SOCKET_TIMEOUT)
        (void)snprintf(text, sizeof text, events ? "timeout with events;" : "timeout;");
    else
        (void)snprintf(text, sizeof text, "%d%s%s%s;", (int)s, events & CURL_CSELECT_IN ? " in" : "",
                       events & CURL_CSELECT_OUT ? " out" : "", events & CURL_CSELECT_ERR ? " err" : "");
    if (strlen(m->actions) + strlen(text) < sizeof m->actions)
        strcat(m->actions, text);
    if (scripted_curl_acts)
        scripted_curl_acts(m, s);
    *running = 0;
    return CURLM_OK;
}

static CURLMcode multi_perform(CURLM *multi, int *running)
{
    *running = 0;
    if (fails("multi_perform"))
        return CURLM_INTERNAL_ERROR;
    for (size_t i = 0; i < n_added; i++)
        if (added[i] && added[i]->multi == (scripted_multi *)multi && !added[i]->done) {
            if (scripted_curl_performs)
                scripted_curl_performs(added[i]);
            *running += !added[i]->done;
        }
    return CURLM_OK;
}

static CURLMcode multi_poll(CURLM *multi, struct curl_waitfd fds[], unsigned n, int timeout_ms, int *ready)
{
    (void)multi, (void)fds, (void)n, (void)ready;
    n_polls++;
    poll_ms += timeout_ms;
    return CURLM_OK;
}

static CURLMsg *multi_info_read(CURLM *multi, int *left)
{
    *left = 0;
    for (size_t i = 0; i < n_added; i++)
        if (added[i] && added[i]->multi == (scripted_multi *)multi && added[i]->done) {
            added[i]->done = false;
            added[i]->message.easy_handle = added[i];
            return &added[i]->message;
        }
    return NULL;
}

static struct curl_slist *slist_append(struct curl_slist *list, const char *text)
{
    struct curl_slist *one = fails("slist_append") ? NULL : calloc(1, sizeof *one), *last = list;
    if (!one)
        return NULL;
    one->data = strdup(text);
    n_lines++;
    while (last && last->next)
        last = last->next;
    if (last)
        last->next = one;
    return list ? list : one;
}

static void slist_free_all(struct curl_slist *list)
{
    while (list) {
        struct curl_slist *next = list->next;
        n_lines--;
        free(list->data);
        free(list);
        list = next;
    }
}

/* ---- the test's side ---- */

void scripted_curl_start(void)
{
    tinkc_error err = { 0 };
    tkc_curl *table = (tkc_curl *)(uintptr_t)tkc_curl_get(&err);
    if (!table) {
        (void)fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    table->easy_init = easy_init;
    table->easy_cleanup = easy_cleanup;
    table->easy_reset = easy_reset;
    table->easy_setopt = easy_setopt;
    table->easy_getinfo = easy_getinfo;
    table->easy_pause = easy_pause;
    table->multi_init = multi_init;
    table->multi_cleanup = multi_cleanup;
    table->multi_setopt = multi_setopt;
    table->multi_add_handle = multi_add_handle;
    table->multi_remove_handle = multi_remove_handle;
    table->multi_socket_action = multi_socket_action;
    table->multi_perform = multi_perform;
    table->multi_poll = multi_poll;
    table->multi_info_read = multi_info_read;
    table->slist_append = slist_append;
    table->slist_free_all = slist_free_all;
    n_added = n_multis = n_easies = n_lines = n_misuses = n_polls = 0;
    poll_ms = 0;
    scripted_curl_fails = NULL;
    scripted_curl_performs = NULL;
    scripted_curl_acts = NULL;
}

size_t scripted_added(void)
{
    return n_added;
}

scripted_easy *scripted_nth(size_t i)
{
    return i < n_added ? added[i] : NULL;
}

scripted_multi *scripted_multi_nth(size_t i)
{
    return i < n_multis ? &multis[i] : NULL;
}

size_t scripted_multis_open(void)
{
    size_t n = 0;
    for (size_t i = 0; i < n_multis; i++)
        n += multis[i].open;
    return n;
}

size_t scripted_easies_open(void)
{
    return n_easies;
}

size_t scripted_lists_open(void)
{
    return n_lines;
}

size_t scripted_misuses(void)
{
    return n_misuses;
}

size_t scripted_polls(long *total_ms)
{
    *total_ms = poll_ms;
    return n_polls;
}

bool scripted_head(scripted_easy *e, const char *lines)
{
    while (*lines) {
        char line[1024];
        size_t n = strcspn(lines, "\n") + 1;
        memcpy(line, lines, n);
        if (e->header_fn(line, 1, n, e->header_data) != n)
            return false;
        lines += n;
    }
    return true;
}

size_t scripted_body(scripted_easy *e, const char *text)
{
    char copy[256];
    size_t n = strlen(text);
    memcpy(copy, text, n);
    return e->body_fn(copy, 1, n, e->body_data);
}

void scripted_end(scripted_easy *e, CURLcode result)
{
    e->done = true;
    e->message = (CURLMsg){ .msg = CURLMSG_DONE };
    e->message.data.result = result;
    if (e->multi && e->multi->timer_fn)
        e->multi->timer_fn((CURLM *)e->multi, 0, e->multi->timer_data);
}
