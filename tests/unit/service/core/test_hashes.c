/* test_hashes.c - checksums, hashes of requests, names, salts and identities. They are in databases, so they must not change. */
#include "service/handlers/auth_token.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/request_decode.h"
#include "service/store/checksums.h"
#include "service/worker/jobs.h"
#include "service/worker/worker.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"

static const tkc_log silent;

static tke_store *open_store(const char *folder)
{
    tinkc_error err = { 0 };
    tke_store *s = tke_store_open(NULL, &silent, folder, &err);
    assert_ok(err);
    return s;
}

/* CRC-32C as RFC 3720, appendix B.4, gives it. */
TEST(checksums_are_crc32c)
{
    unsigned char bytes[32];
    assert_int_equal(tke_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(tke_crc32c(tke_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
    assert_int_equal(tke_crc32c(0, "", 0), 0);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(tke_crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(tke_crc32c(0, bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(tke_crc32c(0, bytes, 32), 0x46dd794e);
}

/* Of every ten seconds training gets its share; the one that is behind goes first. */
TEST(shares_of_time)
{
    static const struct {
        double share;
        int64_t train, sample;
        bool first;
    } rows[] = { { 0.5, 0, 0, true },    { 0.5, 10, 10, true },   { 0.5, 11, 10, false }, { 0.5, 10, 11, true },
                 { 0.25, 10, 30, true }, { 0.25, 10, 29, false }, { 0.75, 30, 10, true }, { 0.75, 31, 10, false },
                 { 1, 1000, 0, true },   { 0, 0, 1000, true },    { 0, 1, 1000, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (tke_training_is_behind(rows[i].share, rows[i].train, rows[i].sample) != rows[i].first)
            fail_msg("row %zu", i);
}

/* The list of a folder's sums, word for word, and every way in which it can be wrong. */
TEST(sums_of_folders)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *folder = tiny_folder(), path[400], list[400], text[600];
    static const char line[] = "613305eb3a8b1a13e801346f1ce7e004 1 f\n";
    tkc_arena_init(&arena, NULL, 0);
    snprintf(path, sizeof path, "%s/f", folder);
    snprintf(list, sizeof list, "%s/%s", folder, TKE_SUMS_FILE);
    assert_true(tke_sums_check(folder, &err)); /* none: an older version's */
    tiny_write(folder, "f", "a");
    tiny_write(folder, "checkpoint_complete", "x");
    assert_true(tke_sums_write(folder, &err));
    assert_true(tke_sums_write(folder, &err)); /* the list is not in the list */
    tinkc_bytes have = tkc_read_file(&arena, list, 1000, &err);
    assert_ok(err);
    assert_string_equal(tkc_arena_str(&arena, tkc_strn((const char *)have.data, have.len), &err), line);
    assert_true(tke_sums_check(folder, &err));
    static const struct {
        const char *file, *list, *wrong; /* behind the folder's name */
    } rows[] = {
        { "b", line, "f is damaged: its bytes are not those that were written" },
        { "aa", line, "f is damaged: its bytes are not those that were written" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 2 f\n", "f is damaged: its bytes are not those that were written" },
        { "a", "613305eb3a8b1a13e801346f1ce7e00X 1 f\n", "f is damaged: its bytes are not those that were written" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 g\n", "g is missing" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 ", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 x f", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 ../f", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e00 1 f", "its list of checksums is damaged" },
        { "a", "word", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 f\n\n613305eb3a8b1a13e801346f1ce7e004 1 g", "g is missing" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 f", NULL },
        { "a", "\n\n", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        err = (tinkc_error){ 0 };
        tiny_write(folder, "f", rows[i].file);
        tiny_write(folder, TKE_SUMS_FILE, rows[i].list);
        bool fine = tke_sums_check(folder, &err);
        assert_int_equal(fine, !rows[i].wrong);
        snprintf(text, sizeof text, "%s: %s", folder, rows[i].wrong ? rows[i].wrong : "");
        assert_string_equal(err.message, rows[i].wrong ? text : "");
        assert_int_equal(err.code, rows[i].wrong ? TINKC_E_MODEL : TINKC_OK);
    }
    err = (tinkc_error){ 0 };
    tiny_model_remove(folder);
    tkc_arena_free(&arena);
}

static void hash_is(tke_hasher *h, uint64_t lo, uint64_t hi)
{
    tke_hash128 have = tke_hash_end(h);
    if (have.lo != lo || have.hi != hi)
        fail_msg("{ 0x%016llx, 0x%016llx }", (unsigned long long)have.lo, (unsigned long long)have.hi);
    assert_true(tke_hash_eq(have, (tke_hash128){ lo, hi }));
    assert_false(tke_hash_eq(have, (tke_hash128){ lo, hi ^ 1 }));
    assert_false(tke_hash_eq(have, (tke_hash128){ lo ^ 1, hi }));
}

/* Hashes of requests are rows of a store: a newer version must find the same. */
TEST(hashes_of_requests_stay_the_same_between_versions)
{
    static const struct {
        const char *text;
        uint64_t lo, hi;
    } rows[] = {
        { NULL, 0x30e6abfb280df248, 0xc6e4cc1d3c4ea892 },
        { "", 0xe370c1407435f7ef, 0xa49909acf63f1442 },
        { "a", 0xfbc34eed67bf4001, 0x0fd973d9b55299c6 },
        { "seven77", 0x699e41e3911bff54, 0x58916185778eaf6d },
        { "eightt88", 0xbbd0ff348fd91a25, 0x8e1441e55f6e26f6 },
        { "nine99999", 0x13baa7026ea6396c, 0xd4688b3b6292fda9 },
        { "sixteen letters.", 0x7ab2889e9cad3b2e, 0x77521c7e5bf7ff08 },
    };
    tke_hasher h;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_hash_begin(&h);
        tke_hash_str(&h, rows[i].text);
        hash_is(&h, rows[i].lo, rows[i].hi);
    }
    tke_hash_begin(&h);
    tke_hash_i64(&h, -5);
    tke_hash_f64(&h, 0.25);
    tke_hash_add(&h, "ab", 2);
    tke_hash_add(&h, "c", 1);
    hash_is(&h, 0x8f6ec34d751d9582, 0x8debccffe898b357);
    tke_hash_begin(&h);
    tke_hash_i64(&h, -5);
    tke_hash_f64(&h, 0.25);
    tke_hash_add(&h, "a", 1);
    tke_hash_add(&h, "bc", 2); /* parts are kept apart */
    hash_is(&h, 0x006434de9299fe72, 0x41f432f7ae7ff02b);
}

/* The hash of a pass with so many inputs and options; `up`: in the order of their names. */
static tke_hash128 hash_of_pass(size_t n, bool up, int64_t last_input, int64_t last_option)
{
    static char names[70][24];
    static const char *list[70];
    static double values[70];
    static int64_t cells[70];
    tkc_named_tensor inputs[70] = { 0 };
    for (size_t i = 0; i < n; i++) {
        size_t at = up ? i : n - 1 - i;
        snprintf(names[at], sizeof names[at], "n%02zu", i);
        cells[at] = i + 1 == n ? last_input : (int64_t)i;
        values[at] = (double)(i + 1 == n ? last_option : (int64_t)i);
        list[at] = names[at];
        inputs[at] =
            (tkc_named_tensor){ .name = names[at], .tensor = { .dtype = TINKC_I64, .data = &cells[at], .count = 1 } };
    }
    tkc_datum datum = { 0 };
    datum.inputs.data = inputs;
    datum.inputs.len = n;
    tkc_forward_backward_request r = { .loss_fn = "l" };
    r.data.data = &datum;
    r.data.len = 1;
    r.loss_fn_config.names = list;
    r.loss_fn_config.values = values;
    r.loss_fn_config.len = n;
    tke_job job = { .kind = TKE_JOB_PASS };
    job.in.pass.request = &r;
    return tke_job_hash(&job);
}

/* Maps come in any order: up to 64 entries that makes no difference, and each of them counts. More
 * cannot be valid; only their names count, as they come. */
TEST(order_of_inputs)
{
    static const size_t sizes[] = { 1, 2, 3, 63, 64 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tke_hash128 up = hash_of_pass(sizes[i], true, 5, 5);
        assert_true(tke_hash_eq(up, hash_of_pass(sizes[i], false, 5, 5)));
        assert_false(tke_hash_eq(up, hash_of_pass(sizes[i], true, 6, 5)));
        assert_false(tke_hash_eq(up, hash_of_pass(sizes[i], true, 5, 6)));
        assert_false(tke_hash_eq(up, hash_of_pass(sizes[i] + 1, true, 5, 5)));
    }
    tke_hash128 many = hash_of_pass(65, true, 5, 5);
    assert_true(tke_hash_eq(many, hash_of_pass(65, true, 6, 6)));
    assert_false(tke_hash_eq(many, hash_of_pass(65, false, 5, 5)));
    assert_false(tke_hash_eq(many, hash_of_pass(66, true, 5, 5)));
    assert_true(tke_hash_eq(many, (tke_hash128){ 0xa5fe63a926159f72, 0x32a5c86c60e1b7f4 })); /* the last name counts */
}

/* What a request of each kind hashes to, part by part: the same request as the row before, but for one
 * of its parts, has another hash. */
TEST(hashes_of_jobs)
{
#define PASS(rest)            "{\"model_id\":\"m\",\"seq_id\":1,\"forward_backward_input\":{" rest "}}"
#define DATUM(chunks, inputs) "\"data\":[{\"model_input\":{\"chunks\":[" chunks "]},\"loss_fn_inputs\":{" inputs "}}]"
#define CHUNK(tokens)         "{\"type\":\"encoded_text\",\"tokens\":[" tokens "]}"
#define INTS(data, shape)     "{\"data\":[" data "],\"dtype\":\"int64\",\"shape\":[" shape "]}"
#define FLOATS(data)          "{\"data\":[" data "],\"dtype\":\"float32\",\"shape\":[2]}"
#define M                     "{\"model_id\":\"m\",\"seq_id\":1,"
    static const struct {
        int32_t kind;
        const char *body;
        uint64_t lo, hi;
    } rows[] = {
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(CHUNK("1,2"),
                                                      "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0xbdb43d9bc318d3bb, 0x638f8023266f5a76 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"ppo\"," DATUM(CHUNK("1,2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x6645f7c92f24677e, 0x70333ec4f9c52846 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"ppo\",\"loss_fn_config\":{\"a\":0.25,\"b\":1}," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x835d41263d74d146, 0x28616293a3ed71cf },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"ppo\",\"loss_fn_config\":{\"a\":0.25,\"c\":1}," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0xb6562070d5ac9ab0, 0xa94227c0476e797f },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(CHUNK("1,3"),
                                                      "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x7482edb0e07ef1d0, 0xae221ab3cc40ae18 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(CHUNK("1") "," CHUNK("2"),
                                                      "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x3ded3d1b4e420338, 0xb02994b7a97657f6 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM("{\"type\":\"image\",\"data\":\"aGk=\",\"format\":\"png\"}",
                                                      "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x8fe05cc806f8dcb3, 0x6d09bf34a4297e5f },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(CHUNK("1,2"),
                                                      "\"t\":" INTS("2,4", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x1b9a96e5e41aefc9, 0x4ca8d43d50226721 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(CHUNK("1,2"),
                                                      "\"t\":" INTS("2,3", "2,1") ",\"w\":" FLOATS("0.5,1"))),
          0x63ad6ee0035d7a3b, 0xefab05253d67f55b },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(CHUNK("1,2"),
                                                      "\"u\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x3d84925fdaca1e97, 0xc528ace096aa4c46 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":{\"data\":[2,3],\"dtype\":\"int64\",\"shape\":[2,4],\"sparse_"
                            "crow_indices\":[0,1,2],\"sparse_col_indices\":[1,3]}")),
          0xd2ebb03617aee3d4, 0xdce160268395db69 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":{\"data\":[2,3],\"dtype\":\"int64\",\"shape\":[2,4],\"sparse_"
                            "crow_indices\":[0,1,2],\"sparse_col_indices\":[1,2]}")),
          0xbeb6c36137fecdbc, 0xfdb1534e3eedfce6 },
        { TKE_JOB_FORWARD,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(CHUNK("1,2"),
                                                      "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x26140dafabfa31e4, 0x669b6ecd1be728cf },
        { TKE_JOB_OPTIM, M "\"adam_params\":{\"learning_rate\":0.01}}", 0x3a45ea401f76cd62, 0x41679fa808651315 },
        { TKE_JOB_OPTIM,
          M "\"adam_params\":{\"learning_rate\":0.01,\"beta1\":0.5,\"beta2\":0.75,\"eps\":0.125,"
            "\"weight_decay\":0.25,\"grad_clip_norm\":2}}",
          0xd602a471ef41ec3b, 0xa83a479b81fc8466 },
        { TKE_JOB_SAVE, M "\"path\":\"a\"}", 0xcda4a7006de14a37, 0x9d699ff66444ba63 },
        { TKE_JOB_SAVE, M "\"path\":\"a\",\"ttl_seconds\":3600}", 0x5a813b95b2bfd56a, 0x10e8d5db7218e023 },
        { TKE_JOB_SAVE, M "\"path\":\"a\",\"overwrite\":true}", 0x8fffee40817d98c6, 0x521428ebdc057f21 },
        { TKE_JOB_SAVE, M "\"path\":\"a\",\"user_metadata\":{\"a\":\"b\"}}", 0xa3107b1b008d6d4b, 0x86ef4683e6781a4d },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\"}", 0x6dbc741e1ea819cb, 0xa0c54e1acfd16515 },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\",\"ttl_seconds\":3600}", 0x724707c3c8ab8f35, 0x9e3cd9e55a66153b },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\",\"overwrite\":true}", 0x2e2dbe40948931ec, 0xb07adf367dc7c7c3 },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\",\"user_metadata\":{\"a\":\"b\"}}", 0x2e4beadef1a52ca6,
          0xcba5e4151cdfd216 },
        { TKE_JOB_SAVE_SAMPLER, M "\"sampling_session_seq_id\":1}", 0xcef0fa8203fe47c6, 0x67060d0da7aa6e72 },
        { TKE_JOB_SAVE_SAMPLER, M "\"sampling_session_seq_id\":2}", 0xcef0fa8203fe47c6, 0x67060d0da7aa6e72 },
        { TKE_JOB_EXTERNAL, M "\"path\":\"a\",\"ttl_seconds\":3600}", 0x5db6e62eaede7384, 0xdce1d8867145cc37 },
        { TKE_JOB_EXTERNAL, M "\"path\":\"a\"}", 0x9e9c9d70d885bb6b, 0x85202ed70e12e3f8 },
        { TKE_JOB_LOAD, M "\"path\":\"tinker://a/weights/b\",\"optimizer\":true}", 0xfba2ada4d1d0655c,
          0x6e894166b6f8dbd7 },
        { TKE_JOB_LOAD, M "\"path\":\"tinker://a/weights/b\",\"optimizer\":false}", 0x104d58f808c53e69,
          0x9f646fe0cf80a237 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        const char *model_id = NULL;
        tkc_opt_i64 seq = { 0 };
        tke_job job = { .kind = rows[i].kind };
        tkc_arena_init(&job.arena, NULL, 0);
        bool forward = rows[i].kind == TKE_JOB_FORWARD;
        if (!tke_decode_job(&job, tkc_str(rows[i].body), false, forward, &model_id, &seq, &err) || job.invalid.code)
            fail_msg("row %zu: %s%s", i, err.message, job.invalid.message);
        assert_string_equal(model_id, "m");
        assert_int_equal(seq.value, 1);
        if (!tke_hash_eq(job.hash, (tke_hash128){ rows[i].lo, rows[i].hi }))
            fail_msg("row %zu: { 0x%016llx, 0x%016llx }", i, (unsigned long long)job.hash.lo,
                     (unsigned long long)job.hash.hi);
        tkc_arena_free(&job.arena);
    }
}

static uint64_t next_random;

static uint64_t given_random(void *self)
{
    (void)self;
    next_random = ~next_random;
    return next_random;
}

TEST(names_are_made_from_the_clock_and_chance)
{
    static const tinkc_clock clock = { .random = given_random };
    char uuid[TKE_UUID_TEXT], owner[TKE_OWNER_TEXT], id[17], urn[TKE_URN_TEXT], longest[80];
    next_random = ~0x0123456789abcdefu; /* then its opposite */
    tke_uuid(&clock, uuid);
    assert_string_equal(uuid, "01234567-89ab-4def-bedc-ba9876543210");
    next_random = 0x0123456789abcdefu;
    tke_uuid(&clock, uuid);
    assert_string_equal(uuid, "fedcba98-7654-4210-8123-456789abcdef");
    const tke_owner_salt none = { { 0 } };
    const tke_owner_salt salt = { { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 } };
    tke_owner_of_key(&none, tkc_str("tml-key"), owner);
    assert_string_equal(owner, "key-752caf7cf7ae8548");
    tke_id_of_key(&none, tkc_str("tml-key"), id);
    assert_string_equal(id, "4ae5afd7bbdb4ec1");
    tke_owner_of_key(&salt, tkc_str("tml-key"), owner);
    assert_string_equal(owner, "key-150dbddd7e979c31");
    tke_id_of_key(&salt, tkc_str("tml-key"), id);
    assert_string_equal(id, "8153f2bb3558ab75");
    tke_owner_urn("default", urn);
    assert_string_equal(urn, "tml:organization_user:default");
    memset(longest, 'o', sizeof longest);
    longest[64] = '\0';
    tke_owner_urn(longest, urn);
    longest[63] = '\0';
    assert_string_equal(urn + strlen("tml:organization_user:"), longest);
}

/* What is drawn for a store is used from the start on, and is the same after each start. */
TEST(salts_and_secrets)
{
    char *folder = tiny_folder();
    tinkc_error err = { 0 };
    tke_owner_salt salt[3] = { 0 };
    tke_token_secret secret[3] = { 0 };
    for (size_t i = 0; i < 3; i++) {
        tke_store *s = open_store(folder);
        for (size_t n = 0; n < 2; n++) {
            tke_owner_salt *one = &salt[n && i ? i : 0];
            tke_token_secret *two = &secret[n && i ? i : 0];
            assert_true(tke_owner_salt_load(one, s, tkc_clock_real(), &err));
            assert_true(tke_token_secret_load(two, s, tkc_clock_real(), &err));
            assert_memory_equal(one, &salt[0], sizeof *one);
            assert_memory_equal(two, &secret[0], sizeof *two);
        }
        tke_store_close(s);
    }
    for (size_t i = 0; i < sizeof salt[0].bytes; i += 8)
        assert_false(tkc_all_zero(salt[0].bytes + i, 8));
    for (size_t i = 0; i < sizeof secret[0].bytes; i += 8)
        assert_false(tkc_all_zero(secret[0].bytes + i, 8));
    tiny_model_remove(folder);
}

/* What clients see of each kind of error. */
TEST(each_error_has_its_status)
{
    static const struct {
        int32_t error, status;
        const char *code;
    } rows[] = {
        { TINKC_E_RATE_LIMITED, 429, "busy" },
        { TINKC_E_UNPROCESSABLE, 422, "unprocessable" },
        { TINKC_E_BAD_RESPONSE, 422, "unprocessable" },
        { TINKC_E_TOO_LARGE, 403, "quota" },
        { TINKC_E_NOT_FOUND, 404, "not_found" },
        { TINKC_E_FORBIDDEN, 403, "forbidden" },
        { TINKC_E_BAD_REQUEST, 400, "bad_request" },
        { TINKC_E_ARGUMENT, 400, "bad_request" },
        { TINKC_E_UNSUPPORTED, 400, "bad_request" },
        { TINKC_E_PATH, 400, "bad_request" },
        { TINKC_E_STORE, 500, "store" },
        { TINKC_E_FILE, 500, "store" },
        { TINKC_E_MEMORY, 503, "memory" },
        { TINKC_E_SERVER, 500, "server_error" },
        { TINKC_E_CONNECTION, 500, "server_error" },
        { TINKC_E_STATE, 500, "server_error" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *code = NULL;
        int32_t status = tke_failure_status(&(tinkc_error){ .code = rows[i].error }, &code);
        if (status != rows[i].status || strcmp(code, rows[i].code) != 0)
            fail_msg("%d: %d %s", (int)rows[i].error, (int)status, code);
    }
}
