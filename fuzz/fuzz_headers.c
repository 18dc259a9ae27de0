/* Retry headers, dates, tokens, audio heads, base64, zstd: small readers of hostile text. */
#include "harness.h"

#include "codec/base64.h"
#include "codec/dmel.h"
#include "codec/jwt.h"
#include "codec/retry.h"
#include "codec/utf8.h"
#include "codec/zstd.h"

static void retrying(fuzz_room *room, const uint8_t *data, size_t size)
{
    const char *text = fuzz_text(room, data, size);
    int64_t us;
    int64_t ms = tkc_retry_after_ms(text, text, 1779912000000000);
    MUST(ms >= 0 && ms <= 60000);
    ms = tkc_retry_after_ms(NULL, text, 1779912000000000);
    MUST(ms >= 0 && ms <= 60000);
    (void)tkc_should_retry(text);
    (void)tkc_parse_http_date(tkc_str(text), &us);
}

static void coded(fuzz_room *room, const uint8_t *data, size_t size)
{
    tinkc_bytes bytes;
    tinkc_str text = tkc_strn((const char *)data, size);
    if (tkc_base64_decode(text, &room->arena, &bytes, &room->err)) {
        char *back = tkc_arena_alloc(&room->arena, tkc_base64_length(bytes.len) + 1, &room->err);
        MUST(tkc_base64_length(bytes.len) == size);
        tkc_base64_encode(bytes.data, bytes.len, back);
        MUST(memcmp(back, data, size) == 0);
    }
    (void)tkc_base64url_decode(text, &room->arena, &bytes, &room->err);
    size_t good = tkc_utf8_prefix(data, size);
    MUST(good <= size && tkc_utf8_valid(data, good) &&
         tkc_utf8_valid(data, size) == (good == size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 12)
        return 0;
    fuzz_room *room = fuzz_begin();
    tkc_jwt token;
    tkc_dmel head;
    uint8_t which = data[0];
    data++, size--;
    switch (which % 5) {
    case 0:
        retrying(room, data, size);
        break;
    case 1:
        (void)tkc_jwt_read(fuzz_text(room, data, size), &room->arena, &token, &room->err);
        break;
    case 2:
        if (tkc_dmel_read(data, size, &head, &room->err))
            MUST(head.ndim > 0 && head.dims[0] >= 0 && head.head <= size);
        break;
    case 3:
        coded(room, data, size);
        break;
    default:
        if (tkc_zstd_decompress(data, size, 1 << 20, &room->out, &room->err))
            MUST(room->out.len <= 1 << 20);
        break;
    }
    fuzz_end(room);
    return 0;
}
