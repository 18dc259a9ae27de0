/* test_settings.c - every setting of an engine: its default, its least and its greatest value, what
 * lies beyond; the options beside them; names of models. The numbers are those of docs/server.md. */
#include <unistd.h>

#include "service/core/base_models.h"
#include "service/core/service_state.h"
#include "service/core/settings.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "support/service/service_call.h"

static tinkc_engine *make(const tinkc_engine_options *o, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    return tinkc_engine_new(o, err);
}

static tinkc_engine *make_with(const char *const *settings)
{
    tinkc_error err;
    tinkc_engine *engine =
        make(&(tinkc_engine_options){ .threads = 1, .memory_bytes = 1 << 30, .settings = settings }, &err);
    assert_ok(err);
    return engine;
}

static const tke_settings *set_of(tinkc_engine *engine)
{
    return &tke_engine_service(engine)->set;
}

static void refused(const char *name, const char *value, const char *text)
{
    tinkc_error err;
    const char *const settings[] = { name, value, NULL };
    assert_null(make(&(tinkc_engine_options){ .threads = 1, .settings = settings }, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_string_equal(err.message, text);
}

/* ---- numbers ---- */

#define MOST  INT64_MAX
#define GIB   ((int64_t)1 << 30)
#define AT(x) offsetof(tke_settings, x)

/* The values in the table; times in seconds there and in milliseconds in the service. */
typedef struct number {
    const char *name;
    size_t at;
    int64_t standard, least, most, scale;
} number;

static const number numbers[] = {
    { "long_poll_s", AT(long_poll_ms), 30, 0, 44, 1000 },
    { "pending_status", AT(pending_status), 408, 200, 408, 1 },
    { "metadata_only_threshold", AT(metadata_only_threshold), 1048576, 0, MOST, 1 },
    { "result_grace_s", AT(result_grace_ms), 300, 0, 1000000, 1000 },
    { "result_ttl_s", AT(result_ttl_ms), 86400, 0, 100000000, 1000 },
    { "result_store_bytes", AT(result_store_bytes), 4 * GIB, 0, MOST, 1 },
    { "result_spill_bytes", AT(result_spill_bytes), 1048576, 0, MOST, 1 },
    { "seq_gap_timeout_s", AT(seq_gap_timeout_ms), 660, 1, 1000000, 1000 },
    { "session_timeout_s", AT(session_timeout_ms), 300, 1, 100000000, 1000 },
    { "ephemeral_grace_s", AT(ephemeral_grace_ms), 3600, 0, 100000000, 1000 },
    { "ephemeral_idle_s", AT(ephemeral_idle_ms), 3600, 1, 100000000, 1000 },
    { "max_ephemeral", AT(max_ephemeral), 64, 1, 1048576, 1 },
    { "idle_release_s", AT(idle_release_ms), 30, 0, 100000000, 1000 },
    { "session_keep_s", AT(session_keep_ms), 604800, 1, 1000000000, 1000 },
    { "max_idle_sessions", AT(max_idle_sessions), 10000, 0, 16777216, 1 },
    { "max_kept_per_key", AT(max_kept_per_key), GIB / 32, 0, MOST, 1 },
    { "max_kept_bytes", AT(max_kept_bytes), GIB / 4, 0, MOST, 1 },
    { "max_lora_rank", AT(max_lora_rank), 256, 1, 65536, 1 },
    { "lora_alpha", AT(lora_alpha), 32, 1, 65536, 1 },
    { "microbatch_tokens", AT(microbatch_tokens), 8192, 1, 1073741824, 1 },
    { "kv_bytes", AT(kv_bytes), 0, 1048576, MOST, 1 }, /* 0: planned */
    { "prefill_chunk", AT(prefill_chunk), 512, 1, 1048576, 1 },
    { "max_context", AT(max_context), 0, 0, 67108864, 1 },
    { "max_batch_tokens", AT(max_batch_tokens), 0, 0, 1073741824, 1 },
    { "max_models", AT(max_models), 0, 0, 1048576, 1 },
    { "max_sample_queue", AT(max_sample_queue), 2000, 1, 1048576, 1 },
    { "max_queued_tokens", AT(max_queued_tokens), 8000000, 1, MOST, 1 },
    { "max_queued_bytes", AT(max_queued_bytes), GIB / 4, 65536, MOST, 1 },
    { "max_num_samples", AT(max_num_samples), 1024, 1, 1048576, 1 },
    { "max_topk", AT(max_topk), 128, 1, 65536, 1 },
    { "max_temperature", AT(max_temperature), 2, 1, MOST, 1 },
    { "autosave_s", AT(autosave_ms), 60, 1, 1000000, 1000 },
    { "disk_reserve", AT(disk_reserve), GIB, 0, MOST, 1 },
    { "max_body_bytes", AT(max_body_bytes), GIB, 1024, MOST, 1 },
    { "train_memory_bytes", AT(train_memory_bytes), 0, 1048576, MOST, 1 }, /* 0: planned */
    { "snapshot_memory_bytes", AT(snapshot_memory_bytes), GIB / 8, 1, MOST, 1 },
    { "keep_last_k", AT(keep_last_k), 0, 0, 1048576, 1 },
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static void holds(tinkc_engine *engine, const number *n, int64_t value)
{
    int64_t now;
    memcpy(&now, (const char *)set_of(engine) + n->at, sizeof now);
    int64_t wanted = value == MOST ? MOST : value * n->scale;
    if (now != wanted)
        fail_msg("%s is %lld, not %lld", n->name, (long long)now, (long long)wanted);
}

TEST(each_setting_has_its_default)
{
    tinkc_engine *engine = make_with(NULL);
    const tke_settings *s = set_of(engine);
    for (size_t i = 0; i < N_NUMBERS; i++)
        holds(engine, &numbers[i], numbers[i].standard);
    assert_true(s->train_share == 0.5);
    assert_int_equal(s->archive_ms, 2 * 3600 * 1000);
    assert_true(s->emit_elementwise_loss && s->jwt_auth);
    assert_false(s->strict || s->strict_steps || s->share_disk || s->use_pyqwest || s->use_retrieve_futures ||
                 s->openai);
    assert_int_equal(s->sample_logprobs, TKE_LOGPROBS_SCALED);
    assert_int_equal(s->adapter_dtype, TKE_F32);
    assert_int_equal(s->adapter_names, TKE_NAMING_AUTO);
    assert_int_equal(s->keep, TKE_KEEP_AUTO);
    assert_int_equal(s->compute, TKE_PRECISION_F32);
    assert_int_equal(s->durability, TINKC_DURABILITY_CHECKPOINT); /* without a store */
    assert_string_equal(s->public_url, "");
    assert_int_equal(tke_service_max_body(tke_engine_service(engine)), GIB);
    tinkc_engine_free(engine);
}

/* All at their ends at once: these are accepted, and kept as they are. */
TEST(the_ends_of_a_range_are_accepted)
{
    static char texts[N_NUMBERS][32];
    const char *settings[2 * N_NUMBERS + 1] = { 0 };
    for (int end = 0; end < 2; end++) {
        for (size_t i = 0; i < N_NUMBERS; i++) {
            int64_t value = end ? numbers[i].most : numbers[i].least;
            snprintf(texts[i], sizeof texts[i], "%lld", (long long)value);
            settings[2 * i] = numbers[i].name;
            settings[2 * i + 1] = texts[i];
        }
        tinkc_engine *engine = make_with(settings);
        for (size_t i = 0; i < N_NUMBERS; i++)
            holds(engine, &numbers[i], end ? numbers[i].most : numbers[i].least);
        tinkc_engine_free(engine);
    }
}

TEST(beyond_the_ends)
{
    char value[40], text[200];
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const number *n = &numbers[i];
        for (int end = 0; end < 2; end++) {
            if (end && n->most == MOST)
                snprintf(value, sizeof value, "1e19");
            else
                snprintf(value, sizeof value, "%lld", (long long)(end ? n->most + 1 : n->least - 1));
            snprintf(text, sizeof text, "setting %s: '%s' is not a %snumber from %lld to %lld", n->name, value,
                     n->scale == 1 ? "whole " : "", (long long)n->least, (long long)n->most);
            refused(n->name, value, text);
        }
    }
}

TEST(the_last_of_two_values_counts)
{
    static const char *const settings[] = { "long_poll_s",        "0.25",       "train_share", "1",
                                            "max_queued_tokens",  "9e15",       "max_topk",    "7",
                                            "result_store_bytes", "9.1e18",     "max_topk",    "8",
                                            "session_keep_s",     "1000000000", NULL };
    tinkc_engine *engine = make_with(settings);
    const tke_settings *s = set_of(engine);
    assert_int_equal(s->long_poll_ms, 250);
    assert_true(s->train_share == 1);
    assert_true(s->max_queued_tokens == 9000000000000000);
    assert_true(s->result_store_bytes == 9100000000000000000);
    assert_int_equal(s->max_topk, 8); /* the last one counts */
    assert_true(s->session_keep_ms == 1000000000000);
    tinkc_engine_free(engine);
    static const char *const large[] = { "result_store_bytes", "9.2e18", "disk_reserve", "9199999999999998976", NULL };
    engine = make_with(large);
    assert_true(set_of(engine)->result_store_bytes == INT64_MAX); /* from 9.2e18 on: no limit */
    assert_true(set_of(engine)->disk_reserve == 9199999999999998976);
    tinkc_engine_free(engine);
    static const char *const none[] = { "train_share", "0", NULL };
    engine = make_with(none);
    assert_true(set_of(engine)->train_share == 0);
    tinkc_engine_free(engine);
    refused("train_share", "1.5", "setting train_share: '1.5' is not a number from 0 to 1");
    refused("train_share", "-0.5", "setting train_share: '-0.5' is not a number from 0 to 1");
    refused("max_topk", "1.5", "setting max_topk: '1.5' is not a whole number from 1 to 65536");
    refused("max_topk", "", "setting max_topk: '' is not a whole number from 1 to 65536");
    refused("max_topk", "8x", "setting max_topk: '8x' is not a whole number from 1 to 65536");
    refused("pending_status", "300", "setting pending_status: 200 or 408");
    refused("max_topkk", "8", "unknown setting 'max_topkk'");
    refused("", "8", "unknown setting ''");
}

/* ---- flags, choices, the address ---- */

TEST(a_flag_is_on_or_off)
{
    static const struct {
        const char *name;
        size_t at;
    } known[] = { { "strict_steps", AT(strict_steps) }, { "emit_elementwise_loss", AT(emit_elementwise_loss) },
                  { "share_disk", AT(share_disk) },     { "jwt_auth", AT(jwt_auth) },
                  { "use_pyqwest", AT(use_pyqwest) },   { "use_retrieve_futures", AT(use_retrieve_futures) } };
    static const char *const words[] = { "off", "on", "false", "true", "0", "1" };
    enum { N = sizeof known / sizeof *known };
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        const char *settings[2 * N + 1] = { 0 };
        for (size_t i = 0; i < N; i++) {
            settings[2 * i] = known[i].name;
            settings[2 * i + 1] = words[w];
        }
        tinkc_engine *engine = make_with(settings);
        for (size_t i = 0; i < N; i++)
            assert_int_equal(*((const char *)set_of(engine) + known[i].at), w % 2);
        tinkc_engine_free(engine);
    }
    refused("jwt_auth", "2", "setting jwt_auth: '2' is not a number from 0 to 1");
    refused("jwt_auth", "yes", "setting jwt_auth: 'yes' is not a number from 0 to 1");
    refused("max_topk", "on", "setting max_topk: 'on' is not a whole number from 1 to 65536");
    refused("max_models", "off", "setting max_models: 'off' is not a whole number from 0 to 1048576");
}

TEST(a_choice_is_one_of_its_words)
{
    static const struct {
        const char *setting, *value;
        size_t at;
        int32_t number;
    } rows[] = {
        { "sample_logprobs", "scaled", AT(sample_logprobs), TKE_LOGPROBS_SCALED },
        { "sample_logprobs", "raw", AT(sample_logprobs), TKE_LOGPROBS_RAW },
        { "sample_logprobs", "processed", AT(sample_logprobs), TKE_LOGPROBS_PROCESSED },
        { "adapter_dtype", "f32", AT(adapter_dtype), TKE_F32 },
        { "adapter_dtype", "bf16", AT(adapter_dtype), TKE_BF16 },
        { "adapter_names", "auto", AT(adapter_names), TKE_NAMING_AUTO },
        { "adapter_names", "peft", AT(adapter_names), TKE_NAMING_PEFT },
        { "adapter_names", "hosted", AT(adapter_names), TKE_NAMING_HOSTED },
        { "keep_activations", "auto", AT(keep), TKE_KEEP_AUTO },
        { "keep_activations", "none", AT(keep), TKE_KEEP_NONE },
        { "keep_activations", "all", AT(keep), TKE_KEEP_ALL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const settings[] = { rows[i].setting, rows[i].value, NULL };
        tinkc_engine *engine = make_with(settings);
        int32_t now;
        memcpy(&now, (const char *)set_of(engine) + rows[i].at, sizeof now);
        assert_int_equal(now, rows[i].number);
        tinkc_engine_free(engine);
    }
    refused("adapter_dtype", "F32", "setting adapter_dtype: 'F32' is none of its values");
    refused("keep_activations", "raw", "setting keep_activations: 'raw' is none of its values");
}

TEST(a_public_url_is_an_origin)
{
    char longest[300];
    memset(longest, 'a', sizeof longest);
    memcpy(longest, "http://", 7);
    longest[256] = '\0'; /* one more than there is room for */
    static const struct {
        const char *given, *kept;
    } good[] = { { "http://h", "http://h" }, { "https://h:1/x", "https://h:1/x" }, { "https://h//", "https://h" } };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const char *const settings[] = { "public_url", good[i].given, NULL };
        tinkc_engine *engine = make_with(settings);
        assert_string_equal(set_of(engine)->public_url, good[i].kept);
        tinkc_engine_free(engine);
    }
    char text[400];
    snprintf(text, sizeof text, "setting public_url: '%.60s' is not an http or https address", longest);
    refused("public_url", longest, text);
    refused("public_url", "ftp://h", "setting public_url: 'ftp://h' is not an http or https address");
    refused("public_url", "", "setting public_url: '' is not an http or https address");
    longest[255] = '\0';
    const char *const settings[] = { "public_url", longest, NULL };
    tinkc_engine *engine = make_with(settings);
    assert_string_equal(set_of(engine)->public_url, longest);
    tinkc_engine_free(engine);
    const char *const twice[] = { "public_url", longest, "public_url", "http://h", NULL };
    engine = make_with(twice);
    assert_string_equal(set_of(engine)->public_url, "http://h");
    tinkc_text status = { 0 };
    tinkc_error err = { 0 };
    for (int i = 0; i < 2; i++) { /* what the text held before goes */
        assert_true(tinkc_engine_status(engine, &status, &err)[0] == '{');
        const char *first = strstr(status.data, "\"requests_total\"");
        assert_true(first && !strstr(first + 1, "\"requests_total\""));
    }
    tinkc_text_free(&status);
    tinkc_engine_free(engine);
}

/* ---- options ---- */

TEST(shares_of_memory)
{
    static const struct {
        int64_t memory, queued, snapshots, bodies;
    } rows[] = {
        { 64 * GIB, 16 * GIB, GIB, 16 * GIB },
        { 8 * GIB, 2 * GIB, GIB, 2 * GIB },
        { GIB, GIB / 4, GIB / 8, GIB / 4 },
        { GIB / 4, GIB / 16, GIB / 32, GIB / 8 },
        { 17 * GIB / 2, 17 * GIB / 8, GIB, 17 * GIB / 8 },
        { 9 * GIB / 32, 9 * GIB / 128, 9 * GIB / 256, GIB / 8 },
        { 17 * GIB / 32, 17 * GIB / 128, 17 * GIB / 256, 17 * GIB / 128 },
        { GIB / 16, GIB / 16, GIB / 128, GIB / 8 },
    };
    tinkc_error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_engine *engine = make(&(tinkc_engine_options){ .threads = 1, .memory_bytes = rows[i].memory }, &err);
        const tke_settings *s = set_of(engine);
        assert_true(s->memory_bytes == rows[i].memory);
        assert_true(s->train_memory_bytes == 0 && s->kv_bytes == 0); /* planned */
        assert_true(s->max_queued_bytes == rows[i].queued);
        assert_true(s->snapshot_memory_bytes == rows[i].snapshots);
        assert_true((int64_t)tke_engine_service(engine)->bodies.max == rows[i].bodies);
        tinkc_engine_free(engine);
    }
    tinkc_engine *engine = make(NULL, &err);
    assert_true(set_of(engine)->memory_bytes > 0 && set_of(engine)->memory_bytes % 9 == 0);
    /* of what is free, which is not more than there is */
    assert_true(set_of(engine)->memory_bytes <= sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    assert_int_equal(set_of(engine)->threads, 0);
    tinkc_engine_free(engine);
}

/* A setting that is refused leaves no store behind. */
TEST(refused_settings_make_nothing)
{
    tinkc_error err = { 0 };
    char path[500];
    char *folder = tiny_folder();
    const char *const settings[] = { "max_models", "x", NULL };
    snprintf(path, sizeof path, "%s/store", folder);
    assert_null(tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .store = path, .settings = settings }, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_int_not_equal(access(path, F_OK), 0);
    tiny_model_remove(folder);
}

TEST(batches_lower_microbatches)
{
    static const struct {
        const char *batch, *micro;
        int64_t wanted;
    } rows[] = { { "100", "101", 100 }, { "100", "100", 100 }, { "100", "99", 99 }, { "0", "7", 7 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const settings[] = { "max_batch_tokens", rows[i].batch, "microbatch_tokens", rows[i].micro, NULL };
        tinkc_engine *engine = make_with(settings);
        assert_int_equal(set_of(engine)->microbatch_tokens, rows[i].wanted);
        tinkc_engine_free(engine);
    }
}

TEST(options_out_of_range_are_refused)
{
    static const tinkc_engine_options bad[] = {
        { .durability = -1 },
        { .durability = 4 },
        { .threads = -1 },
        { .memory_bytes = -1 },
        { .max_lora_rank = -1 },
        { .session_timeout_ms = -1 },
        { .reserved_bools = { [6] = true } },
        { .reserved = { [7] = 1 } },
        { .device = "gpu" },
        { .dtype = "f16" },
    };
    static const char *const texts[] = {
        "durability: must be from 0 to 3, not -1",
        "durability: must be from 0 to 3, not 4",
        "threads: must be 0 or more, not -1",
        "memory_bytes: must be 0 or more, not -1",
        "max_lora_rank: must be 0 or more, not -1",
        "session_timeout_ms: must be 0 or more, not -1",
        "reserved fields must be zero",
        "reserved fields must be zero",
        "unknown device 'gpu'; use auto, cpu, cuda or cuda:N",
        "dtype 'f16' is none of auto, f32, bf16",
    };
    tinkc_error err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(make(&bad[i], &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, texts[i]);
    }
}

TEST(options_in_range_are_kept)
{
    tinkc_error err;
    static const struct {
        const char *name;
        int32_t compute;
    } types[] = { { "auto", TKE_PRECISION_AUTO }, { "f32", TKE_PRECISION_F32 }, { "bf16", TKE_PRECISION_BF16 } };
    char *folder = tiny_folder();
    for (int durability = 0; durability <= TINKC_DURABILITY_JOURNAL; durability++) {
        tinkc_engine *engine = make(&(tinkc_engine_options){ .threads = 3,
                                                             .store = folder,
                                                             .strict = true,
                                                             .durability = durability,
                                                             .session_timeout_ms = 1,
                                                             .max_lora_rank = 1 },
                                    &err);
        const tke_settings *s = set_of(engine);
        assert_int_equal(s->durability, durability ? durability : TINKC_DURABILITY_SNAPSHOT);
        assert_int_equal(s->session_timeout_ms, 1);
        assert_int_equal(s->max_lora_rank, 1);
        assert_int_equal(s->threads, 3);
        assert_true(s->strict);
        tinkc_engine_free(engine);
    }
    tiny_model_remove(folder);
    for (int i = 0; i < 3; i++) {
        tinkc_engine *engine =
            make(&(tinkc_engine_options){ .threads = 1, .device = "cpu", .dtype = types[i].name }, &err);
        assert_int_equal(set_of(engine)->compute, types[i].compute);
        tinkc_engine_free(engine);
    }
    setenv("TINKC_DEVICE", "toaster", 1); /* asked for where no option says otherwise */
    assert_null(make(NULL, &err));
    assert_string_equal(err.message, "unknown device 'toaster'; use auto, cpu, cuda or cuda:N");
    tinkc_engine_free(make(&(tinkc_engine_options){ .threads = 1, .device = "cpu" }, &err));
    assert_ok(err);
    unsetenv("TINKC_DEVICE");
}

/* ---- models ---- */

static size_t context_of(tinkc_engine *engine, const char *name)
{
    tke_service *svc = tke_engine_service(engine);
    pthread_mutex_lock(&svc->lock);
    const tke_base *base = tke_find_base(svc, name);
    pthread_mutex_unlock(&svc->lock);
    return base ? base->context : 0;
}

TEST(a_models_context_may_be_lowered)
{
    tinkc_error err = { 0 };
    char slashes[500], text[700],
        *folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 48 });
    static const struct {
        const char *limit;
        size_t context;
    } rows[] = { { "0", 48 }, { "47", 47 }, { "48", 48 }, { "49", 48 }, { "1", 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const settings[] = { "max_context", rows[i].limit, NULL };
        tinkc_engine *engine = make_with(settings);
        assert_false(tke_service_ready(tke_engine_service(engine)));
        snprintf(slashes, sizeof slashes, "%s//", folder);
        assert_true(tinkc_engine_add_model(engine, NULL, slashes, &err));
        assert_true(tke_service_ready(tke_engine_service(engine)));
        assert_int_equal(context_of(engine, strrchr(folder, '/') + 1), rows[i].context);
        assert_true(tinkc_engine_add_model(engine, "a/b", folder, &err));
        assert_int_equal(context_of(engine, "a/b"), rows[i].context);
        assert_false(tinkc_engine_add_model(engine, "a/b", folder, &err));
        assert_int_equal(err.code, TINKC_E_EXISTS);
        assert_string_equal(err.message, "a model named 'a/b' is registered already");
        err = (tinkc_error){ 0 };
        snprintf(text, sizeof text, "%s", strrchr(folder, '/') + 1);
        assert_false(tinkc_engine_add_model(engine, NULL, folder, &err));
        assert_non_null(strstr(err.message, text));
        err = (tinkc_error){ 0 };
        assert_false(tinkc_engine_add_model(engine, "c", "", &err));
        assert_string_equal(err.message, "a model's folder is required");
        err = (tinkc_error){ 0 };
        assert_false(tinkc_engine_add_model(engine, "c", NULL, &err));
        err = (tinkc_error){ 0 };
        tinkc_engine_free(engine);
    }
    tiny_model_remove(folder);
}

/* In the order of their names, in whatever order they came. */
TEST(order_of_models)
{
    static const char *const names[] = { "d", "b", "a", "e", "c" };
    tinkc_error err = { 0 };
    char *folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 48 });
    tinkc_engine *engine = make_with(NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(tinkc_engine_add_model(engine, names[i], folder, &err));
    const char *all =
        service_json(tinkc_engine_transport(engine), 200, "GET", "/api/v1/get_server_capabilities", "%s", "");
    for (const char *name = "abcde"; *name; name++) {
        char mark[40];
        snprintf(mark, sizeof mark, "\"model_name\":\"%c\"", *name);
        all = strstr(all, mark); /* behind the one before */
        assert_non_null(all);
    }
    tinkc_engine_free(engine);
    tiny_model_remove(folder);
}
