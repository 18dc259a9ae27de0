/* Bulk messages as they are sent: what is checked before the first byte is written, what is appended to what
 * a buffer holds already, and the JSON forms member by member. */
#include "support/check.h"
#include "support/scratch.h"

#include <math.h>

#include "wire/answer.h"
#include "wire/bulk.h"
#include "wire/messages.h"
#include "wire/sample_message.h"
#include "wire/tensor.h"

static const int64_t one_row[] = { 1 }, two_columns[] = { 1, 2 };
static const float floats[] = { 1, 2, 3, 4 };

/* ---- requests of passes ---- */

static const char *const names[] = { "a", "b" };
static const double values[] = { 1, 2 };

static const tinkc_chunk image = {
    .kind = TINKC_CHUNK_IMAGE, .expected_tokens = 0, .bytes = { (const void *)"x", 1 }, .format = "png"
};
static const tkc_named_tensor input = { "w", { .data = floats, .count = 1, .dtype = TINKC_F32 } };

TEST_WITH(requests_that_cannot_be_sent, set_up, tear_down)
{
    enum {
        SEQ_BELOW,
        SEQ_ABOVE,
        MODEL,
        NO_MODEL,
        LOSS,
        NO_LOSS,
        NAME,
        LAST_NAME,
        FORMAT,
        NO_FORMAT,
        POINTER,
        KIND,
        INPUT,
        NO_INPUT,
        TYPE_BELOW,
        TYPE_NONE,
        TYPE_F16,
        TYPE_F64,
        TYPE_ABOVE,
        FINE
    };
    static const char *const why[] = { "seq_id does not fit 32 bits",
                                       "seq_id does not fit 32 bits",
                                       "model_id is not UTF-8",
                                       "model_id is missing",
                                       "loss_fn is not UTF-8",
                                       "loss_fn is missing",
                                       "a name in loss_fn_config is not UTF-8",
                                       "a name in loss_fn_config is not UTF-8",
                                       "an image's format is not UTF-8",
                                       "an image's format is missing",
                                       "an image pointer can be sampled from, not trained on",
                                       "a chunk of unknown kind 99",
                                       "the name of a loss input is not UTF-8",
                                       "the name of a loss input is missing",
                                       "w: no element type that can be sent",
                                       "w: no element type that can be sent",
                                       "w: no element type that can be sent",
                                       "w: no element type that can be sent",
                                       "w: no element type that can be sent",
                                       "" };
    for (int bad = 0; bad <= FINE; bad++) {
        const char *const texts[] = { bad == NAME ? "\xFF" : "a", bad == LAST_NAME ? "\xFF" : "b" };
        tinkc_chunk chunks[] = { { .kind = TINKC_CHUNK_TOKENS }, image };
        tkc_named_tensor inputs[] = { { "v", input.tensor }, input };
        tkc_datum data[] = { { .chunks = { chunks, 1 }, .inputs = { inputs, 1 } },
                             { .chunks = { chunks, 2 }, .inputs = { inputs, 2 } } };
        tkc_forward_backward_request r = { .model_id = bad == MODEL      ? "\xFF"
                                                       : bad == NO_MODEL ? NULL
                                                                         : "m",
                                           .loss_fn = bad == LOSS      ? "\xFF"
                                                      : bad == NO_LOSS ? NULL
                                                                       : "l",
                                           .seq_id = bad == SEQ_BELOW   ? -1
                                                     : bad == SEQ_ABOVE ? (int64_t)INT32_MAX + 1
                                                                        : INT32_MAX,
                                           .loss_fn_config = { texts, values, 2 },
                                           .data = { data, 2 } };
        if (bad == FORMAT || bad == NO_FORMAT)
            chunks[1].format = bad == FORMAT ? "\xFF" : NULL;
        if (bad == POINTER || bad == KIND)
            chunks[1].kind = bad == KIND ? 99 : TINKC_CHUNK_IMAGE_POINTER;
        if (bad == INPUT || bad == NO_INPUT)
            inputs[1].name = bad == INPUT ? "\xFF" : NULL;
        static const int32_t types[] = { -1, 0, TINKC_F16, TINKC_F64, TINKC_F64 + 1 };
        if (bad >= TYPE_BELOW && bad <= TYPE_ABOVE)
            inputs[1].tensor.dtype = types[bad - TYPE_BELOW];
        tinkc_error err = { 0 }, again = { 0 };
        tkc_buf_clear(&out);
        assert_int_equal(tkc_forward_backward_check(&r, &err), bad == FINE);
        assert_int_equal(tkc_forward_backward_to_pb(&r, &out, &again), bad == FINE);
        assert_string_equal(err.message, why[bad]);
        assert_string_equal(again.message, why[bad]);
        assert_int_equal(err.code, bad == FINE                     ? 0
                                   : bad == POINTER || bad == KIND ? TINKC_E_UNSUPPORTED
                                   : bad >= TYPE_BELOW             ? TINKC_E_TENSOR
                                                                   : TINKC_E_ARGUMENT);
        assert_int_equal(out.len, bad == FINE ? tkc_forward_backward_pb_size(&r) : 0);
    }
}

static const tkc_datum image_datum = { .chunks = { &image, 1 }, .inputs = { &input, 1 } };
static const tkc_forward_backward_request image_request = {
    .model_id = "m", .loss_fn = "l", .data = { &image_datum, 1 }, .loss_fn_config = { names, values, 2 }
};

/* 0 expected tokens is a number of tokens, in both forms. */
TEST_WITH(zero_expected_tokens, set_up, tear_down)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_request back;
    assert_true(tkc_forward_backward_to_pb(&image_request, &out, &err));
    tkc_forward_backward_from_pb((tinkc_bytes){ (void *)out.data, out.len }, TINKC_E_BAD_RESPONSE, &arena, &back, &err);
    assert_ok(err);
    assert_int_equal(back.data.data[0].chunks.data[0].expected_tokens, 0);
    tkc_buf_clear(&out);
    assert_true(tkc_forward_backward_to_json(&image_request, &out, &err));
    assert_non_null(strstr(tkc_buf_terminate(&out, &err), "\"expected_tokens\":0,"));
    tkc_forward_backward_from_json(tkc_buf_view(&out), TINKC_E_BAD_RESPONSE, &arena, &back, NULL, &err);
    assert_ok(err);
    assert_int_equal(back.data.data[0].chunks.data[0].expected_tokens, 0);
}

/* ---- appending ---- */

static tkc_forward_backward_output small_output(tkc_array_record *record)
{
    static const int64_t offsets[] = { 0, 4 };
    static const tkc_batched_tensor field = {
        "f", { (const void *)floats, 4 }, { offsets, 2 }, { NULL, 0 }, TINKC_F32
    };
    *record = (tkc_array_record){ .type_tag = "", .fields = { &field, 1 }, .n_datums = 1 };
    return (tkc_forward_backward_output){
        .type = "t", .records = { record, 1 }, .metrics = { names, values, 2 }, .n_datums = 1
    };
}

/* A message goes behind what the buffer holds, and is the same there as in an empty one. */
TEST_WITH(messages_are_appended, set_up, tear_down)
{
    tkc_array_record record;
    const tkc_forward_backward_output o = small_output(&record);
    const int32_t token = 5;
    const tinkc_sequence sequence = { .tokens = { &token, 1 }, .stop_reason = TINKC_STOP_LENGTH };
    const tkc_sample_response s = { .sequences = { &sequence, 1 } };
    for (int kind = 0; kind < 6; kind++) {
        tinkc_error err = { 0 };
        size_t alone = 0;
        char first[400];
        tkc_buf_clear(&out);
        for (int before = 0; before < 2; before++) {
            if (before) {
                assert_true(alone > 0 && alone < sizeof first);
                memcpy(first, out.data, alone);
                tkc_buf_clear(&out);
                tkc_buf_cstr(&out, "before", &err);
            }
            bool done = kind == 0   ? tkc_forward_backward_to_pb(&image_request, &out, &err)
                        : kind == 1 ? tkc_forward_backward_to_json(&image_request, &out, &err)
                        : kind == 2 ? tkc_output_to_pb(&o, &out, &err)
                        : kind == 3 ? tkc_output_to_json(&o, &out, &err)
                        : kind == 4 ? tkc_sample_response_to_pb(&s, &out, &err)
                                    : tkc_sample_response_to_json(&s, &out, &err);
            assert_ok(err);
            assert_true(done);
            alone = before ? alone : out.len;
        }
        assert_int_equal(out.len, alone + 6);
        assert_memory_equal(out.data, "before", 6);
        assert_memory_equal(out.data + 6, first, alone);
        tkc_fail(&err, TINKC_E_STATE, "earlier"); /* after a failure nothing is written */
        assert_false(kind == 0   ? tkc_forward_backward_to_pb(&image_request, &out, &err)
                     : kind == 2 ? tkc_output_to_pb(&o, &out, &err)
                     : kind == 3 ? tkc_output_to_json(&o, &out, &err)
                     : kind == 4 ? tkc_sample_response_to_pb(&s, &out, &err)
                                 : tkc_failed(&err) == 0);
        assert_int_equal(out.len, alone + 6);
    }
}

/* ---- results of passes ---- */

TEST_WITH(outputs_that_cannot_be_sent, set_up, tear_down)
{
    for (int bad = 0; bad < 4; bad++) {
        const char *const metrics[] = { bad == 1 ? "\xFF" : "a", bad == 2 ? "\xFF" : "b" };
        tkc_array_record record;
        tkc_forward_backward_output o = small_output(&record);
        o.type = bad == 0 ? "\xFF" : "t";
        o.metrics.names = metrics;
        for (int json = 0; json < 2; json++) {
            tinkc_error err = { 0 };
            tkc_buf_clear(&out);
            assert_int_equal(json ? tkc_output_to_json(&o, &out, &err) : tkc_output_to_pb(&o, &out, &err), bad == 3);
            assert_string_equal(err.message, bad == 0   ? "the output's type is not UTF-8"
                                             : bad == 3 ? ""
                                                        : "the name of a metric is not UTF-8");
            assert_true(bad == 3 || out.len == 0);
        }
    }
}

static void assert_rows(const tkc_output_row *rows, size_t n, size_t n_records, const char *why)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_output o = { 0 };
    bool done = tkc_output_from_rows(rows, n, &arena, &o, &err);
    assert_string_equal(err.message, why);
    assert_int_equal(done, *why == '\0');
    assert_int_equal(err.code, done ? 0 : TINKC_E_TENSOR);
    if (done) {
        assert_int_equal(o.records.len, n_records);
        assert_int_equal(o.n_datums, n);
    }
}

/* Rows of one kind share a record; rows that have not the same outputs are refused. */
TEST_WITH(rows_of_outputs, set_up, tear_down)
{
    const tkc_tensor flat = { .data = floats, .count = 1, .dtype = TINKC_F32, .shape = { one_row, 1 } };
    const tkc_tensor wide = { .data = floats, .count = 2, .dtype = TINKC_F32, .shape = { two_columns, 2 } };
    tkc_tensor unfit = wide, sparse = flat;
    unfit.count = 3;
    sparse.sparse = true;
    const tkc_named_tensor ab[] = { { "a", flat }, { "b", flat } };
    const tkc_named_tensor a_wide_b[] = { { "a", flat }, { "b", wide } };
    const tkc_named_tensor ac[] = { { "a", flat }, { "c", flat } };
    const tkc_named_tensor a_unfit_b[] = { { "a", flat }, { "b", unfit } };
    const tkc_named_tensor a_sparse_b[] = { { "a", flat }, { "b", sparse } };
#define ROW(fields)                                                                                                    \
    {                                                                                                                  \
        {                                                                                                              \
            fields, 2                                                                                                  \
        }                                                                                                              \
    }
    assert_rows((const tkc_output_row[]){ ROW(ab) }, 0, 0, "");
    assert_rows((const tkc_output_row[]){ ROW(ab) }, 1, 1, "");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(ab) }, 2, 1, "");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(ab), ROW(ab) }, 3, 1, "");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(ab), ROW(a_wide_b) }, 3, 2, "");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(a_wide_b), ROW(ab) }, 3, 3, "");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(ab), { { ab, 1 } } }, 3, 0,
                "datum 2 has other outputs than the first");
    assert_rows((const tkc_output_row[]){ { { ab, 1 } }, ROW(ab) }, 2, 0, "datum 1 has other outputs than the first");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(ac) }, 2, 0, "datum 1 has no dense output b");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(a_sparse_b) }, 2, 0, "datum 1 has no dense output b");
    assert_rows((const tkc_output_row[]){ ROW(a_sparse_b) }, 1, 0, "datum 0 has no dense output b");
    assert_rows((const tkc_output_row[]){ ROW(ab), ROW(a_unfit_b) }, 2, 0,
                "b: its shape does not fit the number of its elements");
    assert_rows((const tkc_output_row[]){ ROW(a_unfit_b) }, 1, 0,
                "b: its shape does not fit the number of its elements");
}

TEST_WITH(outputs_in_json_that_are_refused, set_up, tear_down)
{
    static const char *const rows[][2] = {
        { "{\"loss_fn_outputs\":[],\"metrics\":{}}", "loss_fn_output_type: JSON: is missing" },
        { "{\"loss_fn_output_type\":\"t\",\"metrics\":{}}", "loss_fn_outputs: JSON: is missing" },
        { "{\"loss_fn_output_type\":\"t\",\"loss_fn_outputs\":[]}", "metrics: JSON: is missing" },
        { "{\"loss_fn_output_type\":\"t\",\"loss_fn_outputs\":[{},{\"a\":{\"data\":[1],\"dtype\":"
          "\"int64\"}}],"
          "\"metrics\":{}}",
          "forward_backward result: datum 1 has other outputs than the first" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_output o;
        memset(&o, 0x55, sizeof o);
        assert_false(tkc_output_from_json(tkc_str(rows[i][0]), &arena, &o, &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
        if (strncmp(err.message, rows[i][1], strlen(rows[i][1])) != 0)
            fail_msg("%s: %s", rows[i][0], err.message);
        assert_int_equal(o.metrics.len, 0);
    }
}

/* ---- JSON of requests ---- */

/* What a chunk needs by its type: no other member stands in for it, and unknown ones are passed over. */
TEST_WITH(contents_of_chunks, set_up, tear_down)
{
    static const char *const types[] = { "encoded_text", "image", "image_asset_pointer", "dmel" };
    static const char *const members[] = { "\"tokens\":[1]", "\"data\":\"eA==\"", "\"location\":\"l\"",
                                           "\"dmel\":\"eA==\"" };
    for (size_t type = 0; type < 4; type++)
        for (unsigned given = 0; given < 16; given++) {
            char json[300];
            (void)snprintf(json, sizeof json, "{\"chunks\":[{\"new\":[{}],\"type\":\"%s\"", types[type]);
            for (size_t k = 0; k < 4; k++)
                if (given >> k & 1)
                    (void)snprintf(json + strlen(json), 40, ",%s", members[k]);
            (void)snprintf(json + strlen(json), 40, "}]}");
            tinkc_error err = { 0 };
            tkc_model_input read;
            bool done =
                tkc_message_decode(&tkc_model_input_type, tkc_str(json), TINKC_E_BAD_RESPONSE, &arena, &read, &err);
            if (done != (given >> type & 1))
                fail_msg("%s: %s", json, err.message);
            if (!done) {
                assert_non_null(strstr(err.message, "a chunk without its contents"));
                continue;
            }
            const tinkc_chunk *c = &read.chunks.data[0];
            assert_int_equal(c->bytes.len, type == 1 || type == 3);
            if (type == 0)
                assert_true(c->tokens.len == 1 && c->tokens.data[0] == 1);
            if (type == 2)
                assert_string_equal(c->location, "l");
        }
    tinkc_error err = { 0 };
    tinkc_chunk odd = { .kind = 99 };
    tkc_model_input unknown = { { &odd, 1 } };
    assert_false(tkc_message_encode(&tkc_model_input_type, &unknown, &out, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_string_equal(err.message, "a chunk of unknown kind 99");
}

/* One of the two members says what is to be done; null is as good as absent. */
TEST_WITH(passes_forward_and_back, set_up, tear_down)
{
#define WORK "{\"data\":[],\"loss_fn\":\"x\"}"
    static const struct {
        const char *json;
        int want; /* 1 = forward only, -1 = refused */
    } rows[] = {
        { "{\"model_id\":\"m\",\"forward_input\":" WORK "}", 1 },
        { "{\"model_id\":\"m\",\"forward_backward_input\":" WORK "}", 0 },
        { "{\"model_id\":\"m\",\"forward_backward_input\":" WORK ",\"forward_input\":null}", 0 },
        { "{\"model_id\":\"m\",\"forward_backward_input\":null,\"forward_input\":" WORK "}", 1 },
        { "{\"model_id\":\"m\",\"forward_backward_input\":" WORK ",\"forward_input\":" WORK "}", -1 },
        { "{\"model_id\":\"m\",\"forward_backward_input\":null,\"forward_input\":null}", -1 },
        { "{\"model_id\":\"m\"}", -1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_request r;
        memset(&r, 0x55, sizeof r);
        bool done =
            tkc_forward_backward_from_json(tkc_str(rows[i].json), TINKC_E_UNPROCESSABLE, &arena, &r, NULL, &err);
        assert_int_equal(done, rows[i].want >= 0);
        assert_int_equal(r.data.len, 0);
        if (done)
            assert_int_equal(r.forward_only, rows[i].want);
        else
            assert_string_equal(err.message, "forward_backward request: it needs forward_backward_input or "
                                             "forward_input, and not both");
    }
}

/* ---- tensors in JSON ---- */

TEST_WITH(tensors_in_json, set_up, tear_down)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tkc_tensor t;
    memset(&t, 0x55, sizeof t);
    tkc_json_open(&j,
                  tkc_str("{\"new\":[{}],\"data\":[1,2],\"dtype\":\"int64\",\"shape\":null,"
                          "\"sparse_crow_indices\":null,\"sparse_col_indices\":null}"),
                  &arena, &err);
    tkc_tensor_read(&j, &t);
    assert_true(tkc_json_close(&j));
    assert_ok(err);
    assert_true(t.count == 2 && t.shape.len == 0 && t.crow.len == 0 && t.col.len == 0 && !t.sparse && !t.ragged);
    /* of a member that comes twice nothing is left of the first */
    tkc_sample_response r;
    assert_true(tkc_sample_response_from_json(
        tkc_str("{\"sequences\":[],\"target_prompt_logprobs\":{\"data\":[1],\"dtype\":\"float32\","
                "\"shape\":[1,1],"
                "\"sparse_crow_indices\":[0,1],\"sparse_col_indices\":[0]},"
                "\"target_prompt_logprobs\":{\"data\":[2],\"dtype\":\"float32\"}}"),
        &arena, &r, &err));
    assert_true(!r.target_prompt_logprobs.sparse && r.target_prompt_logprobs.shape.len == 0);
    assert_true(tkc_sample_response_from_pb(unhex(&arena, "2a0d12060a040000803f18012201012a020a00"), &arena, &r, &err));
    assert_true(!r.target_prompt_logprobs.sparse && r.target_prompt_logprobs.shape.len == 0 &&
                r.target_prompt_logprobs.dtype == 0);
}

/* A tensor of 1 GiB is made if there is memory for it; one that is larger is not even tried. */
TEST_WITH(sparse_tensors_that_are_too_large, set_up, tear_down)
{
    for (int64_t more = 0; more < 2; more++) {
        const int64_t shape[] = { 1, ((int64_t)1 << 28) + more }, crow[] = { 0, 1 }, col[] = { 0 };
        const tkc_tensor t = { .data = floats,
                               .count = 1,
                               .shape = { shape, 2 },
                               .crow = { crow, 2 },
                               .col = { col, 1 },
                               .dtype = TINKC_F32,
                               .sparse = true };
        tinkc_error err = { 0 };
        tinkc_tensor dense;
        tkc_arena small;
        tkc_arena_init(&small, NULL, 4096);
        assert_true(tkc_tensor_check(&t, "t", &err));
        assert_false(tkc_tensor_dense(&t, &small, &dense, &err));
        assert_int_equal(err.code, more ? TINKC_E_TENSOR : TINKC_E_MEMORY);
        tkc_arena_free(&small);
    }
    static const int64_t shape[] = { 2, 3 }, falls[] = { 0, 3, 2 }, col[] = { 0, 1 };
    const tkc_tensor t = { .data = floats,
                           .count = 2,
                           .shape = { shape, 2 },
                           .crow = { falls, 3 },
                           .col = { col, 2 },
                           .dtype = TINKC_F32,
                           .sparse = true };
    tinkc_error err = { 0 };
    assert_false(tkc_tensor_check(&t, "t", &err));
    assert_string_equal(err.message, "t: its row pointers must not fall");
}

/* ---- samples ---- */

/* Top-k matrices of another size than they say, in each of the two places. */
TEST_WITH(candidates_that_cannot_be_sent, set_up, tear_down)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5 };
    static const float logprobs[] = { -1, -2, -3, -4, -5 };
    for (size_t n_ids = 3; n_ids <= 5; n_ids++)
        for (size_t n_logprobs = 3; n_logprobs <= 5; n_logprobs++)
            for (int of_tokens = 0; of_tokens < 2; of_tokens++) {
                const tkc_topk t[2] = { { { ids, 4 }, { logprobs, 4 }, 2, 2 },
                                        { { ids, n_ids }, { logprobs, n_logprobs }, 2, 2 } };
                const tinkc_sequence sequences[2] = { { .stop_reason = 0 }, { .stop_reason = 0 } };
                tkc_sample_response r = { .sequences = { sequences, 2 } };
                tinkc_error err = { 0 };
                if (of_tokens)
                    r.sampled_topk = t;
                else
                    r.topk = t[1];
                bool fits = n_ids == 4 && n_logprobs == 4;
                tkc_buf_clear(&out);
                assert_int_equal(tkc_sample_response_to_pb(&r, &out, &err), fits);
                assert_string_equal(err.message, fits ? "" : "top-k matrices do not fit their size");
                assert_int_equal(out.len > 0, fits);
            }
    tkc_sample_response none = { .topk = { { NULL, 3 }, { NULL, 0 }, 7, 7 } }; /* without data it is not there */
    tinkc_error err = { 0 };
    tkc_buf_clear(&out);
    assert_true(tkc_sample_response_to_pb(&none, &out, &err));
    assert_int_equal(out.len, 0);
}

/* More cells than the text can stand for are refused: 4 for each byte of it, and 4096. */
TEST_WITH(candidates_by_the_length_of_their_text, set_up, tear_down)
{
    static const struct {
        size_t rows, k, length;
        bool fine;
    } cases[] = {
        { 120, 100, 1976, true }, { 120, 100, 1975, false }, { 121, 101, 2031, false }, { 121, 101, 2032, true }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tinkc_error err = { 0 };
        tkc_sample_response r;
        tkc_buf_clear(&out);
        tkc_buf_cstr(&out, "{\"sequences\":[],\"topk_prompt_logprobs\":[[", &err);
        for (size_t k = 0; k < cases[i].k; k++)
            tkc_buf_cstr(&out, k ? ",[1,1]" : "[1,1]", &err);
        tkc_buf_cstr(&out, "]", &err);
        for (size_t row = 1; row < cases[i].rows; row++)
            tkc_buf_cstr(&out, ",[]", &err);
        tkc_buf_cstr(&out, "]}", &err);
        assert_true(out.len < cases[i].length);
        while (out.len < cases[i].length)
            tkc_buf_char(&out, ' ', &err);
        assert_int_equal(tkc_sample_response_from_json(tkc_buf_view(&out), &arena, &r, &err), cases[i].fine);
        if (cases[i].fine)
            assert_true(r.topk.rows == cases[i].rows && r.topk.k == cases[i].k);
        else
            assert_non_null(strstr(err.message, "too many candidates"));
    }
}

TEST_WITH(parts_of_samples_in_json, set_up, tear_down)
{
    tinkc_error err = { 0 };
    tkc_sample_response r;
    assert_true(tkc_sample_response_from_json(tkc_str("{\"sequences\":[{\"stop_reason\":\"new\",\"tokens\":"
                                                      "[],\"logprobs\":null},{\"stop_reason\":\"length\","
                                                      "\"tokens\":[1],\"logprobs\":[]},{\"tokens\":[1],"
                                                      "\"logprobs\":[null,-1]}],\"prompt_logprobs\":null}"),
                                              &arena, &r, &err));
    const tinkc_sequence *s = r.sequences.data;
    assert_int_equal(s[0].stop_reason, -1); /* not one of those that are known */
    assert_true(!s[0].logprobs.data && s[0].logprobs.len == 0);
    assert_int_equal(s[1].stop_reason, TINKC_STOP_LENGTH);
    assert_true(!s[1].logprobs.data && s[1].logprobs.len == 0);
    assert_true(s[2].logprobs.len == 2 && isnan(s[2].logprobs.data[0]) && s[2].logprobs.data[1] == -1);
    assert_true(!r.prompt_logprobs.data && r.prompt_logprobs.len == 0);
    static const char *const bad[] = { "{\"sequences\":[],\"topk_prompt_logprobs\":{}}",
                                       "{\"sequences\":[],\"topk_prompt_logprobs\":[7]}",
                                       "{\"sequences\":[],\"topk_prompt_logprobs\":[[[1,-1]],{}]}",
                                       "{\"sequences\":[],\"topk_prompt_logprobs\":[[7]]}" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (tinkc_error){ 0 };
        assert_false(tkc_sample_response_from_json(tkc_str(bad[i]), &arena, &r, &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    }
}

static void assert_stop(const tkc_stop *stop, const char *want)
{
    tinkc_error err = { 0 };
    tkc_sampling_params p;
    tkc_message_init(&tkc_sampling_params_type, &p);
    p.stop = *stop;
    tkc_buf_clear(&out);
    tkc_message_encode(&tkc_sampling_params_type, &p, &out, &err);
    assert_ok(err);
    char text[200];
    (void)snprintf(text, sizeof text, "{%s\"temperature\":1.0,\"top_k\":-1,\"top_p\":1.0}", want);
    assert_str(tkc_buf_view(&out), text);
}

TEST_WITH(stops_are_written, set_up, tear_down)
{
    static const char *const none[] = { NULL }, *const two[] = { "a", "b", NULL };
    static const int32_t tokens[] = { 7, 8 };
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_NONE, .strings = two }, "");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_STRING, .strings = two }, "\"stop\":\"a\",");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_STRING, .strings = none }, "\"stop\":\"\",");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_STRING }, "\"stop\":\"\",");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_STRINGS, .strings = two }, "\"stop\":[\"a\",\"b\"],");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_STRINGS, .strings = none }, "\"stop\":[],");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_STRINGS }, "\"stop\":[],");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_TOKENS, .tokens = { tokens, 2 } }, "\"stop\":[7,8],");
    assert_stop(&(tkc_stop){ .kind = TKC_STOP_TOKENS }, "\"stop\":[],");
}

/* The scored targets of a prompt are a tensor in the request. */
TEST_WITH(targets_of_prompts, set_up, tear_down)
{
    static const char json[] = "{\"num_samples\":1,\"prompt\":{\"chunks\":[]},\"sampling_params\":{"
                               "\"temperature\":1.0,\"top_k\":-1,"
                               "\"top_p\":1.0},\"topk_prompt_logprobs\":0,\"target_prompt_"
                               "logprobs\":{\"data\":[1,2],\"dtype\":\"int64\","
                               "\"shape\":[2,1]},\"type\":\"sample\"}";
    tinkc_error err = { 0 };
    tkc_sample_request r;
    assert_true(tkc_message_decode(&tkc_sample_request_type, tkc_str(json), TINKC_E_BAD_RESPONSE, &arena, &r, &err));
    assert_true(r.target_prompt_logprobs.dtype == TINKC_I64 && r.target_prompt_logprobs.count == 2);
    assert_true(tkc_message_encode(&tkc_sample_request_type, &r, &out, &err));
    assert_str(tkc_buf_view(&out), json);
    assert_true(tkc_message_decode(
        &tkc_sample_request_type,
        tkc_str("{\"prompt\":{\"chunks\":[]},\"sampling_params\":{},\"target_prompt_logprobs\":null}"),
        TINKC_E_BAD_RESPONSE, &arena, &r, &err));
    assert_int_equal(r.target_prompt_logprobs.dtype, 0);
}

/* Ten bytes a token, images by their bytes, pointers by the length of what they point to. */
TEST_WITH(estimates_of_single_chunks, set_up, tear_down)
{
    static const struct {
        tinkc_chunk chunk;
        size_t want;
    } rows[] = { { { .kind = TINKC_CHUNK_TOKENS, .tokens = { NULL, 3 } }, 30 },
                 { { .kind = TINKC_CHUNK_IMAGE, .bytes = { NULL, 5 }, .location = "abcd" }, 5 },
                 { { .kind = TINKC_CHUNK_IMAGE_POINTER, .location = "abcd" }, 4 },
                 { { .kind = TINKC_CHUNK_IMAGE_POINTER }, 0 },
                 { { .kind = TINKC_CHUNK_DMEL, .bytes = { NULL, 7 } }, 7 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(tkc_model_input_estimate(&rows[i].chunk, 1), rows[i].want);
    assert_int_equal(tkc_model_input_estimate(NULL, 0), 0);
}

/* ---- the rest ---- */

TEST_WITH(defaults_of_dimuon, set_up, tear_down)
{
    tinkc_error err = { 0 };
    tkc_dimuon_step_request r;
    assert_true(tkc_message_decode(&tkc_dimuon_step_request_type,
                                   tkc_str("{\"model_id\":\"m\",\"optimizer_params\":{\"learning_rate\":0.5}}"),
                                   TINKC_E_BAD_RESPONSE, &arena, &r, &err));
    assert_true(r.optimizer_params.learning_rate == 0.5 && r.optimizer_params.beta1 == 0.9 &&
                r.optimizer_params.grad_clip_norm == 0);
}

/* An error body that is cut off counts as text: what was read of it before does not stay. */
TEST_WITH(error_bodies_that_are_cut_off, set_up, tear_down)
{
    static const char *const rows[][2] = { { "{\"code\":\"c\",\"detail\":\"d\"", "{\"code\":\"c\",\"detail\":\"d\"" },
                                           { "{\"code\":7,", "{\"code\":7," },
                                           { "a\x7F", "a " },
                                           { "\x01", " " },
                                           { "a\nb\x1F", "a b " } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_error_body e;
        memset(&e, 0x55, sizeof e);
        assert_true(tkc_error_body_read(tkc_str(rows[i][0]), &arena, &e, &err));
        assert_null(e.code);
        assert_false(e.is_json);
        assert_string_equal(e.detail, rows[i][1]);
    }
}

/* Without memory a body is never taken for one without detail. */
TEST_WITH(error_bodies_without_memory, set_up, tear_down)
{
    static const char *const bodies[] = { "{\"detail\":[{\"loc\":[\"a\",\"b\"],\"msg\":\"m\"}],\"code\":\"c\"}",
                                          "plain" };
    static const char *const details[] = { "a.b: m", "plain" };
    for (size_t i = 0; i < 2; i++) {
        bool done = false;
        for (size_t max = 1; !done && max < 64 * 1024; max++) {
            tinkc_error err = { 0 };
            tkc_arena small;
            tkc_error_body e;
            tkc_arena_init(&small, NULL, max);
            done = tkc_error_body_read(tkc_str(bodies[i]), &small, &e, &err);
            assert_int_equal(err.code, done ? 0 : TINKC_E_MEMORY);
            if (done)
                assert_string_equal(e.detail, details[i]);
            tkc_arena_free(&small);
        }
        assert_true(done);
    }
}

/* A list that has no values is set to be empty. */
TEST_WITH(lists_of_numbers, set_up, tear_down)
{
    tinkc_error err = { 0 };
    const tkc_bulk b = { &arena, &err, TINKC_E_BAD_RESPONSE, "test" };
    tinkc_i64s list = { one_row, 7 };
    assert_true(tkc_bulk_varints(&b, unhex(&arena, "0805"), 2, &list));
    assert_true(!list.data && list.len == 0);
    assert_true(tkc_bulk_varints(&b, unhex(&arena, "08050a0201028001"), 1, &list) == false);
    err = (tinkc_error){ 0 };
    assert_true(tkc_bulk_varints(&b, unhex(&arena, "08050a0201020807"), 1, &list));
    assert_true(list.len == 4 && list.data[0] == 5 && list.data[1] == 1 && list.data[2] == 2 && list.data[3] == 7);
}
