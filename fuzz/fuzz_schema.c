/* JSON schemas to grammars: what is made can be walked to its end in as many bytes as it says. */
#include "harness.h"

#include "constrain/json_grammar.h"

static void to_the_end(const tke_grammar *g)
{
    tke_grammar_state s, next;
    tke_grammar_start(g, &s);
    for (int64_t cost = tke_grammar_cost(g, &s); cost > 0 && cost < 2000;) {
        int byte = 0;
        int64_t now = cost;
        for (; byte < 256 && now >= cost; byte++) {
            tke_grammar_copy(&next, &s);
            now = tke_grammar_step(g, &next, (uint8_t)byte) ? tke_grammar_cost(g, &next) : cost;
        }
        MUST(now < cost); /* some byte leads towards the end */
        tke_grammar_copy(&s, &next);
        cost = now;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tke_grammar g;
    if (size > FUZZ_MAX_INPUT)
        return 0;
    fuzz_room *room = fuzz_begin();
    if (tke_json_grammar(&g, &room->arena, tkc_strn((const char *)data, size), &room->err))
        to_the_end(&g);
    else
        MUST(room->err.code == TINKC_E_BAD_REQUEST);
    fuzz_end(room);
    return 0;
}
