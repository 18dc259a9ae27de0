/* Protobuf that is damaged or unusual, at every level of each message: what is refused, with which
 * words, and what is read out of the rest.
 *
 * Bytes are written as hex digits; {...} is a length and what has that length, '...' is text. */
#include "support/check.h"
#include "support/scratch.h"

#include "wire/sample_message.h"
#include "wire/tensor.h"

/* ---- the notation ---- */

static const char *assemble(const char *at, tkc_buf *to)
{
    static const char hex[] = "0123456789abcdef";
    tinkc_error err = { 0 };
    while (*at && *at != '}') {
        if (*at == '{') {
            tkc_buf inner;
            tkc_buf_init(&inner, NULL, TKC_BUF_NO_MAX);
            at = assemble(at + 1, &inner) + 1;
            assert_true(inner.len < 128); /* a length of one byte */
            tkc_buf_char(to, (char)inner.len, &err);
            tkc_buf_add(to, inner.data, inner.len, &err);
            tkc_buf_free(&inner);
        } else if (*at == '\'') {
            size_t n = strcspn(at + 1, "'");
            tkc_buf_add(to, at + 1, n, &err);
            at += n + 2;
        } else if (*at == ' ') {
            at++;
        } else {
            tkc_buf_char(to, (char)((strchr(hex, at[0]) - hex) * 16 + (strchr(hex, at[1]) - hex)), &err);
            at += 2;
        }
    }
    assert_ok(err);
    return at;
}

/* The bytes on a piece of the heap that is no longer than they are. */
static tinkc_bytes bytes_of(const char *notation)
{
    tkc_buf text;
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    assemble(notation, &text);
    tinkc_bytes made = { (const unsigned char *)exact_copy(text.data, text.len), text.len };
    tkc_buf_free(&text);
    return made;
}

/* Reads it and writes what was read as JSON, into `out`. */
typedef bool reader(tinkc_bytes, tinkc_error *);

static bool request(tinkc_bytes b, tinkc_error *err)
{
    tkc_forward_backward_request r;
    bool done = tkc_forward_backward_from_pb(b, TINKC_E_UNPROCESSABLE, &arena, &r, err);
    assert_int_equal(done, err->code == 0);
    return done && tkc_forward_backward_to_json(&r, &out, err);
}

static bool output(tinkc_bytes b, tinkc_error *err)
{
    tkc_forward_backward_output o;
    bool done = tkc_output_from_pb(b, &arena, &o, err);
    assert_int_equal(done, err->code == 0);
    for (size_t i = 0; done && i < o.records.len; i++)
        assert_non_null(o.records.data[i].type_tag);
    return done && tkc_output_to_json(&o, &out, err);
}

static bool sample(tinkc_bytes b, tinkc_error *err)
{
    tkc_sample_response r;
    bool done = tkc_sample_response_from_pb(b, &arena, &r, err);
    assert_int_equal(done, err->code == 0);
    if (!done)
        return false;
    assert_true(r.topk.ids.len == (size_t)r.topk.k * r.topk.rows && r.topk.logprobs.len == r.topk.ids.len);
    return tkc_sample_response_to_json(&r, &out, err);
}

typedef struct row {
    const char *bytes, *want; /* JSON, or the words after the name of the message */
} row;

static void check_rows(const row *rows, size_t n, reader *read, const char *what, int32_t code)
{
    for (size_t i = 0; i < n; i++) {
        tinkc_error err = { 0 };
        char want[300];
        tinkc_bytes bytes = bytes_of(rows[i].bytes);
        tkc_buf_clear(&out);
        bool good = read(bytes, &err);
        (void)snprintf(want, sizeof want, "%s%s%s", good ? "" : what, good ? "" : ": ", rows[i].want);
        const char *got = good ? tkc_buf_terminate(&out, &err) : err.message;
        if (strcmp(got, want) != 0)
            fail_msg("%s\nis     %s\nwanted %s", rows[i].bytes, got, want);
        assert_int_equal(err.code, good ? 0 : code);
        free_copy((char *)(uintptr_t)bytes.data, bytes.len);
        tkc_arena_reset(&arena);
    }
}

#define MALFORMED "malformed protobuf"
#define TEXT      "text that is not UTF-8 or has a NUL in it"
#define ODD       "an array of 32-bit numbers of odd length"

/* ---- requests of passes ---- */

/* A request whose only datum holds `chunks` and `inputs`. */
#define REQUEST(chunks, inputs)                                                                                        \
    "{\"model_id\":\"\",\"forward_backward_input\":{\"data\":[{\"model_input\":{\"chunks\":"                           \
    "[" chunks "]},\"loss_fn_inputs\":{" inputs "}}],\"loss_fn\":\"\"}}"

TEST_WITH(damaged_requests_are_refused, set_up, tear_down)
{
    static const row rows[] = {
        { "ff", MALFORMED },
        { "0a{'m'}ff", MALFORMED },
        { "0a{ff}", TEXT },
        { "0a{'a'00'b'}", TEXT },
        { "22{ff}", TEXT },
        { "22{00}", TEXT },
        { "1a{ff}", MALFORMED },
        { "1a{0a{ff}}", MALFORMED },
        { "1a{0a{0a{ff}}}", MALFORMED },
        { "1a{0a{12{ff}}}", MALFORMED },
        { "1a{0a{12{12{ff}}}}", TEXT },
        { "1a{0a{1a{ff}}}", MALFORMED },
        { "1a{0a{0a{0a{010203}}}}", ODD },
        { "1a{0a{0a{0a{0102030405}}}}", ODD },
        { "1a{0a{}}", "a chunk of no known kind" },
        { "1a{0a{} 0a{0a{}}}", "a chunk of no known kind" }, /* though the next one is fine */
        { "1a{0a{} 0a{}}", "a chunk of no known kind" },
        { "1a{12{ff}}", MALFORMED },
        { "1a{12{0a{ff}}}", TEXT },
        { "1a{12{0a{'a'} 12{ff}}}", MALFORMED },
        { "1a{12{0a{'a'} 12{12{ff}}}}", MALFORMED },
        { "1a{12{0a{'a'} 12{22{ff}}}}", MALFORMED }, /* its shape */
        { "2a{ff}", MALFORMED },
        { "2a{0a{ff}}", TEXT },
        { "2a{0a{'a'00}}", TEXT },
        { "1a{ff} 1a{}", MALFORMED },
        { "", "{\"model_id\":\"\",\"forward_backward_input\":{\"data\":[],\"loss_fn\":\"\"}}" },
        /* members of another wire type, and unknown ones, mean nothing */
        { "0807 1207 2007 2807 32{'x'} 3807 42{ff}",
          "{\"model_id\":\"\",\"forward_backward_input\":{\"data\":[],\"loss_fn\":\"\"}}" },
        { "1005 3001", "{\"model_id\":\"\",\"seq_id\":5,\"forward_input\":{\"data\":[],\"loss_fn\":\"\"}}" },
        { "3000", "{\"model_id\":\"\",\"forward_backward_input\":{\"data\":[],\"loss_fn\":\"\"}}" },
        { "1a{}", REQUEST("", "") },
        { "1a{08071007}", REQUEST("", "") },
        { "1a{1a{ff}}", REQUEST("", "") },
        { "1a{0a{0a{}}}", REQUEST("{\"tokens\":[],\"type\":\"encoded_text\"}", "") },
        { "1a{0a{0a{0a{01000000}}}}", REQUEST("{\"tokens\":[1],\"type\":\"encoded_text\"}", "") },
        { "1a{0a{0a{0a{01000000} 0a{02000000}}}}", /* the last counts */
          REQUEST("{\"tokens\":[2],\"type\":\"encoded_text\"}", "") },
        { "1a{0a{0a{0805 12{ff}}}}", REQUEST("{\"tokens\":[],\"type\":\"encoded_text\"}", "") },
        { "1a{0a{12{0a{'x'} 12{'png'} 1800}}}",
          REQUEST("{\"data\":\"eA==\",\"format\":\"png\",\"expected_tokens\":0,\"type\":\"image\"}", "") },
        { "1a{0a{12{0807 1007 1a{ff}}}}", REQUEST("{\"data\":\"\",\"format\":\"\",\"type\":\"image\"}", "") },
        { "1a{0a{1a{0a{'x'} 12{ff}}}}", REQUEST("{\"dmel\":\"eA==\",\"type\":\"dmel\"}", "") },
        { "1a{0a{1a{0807}}}", REQUEST("{\"dmel\":\"\",\"type\":\"dmel\"}", "") },
        { "1a{12{0a{'a'} 12{0a{0000803f} 1801}}}", REQUEST("", "\"a\":{\"data\":[1.0],\"dtype\":\"float32\"}") },
        { "1a{12{0a{'a'} 12{0a{0000803f} 1801 22{01}}}}",
          REQUEST("", "\"a\":{\"data\":[1.0],\"dtype\":\"float32\",\"shape\":[1]}") },
        { "1a{12{0a{'a'} 12{0a{0000803f} 1801 2001 2001}}}", /* a shape that is not packed */
          REQUEST("", "\"a\":{\"data\":[1.0],\"dtype\":\"float32\",\"shape\":[1,1]}") },
        { "1a{12{0a{'a'} 12{0a{0000803f} 1801 22{01} 2001 22{0101}}}}",
          REQUEST("", "\"a\":{\"data\":[1.0],\"dtype\":\"float32\",\"shape\":[1,1,1,1]}") },
        { "1a{12{12{1801}}}", REQUEST("", "\"\":{\"data\":[],\"dtype\":\"float32\"}") },
        { "1a{12{0a{'a'} 12{1801}} 12{0a{'a'} 12{1802}}}", /* the last of a name counts */
          REQUEST("", "\"a\":{\"data\":[],\"dtype\":\"int64\"}") },
        { "1a{12{0a{'a'} 12{1801} 12{1802}}}", REQUEST("", "\"a\":{\"data\":[],\"dtype\":\"int64\"}") },
        /* sparse: values, row pointers, columns; other members and wire types mean nothing */
        { "1a{12{0a{'a'} 12{12{0a{0000803f} 12{00000000000000000100000000000000}"
          " 1a{0000000000000000}} 1801 22{0101}}}}",
          REQUEST("", "\"a\":{\"data\":[1.0],\"dtype\":\"float32\",\"shape\":[1,1],"
                      "\"sparse_crow_indices\":[0,1],\"sparse_col_indices\":[0]}") },
        { "1a{12{0a{'a'} 12{12{0a{0000803f} 0807 1007 1807 2007 22{0000}} 1801}}}",
          REQUEST("", "\"a\":{\"data\":[1.0],\"dtype\":\"float32\",\"shape\":[],"
                      "\"sparse_crow_indices\":[],\"sparse_col_indices\":[]}") },
        { "1a{12{0a{'a'} 12{12{} 0a{0000803f} 1801}}}", /* dense after sparse */
          REQUEST("", "\"a\":{\"data\":[1.0],\"dtype\":\"float32\"}") },
        { "2a{0a{'x'} 11000000000000e03f}",
          "{\"model_id\":\"\",\"forward_backward_input\":{\"data\":[],\"loss_fn\":\"\","
          "\"loss_fn_config\":{\"x\":0.5}}}" },
        { "2a{0a{'x'} 11000000000000e03f} 2a{0a{'y'}}",
          "{\"model_id\":\"\",\"forward_backward_input\":{\"data\":[],\"loss_fn\":\"\","
          "\"loss_fn_config\":{\"x\":0.5,\"y\":0.0}}}" },
        { "2a{0a{'x'}} 2a{1007 0a{'y'}} 2a{}", /* without a number: 0 */
          "{\"model_id\":\"\",\"forward_backward_input\":{\"data\":[],\"loss_fn\":\"\","
          "\"loss_fn_config\":{\"x\":0.0,\"y\":0.0,\"\":0.0}}}" },
    };
    check_rows(rows, sizeof rows / sizeof *rows, request, "forward_backward request", TINKC_E_UNPROCESSABLE);
}

/* What a tensor without type, or one that is cut inside an element, is called when it is checked. */
TEST_WITH(tensors_of_requests, set_up, tear_down)
{
    static const row rows[] = {
        { NULL, "x: its element type is not known" }, /* no tensor at all */
        { "", "x: its element type is not known" },
        { "0a{01}", "x: its element type is not known" },
        { "0a{01} 1805", "x: its element type is not known" },
        { "0a{0102} 1804", "" },
        { "0a{010203} 1804", "x: its length in bytes is not a multiple of the element size" },
        { "0a{01020304} 1802", "x: its length in bytes is not a multiple of the element size" },
        { "0a{0000803f} 1801 22{02}", "x: its shape does not fit the number of its elements" },
        { "0a{0000803f} 1801 22{ffffffffffffffffff01}", "x: its shape is negative or too large" },
        { "12{0a{0000803f} 12{00} 1a{}} 1801 22{0101}",
          "x: its length in bytes is not a multiple of the element size" },
        { "12{0a{0000803f} 12{} 1a{00}} 1801 22{0101}",
          "x: its length in bytes is not a multiple of the element size" },
        { "12{0a{00803f} 12{} 1a{}} 1801 22{0101}", "x: its length in bytes is not a multiple of the element size" },
        { "12{0a{0000803f} 12{} 1a{}} 1801 22{0101}", "x: it needs one row pointer more than rows" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request r;
        char text[200];
        bool given = rows[i].bytes != NULL;
        (void)snprintf(text, sizeof text, "1a{12{0a{'x'}%s%s%s}}", given ? " 12{" : "", given ? rows[i].bytes : "",
                       given ? "}" : "");
        tinkc_bytes bytes = bytes_of(text);
        tkc_forward_backward_from_pb(bytes, TINKC_E_UNPROCESSABLE, &arena, &r, &err);
        assert_ok(err);
        tkc_tensor_check(&r.data.data[0].inputs.data[0].tensor, "x", &err);
        if (strcmp(err.message, rows[i].want) != 0)
            fail_msg("%s: %s", text, err.message);
        free_copy((char *)(uintptr_t)bytes.data, bytes.len);
    }
}

/* Few names are compared with each other, many are hashed: around the change the last of each counts. */
TEST_WITH(names_that_come_twice, set_up, tear_down)
{
    for (size_t n = 1; n < 40; n++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request r;
        char text[2000] = "";
        for (size_t i = 0; i < n; i++) /* the names 0 to 4, over and over; the value is the place */
            (void)snprintf(text + strlen(text), 60, "2a{0a{'%zu'} 11%02zx00000000000000}", i % 5, i);
        tinkc_bytes bytes = bytes_of(text);
        tkc_forward_backward_from_pb(bytes, TINKC_E_UNPROCESSABLE, &arena, &r, &err);
        assert_ok(err);
        assert_int_equal(r.loss_fn_config.len, n < 5 ? n : 5);
        for (size_t k = 0; k < r.loss_fn_config.len; k++) {
            size_t place = (n < 5 ? 0 : n - 5) + k;
            uint64_t bits;
            memcpy(&bits, &r.loss_fn_config.values[k], sizeof bits);
            assert_int_equal(bits, place);
            assert_int_equal(r.loss_fn_config.names[k][0], '0' + (int)(place % 5));
        }
        free_copy((char *)(uintptr_t)bytes.data, bytes.len);
        tkc_arena_reset(&arena);
    }
}

/* So many names that to compare each with each would take minutes. */
TEST_WITH(very_many_names, set_up, tear_down)
{
    enum { N = 100000 };
    tinkc_error err = { 0 };
    tkc_forward_backward_request r;
    tkc_buf_clear(&out);
    for (int i = 0; i < N; i++) {
        char name[12];
        (void)snprintf(name, sizeof name, "%06d", i);
        tkc_buf_add(&out, "\x2a\x08\x0a\x06", 4, &err);
        tkc_buf_add(&out, name, 6, &err);
    }
    assert_ok(err);
    tkc_forward_backward_from_pb((tinkc_bytes){ (const void *)out.data, out.len }, TINKC_E_UNPROCESSABLE, &arena, &r,
                                 &err);
    assert_ok(err);
    assert_int_equal(r.loss_fn_config.len, N);
    assert_string_equal(r.loss_fn_config.names[N - 1], "099999");
}

/* ---- results of passes ---- */

#define OFFSETS_0_4 "12{00000000000000000400000000000000}"
#define OFFSETS_0_8 "12{00000000000000000800000000000000}"

TEST_WITH(damaged_outputs_are_refused, set_up, tear_down)
{
    static const char unfit[] = "a tensor that its trailing shape does not fit";
    static const char offsets[] = "offsets that fall, lead outside or cut an element";
    static const char many[] = "a number of datums that cannot be";
    static const row rows[] = {
        { "ff", MALFORMED },
        { "0a{'m'}ff", MALFORMED },
        { "0a{ff}", TEXT },
        { "0a{ff} 12{1801}", TEXT },
        { "12{ff}", MALFORMED },
        { "12{ff} 12{}", MALFORMED },
        { "12{0a{ff}}", TEXT },
        { "12{12{ff}}", MALFORMED },
        { "12{12{0a{ff}}}", TEXT },
        { "12{12{0a{'a'}}}", "an output without tensor" },
        { "12{12{0a{'a'} 1007}}", "an output without tensor" },
        { "12{12{0a{'a'}} 12{0a{'b'}}}", "an output without tensor" },
        { "12{12{0a{'a'} 12{ff}}}", MALFORMED },
        { "12{12{0a{'a'} 12{1801 22{ff}}}}", MALFORMED },
        { "12{12{0a{'a'} 12{}}}", "an element type that is not known" },
        { "12{12{0a{'a'} 12{1805}}}", "an element type that is not known" },
        { "12{12{0a{'a'} 12{1801 12{00}}}}", "offsets: the length is not a multiple of 8 bytes" },
        { "12{12{0a{'a'} 12{1801}} 1801}", "as many offsets as datums and one more are needed" },
        { "12{12{0a{'a'} 12{1801}}}", "as many offsets as datums and one more are needed" },
        { "12{12{0a{'a'} 12{0a{0000803f} " OFFSETS_0_8 " 1801}}}", offsets },
        { "12{12{0a{'a'} 12{0a{0000803f0000803f} " OFFSETS_0_8 " 1801 22{02}}}}",
          "{\"loss_fn_output_type\":\"\",\"loss_fn_outputs\":[{\"a\":{\"data\":[1.0,1.0],\"dtype\":"
          "\"float32\",\"shape\":[1,2]}}],\"metrics\":{}}" },
        { "12{12{0a{'a'} 12{0a{0000803f0000803f} " OFFSETS_0_4 " 1801 22{02}}}}", unfit },
        { "12{12{0a{'a'} 12{0a{0000803f0000803f} " OFFSETS_0_8 " 1801 22{04}}}}", unfit },
        { "12{12{0a{'a'} 12{0a{0000803f} " OFFSETS_0_4 " 1801 22{ffffffffffffffffff01}}}}",
          "a trailing shape that is negative or too large" },
        { "12{12{0a{'a'} 12{0a{0000803f} " OFFSETS_0_4 " 1801 22{00}}}}", /* rows of no elements */
          "{\"loss_fn_output_type\":\"\",\"loss_fn_outputs\":[{\"a\":{\"data\":[1.0],\"dtype\":"
          "\"float32\",\"shape\":[0,0]}}],\"metrics\":{}}" },
        { "12{18ffffffffffffffffff01}", many },
        { "12{1881808008}", many },
        { "12{1801} 12{1880808008}", many },
        { "12{12{0a{'a'} 12{" OFFSETS_0_4 " 0a{0000803f} 1801}}} 12{}", "records with different fields" },
        { "12{12{0a{'a'} 12{" OFFSETS_0_4 " 0a{0000803f} 1801}}}"
          " 12{12{0a{'b'} 12{" OFFSETS_0_4 " 0a{0000803f} 1801}}}",
          "records with different fields" },
        { "12{12{0a{'a'} 12{" OFFSETS_0_4 " 0a{0000803f} 1801}}}"
          " 12{12{0a{'a'} 12{" OFFSETS_0_8 " 0a{0000803f} 1801}}}",
          offsets },
        { "12{12{0a{'a'} 12{" OFFSETS_0_4 " 0a{0000803f} 1801}} 1801}" /* one record says 1, so 0 is meant */
          " 12{12{0a{'a'} 12{" OFFSETS_0_4 " 0a{0000803f} 1801}}}",
          "as many offsets as datums and one more are needed" },
        { "1a{ff}", MALFORMED },
        { "1a{0a{ff}}", TEXT },
        { "", "{\"loss_fn_output_type\":\"ArrayRecord\",\"loss_fn_outputs\":[],\"metrics\":{}}" },
        { "0a{'a:b'}", "{\"loss_fn_output_type\":\"a:b\",\"loss_fn_outputs\":[],\"metrics\":{}}" },
        { "0a{'a:b:c'} 12{}", "{\"loss_fn_output_type\":\"c\",\"loss_fn_outputs\":[],\"metrics\":{}}" },
        { "12{1801} 12{}", "{\"loss_fn_output_type\":\"\",\"loss_fn_outputs\":[{}],\"metrics\":{}}" },
        { "12{12{0a{'a'} 12{1801 " OFFSETS_0_4 " 0a{0000803f}}} 1801}",
          "{\"loss_fn_output_type\":\"\",\"loss_fn_outputs\":[{\"a\":{\"data\":[1.0],\"dtype\":"
          "\"float32\","
          "\"shape\":[1]}}],\"metrics\":{}}" },
        { "0807 1007 1807 12{0807 1007 1a{ff} 22{ff}} 22{ff}",
          "{\"loss_fn_output_type\":\"\",\"loss_fn_outputs\":[],\"metrics\":{}}" },
        { "1a{0a{'x'} 11000000000000e03f}", "{\"loss_fn_output_type\":\"ArrayRecord\",\"loss_fn_"
                                            "outputs\":[],\"metrics\":{\"x\":0.5}}" },
    };
    check_rows(rows, sizeof rows / sizeof *rows, output, "forward_backward result", TINKC_E_BAD_RESPONSE);
}

/* ---- samples ---- */

#define NOTHING_MORE ",\"prompt_cache_hit_tokens\":0}"

TEST_WITH(damaged_samples_are_refused, set_up, tear_down)
{
    static const char short_topk[] = "top-k matrices shorter than they say";
    static const row rows[] = {
        { "ff", MALFORMED },
        { "0a{0801}ff", MALFORMED },
        { "0a{ff}", MALFORMED },
        { "0a{ff} 0a{0801}", MALFORMED },
        { "0a{12{010203}}", ODD },
        { "0a{1a{010203}}", ODD },
        { "0a{22{ff}}", MALFORMED },
        { "0a{22{ff} 0801}", MALFORMED },
        { "12{010203}", ODD },
        { "1a{ff}", MALFORMED },
        { "2a{ff}", MALFORMED },
        { "2a{0a{01} 1807}", "a tensor of an unknown type" },
        { "32{ff}", MALFORMED },
        { "32{0a{ff}}", MALFORMED },
        { "32{12{ff}}", MALFORMED },
        { "32{0a{ff} 12{1801}}", MALFORMED },
        /* 2 rows of 2: both matrices must have 4 cells */
        { "1a{0a{01000000020000000300000004000000} 12{000080bf000000c0000040c0} 1802 2002}", short_topk },
        { "1a{0a{010000000200000003000000} 12{000080bf000000c0000040c0000080c0} 1802 2002}", short_topk },
        { "1a{0a{01000000} 12{000080bf} 1802 2002}", short_topk },
        { "1a{0a{01000000020000000300000004000000} 12{000080bf000000c0000040c0000080c0} 1802 2002}",
          "{\"sequences\":[],\"topk_prompt_logprobs\":[[[1,-1.0],[2,-2.0]],[[3,-3.0],[4,-4.0]]"
          "]" NOTHING_MORE },
        /* cells beyond those are left out */
        { "1a{0a{0100000002000000} 12{000080bf000000c0} 1801 2001}",
          "{\"sequences\":[],\"topk_prompt_logprobs\":[[[1,-1.0]]]" NOTHING_MORE },
        /* no rows, or rows of nothing: none at all */
        { "1a{0a{01000000} 12{000080bf} 1801}", "{\"sequences\":[]" NOTHING_MORE },
        { "1a{0a{01000000} 12{000080bf} 2001}", "{\"sequences\":[]" NOTHING_MORE },
        { "1a{0807 1007 1a{ff} 22{ff}}", "{\"sequences\":[]" NOTHING_MORE },
        { "", "{\"sequences\":[]" NOTHING_MORE },
        { "0a{}", "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[]}]" NOTHING_MORE },
        { "0a{0801} 0a{12{01000000}}", "{\"sequences\":[{\"stop_reason\":\"length\",\"tokens\":[]},"
                                       "{\"stop_reason\":\"stop\",\"tokens\":[1]}]" NOTHING_MORE },
        { "0a{1a{}}", "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[]}]" NOTHING_MORE },
        { "0a{0a{ff} 1007 1807 2007}", "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[]}]" NOTHING_MORE },
        { "12{}", "{\"sequences\":[]" NOTHING_MORE },
        { "12{000080bf}", "{\"sequences\":[],\"prompt_logprobs\":[-1.0]" NOTHING_MORE },
        { "2005", "{\"sequences\":[],\"prompt_cache_hit_tokens\":5}" },
        { "2a{}", "{\"sequences\":[]" NOTHING_MORE },
        { "2a{0a{000080bf} 1801}", "{\"sequences\":[],\"target_prompt_logprobs\":{\"data\":[-1.0],"
                                   "\"dtype\":\"float32\"}" NOTHING_MORE },
        { "32{0a{0a{0100000000000000} 1802} 12{0a{000080bf} 1801}}",
          "{\"sequences\":[],\"prompt_alt_tokens\":{\"tokens\":{\"data\":[1],\"dtype\":\"int64\"},"
          "\"logprobs\":{\"data\":[-1.0],\"dtype\":\"float32\"}}" NOTHING_MORE },
        { "0807 1007 1807 22{ff} 2807 3007 3a{ff}", "{\"sequences\":[]" NOTHING_MORE },
    };
    check_rows(rows, sizeof rows / sizeof *rows, sample, "sample result", TINKC_E_BAD_RESPONSE);
    /* A stop reason that has no name is read, but cannot be written as JSON. */
    tinkc_error err = { 0 };
    tinkc_bytes bytes = bytes_of("0a{0807}");
    assert_false(sample(bytes, &err));
    assert_string_equal(err.message, "a stop reason without name");
    free_copy((char *)(uintptr_t)bytes.data, bytes.len);
}

/* A reader that is called after a failure leaves the failure as it is, and its result empty. */
TEST_WITH(after_a_failure, set_up, tear_down)
{
    tinkc_error err = { 0 };
    tkc_fail(&err, TINKC_E_STATE, "before");
    tkc_forward_backward_request r;
    tkc_forward_backward_output o;
    tkc_sample_response s;
    memset(&r, 0x55, sizeof r);
    memset(&o, 0x55, sizeof o);
    memset(&s, 0x55, sizeof s);
    tinkc_bytes bytes = bytes_of("0a{'m'}");
    assert_false(tkc_forward_backward_from_pb(bytes, TINKC_E_UNPROCESSABLE, &arena, &r, &err));
    assert_false(tkc_output_from_pb(bytes, &arena, &o, &err));
    assert_false(tkc_sample_response_from_pb(bytes, &arena, &s, &err));
    assert_true(r.data.len == 0 && o.records.len == 0 && s.sequences.len == 0);
    memset(&r, 0x55, sizeof r);
    memset(&o, 0x55, sizeof o);
    memset(&s, 0x55, sizeof s);
    assert_false(tkc_forward_backward_from_json(tkc_str("{"), TINKC_E_UNPROCESSABLE, &arena, &r, NULL, &err));
    assert_false(tkc_output_from_json(tkc_str("{"), &arena, &o, &err));
    assert_false(tkc_sample_response_from_json(tkc_str("{"), &arena, &s, &err));
    assert_true(r.data.len == 0 && o.records.len == 0 && s.sequences.len == 0);
    assert_string_equal(err.message, "before");
    free_copy((char *)(uintptr_t)bytes.data, bytes.len);
}
