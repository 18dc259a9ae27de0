/* The bulky messages in JSON: the first byte says which. */
#include "harness.h"

#include "wire/sample_message.h"

static void request(tinkc_str text, fuzz_room *room)
{
    tkc_forward_backward_request r, s;
    if (!tkc_forward_backward_from_json(text, TINKC_E_UNPROCESSABLE, &room->arena, &r, NULL, &room->err))
        return;
    if (!tkc_forward_backward_to_json(&r, &room->out, &room->err))
        return; /* a number that only the text can hold */
    MUST(tkc_forward_backward_from_json(tkc_buf_view(&room->out), 1, &room->arena, &s, NULL, &room->err));
    MUST(r.data.len == s.data.len);
}

static void samples(tinkc_str text, fuzz_room *room)
{
    tkc_sample_response r, s;
    if (!tkc_sample_response_from_json(text, &room->arena, &r, &room->err))
        return;
    if (!tkc_sample_response_to_json(&r, &room->out, &room->err))
        return;
    MUST(tkc_sample_response_from_json(tkc_buf_view(&room->out), &room->arena, &s, &room->err) ||
         room->err.code == TINKC_E_BAD_RESPONSE);
}

static void output(tinkc_str text, fuzz_room *room)
{
    tkc_forward_backward_output o, p;
    if (!tkc_output_from_json(text, &room->arena, &o, &room->err))
        return;
    if (!tkc_output_to_json(&o, &room->out, &room->err))
        return;
    MUST(tkc_output_from_json(tkc_buf_view(&room->out), &room->arena, &p, &room->err));
    MUST(o.n_datums == p.n_datums);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > FUZZ_MAX_INPUT)
        return 0;
    fuzz_room *room = fuzz_begin();
    tinkc_str text = tkc_strn((const char *)data + 1, size - 1);
    if (data[0] % 3 == 0)
        request(text, room);
    else if (data[0] % 3 == 1)
        samples(text, room);
    else
        output(text, room);
    fuzz_end(room);
    return 0;
}
