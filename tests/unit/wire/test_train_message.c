/* forward_backward requests: the protocol's own bytes, every chunk and tensor kind both ways, and
 * what hostile bytes get. */
#include "support/check.h"
#include "support/ledger.h"
#include "support/scratch.h"

#include "wire/tensor.h"

/* Vector A of the protocol's description. */
static const char vector_a[] = "0a0d72756e2d373a747261696e3a3010011a640a100a0e0a0c050000000600000007000000"
                               "12300a0d7461726765745f746f6b656e73121f0a1806000000000000000700000000000000"
                               "08000000000000001802220103121e0a077765696768747312130a0c000000000000803f00"
                               "00803f1801220103220d63726f73735f656e74726f7079";

static const int32_t tokens[] = { 5, 6, 7 };
static const int64_t targets[] = { 6, 7, 8 }, three[] = { 3 };
static const float weights[] = { 0, 1, 1 };
static const tinkc_chunk chunk_a = { .kind = TINKC_CHUNK_TOKENS, .expected_tokens = -1, .tokens = { tokens, 3 } };
static const tkc_named_tensor inputs_a[] = {
    { "target_tokens", { .data = targets, .count = 3, .shape = { three, 1 }, .dtype = TINKC_I64 } },
    { "weights", { .data = weights, .count = 3, .shape = { three, 1 }, .dtype = TINKC_F32 } },
};
static const tkc_datum datum_a = { .chunks = { &chunk_a, 1 }, .inputs = { inputs_a, 2 } };
static const tkc_forward_backward_request request_a = {
    .model_id = "run-7:train:0",
    .seq_id = 1,
    .data = { &datum_a, 1 },
    .loss_fn = "cross_entropy",
};

/* Everything a request can hold. */
static const int64_t matrix[] = { 3, 4 }, crow[] = { 0, 1, 1, 2 }, col[] = { 1, 3 };
static const float stored[] = { 0.5f, 2.0f };
static const tinkc_chunk chunks_b[] = {
    { .kind = TINKC_CHUNK_IMAGE,
      .expected_tokens = 64,
      .bytes = { (const void *)"png!", 4 },
      .format = "png",
      .location = "" },
    { .kind = TINKC_CHUNK_TOKENS, .expected_tokens = -1, .format = "", .location = "" },
    { .kind = TINKC_CHUNK_DMEL,
      .expected_tokens = -1,
      .bytes = { (const void *)"\x04\x02\x82\x01\x50", 5 },
      .format = "",
      .location = "" },
    { .kind = TINKC_CHUNK_IMAGE,
      .expected_tokens = -1,
      .bytes = { (const void *)"j", 1 },
      .format = "jpeg",
      .location = "" },
};
static const tkc_named_tensor inputs_b[] = {
    { "weights",
      { .data = stored,
        .count = 2,
        .shape = { matrix, 2 },
        .crow = { crow, 4 },
        .col = { col, 2 },
        .dtype = TINKC_F32,
        .sparse = true } },
    { "empty", { .data = stored, .count = 0, .dtype = TINKC_F32 } },
};
static const tkc_datum data_b[] = { { .chunks = { chunks_b, 4 }, .inputs = { inputs_b, 2 } },
                                    { .chunks = { &chunk_a, 1 }, .inputs = { inputs_a, 2 } },
                                    { .chunks = { NULL, 0 } } };
static const tkc_forward_backward_request request_b = {
    .model_id = "m",
    .seq_id = INT32_MAX,
    .data = { data_b, 3 },
    .loss_fn = "ppo",
    .loss_fn_config = { (const char *const[]){ "clip_low_threshold", "beta" }, (const double[]){ 0.8, -1e300 }, 2 },
    .loss_id = "s:loss:0",
    .forward_only = true,
};

static void assert_same_tensor(const tkc_tensor *x, const tkc_tensor *y)
{
    assert_int_equal(x->dtype, y->dtype);
    assert_int_equal(x->sparse, y->sparse);
    assert_int_equal(x->count, y->count);
    assert_memory_equal(x->data, y->data, x->count * tkc_dtype_size(x->dtype));
    assert_int_equal(x->shape.len, y->shape.len);
    if (x->shape.len)
        assert_memory_equal(x->shape.data, y->shape.data, x->shape.len * 8);
    assert_int_equal(x->crow.len, y->crow.len);
    if (x->crow.len)
        assert_memory_equal(x->crow.data, y->crow.data, x->crow.len * 8);
    assert_int_equal(x->col.len, y->col.len);
    if (x->col.len)
        assert_memory_equal(x->col.data, y->col.data, x->col.len * 8);
    assert_int_equal((uintptr_t)y->data % tkc_dtype_size(y->dtype), 0);
    assert_int_equal((uintptr_t)y->crow.data % 8, 0);
    assert_int_equal((uintptr_t)y->col.data % 8, 0);
}

static void assert_same_chunk(const tinkc_chunk *x, const tinkc_chunk *y)
{
    assert_int_equal(x->kind, y->kind);
    assert_int_equal(x->expected_tokens, y->expected_tokens);
    assert_int_equal(x->tokens.len, y->tokens.len);
    if (x->tokens.len)
        assert_memory_equal(x->tokens.data, y->tokens.data, x->tokens.len * 4);
    assert_int_equal((uintptr_t)y->tokens.data % 4, 0);
    assert_int_equal(x->bytes.len, y->bytes.len);
    if (x->bytes.len)
        assert_memory_equal(x->bytes.data, y->bytes.data, x->bytes.len);
    assert_string_equal(x->format ? x->format : "", y->format);
}

static void assert_same(const tkc_forward_backward_request *x, const tkc_forward_backward_request *y)
{
    assert_string_equal(x->model_id, y->model_id);
    assert_string_equal(x->loss_fn, y->loss_fn);
    assert_int_equal(x->seq_id, y->seq_id);
    assert_int_equal(x->forward_only, y->forward_only);
    assert_int_equal(x->loss_id != NULL, y->loss_id != NULL);
    if (x->loss_id)
        assert_string_equal(x->loss_id, y->loss_id);
    assert_int_equal(x->loss_fn_config.len, y->loss_fn_config.len);
    for (size_t i = 0; i < x->loss_fn_config.len; i++) {
        assert_string_equal(x->loss_fn_config.names[i], y->loss_fn_config.names[i]);
        assert_true(x->loss_fn_config.values[i] == y->loss_fn_config.values[i]);
    }
    assert_int_equal(x->data.len, y->data.len);
    for (size_t i = 0; i < x->data.len; i++) {
        const tkc_datum *d = &x->data.data[i], *e = &y->data.data[i];
        assert_int_equal(d->chunks.len, e->chunks.len);
        for (size_t k = 0; k < d->chunks.len; k++)
            assert_same_chunk(&d->chunks.data[k], &e->chunks.data[k]);
        assert_int_equal(d->inputs.len, e->inputs.len);
        for (size_t k = 0; k < d->inputs.len; k++) {
            assert_string_equal(d->inputs.data[k].name, e->inputs.data[k].name);
            assert_same_tensor(&d->inputs.data[k].tensor, &e->inputs.data[k].tensor);
        }
    }
}

static tinkc_bytes written(const tkc_forward_backward_request *r)
{
    tinkc_error err = { 0 };
    tkc_buf_clear(&out);
    tkc_forward_backward_to_pb(r, &out, &err);
    assert_ok(err);
    return (tinkc_bytes){ (const void *)out.data, out.len };
}

TEST(vector_a_is_written_and_read)
{
    tinkc_error err = { 0 };
    tinkc_bytes want = unhex(&arena, vector_a), got = written(&request_a);
    assert_int_equal(got.len, 134);
    assert_int_equal(tkc_forward_backward_pb_size(&request_a), 134);
    assert_memory_equal(got.data, want.data, want.len);
    tkc_forward_backward_request read;
    tkc_forward_backward_from_pb(want, TINKC_E_UNPROCESSABLE, &arena, &read, &err);
    assert_ok(err);
    assert_same(&request_a, &read);
    tkc_forward_backward_request forward = request_a;
    forward.forward_only = true;
    got = written(&forward);
    assert_int_equal(got.len, 136);
    assert_memory_equal(got.data + 134, "\x30\x01", 2);
}

/* At each of the eight alignments the bytes can come in. */
TEST(everything_survives_both_ways)
{
    tinkc_bytes got = written(&request_b);
    for (size_t shift = 0; shift < 8; shift++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request read;
        char *copy = exact_copy(got.data, got.len), *moved = exact_copy("", 0);
        free_copy(moved, 0);
        moved = tkc_arena_alloc(&arena, got.len + shift, &err);
        memcpy(moved + shift, copy, got.len);
        free_copy(copy, got.len);
        tkc_forward_backward_from_pb((tinkc_bytes){ (void *)(moved + shift), got.len }, TINKC_E_UNPROCESSABLE, &arena,
                                     &read, &err);
        assert_ok(err);
        assert_same(&request_b, &read);
    }
}

TEST(aligned_payloads_are_views)
{
    tinkc_error err = { 0 };
    tinkc_bytes got = written(&request_a);
    char *base = tkc_arena_alloc(&arena, got.len + 8, &err);
    for (size_t shift = 0, views = 0; shift < 8; shift++) {
        tkc_forward_backward_request read;
        memcpy(base + shift, got.data, got.len);
        tkc_forward_backward_from_pb((tinkc_bytes){ (void *)(base + shift), got.len }, 1, &arena, &read, &err);
        const char *at = (const void *)read.data.data[0].chunks.data[0].tokens.data;
        views += at >= base && at < base + got.len + 8;
        if (shift == 7)
            assert_int_equal(views, 2); /* two of eight places are multiples of four */
    }
}

TEST(a_cut_off_request_never_reads_beyond)
{
    tinkc_bytes got = written(&request_b);
    size_t refused = 0;
    for (size_t n = 0; n < got.len; n++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request read;
        char *copy = exact_copy(got.data, n);
        refused +=
            !tkc_forward_backward_from_pb((tinkc_bytes){ (void *)copy, n }, TINKC_E_UNPROCESSABLE, &arena, &read, &err);
        free_copy(copy, n);
    }
    assert_true(refused > got.len - 20); /* all but the cuts between two fields */
}

TEST(a_changed_byte_never_crashes)
{
    tinkc_bytes got = written(&request_b);
    for (size_t n = 0; n < got.len; n++)
        for (int bit = 0; bit < 8; bit++) {
            tinkc_error err = { 0 };
            tkc_forward_backward_request read;
            char *copy = exact_copy(got.data, got.len);
            copy[n] = (char)(copy[n] ^ 1 << bit);
            if (tkc_forward_backward_from_pb((tinkc_bytes){ (void *)copy, got.len }, 1, &arena, &read, &err))
                for (size_t i = 0; i < read.data.len; i++) {
                    for (size_t k = 0; k < read.data.data[i].inputs.len; k++) {
                        tinkc_error bad = { 0 };
                        (void)tkc_tensor_check(&read.data.data[i].inputs.data[k].tensor, "x", &bad);
                    }
                }
            free_copy(copy, got.len);
            tkc_arena_reset(&arena);
        }
}

TEST(repeated_names_and_unpacked_shapes_are_read)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_request read;
    /* Datum {inputs a: dense "", dtype 1, shape 2, 3 unpacked; then a again with dtype 2}; unknown
     * field 15 before it. */
    tinkc_bytes bytes = unhex(&arena, "7a0178"
                                      "1a1e"
                                      "120d0a01611208"
                                      "0a00180120022003"
                                      "120d0a01611208"
                                      "0a00180220022003");
    tkc_forward_backward_from_pb(bytes, 1, &arena, &read, &err);
    assert_ok(err);
    assert_int_equal(read.data.data[0].inputs.len, 1);
    const tkc_tensor *t = tkc_datum_input(&read.data.data[0], "a");
    assert_int_equal(t->dtype, TINKC_I64);
    assert_int_equal(t->shape.len, 2);
    assert_int_equal(t->shape.data[1], 3);
    assert_string_equal(read.model_id, "");
    assert_null(tkc_datum_input(&read.data.data[0], "b"));
}

static void check_fails(tkc_tensor t, const char *part)
{
    tinkc_error err = { 0 };
    assert_false(tkc_tensor_check(&t, "weights", &err));
    assert_int_equal(err.code, TINKC_E_TENSOR);
    if (!strstr(err.message, part) || !strstr(err.message, "weights"))
        fail_msg("%s", err.message);
}

/* Half an element is not malformed protobuf: the tensor is read, and refused when it is checked. */
TEST(half_elements_are_found_by_the_check)
{
    static const char *const cases[] = {
        "1a12"
        "12100a0161120b"
        "0a05"
        "0102030405"
        "18012000", /* dense, 5 bytes of float */
        "1a16"
        "12140a0161120f"
        "120b"
        "0a04"
        "00000000"
        "1203"
        "010203"
        "1801", /* crow of 3 bytes */
    };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request read;
        tkc_forward_backward_from_pb(unhex(&arena, cases[i]), 1, &arena, &read, &err);
        assert_ok(err);
        const tkc_tensor *t = tkc_datum_input(&read.data.data[0], "a");
        assert_non_null(t);
        check_fails(*t, "not a multiple of the element");
    }
}

TEST(many_names_are_kept_once_each)
{
    tinkc_error err = { 0 };
    const char *names[400];
    double values[400];
    for (size_t i = 0; i < 400; i++) {
        names[i] = tkc_arena_printf(&arena, &err, "n%zu", i % 250);
        values[i] = (double)i;
    }
    tkc_forward_backward_request r = request_a, read;
    r.loss_fn_config = (tkc_numbers){ names, values, 400 };
    tinkc_bytes got = written(&r);
    tkc_forward_backward_from_pb(got, 1, &arena, &read, &err);
    assert_ok(err);
    assert_int_equal(read.loss_fn_config.len, 250);
    assert_true(tkc_numbers_get(&read.loss_fn_config, "n3", -1) == 253);
    assert_true(tkc_numbers_get(&read.loss_fn_config, "n200", -1) == 200);
}

/* ---- tensors by themselves ---- */

TEST(sparse_and_narrow_tensors_become_dense_and_wide)
{
    tinkc_error err = { 0 };
    tinkc_tensor wide;
    assert_true(tkc_tensor_dense(&inputs_b[0].tensor, &arena, &wide, &err));
    const float want[12] = { 0, 0.5f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2.0f };
    assert_int_equal(wide.count, 12);
    assert_int_equal(wide.ndim, 2);
    assert_memory_equal(wide.data, want, sizeof want);
    tkc_tensor narrow = { .data = tokens, .count = 3, .dtype = TINKC_I32 };
    assert_true(tkc_tensor_dense(&narrow, &arena, &wide, &err));
    assert_int_equal(wide.dtype, TINKC_I64);
    assert_int_equal(((const int64_t *)wide.data)[2], 7);
    assert_int_equal(wide.shape[0], 3);
    const uint16_t bf16[] = { 0x3F80, 0xC000, 0x7F80 };
    narrow = (tkc_tensor){ .data = bf16, .count = 3, .dtype = TINKC_BF16 };
    assert_true(tkc_tensor_dense(&narrow, &arena, &wide, &err));
    assert_true(((const float *)wide.data)[1] == -2.0f);
    const int64_t huge[] = { 2, 1 << 30 }, rows[] = { 0, 0, 0 };
    tkc_tensor bomb = {
        .data = stored, .shape = { huge, 2 }, .crow = { rows, 3 }, .col = { col, 0 }, .dtype = TINKC_F32, .sparse = true
    };
    assert_true(tkc_tensor_check(&bomb, "x", &err));
    assert_false(tkc_tensor_dense(&bomb, &arena, &wide, &err));
    assert_int_equal(err.code, TINKC_E_TENSOR);
}

/* ---- JSON ---- */

TEST(the_older_json_form_is_read)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_request read;
    const char *json = "{\"model_id\":\"run-7:train:0\",\"seq_id\":1,\n"
                       " \"forward_backward_input\":{\"loss_fn\":\"cross_entropy\",\"data\":[\n"
                       "  {\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[5,6,7]}]},\n"
                       "   \"loss_fn_inputs\":{\"target_tokens\":{\"data\":[6,7,8],\"dtype\":\"int64\",\"shape\":"
                       "[3]},\n\"weights\":{\"data\":[0.0,1.0,1.0],\"dtype\":\"float32\",\"shape\":[3]}}}]}}";
    tkc_forward_backward_from_json(tkc_str(json), TINKC_E_UNPROCESSABLE, &arena, &read, NULL, &err);
    assert_ok(err);
    assert_same(&request_a, &read);
    for (size_t n = 0; n < strlen(json); n++) {
        char *copy = exact_copy(json, n);
        err = (tinkc_error){ 0 };
        assert_false(
            tkc_forward_backward_from_json(tkc_strn(copy, n), TINKC_E_UNPROCESSABLE, &arena, &read, NULL, &err));
        assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
        free_copy(copy, n);
    }
}

TEST(json_survives_both_ways)
{
    const tkc_forward_backward_request *all[] = { &request_a, &request_b };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request read;
        tkc_buf_clear(&out);
        tkc_forward_backward_to_json(all[i], &out, &err);
        assert_ok(err);
        tkc_forward_backward_from_json(tkc_buf_view(&out), 1, &arena, &read, NULL, &err);
        assert_ok(err);
        assert_same(all[i], &read);
    }
}

/* The n-th allocation fails, for every n: an error, no crash, nothing lost. */
TEST(running_out_of_memory_is_an_error)
{
    bool done = false;
    for (int n = 0; !done; n++) {
        ledger l = { .left = n };
        tinkc_allocator a = ledger_allocator(&l);
        tinkc_error err = { 0 };
        tkc_arena small;
        tkc_buf pb, json;
        tkc_forward_backward_request read;
        tkc_arena_init(&small, &a, 0);
        tkc_buf_init(&pb, &a, TKC_BUF_NO_MAX);
        tkc_buf_init(&json, &a, TKC_BUF_NO_MAX);
        done = tkc_forward_backward_to_pb(&request_b, &pb, &err) &&
               tkc_forward_backward_from_pb((tinkc_bytes){ (void *)pb.data, pb.len }, 1, &small, &read, &err) &&
               tkc_forward_backward_to_json(&read, &json, &err) &&
               tkc_forward_backward_from_json(tkc_buf_view(&json), 1, &small, &read, NULL, &err);
        if (!done)
            assert_int_equal(err.code, TINKC_E_MEMORY);
        tkc_arena_free(&small);
        tkc_buf_free(&pb);
        tkc_buf_free(&json);
        assert_true(l.blocks == 0 && l.bytes == 0);
        assert_true(n < 1000);
    }
}

RUN_TESTS(set_up, tear_down)
