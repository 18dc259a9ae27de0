/* Inputs of tokens, images and audio: which chunks they make, what they hold, how long they are. */
#include "support/client/api_support.h"
#include "support/scarce.h"
#include "tinkc/train.h"

static tinkc_mock *mock;
static tinkc_client *client;
static tinkc_input *input;
static tinkc_error err;

static int open_input(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    client = mock_client(mock, NULL, &err);
    input = tinkc_input_new(client, &err);
    assert_int_equal(err.code, 0);
    return 0;
}

static int close_input(void **state)
{
    (void)state;
    tinkc_input_free(input);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return 0;
}

static void assert_tokens(size_t at, const int32_t *ids, size_t len)
{
    const tinkc_chunk *c = tinkc_input_at(input, at);
    assert_non_null(c);
    assert_int_equal(c->kind, TINKC_CHUNK_TOKENS);
    assert_int_equal(c->expected_tokens, -1);
    assert_int_equal(c->tokens.len, len);
    if (len)
        assert_memory_equal(c->tokens.data, ids, len * sizeof *ids);
}

/* Tokens follow tokens into one chunk until something else comes or a cut is asked for. */
TEST_WITH(tokens_gather_in_chunks, open_input, close_input)
{
    const int32_t first[] = { 1, 2, 3, 4 }, second[] = { 5 }, third[] = { 6, 7 };
    assert_true(tinkc_input_add_tokens(input, first, 2, &err));
    assert_tokens(0, first, 2);
    assert_true(tinkc_input_add_tokens(input, first + 2, 2, &err));
    assert_int_equal(tinkc_input_count(input), 1);
    assert_tokens(0, first, 4);
    assert_true(tinkc_input_cut(input, &err));
    assert_true(tinkc_input_cut(input, &err)); /* twice is once */
    assert_int_equal(tinkc_input_count(input), 1);
    assert_true(tinkc_input_add_tokens(input, second, 1, &err));
    assert_int_equal(tinkc_input_count(input), 2);
    assert_true(tinkc_input_add_image_pointer(input, "assets/a.png", "png", 3, &err));
    assert_true(tinkc_input_add_tokens(input, third, 2, &err));
    assert_int_equal(tinkc_input_count(input), 4);
    assert_tokens(0, first, 4);
    assert_tokens(1, second, 1);
    assert_tokens(3, third, 2);
    assert_int_equal(tinkc_input_length(input), 4 + 1 + 3 + 2);
    assert_null(tinkc_input_at(input, 4));
}

TEST_WITH(other_chunks_keep_what_they_are_given, open_input, close_input)
{
    char bytes[] = "\x89PNG", place[] = "assets/b.jpeg";
    const int32_t id = 9;
    assert_true(tinkc_input_add_tokens(input, &id, 1, &err));
    assert_true(tinkc_input_add_image(input, bytes, 4, "png", 7, &err));
    assert_true(tinkc_input_add_image(input, bytes, 2, "jpeg", 0, &err));
    assert_true(tinkc_input_add_image_pointer(input, place, "jpeg", 11, &err));
    assert_true(tinkc_input_add_dmel(input, "\x04\x02\x01\x50", 4, &err));
    bytes[0] = place[0] = 0; /* copied, not kept */
    assert_int_equal(tinkc_input_count(input), 5);
    const tinkc_chunk *c = tinkc_input_at(input, 1);
    assert_int_equal(c->kind, TINKC_CHUNK_IMAGE);
    assert_int_equal(c->bytes.len, 4);
    assert_memory_equal(c->bytes.data, "\x89PNG", 4);
    assert_string_equal(c->format, "png");
    assert_int_equal(c->expected_tokens, 7);
    c = tinkc_input_at(input, 2);
    assert_string_equal(c->format, "jpeg");
    assert_int_equal(c->bytes.len, 2);
    assert_int_equal(c->expected_tokens, 0);
    c = tinkc_input_at(input, 3);
    assert_int_equal(c->kind, TINKC_CHUNK_IMAGE_POINTER);
    assert_string_equal(c->location, "assets/b.jpeg");
    assert_string_equal(c->format, "jpeg");
    assert_int_equal(c->expected_tokens, 11);
    c = tinkc_input_at(input, 4);
    assert_int_equal(c->kind, TINKC_CHUNK_DMEL);
    assert_int_equal(c->bytes.len, 4);
    assert_int_equal(tinkc_input_length(input), 1 + 7 + 0 + 11 + 1);
    assert_true(tinkc_input_add_image(input, "x", 1, "png", -1, &err));
    assert_int_equal(tinkc_input_length(input), -1); /* one is not known */
}

/* A refused chunk leaves no trace, and the tokens before it stay open for more. */
TEST_WITH(a_refused_chunk_changes_nothing, open_input, close_input)
{
    const int32_t ids[] = { 1, 2 }, negative[] = { 1, -1 };
    assert_true(tinkc_input_add_tokens(input, ids, 1, &err));
    assert_false(tinkc_input_add_tokens(input, negative, 2, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_non_null(strstr(err.message, "token 1"));
    err = (tinkc_error){ 0 };
    assert_false(tinkc_input_add_image(input, "", 0, "png", 1, &err));
    err = (tinkc_error){ 0 };
    assert_false(tinkc_input_add_image(input, NULL, 5, "png", 1, &err));
    err = (tinkc_error){ 0 };
    assert_false(tinkc_input_add_image_pointer(input, NULL, "png", 1, &err));
    err = (tinkc_error){ 0 };
    assert_false(tinkc_input_add_image_pointer(input, "a", NULL, 1, &err));
    err = (tinkc_error){ 0 };
    assert_false(tinkc_input_add_image_pointer(input, "a", "png", -2, &err));
    err = (tinkc_error){ 0 };
    for (int with_data = 0; with_data < 2; with_data++) {
        assert_false(with_data ? tinkc_input_add_dmel(input, "\x04", 0, &err)
                               : tinkc_input_add_dmel(input, NULL, 1, &err));
        assert_int_equal(err.code, TINKC_E_TENSOR);
        assert_string_equal(err.message, "data: an empty dmel chunk");
        err = (tinkc_error){ 0 };
    }
    assert_false(tinkc_input_add_tokens(input, NULL, 1, &err));
    err = (tinkc_error){ 0 };
    assert_true(tinkc_input_add_tokens(input, NULL, 0, &err));
    assert_true(tinkc_input_add_tokens(input, ids + 1, 1, &err));
    assert_int_equal(tinkc_input_count(input), 1);
    assert_tokens(0, ids, 2);
}

TEST_WITH(a_cleared_input_starts_over, open_input, close_input)
{
    const int32_t ids[] = { 1, 2, 3 };
    assert_true(tinkc_input_add_tokens(input, ids, 3, &err));
    tinkc_input_clear(input);
    assert_int_equal(tinkc_input_count(input), 0);
    assert_int_equal(tinkc_input_length(input), 0);
    assert_true(tinkc_input_add_tokens(input, ids + 1, 1, &err));
    assert_tokens(0, ids + 1, 1);
    assert_int_equal(tinkc_input_count(NULL), 0);
    assert_int_equal(tinkc_input_length(NULL), 0);
    assert_null(tinkc_input_at(NULL, 0));
}

/* One call after the other until one fails; how many went well. */
static size_t add_all(tinkc_error *e)
{
    static const int32_t some[30000]; /* more than a block of memory */
    size_t n = 0;
    n += tinkc_input_add_tokens(input, some, 30000, e);
    n += tinkc_input_add_image(input, "x", 1, "png", 1, e);
    n += tinkc_input_add_tokens(input, some, 30000, e);
    n += tinkc_input_add_image_pointer(input, "place", "jpeg", 1, e);
    n += tinkc_input_add_dmel(input, "\x04\x02\x01\x50", 4, e);
    for (int i = 0; i < 20; i++) {
        n += tinkc_input_cut(input, e);
        n += tinkc_input_add_tokens(input, some, 3, e);
    }
    return n;
}

/* Without memory a call fails, and after it all do; what came before stays. */
TEST_WITH(memory_that_ends, open_input, close_input)
{
    enum { ALL = 5 + 2 * 20 };
    scarce memory = { .thread = pthread_self() };
    tinkc_allocator a = scarce_allocator(&memory);
    tinkc_input_free(input);
    tinkc_client_free(client);
    client = mock_client(mock, &(tinkc_client_options){ .allocator = &a }, &err);
    assert_ok(&err);
    size_t before = 0;
    for (int64_t until = 1; before < ALL; until++) {
        input = tinkc_input_new(client, &err);
        assert_ok(&err);
        memory.failed = false;
        memory.until = until;
        size_t n = add_all(&err);
        memory.until = 0;
        assert_true(n >= before);
        assert_int_equal(err.code, memory.failed ? TINKC_E_MEMORY : 0);
        assert_int_equal(n < ALL, memory.failed);
        tinkc_tokens all = { 0 };
        assert_false(memory.failed && tinkc_input_tokens(input, &all, &err)); /* it has failed */
        assert_int_equal(all.len, 0);
        err = (tinkc_error){ 0 };
        before = n;
        tinkc_input_free(input);
    }
    input = NULL;
    tinkc_client_free(client);
    client = NULL;
    assert_true(counting_is_empty_soon(&memory.all));
}

TEST_WITH(all_tokens_come_out_in_order, open_input, close_input)
{
    const int32_t ids[] = { 4, 5, 6 };
    tinkc_tokens found = { 0 };
    assert_true(tinkc_input_add_tokens(input, ids, 2, &err));
    assert_true(tinkc_input_cut(input, &err));
    assert_true(tinkc_input_add_tokens(input, ids + 2, 1, &err));
    assert_true(tinkc_input_tokens(input, &found, &err));
    assert_int_equal(found.len, 3);
    assert_memory_equal(found.data, ids, sizeof ids);
    assert_false(tinkc_input_tokens(input, NULL, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_non_null(strstr(err.message, "out"));
    err = (tinkc_error){ 0 };
    assert_false(tinkc_input_tokens(NULL, &found, &err));
    assert_non_null(strstr(err.message, "input"));
    err = (tinkc_error){ 0 };
    assert_true(tinkc_input_add_image(input, "x", 1, "png", 1, &err));
    assert_false(tinkc_input_tokens(input, &found, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "chunk 2"));
    assert_int_equal(found.len, 3); /* nothing was added */
    tinkc_tokens_free(&found);
}
