/* Lines of a log directory, as the page reads them: what comes out is one JSON object, whatever went
 * in, and reading it again changes nothing. */
#include "harness.h"

#include "base/json_read.h"
#include "service/page/jsonlines.h"

static void look(fuzz_room *room, tinkc_str line, bool numbers)
{
    tinkc_error err = { 0 };
    tinkc_str row, again;
    tkc_json j;
    if (!tke_line_row(line, numbers, &room->arena, &row))
        return;
    MUST(row.len && row.data[0] == '{');
    tkc_json_open(&j, row, &room->arena, &err);
    (void)tkc_json_skip(&j);
    MUST(tkc_json_close(&j));
    MUST(tke_line_row(row, numbers, &room->arena, &again) && tkc_str_eq(row, again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > FUZZ_MAX_INPUT)
        return 0;
    fuzz_room *room = fuzz_begin();
    look(room, tkc_strn((const char *)data, size), true);
    look(room, tkc_strn((const char *)data, size), false);
    fuzz_end(room);
    return 0;
}
