/* Results: of sampling and of forward_backward, in protobuf and JSON; answers of retrieve_future;
 * error bodies. */
#include "support/check.h"
#include "support/ledger.h"
#include "support/scratch.h"

#include <math.h>

#include "wire/answer.h"
#include "wire/sample_message.h"

/* ---- samples ---- */

static const char vector_b[] = "0a16080112080b0000000c0000001a08000000bf0000a0bf12080000c07f000000c01a280a"
                               "10000000000000000009000000040000001210804fc3c7804fc3c7000080be0000c0bf1802"
                               "2002";

static void check_vector_b(const tkc_sample_response *r)
{
    const int32_t *ids;
    const float *logprobs;
    assert_int_equal(r->sequences.len, 1);
    const tinkc_sequence *s = &r->sequences.data[0];
    assert_int_equal(s->stop_reason, TINKC_STOP_LENGTH);
    assert_int_equal(s->tokens.len, 2);
    assert_int_equal(s->tokens.data[1], 12);
    assert_true(s->logprobs.len == 2 && s->logprobs.data[0] == -0.5f && s->logprobs.data[1] == -1.25f);
    assert_int_equal(r->prompt_logprobs.len, 2);
    assert_true(isnan(r->prompt_logprobs.data[0]) && r->prompt_logprobs.data[1] == -2.0f);
    assert_true(r->topk.k == 2 && r->topk.rows == 2);
    assert_int_equal(tkc_topk_row(&r->topk, 0, &ids, &logprobs), 0);
    assert_int_equal(tkc_topk_row(&r->topk, 1, &ids, &logprobs), 2);
    assert_true(ids[0] == 9 && ids[1] == 4 && logprobs[0] == -0.25f && logprobs[1] == -1.5f);
    assert_int_equal(tkc_topk_row(&r->topk, 2, &ids, &logprobs), 0);
}

TEST(vector_b_is_read_and_written)
{
    tinkc_error err = { 0 };
    tkc_sample_response r;
    tinkc_bytes bytes = unhex(&arena, vector_b);
    assert_int_equal(bytes.len, 76);
    tkc_sample_response_from_pb(bytes, &arena, &r, &err);
    assert_ok(err);
    check_vector_b(&r);
    tkc_buf_clear(&out);
    tkc_sample_response_to_pb(&r, &out, &err);
    assert_ok(err);
    assert_int_equal(out.len, bytes.len);
    assert_memory_equal(out.data, bytes.data, bytes.len);
}

/* Candidates of the second answer's two tokens; the first has none. */
TEST(candidates_of_sampled_tokens_are_read_and_written)
{
    static const char text[] = "0a06120405000000"
                               "0a341208070000000800000022280a10070000000900000000000000000000001210"
                               "000000bf000080bf804fc3c7804fc3c718022002";
    tinkc_error err = { 0 };
    tkc_sample_response r;
    tinkc_bytes bytes = unhex(&arena, text);
    const int32_t *ids;
    const float *logprobs;
    assert_true(tkc_sample_response_from_pb(bytes, &arena, &r, &err));
    assert_int_equal(r.sequences.len, 2);
    assert_non_null(r.sampled_topk);
    assert_null(r.sampled_topk[0].ids.data);
    const tkc_topk *t = &r.sampled_topk[1];
    assert_int_equal(tkc_topk_row(t, 0, &ids, &logprobs), 2);
    assert_true(ids[0] == 7 && ids[1] == 9 && logprobs[0] == -0.5f && logprobs[1] == -1.0f);
    assert_int_equal(tkc_topk_row(t, 1, &ids, &logprobs), 0);
    tkc_buf_clear(&out);
    assert_true(tkc_sample_response_to_pb(&r, &out, &err));
    assert_int_equal(out.len, bytes.len);
    assert_memory_equal(out.data, bytes.data, bytes.len);
    tkc_topk wrong[2] = { [1] = *t };
    wrong[1].rows = 3;
    r.sampled_topk = wrong;
    assert_false(tkc_sample_response_to_pb(&r, &out, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    for (size_t n = 0; n < bytes.len; n++) { /* cut anywhere: no crash, and never more than was there */
        char *copy = exact_copy(bytes.data, n);
        err = (tinkc_error){ 0 };
        if (tkc_sample_response_from_pb((tinkc_bytes){ (unsigned char *)copy, n }, &arena, &r, &err))
            assert_true(r.sequences.len <= 1);
        free_copy(copy, n);
    }
}

TEST(samples_survive_json)
{
    tinkc_error err = { 0 };
    tkc_sample_response r;
    tkc_sample_response_from_pb(unhex(&arena, vector_b), &arena, &r, &err);
    tkc_buf_clear(&out);
    tkc_sample_response_to_json(&r, &out, &err);
    assert_ok(err);
    assert_str(tkc_buf_view(&out), "{\"sequences\":[{\"stop_reason\":\"length\",\"tokens\":[11,12],\"logprobs\":[-0.5,"
                                   "-1.25]}],\"prompt_logprobs\":[null,-2.0],\"topk_prompt_logprobs\":[null,[[9,-0.25],"
                                   "[4,-1.5]]],\"prompt_cache_hit_tokens\":0}");
    tkc_sample_response_from_json(tkc_buf_view(&out), &arena, &r, &err);
    assert_ok(err);
    check_vector_b(&r);
    for (size_t n = 0; n < out.len; n++) {
        char *copy = exact_copy(out.data, n);
        err = (tinkc_error){ 0 };
        assert_false(tkc_sample_response_from_json(tkc_strn(copy, n), &arena, &r, &err));
        free_copy(copy, n);
    }
}

TEST(an_empty_sample_result_is_valid)
{
    tinkc_error err = { 0 };
    tkc_sample_response r;
    assert_true(tkc_sample_response_from_pb((tinkc_bytes){ NULL, 0 }, &arena, &r, &err));
    assert_int_equal(r.sequences.len, 0);
    assert_null(r.prompt_logprobs.data);
    assert_null(r.topk.ids.data);
    /* present but empty logprobs, stop reason 7, 3 cached tokens, top-k of size 0 */
    tinkc_bytes odd = unhex(&arena, "0a0408071a00"
                                    "1200"
                                    "1a00"
                                    "2003");
    assert_true(tkc_sample_response_from_pb(odd, &arena, &r, &err));
    assert_int_equal(r.sequences.data[0].stop_reason, 7);
    assert_null(r.topk.ids.data);
    assert_null(r.sequences.data[0].logprobs.data);
    assert_null(r.prompt_logprobs.data);
    assert_int_equal(r.prompt_cache_hit_tokens, 3);
}

TEST(a_long_row_among_many_empty_ones_is_no_bomb)
{
    tinkc_error err = { 0 };
    tkc_sample_response r;
    tkc_buf_clear(&out);
    tkc_buf_cstr(&out, "{\"sequences\":[],\"topk_prompt_logprobs\":[[", &err);
    for (int i = 0; i < 20000; i++)
        tkc_buf_cstr(&out, i ? ",[1,1]" : "[1,1]", &err);
    tkc_buf_cstr(&out, "]", &err);
    for (int i = 0; i < 20000; i++)
        tkc_buf_cstr(&out, ",null", &err);
    tkc_buf_cstr(&out, "]}", &err);
    assert_ok(err);
    assert_false(tkc_sample_response_from_json(tkc_buf_view(&out), &arena, &r, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
}

/* ---- forward_backward ---- */

static const char vector_c[] = "0a0f546f7263684c6f737352657475726e123a12360a086c6f6770726f6273122a0a0c0000"
                               "80bf000000c0000040c01218000000000000000008000000000000000c0000000000000018"
                               "0118021a130a086c6f73733a73756d110000000000001840";

static void check_vector_c(const tkc_forward_backward_output *o)
{
    tinkc_error err = { 0 };
    tinkc_tensor t;
    assert_string_equal(o->type, "TorchLossReturn");
    assert_int_equal(o->n_datums, 2);
    assert_true(tkc_numbers_get(&o->metrics, "loss:sum", 0) == 6.0);
    assert_true(tkc_output_tensor(o, 0, "logprobs", &arena, &t, &err));
    assert_true(t.dtype == TINKC_F32 && t.count == 2 && t.ndim == 1 && t.shape[0] == 2);
    assert_true(((const float *)t.data)[1] == -2.0f);
    assert_true(tkc_output_tensor(o, 1, "logprobs", &arena, &t, &err));
    assert_true(t.count == 1 && ((const float *)t.data)[0] == -3.0f);
    assert_false(tkc_output_tensor(o, 2, "logprobs", &arena, &t, &err));
    assert_false(tkc_output_tensor(o, 0, "other", &arena, &t, &err));
    assert_ok(err);
}

TEST(vector_c_is_read_and_written)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_output o;
    tinkc_bytes bytes = unhex(&arena, vector_c);
    assert_int_equal(bytes.len, 98);
    tkc_output_from_pb(bytes, &arena, &o, &err);
    assert_ok(err);
    check_vector_c(&o);
    tkc_buf_clear(&out);
    tkc_output_to_pb(&o, &out, &err);
    assert_ok(err);
    assert_int_equal(out.len, bytes.len);
    assert_memory_equal(out.data, bytes.data, bytes.len);
    for (size_t n = 0; n < bytes.len; n++) {
        char *copy = exact_copy(bytes.data, n);
        err = (tinkc_error){ 0 };
        (void)tkc_output_from_pb((tinkc_bytes){ (void *)copy, n }, &arena, &o, &err);
        free_copy(copy, n);
    }
}

TEST(outputs_survive_json)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_output o;
    tkc_output_from_pb(unhex(&arena, vector_c), &arena, &o, &err);
    tkc_buf_clear(&out);
    tkc_output_to_json(&o, &out, &err);
    assert_ok(err);
    assert_str(tkc_buf_view(&out), "{\"loss_fn_output_type\":\"TorchLossReturn\",\"loss_fn_outputs\":[{\"logprobs\":{"
                                   "\"data\":[-1.0,-2.0],\"dtype\":\"float32\",\"shape\":[2]}},{\"logprobs\":{\"data\":"
                                   "[-3.0],\"dtype\":\"float32\",\"shape\":[1]}}],\"metrics\":{\"loss:sum\":6.0}}");
    tkc_output_from_json(tkc_buf_view(&out), &arena, &o, &err);
    assert_ok(err);
    check_vector_c(&o);
    for (size_t n = 0; n < out.len; n++) {
        char *copy = exact_copy(out.data, n);
        err = (tinkc_error){ 0 };
        assert_false(tkc_output_from_json(tkc_strn(copy, n), &arena, &o, &err));
        free_copy(copy, n);
    }
}

/* A name that stands twice in one datum hides one that is missing. */
TEST(outputs_with_a_name_twice_are_refused)
{
#define HEAD "{\"loss_fn_output_type\":\"T\",\"metrics\":{},\"loss_fn_outputs\":["
#define F32  "{\"data\":[1.0],\"dtype\":\"float32\"}"
#define I64  "{\"data\":[1],\"dtype\":\"int64\"}"
    static const char *const texts[] = {
        HEAD "{\"a\":" F32 ",\"a\":" F32 "},{\"a\":" I64 ",\"b\":" I64 "},{\"a\":" I64 ",\"a\":" I64 "}]}",
        HEAD "{\"a\":" F32 ",\"a\":" F32 "}]}",
        HEAD "{\"a\\u0000x\":" F32 "}]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_output o;
        assert_false(tkc_output_from_json(tkc_str(texts[i]), &arena, &o, &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    }
#undef HEAD
#undef F32
#undef I64
}

TEST(an_empty_output_is_valid)
{
    tinkc_error err = { 0 };
    tkc_forward_backward_output o;
    assert_true(tkc_output_from_pb((tinkc_bytes){ NULL, 0 }, &arena, &o, &err));
    assert_string_equal(o.type, "ArrayRecord");
    assert_int_equal(o.n_datums, 0);
    assert_null(o.metrics.names);
    /* a record of five datums without fields, type with a module before it */
    assert_true(tkc_output_from_pb(unhex(&arena, "0a036d3a43"
                                                 "12021805"),
                                   &arena, &o, &err));
    assert_int_equal(o.n_datums, 5);
    /* two records without fields that together claim too many */
    tinkc_bytes claims = unhex(&arena, "12051880808008"
                                       "12051880808008");
    assert_false(tkc_output_from_pb(claims, &arena, &o, &err));
    err = (tinkc_error){ 0 };
    assert_true(tkc_output_from_pb((tinkc_bytes){ claims.data, 7 }, &arena, &o, &err));
    assert_true(tkc_output_from_pb(unhex(&arena, "0a036d3a43"
                                                 "12021805"),
                                   &arena, &o, &err));
    assert_string_equal(o.type, "C");
}

/* Rows of different trailing shapes need several records; they come back as they were. */
TEST(rows_become_records_and_rows_again)
{
    static const float a[] = { 1, 2, 3, 4, 5, 6 };
    static const int64_t b[] = { 7, 8, 9 }, by2[] = { 3, 2 }, by3[] = { 2, 3 }, flat[] = { 3 };
    tkc_named_tensor row0[] = {
        { "x", { .data = a, .count = 6, .shape = { by2, 2 }, .dtype = TINKC_F32 } },
        { "y", { .data = b, .count = 3, .shape = { flat, 1 }, .dtype = TINKC_I64 } },
    };
    tkc_named_tensor row2[] = {
        { "y", { .data = b, .count = 0, .dtype = TINKC_I64 } },
        { "x", { .data = a, .count = 6, .shape = { by3, 2 }, .dtype = TINKC_F32 } },
    };
    tkc_output_row rows[] = { { { row0, 2 } }, { { row0, 2 } }, { { row2, 2 } } };
    tinkc_error err = { 0 };
    tkc_forward_backward_output o = { .type = "T" }, back;
    tkc_output_from_rows(rows, 3, &arena, &o, &err);
    assert_ok(err);
    assert_int_equal(o.records.len, 2);
    assert_int_equal(o.records.data[0].n_datums, 2);
    tkc_buf_clear(&out);
    tkc_output_to_pb(&o, &out, &err);
    tkc_output_from_pb((tinkc_bytes){ (void *)out.data, out.len }, &arena, &back, &err);
    assert_ok(err);
    assert_int_equal(back.n_datums, 3);
    tinkc_tensor t;
    assert_true(tkc_output_tensor(&back, 1, "x", &arena, &t, &err));
    assert_true(t.ndim == 2 && t.shape[0] == 3 && t.shape[1] == 2 && t.count == 6);
    assert_true(tkc_output_tensor(&back, 2, "x", &arena, &t, &err));
    assert_true(t.shape[0] == 2 && t.shape[1] == 3);
    assert_memory_equal(t.data, a, sizeof a);
    assert_true(tkc_output_tensor(&back, 2, "y", &arena, &t, &err));
    assert_true(t.count == 0 && t.dtype == TINKC_I64);
    rows[1].fields.len = 1;
    assert_false(tkc_output_from_rows(rows, 3, &arena, &o, &err));
    assert_int_equal(err.code, TINKC_E_TENSOR);
}

/* Tags travel; names that no text can hold are refused in both forms. */
TEST(tags_and_names_of_records)
{
    static const float one[] = { 1 };
    static const int64_t offsets[] = { 0, 4 };
    tinkc_error err = { 0 };
    tkc_batched_tensor field = {
        .name = "a", .data = { (const void *)one, 4 }, .offsets = { offsets, 2 }, .dtype = TINKC_F32
    };
    tkc_array_record record = { .type_tag = "tag", .fields = { &field, 1 }, .n_datums = 1 };
    tkc_forward_backward_output o = { .type = "T", .records = { &record, 1 }, .n_datums = 1 }, back;
    tkc_buf_clear(&out);
    assert_true(tkc_output_to_pb(&o, &out, &err));
    assert_true(tkc_output_from_pb((tinkc_bytes){ (void *)out.data, out.len }, &arena, &back, &err));
    assert_ok(err);
    assert_int_equal(back.records.len, 1);
    assert_string_equal(back.records.data[0].type_tag, "tag");
    field.name = "odd \xff";
    for (int json = 0; json < 2; json++) {
        tkc_buf_clear(&out);
        assert_false(json ? tkc_output_to_json(&o, &out, &err) : tkc_output_to_pb(&o, &out, &err));
        assert_string_equal(err.message, "the name of an output is not UTF-8");
        assert_int_equal(out.len, 0);
        err = (tinkc_error){ 0 };
    }
    tkc_forward_backward_output none = { 0 }; /* without so much as a type */
    assert_true(tkc_output_to_pb(&none, &out, &err));
    assert_int_equal(out.len, 0);
}

TEST(records_must_agree_in_their_fields)
{
    static const float data[] = { 1 };
    tkc_batched_tensor f[2] = {
        { "a", { (void *)data, 4 }, { (const int64_t[]){ 0, 4 }, 2 }, { NULL, 0 }, TINKC_F32 }
    };
    f[1] = f[0];
    f[1].name = "b";
    tkc_array_record records[2] = { { "", { &f[0], 1 }, 1 }, { "", { &f[1], 1 }, 1 } };
    tkc_forward_backward_output o = { .type = "T", .records = { records, 2 } }, back;
    tinkc_error err = { 0 };
    tkc_buf_clear(&out);
    tkc_output_to_pb(&o, &out, &err);
    assert_false(tkc_output_from_pb((tinkc_bytes){ (void *)out.data, out.len }, &arena, &back, &err));
    assert_non_null(strstr(err.message, "different fields"));
}

/* ---- answers ---- */

static tkc_answer sorted(const char *json)
{
    tinkc_error err = { 0 };
    tkc_answer a;
    tkc_answer_read(tkc_str(json), &arena, &a, &err);
    assert_ok(err);
    return a;
}

TEST(answers_are_sorted_in_the_clients_order)
{
    tkc_answer a = sorted("{\"type\":\"try_again\",\"request_id\":\"req-17\",\"queue_state\":"
                          "\"active\",\"queue_state_reason\":\"because\"}");
    assert_int_equal(a.kind, TKC_ANSWER_TRY_AGAIN);
    assert_int_equal(a.queue_state.value, TKC_QUEUE_ACTIVE);
    assert_string_equal(a.queue_state_reason, "because");
    assert_string_equal(a.request_id, "req-17");
    assert_int_equal(sorted("{\"error\":1,\"status\":\"complete_metadata\",\"type\":\"try_again\"}").kind,
                     TKC_ANSWER_TRY_AGAIN);
    a = sorted("{\"status\":\"complete_metadata\",\"response_payload_size\":73400320,\"error\":1}");
    assert_int_equal(a.kind, TKC_ANSWER_METADATA);
    assert_int_equal(a.response_payload_size, 73400320);
    assert_int_equal(sorted("{\"status\":\"complete_metadata\",\"response_payload_size\":null}").response_payload_size,
                     0);
    a = sorted("{\"error\":\"loss_fn_inputs missing weights\",\"category\":\"user\"}");
    assert_int_equal(a.kind, TKC_ANSWER_FAILED);
    assert_string_equal(a.error, "loss_fn_inputs missing weights");
    assert_int_equal(a.category.value, TKC_CATEGORY_USER);
    assert_int_equal(sorted("{\"error\":\"x\",\"category\":\"USER\"}").category.value, TKC_CATEGORY_USER);
    assert_int_equal(sorted("{\"error\":\"x\",\"category\":\"nobody\"}").category.value, TKC_CATEGORY_UNKNOWN);
    assert_int_equal(sorted("{\"error\":\"x\"}").category.value, TKC_CATEGORY_UNKNOWN);
    assert_string_equal(sorted("{\"error\":{\"a\":1}}").error, "{\"a\":1}");
    assert_int_equal(sorted("{\"error\":null}").kind, TKC_ANSWER_FAILED);
    assert_int_equal(sorted("{}").kind, TKC_ANSWER_RESULT);
    assert_int_equal(sorted("{\"type\":7,\"status\":[],\"model_id\":\"m\"}").kind, TKC_ANSWER_RESULT);
    assert_int_equal(sorted("{\"queue_state\":\"Paused_Capacity\"}").queue_state.value, TKC_QUEUE_CAPACITY);
    assert_int_equal(sorted("{\"queue_state\":\"asleep\"}").queue_state.value, TKC_UNKNOWN);
}

TEST(answers_that_are_no_objects_are_refused)
{
    static const char *const bad[] = { "", "null", "[]", "{\"a\":NaN}", "{\"a\":Infinity}", "{", "\"x\"" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tinkc_error err = { 0 };
        tkc_answer a;
        assert_false(tkc_answer_read(tkc_str(bad[i]), &arena, &a, &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    }
}

TEST(answers_are_written)
{
    tinkc_error err = { 0 };
    tkc_answer a = { .kind = TKC_ANSWER_TRY_AGAIN,
                     .request_id = "r",
                     .queue_state = { NULL, TKC_QUEUE_RATE_LIMIT },
                     .queue_state_reason = "many" };
    tkc_buf_clear(&out);
    tkc_answer_write(&a, &out, &err);
    assert_str(tkc_buf_view(&out), "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":"
                                   "\"paused_rate_limit\",\"queue_state_reason\":\"many\"}");
    a = (tkc_answer){ .kind = TKC_ANSWER_METADATA, .response_payload_size = 5 };
    tkc_buf_clear(&out);
    tkc_answer_write(&a, &out, &err);
    assert_str(tkc_buf_view(&out), "{\"status\":\"complete_metadata\",\"response_payload_size\":5}");
    a = (tkc_answer){ .kind = TKC_ANSWER_FAILED, .error = "e", .category = { NULL, TKC_CATEGORY_SERVER } };
    tkc_buf_clear(&out);
    tkc_answer_write(&a, &out, &err);
    assert_str(tkc_buf_view(&out), "{\"error\":\"e\",\"category\":\"server\"}");
    assert_ok(err);
    a.kind = TKC_ANSWER_RESULT;
    assert_false(tkc_answer_write(&a, &out, &err));
}

TEST(error_bodies_of_every_shape_are_read)
{
    static const struct {
        const char *body, *detail, *code;
        bool is_json;
    } cases[] = {
        { "{\"detail\":\"no such run\",\"code\":\"not_found\"}", "no such run", "not_found", true },
        { "{\"detail\":[{\"loc\":[\"body\",\"rank\"],\"msg\":\"too "
          "small\",\"type\":\"t\"},{\"msg\":"
          "\"and more\"}]}",
          "body.rank: too small; and more", NULL, true },
        { "{\"error\":\"x\",\"category\":\"user\"}", "x", NULL, true },
        { "{\"error\":{\"message\":\"inner\",\"code\":\"c\"}}", "inner", "c", true },
        { "{\"message\":\"m\",\"detail\":\"d\"}", "d", NULL, true },
        { "{}", NULL, NULL, true },
        { "{\"detail\":[]}", "", NULL, true },
        { "", NULL, NULL, false },
        { "  <html>\n<b>502</b>\n", "<html> <b>502</b>", NULL, false },
        { "{\"detail\":", "{\"detail\":", NULL, false },
        { "[1]", "[1]", NULL, false },
        { "\xFF\xFE", NULL, NULL, false },
        { "{\"detail\":[{\"loc\":\"body\",\"msg\":\"m\"}]}", "m", NULL, true },
        { "{\"detail\":[{\"loc\":[],\"msg\":\"m\"}]}", "m", NULL, true },
        { "{\"detail\":[{\"loc\":[\"a\",0,\"b\"],\"msg\":\"m\"}]}", "a.0.b: m", NULL, true },
        { "{\"detail\":[{\"loc\":[\"a\"]}]}", "a", NULL, true },
        { "{\"detail\":[\"x\",1,{\"msg\":\"y\"},{\"loc\":[\"z\"],\"msg\":\"w\"}]}", "x; 1; y; z: w", NULL, true },
        { "{\"detail\":[{\"msg\":{\"a\":1}}]}", "{\"a\":1}", NULL, true },
        { "{\"error\":{\"message\":{\"a\":1}}}", NULL, NULL, true },
        { "{\"error\":{\"message\":{\"message\":\"x\",\"code\":\"y\"}}}", NULL, NULL, true },
        { "{\"error\":{\"detail\":[\"q\"]}}", "q", NULL, true },
        { "{\"error\":7,\"other\":\"o\"}", NULL, NULL, true },
        { "{\"detail\":null}", NULL, NULL, true },
        { "{\"error\":null,\"message\":\"m\"}", "m", NULL, true },
        { "{\"detail\":[null,{\"loc\":[\"a\",null],\"msg\":null}]}", "a.", NULL, true },
        { "{\"code\":null}", NULL, NULL, true },
        { "{\"code\":nul}", "{\"code\":nul}", NULL, false },
        { "{\"code\":7}", NULL, "7", true },
        { "{\"code\":{\"a\":1}}", NULL, "{\"a\":1}", true },
        { "{\"detail\":\"d\",\"message\":\"m\"}", "d", NULL, true },
        { "{\"error\":\"e\",\"message\":\"m\"}", "e", NULL, true },
        { "a\x1F"
          "b\x7F c\x20"
          "d\te",
          "a b  c d e", NULL, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tinkc_error err = { 0 };
        tkc_error_body e;
        assert_true(tkc_error_body_read(tkc_str(cases[i].body), &arena, &e, &err));
        assert_ok(err);
        if (!tkc_cstr_eq(e.detail, cases[i].detail) || !tkc_cstr_eq(e.code, cases[i].code))
            fail_msg("%s: %s, %s", cases[i].body, e.detail ? e.detail : "-", e.code ? e.code : "-");
        assert_int_equal(e.is_json, cases[i].is_json);
    }
    tinkc_error err = { 0 };
    /* A detail that was cut inside a character is still text. */
    tkc_error_body cut = { .detail = "a\xc3\xa9\xe2\x82", .code = "c" };
    tkc_buf text;
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    assert_true(tkc_error_body_write(&cut, &text, &err));
    assert_true(tkc_str_is(tkc_buf_view(&text), "{\"detail\":\"a\xc3\xa9??\",\"code\":\"c\"}"));
    tkc_buf_free(&text);
    tkc_error_body e = { .detail = "d", .code = "c" };
    tkc_buf_clear(&out);
    tkc_error_body_write(&e, &out, &err);
    assert_str(tkc_buf_view(&out), "{\"detail\":\"d\",\"code\":\"c\"}");
    e = (tkc_error_body){ 0 };
    tkc_buf_clear(&out);
    assert_true(tkc_error_body_write(&e, &out, &err));
    assert_str(tkc_buf_view(&out), "{\"detail\":\"\"}");
}

/* 300 bytes are kept, and no half of a character. */
TEST(long_error_texts_are_cut)
{
    for (size_t before = 297; before <= 301; before++) {
        char body[320];
        tinkc_error err = { 0 };
        tkc_error_body e;
        memset(body, 'a', before);
        memcpy(body + before, "\xC3\xA9", 3);
        assert_true(tkc_error_body_read(tkc_str(body), &arena, &e, &err));
        assert_int_equal(strlen(e.detail), before <= 298 ? before + 2 : before <= 300 ? before : 300);
        assert_memory_equal(e.detail, body, strlen(e.detail));
    }
}

TEST(answers_are_read_to_the_last_member)
{
    static const struct {
        const char *json;
        int32_t kind, queue, category;
        int64_t size;
        const char *state_text, *reason, *id, *error;
    } rows[] = {
        { "{}", TKC_ANSWER_RESULT, TKC_UNKNOWN, TKC_CATEGORY_UNKNOWN, 0, NULL, NULL, NULL, NULL },
        { "{\"status\":\"complete_metadata\",\"response_payload_size\":-1}", TKC_ANSWER_METADATA, TKC_UNKNOWN,
          TKC_CATEGORY_UNKNOWN, 0, NULL, NULL, NULL, NULL },
        { "{\"status\":\"complete_metadata\",\"response_payload_size\":1}", TKC_ANSWER_METADATA, TKC_UNKNOWN,
          TKC_CATEGORY_UNKNOWN, 1, NULL, NULL, NULL, NULL },
        { "{\"response_payload_size\":\"5\"}", TKC_ANSWER_RESULT, TKC_UNKNOWN, TKC_CATEGORY_UNKNOWN, 0, NULL, NULL,
          NULL, NULL },
        { "{\"error\":\"e\",\"category\":\"Server\",\"request_id\":\"i\"}", TKC_ANSWER_FAILED, TKC_UNKNOWN,
          TKC_CATEGORY_SERVER, 0, NULL, NULL, "i", "e" },
        { "{\"error\":[1, 2],\"category\":7}", TKC_ANSWER_FAILED, TKC_UNKNOWN, TKC_CATEGORY_UNKNOWN, 0, NULL, NULL,
          NULL, "[1, 2]" },
        { "{\"error\":null,\"category\":\"user\"}", TKC_ANSWER_FAILED, TKC_UNKNOWN, TKC_CATEGORY_USER, 0, NULL, NULL,
          NULL, NULL },
        { "{\"error\":\"e\",\"category\":\"unknown\"}", TKC_ANSWER_FAILED, TKC_UNKNOWN, TKC_CATEGORY_UNKNOWN, 0, NULL,
          NULL, NULL, "e" },
        { "{\"type\":\"try_again\",\"queue_state\":\"PAUSED_rate_limit\"}", TKC_ANSWER_TRY_AGAIN, TKC_QUEUE_RATE_LIMIT,
          TKC_CATEGORY_UNKNOWN, 0, "PAUSED_rate_limit", NULL, NULL, NULL },
        { "{\"queue_state\":\"asleep\",\"queue_state_reason\":7,\"request_id\":7}", TKC_ANSWER_RESULT, TKC_UNKNOWN,
          TKC_CATEGORY_UNKNOWN, 0, "asleep", NULL, NULL, NULL },
        { "{\"queue_state\":5,\"queue_state_reason\":\"r\"}", TKC_ANSWER_RESULT, TKC_UNKNOWN, TKC_CATEGORY_UNKNOWN, 0,
          NULL, "r", NULL, NULL },
        { "{\"type\":\"try_agai\",\"status\":\"complete\"}", TKC_ANSWER_RESULT, TKC_UNKNOWN, TKC_CATEGORY_UNKNOWN, 0,
          NULL, NULL, NULL, NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_answer a = sorted(rows[i].json);
        assert_int_equal(a.kind, rows[i].kind);
        assert_int_equal(a.queue_state.value, rows[i].queue);
        assert_int_equal(a.category.value, rows[i].category);
        assert_int_equal(a.response_payload_size, rows[i].size);
        assert_true(tkc_cstr_eq(a.queue_state.text, rows[i].state_text));
        assert_true(tkc_cstr_eq(a.queue_state_reason, rows[i].reason));
        assert_true(tkc_cstr_eq(a.request_id, rows[i].id));
        assert_true(tkc_cstr_eq(a.error, rows[i].error));
    }
}

TEST(answers_without_their_parts)
{
    static const struct {
        tkc_answer a;
        const char *want;
    } rows[] = {
        { { .kind = TKC_ANSWER_TRY_AGAIN, .queue_state = { NULL, TKC_UNKNOWN } }, "{\"type\":\"try_again\"}" },
        { { .kind = TKC_ANSWER_TRY_AGAIN, .queue_state = { "own", TKC_QUEUE_ACTIVE } },
          "{\"type\":\"try_again\",\"queue_state\":\"own\"}" },
        { { .kind = TKC_ANSWER_TRY_AGAIN, .queue_state = { NULL, TKC_QUEUE_CAPACITY } },
          "{\"type\":\"try_again\",\"queue_state\":\"paused_capacity\"}" },
        { { .kind = TKC_ANSWER_FAILED, .category = { NULL, TKC_CATEGORY_UNKNOWN } },
          "{\"error\":\"\",\"category\":\"unknown\"}" },
        { { .kind = TKC_ANSWER_FAILED, .error = "e", .category = { NULL, TKC_CATEGORY_USER } },
          "{\"error\":\"e\",\"category\":\"user\"}" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_buf_clear(&out);
        assert_true(tkc_answer_write(&rows[i].a, &out, &err));
        assert_str(tkc_buf_view(&out), rows[i].want);
    }
    tinkc_error err = { 0 };
    assert_false(tkc_answer_write(&(tkc_answer){ .kind = TKC_ANSWER_RESULT }, &out, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_string_equal(err.message, "a result is written by its own message");
}

TEST(estimates_of_prompts)
{
    tinkc_chunk c[] = { { .kind = TINKC_CHUNK_TOKENS, .tokens = { NULL, 3 } },
                        { .kind = TINKC_CHUNK_IMAGE, .bytes = { NULL, 5 } },
                        { .kind = TINKC_CHUNK_IMAGE_POINTER, .location = "abcd" } };
    assert_int_equal(tkc_model_input_estimate(c, 3), 39);
}

static bool all_results(tkc_arena *small, tkc_buf *text, tinkc_error *err)
{
    tkc_sample_response r;
    tkc_forward_backward_output o;
    tkc_answer a;
    tkc_error_body e;
    bool good = tkc_sample_response_from_pb(unhex(&arena, vector_b), small, &r, err) &&
                tkc_sample_response_to_json(&r, text, err) &&
                tkc_sample_response_from_json(tkc_buf_view(text), small, &r, err) &&
                tkc_sample_response_to_pb(&r, text, err);
    tkc_buf_clear(text);
    good = good && tkc_output_from_pb(unhex(&arena, vector_c), small, &o, err) && tkc_output_to_json(&o, text, err) &&
           tkc_output_from_json(tkc_buf_view(text), small, &o, err) && tkc_output_to_pb(&o, text, err);
    return good && tkc_answer_read(tkc_str("{\"error\":\"x\",\"category\":\"user\"}"), small, &a, err) &&
           tkc_answer_write(&a, text, err) &&
           tkc_error_body_read(tkc_str("{\"detail\":[{\"loc\":[1],\"msg\":\"m\"}]}"), small, &e, err) &&
           tkc_error_body_read(tkc_str("plain"), small, &e, err) && tkc_error_body_write(&e, text, err);
}

TEST(running_out_of_memory_is_an_error)
{
    bool done = false;
    for (int n = 0; !done; n++) {
        ledger l = { .left = n };
        tinkc_allocator a = ledger_allocator(&l);
        tinkc_error err = { 0 };
        tkc_arena small;
        tkc_buf text;
        tkc_arena_init(&small, &a, 0);
        tkc_buf_init(&text, &a, TKC_BUF_NO_MAX);
        done = all_results(&small, &text, &err);
        if (!done)
            assert_int_equal(err.code, TINKC_E_MEMORY);
        tkc_arena_free(&small);
        tkc_buf_free(&text);
        assert_true(l.blocks == 0 && l.bytes == 0);
        assert_true(n < 1000);
    }
}

RUN_TESTS(set_up, tear_down)
