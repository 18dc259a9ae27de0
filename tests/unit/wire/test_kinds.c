/* Every kind of field of the JSON codec, in messages of this test's own: read, written, null, absent and
 * refused, with white space before each value and lists that grow several times. */
#include "support/check.h"
#include "support/scratch.h"

#include "wire/message_codec.h"

typedef struct part {
    const char *key; /* of a map */
    int64_t n;
    tinkc_str json;
} part;

typedef struct all_kinds {
    const char *str;
    bool boolean;
    int64_t i64;
    float f32;
    double f64;
    tkc_opt_i64 opt_i64;
    tkc_opt_bool opt_bool;
    tkc_opt_f32 opt_f32;
    tkc_opt_f64 opt_f64;
    tkc_opt_seed seed;
    tkc_name name;
    tkc_time time;
    const char *const *strs;
    tkc_metadata metadata;
    tkc_numbers numbers;
    tinkc_str raw;
    part object;
    const part *pointer;
    TKC_ARRAY(part) objects;
    TKC_ARRAY(part) map;
    tinkc_str json;
} all_kinds;

static const tkc_name colours[] = { { "red", 1 }, { "blue", 2 }, { NULL, 0 } };
static const tkc_field part_fields[] = {
    { "n", TKC_I64, 0, offsetof(part, n), NULL },
    { "", TKC_SELF, 0, offsetof(part, json), NULL },
};
static const tkc_message part_type = { "part", sizeof(part), part_fields, 2, NULL };

#define FIELDS(flags)                                                                                                  \
    {                                                                                                                  \
        { "str", TKC_STR, flags, offsetof(all_kinds, str), NULL },                                                     \
            { "boolean", TKC_BOOL, 0, offsetof(all_kinds, boolean), NULL },                                            \
            { "i64", TKC_I64, 0, offsetof(all_kinds, i64), NULL },                                                     \
            { "f32", TKC_F32, 0, offsetof(all_kinds, f32), NULL },                                                     \
            { "f64", TKC_F64, 0, offsetof(all_kinds, f64), NULL },                                                     \
            { "opt_i64", TKC_OPT_I64, flags, offsetof(all_kinds, opt_i64), NULL },                                     \
            { "opt_bool", TKC_OPT_BOOL, flags, offsetof(all_kinds, opt_bool), NULL },                                  \
            { "opt_f32", TKC_OPT_F32, flags, offsetof(all_kinds, opt_f32), NULL },                                     \
            { "opt_f64", TKC_OPT_F64, flags, offsetof(all_kinds, opt_f64), NULL },                                     \
            { "seed", TKC_OPT_SEED, flags, offsetof(all_kinds, seed), NULL },                                          \
            { "name", TKC_NAME, flags, offsetof(all_kinds, name), colours },                                           \
            { "time", TKC_TIME, flags, offsetof(all_kinds, time), NULL },                                              \
            { "strs", TKC_STRS, flags, offsetof(all_kinds, strs), NULL },                                              \
            { "metadata", TKC_METADATA, flags, offsetof(all_kinds, metadata), NULL },                                  \
            { "numbers", TKC_NUMBERS, flags, offsetof(all_kinds, numbers), NULL },                                     \
            { "raw", TKC_RAW, flags, offsetof(all_kinds, raw), NULL },                                                 \
            { "object", TKC_OBJECT, 0, offsetof(all_kinds, object), &part_type },                                      \
            { "pointer", TKC_OBJECT_PTR, flags, offsetof(all_kinds, pointer), &part_type },                            \
            { "objects", TKC_OBJECTS, flags, offsetof(all_kinds, objects), &part_type },                               \
            { "map", TKC_MAP, 0, offsetof(all_kinds, map), &part_type }, { "kind", TKC_CONST, 0, 0, "all" },           \
            { "", TKC_SELF, 0, offsetof(all_kinds, json), NULL },                                                      \
    }
static const tkc_field plain_fields[] = FIELDS(0);
static const tkc_field nullable_fields[] = FIELDS(TKC_NULLABLE);
static const tkc_message plain = { "plain", sizeof(all_kinds), plain_fields, 22, NULL };
static const tkc_message nullable = { "nullable", sizeof(all_kinds), nullable_fields, 22, NULL };

static all_kinds msg;

static bool decode(const tkc_message *type, const char *json, tinkc_error *err)
{
    *err = (tinkc_error){ 0 };
    return tkc_message_decode(type, tkc_str(json), TINKC_E_BAD_RESPONSE, &arena, &msg, err);
}

/* What a message becomes when it is read and written again. */
static void assert_becomes(const tkc_message *type, const char *json, const char *want)
{
    tinkc_error err;
    if (!decode(type, json, &err))
        fail_msg("%s: %s", json, err.message);
    tkc_buf_clear(&out);
    tkc_message_encode(type, &msg, &out, &err);
    assert_ok(err);
    if (!tkc_str_is(tkc_buf_view(&out), want))
        fail_msg("%s\nbecomes %.*s\nnot     %s", json, (int)out.len, out.data, want);
}

/* What is written whatever is given: members that cannot be absent, before and after the others. */
#define HEAD "{\"boolean\":false,\"i64\":0,\"f32\":0.0,\"f64\":0.0"
#define TAIL ",\"object\":{\"n\":0},\"map\":{},\"kind\":\"all\"}"

/* Each value stands after white space, as nothing before it has skipped any. */
TEST_WITH(values_after_white_space, set_up, tear_down)
{
    static const char *const rows[][2] = {
        { "\"opt_i64\":\t-5", ",\"opt_i64\":-5" },
        { "\"opt_i64\": \"7\"", ",\"opt_i64\":7" },
        { "\"opt_bool\": true", ",\"opt_bool\":true" },
        { "\"opt_bool\":\nfalse", ",\"opt_bool\":false" },
        { "\"opt_f32\": 0.1", ",\"opt_f32\":0.1" },
        { "\"opt_f64\": 0.30000000000000004", ",\"opt_f64\":0.30000000000000004" },
        { "\"seed\": 18446744073709551615", ",\"seed\":18446744073709551615" },
        { "\"seed\":  9223372036854775808", ",\"seed\":9223372036854775808" },
        { "\"seed\": -9223372036854775808", ",\"seed\":-9223372036854775808" },
        { "\"seed\": 3.0", ",\"seed\":3" },
        { "\"name\": \"blue\"", ",\"name\":\"blue\"" },
        { "\"name\": \"green\"", ",\"name\":\"green\"" },
        { "\"time\": 1.5", ",\"time\":\"1.5\"" },
        { "\"time\": \"soon\"", ",\"time\":\"soon\"" },
        { "\"strs\": [ \"a\" , \"b\" ]", ",\"strs\":[\"a\",\"b\"]" },
        { "\"strs\": []", ",\"strs\":[]" },
        { "\"metadata\": { \"a\" : 1 }", ",\"metadata\":{ \"a\" : 1 }" },
        { "\"metadata\":  {}", ",\"metadata\":{}" },
        { "\"numbers\": { \"a\" : 1 , \"b\" : 0.5 }", ",\"numbers\":{\"a\":1.0,\"b\":0.5}" },
        { "\"numbers\": {}", ",\"numbers\":{}" },
        { "\"raw\": [1, {} ]", ",\"raw\":[1, {} ]" },
        { "\"raw\": null", ",\"raw\":null" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[200], want[300];
        (void)snprintf(json, sizeof json, " { %s }", rows[i][0]);
        (void)snprintf(want, sizeof want,
                       HEAD "%s,\"object\":{\"n\":0},\"objects\":[],\"map\":{}"
                            ",\"kind\":\"all\"}",
                       rows[i][1]);
        assert_becomes(&plain, json, want);
        assert_str(msg.json, json + 1); /* the object itself, without what stands before it */
    }
}

/* Members that are read into more than one value. */
TEST_WITH(values_of_names_and_seeds, set_up, tear_down)
{
    static const struct {
        const char *json;
        int32_t name;
        bool negative;
    } rows[] = {
        { "{\"name\":\"red\",\"seed\":0}", 1, false },
        { "{\"name\":\"blue\",\"seed\":-1}", 2, true },
        { "{\"name\":\"Red\",\"seed\":-0.0}", TKC_UNKNOWN, false },
        { "{\"name\":\"\",\"seed\":0.0}", TKC_UNKNOWN, false },
        { "{\"name\":\"red\",\"seed\":1.0}", 1, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err;
        assert_true(decode(&plain, rows[i].json, &err));
        assert_int_equal(msg.name.value, rows[i].name);
        assert_int_equal(msg.seed.negative, rows[i].negative);
    }
}

TEST_WITH(null_in_every_place, set_up, tear_down)
{
    static const struct {
        const char *field;
        bool kept; /* as null, not as absent */
    } rows[] = {
        { "str", false },     { "opt_i64", true }, { "opt_bool", true }, { "opt_f32", true },  { "opt_f64", true },
        { "seed", true },     { "name", false },   { "time", false },    { "strs", false },    { "metadata", false },
        { "numbers", false }, { "raw", false },    { "pointer", false }, { "objects", false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char json[100], want[300];
        tinkc_error err;
        (void)snprintf(json, sizeof json, "{\"%s\": null}", rows[i].field);
        (void)snprintf(want, sizeof want, HEAD "%s%s%s" TAIL, rows[i].kept ? ",\"" : "",
                       rows[i].kept ? rows[i].field : "", rows[i].kept ? "\":null" : "");
        assert_becomes(&nullable, json, want);
        if (strcmp(rows[i].field, "raw") == 0)
            continue;
        assert_false(decode(&plain, json, &err)); /* where null is not allowed */
        assert_memory_equal(err.message, rows[i].field, strlen(rows[i].field));
    }
    static const char *const never[] = { "boolean", "i64", "f32", "f64", "object", "map", "kind" };
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        char json[100];
        tinkc_error err;
        (void)snprintf(json, sizeof json, "{\"%s\":null}", never[i]);
        assert_false(decode(&nullable, json, &err));
        assert_memory_equal(err.message, never[i], strlen(never[i]));
    }
}

/* Lists are read into room that doubles from 4: what was read before stays as it was, and a list of
 * texts ends with NULL. */
TEST_WITH(lists_of_every_length, set_up, tear_down)
{
    for (size_t n = 0; n <= 33; n++) {
        tinkc_error err = { 0 };
        tkc_buf json;
        tkc_buf_init(&json, NULL, TKC_BUF_NO_MAX);
        static const char *const heads[] = { "{\"strs\":[", "],\"metadata\":{", "},\"numbers\":{", "},\"objects\":[",
                                             "],\"map\":{" };
        static const char *const items[] = { "\"t%zu\"", "\"k%zu\":\"v%zu\"", "\"x%zu\":%zu", "{\"n\":%zu}",
                                             "\"m%zu\":{\"n\":%zu}" };
        for (size_t list = 0; list < 5; list++) {
            tkc_buf_cstr(&json, heads[list], &err);
            for (size_t i = 0; i < n; i++) {
                char item[40];
                (void)snprintf(item, sizeof item, items[list], i, i);
                tkc_buf_printf(&json, &err, "%s%s", i ? "," : "", item);
            }
        }
        tkc_buf_cstr(&json, "}}", &err);
        assert_ok(err);
        if (!decode(&plain, tkc_buf_terminate(&json, &err), &err))
            fail_msg("%zu: %s", n, err.message);
        assert_true(msg.numbers.len == n && msg.objects.len == n && msg.map.len == n);
        assert_null(msg.strs[n]);
        assert_null(msg.metadata.pairs[2 * n]);
        for (size_t i = 0; i < n; i++) {
            char text[20];
            (void)snprintf(text, sizeof text, "t%zu", i);
            assert_string_equal(msg.strs[i], text);
            text[0] = 'k';
            assert_string_equal(msg.metadata.pairs[2 * i], text);
            text[0] = 'v';
            assert_string_equal(msg.metadata.pairs[2 * i + 1], text);
            text[0] = 'x';
            assert_string_equal(msg.numbers.names[i], text);
            assert_true(msg.numbers.values[i] == (double)i);
            assert_true(tkc_numbers_get(&msg.numbers, text, -1) == (double)i);
            text[0] = 'm';
            assert_string_equal(msg.map.data[i].key, text);
            assert_int_equal(msg.map.data[i].n, i);
            assert_int_equal(msg.objects.data[i].n, i);
            assert_str(msg.objects.data[i].json, (snprintf(text, sizeof text, "{\"n\":%zu}", i), text));
        }
        assert_true(tkc_numbers_get(&msg.numbers, "x", -1) == -1);
        tkc_buf again; /* what is written is what was read */
        tkc_buf_init(&again, NULL, TKC_BUF_NO_MAX);
        tkc_message_encode(&plain, &msg, &again, &err);
        assert_ok(err);
        all_kinds first = msg;
        assert_true(decode(&plain, tkc_buf_terminate(&again, &err), &err));
        assert_true(msg.map.len == first.map.len && msg.objects.len == first.objects.len);
        tkc_buf_free(&again);
        tkc_buf_free(&json);
        tkc_arena_reset(&arena);
    }
}

/* A name or a text that C would cut short is refused, and the message names the field. */
TEST_WITH(what_is_refused, set_up, tear_down)
{
    static const char *const rows[][2] = {
        { "{\"str\":\"a\\u0000\"}", "str: JSON: U+0000 in a string" },
        { "{\"strs\":[\"a\",\"\\u0000b\"]}", "strs: JSON: U+0000 in a string" },
        { "{\"metadata\":{\"a\\u0000\":1}}", "metadata: JSON: U+0000 in a key" },
        { "{\"metadata\":{\"a\":\"\\u0000\"}}", "metadata: JSON: U+0000 in a string" },
        { "{\"numbers\":{\"\\u0000\":1}}", "numbers: JSON: U+0000 in a key" },
        { "{\"numbers\":{\"a\":\"1\"}}", "numbers.a: a number is needed, not a text" },
        { "{\"map\":{\"a\\u0000b\":{}}}", "map: JSON: U+0000 in a key" },
        { "{\"map\":{\"a\":{\"n\":true}}}", "map.n: JSON: " },
        { "{\"object\":{\"n\":true}}", "object.n: JSON: " },
        { "{\"pointer\":{\"n\":true}}", "pointer.n: JSON: " },
        { "{\"objects\":[{},{\"n\":true}]}", "objects.n: JSON: " },
        { "{\"opt_i64\":\"7x\"}", "opt_i64: JSON: an integer is needed" },
        { "{\"opt_i64\":\"\"}", "opt_i64: JSON: an integer is needed" },
        { "{\"seed\":18446744073709551616}", "seed: JSON: " },
        { "{\"seed\":0.5}", "seed: JSON: " },
        { "{\"seed\":\"1\"}", "seed: JSON: " },
        { "{\"kind\":\"one\"}", "kind: JSON: not the text that belongs here" },
        { "{\"kind\":7}", "kind: JSON: " },
        { "{\"time\":true}", "time: JSON: " },
        { "{\"name\":7}", "name: JSON: " },
        { "{\"strs\":{}}", "strs: JSON: " },
        { "{\"objects\":{}}", "objects: JSON: " },
        { "{\"map\":[]}", "map: JSON: " },
        { "{\"metadata\":[]}", "metadata: JSON: " },
        { "{\"numbers\":[]}", "numbers: JSON: " },
        { "[]", "JSON: " },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err;
        assert_false(decode(&plain, rows[i][0], &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
        if (strncmp(err.message, rows[i][1], strlen(rows[i][1])) != 0)
            fail_msg("%s: %s", rows[i][0], err.message);
    }
}

/* The last of a member that comes twice counts, as for every reader of JSON. */
TEST_WITH(members_that_come_twice, set_up, tear_down)
{
    tinkc_error err;
    assert_true(decode(&plain, "{\"i64\":1,\"i64\":2,\"numbers\":{\"a\":1,\"a\":2}}", &err));
    assert_int_equal(msg.i64, 2);
    assert_true(tkc_numbers_get(&msg.numbers, "a", 0) == 2);
}

/* ---- what is written ---- */

TEST_WITH(texts_that_cannot_be_sent, set_up, tear_down)
{
    static const char *const bad[] = { "a\xFF", NULL };
    static const double one[] = { 1 };
    static const part keys[] = { { .key = "k\xFF" } }, no_key[] = { { .key = NULL } };
    const char *const utf8 = "text to be sent is not UTF-8";
    const char *const key = "a key to be sent is missing or not UTF-8";
    const struct {
        all_kinds msg;
        const char *why;
    } rows[] = {
        { { .str = "\xFF" }, utf8 },
        { { .strs = bad }, utf8 },
        { { .name = { "\xFF", 0 } }, utf8 },
        { { .time = { "\xFF", 0 } }, utf8 },
        { { .numbers = { bad, one, 1 } }, utf8 },
        { { .map = { keys, 1 } }, key },
        { { .map = { no_key, 1 } }, key },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_buf_clear(&out);
        assert_false(tkc_message_encode(&plain, &rows[i].msg, &out, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, rows[i].why);
    }
}

static void assert_written(const all_kinds *m, const char *want)
{
    tinkc_error err = { 0 };
    tkc_buf_clear(&out);
    tkc_message_encode(&nullable, m, &out, &err);
    assert_ok(err);
    if (!tkc_str_is(tkc_buf_view(&out), want))
        fail_msg("%.*s\nis not %s", (int)out.len, out.data, want);
}

TEST_WITH(an_optional_value_may_be_null_or_missing, set_up, tear_down)
{
    static const char *const want[][3] = {
        { "", ",\"opt_i64\":null", ",\"opt_i64\":-3" },
        { "", ",\"opt_bool\":null", ",\"opt_bool\":true" },
        { "", ",\"opt_f32\":null", ",\"opt_f32\":0.1" },
        { "", ",\"opt_f64\":null", ",\"opt_f64\":0.1" },
        { "", ",\"seed\":null", ",\"seed\":18446744073709551615" },
        { "", ",\"seed\":null", ",\"seed\":-1" },
    };
    for (uint8_t is = TKC_ABSENT; is <= TKC_GIVEN; is++) {
        const all_kinds rows[] = {
            { .opt_i64 = { -3, is } },  { .opt_bool = { true, is } },          { .opt_f32 = { 0.1f, is } },
            { .opt_f64 = { 0.1, is } }, { .seed = { UINT64_MAX, false, is } }, { .seed = { UINT64_MAX, true, is } },
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char text[300];
            (void)snprintf(text, sizeof text, HEAD "%s" TAIL, want[i][is]);
            assert_written(&rows[i], text);
        }
    }
}

/* Times and names without text are written by their value. */
TEST_WITH(values_without_text, set_up, tear_down)
{
    assert_written(&(all_kinds){ .time = { NULL, 1500000 } }, HEAD ",\"time\":\"1970-01-01T00:00:01.500000Z\"" TAIL);
    assert_written(&(all_kinds){ .time = { NULL, 1000000 } }, HEAD ",\"time\":\"1970-01-01T00:00:01Z\"" TAIL);
    assert_written(&(all_kinds){ .time = { NULL, -1 } }, HEAD ",\"time\":\"1969-12-31T23:59:59.999999Z\"" TAIL);
    assert_written(&(all_kinds){ .time = { NULL, 0 } }, HEAD TAIL);
    assert_written(&(all_kinds){ .time = { NULL, TINKC_NO_TIME } }, HEAD TAIL);
    assert_written(&(all_kinds){ .time = { "t", TINKC_NO_TIME } }, HEAD ",\"time\":\"t\"" TAIL);
    assert_written(&(all_kinds){ .name = { NULL, 1 } }, HEAD ",\"name\":\"red\"" TAIL);
    assert_written(&(all_kinds){ .name = { NULL, 2 } }, HEAD ",\"name\":\"blue\"" TAIL);
    assert_written(&(all_kinds){ .name = { "own", 2 } }, HEAD ",\"name\":\"own\"" TAIL);
    assert_written(&(all_kinds){ .name = { NULL, 3 } }, HEAD TAIL);
    assert_written(&(all_kinds){ .name = { NULL, TKC_UNKNOWN } }, HEAD TAIL);
}

/* ---- names of fields in messages of errors ---- */

typedef struct nest {
    const struct nest *inner;
    int64_t n;
} nest;

/* The message is the path of fields and then the reason. One that is too long is cut at the end of a
 * character, and a name that would fill half of it is left out. */
TEST_WITH(long_names_in_errors, set_up, tear_down)
{
    enum { ROOM = sizeof((tinkc_error *)0)->message };
    static char name[ROOM];
    static tkc_field fields[2] = {
        { name, TKC_OBJECT_PTR, 0, offsetof(nest, inner), NULL },
        { "n\xC3\xA9", TKC_I64, 0, offsetof(nest, n), NULL },
    };
    static const tkc_message type = { "nest", sizeof(nest), fields, 2, NULL };
    fields[0].type = &type;
    for (size_t len = 1; len < ROOM / 2 + 3; len++) {
        tinkc_error err = { 0 };
        char json[2 * ROOM + 40], want[3 * ROOM] = "";
        nest read;
        memset(name, 'x', len);
        (void)snprintf(json, sizeof json, "{\"%s\":{\"%s\":{\"n\xC3\xA9\":true}}}", name, name);
        if (len + 2 < ROOM / 2)
            (void)snprintf(want, sizeof want, "%s.%s.", name, name);
        (void)snprintf(want + strlen(want), ROOM, "n\xC3\xA9: JSON: an integer is needed at byte %zu",
                       (size_t)(strstr(json, "true") - json));
        size_t end = strlen(want) < ROOM ? strlen(want) : ROOM - 1;
        while (end > 0 && ((unsigned char)want[end] & 0xC0) == 0x80)
            end--;
        want[end] = '\0';
        assert_false(tkc_message_decode(&type, tkc_str(json), TINKC_E_BAD_RESPONSE, &arena, &read, &err));
        if (strcmp(err.message, want) != 0)
            fail_msg("%zu: %s\nis not %s", len, err.message, want);
    }
}

/* A message ends where it ends, whatever the error held before. */
TEST_WITH(names_in_errors_that_are_used_again, set_up, tear_down)
{
    tinkc_error err;
    memset(&err, 'z', sizeof err);
    err.code = 0;
    assert_false(
        tkc_message_decode(&plain, tkc_str("{\"object\":{\"n\":true}}"), TINKC_E_BAD_RESPONSE, &arena, &msg, &err));
    assert_string_equal(err.message, "object.n: JSON: an integer is needed at byte 15");
}

/* What is not the text's fault has no field. */
TEST_WITH(lack_of_memory_has_no_field, set_up, tear_down)
{
    static const char json[] = "{\"strs\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"numbers\":{\"a\":1,\"b\":2,\"c\":3,\"d\":4,"
                               "\"e\":5},\"metadata\":{\"a\":1,\"b\":2,\"c\":3},\"objects\":[{},{},{},{},{}],"
                               "\"map\":{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{}},\"pointer\":{},\"raw\":[1]}";
    for (size_t max = 16; max < 64 * 1024; max += 8) {
        tinkc_error err = { 0 };
        tkc_arena small;
        tkc_arena_init(&small, NULL, max);
        bool done = tkc_message_decode(&plain, tkc_str(json), TINKC_E_BAD_RESPONSE, &small, &msg, &err);
        tkc_arena_free(&small);
        if (done)
            return;
        assert_int_equal(err.code, TINKC_E_MEMORY);
        if (strchr(err.message, '.') || strncmp(err.message, "strs", 4) == 0)
            fail_msg("%zu: %s", max, err.message);
    }
    fail_msg("it never fits");
}
