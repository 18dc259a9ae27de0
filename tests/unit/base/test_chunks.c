/* A queue of bytes in pieces: order, lending, bounded memory, running out of it. */
#include "support/check.h"
#include "support/ledger.h"

#include "base/chunks.h"

static unsigned char byte_at(uint64_t i)
{
    return (unsigned char)(i * 31 + i / 251);
}

static size_t next_size(uint64_t *seed, size_t most)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(*seed >> 33) % (most + 1);
}

/* Reads up to `n` bytes and checks that they are the right ones. */
static size_t read_some(tkc_chunks *q, size_t n, uint64_t *read)
{
    const void *bytes;
    size_t have = tkc_chunks_peek(q, &bytes);
    have = have < n ? have : n;
    for (size_t i = 0; i < have; i++)
        assert_int_equal(((const unsigned char *)bytes)[i], byte_at((*read)++));
    tkc_chunks_drop(q, have);
    return have;
}

TEST(bytes_come_out_as_they_went_in)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tkc_chunks q;
    tinkc_error err = { 0 };
    uint64_t seed = 1, written = 0, read = 0;
    static unsigned char block[70000];
    tkc_chunks_init(&q, &a);
    for (int round = 0; round < 2000; round++) {
        size_t n = next_size(&seed, round % 7 ? 900 : sizeof block);
        for (size_t i = 0; i < n; i++)
            block[i] = byte_at(written + i);
        assert_true(tkc_chunks_add(&q, block, n, &err));
        written += n;
        for (size_t left = next_size(&seed, 20000); left && q.len;)
            left -= read_some(&q, left, &read);
        assert_int_equal(q.len, written - read);
    }
    while (read_some(&q, SIZE_MAX, &read))
        ;
    assert_int_equal(read, written);
    tkc_chunks_free(&q);
    assert_int_equal(l.blocks, 0);
}

TEST(a_reader_that_is_always_behind_costs_no_more)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tkc_chunks q;
    tinkc_error err = { 0 };
    const void *bytes;
    static char block[32 * 1024];
    tkc_chunks_init(&q, &a);
    for (int i = 0; i < 3000; i++) { /* 100 MB pass through, 256 KB are always there */
        assert_true(tkc_chunks_add(&q, block, sizeof block, &err));
        while (q.len > 256 * 1024)
            tkc_chunks_drop(&q, 1 + (tkc_chunks_peek(&q, &bytes) - 1) / 2);
        assert_true(l.bytes < 1200 * 1024);
    }
    tkc_chunks_free(&q);
    assert_int_equal(l.blocks, 0);
}

TEST(what_is_lent_stays_where_it_is)
{
    tkc_chunks q;
    tinkc_error err = { 0 };
    const void *bytes;
    char block[5000];
    tkc_chunks_init(&q, NULL);
    memset(block, 'a', sizeof block);
    assert_true(tkc_chunks_add(&q, block, 100, &err));
    assert_int_equal(tkc_chunks_peek(&q, &bytes), 100);
    memset(block, 'b', sizeof block);
    for (int i = 0; i < 50; i++)
        assert_true(tkc_chunks_add(&q, block, sizeof block, &err));
    for (int i = 0; i < 100; i++)
        assert_int_equal(((const char *)bytes)[i], 'a');
    tkc_chunks_drop(&q, 100);
    assert_true(tkc_chunks_peek(&q, &bytes) > 0);
    assert_int_equal(*(const char *)bytes, 'b');
    tkc_chunks_free(&q);
}

TEST(without_memory_nothing_is_added)
{
    ledger l = { .left = 1 };
    tinkc_allocator a = ledger_allocator(&l);
    tkc_chunks q;
    tinkc_error err = { 0 };
    static char block[9000];
    tkc_chunks_init(&q, &a);
    assert_true(tkc_chunks_add(&q, block, 100, &err));
    assert_false(tkc_chunks_add(&q, block, sizeof block, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    assert_int_equal(q.len, 100);
    tkc_chunks_free(&q);
    assert_int_equal(l.blocks, 0);
}
