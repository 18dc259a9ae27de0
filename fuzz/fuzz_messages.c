/* Every JSON message of the protocol: the first byte says which. What is accepted is written, read
 * again and written again: the two texts must be equal. */
#include "harness.h"
#include "../tests/support/client/wire_samples.h"

#include "wire/answer.h"

static void both_ways(const tkc_message *type, tinkc_str text, fuzz_room *room)
{
    static _Alignas(16) char msg[4096];
    tkc_buf again;
    MUST(type->size <= sizeof msg);
    if (!tkc_message_decode(type, text, TINKC_E_BAD_RESPONSE, &room->arena, msg, &room->err))
        return;
    if (!tkc_message_encode(type, msg, &room->out, &room->err))
        return; /* 1e999 is a number of the text that cannot be written */
    tkc_buf_init(&again, NULL, FUZZ_MAX_MEMORY);
    MUST(tkc_message_decode(type, tkc_buf_view(&room->out), TINKC_E_BAD_RESPONSE, &room->arena, msg,
                            &room->err));
    MUST(tkc_message_encode(type, msg, &again, &room->err));
    MUST(tkc_str_eq(tkc_buf_view(&room->out), tkc_buf_view(&again)));
    tkc_buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > FUZZ_MAX_INPUT)
        return 0;
    fuzz_room *room = fuzz_begin();
    tinkc_str text = tkc_strn((const char *)data + 1, size - 1);
    if (data[0] == 0xFF) {
        tkc_answer answer;
        if (tkc_answer_read(text, &room->arena, &answer, &room->err) && answer.kind)
            (void)tkc_answer_write(&answer, &room->out, &room->err);
    } else if (data[0] == 0xFE) {
        tkc_error_body body;
        MUST(tkc_error_body_read(text, &room->arena, &body, &room->err));
        MUST(tkc_error_body_write(&body, &room->out, &room->err));
    } else {
        both_ways(wire_samples[data[0] % N_WIRE_SAMPLES].type, text, room);
    }
    fuzz_end(room);
    return 0;
}
