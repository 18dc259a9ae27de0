/* test_exact_bytes.c - what must be the same bytes and numbers on every machine: protobuf messages, the order of
 * examples, the clocks' units. */
#include <time.h>

#include "cli/track/pb_write.h"
#include "cli/data/shuffle.h"
#include "cli/output/text.h"
#include "support/test_case.h"

static void assert_bytes(const cli_pb *m, const char *wanted, size_t len)
{
    assert_int_equal(m->len, len);
    assert_memory_equal(m->data, wanted, len);
    assert_false(m->bad);
}

#define IS(m, text) assert_bytes(m, text, sizeof(text) - 1)

TEST(whole_numbers_are_varints)
{
    static const struct {
        uint32_t field;
        int64_t value;
        const char *bytes;
    } rows[] = { { 1, 0, "\x08\x00" },
                 { 1, 1, "\x08\x01" },
                 { 15, 127, "\x78\x7f" },
                 { 16, 128, "\x80\x01\x80\x01" },
                 { 1, 255, "\x08\xff\x01" },
                 { 1, 16383, "\x08\xff\x7f" },
                 { 1, 16384, "\x08\x80\x80\x01" },
                 { 2, INT64_C(1) << 56, "\x10\x80\x80\x80\x80\x80\x80\x80\x80\x01" },
                 { 2, INT64_MAX, "\x10\xff\xff\xff\xff\xff\xff\xff\xff\x7f" },
                 { 2, -1, "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" } };
    cli_pb m = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_pb_clear(&m);
        cli_pb_int(&m, rows[i].field, rows[i].value);
        assert_bytes(&m, rows[i].bytes, i ? strlen(rows[i].bytes) : 2);
    }
    cli_pb_free(&m);
    assert_true(m.data == NULL && m.len == 0 && m.cap == 0);
}

TEST(each_member_has_its_wire_type)
{
    cli_pb m = { 0 }, inner = { 0 };
    cli_pb_double(&m, 1, 1.5);
    cli_pb_float(&m, 2, -2.5f);
    cli_pb_bytes(&m, 3, "a\0b", 3);
    cli_pb_text(&m, 4, "cd");
    cli_pb_text(&m, 4, NULL);
    cli_pb_text(&m, 4, "");
    IS(&m, "\x09\x00\x00\x00\x00\x00\x00\xf8\x3f"
           "\x15\x00\x00\x20\xc0"
           "\x1a\x03\x61\x00\x62"
           "\x22\x02\x63\x64"
           "\x22\x00");
    cli_pb_clear(&m);
    cli_pb_int(&inner, 1, 7);
    cli_pb_message(&m, 5, &inner);
    cli_pb_message(&m, 6, &inner); /* which is empty by now */
    IS(&m, "\x2a\x02\x08\x07\x32\x00");
    assert_true(inner.len == 0 && inner.data != NULL);
    /* Many of them: what was written before stays when the memory grows. */
    cli_pb_clear(&m);
    for (int i = 0; i < 1000; i++)
        cli_pb_int(&m, 1, i % 100);
    assert_int_equal(m.len, 2000);
    for (size_t i = 0; i < 1000; i++)
        assert_true(m.data[2 * i] == 8 && m.data[2 * i + 1] == i % 100);
    cli_pb_free(&inner);
    cli_pb_free(&m);
}

/* After a lack of memory nothing is added, and the message around it is as bad. */
TEST(nothing_is_added_after_a_lack_of_memory)
{
    cli_pb m = { 0 }, inner = { .bad = true };
    cli_pb_int(&inner, 1, 7);
    assert_true(inner.len == 0 && inner.bad);
    cli_pb_int(&m, 1, 7);
    assert_false(m.bad);
    cli_pb_message(&m, 2, &inner);
    assert_true(m.bad);
    cli_pb_free(&m);
    cli_pb_free(&inner);
}

TEST(numbers_are_little_endian)
{
    unsigned char out[9];
    memset(out, 0xee, sizeof out);
    cli_put_le(out, UINT64_C(0x0123456789abcdef), 8);
    assert_memory_equal(out, "\xef\xcd\xab\x89\x67\x45\x23\x01\xee", 9);
    memset(out, 0xee, sizeof out);
    cli_put_le(out, UINT64_C(0x0123456789abcdef), 3);
    assert_memory_equal(out, "\xef\xcd\xab\xee", 4);
}

TEST(the_order_follows_from_the_seed)
{
    static const struct {
        size_t n;
        uint64_t seed;
        const char *order;
    } rows[] = { { 1, 7, "0" },
                 { 2, 0, "01" },
                 { 2, 1, "01" },
                 { 2, 2, "10" },
                 { 10, 0, "6329814705" },
                 { 10, 1, "4281930675" },
                 { 10, UINT64_MAX, "3427508196" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[40];
        size_t at = 0, *order = cli_shuffled(rows[i].n, rows[i].seed);
        assert_non_null(order);
        for (size_t k = 0; k < rows[i].n; k++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%zu", order[k]);
        assert_string_equal(text, rows[i].order);
        free(order);
    }
    size_t *none = cli_shuffled(0, 1);
    assert_non_null(none);
    free(none);
}

/* The clocks' readings in their units, between two of the system's. */
TEST(clocks_have_their_units)
{
    struct timespec a, b;
    clock_gettime(CLOCK_REALTIME, &a);
    int64_t us = cli_now_us();
    clock_gettime(CLOCK_REALTIME, &b);
    assert_true((int64_t)a.tv_sec * 1000000 + a.tv_nsec / 1000 <= us &&
                us <= (int64_t)b.tv_sec * 1000000 + b.tv_nsec / 1000);
    clock_gettime(CLOCK_MONOTONIC, &a);
    int64_t ms = cli_now_ms();
    clock_gettime(CLOCK_MONOTONIC, &b);
    assert_true((int64_t)a.tv_sec * 1000 + a.tv_nsec / 1000000 <= ms &&
                ms <= (int64_t)b.tv_sec * 1000 + b.tv_nsec / 1000000);
}

TEST(printed_texts_are_allocated)
{
    char *empty = cli_printf("%s", ""), *text = cli_printf("%s-%d", "a", 5);
    assert_string_equal(empty, "");
    assert_string_equal(text, "a-5");
    free(empty);
    free(text);
}
