/* test_tenants.c - whose data is whose, and what each may use, from one start of a service to the next. */
#include "base/clock.h"
#include "service/handlers/identity.h"
#include "service/core/service.h"
#include "service/core/usage.h"
#include "support/service/service_world.h"

static const char *const settings[] = { "disk_reserve", "0", NULL };
static const char key[] = "tml-the-same-key";

typedef struct owner {
    char text[32];
} owner;

static owner owner_in(const char *store)
{
    owner o;
    char key_id[TKE_KEY_ID];
    tinkc_engine *engine = world_open(store, 0, settings);
    tke_service_owner_of_key(tke_engine_service(engine), tkc_str(key), o.text, key_id);
    assert_null(strstr(o.text, key));
    assert_null(strstr(key_id, key));
    tinkc_engine_free(engine);
    return o;
}

static void change_rows(const char *store, const char *sql, int64_t value)
{
    tinkc_error err = { 0 };
    const tkc_log log = { 0 };
    tke_store *s = tke_store_open(NULL, &log, store, &err);
    assert_ok(err);
    tke_txn *txn = tke_txn_new(s, &err);
    tke_txn_exec(txn, sql, value ? "i" : "", value);
    tke_txn_commit(txn, NULL, NULL);
    tke_store_close(s);
}

/* The name of an owner is in logs and answers. A table of names of likely keys helps nobody: each
 * store has its own salt, and keeps it. */
TEST(owners_are_salted)
{
    char *one = tiny_folder(), *two = tiny_folder(), plain[TKE_OWNER_TEXT];
    tke_owner_of_key(&(tke_owner_salt){ { 0 } }, tkc_str(key), plain);
    owner a = owner_in(one), b = owner_in(two);
    assert_string_not_equal(a.text, b.text);
    assert_string_not_equal(a.text, plain);
    assert_string_equal(owner_in(one).text, a.text);
    assert_string_equal(owner_in(two).text, b.text);
    tiny_model_remove(one);
    tiny_model_remove(two);
}

/* A store from before there was a salt has rows with plain names: they stay their owners'. */
TEST(old_stores_keep_their_owners)
{
    char *store = tiny_folder(), plain[TKE_OWNER_TEXT];
    tinkc_engine *engine = world_open(store, 0, settings);
    service_session(tinkc_engine_transport(engine));
    tinkc_engine_free(engine);
    change_rows(store, "DELETE FROM meta WHERE key LIKE 'salt.%'", 0);
    tke_owner_of_key(&(tke_owner_salt){ { 0 } }, tkc_str(key), plain);
    assert_string_equal(owner_in(store).text, plain);
    assert_string_equal(owner_in(store).text, plain);
    tiny_model_remove(store);
}

static int32_t sample(const tinkc_transport *t)
{
    static const char body[] = "{\"base_model\":\"tiny\",\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":"
                               "[1,2,3]}]},\"num_samples\":1,\"sampling_params\":{\"max_tokens\":8,\"seed\":1}}";
    static const char *const headers[] = { "Content-Type", "application/json", NULL };
    answer a = service_call(t, "POST", "/api/v1/asample", headers, body, strlen(body));
    int32_t status = a.status;
    if (status == 200)
        service_wait(t, json_field(a.body.data, "request_id"));
    else
        assert_non_null(strstr(a.body.data, "quota_tokens"));
    answer_free(&a);
    return status;
}

static double tokens_today(const tinkc_transport *t)
{
    answer a = service_call(t, "GET", "/status", NULL, NULL, 0);
    assert_non_null(strstr(a.body.data, "\"owner\":\"default\""));
    double n = json_number(a.body.data, "tokens_today");
    answer_free(&a);
    return n;
}

static tinkc_engine *open_limited(const char *store, int64_t tokens)
{
    tinkc_engine *engine = world_open(store, 0, settings);
    tke_service_set_quota(tke_engine_service(engine), "default", &(tke_quota){ .tokens_per_day = tokens });
    return engine;
}

/* Tokens of a day stay used when the server is started again; those of yesterday do not count. */
TEST(tokens_stay_used)
{
    char *store = tiny_folder();
    int64_t day_us = (int64_t)86400 * 1000000, now_us = tkc_wall_us(tkc_clock_real());
    tinkc_engine *engine = open_limited(store, 1000);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    assert_int_equal(sample(t), 200);
    double used = tokens_today(t);
    assert_true(used > 0);
    tinkc_engine_free(engine);
    change_rows(store,
                "INSERT INTO usage(bucket_us, owner, session_id, base_model, kind, count) VALUES(?, "
                "'default', 's', 'tiny', 0, 5000)",
                now_us / day_us * day_us - day_us);
    engine = open_limited(store, (int64_t)used + 1);
    t = tinkc_engine_transport(engine);
    if (tkc_wall_us(tkc_clock_real()) / day_us == now_us / day_us) { /* not at midnight */
        assert_true(tokens_today(t) == used);
        assert_int_equal(sample(t), 200); /* one token is left, and it may be passed */
        tinkc_engine_free(engine);
        engine = open_limited(store, (int64_t)used + 1);
        assert_int_equal(sample(tinkc_engine_transport(engine)), 403);
    }
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* Tokens that a cache gave are not work, a checkpoint's bytes are not tokens. */
TEST(tokens_of_each_kind_of_work_stay_used)
{
    static const struct {
        int32_t kind;
        int64_t count;
    } rows[] = { { TKE_USE_TRAINING, 1 },
                 { TKE_USE_PREFILL, 20 },
                 { TKE_USE_PREFILL_CACHED, 300 },
                 { TKE_USE_SAMPLED, 4000 },
                 { TKE_USE_CHECKPOINT, 50000 } };
    char *store = tiny_folder();
    tinkc_engine_free(world_open(store, 0, settings));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char sql[200];
        (void)snprintf(sql, sizeof sql,
                       "INSERT INTO usage(bucket_us, owner, session_id, base_model, kind, count) "
                       "VALUES(?, 'default', 's', 'tiny', %d, %lld)",
                       (int)rows[i].kind, (long long)rows[i].count);
        change_rows(store, sql, tkc_wall_us(tkc_clock_real()) + (int64_t)3600 * 1000000);
    }
    tinkc_engine *engine = open_limited(store, 1000000);
    assert_true(tokens_today(tinkc_engine_transport(engine)) == 4021);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
