/* URLs, ids in paths, query strings, tinker:// paths, routes: the first byte says which. A URL that
 * is normal stays as it is; what is escaped comes back. */
#include "harness.h"

#include "codec/query.h"
#include "codec/tinker_path.h"
#include "codec/url.h"
#include "wire/endpoint.h"

static void url(fuzz_room *room, const char *text)
{
    tkc_url u, v;
    if (tkc_url_parse(tkc_str(text), &room->arena, &u, &room->err)) {
        MUST(tkc_url_parse(tkc_str(u.text), &room->arena, &v, &room->err));
        MUST(strcmp(u.text, v.text) == 0 && strcmp(u.origin, v.origin) == 0);
        MUST(tkc_url_same_origin(text, u.text));
    }
    room->err = (tinkc_error){ 0 };
    const char *to = tkc_url_resolve("https://h:8443/a/b/c?d", text, &room->arena, &room->err);
    if (to)
        MUST(tkc_url_parse(tkc_str(to), &room->arena, &u, &room->err) && strcmp(u.text, to) == 0);
}

static void ids(fuzz_room *room, const char *text)
{
    const char *const list[] = { text, "weights/x", NULL };
    const tkc_endpoint *e = tkc_endpoint_get(TKC_EP_SET_TTL);
    tkc_route route;
    if (!tkc_endpoint_path(e, list, &room->out, &room->err))
        return;
    MUST(
        tkc_route_find(tkc_str("PUT"), tkc_buf_view(&room->out), &room->arena, &route, &room->err));
    if (route.status == 200) /* an id that is not UTF-8 does not come back */
        MUST(route.endpoint == e && strcmp(route.id, text) == 0);
}

static void query(fuzz_room *room, const char *text)
{
    tkc_query q;
    tkc_query_open(&q, &room->out, 0, &room->err);
    tkc_query_str(&q, "a&b", text);
    MUST(!room->err.code);
    const char *back = tkc_query_find(tkc_buf_view(&room->out), "a&b", &room->arena, &room->err);
    if (back)
        MUST(strcmp(back, text) == 0);
    (void)tkc_query_find(tkc_str(text), "x", &room->arena, &room->err);
}

static void path(fuzz_room *room, const char *text)
{
    tinkc_path p;
    tinkc_text out = { 0 };
    if (!tkc_tinker_path(tkc_str(text), &p, &room->err))
        return;
    const char *run = tkc_arena_str(&room->arena, p.run_id, &room->err);
    const char *id = tkc_arena_str(&room->arena, p.checkpoint_id, &room->err);
    MUST(strcmp(tinkc_path_join(run, id, &out, &room->err), text) == 0);
    tinkc_text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > 1 << 12)
        return 0;
    fuzz_room *room = fuzz_begin();
    const char *text = fuzz_text(room, data + 1, size - 1);
    tkc_route route;
    switch (data[0] % 5) {
    case 0:
        url(room, text);
        break;
    case 1:
        ids(room, text);
        break;
    case 2:
        query(room, text);
        break;
    case 3:
        path(room, text);
        break;
    default:
        MUST(tkc_route_find(tkc_str("GET"), tkc_str(text), &room->arena, &route, &room->err));
        break;
    }
    fuzz_end(room);
    return 0;
}
