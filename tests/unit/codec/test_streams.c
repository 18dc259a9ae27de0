/* Event streams, zstd, protobuf's wire form, retry headers, dates, tokens, audio heads. */
#include "support/check.h"
#include "support/ledger.h"
#include "support/scratch.h"

#include "base/clock.h"
#include "codec/dmel.h"
#include "codec/jwt.h"
#include "codec/pb.h"
#include "codec/retry.h"
#include "codec/sse.h"
#include "codec/zstd.h"

#include <zstd.h>

/* ---- event streams ---- */

/* All events of a stream as "event|data|id|retry;" */
static void collect(tinkc_sse_parser *p, tkc_buf *to, tinkc_error *err)
{
    const tinkc_sse *e;
    while ((e = tinkc_sse_next(p, err))) {
        assert_int_equal(strlen(e->data), e->data_len);
        tkc_buf_printf(to, err, "%s|%s|%s|%lld;", e->event, e->data, e->id, (long long)e->retry_ms);
    }
}

/* The same whatever the size of the pieces. */
static void assert_events(const char *text, size_t len, const char *want)
{
    for (size_t piece = 1; piece <= len; piece++) {
        tinkc_error err = { 0 };
        tinkc_sse_parser *p = tinkc_sse_new(0, NULL, &err);
        tkc_buf_clear(&out);
        for (size_t at = 0; at < len; at += piece) {
            size_t n = len - at < piece ? len - at : piece;
            tinkc_sse_feed(p, text + at, n, &err);
            collect(p, &out, &err);
        }
        assert_true(tkc_sse_end(p, false, &err));
        collect(p, &out, &err);
        tinkc_sse_free(p);
        assert_ok(err);
        assert_str(tkc_buf_view(&out), want);
    }
}

#define EVENTS(text, want) assert_events(text, sizeof(text) - 1, want)

TEST(events_of_the_description)
{
    EVENTS("data: a\r\n\r\ndata: b\r\n\r\n", "|a||-1;|b||-1;");
    EVENTS("data: a\rdata: b\r\r", "|a\nb||-1;");
    EVENTS("data: a\r\ndata: b\r\n\r\n", "|a\nb||-1;");
    EVENTS("data: a\n\r\ndata: b\n\n", "|a||-1;|b||-1;");
    EVENTS("data: a\n", "");
    EVENTS("data: \xE2\x82\xAC\n\n", "|\xE2\x82\xAC||-1;");
    EVENTS("event: ping\n\n", "ping|||-1;");
    EVENTS("id: 1\ndata: x\n\n\n\n: c\n\n", "|x|1|-1;");
    EVENTS("id: a\0b\ndata: x\n\n", "|x||-1;");
    EVENTS("id: 1\ndata: x\n\nid\ndata: y\n\n", "|x|1|-1;|y||-1;");
    EVENTS("retry: 10\n\n", "");
    EVENTS("retry: 10\n\ndata: q\n\n", "|q||10;");
    EVENTS("retry: abc\ndata: q\n\n", "|q||-1;");
    EVENTS("retry: 9223372036854775807\ndata: q\n\n", "|q||9223372036854775807;");
    EVENTS("retry: 9223372036854775808\ndata: q\n\n", "|q||-1;");
    EVENTS("retry: -5\ndata: q\n\n", "|q||-1;");
    EVENTS("data:a:b\ndata:  two\ndata\n\n", "|a:b\n two\n||-1;");
    EVENTS("data: a\vb\xE2\x80\xA8"
           "c\n\n",
           "|a\vb\xE2\x80\xA8"
           "c||-1;");
    EVENTS("\xEF\xBB\xBF"
           "data: x\n\n",
           "|x||-1;");
    EVENTS("\xEF\xBB\xBF\n\xEF\xBB\xBF"
           "data: x\n\n",
           "");
    EVENTS("\xEF\xBB\xBF\ndata: x\n\n", "|x||-1;");
    EVENTS("\ndata: x\n\n", "|x||-1;");
    EVENTS("abc\n\ndata: y\n\n", "|y||-1;");
    EVENTS("id\ndata: y\n\n", "|y||-1;");
    EVENTS("data: a\n\xEF\xBB\xBF"
           "data: b\n\n",
           "|a||-1;"); /* the mark is skipped only at the start */
    EVENTS(":\n: c\ndata: x\n:data: no\n\n", "|x||-1;");
    EVENTS("d: a\nx:\ndata: 1\n\n", "|1||-1;");
    EVENTS("retry: 5\ndata: a\n\ndata: b\n\n", "|a||5;|b||-1;");
    EVENTS(": hi\n\n", "");
    EVENTS("data: [DONE]\n\n", "|[DONE]||-1;");
    EVENTS("data\n\n", "|||-1;");
    EVENTS("foo: bar\ndata: z\nevent: e\n\n", "e|z||-1;");
}

TEST(broken_streams_are_refused)
{
    tinkc_error err = { 0 };
    tinkc_sse_parser *p = tinkc_sse_new(100, NULL, &err);
    tinkc_sse_feed(p, "data: \xFF\n\n", 9, &err);
    assert_null(tinkc_sse_next(p, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    tinkc_sse_free(p);
    err = (tinkc_error){ 0 };
    p = tinkc_sse_new(100, NULL, &err);
    for (int i = 0; i < 11; i++)
        tinkc_sse_feed(p, "xxxxxxxxxx", 10, &err);
    assert_null(tinkc_sse_next(p, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    tinkc_sse_free(p);
    err = (tinkc_error){ 0 };
    p = tinkc_sse_new(100, NULL, &err);
    for (int i = 0; i < 30; i++) {
        tinkc_sse_feed(p, "data: 12345\n", 12, &err);
        (void)tinkc_sse_next(p, &err);
    }
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    tinkc_sse_free(p);
    tinkc_sse_free(NULL);
    err = (tinkc_error){ .code = TINKC_E_STATE };
    assert_null(tinkc_sse_new(100, NULL, &err)); /* an error that is set stays */
    err = (tinkc_error){ 0 };
    p = tinkc_sse_new(0, NULL, &err);
    assert_false(tinkc_sse_feed(p, NULL, 1, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_false(tinkc_sse_feed(p, "x", 1, &err));
    tinkc_sse_free(p);
    assert_false(tinkc_sse_feed(NULL, "", 0, NULL));
    assert_null(tinkc_sse_next(NULL, NULL));
}

/* An event may have exactly max_event_bytes, and so may a line that is not yet complete; bytes that have been
 * taken do not count. */
TEST(events_have_a_bound)
{
    enum { MAX = 20 };
    static const struct {
        const char *text;
        bool fits;
    } rows[] = {
        { "data: 12345678901234567890\n", true },
        { "data: 123456789012345678901\n", false },
        { "event: e\nid: 12\ndata: 12345678901234567\n", true },
        { "event: e\nid: 12\ndata: 123456789012345678\n", false },
        { "data: 12345678901234", true },
        { "data: 123456789012345", false },
        { "data: 1\n\ndata: 1\n\n12345678901234567890", true },
        { "data: 1\n\ndata: 1\n\n123456789012345678901", false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_sse_parser *p = tinkc_sse_new(MAX, NULL, &err);
        assert_true(tinkc_sse_feed(p, rows[i].text, strlen(rows[i].text), &err));
        tkc_buf_clear(&out);
        collect(p, &out, &err);
        if ((err.code == 0) != rows[i].fits)
            fail_msg("row %zu: %s", i, err.message);
        if (err.code)
            assert_string_equal(err.message, "event stream: an event is too large");
        tinkc_sse_free(p);
    }
}

TEST(the_usual_bound_of_an_event)
{
    enum { MAX = 16 << 20 };
    static char piece[1 << 20];
    memset(piece, 'x', sizeof piece);
    for (size_t more = 0; more < 2; more++) {
        tinkc_error err = { 0 };
        tinkc_sse_parser *p = tinkc_sse_new(0, NULL, &err);
        tinkc_sse_feed(p, "data:", 5, &err);
        for (size_t at = 0; at < MAX; at += sizeof piece)
            tinkc_sse_feed(p, piece, sizeof piece, &err);
        tinkc_sse_feed(p, "x\n\n" + (more ? 0 : 1), more ? 3 : 2, &err);
        assert_int_equal(err.code, TINKC_OK);
        const tinkc_sse *event = tinkc_sse_next(p, &err);
        assert_true((event != NULL) == (more == 0));
        assert_int_equal(err.code, more ? TINKC_E_BAD_RESPONSE : TINKC_OK);
        if (event)
            assert_int_equal(event->data_len, MAX);
        tinkc_sse_free(p);
    }
}

TEST(the_end_drops_or_flushes)
{
    tinkc_error err = { 0 };
    tinkc_sse_parser *p = tinkc_sse_new(0, NULL, &err);
    tinkc_sse_feed(p, "data: last", 10, &err);
    assert_null(tinkc_sse_next(p, &err));
    tkc_sse_end(p, true, &err);
    const tinkc_sse *e = tinkc_sse_next(p, &err);
    assert_non_null(e);
    assert_string_equal(e->data, "last");
    assert_ok(err);
    assert_null(tinkc_sse_next(p, &err));
    assert_true(tkc_sse_end(p, true, &err)); /* once more changes nothing */
    assert_null(tinkc_sse_next(p, &err));
    assert_ok(err);
    assert_false(tinkc_sse_feed(p, "x", 1, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tinkc_sse_free(p);
}

TEST(events_are_written_so_that_they_read_back)
{
    tinkc_error err = { 0 };
    tkc_buf text;
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    tkc_sse_write(&text, "token", "7", tkc_str("{\"a\":1}"), &err);
    tkc_buf_cstr(&text, ": waiting\n\n", &err);
    tkc_sse_write(&text, NULL, NULL, tkc_str("one\ntwo\r\nthree\r"), &err);
    tkc_sse_write(&text, "e", NULL, (tinkc_str){ NULL, 0 }, &err);
    assert_ok(err);
    assert_events(text.data, text.len, "token|{\"a\":1}|7|-1;|one\ntwo\nthree\n|7|-1;e||7|-1;");
    tkc_buf_clear(&text);
    tkc_sse_write(&text, NULL, NULL, tkc_str("a\r\n"), &err);
    tkc_sse_write(&text, NULL, NULL, tkc_str("\rb\r\r\n"), &err);
    assert_str(tkc_buf_view(&text), "data: a\ndata: \n\ndata: \ndata: b\ndata: \ndata: \n\n");
    assert_ok(err);
    tkc_buf_clear(&text);
    assert_false(tkc_sse_write(&text, "a\nb", NULL, tkc_str(""), &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    assert_false(tkc_sse_write(&text, "a", "1\r", tkc_str(""), &err));
    assert_string_equal(err.message, "the event's id has a line end in it");
    assert_int_equal(text.len, 0);
    tkc_buf_free(&text);
}

TEST(streams_survive_failing_allocations)
{
    bool done = false;
    for (int n = 0; !done; n++) {
        ledger l = { .left = n };
        tinkc_allocator a = ledger_allocator(&l);
        tinkc_error err = { 0 };
        tinkc_sse_parser *p = tinkc_sse_new(0, &a, &err);
        static const char text[] = "event: e\nid: 1\ndata: a longer line of data\ndata: b\n\n";
        tinkc_sse_feed(p, text, sizeof text - 1, &err);
        const tinkc_sse *e = tinkc_sse_next(p, &err);
        done = e && strcmp(e->data, "a longer line of data\nb") == 0;
        if (!done)
            assert_int_equal(err.code, TINKC_E_MEMORY);
        tinkc_sse_free(p);
        assert_true(l.blocks == 0 && l.bytes == 0);
        assert_true(n < 100);
    }
}

/* What was split into lines is dropped: a stream may be endless. */
TEST(streams_keep_little)
{
    tinkc_error err = { 0 };
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_sse_parser *p = tinkc_sse_new(0, &a, &err);
    char line[1000];
    memset(line, ':', sizeof line);
    line[sizeof line - 1] = '\n';
    for (int i = 0; i < 1000; i++) {
        assert_true(tinkc_sse_feed(p, line, sizeof line, &err));
        assert_null(tinkc_sse_next(p, &err));
        assert_true(l.bytes < 20000);
    }
    tinkc_sse_free(p);
    assert_ok(err);
    assert_int_equal(l.blocks, 0);
}

/* Each byte of a line is looked at once, however small the pieces are: with more looks this takes
 * minutes. */
TEST(long_lines_in_single_bytes)
{
    enum { N = 200000 };
    tinkc_error err = { 0 };
    tinkc_sse_parser *p = tinkc_sse_new(0, NULL, &err);
    assert_true(tinkc_sse_feed(p, "data:", 5, &err));
    for (int i = 0; i < N; i++) {
        assert_true(tinkc_sse_feed(p, "x", 1, &err));
        assert_null(tinkc_sse_next(p, &err));
    }
    assert_true(tinkc_sse_feed(p, "\n\n", 2, &err));
    const tinkc_sse *e = tinkc_sse_next(p, &err);
    assert_non_null(e);
    assert_int_equal(e->data_len, N);
    tinkc_sse_free(p);
    assert_ok(err);
}

/* An end that cannot be written is not an end. */
TEST(ends_without_memory)
{
    tinkc_error err = { 0 };
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_sse_parser *p = tinkc_sse_new(0, &a, &err);
    l.left = 0;
    assert_false(tkc_sse_end(p, true, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    err = (tinkc_error){ 0 };
    l.left = -1;
    assert_true(tinkc_sse_feed(p, "data:x", 6, &err)); /* it can be fed as before */
    assert_true(tkc_sse_end(p, true, &err));
    assert_non_null(tinkc_sse_next(p, &err));
    tinkc_sse_free(p);
    assert_ok(err);
}

/* ---- zstd ---- */

TEST(zstd_as_the_sdk_writes_it)
{
    tinkc_error err = { 0 };
    tinkc_bytes want = unhex(&arena, "28b52ffd200529000068656c6c6f");
    tkc_buf_clear(&out);
    tkc_zstd_compress("hello", 5, &out, &err);
    assert_ok(err);
    assert_int_equal(out.len, want.len);
    assert_memory_equal(out.data, want.data, want.len);
    tkc_buf_clear(&out);
    tkc_zstd_decompress(want.data, want.len, 5, &out, &err);
    assert_ok(err);
    assert_str(tkc_buf_view(&out), "hello");
}

/* Level 3, as the SDK's: byte for byte what libzstd makes of it. */
TEST(zstd_has_its_level)
{
    tinkc_error err = { 0 };
    static char text[60000], want[60000];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof text; i++) {
        x = x * 1664525u + 1013904223u;
        text[i] = (char)('a' + (x >> 24) % (i % 97 < 60 ? 3 : 20));
    }
    size_t n = ZSTD_compress(want, sizeof want, text, sizeof text, 3);
    assert_false(ZSTD_isError(n));
    tkc_buf_clear(&out);
    assert_true(tkc_zstd_compress(text, sizeof text, &out, &err));
    assert_int_equal(out.len, n);
    assert_memory_equal(out.data, want, n);
}

TEST(zstd_is_bounded)
{
    tinkc_error err = { 0 };
    tkc_buf packed, zeros;
    tkc_buf_init(&packed, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&zeros, NULL, TKC_BUF_NO_MAX);
    size_t size = 3 << 20;
    memset(tkc_buf_room(&zeros, size, &err), 0, size);
    zeros.len = size;
    tkc_zstd_compress(zeros.data, zeros.len, &packed, &err);
    assert_true(packed.len < 1000);
    tkc_buf_clear(&out);
    assert_false(tkc_zstd_decompress(packed.data, packed.len, size - 1, &out, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    assert_int_equal(err.cause, TINKC_E_TOO_LARGE);
    assert_false(tkc_zstd_decompress(packed.data, packed.len, size, &out, &err)); /* stays failed */
    assert_false(tkc_zstd_compress("a", 1, &out, &err));
    assert_int_equal(out.len, 0);
    err = (tinkc_error){ 0 };
    assert_true(tkc_zstd_decompress(packed.data, packed.len, size, &out, &err));
    assert_int_equal(out.len, size);
    for (size_t n = 0; n < packed.len; n++) {
        char *copy = exact_copy(packed.data, n);
        err = (tinkc_error){ 0 };
        tkc_buf_clear(&out);
        if (tkc_zstd_decompress(copy, n, size, &out, &err))
            fail_msg("%zu of %zu bytes were read as %zu", n, packed.len, out.len);
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
        if (strcmp(err.message, "zstd: not a frame") != 0)
            assert_string_equal(err.message, "zstd: ends early");
        free_copy(copy, n);
    }
    tkc_buf_free(&packed);
    tkc_buf_free(&zeros);
}

/* A frame that does not say its size (streamed) is bounded all the same. */
TEST(zstd_without_a_size_is_bounded)
{
    tinkc_error err = { 0 };
    /* 100000 zero bytes as one RLE block of a frame without content size */
    tinkc_bytes frame = unhex(&arena, "28b52ffd"
                                      "0050"
                                      "03350c"
                                      "00");
    tkc_buf_clear(&out);
    bool read = tkc_zstd_decompress(frame.data, frame.len, 1 << 20, &out, &err);
    assert_ok(err);
    assert_true(read);
    assert_int_equal(out.len, 100000);
    tkc_buf_clear(&out);
    assert_false(tkc_zstd_decompress(frame.data, frame.len, 99999, &out, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    /* The same frame with a window of 256 MiB, twice what is allowed. */
    err = (tinkc_error){ 0 };
    tinkc_bytes wide = unhex(&arena, "28b52ffd"
                                     "0090"
                                     "03350c"
                                     "00");
    assert_false(tkc_zstd_decompress(wide.data, wide.len, 1 << 20, &out, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    err = (tinkc_error){ 0 };
    tinkc_bytes widest = unhex(&arena, "28b52ffd"
                                       "0088"
                                       "03350c"
                                       "00"); /* 128 MiB */
    tkc_buf_clear(&out);
    assert_true(tkc_zstd_decompress(widest.data, widest.len, 1 << 20, &out, &err));
    assert_int_equal(out.len, 100000);
    err = (tinkc_error){ 0 };
    assert_false(tkc_zstd_decompress("", 0, 10, &out, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
}

/* ---- protobuf ---- */

TEST(varints_of_every_length)
{
    static const uint64_t values[] = { 0, 1, 127, 128, 16383, 16384, UINT32_MAX, 1ull << 63, UINT64_MAX };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        unsigned char bytes[10];
        size_t n = (size_t)(tkc_pb_put_varint(bytes, values[i]) - bytes);
        assert_int_equal(n, tkc_pb_size_varint(values[i]));
        tinkc_bytes rest = { bytes, n };
        uint64_t back = 1;
        assert_true(tkc_pb_varint(&rest, &back));
        assert_true(back == values[i] && rest.len == 0);
        rest = (tinkc_bytes){ bytes, n - 1 };
        assert_false(tkc_pb_varint(&rest, &back));
    }
    tinkc_bytes eleven = unhex(&arena, "8080808080808080808001"), big = unhex(&arena, "ffffffffffffffffff02");
    uint64_t v;
    assert_false(tkc_pb_varint(&eleven, &v));
    assert_false(tkc_pb_varint(&big, &v));
}

/* A field of bytes: tag, length, contents; its size is known before it is written. */
TEST(fields_are_written)
{
    static const struct {
        uint32_t field;
        size_t len;
        const char *head;
    } rows[] = { { 1, 0, "0a00" }, { 2, 3, "1203" }, { 15, 127, "7a7f" }, { 15, 128, "7a8001" } };
    unsigned char contents[128], room[160];
    for (size_t i = 0; i < sizeof contents; i++)
        contents[i] = (unsigned char)(i + 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_bytes head = unhex(&arena, rows[i].head);
        memset(room, 0, sizeof room);
        unsigned char *end = tkc_pb_put_bytes(room, rows[i].field, rows[i].len ? contents : NULL, rows[i].len);
        assert_int_equal(end - room, head.len + rows[i].len);
        assert_int_equal(tkc_pb_size_bytes(rows[i].len), head.len + rows[i].len);
        assert_memory_equal(room, head.data, head.len);
        assert_memory_equal(room + head.len, contents, rows[i].len);
    }
    assert_int_equal(tkc_pb_put_tag(room, 3, TKC_PB_FIXED32) - room, 1);
    assert_int_equal(room[0], 0x1d);
}

TEST(fields_of_every_wire_type)
{
    tkc_pb p;
    tkc_pb_open(&p, unhex(&arena, "08"
                                  "9601"
                                  "12"
                                  "03616263"
                                  "1d"
                                  "01020304"
                                  "21"
                                  "0102030405060708"));
    assert_true(tkc_pb_next(&p) && tkc_pb_is(&p, 1, TKC_PB_VARINT) && p.number == 150);
    assert_true(tkc_pb_next(&p) && tkc_pb_is(&p, 2, TKC_PB_BYTES) && p.bytes.len == 3);
    assert_true(tkc_pb_next(&p) && tkc_pb_is(&p, 3, TKC_PB_FIXED32) && p.number == 0x04030201);
    assert_false(tkc_pb_is(&p, 3, TKC_PB_BYTES));
    assert_false(tkc_pb_is(&p, 2, TKC_PB_FIXED32));
    assert_true(tkc_pb_next(&p) && tkc_pb_is(&p, 4, TKC_PB_FIXED64));
    assert_true(p.number == 0x0807060504030201);
    assert_true(!tkc_pb_next(&p) && !p.bad);
    tkc_pb_open(&p, unhex(&arena, "1200")); /* no bytes, at the end */
    assert_true(tkc_pb_next(&p) && tkc_pb_is(&p, 2, TKC_PB_BYTES) && p.bytes.len == 0);
    static const char *const bad[] = {
        "08", "0880", "80", "0001", "0201", "8880808080808001",       "1205616263",    "1d010203", "21010203",
        "0b", "0c",   "0e", "0f",   "00",   "12ffffffffffffffffff01", "80808080808001"
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tkc_pb_open(&p, unhex(&arena, bad[i]));
        assert_true(!tkc_pb_next(&p) && p.bad);
        assert_false(tkc_pb_next(&p));
    }
}

/* ---- retrying ---- */

TEST(retry_headers_of_the_description)
{
    const int64_t now = 1779912000000000; /* Wed, 27 May 2026 20:00:00 GMT */
    static const struct {
        const char *ms, *after;
        int64_t want;
    } cases[] = {
        { "1500", NULL, 1500 },
        { "0", "7", 0 },
        { "x", "7", 7000 },
        { NULL, "0.5", 500 },
        { NULL, "60", 60000 },
        { NULL, "60.1", 0 },
        { NULL, "0", 0 },
        { NULL, "-3", 0 },
        { NULL, "nan", 0 },
        { NULL, "inf", 0 },
        { NULL, "garbage", 0 },
        { NULL, "2026-05-27T20:00:05Z", 0 },
        { NULL, NULL, 0 },
        { "", "", 0 },
        { "99999", "7", 0 },
        { "60000", NULL, 60000 },
        { "60000.5", NULL, 0 },
        { "0.2", NULL, 1 },
        { NULL, " 7 ", 7000 },
        { NULL, "+7", 7000 },
        { NULL, ".5", 500 },
        { NULL, "5.", 5000 },
        { NULL, "1e1", 10000 },
        { NULL, "007", 7000 },
        { "nan", "7", 0 },
        { "-1", "7", 0 },
        { "0.0", NULL, 0 },
        { NULL, "60.0", 60000 },
        { NULL, "0.0011", 2 },
        { "59999.5", NULL, 60000 },
        { "", "5", 5000 }, /* what is not a number leaves the word to the other header */
        { " ", "5", 5000 },
        { "x", "5", 5000 },
        { "1.11111111111111111111111111111111111111111111111111111111111", "5", 5000 },
        { "60000", NULL, 60000 },
        { NULL, "+", 0 },
        { NULL, "-", 0 },
        { NULL, ".", 0 },
        { NULL, "0000000000000000000000000000000000000000000000000000000000000009", 9000 },
        { NULL, "1.1111111111111111111111111111111111111111111111111111111111", 1112 },
        { NULL, "1.11111111111111111111111111111111111111111111111111111111111", 0 },
        { NULL, "09", 9000 },
        { NULL, " Wed, 27 May 2026 20:00:05 GMT ", 5000 },
        { NULL, "Wed, 27 May 2026 20:00:05 GMT", 5000 },
        { NULL, "Wed , 27 May 2026 20:00:05 GMT", 5000 },
        { NULL, ", 27 May 2026 20:00:05 GMT", 5000 },
        { NULL,
          "                                        Wed, 27 May 2026 20:00:05 GMT                   "
          " ",
          5000 },
        { NULL, "Wed, 27 May 2026 20:02:00 GMT", 0 },
        { NULL, "Wed, 27 May 2026 19:59:55 GMT", 0 },
        { NULL, "Wed, 27 May 2026 22:00:05 +0200", 5000 },
        { NULL, "27 May 2026 20:00:05", 5000 },
        { NULL, "Wednesday, 27-May-26 20:00:05 GMT", 5000 },
        { NULL, "Wed May 27 20:00:05 2026", 5000 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t got = tkc_retry_after_ms(cases[i].ms, cases[i].after, now);
        if (got != cases[i].want)
            fail_msg("%s, %s: %d", cases[i].ms ? cases[i].ms : "-", cases[i].after ? cases[i].after : "-", (int)got);
        if (got)
            assert_int_equal(tkc_retry_after_capped_ms(cases[i].ms, cases[i].after, now), got);
    }
    assert_int_equal(tkc_retry_after_capped_ms("60000.5", NULL, now), 60000);
    assert_int_equal(tkc_retry_after_capped_ms(NULL, "61", now), 60000);
    assert_int_equal(tkc_retry_after_capped_ms(NULL, "1e300", now), 60000);
    assert_int_equal(tkc_retry_after_capped_ms(NULL, "Wed, 27 May 2026 20:02:00 GMT", now), 60000);
    assert_int_equal(tkc_retry_after_capped_ms(NULL, "Wed, 27 May 2026 19:59:55 GMT", now), 0);
    assert_int_equal(tkc_retry_after_capped_ms("-1", NULL, now), 0);
    assert_int_equal(tkc_retry_after_capped_ms("nan", "7", now), 0);
    assert_int_equal(tkc_retry_after_capped_ms(NULL, NULL, now), 0);
    assert_int_equal(tkc_should_retry("true"), 1);
    assert_int_equal(tkc_should_retry("false"), 0);
    assert_int_equal(tkc_should_retry("True"), -1);
    assert_int_equal(tkc_should_retry(NULL), -1);
    const char *const headers[] = { "Retry-After", "3", "x-a", "b", NULL };
    assert_string_equal(tkc_header(headers, "retry-after"), "3");
    assert_null(tkc_header(headers, "x"));
    assert_string_equal(tkc_header(headers, "X-A"), "b");
    const char *const odd[] = { "a", "1", "b", NULL };
    assert_null(tkc_header(odd, "b"));
    assert_null(tkc_header(NULL, "x"));
}

/* Dates of HTTP and mail: zones by name and number, times without seconds, two-digit years. */
TEST(dates_in_all_their_forms)
{
    static const struct {
        const char *text;
        int64_t seconds; /* since 1970; -1 = refused */
    } rows[] = {
        { "Wed, 27 May 2026 20:00:00 GMT", 1779912000 },
        { "27 May 2026 20:00:00 GMT", 1779912000 },
        { "Wed, 27 May 2026 20:00 GMT", 1779912000 },
        { "Wednesday, 27-May-26 20:00:00 GMT", 1779912000 },
        { "Wed May 27 20:00:00 2026", 1779912000 },
        { "Wed May  7 08:00:01 2026", 1778140801 },
        { "Wed, 27 May 2026 20:00:00 +0000", 1779912000 },
        { "Wed, 27 May 2026 22:30:00 +0230", 1779912000 },
        { "Wed, 27 May 2026 18:15:00 -0145", 1779912000 },
        { "Wed, 27 May 2026 15:00:00 EST", 1779912000 },
        { "Wed, 27 May 2026 16:00:00 EDT", 1779912000 },
        { "Wed, 27 May 2026 14:00:00 CST", 1779912000 },
        { "Wed, 27 May 2026 15:00:00 CDT", 1779912000 },
        { "Wed, 27 May 2026 13:00:00 MST", 1779912000 },
        { "Wed, 27 May 2026 14:00:00 mdt", 1779912000 },
        { "Wed, 27 May 2026 12:00:00 PST", 1779912000 },
        { "Wed, 27 May 2026 13:00:00 PDT", 1779912000 },
        { "Wed, 27 May 2026 20:00:00 XYZ", 1779912000 }, /* unknown names are UTC */
        { "Thu, 01 Jan 1970 00:00:00 GMT", 0 },
        { "Thu, 01-Jan-70 00:00:00 GMT", 0 },
        { "Sun, 31-Dec-68 23:59:59 GMT", 3124223999 }, /* 00 to 68 are this century */
        { "Sat, 31 Dec 2016 23:59:60 GMT", 1483228800 },
        { "Wed May 27 20:00:00 2026 ", 1779912000 },
        { "\tWed,\t27 May 2026\t20:00:00 GMT", 1779912000 },
        { "7 May 2026 8:00:01 GMT", 1778140801 },
        { "9 May 2026 08:00:01 GMT", 1778313601 },
        { "27 May 2026 20:00:00", 1779912000 },
        { "27 May 2026 20:00:00 a", 1779912000 },
        { "27 May 2026 20:00:00 Z", 1779912000 },
        { "27 May 2026 20:00:00 GMTAA", 1779912000 },
        { "27 May 2026 20:00:00 abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ", 1779912000 },
        { "27 May 2026 20:00:00 abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQR", -1 },
        { "27 May 2026 20:00:00 +020", -1 },
        { "27 May 2026 20:00:00 -1", -1 },
        { "27 May 2026 20:00:00 +", -1 },
        { "27 May 2026 20:00:00 G@T", -1 },
        { "27 May 2026 20:00:00 G[T", -1 },
        { "27 May 2026 20:00:00 G{T", -1 },
        { "27 May 2026 20:000:00 GMT", -1 },
        { "27 May 2026 20:00:000 GMT", -1 },
        { "27 May 2026 020:00:00 GMT", -1 },
        { "027 May 2026 20:00:00 GMT", -1 },
        { "Wed May 027 20:00:00 2026", -1 },
        { "27  2026 20:00:00 GMT", -1 },
        { "Wed, 27 \xC2 2026 20:00:00 GMT", -1 },
        { "-27 May 2026 20:00:00 GMT", -1 },
        { "--- 27 May 2026 20:00:00 GMT", -1 },
        { "W1 27 May 2026 20:00:00 GMT", -1 },
        { "W27 27 May 2026 20:00:00 GMT", 1779912000 },
        { "27-May-2026 20:00:00 GMT", 1779912000 },
        { "2-May-2026 20:00:00 GMT", 1777752000 },
        { "27-May-26- 20:00:00 GMT", 1779912000 },
        { "29 Feb 2024 00:00:00 GMT", 1709164800 },
        { "29 Feb 2026 00:00:00 GMT", -1 },
        { "31 Apr 2026 00:00:00 GMT", -1 },
        { "0 May 2026 00:00:00 GMT", -1 },
        { "32 May 2026 00:00:00 GMT", -1 },
        { "27 May 2026 24:00:00 GMT", -1 },
        { "27 May 2026 20:60:00 GMT", -1 },
        { "27 May 2026 20:00:61 GMT", -1 },
        { "27 May 2026 20:00:0 GMT", -1 },
        { "27 May 2026 20:0:00 GMT", -1 },
        { "27 May 2026 20 GMT", -1 },
        { "27 May 2026 20:00:00:00 GMT", -1 },
        { "27 May 2026 20:00:00 +0260", -1 },
        { "27 May 2026 20:00:00 +02:0", -1 },
        { "27 May 2026 20:00:00 G1T", -1 },
        { "27 May 126 20:00:00 GMT", -1 },
        { "27 Mai 2026 20:00:00 GMT", -1 },
        { "We, 27 May 2026 20:00:00 GMT", -1 },
        { "Wed May 27 20:00:00 2026 GMT", -1 },
        { "Wed", -1 },
        { "", -1 },
        { "Wed, 27 May 2026 20:00:00 GMTGMTGMTGMTGMTGMTGMTGMTGMTGMTGMTGMTGMTGMT", -1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t at = -1;
        bool read = tkc_parse_http_date(tkc_str(rows[i].text), &at);
        if (read != (rows[i].seconds >= 0) || (read && at != rows[i].seconds * 1000000))
            fail_msg("%s: %d, %lld", rows[i].text, (int)read, (long long)(at / 1000000));
    }
    int64_t at = 0;
    assert_true(tkc_parse_http_date(tkc_str("Wed, 01-Jan-69 00:00:00 GMT"), &at)); /* 69 is 1969 */
    assert_true(at == -365 * INT64_C(86400) * 1000000);
}

/* ---- tokens ---- */

TEST(claims_are_read)
{
    tinkc_error err = { 0 };
    tkc_jwt t;
    /* {"exp":1779912000.5,"sub":"urn:u:1","email":"","iss":"passport-x"} */
    assert_true(tkc_jwt_read("eyJh.eyJleHAiOjE3Nzk5MTIwMDAuNSwic3ViIjoidXJuOnU6MSIsImVtYWlsIjoiIiwi"
                             "aXNzIjoicGFzc3BvcnQteCJ9.c2ln",
                             &arena, &t, &err));
    assert_true(t.exp_us == 1779912000500000);
    assert_string_equal(t.sub, "urn:u:1");
    assert_string_equal(t.email, "");
    assert_string_equal(t.iss, "passport-x");
    assert_true(!t.org_id && !t.jti);
    /* {"jti":"t9","org_id":"org-4","other":[1,{"exp":1}],"exp":-1} */
    assert_true(tkc_jwt_read("a.eyJqdGkiOiJ0OSIsIm9yZ19pZCI6Im9yZy00Iiwib3RoZXIiOlsxLHsiZXhwIjoxfV0s"
                             "ImV4cCI6LTF9.c",
                             &arena, &t, &err));
    assert_string_equal(t.jti, "t9");
    assert_string_equal(t.org_id, "org-4");
    assert_true(t.exp_us == -1000000);
    /* {"exp":1e13}: beyond what a time can be */
    assert_true(tkc_jwt_read("a.eyJleHAiOjFlMTN9.c", &arena, &t, &err));
    assert_true(t.exp_us == TINKC_NO_TIME);
    /* {"exp":"soon","sub":7} */
    assert_true(tkc_jwt_read("a.eyJleHAiOiJzb29uIiwic3ViIjo3fQ.b", &arena, &t, &err));
    assert_true(t.exp_us == TINKC_NO_TIME && !t.sub && !t.email);
    /* {"exp":9e12}, {"exp":-9e12}: the same; {"exp":8.9e12} is a time */
    assert_true(tkc_jwt_read("a.eyJleHAiOjllMTJ9.c", &arena, &t, &err));
    assert_true(t.exp_us == TINKC_NO_TIME);
    assert_true(tkc_jwt_read("a.eyJleHAiOi05ZTEyfQ.c", &arena, &t, &err));
    assert_true(t.exp_us == TINKC_NO_TIME);
    assert_true(tkc_jwt_read("a.eyJleHAiOjguOWUxMn0.c", &arena, &t, &err));
    assert_true(t.exp_us == 8900000000000000000);
    /* {"sub":"a\u0000b","iss":"i"}: text with a NUL is ignored */
    assert_true(tkc_jwt_read("a.eyJzdWIiOiJhXHUwMDAwYiIsImlzcyI6ImkifQ.c", &arena, &t, &err));
    assert_true(!t.sub && strcmp(t.iss, "i") == 0);
    assert_ok(err);
    static const char *const bad[] = {
        "", "a", "a.b", "a.b.c.d", "a.e30.c.d", "a.!!.c", "a..c", "a.W10.c", "a.e30x.c"
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (tinkc_error){ 0 };
        if (tkc_jwt_read(bad[i], &arena, &t, &err))
            fail_msg("%s was read", bad[i]);
        assert_int_equal(err.code, TINKC_E_TOKEN);
    }
}

/* ---- audio ---- */

TEST(audio_heads_of_the_description)
{
    tinkc_error err = { 0 };
    tkc_dmel d;
    tinkc_bytes head = unhex(&arena, "0402820150");
    assert_true(tkc_dmel_read(head.data, head.len, &d, &err));
    assert_true(d.ndim == 2 && d.dims[0] == 130 && d.dims[1] == 80 && d.dtype == 4 && d.head == 5);
    head = unhex(&arena, "04020150");
    assert_true(tkc_dmel_read(head.data, head.len, &d, &err) && d.dims[0] == 1 && !d.constant);
    head = unhex(&arena, "fe0402015099");
    assert_true(tkc_dmel_read(head.data, head.len, &d, &err) && d.constant && d.head == 5);
    assert_ok(err);
    /* the last element type, eight dimensions, and the largest one */
    head = unhex(&arena, "07080102030405060708");
    assert_true(tkc_dmel_read(head.data, head.len, &d, &err));
    assert_true(d.dtype == 7 && d.ndim == 8 && d.dims[7] == 8 && d.head == 10 && !d.constant);
    head = unhex(&arena, "0001ffffffffffffffff7f");
    assert_true(tkc_dmel_read(head.data, head.len, &d, &err) && d.dims[0] == INT64_MAX);
    assert_true(d.dims[1] == 0 && d.dtype == 0);
    assert_ok(err);
    head = unhex(&arena, "fe");
    assert_false(tkc_dmel_read(head.data, head.len, &d, &err));
    assert_string_equal(err.message, "the head of an audio tensor cannot be read: it is empty");
    err = (tinkc_error){ 0 };
    head = unhex(&arena, "04");
    assert_false(tkc_dmel_read(head.data, head.len, &d, &err));
    assert_string_equal(err.message, "the head of an audio tensor cannot be read: it ends early");
    static const char *const bad[] = { "",
                                       "04",
                                       "0402",
                                       "040280",
                                       "fe",
                                       "08020150",
                                       "0400",
                                       "0409",
                                       "0480808080808080808080",
                                       "0401ffffffffffffffffff01" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (tinkc_error){ 0 };
        head = unhex(&arena, bad[i]);
        if (tkc_dmel_read(head.data, head.len, &d, &err))
            fail_msg("%s was read", bad[i]);
        assert_int_equal(err.code, TINKC_E_TENSOR);
    }
}

RUN_TESTS(set_up, tear_down)
