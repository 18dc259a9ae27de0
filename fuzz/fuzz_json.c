/* The JSON reader: any text, passed over, walked through, read as numbers and as a tree; what it accepts
 * is written back and must be accepted again with the same meaning. */
#include "harness.h"

#include "base/json_read.h"
#include "base/json_tree.h"
#include "base/json_write.h"

static void copy_value(tkc_json *j, tkc_jsonw *w)
{
    tinkc_str key;
    switch (tkc_json_peek(j)) {
    case TKC_JSON_OBJECT:
        tkc_json_object(j);
        tkc_jsonw_object(w);
        while (tkc_json_key(j, &key)) {
            tkc_jsonw_key_str(w, key);
            copy_value(j, w);
        }
        tkc_jsonw_end(w);
        break;
    case TKC_JSON_ARRAY:
        tkc_json_array(j);
        tkc_jsonw_array(w);
        while (tkc_json_item(j))
            copy_value(j, w);
        tkc_jsonw_end(w);
        break;
    case TKC_JSON_STRING:
        tkc_jsonw_str(w, tkc_json_string(j));
        break;
    case TKC_JSON_NUMBER:
        tkc_jsonw_double(w, tkc_json_double(j));
        break;
    case TKC_JSON_TRUE:
    case TKC_JSON_FALSE:
        tkc_jsonw_bool(w, tkc_json_bool(j));
        break;
    case TKC_JSON_NULL:
        (void)tkc_json_null(j);
        tkc_jsonw_null(w);
        break;
    default:
        break;
    }
}

static bool rewrite(tinkc_str text, tkc_arena *arena, tkc_buf *out)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tkc_jsonw w;
    tkc_json_open(&j, text, arena, &err);
    tkc_jsonw_open(&w, out, &err);
    copy_value(&j, &w);
    return tkc_json_close(&j);
}

static void read_numbers(tinkc_str text, tkc_arena *arena)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tkc_json_open(&j, text, arena, &err);
    (void)tkc_json_i32s(&j);
    err = (tinkc_error){ 0 };
    tkc_json_open(&j, text, arena, &err);
    (void)tkc_json_f32s(&j);
    err = (tinkc_error){ 0 };
    tkc_json_open(&j, text, arena, &err);
    (void)tkc_json_i64s(&j);
}

/* The tree refuses some texts that the reader takes: with NUL, or numbers that it cannot hold. */
static void read_tree(tinkc_str text, tkc_arena *arena, bool accepted)
{
    const tkc_tree *v = tkc_tree_read(arena, text, TKC_TREE_ANY);
    const char *first = v ? tkc_tree_print(arena, v, TKC_TREE_COMPACT) : NULL;
    const tkc_tree *again = tkc_tree_read(arena, tkc_str(first), TKC_TREE_ANY);
    MUST(!v || accepted);
    MUST(!first || arena->failed || (tkc_tree_equal(v, again) && tkc_tree_equal(again, v)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > FUZZ_MAX_INPUT)
        return 0;
    fuzz_room *room = fuzz_begin();
    tinkc_str text = tkc_strn((const char *)data, size);
    tkc_json j;
    tkc_json_open(&j, text, &room->arena, &room->err);
    (void)tkc_json_skip(&j);
    bool accepted = tkc_json_close(&j);
    if (rewrite(text, &room->arena, &room->out)) {
        MUST(accepted);
        tkc_buf again;
        tkc_buf_init(&again, NULL, FUZZ_MAX_MEMORY);
        MUST(rewrite(tkc_buf_view(&room->out), &room->arena, &again));
        MUST(tkc_str_eq(tkc_buf_view(&room->out), tkc_buf_view(&again)));
        tkc_buf_free(&again);
    }
    read_numbers(text, &room->arena);
    read_tree(text, &room->arena, accepted);
    fuzz_end(room);
    return 0;
}
