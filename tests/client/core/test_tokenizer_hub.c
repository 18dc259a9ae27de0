/* test_tokenizer_hub.c - how a client asks for tokenizers: its hub has the client's patience, and the service as a hub for its own
 * models has none, because the other one is asked next. */
#define TINKC_WITH_TOKENIZER
#include "../../../src/client/core/tokenizer_fetch.c"
#include "support/client/api_support.h"

TEST(the_hub_has_the_patience_of_its_client)
{
    static const struct {
        bool no_retries;
        int64_t window_ms, hub_window_ms;
    } rows[] = { { false, 0, 30000 },     { true, 0, 30000 },      { false, 10000, 10000 },
                 { false, 29999, 29999 }, { false, 30001, 30000 }, { false, TINKC_FOREVER, 30000 } };
    setenv("HF_HUB_OFFLINE", "1", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-key",
                                                                         .proxy = "",
                                                                         .base_url = "http://127.0.0.1:1",
                                                                         .telemetry = TINKC_TELEMETRY_OFF,
                                                                         .no_retries = rows[i].no_retries,
                                                                         .retry_window_ms = rows[i].window_ms },
                                                &err);
        assert_ok(&err);
        const tinkc_hub *hub = client->tokenizers->hub;
        assert_int_equal(hub->no_retries, rows[i].no_retries);
        assert_int_equal(hub->retry_window_ms, rows[i].hub_window_ms);
        fetch_op op = { .hub = client->tokenizers->hub };
        tkc_arena_init(&op.f.arena, NULL, 0);
        tinkc_hub *own = server_as_hub(client->tokenizers, &op);
        assert_non_null(own);
        assert_true(own->no_retries && hub->offline && !own->offline);
        assert_string_equal(own->url, "http://127.0.0.1:1");
        assert_string_equal(own->token, "tml-key");
        assert_string_not_equal(own->cache, hub->cache);
        tinkc_hub_free(own);
        tkc_arena_free(&op.f.arena);
        tinkc_client_free(client);
    }
    unsetenv("HF_HUB_OFFLINE");
}
