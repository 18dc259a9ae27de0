/* Multipart bodies: whatever name, file name and contents are, cutting the body at its boundary
 * must give one part with just those contents, and its head must have as many lines as we wrote. */
#include "harness.h"

#include "codec/multipart.h"

static int64_t no_time(void *self)
{
    (void)self;
    return 0;
}
static uint64_t same(void *self)
{
    (void)self;
    return 0;
}

static void check_part(const tkc_buf *out, const char *boundary, const uint8_t *data, size_t size)
{
    char mark[64] = "--";
    memcpy(mark + 2, boundary, strlen(boundary) + 1);
    size_t n = strlen(mark);
    MUST(out->len > 2 * n && memcmp(out->data, mark, n) == 0);
    const char *head_end = memmem(out->data, out->len, "\r\n\r\n", 4);
    MUST(head_end);
    int lines = 0;
    for (const char *p = out->data; p < head_end; p++)
        lines += *p == '\n';
    MUST(lines == 2);
    const char *body = head_end + 4;
    size_t left = out->len - (size_t)(body - out->data);
    MUST(left == size + 2 + n + 4);
    MUST(size == 0 || memcmp(body, data, size) == 0);
    MUST(memcmp(body + size, "\r\n", 2) == 0 && memcmp(body + size + 2, mark, n) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 1 << 12)
        return 0;
    tinkc_clock clock = { .now_ms = no_time, .wall_us = no_time, .random = same };
    fuzz_room *room = fuzz_begin();
    tkc_multipart m;
    size_t n = data[0] % size, k = data[1] % size;
    const char *name = fuzz_text(room, data, n), *file = fuzz_text(room, data, k);
    tkc_multipart_open(&m, &room->out, &clock, &room->err);
    if (!memmem(data, size, m.boundary, strlen(m.boundary))) {
        tkc_multipart_bytes(&m, name, file, NULL, data, size);
        MUST(tkc_multipart_close(&m));
        check_part(&room->out, m.boundary, data, size);
    }
    fuzz_end(room);
    return 0;
}
