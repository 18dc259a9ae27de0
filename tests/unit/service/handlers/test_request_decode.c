/* test_request_decode.c - which model and number a request has that cannot be decoded, and fields that are not known. */
#include "codec/pb.h"
#include "service/chat/chat_state.h"
#include "service/handlers/request_decode.h"
#include "service/handlers/unknown_fields.h"
#include "service/worker/jobs.h"
#include "support/check.h"
#include "wire/train_message.h"

TEST(heads_of_json)
{
    static const struct {
        const char *body;
        bool ok;
        const char *model;
        int64_t seq; /* 0: none */
        bool whole;
    } rows[] = {
        { "{\"model_id\":\"m\",\"seq_id\":3}", true, "m", 3, true },
        { "{\"seq_id\":3,\"model_id\":\"m\",\"x\":[1,{}]}", true, "m", 3, true },
        { "{\"model_id\":\"m\"}", true, "m", 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":null}", true, "m", 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":\"3\"}", false, NULL, 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":3.5}", false, NULL, 0, false },
        { "{\"model_id\":7,\"seq_id\":3}", false, NULL, 0, true },
        { "{\"seq_id\":3}", false, NULL, 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":3,\"x\":[", true, "m", 3, false },
        { "{\"model_id\":\"m\",\"seq_id\":", false, NULL, 0, false },
        { "{\"model_id\":\"m\",\"x\":[", false, NULL, 0, false },
        { "{\"x\":[1,2],\"seq_id\":3,\"y\":", false, NULL, 0, false },
        { "[]", false, NULL, 0, false },
        { "", false, NULL, 0, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_head head;
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        bool ok = tke_read_head(&arena, tkc_str(rows[i].body), false, &head);
        if (ok != rows[i].ok || (ok && (!tkc_cstr_eq(head.model_id, rows[i].model) || head.whole != rows[i].whole ||
                                        (head.seq.is == TKC_GIVEN ? head.seq.value : 0) != rows[i].seq)))
            fail_msg("%s: %d %s %d", rows[i].body, ok, head.model_id, head.whole);
        tkc_arena_free(&arena);
    }
}

/* In protobuf; two models and two numbers, in a body that is whole and in one that is cut off. */
TEST(heads_of_protobuf)
{
    static const struct {
        const char *fields; /* 1 a model, 2 a number, 9 another field, ! the end of a broken body */
        bool ok;
        const char *model;
        int64_t seq;
        bool whole;
    } rows[] = {
        { "12", true, "m0", 1, true },   { "1212", true, "m2", 3, true }, { "1212!", true, "m0", 1, false },
        { "9129", true, "m1", 2, true }, { "1", true, "m0", 0, true },    { "1!", false, NULL, 0, false },
        { "2", false, NULL, 0, true },   { "2!", false, NULL, 0, false }, { "", false, NULL, 0, true },
        { "!", false, NULL, 0, false },  { "21!", true, "m1", 0, false }, { "9", false, NULL, 0, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char body[64], *at = body;
        for (int64_t n = 0; rows[i].fields[n]; n++) {
            char id[8], field = rows[i].fields[n];
            snprintf(id, sizeof id, "m%d", (int)n);
            if (field == '1')
                at = tkc_pb_put_bytes(at, 1, id, 2);
            else if (field == '2')
                at = tkc_pb_put_varint(tkc_pb_put_tag(at, 2, TKC_PB_VARINT), (uint64_t)n);
            else if (field == '9')
                at = tkc_pb_put_bytes(at, 9, "x", 1);
            else
                *at++ = 0x0a; /* a tag without its field */
        }
        tke_head head;
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        bool ok = tke_read_head(&arena, tkc_strn((const char *)body, (size_t)(at - body)), true, &head);
        if (ok != rows[i].ok || (ok && (!tkc_cstr_eq(head.model_id, rows[i].model) || head.whole != rows[i].whole ||
                                        (head.seq.is == TKC_GIVEN ? head.seq.value : 0) != rows[i].seq)))
            fail_msg("%s: %d %s %d %d", rows[i].fields, ok, head.model_id, head.whole, (int)head.seq.value);
        tkc_arena_free(&arena);
    }
}

/* ---- unknown fields ---- */

/* The first unknown member with a value, at any depth, up to where decoding fails. */
TEST(unknown_in_json)
{
    static const struct {
        const char *body, *unknown;
    } rows[] = {
        { "{}", NULL },
        { "7", NULL },
        { "[{\"a\":1}]", NULL },
        { "{\"model_id\":\"m\",\"seq_id\":1}", NULL },
        { "{\"a\":null,\"b\":false,\"c\":0,\"d\":0.0,\"e\":\"\",\"f\":[],\"g\":{}}", NULL },
        { "{\"a\":null,\"z\":1}", "z" },
        { "{\"a\":false,\"z\":1}", "z" },
        { "{\"a\":0,\"z\":1}", "z" },
        { "{\"a\":\"\",\"z\":1}", "z" },
        { "{\"a\":[],\"z\":1}", "z" },
        { "{\"a\":{},\"z\":1}", "z" },
        { "{\"type\":\"t\",\"z\":1}", "z" },
        { "{\"a\":true}", "a" },
        { "{\"a\":-1}", "a" },
        { "{\"a\":0.5}", "a" },
        { "{\"a\":\"x\"}", "a" },
        { "{\"a\":[null]}", "a" },
        { "{\"a\":{\"b\":null}}", "a" },
        { "{\"a\":1,\"b\":1}", "a" },
        { "{\"forward_backward_input\":7,\"z\":1}", NULL },
        { "{\"forward_backward_input\":{\"y\":1},\"z\":1}", "y" },
        { "{\"forward_backward_input\":{\"data\":[7,{\"y\":1}]}}", NULL },
        { "{\"forward_backward_input\":{\"data\":[{\"y\":1},7]}}", "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"model_input_spans\":[1],\"y\":1}]}}", "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"model_input\":{\"chunks\":[{\"y\":1}]}}]}}", "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"loss_fn_inputs\":{\"t\":{\"y\":1}}}]}}", "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"loss_fn_inputs\":{\"t\":{\"data\":[1],\"dtype\":"
          "\"int64\",\"shape\":[1],\"sparse_crow_indices\":null,\"sparse_col_indices\":null},"
          "\"u\":{\"y\":1}}}]}}",
          "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"model_input\":{\"chunks\":[{\"type\":\"image\","
          "\"tokens\":[1],\"data\":\"\",\"dmel\":\"\",\"format\":\"\",\"location\":\"\","
          "\"expected_tokens\":1},{\"y\":1}]}}]}}",
          "y" },
        { "{\"forward_backward_input\":{\"data\":[],\"loss_fn\":\"l\",\"loss_fn_config\":{\"y\":1}},"
          "\"z\":1}",
          "z" },
        { "{\"z\":1", "z" }, /* the decoder refuses it */
        { "{\"z\":", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        tkc_forward_backward_request read;
        const char *found;
        (void)tkc_forward_backward_from_json(tkc_str(rows[i].body), TINKC_E_UNPROCESSABLE, &arena, &read, &found,
                                             &(tinkc_error){ 0 });
        if (!tkc_cstr_eq(found, rows[i].unknown))
            fail_msg("%s: %s", rows[i].body, found ? found : "none");
        tkc_arena_free(&arena);
    }
}

/* A field of a message in that of the path before it: "313" is field 3 of field 1 of field 3. */
static size_t put_nested(unsigned char *out, const char *path)
{
    unsigned char inner[64];
    uint32_t field = (uint32_t)(path[0] - '0');
    if (!path[1])
        return (size_t)(tkc_pb_put_varint(tkc_pb_put_tag(out, field, TKC_PB_VARINT), 1) - out);
    size_t n = put_nested(inner, path + 1);
    return (size_t)(tkc_pb_put_bytes(out, field, inner, n) - out);
}

static bool bad_in(const unsigned char *body, size_t n, const tkc_numbers *config, char which[200])
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    bool found = tke_bad_field_in_pass(tkc_strn((const char *)body, n), config, &arena, which, 200, &err);
    assert_int_equal(err.code, 0);
    tkc_arena_free(&arena);
    return found;
}

TEST(unknown_in_protobuf)
{
    /* A path of fields; the last one is a varint. */
    static const struct {
        const char *path, *bad;
    } rows[] = {
        { "2", NULL },
        { "4", "the protobuf field 4 of the request has the wrong type" },
        { "7", "the protobuf field 7 of the request has the wrong type" },
        { "8", "this server does not know the protobuf field 8 of the request" },
        { "34", "the protobuf field 4 of a datum has the wrong type" },
        { "341", NULL }, /* where its tokens come from: harmless, not read */
        { "35", "this server does not know the protobuf field 5 of a datum" },
        { "313", "the protobuf field 3 of a chunk has the wrong type" },
        { "314", "this server does not know the protobuf field 4 of a chunk" },
        { "3111", "the protobuf field 1 of a text chunk has the wrong type" },
        { "3112", "this server does not know the protobuf field 2 of a text chunk" },
        { "3123", NULL },
        { "3124", "this server does not know the protobuf field 4 of an image" },
        { "3132", "this server does not know the protobuf field 2 of a dmel chunk" },
        { "322", "the protobuf field 2 of a loss input has the wrong type" },
        { "323", "this server does not know the protobuf field 3 of a loss input" },
        { "3223", NULL },
        { "3224", NULL }, /* a shape that is not packed */
        { "3225", "this server does not know the protobuf field 5 of a tensor" },
        { "32224", "this server does not know the protobuf field 4 of a sparse tensor" },
        { "39", "this server does not know the protobuf field 9 of a datum" },
        { "491", NULL }, /* an option of the pass has no fields */
        { "52", "the protobuf field 2 of loss_fn_config has the wrong type" },
        { "53", "this server does not know the protobuf field 3 of loss_fn_config" },
        { "73", "this server does not know the protobuf field 3 of loss_fn_config_v2" },
        { "721", "the protobuf field 1 of a value of loss_fn_config_v2 has the wrong type" },
        { "723", "this server does not know the protobuf field 3 of a value of loss_fn_config_v2" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char body[64];
        char which[200] = "";
        size_t n = put_nested(body, rows[i].path);
        bool found = bad_in(body, n, NULL, which);
        if (found != (rows[i].bad != NULL) || strcmp(which, rows[i].bad ? rows[i].bad : "") != 0)
            fail_msg("%s: %d '%s'", rows[i].path, found, which);
    }
}

/* Bytes that are given twice, or with others: a field that counts once, members that exclude each
 * other, names of maps. */
TEST(twice_in_protobuf)
{
#define D(low) "\x11\0\0\0\0\0\0\0" low /* field 2 or, in a value, 1 */
#define N(low) "\x09\0\0\0\0\0\0\0" low
#define TEN    "long-name-"
#define LONG   "\x12\x48\n\x46" TEN TEN TEN TEN TEN TEN TEN
    static const struct {
        const char *bytes;
        size_t n;
        const char *bad;
    } rows[] = {
#define ROW(bytes, bad) { bytes, sizeof bytes - 1, bad }
        ROW("\x10\x01\x10\x02", "the protobuf field 2 of the request is given twice, or with one that excludes it"),
        ROW("\x1a\x06\n\x04\n\0\x12\0", "the protobuf field 2 of a chunk is given twice, or with one that excludes it"),
        ROW("\x1a\x08\x12\x06\x12\x04\n\0\x12\0",
            "the protobuf field 2 of a tensor is given twice, or with one that excludes it"),
        ROW("\x3a\x10\n\x01k\x12\x0b" N("A") "\x12\0",
            "the protobuf field 2 of a value of loss_fn_config_v2 is given twice, or with one that "
            "excludes it"),
        ROW("\x1a\x02\n\0\x1a\x02\n\0", NULL), /* two data */
        ROW("\x2a\x0c\n\x01k" D("A") "\x2a\x0c\n\x01j" D("A"), NULL),
        ROW("\x2a\x0c\n\x01k" D("A") "\x2a\x0c\n\x01k" D("A"), "loss_fn_config has 'k' twice"),
        ROW("\x2a\x00\x2a\x00", "loss_fn_config has '' twice"),
        ROW("\x1a\x0a\x12\x03\n\x01w\x12\x03\n\x01w", "loss_fn_inputs has 'w' twice"),
        ROW("\x1a\x94\x01" LONG LONG, "loss_fn_inputs has '" TEN TEN TEN TEN TEN TEN "' twice"),
        ROW("\x1a\x05\x12\x03\n\x01w\x1a\x05\x12\x03\n\x01w", NULL), /* of two data */
        ROW("\x2a\x0c\n\x01k" D("A") "\x3a\x0e\n\x01k\x12\x09" N("A"), NULL),
        ROW("\x2a\x0c\n\x01k" D("A") "\x3a\x0e\n\x01k\x12\x09" N("B"),
            "loss_fn_config_v2 'k' differs from loss_fn_config"),
        ROW("\x3a\x0e\n\x01k\x12\x09" N("B"), "loss_fn_config_v2 'k' differs from loss_fn_config"),
        ROW("\x3a\x07\n\x01k\x12\x02\x12\0", NULL), /* a text */
        ROW("\x3a\x0e\n\x01\xff\x12\x09" N("B"), "loss_fn_config_v2 '' differs from loss_fn_config"),
        ROW("\x2a\x0c\n\x01k" D("A") "\x3a\x0e\n\x01k\x12\x09" N("A") "\x3a\x0e\n\x01k\x12\x09" N("A"),
            "loss_fn_config has 'k' twice"),
    };
    static const char *const names[] = { "k" };
    double value = 0;
    memcpy(&value, "\0\0\0\0\0\0\0A", sizeof value);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char which[200] = "";
        const bool has_config = rows[i].bytes[0] == '\x2a' && rows[i].bytes[1];
        const tkc_numbers config = { names, &value, has_config };
        bool found = bad_in((const unsigned char *)rows[i].bytes, rows[i].n, &config, which);
        if (found != (rows[i].bad != NULL) || strcmp(which, rows[i].bad ? rows[i].bad : "") != 0)
            fail_msg("%zu: %d '%s'", i, found, which);
    }
    /* A request with more names than any loss has is refused elsewhere, without comparing them all. */
    static const char *others[65];
    static double values[65];
    for (size_t len = 64; len <= 65; len++) {
        static const char v2[] = "\x3a\x0e\n\x01k\x12\x09" N("B");
        char which[200] = "";
        for (size_t i = 0; i < len; i++)
            others[i] = "other";
        const tkc_numbers config = { others, values, len };
        assert_int_equal(bad_in((const unsigned char *)v2, sizeof v2 - 1, &config, which), len == 64);
    }
}

/* One that an earlier version took and stored runs as it did then. */
TEST(a_stored_load_may_have_an_access_token)
{
    static const char body[] = "{\"model_id\":\"m\",\"seq_id\":1,\"path\":\"tinker://a/weights/b\","
                               "\"optimizer\":true,\"weights_access_token\":\"t\"}";
    for (int replayed = 0; replayed < 2; replayed++) {
        tinkc_error err = { 0 };
        const char *model_id = NULL;
        tkc_opt_i64 seq = { 0 };
        tke_job job = { .kind = TKE_JOB_LOAD, .replayed = replayed };
        tkc_arena_init(&job.arena, NULL, 0);
        assert_true(tke_decode_job(&job, tkc_str(body), false, false, &model_id, &seq, &err));
        assert_int_equal(job.invalid.code, replayed ? 0 : TINKC_E_BAD_REQUEST);
        tkc_arena_free(&job.arena);
    }
}

/* With any limit of memory a request is decoded and checked, or fails: never decoded and unchecked. */
TEST(a_check_without_memory_fails)
{
    enum { ENTRIES = 300, STEP = 512, MOST = 1 << 17 };
    static char body[ENTRIES * 16] = "\n\x01m\x10\x01";
    size_t n = 5, n_failed = 0, n_decoded = 0;
    for (int i = 0; i < ENTRIES; i++) {
        static const char entry[] = "\x2a\x0d\n\x02"
                                    "ab" D("A");
        memcpy(body + n, entry, sizeof entry - 1);
        body[n + 4] = (char)('a' + i % 20);
        body[n + 5] = (char)('a' + i / 20);
        n += sizeof entry - 1;
    }
    for (size_t max = STEP; max <= MOST; max += STEP) {
        tinkc_error err = { 0 };
        const char *model_id = NULL;
        tkc_opt_i64 seq = { 0 };
        tke_job job = { .kind = TKE_JOB_PASS };
        tkc_arena_init(&job.arena, NULL, max);
        bool ok = tke_decode_job(&job, tkc_strn(body, n), true, false, &model_id, &seq, &err);
        assert_int_equal(ok, err.code == 0);
        n_decoded += ok;
        n_failed += !ok;
        tkc_arena_free(&job.arena);
    }
    assert_true(n_failed && n_decoded);
}

/* What a tokenizer without a chat template leaves out is said when the prompt is made. */
TEST(messages_without_a_template_are_kept)
{
    static const char text[] = "[{\"role\":\"user\",\"content\":\"a\",\"weight\":1}]";
    static const char *const templates[] = { NULL, "{{ weight }}", "{{ content }}" };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        tkc_arena arena;
        tkc_buf out;
        tkc_arena_init(&arena, NULL, 0);
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        bool ok = tke_openai_messages(tkc_str(text), templates[i], &arena, &out, &err);
        assert_int_equal(ok, i < 2);
        assert_int_equal(err.code, i < 2 ? 0 : TINKC_E_BAD_REQUEST);
        if (ok)
            assert_true(tkc_str_is(tkc_buf_view(&out), text));
        tkc_buf_free(&out);
        tkc_arena_free(&arena);
    }
}
