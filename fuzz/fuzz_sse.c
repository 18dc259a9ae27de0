/* Event streams: the same events must come whatever the pieces are in which the bytes arrive; the
 * first byte is their size. What is read is written and must read back. */
#include "harness.h"

#include "codec/sse.h"

/* All events, one after the other, with NULs between their parts. False on an error. */
static bool read_all(const uint8_t *data, size_t size, size_t piece, tkc_buf *events)
{
    tinkc_error err = { 0 }, room = { 0 };
    tinkc_sse_parser *p = tinkc_sse_new(1 << 12, NULL, &err);
    const tinkc_sse *e;
    for (size_t at = 0; at < size && !err.code; at += piece) {
        tinkc_sse_feed(p, data + at, size - at < piece ? size - at : piece, &err);
        while ((e = tinkc_sse_next(p, &err))) {
            tkc_buf_add(events, e->event, strlen(e->event) + 1, &room);
            tkc_buf_add(events, e->data, e->data_len + 1, &room);
            tkc_buf_add(events, e->id, strlen(e->id) + 1, &room);
        }
    }
    tinkc_sse_free(p);
    return err.code == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 11)
        return 0;
    tkc_buf whole, pieces;
    tkc_buf_init(&whole, NULL, FUZZ_MAX_MEMORY);
    tkc_buf_init(&pieces, NULL, FUZZ_MAX_MEMORY);
    bool a = read_all(data + 1, size - 1, size, &whole);
    bool b = read_all(data + 1, size - 1, (size_t)data[0] % 7 + 1, &pieces);
    MUST(a == b);
    MUST(!a || tkc_str_eq(tkc_buf_view(&whole), tkc_buf_view(&pieces)));
    tkc_buf_free(&whole);
    tkc_buf_free(&pieces);

    fuzz_room *room = fuzz_begin();
    tkc_sse_write(&room->out, "e", NULL, tkc_strn((const char *)data, size), &room->err);
    tkc_buf back;
    tkc_buf_init(&back, NULL, FUZZ_MAX_MEMORY);
    (void)read_all((const uint8_t *)room->out.data, room->out.len, size, &back);
    tkc_buf_free(&back);
    fuzz_end(room);
    return 0;
}
