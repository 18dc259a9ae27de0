/* Our protobuf against protobuf-c's: what one writes the other reads, with the same contents, over
 * a few thousand random messages. */
#include "support/check.h"
#include "support/scratch.h"

#include "tinker_public.pb-c.h"
#include "wire/sample_message.h"

static uint64_t seed;

static size_t upto(size_t n) /* 0 ... n */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(seed >> 33) % (n + 1);
}

static void *take(size_t n, size_t size)
{
    tinkc_error err = { 0 };
    void *p = tkc_arena_array(&arena, n, size, &err);
    assert_non_null(p);
    return p;
}

/* n random bytes, aligned. */
static void *noise(size_t n)
{
    unsigned char *p = take(n, 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)upto(255);
    return p;
}

static char *name(const char *prefix, size_t i)
{
    tinkc_error err = { 0 };
    return tkc_arena_printf(&arena, &err, "%s%zu", prefix, i);
}

static void assert_bytes(const void *data, size_t len, const ProtobufCBinaryData *b)
{
    assert_int_equal(len, b->len);
    if (len)
        assert_memory_equal(data, b->data, len);
}

/* ---- requests: ours to theirs and back ---- */

static tinkc_chunk random_chunk(void)
{
    tinkc_chunk c = { .kind = (int32_t[]){ TINKC_CHUNK_TOKENS, TINKC_CHUNK_IMAGE, TINKC_CHUNK_DMEL }[upto(2)],
                      .expected_tokens = -1,
                      .format = "",
                      .location = "" };
    size_t n = upto(40);
    if (c.kind == TINKC_CHUNK_TOKENS)
        c.tokens = (tinkc_i32s){ noise(4 * n), n };
    else
        c.bytes = (tinkc_bytes){ noise(n), n };
    if (c.kind == TINKC_CHUNK_IMAGE) {
        c.format = upto(1) ? "png" : "";
        c.expected_tokens = upto(1) ? (int32_t)upto(1000000) : -1;
    }
    return c;
}

static tkc_tensor random_tensor(void)
{
    size_t n = upto(30), rank = upto(3);
    tkc_tensor t = { .count = n, .dtype = (int32_t)upto(3) + 1, .sparse = upto(2) == 0 };
    int64_t *shape = take(rank, sizeof *shape);
    t.data = noise(n * 8);
    for (size_t i = 0; i < rank; i++)
        shape[i] = (int64_t)upto(1 << 20) - (upto(3) == 0 ? 1 << 22 : 0);
    t.shape = (tinkc_i64s){ shape, rank };
    if (t.sparse) {
        t.crow = (tinkc_i64s){ noise(8 * (n + 1)), upto(n + 1) };
        t.col = (tinkc_i64s){ noise(8 * n), n };
    }
    return t;
}

static const tinkc_span *random_spans(size_t *n)
{
    *n = upto(2);
    tinkc_span *spans = take(*n, sizeof *spans);
    for (size_t i = 0; i < *n; i++)
        spans[i] = (tinkc_span){ .sequence_id = name("sequence", i),
                                 .offset = (int64_t)(upto(1) * upto(INT32_MAX)) * 977,
                                 .length = (int64_t)(upto(1) * upto(1000)),
                                 .kind = upto(1) ? TINKC_SPAN_PROMPT : TINKC_SPAN_SAMPLED };
    return spans;
}

static tkc_forward_backward_request random_request(void)
{
    tkc_forward_backward_request r = { .model_id = upto(3) ? "m:train:0" : "", .loss_fn = "ppo" };
    size_t n = upto(4), n_config = upto(3);
    tkc_datum *data = take(n, sizeof *data);
    const char **names = take(n_config, sizeof *names);
    double *values = take(n_config, sizeof *values);
    r.seq_id = (int64_t)(upto(3) ? upto(INT32_MAX - 1) : 0);
    r.forward_only = upto(1);
    for (size_t i = 0; i < n_config; i++) {
        names[i] = name("config", i);
        values[i] = (double)upto(1000) / 7 - 50;
    }
    r.loss_fn_config = (tkc_numbers){ names, values, n_config };
    for (size_t i = 0; i < n; i++) {
        size_t n_chunks = upto(3), n_inputs = upto(3);
        tinkc_chunk *chunks = take(n_chunks, sizeof *chunks);
        tkc_named_tensor *inputs = take(n_inputs, sizeof *inputs);
        for (size_t k = 0; k < n_chunks; k++)
            chunks[k] = random_chunk();
        for (size_t k = 0; k < n_inputs; k++)
            inputs[k] = (tkc_named_tensor){ name("input", k), random_tensor() };
        data[i].chunks.data = chunks;
        data[i].chunks.len = n_chunks;
        data[i].inputs.data = inputs;
        data[i].inputs.len = n_inputs;
        data[i].input_spans.data = random_spans(&data[i].input_spans.len);
        data[i].target_spans.data = random_spans(&data[i].target_spans.len);
    }
    r.data.data = data;
    r.data.len = n;
    return r;
}

static void assert_spans(const tinkc_span *ours, size_t n, Tp__ProvenanceSpan **theirs)
{
    for (size_t i = 0; i < n; i++) {
        bool sampled = theirs[i]->span_case == TP__PROVENANCE_SPAN__SPAN_SAMPLED_TOKENS;
        const Tp__SpanOfTokens *t = sampled ? theirs[i]->sampled_tokens : theirs[i]->prompt_tokens;
        assert_int_equal(ours[i].kind, sampled ? TINKC_SPAN_SAMPLED : TINKC_SPAN_PROMPT);
        assert_string_equal(ours[i].sequence_id, t->sequence_id);
        assert_int_equal(ours[i].offset, t->offset);
        assert_int_equal(ours[i].length, t->length);
    }
}

static void assert_chunk(const tinkc_chunk *c, const Tp__Chunk *t)
{
    if (c->kind == TINKC_CHUNK_TOKENS) {
        assert_int_equal(t->chunk_case, TP__CHUNK__CHUNK_ENCODED_TEXT);
        assert_bytes(c->tokens.data, 4 * c->tokens.len, &t->encoded_text->tokens);
    } else if (c->kind == TINKC_CHUNK_IMAGE) {
        assert_int_equal(t->chunk_case, TP__CHUNK__CHUNK_IMAGE);
        assert_bytes(c->bytes.data, c->bytes.len, &t->image->data);
        assert_string_equal(c->format, t->image->format ? t->image->format : "");
        assert_int_equal(t->image->has_expected_tokens, c->expected_tokens >= 0);
        if (c->expected_tokens >= 0)
            assert_int_equal(t->image->expected_tokens, c->expected_tokens);
    } else {
        assert_int_equal(t->chunk_case, TP__CHUNK__CHUNK_DMEL);
        assert_bytes(c->bytes.data, c->bytes.len, &t->dmel->dmel);
    }
}

static void assert_tensor(const tkc_tensor *x, const Tp__Tensor *t)
{
    size_t bytes = x->count * tkc_dtype_size(x->dtype);
    assert_int_equal(x->dtype, t->dtype);
    assert_int_equal(x->shape.len, t->n_shape);
    if (x->shape.len)
        assert_memory_equal(x->shape.data, t->shape, 8 * x->shape.len);
    if (x->sparse) {
        assert_int_equal(t->encoding_case, TP__TENSOR__ENCODING_SPARSE_CSR);
        assert_bytes(x->data, bytes, &t->sparse_csr->values);
        assert_bytes(x->crow.data, 8 * x->crow.len, &t->sparse_csr->crow_indices);
        assert_bytes(x->col.data, 8 * x->col.len, &t->sparse_csr->col_indices);
    } else {
        assert_int_equal(t->encoding_case, TP__TENSOR__ENCODING_DENSE);
        assert_bytes(x->data, bytes, &t->dense);
    }
}

static void assert_request(const tkc_forward_backward_request *r, const Tp__ForwardBackwardRequest *t)
{
    assert_string_equal(r->model_id, t->model_id ? t->model_id : "");
    assert_string_equal(r->loss_fn, t->loss_fn);
    assert_int_equal(r->seq_id, t->seq_id);
    assert_int_equal(r->forward_only, t->forward_only);
    assert_int_equal(r->loss_fn_config.len, t->n_loss_fn_config);
    for (size_t i = 0; i < r->loss_fn_config.len; i++) {
        assert_string_equal(r->loss_fn_config.names[i], t->loss_fn_config[i]->key);
        assert_true(r->loss_fn_config.values[i] == t->loss_fn_config[i]->value);
    }
    assert_int_equal(r->data.len, t->n_data);
    for (size_t i = 0; i < r->data.len; i++) {
        const tkc_datum *d = &r->data.data[i];
        const Tp__Datum *e = t->data[i];
        assert_int_equal(d->chunks.len, e->n_model_input);
        for (size_t k = 0; k < d->chunks.len; k++)
            assert_chunk(&d->chunks.data[k], e->model_input[k]);
        assert_int_equal(d->inputs.len, e->n_loss_fn_inputs);
        for (size_t k = 0; k < d->inputs.len; k++) {
            assert_string_equal(d->inputs.data[k].name, e->loss_fn_inputs[k]->key);
            assert_tensor(&d->inputs.data[k].tensor, e->loss_fn_inputs[k]->value);
        }
    }
}

TEST(requests_are_read_by_protobuf_c_and_back)
{
    for (uint64_t round = 1; round < 1500; round++) {
        seed = round;
        tinkc_error err = { 0 };
        tkc_forward_backward_request r = random_request(), back;
        tkc_buf_clear(&out);
        tkc_forward_backward_to_pb(&r, &out, &err);
        assert_ok(err);
        Tp__ForwardBackwardRequest *t = tp__forward_backward_request__unpack(NULL, out.len, (const uint8_t *)out.data);
        assert_non_null(t);
        assert_request(&r, t);
        for (size_t i = 0; i < r.data.len; i++) {
            const tkc_datum *d = &r.data.data[i];
            assert_int_equal(d->input_spans.len, t->data[i]->n_model_input_spans);
            assert_int_equal(d->target_spans.len, t->data[i]->n_loss_fn_input_spans);
            assert_spans(d->input_spans.data, d->input_spans.len, t->data[i]->model_input_spans);
            assert_spans(d->target_spans.data, d->target_spans.len, t->data[i]->loss_fn_input_spans);
        }
        size_t n = tp__forward_backward_request__get_packed_size(t);
        uint8_t *theirs = noise(n);
        assert_int_equal(tp__forward_backward_request__pack(t, theirs), n);
        tkc_forward_backward_from_pb((tinkc_bytes){ theirs, n }, 1, &arena, &back, &err);
        assert_ok(err);
        assert_request(&back, t);
        tp__forward_backward_request__free_unpacked(t, NULL);
        tkc_arena_reset(&arena);
    }
}

/* ---- results: theirs to ours and back ---- */

static ProtobufCBinaryData random_data(size_t n)
{
    return (ProtobufCBinaryData){ n, noise(n) };
}

static Tp__TopkPromptLogprobs *random_topk(void)
{
    Tp__TopkPromptLogprobs *topk = take(1, sizeof *topk);
    tp__topk_prompt_logprobs__init(topk);
    topk->has_k = topk->has_prompt_length = topk->has_token_ids = topk->has_logprobs = true;
    topk->k = (uint32_t)upto(4) + 1;
    topk->prompt_length = (uint32_t)upto(5) + 1;
    topk->token_ids = random_data(4 * topk->k * topk->prompt_length);
    topk->logprobs = random_data(4 * topk->k * topk->prompt_length);
    return topk;
}

static void assert_topk(const tkc_topk *ours, const Tp__TopkPromptLogprobs *theirs)
{
    assert_int_equal(ours && ours->ids.data, theirs != NULL);
    if (!theirs)
        return;
    assert_int_equal(ours->k, theirs->k);
    assert_int_equal(ours->rows, theirs->prompt_length);
    assert_bytes(ours->ids.data, 4 * ours->ids.len, &theirs->token_ids);
    assert_bytes(ours->logprobs.data, 4 * ours->logprobs.len, &theirs->logprobs);
}

TEST(samples_are_read_from_protobuf_c_and_back)
{
    for (uint64_t round = 1; round < 1500; round++) {
        tinkc_error err = { 0 };
        tkc_sample_response r;
        seed = round;
        Tp__SampleResponse t = TP__SAMPLE_RESPONSE__INIT;
        t.n_sequences = upto(3);
        t.sequences = take(t.n_sequences, sizeof *t.sequences);
        for (size_t i = 0; i < t.n_sequences; i++) {
            Tp__SampledSequence *s = take(1, sizeof *s);
            tp__sampled_sequence__init(s);
            s->has_stop_reason = upto(1) == 1;
            s->stop_reason = (int32_t)upto(2);
            s->has_tokens = upto(3) > 0;
            s->tokens = random_data(4 * upto(20));
            s->has_logprobs = upto(1) == 1;
            s->logprobs = random_data(4 * (upto(20) + 1));
            s->topk_sampled_logprobs = upto(1) ? random_topk() : NULL;
            t.sequences[i] = s;
        }
        t.has_prompt_logprobs = upto(1) == 1;
        t.prompt_logprobs = random_data(4 * (upto(9) + 1));
        t.has_prompt_cache_hit_tokens = upto(1) == 1;
        t.prompt_cache_hit_tokens = (int32_t)upto(INT32_MAX - 1);
        if (upto(1))
            t.topk_prompt_logprobs = random_topk();
        size_t n = tp__sample_response__get_packed_size(&t);
        uint8_t *theirs = noise(n);
        assert_int_equal(tp__sample_response__pack(&t, theirs), n);
        tkc_sample_response_from_pb((tinkc_bytes){ theirs, n }, &arena, &r, &err);
        assert_ok(err);
        assert_int_equal(r.sequences.len, t.n_sequences);
        for (size_t i = 0; i < t.n_sequences; i++) {
            const Tp__SampledSequence *s = t.sequences[i];
            const tinkc_sequence *q = &r.sequences.data[i];
            assert_int_equal(q->stop_reason, s->has_stop_reason ? s->stop_reason : 0);
            if (s->has_tokens)
                assert_bytes(q->tokens.data, 4 * q->tokens.len, &s->tokens);
            if (s->has_logprobs)
                assert_bytes(q->logprobs.data, 4 * q->logprobs.len, &s->logprobs);
            assert_int_equal(q->logprobs.data != NULL, s->has_logprobs);
            assert_topk(r.sampled_topk ? &r.sampled_topk[i] : NULL, s->topk_sampled_logprobs);
        }
        assert_int_equal(r.prompt_logprobs.data != NULL, t.has_prompt_logprobs);
        assert_topk(&r.topk, t.topk_prompt_logprobs);
        tkc_buf_clear(&out);
        tkc_sample_response_to_pb(&r, &out, &err);
        Tp__SampleResponse *again = tp__sample_response__unpack(NULL, out.len, (uint8_t *)out.data);
        assert_non_null(again);
        assert_int_equal(again->n_sequences, t.n_sequences);
        for (size_t i = 0; i < t.n_sequences; i++)
            assert_topk(r.sampled_topk ? &r.sampled_topk[i] : NULL, again->sequences[i]->topk_sampled_logprobs);
        if (t.has_prompt_logprobs)
            assert_bytes(t.prompt_logprobs.data, t.prompt_logprobs.len, &again->prompt_logprobs);
        assert_int_equal(again->prompt_cache_hit_tokens, t.has_prompt_cache_hit_tokens ? t.prompt_cache_hit_tokens : 0);
        tp__sample_response__free_unpacked(again, NULL);
        tkc_arena_reset(&arena);
    }
}

/* One record of n datums, one field. */
TEST(outputs_are_read_from_protobuf_c_and_back)
{
    for (uint64_t round = 1; round < 1500; round++) {
        tinkc_error err = { 0 };
        tkc_forward_backward_output o;
        seed = round;
        size_t n = upto(5), row = upto(2) + 1, at = 0;
        int32_t dtype = (int32_t)upto(3) + 1;
        int64_t *offsets = take(n + 1, sizeof *offsets), trailing = (int64_t)row;
        for (size_t i = 0; i < n; i++)
            offsets[i + 1] = (int64_t)(at += upto(4) * row * tkc_dtype_size(dtype));
        Tp__BatchedTensor tensor = TP__BATCHED_TENSOR__INIT;
        tensor.has_data = tensor.has_offsets = tensor.has_dtype = true;
        tensor.data = random_data(at);
        tensor.offsets = (ProtobufCBinaryData){ 8 * (n + 1), (uint8_t *)offsets };
        tensor.dtype = dtype;
        tensor.n_trailing_shape = row > 1;
        tensor.trailing_shape = &trailing;
        Tp__BatchedTensorEntry entry = TP__BATCHED_TENSOR_ENTRY__INIT, *entries = &entry;
        entry.key = (char *)(uintptr_t) "logprobs";
        entry.value = &tensor;
        Tp__ArrayRecord record = TP__ARRAY_RECORD__INIT, *records = &record;
        record.n_fields = 1;
        record.fields = &entries;
        record.has_num_datums = true;
        record.num_datums = (int64_t)n;
        Tp__NumberEntry metric = TP__NUMBER_ENTRY__INIT, *metrics = &metric;
        metric.key = (char *)(uintptr_t) "loss:sum";
        metric.has_value = true;
        metric.value = 0.125;
        Tp__ForwardBackwardOutput t = TP__FORWARD_BACKWARD_OUTPUT__INIT;
        t.loss_fn_output_type = (char *)(uintptr_t) "a.b:C";
        t.n_loss_fn_outputs = t.n_metrics = 1;
        t.loss_fn_outputs = &records;
        t.metrics = &metrics;
        size_t size = tp__forward_backward_output__get_packed_size(&t);
        uint8_t *theirs = noise(size);
        assert_int_equal(tp__forward_backward_output__pack(&t, theirs), size);
        tkc_output_from_pb((tinkc_bytes){ theirs, size }, &arena, &o, &err);
        assert_ok(err);
        assert_string_equal(o.type, "C");
        assert_int_equal(o.n_datums, n);
        assert_true(tkc_numbers_get(&o.metrics, "loss:sum", 0) == 0.125);
        for (size_t i = 0; i < n; i++) {
            tinkc_tensor x;
            assert_true(tkc_output_tensor(&o, i, "logprobs", &arena, &x, &err));
            size_t bytes = (size_t)(offsets[i + 1] - offsets[i]);
            assert_int_equal(x.count * tkc_dtype_size(dtype), bytes);
            if (x.dtype == dtype && bytes)
                assert_memory_equal(x.data, tensor.data.data + offsets[i], bytes);
        }
        tkc_buf_clear(&out);
        tkc_output_to_pb(&o, &out, &err);
        Tp__ForwardBackwardOutput *again = tp__forward_backward_output__unpack(NULL, out.len, (uint8_t *)out.data);
        assert_non_null(again);
        const Tp__BatchedTensor *back = again->loss_fn_outputs[0]->fields[0]->value;
        assert_bytes(tensor.data.data, tensor.data.len, &back->data);
        assert_bytes(offsets, 8 * (n + 1), &back->offsets);
        assert_int_equal(again->loss_fn_outputs[0]->num_datums, n);
        tp__forward_backward_output__free_unpacked(again, NULL);
        tkc_arena_reset(&arena);
    }
}

RUN_TESTS(set_up, tear_down)
