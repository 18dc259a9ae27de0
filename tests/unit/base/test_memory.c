/* Errors, the allocator door, arenas, buffers, maps, and the growable arrays of the public headers.
 */
#include "support/check.h"
#include "support/ledger.h"

#include "base/map.h"
#include "base/mem.h"

/* ---- errors ---- */

TEST(the_first_failure_wins)
{
    tinkc_error err = { 0 };
    assert_false(tkc_fail(&err, TINKC_E_NOT_FOUND, "run %d", 7));
    assert_false(tkc_fail(&err, TINKC_E_MEMORY, "later"));
    tkc_fail_memory(&err);
    tinkc_error_set(&err, TINKC_E_SERVER, "later");
    assert_int_equal(err.code, TINKC_E_NOT_FOUND);
    assert_string_equal(err.message, "run 7");
    assert_int_equal(err.category, TINKC_BY_CALLER);
    assert_int_equal(err.flags, TINKC_USER_ERROR);
    tinkc_error other = { 0 };
    tkc_error_copy(&other, &err);
    tkc_error_copy(&other, &(tinkc_error){ .code = TINKC_E_MEMORY });
    assert_int_equal(other.code, TINKC_E_NOT_FOUND);
    tinkc_error_clear(&err);
    assert_true(tkc_all_zero(&err, sizeof err));
    tinkc_error_clear(NULL);
    tinkc_error_set(NULL, 1, "x");
    tinkc_error_set(&err, TINKC_OK, "x");
    assert_int_equal(err.code, TINKC_OK);
    tinkc_error_set(&err, TINKC_E_CALLBACK, NULL);
    assert_string_equal(err.message, "");
}

TEST(a_public_call_finds_a_usable_error)
{
    tinkc_error local, mine = { 0 }, *err = NULL;
    assert_true(tkc_enter(&err, &local));
    assert_ptr_equal(err, &local);
    assert_int_equal(local.code, TINKC_OK);
    err = &mine;
    assert_true(tkc_enter(&err, &local));
    assert_ptr_equal(err, &mine);
    mine.code = TINKC_E_PATH;
    assert_false(tkc_enter(&err, &local));
}

TEST(messages_are_one_line_of_whole_characters)
{
    char text[600];
    for (size_t pad = 390; pad < 400; pad++) {
        tinkc_error err = { 0 };
        memset(text, 'x', pad);
        strcpy(text + pad, "\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC\xE2\x82\xAC");
        tkc_fail(&err, TINKC_E_FILE, "%s", text);
        size_t n = strlen(err.message);
        assert_true(n >= 397 && n <= 399 && (n - pad) % 3 == 0);
        tinkc_error set = { 0 };
        tinkc_error_set(&set, TINKC_E_FILE, text);
        assert_string_equal(set.message, err.message);
    }
    tinkc_error err = { 0 };
    tkc_fail(&err, TINKC_E_PATH,
             "a\nb\tc\xFF"
             "d\x7F");
    assert_string_equal(err.message, "a b c?d ");
    tinkc_error theirs = { 0 };
    assert_false(tkc_fail_text(&theirs, TINKC_E_TEMPLATE, "a\n\tb\x1b%s\xff", 8));
    assert_string_equal(theirs.message, "a\n\tb %s?");
    char line[60];
    (void)tinkc_error_line(&theirs, line, sizeof line);
    assert_string_equal(line, "a  b %s? (TINKC_E_TEMPLATE)");
}

TEST(codes_have_names_flags_and_categories)
{
    assert_string_equal(tinkc_code_name(TINKC_E_RATE_LIMITED), "TINKC_E_RATE_LIMITED");
    assert_string_equal(tinkc_code_name(TINKC_OK), "TINKC_OK");
    assert_string_equal(tinkc_code_name(12345), "unknown");
    assert_int_equal(tinkc_code_flags(TINKC_E_RATE_LIMITED), TINKC_RETRIABLE | TINKC_USER_ERROR);
    assert_int_equal(tinkc_code_flags(12345), 0);
    assert_int_equal(tkc_code_category(TINKC_E_SERVER), TINKC_BY_SERVER);
    static const int32_t statuses[][2] = { { 400, 400 }, { 401, 401 }, { 402, 402 }, { 403, 403 },
                                           { 404, 404 }, { 408, 408 }, { 409, 409 }, { 410, 410 },
                                           { 422, 422 }, { 429, 429 }, { 500, 500 }, { 502, 500 },
                                           { 599, 500 }, { 418, 300 }, { 302, 300 }, { 405, 300 } };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        assert_int_equal(tkc_code_of_status(statuses[i][0]), statuses[i][1]);
}

TEST(an_error_becomes_a_line)
{
    tinkc_error err = { 0 };
    char line[600], small[8];
    assert_int_equal(tinkc_error_line(&err, line, sizeof line), 0);
    assert_string_equal(line, "");
    assert_int_equal(tinkc_error_line(NULL, line, sizeof line), 0);
    tkc_fail(&err, TINKC_E_NOT_FOUND, "no such run");
    err.http_status = 404;
    strcpy(err.request_id, "r-17");
    const char *want = "no such run (TINKC_E_NOT_FOUND, status 404, request r-17)";
    assert_int_equal(tinkc_error_line(&err, line, sizeof line), strlen(want));
    assert_string_equal(line, want);
    assert_int_equal(tinkc_error_line(&err, small, sizeof small), strlen(want));
    assert_string_equal(small, "no such");
    assert_int_equal(tinkc_error_line(&err, NULL, 0), strlen(want));
    tinkc_error wide = { 0 };
    tkc_fail(&wide, TINKC_E_FILE, "ab\xE2\x82\xAC");
    (void)tinkc_error_line(&wide, small, 5);
    assert_string_equal(small, "ab");
    memset(wide.message, 'm', sizeof wide.message - 1);
    memset(wide.request_id, 'r', sizeof wide.request_id - 1);
    wide.http_status = -2147483647;
    assert_true(tinkc_error_line(&wide, line, sizeof line) < sizeof line);
}

TEST(a_file_is_named_before_the_message)
{
    tinkc_error err = { 0 };
    char path[900];
    assert_false(tkc_fail_before(&err, "%s: ", "x"));
    assert_int_equal(err.code, TINKC_OK);
    assert_string_equal(err.message, "");
    tkc_fail(&err, TINKC_E_TOKENIZER, "no vocabulary");
    assert_false(tkc_fail_before(&err, "%s: ", "m/x\n.json"));
    assert_string_equal(err.message, "m/x .json: no vocabulary");
    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = '\0';
    tkc_fail_before(&err, "%s/", path);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_non_null(strstr(err.message, "p/m/x .json: no vocabulary"));
    tinkc_error memory = { 0 };
    tkc_fail_memory(&memory);
    tinkc_error before = memory;
    tkc_fail_before(&memory, "x: ");
    assert_string_equal(memory.message, before.message);
}

/* ---- memory ---- */

TEST(sizes_are_checked)
{
    size_t n = 5;
    assert_false(tkc_add_size(SIZE_MAX, 1, &n));
    assert_false(tkc_mul_size(SIZE_MAX / 2 + 1, 2, &n));
    assert_int_equal(n, 5);
    assert_true(tkc_add_size(2, 3, &n) && n == 5 && tkc_mul_size(4, 6, &n) && n == 24);
    assert_true(tkc_all_zero("\0\0", 2) && !tkc_all_zero("\0\1", 2) && tkc_all_zero(NULL, 0));
}

TEST(the_allocator_is_told_the_truth)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_error err = { 0 };
    void *p = tkc_alloc(&a, 0, &err);
    assert_non_null(p);
    p = tkc_resize(&a, p, 0, 100, &err);
    p = tkc_resize(&a, p, 100, 0, &err);
    tkc_release(&a, p, 0);
    char *z = tkc_zalloc(&a, 64, &err);
    assert_true(tkc_all_zero(z, 64));
    tkc_release(&a, z, 64);
    char *s = tkc_copy_str(&a, tkc_strn("abcdef", 3), &err);
    assert_string_equal(s, "abc");
    tkc_release_str(&a, s);
    tkc_release_str(&a, NULL);
    tkc_release(&a, NULL, 10);
    assert_true(l.blocks == 0 && l.bytes == 0);
    l.left = 0;
    assert_null(tkc_alloc(&a, 1, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    err = (tinkc_error){ 0 };
    assert_null(tkc_copy_str(NULL, tkc_strn("", SIZE_MAX), &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
}

TEST(arrays_grow_by_half_or_to_what_is_needed)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_error err = { 0 };
    size_t cap = 0;
    int *data = NULL;
    for (int i = 0; i < 10000; i++) {
        int *grown = tkc_grow(&a, data, &cap, (size_t)i + 1, sizeof *data, &err);
        assert_non_null(grown);
        data = grown;
        data[i] = i;
    }
    for (int i = 0; i < 10000; i++)
        assert_int_equal(data[i], i);
    size_t before = cap;
    data = tkc_grow(&a, data, &cap, 1, sizeof *data, &err);
    assert_int_equal(cap, before);
    data = tkc_grow(&a, data, &cap, 1000000, sizeof *data, &err);
    assert_int_equal(cap, 1000000);
    assert_null(tkc_grow(&a, data, &cap, SIZE_MAX / 2, sizeof *data, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    assert_int_equal(cap, 1000000);
    tkc_release(&a, data, cap * sizeof *data);
    assert_true(l.blocks == 0 && l.bytes == 0);
    err = (tinkc_error){ 0 };
    void *p = tkc_alloc_aligned(64, 100, &err);
    assert_int_equal((uintptr_t)p % 64, 0);
    tkc_release_aligned(p);
}

/* ---- arenas ---- */

TEST(arenas_give_aligned_memory_and_take_it_back)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, &a, 0);
    for (size_t n = 0; n < 3000; n += 7) {
        char *p = tkc_arena_alloc(&arena, n, &err);
        assert_int_equal((uintptr_t)p % 16, 0);
        memset(p, 0xAA, n);
    }
    char *z = tkc_arena_array(&arena, 100, 10, &err);
    assert_true(tkc_all_zero(z, 1000));
    assert_non_null(tkc_arena_array(&arena, 0, 10, &err));
    assert_null(tkc_arena_array(&arena, SIZE_MAX, 2, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    err = (tinkc_error){ 0 };
    assert_null(tkc_arena_alloc(&arena, SIZE_MAX, &err));
    err = (tinkc_error){ 0 };
    assert_string_equal(tkc_arena_printf(&arena, &err, "%s-%d", "a", 5), "a-5");
    assert_string_equal(tkc_arena_cstr(&arena, NULL, &err), "");
    assert_string_equal(tkc_arena_str(&arena, tkc_strn("xyz", 2), &err), "xy");
    assert_true(l.blocks > 1);
    tkc_arena_reset(&arena);
    assert_int_equal(l.blocks, 1);
    assert_non_null(tkc_arena_alloc(&arena, 10, &err));
    assert_int_equal(l.blocks, 1);
    tkc_arena_free(&arena);
    assert_true(l.blocks == 0 && l.bytes == 0);
    tkc_arena_reset(&arena);
    tkc_arena_free(&arena);
}

TEST(an_arena_keeps_its_maximum)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 5000);
    size_t given = 0;
    while (tkc_arena_alloc(&arena, 100, &err))
        given += 100;
    assert_int_equal(err.code, TINKC_E_MEMORY);
    assert_non_null(strstr(err.message, "5000"));
    assert_true(given > 3000 && given <= 5000 && arena.taken <= 5000);
    tkc_arena_free(&arena);
}

/* ---- buffers ---- */

TEST(buffers_gather_bytes)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_error err = { 0 };
    tkc_buf b;
    tkc_buf_init(&b, &a, TKC_BUF_NO_MAX);
    assert_string_equal(tkc_buf_terminate(&b, &err), "");
    tkc_buf_cstr(&b, "a", &err);
    tkc_buf_char(&b, 'b', &err);
    tkc_buf_str(&b, tkc_str("cd"), &err);
    tkc_buf_add(&b, NULL, 0, &err);
    tkc_buf_i64(&b, INT64_MIN, &err);
    tkc_buf_u64(&b, 0, &err);
    tkc_buf_u64(&b, UINT64_MAX, &err);
    tkc_buf_printf(&b, &err, "%05.1f", 2.25);
    assert_string_equal(tkc_buf_terminate(&b, &err), "abcd-9223372036854775808018446744073709551615002.2");
    size_t cap = b.cap;
    tkc_buf_clear(&b);
    assert_true(b.len == 0 && b.cap == cap);
    err.code = TINKC_E_PATH;
    assert_false(tkc_buf_cstr(&b, "x", &err));
    assert_int_equal(b.len, 0);
    tkc_buf_free(&b);
    assert_true(l.blocks == 0 && l.bytes == 0);
}

TEST(a_buffer_keeps_its_maximum)
{
    tinkc_error err = { 0 };
    tkc_buf b;
    tkc_buf_init(&b, NULL, 10);
    assert_true(tkc_buf_add(&b, "0123456789", 10, &err));
    assert_false(tkc_buf_char(&b, 'x', &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_int_equal(b.len, 10);
    err = (tinkc_error){ 0 };
    assert_null(tkc_buf_room(&b, SIZE_MAX, &err));
    tkc_buf_free(&b);
}

/* ---- maps ---- */

TEST(maps_keep_their_order)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_error err = { 0 };
    tkc_map map;
    char key[32];
    static int values[5000];
    tkc_map_init(&map, &a);
    assert_null(tkc_map_get(&map, tkc_str("x")));
    for (int i = 0; i < 5000; i++) {
        void *old = &map;
        snprintf(key, sizeof key, "key-%d", i);
        assert_true(tkc_map_set(&map, tkc_str(key), &values[i], &old, &err));
        assert_null(old);
    }
    for (int i = 0; i < 5000; i += 2) {
        snprintf(key, sizeof key, "key-%d", i);
        assert_ptr_equal(tkc_map_remove(&map, tkc_str(key)), &values[i]);
        assert_null(tkc_map_remove(&map, tkc_str(key)));
    }
    assert_int_equal(map.n_live, 2500);
    void *old;
    assert_true(tkc_map_set(&map, tkc_str("key-1"), &values[0], &old, &err));
    assert_ptr_equal(old, &values[1]);
    assert_true(tkc_map_set(&map, tkc_str("key-0"), &values[2], NULL, &err));
    assert_true(tkc_map_has(&map, tkc_str("key-0")) && !tkc_map_has(&map, tkc_str("key-2")));
    size_t place = 0, n = 0;
    const tkc_map_entry *e;
    int last = -1;
    while ((e = tkc_map_next(&map, &place))) {
        int64_t number;
        assert_true(tkc_parse_i64(tkc_strn(e->key + 4, e->key_len - 4), &number));
        if (number == 0)
            assert_int_equal(n, 2500); /* put back in, so it is the last now */
        else
            assert_true((int)number > last);
        last = (int)number;
        n++;
    }
    assert_int_equal(n, 2501);
    tkc_map_free(&map);
    assert_true(l.blocks == 0 && l.bytes == 0);
}

TEST(map_keys_are_any_bytes)
{
    tinkc_error err = { 0 };
    tkc_map map;
    tkc_map_init(&map, NULL);
    tkc_map_set(&map, tkc_strn("a\0b", 3), &map, NULL, &err);
    tkc_map_set(&map, tkc_strn("", 0), &err, NULL, &err);
    tkc_map_set(&map, tkc_str("null"), NULL, NULL, &err);
    assert_ptr_equal(tkc_map_get(&map, tkc_strn("a\0b", 3)), &map);
    assert_null(tkc_map_get(&map, tkc_strn("a\0c", 3)));
    assert_ptr_equal(tkc_map_get(&map, (tinkc_str){ NULL, 0 }), &err);
    assert_true(tkc_map_has(&map, tkc_str("null")) && !tkc_map_get(&map, tkc_str("null")));
    tkc_map_free(&map);
}

/* Adding and removing forever neither grows the table nor loses anything. */
TEST(maps_do_not_grow_by_churn)
{
    tinkc_error err = { 0 };
    tkc_map map;
    char key[32];
    tkc_map_init(&map, NULL);
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "%d", i);
        tkc_map_set(&map, tkc_str(key), &map, NULL, &err);
        snprintf(key, sizeof key, "%d", i - 10);
        tkc_map_remove(&map, tkc_str(key));
    }
    assert_int_equal(map.n_live, 10);
    assert_true(map.n_slots <= 128 && map.cap_entries <= 128);
    tkc_map_free(&map);
}

TEST(maps_survive_failing_allocations)
{
    for (int n = 0; n < 60; n++) {
        ledger l = { .left = n };
        tinkc_allocator a = ledger_allocator(&l);
        tkc_map map;
        char key[16];
        int stored = 0;
        tkc_map_init(&map, &a);
        for (int i = 0; i < 30; i++) {
            tinkc_error err = { 0 };
            snprintf(key, sizeof key, "%d", i);
            stored += tkc_map_set(&map, tkc_str(key), &map, NULL, &err);
        }
        assert_int_equal(map.n_live, stored);
        size_t place = 0;
        while (tkc_map_next(&map, &place))
            stored--;
        assert_int_equal(stored, 0);
        tkc_map_free(&map);
        assert_true(l.blocks == 0 && l.bytes == 0);
    }
}

/* ---- the arrays of the public headers ---- */

TEST(public_arrays_grow)
{
    ledger l = { .left = -1 };
    tinkc_allocator a = ledger_allocator(&l);
    tinkc_error err = { 0 };
    tinkc_tokens tokens = { .a = &a };
    tinkc_floats floats = { .a = &a };
    tinkc_text text = { .a = &a };
    for (int32_t i = 0; i < 100; i++) {
        float f = (float)i;
        assert_true(tinkc_tokens_append(&tokens, &i, 1, &err));
        assert_true(tinkc_floats_append(&floats, &f, 1, &err));
        assert_true(tinkc_text_append(&text, "ab", 2, &err));
    }
    assert_true(tokens.len == 100 && tokens.data[99] == 99 && floats.data[50] == 50.0f);
    assert_true(text.len == 200 && strlen(text.data) == 200);
    assert_true(tinkc_tokens_append(&tokens, NULL, 0, &err));
    assert_false(tinkc_tokens_append(&tokens, NULL, 1, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_false(tinkc_text_append(&text, "x", 1, &err));
    assert_int_equal(text.len, 200);
    assert_false(tinkc_floats_append(NULL, NULL, 0, NULL));
    tinkc_tokens_free(&tokens);
    tinkc_floats_free(&floats);
    tinkc_text_free(&text);
    assert_true(l.blocks == 0 && l.bytes == 0 && tokens.a == &a && !tokens.data);
    tinkc_text_free(NULL);
    tinkc_sizes_free(NULL);
    tinkc_text empty = { 0 };
    assert_true(tinkc_text_append(&empty, NULL, 0, NULL));
    assert_string_equal(empty.data, "");
    tinkc_text_free(&empty);
}

TEST(versions_are_told)
{
    assert_string_equal(tinkc_version(), TINKC_VERSION);
    assert_true(tinkc_version_number() >= 1000);
    assert_string_equal(tinkc_version_tinker(), "0.25.0");
    assert_non_null(tinkc_version_detail("compiler"));
    assert_null(tinkc_version_detail("nonsense"));
    assert_null(tinkc_version_detail(NULL));
}
