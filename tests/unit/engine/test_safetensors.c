/* test_safetensors.c - tensor files: what is written is read back; hostile ones are refused. */
#include "support/failing_calls.h"

#include <sys/stat.h>
#include <unistd.h>

#include "model/safetensors.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"

/* A file of this header and n_data zero bytes; read with the given expectation. */
static void check(const char *header, size_t n_data, const char *fault)
{
    tinkc_error err = { 0 };
    tke_tensor_file f = { 0 };
    size_t len = strlen(header), total = 8 + len + n_data;
    unsigned char *bytes = test_calloc(1, total);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(len >> (8 * i));
    memcpy(bytes + 8, header, len);
    bool ok = tke_tensor_file_read(&f, (tinkc_bytes){ bytes, total }, "some.file", &err);
    if (fault) {
        if (ok || !strstr(err.message, fault) || strncmp(err.message, "some.file", 9) != 0)
            fail_msg("wanted '%s' of %s, got '%s'", fault, header, err.message);
        assert_int_equal(err.code, TINKC_E_MODEL);
    } else {
        assert_string_equal(err.message, "");
        assert_true(ok);
        tke_tensor_file_close(&f);
    }
    test_free(bytes);
}

TEST(good_headers_are_read)
{
    check("{}", 0, NULL);
    check("{}      ", 0, NULL);
    check("{\"__metadata__\":{\"format\":\"pt\"}}", 0, NULL);
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, NULL);
    check("{\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8, NULL);
    check("{\"a\":{\"note\":\"x\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, NULL); /* other fields are skipped */
    check("{\"empty\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
          "\"b\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}",
          3, NULL);
}

TEST(hostile_headers_are_refused)
{
    check("[]", 0, "not an object");
    check("{", 0, "some.file");
    check("{} x", 0, "some.file");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "differ in size");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "outside");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "outside");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "missing");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "negative");
    check("{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "missing");
    check("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "missing");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,16]}}", 8, "two numbers");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "overflows");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,3],\"data_offsets\":[0,8]}}", 8, "overflows");
    check("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "more than 8");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
          4, "overlap");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole");
    check("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "behind the last");
    check("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
          "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}",
          5, "not aligned");
    check("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
          "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
          2, "twice");
    check("{\"a\":3}", 0, "some.file");
    check("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "zero byte");
}

TEST(lengths_that_lie)
{
    tinkc_error err = { 0 };
    tke_tensor_file f = { 0 };
    unsigned char huge[16] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}' };
    assert_false(tke_tensor_file_read(&f, (tinkc_bytes){ huge, 16 }, "x", &err));
    assert_non_null(strstr(err.message, "header"));
    err = (tinkc_error){ 0 };
    assert_false(tke_tensor_file_read(&f, (tinkc_bytes){ huge, 7 }, "x", &err));
    assert_non_null(strstr(err.message, "too short"));
    unsigned char zero[8] = { 0 };
    err = (tinkc_error){ 0 };
    assert_false(tke_tensor_file_read(&f, (tinkc_bytes){ zero, 8 }, "x", &err));
}

TEST(what_is_written_is_read)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[512];
    mode_t umask_before = umask(022);
    float a[6] = { 1, 2, 3, 4, 5, 6 };
    int64_t b[2] = { -1, 1 };
    uint16_t c[3] = { 0x3f80, 0xc000, 0x0000 };
    tke_file_tensor tensors[3] = {
        { "a", (const unsigned char *)a, sizeof a, TKE_FILE_F32, 2, { 2, 3 }, 0, NULL },
        { "b", (const unsigned char *)b, sizeof b, TKE_FILE_I64, 1, { 2 }, 0, NULL },
        { "c \"quoted\"", (const unsigned char *)c, sizeof c, TKE_FILE_BF16, 1, { 3 }, 0, NULL },
    };
    const char *metadata[] = { "format", "pt", NULL };
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    assert_true(tke_tensor_file_write(path, tensors, 3, metadata, 0640, &err));
    tke_tensor_file f;
    assert_true(tke_tensor_file_open(&f, path, &err));
    assert_int_equal(tiny_mode(path), 0640);
    assert_int_equal(f.n_tensors, 3);
    const tke_file_tensor *t = tke_tensor_file_find(&f, "a");
    assert_true(tke_tensor_is(t, 2, 2, 3));
    assert_false(tke_tensor_is(t, 2, 3, 2));
    assert_memory_equal(t->data, a, sizeof a);
    assert_int_equal((uintptr_t)f.tensors[0].data % 8, 0);
    t = tke_tensor_file_find(&f, "c \"quoted\"");
    tke_real wide[3];
    tke_widen((tke_dtype)t->dtype, t->data, 3, wide);
    assert_true(wide[0] == 1 && wide[1] == -2 && wide[2] == 0);
    assert_null(tke_tensor_file_find(&f, "d"));
    tke_tensor_file_close(&f);
    tke_tensor_file_close(&f); /* closed twice is fine */
    snprintf(path, sizeof path, "%s/none/x.safetensors", folder);
    assert_false(tke_tensor_file_write(path, tensors, 3, NULL, 0640, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    umask(umask_before);
    tiny_model_remove(folder);
}

/* A header of odd length puts every element where its type would not lie. */
/* Syncs are numbered: of the file while it has another name, then of the folder that has its own. */
TEST(a_write_that_fails_leaves_the_old_tensors_alone)
{
    static const struct {
        const char *call;
        int nth;
        bool replaced;
    } rows[] = { { "fsync", 1, false }, { "rename", 1, false }, { "fsync", 2, true } };
    char *folder = tiny_folder(), path[300], beside[310];
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    snprintf(beside, sizeof beside, "%s.tmp", path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tke_tensor_file f;
        unsigned char byte = 1;
        tke_file_tensor t = {
            .name = "t", .dtype = TKE_FILE_U8, .n_dims = 1, .dims = { 1 }, .n_bytes = 1, .data = &byte
        };
        assert_true(tke_tensor_file_write(path, &t, 1, NULL, 0600, &err));
        byte = 2;
        fail_call(rows[i].call, rows[i].nth);
        assert_false(tke_tensor_file_write(path, &t, 1, NULL, 0600, &err));
        assert_true(call_has_failed());
        err = (tinkc_error){ 0 };
        assert_true(tke_tensor_file_open(&f, path, &err));
        assert_int_equal(f.tensors[0].data[0], rows[i].replaced ? 2 : 1);
        tke_tensor_file_close(&f);
        assert_int_equal(access(beside, F_OK), -1);
    }
    tiny_model_remove(folder);
}

TEST(data_may_lie_at_any_offset)
{
    static const char header[] = "{\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                                 "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
                                 "\"h\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[16,20]},"
                                 "\"i\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[20,22]}}";
    const double d = 0.5;
    const float f[2] = { -2, 3 };
    const uint16_t h[3] = { 0x3f80, 0xc000, 0x3c00 }; /* 1, -2 as BF16; 1 as F16 */
    tinkc_error err = { 0 };
    tke_tensor_file file = { 0 };
    size_t len = strlen(header) | 1, total = 8 + len + 22;
    unsigned char *bytes = test_calloc(1, total);
    bytes[0] = (unsigned char)len, bytes[1] = (unsigned char)(len >> 8);
    memset(bytes + 8, ' ', len);
    memcpy(bytes + 8, header, strlen(header));
    memcpy(bytes + 8 + len, &d, 8);
    memcpy(bytes + 16 + len, f, 8);
    memcpy(bytes + 24 + len, h, 6);
    assert_true(tke_tensor_file_read(&file, (tinkc_bytes){ bytes, total }, "some.file", &err));
    static const struct {
        const char *name;
        size_t n;
        tke_real values[2];
    } wanted[] = { { "d", 1, { 0.5f } }, { "f", 2, { -2, 3 } }, { "h", 2, { 1, -2 } }, { "i", 1, { 1 } } };
    for (size_t i = 0; i < 4; i++) {
        tke_real got[2] = { 0 };
        const tke_file_tensor *t = tke_tensor_file_find(&file, wanted[i].name);
        assert_non_null(t);
        assert_int_equal((uintptr_t)t->data % 2, 1);
        tke_widen((tke_dtype)t->dtype, t->data, wanted[i].n, got);
        for (size_t k = 0; k < wanted[i].n; k++)
            assert_true(got[k] == wanted[i].values[k]);
    }
    tke_tensor_file_close(&file);
    test_free(bytes);
}
