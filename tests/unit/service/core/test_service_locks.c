/* test_service_locks.c - what several threads share in a service is reached under its lock: each part's own, and
 * svc->lock for the objects under names. */
#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "service/handlers/downloads.h"
#include "service/handlers/futures_poll.h"
#include "service/handlers/long_requests.h"
#include "service/handlers/uploads.h"
#include "service/worker/sample_events.h"
#include "support/client/held_lock.h"
#include "support/service/bare_service.h"

static tke_service svc;
static tinkc_reply nobody;
static size_t kept;

/* ---- the parts ---- */

static void set_quota(void *user)
{
    tke_service_set_quota(user, "me", &(tke_quota){ .tokens_per_day = 5 });
}

static void read_quota(void *user)
{
    (void)tke_quota_of(user, "me");
}

static void use_tokens(void *user)
{
    tke_tenant_used(user, "me", 1);
}

static void ask_for_tokens(void *user)
{
    (void)tke_quota_tokens(user, "me", NULL, 1, 0, NULL, &(tinkc_error){ 0 });
}

static void hold_storage(void *user)
{
    tke_tenant *tenant;
    (void)tke_quota_hold(user, "me", 1, &tenant);
}

static void keep_bytes(void *user)
{
    tke_kept_add(user, "me", 1, &kept);
}

static void take_bytes(void *user)
{
    (void)tke_kept_take(user, "me", 1, &kept, &(tinkc_error){ 0 });
}

static void give_bytes(void *user)
{
    tke_kept_give(user, "me", &kept);
}

static void count_bytes(void *user)
{
    (void)tke_kept_total(user);
}

static void add_usage(void *user)
{
    tke_usage_add(user, "me", "s", "m", TKE_USE_PREFILL_CACHED, 1);
}

static void flush_usage(void *user)
{
    tke_usage_flush(user);
}

static void ping_streams(void *user)
{
    tke_streams_ping(user, 0);
}

static void find_stream(void *user)
{
    tke_stream_resume(user, &nobody);
}

static void find_long_request(void *user)
{
    (void)tke_deferred_cancel(user, &nobody);
}

static void end_links(void *user)
{
    tke_links_expire(user, 0, "me");
}

static void end_uploads(void *user)
{
    tke_uploads_expire(user, 0, "me");
}

static void find_upload(void *user)
{
    (void)tke_upload_is_open(user, tkc_str("1/adapter_config.json"));
}

/* The parts whose fields nobody else sees have their lock first. */
TEST(each_part_is_used_under_its_own_lock)
{
    bare_open(&svc, NULL);
    void *const tenants = svc.tenants, *const streams = svc.streams, *const uploads = svc.uploads;
    const struct {
        const char *what;
        pthread_mutex_t *lock;
        void (*call)(void *);
    } rows[] = {
        { "set_quota", tenants, set_quota },
        { "quota_of", tenants, read_quota },
        { "tenant_used", tenants, use_tokens },
        { "quota_tokens", tenants, ask_for_tokens },
        { "quota_hold", tenants, hold_storage },
        { "kept_add", tenants, keep_bytes },
        { "kept_take", tenants, take_bytes },
        { "kept_give", tenants, give_bytes },
        { "kept_total", tenants, count_bytes },
        { "usage_add", &svc.usage->lock, add_usage },
        { "usage_flush", &svc.usage->lock, flush_usage },
        { "usage_flush, one at a time", &svc.usage->flush_lock, flush_usage },
        { "streams_ping", streams, ping_streams },
        { "stream_resume", streams, find_stream },
        { "deferred_cancel", &svc.long_requests->lock, find_long_request },
        { "links_expire", &svc.downloads->lock, end_links },
        { "uploads_expire", uploads, end_uploads },
        { "upload_is_open", uploads, find_upload },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!waits_for_lock(rows[i].lock, rows[i].call, &svc))
            fail_msg("%s does not take the lock", rows[i].what);
    bare_close(&svc);
}
