/* The protobuf messages: the first byte says which. What is accepted must be written, read again
 * and written again to the same bytes; every accessor must stay inside. */
#include "harness.h"

#include "wire/sample_message.h"

static tinkc_bytes bytes_of(const tkc_buf *b)
{
    return (tinkc_bytes){ (const unsigned char *)b->data, b->len };
}

static void look_at_tensors(const tkc_forward_backward_request *r, fuzz_room *room)
{
    for (size_t i = 0; i < r->data.len; i++) {
        for (size_t k = 0; k < r->data.data[i].inputs.len; k++) {
            tinkc_error err = { 0 };
            tinkc_tensor dense;
            const tkc_tensor *t = &r->data.data[i].inputs.data[k].tensor;
            if (tkc_tensor_check(t, "t", &err) && t->count < 4096)
                (void)tkc_tensor_dense(t, &room->arena, &dense, &err);
        }
    }
}

static void request(tinkc_bytes in, fuzz_room *room)
{
    tkc_forward_backward_request r, s;
    tkc_buf again;
    if (!tkc_forward_backward_from_pb(in, TINKC_E_UNPROCESSABLE, &room->arena, &r, &room->err))
        return;
    look_at_tensors(&r, room);
    if (!tkc_forward_backward_to_pb(&r, &room->out, &room->err))
        return;
    tkc_buf_init(&again, NULL, FUZZ_MAX_MEMORY);
    MUST(tkc_forward_backward_from_pb(bytes_of(&room->out), 1, &room->arena, &s, &room->err));
    MUST(tkc_forward_backward_to_pb(&s, &again, &room->err));
    MUST(tkc_str_eq(tkc_buf_view(&room->out), tkc_buf_view(&again)));
    tkc_buf_clear(&again);
    (void)tkc_forward_backward_to_json(&r, &again, &room->err);
    tkc_buf_free(&again);
}

static void samples(tinkc_bytes in, fuzz_room *room)
{
    tkc_sample_response r, s;
    tkc_buf again;
    const int32_t *ids;
    const float *logprobs;
    if (!tkc_sample_response_from_pb(in, &room->arena, &r, &room->err))
        return;
    for (size_t i = 0; i <= r.topk.rows && i < 4096; i++)
        (void)tkc_topk_row(&r.topk, i, &ids, &logprobs);
    for (size_t i = 0; r.sampled_topk && i < r.sequences.len && i < 4096; i++)
        (void)tkc_topk_row(&r.sampled_topk[i], 0, &ids, &logprobs);
    MUST(tkc_sample_response_to_pb(&r, &room->out, &room->err));
    tkc_buf_init(&again, NULL, FUZZ_MAX_MEMORY);
    MUST(tkc_sample_response_from_pb(bytes_of(&room->out), &room->arena, &s, &room->err));
    MUST(tkc_sample_response_to_pb(&s, &again, &room->err));
    MUST(tkc_str_eq(tkc_buf_view(&room->out), tkc_buf_view(&again)));
    tkc_buf_clear(&again);
    (void)tkc_sample_response_to_json(&r, &again, &room->err);
    tkc_buf_free(&again);
}

static void output(tinkc_bytes in, fuzz_room *room)
{
    tkc_forward_backward_output o, p;
    tkc_buf again;
    if (!tkc_output_from_pb(in, &room->arena, &o, &room->err))
        return;
    for (size_t i = 0; i < o.n_datums && i < 64; i++)
        for (size_t k = 0; o.records.len && k < o.records.data[0].fields.len; k++) {
            tinkc_tensor t;
            (void)tkc_output_tensor(&o, i, o.records.data[0].fields.data[k].name, &room->arena, &t,
                                    &room->err);
        }
    MUST(tkc_output_to_pb(&o, &room->out, &room->err) || room->err.code == TINKC_E_MEMORY);
    if (room->err.code)
        return;
    tkc_buf_init(&again, NULL, FUZZ_MAX_MEMORY);
    MUST(tkc_output_from_pb(bytes_of(&room->out), &room->arena, &p, &room->err));
    MUST(tkc_output_to_pb(&p, &again, &room->err));
    MUST(o.records.len == 0 || tkc_str_eq(tkc_buf_view(&room->out), tkc_buf_view(&again)));
    tkc_buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > FUZZ_MAX_INPUT)
        return 0;
    fuzz_room *room = fuzz_begin();
    tinkc_bytes in = { data + 1, size - 1 };
    if (data[0] % 3 == 0)
        request(in, room);
    else if (data[0] % 3 == 1)
        samples(in, room);
    else
        output(in, room);
    fuzz_end(room);
    return 0;
}
