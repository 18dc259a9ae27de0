/* key_ring.c - keys in wiped memory, compared in constant time, replaced under a lock.
 *
 * May touch: the service's quotas. Must not: log or return a key.
 */
#include "service/http/key_ring.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/heap.h"
#include "base/str.h"

enum { MAX_KEY = 1024 };

typedef struct key {
    char *text; /* in the ring's secret pages */
    tke_identity who;
    tke_quota quota;
} key;

typedef struct keys {
    key *list;
    size_t n;
    char *secret; /* all texts, concatenated */
    size_t secret_bytes;
} keys;

struct tke_key_ring {
    tke_service *svc;
    const tinkc_allocator *a;
    pthread_mutex_t lock;
    keys now;            /* lock */
    uint64_t generation; /* lock: counts replacements */
};

static void keys_free(const tinkc_allocator *a, keys *k)
{
    tkc_secret_free(k->secret, k->secret_bytes);
    tkc_release(a, k->list, (k->n + 1) * sizeof *k->list);
    *k = (keys){ 0 };
}

/* ---- reading lines ---- */

/* A number, optionally followed by K, M or G. */
static bool read_amount(tinkc_str text, int64_t *out)
{
    int64_t scale = 1;
    char last = text.len ? text.data[text.len - 1] : '0';
    if (last == 'K' || last == 'M' || last == 'G') {
        scale = last == 'K' ? 1 << 10 : last == 'M' ? 1 << 20 : 1 << 30;
        text.len--;
    }
    return tkc_parse_i64(text, out) && *out > 0 && *out <= INT64_MAX / scale &&
           (*out *= scale, true);
}

static bool read_email(tinkc_str text, char out[TKE_EMAIL])
{
    size_t at = tkc_str_find(text, '@');
    if (!at || at + 1 >= text.len || text.len >= TKE_EMAIL)
        return false;
    memcpy(out, text.data, text.len);
    out[text.len] = '\0';
    return true;
}

static bool read_option(tinkc_str word, tke_quota *quota, char email[TKE_EMAIL])
{
    tinkc_str value = word, name;
    (void)tkc_str_cut(&value, '=', &name); /* without a value none of them can be read */
    if (tkc_str_is(name, "email"))
        return read_email(value, email);
    int64_t *at = tkc_str_is(name, "requests")  ? &quota->requests_per_minute
                  : tkc_str_is(name, "tokens")  ? &quota->tokens_per_day
                  : tkc_str_is(name, "storage") ? &quota->storage_bytes
                                                : NULL;
    return at && read_amount(value, at);
}

static bool read_line(const char *line, size_t number, tinkc_str *text, key *k, tinkc_error *err)
{
    tinkc_str rest = tkc_str(line), word;
    *text = tkc_strn("", 0);
    while (tkc_str_cut(&rest, ' ', &word)) {
        if (!word.len)
            continue;
        if (!text->len)
            *text = word;
        else if (!read_option(word, &k->quota, k->who.email))
            return tkc_fail(
                err, TINKC_E_ARGUMENT,
                "api_keys: key %zu: expected requests=N, tokens=N or storage=N, N above "
                "0, or email=NAME@HOST after the key",
                number);
    }
    if (!text->len)
        return tkc_fail(err, TINKC_E_ARGUMENT, "api_keys: key %zu is empty", number);
    if (text->len > MAX_KEY)
        return tkc_fail(err, TINKC_E_ARGUMENT, "api_keys: key %zu is longer than %d bytes", number,
                        MAX_KEY);
    return true;
}

static bool read_lines(tke_key_ring *r, const char *const *lines, keys *out, tinkc_error *err)
{
    size_t n = 0, bytes = 1;
    for (; lines && lines[n]; n++)
        bytes += strlen(lines[n]) + 1;
    *out = (keys){ .n = n, .secret_bytes = bytes };
    out->list = tkc_zalloc(r->a, (n + 1) * sizeof *out->list, err);
    out->secret = out->list ? tkc_secret_alloc(bytes, err) : NULL;
    char *at = out->secret;
    for (size_t i = 0; at && i < n; i++) {
        key *k = &out->list[i];
        tinkc_str text;
        if (!read_line(lines[i], i, &text, k, err))
            break;
        memcpy(at, text.data, text.len);
        at[text.len] = '\0';
        k->text = at;
        at += text.len + 1;
        tke_service_owner_of_key(r->svc, text, k->who.owner, k->who.key_id);
    }
    if (!tkc_failed(err))
        return true;
    keys_free(r->a, out);
    return false;
}

/* ---- the ring ---- */

static const key *find_id(const keys *k, const char *key_id)
{
    for (size_t i = 0; i < k->n; i++)
        if (tkc_cstr_eq(k->list[i].who.key_id, key_id))
            return &k->list[i];
    return NULL;
}

bool tke_key_ring_replace(tke_key_ring *r, const char *const *lines, tinkc_error *err)
{
    keys fresh;
    if (!read_lines(r, lines, &fresh, err))
        return false;
    pthread_mutex_lock(&r->lock);
    keys old = r->now;
    for (size_t i = 0; i < fresh.n; i++) {
        const key *before = find_id(&old, fresh.list[i].who.key_id);
        /* A key that stays keeps its generation, and its tokens stay valid; one that is removed and
         * added again gets a new one, so old tokens do not come back with it. */
        fresh.list[i].who.generation = before ? before->who.generation : r->generation;
    }
    r->generation++;
    r->now = fresh;
    pthread_mutex_unlock(&r->lock);
    for (size_t i = 0; i < old.n; i++) { /* not before: no key is without its limits meanwhile */
        if (find_id(&fresh, old.list[i].who.key_id))
            continue;
        tke_service_set_quota(r->svc, old.list[i].who.owner, &(tke_quota){ 0 });
        /* Links carry no key, so they must end with it here. */
        tke_service_end_links(r->svc, old.list[i].who.owner);
    }
    for (size_t i = 0; i < fresh.n; i++)
        tke_service_set_quota(r->svc, fresh.list[i].who.owner, &fresh.list[i].quota);
    keys_free(r->a, &old);
    return true;
}

tke_key_ring *tke_key_ring_new(tke_service *svc, const char *const *lines, tinkc_error *err)
{
    const tinkc_allocator *a = tke_service_allocator(svc);
    tke_key_ring *r = tkc_zalloc(a, sizeof *r, err);
    if (!r)
        return NULL;
    r->svc = svc;
    r->a = a;
    pthread_mutex_init(&r->lock, NULL);
    if (tke_key_ring_replace(r, lines, err))
        return r;
    tke_key_ring_free(r);
    return NULL;
}

void tke_key_ring_free(tke_key_ring *r)
{
    if (!r)
        return;
    keys_free(r->a, &r->now);
    pthread_mutex_destroy(&r->lock);
    tkc_release(r->a, r, sizeof *r);
}

bool tke_key_ring_is_empty(tke_key_ring *r)
{
    pthread_mutex_lock(&r->lock);
    bool empty = r->now.n == 0;
    pthread_mutex_unlock(&r->lock);
    return empty;
}

/* Locks: needs r->lock. Compares every key, so that timing does not reveal which one matched. */
static bool find_key(const tke_key_ring *r, const char *given, tke_identity *out)
{
    bool known = false;
    for (size_t i = 0; i < r->now.n; i++) {
        bool same = tkc_equal_secret(tkc_str(given), tkc_str(r->now.list[i].text));
        if (same)
            *out = r->now.list[i].who;
        known |= same;
    }
    return known;
}

bool tke_key_ring_identify(tke_key_ring *r, const char *given, tke_identity *out)
{
    tke_token_claims claims;
    bool token = given && tkc_starts_with(tkc_str(given), "eyJ") &&
                 tke_service_token_read(r->svc, given, &claims);
    *out = (tke_identity){ .owner = "default" };
    pthread_mutex_lock(&r->lock);
    bool open = r->now.n == 0;
    bool known = given && find_key(r, given, out);
    if (token && !known) {
        const key *k = find_id(&r->now, claims.key_id);
        /* A token outlives its key otherwise: it is signed and valid for a day. */
        known = k && k->who.generation == claims.generation;
        if (known)
            *out = k->who;
        else if (open) /* a token from when the server had keys still names the owner */
            (void)snprintf(out->owner, sizeof out->owner, "%s", claims.owner);
    }
    pthread_mutex_unlock(&r->lock);
    return known || open;
}
