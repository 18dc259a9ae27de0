/* limits.c - budgets with a fair queue; the process-wide list of shared records.
 *
 * The list is the one piece of state outside handles. Records are found by a hash of URL and
 * credential, hold no credential themselves, and end with the last client that uses them.
 * May touch: other clients' loops, to post grants.
 * Must not:  call anything but tkc_loop_post with a lock held.
 */
#include "client/call/limits.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"

void tkc_budget_init(tkc_budget *budget, pthread_mutex_t *lock, int64_t limit, bool counts)
{
    *budget = (tkc_budget){ .lock = lock, .limit = limit, .balance = limit, .counts = counts };
}

/* Bytes pass while nobody has overdrawn; counts only while there is one left. */
static bool may_take(const tkc_budget *budget)
{
    /* So a request above the whole limit passes alone instead of waiting forever. */
    return budget->counts ? budget->balance > 0 : budget->balance >= 0;
}

static void unlink_claim(tkc_budget *budget, tkc_claim *claim)
{
    assert(claim->waiting && (claim->prev ? claim->prev->next : budget->first) == claim);
    assert((claim->next ? claim->next->prev : budget->last) == claim);
    if (claim->prev)
        claim->prev->next = claim->next;
    else
        budget->first = claim->next;
    if (claim->next)
        claim->next->prev = claim->prev;
    else
        budget->last = claim->prev;
    claim->next = claim->prev = NULL;
    claim->waiting = false;
}

/* Lets in as many as may, in order. Needs the lock. */
static void grant(tkc_budget *budget)
{
    while (budget->first && may_take(budget)) {
        tkc_claim *claim = budget->first;
        assert(claim->waiting && !claim->held);
        unlink_claim(budget, claim);
        budget->balance -= claim->amount;
        claim->held = true;
        claim->posted = true;
        /* The claim is a part of its operation, which must be there when the task runs. */
        tkc_future_keep(claim->f);
        tkc_loop_post(claim->loop, &claim->task);
    }
}

void tkc_budget_set_limit(tkc_budget *budget, int64_t limit)
{
    pthread_mutex_lock(budget->lock);
    /* The difference: what is out counts against the new limit, too. */
    budget->balance += limit - budget->limit;
    budget->limit = limit;
    grant(budget);
    pthread_mutex_unlock(budget->lock);
}

static void run_granted(tkc_task *task)
{
    tkc_claim *claim = TKC_OWNER(task, tkc_claim, task);
    tinkc_future *f = claim->f;
    pthread_mutex_lock(claim->budget->lock);
    claim->posted = false;
    bool held = claim->held; /* ended meanwhile: nothing to tell */
    pthread_mutex_unlock(claim->budget->lock);
    if (held)
        claim->granted(claim);
    tkc_future_drop(f);
}

bool tkc_claim_take(tkc_claim *claim, tkc_budget *budget, tkc_loop *loop, int64_t amount)
{
    assert(!claim->held && !claim->waiting && amount >= 0);
    claim->budget = budget;
    claim->loop = loop;
    claim->amount = amount;
    claim->task.run = run_granted;
    pthread_mutex_lock(budget->lock);
    /* Nobody overtakes: past a stream of small requests a large one would never get its turn. */
    bool now = !budget->first && may_take(budget);
    if (now) {
        budget->balance -= amount;
        claim->held = true;
    } else {
        claim->prev = budget->last; /* next is NULL outside of the list */
        if (budget->last)
            budget->last->next = claim;
        else
            budget->first = claim;
        budget->last = claim;
        claim->waiting = true;
    }
    pthread_mutex_unlock(budget->lock);
    return now;
}

void tkc_claim_end(tkc_claim *claim)
{
    tkc_budget *budget = claim->budget;
    if (!budget)
        return;
    pthread_mutex_lock(budget->lock);
    if (claim->waiting)
        unlink_claim(budget, claim);
    if (claim->held) {
        claim->held = false;
        budget->balance += claim->amount;
        assert(budget->balance <= budget->limit); /* nothing is given back twice */
    }
    grant(budget);
    pthread_mutex_unlock(budget->lock);
}

bool tkc_claim_pending(tkc_claim *claim)
{
    if (!claim->budget)
        return false;
    pthread_mutex_lock(claim->budget->lock);
    bool pending = claim->posted;
    pthread_mutex_unlock(claim->budget->lock);
    return pending;
}

/* ---- shared records ---- */

/* One record for all clients of an account: the Python SDK has one back-off for each holder, and
 * a second one then runs into the same 429. The key is the credential as it was configured, not
 * the token that it is exchanged for: that one changes while clients run. */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static tkc_shared_limits *list;

enum { SAMPLE_COUNT = 400, THROTTLED_COUNT = 10 };

static tkc_shared_limits *new_record(const uint64_t key[2], tinkc_error *err)
{
    /* With malloc: a record outlives the client that made it, and so that client's allocator. */
    tkc_shared_limits *r = tkc_zalloc(NULL, sizeof *r, err);
    if (!r)
        return NULL;
    pthread_mutex_init(&r->lock, NULL);
    tkc_ref_init(&r->refs);
    memcpy(r->key, key, sizeof r->key);
    tkc_budget_init(&r->sample_count, &r->lock, SAMPLE_COUNT, true);
    tkc_budget_init(&r->throttled_count, &r->lock, THROTTLED_COUNT, true);
    /* the service's settings say how many bytes, before anything is sent that counts */
    tkc_budget_init(&r->sample_bytes, &r->lock, 0, false);
    tkc_budget_init(&r->inflight_bytes, &r->lock, 0, false);
    r->backoff_until_ms = INT64_MIN;
    return r;
}

/* Two hashes of 64 bits with different beginnings: nobody can read the credential from them, and
 * two accounts do not meet by accident. */
static void make_key(const char *url, const char *credential, uint64_t key[2])
{
    uint64_t u = tkc_hash(url, strlen(url)), c = tkc_hash(credential, strlen(credential));
    key[0] = u * 0x9E3779B97F4A7C15u ^ c;
    key[1] = (c ^ strlen(credential)) * 0xC2B2AE3D27D4EB4Fu + u;
}

tkc_shared_limits *tkc_limits_get(const char *normal_url, const char *credential, bool alone,
                                  tinkc_error *err)
{
    uint64_t key[2];
    make_key(normal_url, credential ? credential : "", key);
    /* A mock's 429 must not slow down a client of the real service. */
    if (alone)
        return new_record(key, err);
    pthread_mutex_lock(&list_lock);
    tkc_shared_limits *r = list;
    while (r && memcmp(r->key, key, sizeof key) != 0)
        r = r->next;
    if (r) {
        tkc_ref_keep(&r->refs);
    } else if ((r = new_record(key, err)) != NULL) {
        r->is_public = true;
        r->next = list;
        list = r;
    }
    pthread_mutex_unlock(&list_lock);
    return r;
}

void tkc_limits_drop(tkc_shared_limits *r)
{
    if (!r)
        return;
    /* The list's lock spans count and unlinking: nobody finds a record that is about to end. */
    pthread_mutex_lock(&list_lock);
    bool last = tkc_ref_drop(&r->refs);
    if (last && r->is_public) {
        tkc_shared_limits **at = &list;
        while (*at != r)
            at = &(*at)->next;
        *at = r->next;
    }
    pthread_mutex_unlock(&list_lock);
    if (!last)
        return;
    pthread_mutex_destroy(&r->lock);
    tkc_release(NULL, r, sizeof *r);
}

size_t tkc_limits_count(void)
{
    size_t n = 0;
    pthread_mutex_lock(&list_lock);
    for (tkc_shared_limits *r = list; r; r = r->next)
        n++;
    pthread_mutex_unlock(&list_lock);
    return n;
}
