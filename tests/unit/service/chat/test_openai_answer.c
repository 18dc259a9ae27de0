/* test_openai_answer.c - completions in OpenAI's form, byte by byte, from sequences that the test writes.
 *
 * No model: a sequence grows by one token at a time, and after each the events that it made are
 * compared with those that are due.
 */
#include <math.h>

#include "infer/infer_state.h"
#include "service/worker/jobs.h"
#include "service/core/base_models.h"
#include "service/chat/chat_state.h"
#include "support/check.h"
#include "support/json_trees.h"

/* ---- a vocabulary, a request and its sequences ---- */

enum { EOS = 9, END = 8, CALL = 10, BARE = 11, THINK = 12, THOUGHT = 13, N_WORDS = 14 };
static const char *const words[N_WORDS] = { "",
                                            "a",
                                            "b",
                                            "c",
                                            "\xc3",
                                            "\xa9",
                                            "d",
                                            "ab",
                                            "<|end|>",
                                            "</s>",
                                            "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>",
                                            "{\"name\":\"g\",\"parameters\":{}}",
                                            "<think>",
                                            "</think>" };

static size_t bytes_of(void *user, int32_t token, const char **bytes)
{
    assert_ptr_equal(user, words);
    *bytes = words[token];
    return token != END && token != EOS ? strlen(words[token]) : 0; /* special ones have no text */
}
static size_t name_of(void *user, int32_t token, const char **bytes)
{
    assert_ptr_equal(user, words);
    *bytes = words[token];
    return strlen(words[token]);
}

enum { MOST = 16, TOP = 2, PROMPT = 3 };
static struct {
    tke_model model;
    tke_base base;
    tke_job jobs[2];
    tke_gen gens[2];
    tke_seq seqs[2][2];
    int32_t tokens[2][2][MOST];
    float logprobs[MOST];
    int32_t top[MOST * TOP];
    float top_logprobs[MOST * TOP];
    tke_chat_answer *answer;
    tkc_buf out;
} w;

static const int32_t prompt[PROMPT] = { 1, 4, 5 }; /* "aé" */

static void begin(tke_chat_answer like, size_t n_parts, size_t n_samples, const tinkc_str *stops, size_t n_stops)
{
    static const int32_t end = END;
    tinkc_error err = { 0 };
    memset(&w, 0, sizeof w);
    w.model.config.n_eos = 1;
    w.model.config.eos[0] = EOS;
    w.base.model = &w.model;
    tkc_buf_init(&w.out, NULL, TKC_BUF_NO_MAX);
    like.model = "m";
    strcpy(like.id, "x");
    like.created_s = 5;
    like.names = name_of;
    w.answer = tke_chat_answer_new(NULL, &like, n_parts, n_samples, &err);
    assert_ok(err);
    for (size_t i = 0; i < MOST; i++) {
        w.logprobs[i] = -0.25f * (float)i;
        for (size_t k = 0; k < TOP; k++) {
            w.top[TOP * i + k] = (int32_t)(i % 3 + k + 1);
            w.top_logprobs[TOP * i + k] = -0.5f * (float)(i + k);
        }
    }
    for (size_t p = 0; p < n_parts; p++) {
        tke_gen_request r = { .prompt = prompt,
                              .n_prompt = PROMPT,
                              .n_samples = n_samples,
                              .stop_tokens = &end,
                              .n_stop_tokens = 1,
                              .stop_strings = stops,
                              .n_stop_strings = n_stops,
                              .topk_prompt_logprobs = like.top,
                              .token_bytes = bytes_of,
                              .token_user = (void *)(uintptr_t)words };
        w.jobs[p].in.sample.base = &w.base;
        w.jobs[p].in.sample.gen = w.gens[p].r = r;
        w.gens[p].seqs = w.seqs[p];
        w.gens[p].prompt_logprobs = w.logprobs;
        w.gens[p].n_scored = PROMPT;
        w.gens[p].topk_tokens = w.top;
        w.gens[p].topk_logprobs = w.top_logprobs;
        for (size_t s = 0; s < n_samples; s++)
            w.seqs[p][s] = (tke_seq){ .tokens = w.tokens[p][s],
                                      .logprobs = w.logprobs,
                                      .state = TKE_SEQ_RUNNING,
                                      .topk = w.top,
                                      .topk_logprobs = w.top_logprobs };
        w.answer->parts[p].job = &w.jobs[p];
    }
}

static void add(size_t part, size_t sample, int32_t token)
{
    tke_seq *s = &w.seqs[part][sample];
    s->tokens[s->n++] = token;
}

static void finish(size_t part, size_t sample, bool stopped)
{
    w.seqs[part][sample].state = TKE_SEQ_DONE;
    w.seqs[part][sample].stopped = stopped;
}

static void expect(const char *want)
{
    tinkc_error err = { 0 };
    assert_true(tkc_buf_terminate(&w.out, &err));
    assert_string_equal(w.out.data, want);
    tkc_buf_clear(&w.out);
}

static void events(size_t part, const char *want)
{
    tinkc_error err = { 0 };
    tke_openai_events.tokens(&w.answer->parts[part], &w.gens[part], &w.out, &err);
    assert_ok(err);
    expect(want);
}

/* The end of a part; the last one's frees the answer. */
static void ends(const tke_stream_style *style, size_t part, const tinkc_error *why, int status, const char *want)
{
    tinkc_error err = { 0 };
    assert_int_equal(style->end(&w.answer->parts[part], why ? NULL : &w.gens[part], why, &w.out, &err), status);
    assert_ok(err);
    expect(want);
}

static void over(void)
{
    tkc_buf_free(&w.out);
}

#define HEAD(object) "{\"id\":\"x\",\"object\":\"" object "\",\"created\":5,\"model\":\"m\",\"choices\":["
#define TEXT(index, text, more)                                                                                        \
    "data: " HEAD("text_completion") "{\"index\":" index ",\"text\":\"" text "\"," more "}]}\n\n"
#define PIECE(text) TEXT("0", text, "\"logprobs\":null,\"finish_reason\":null")
#define LAST(why)   TEXT("0", "", "\"logprobs\":null,\"finish_reason\":\"" why "\"")
#define DELTA(delta, finish)                                                                                           \
    "data: " HEAD("chat.completion.chunk") "{\"index\":0,\"delta\":{" delta                                            \
                                           "},\"logprobs\":null,\"finish_reason\":" finish "}]}\n\n"
#define ROLE DELTA("\"role\":\"assistant\",\"content\":\"\"", "null")
#define DONE "data: [DONE]\n\n"

/* ---- events ---- */

/* What may still become a stop string is held back, whichever string it is; what precedes it is
 * sent. */
TEST(text_is_held_back)
{
    const tinkc_str stops[] = { tkc_str("bcd"), tkc_str("ca") };
    for (int last = 0; last < 3; last++) {
        begin((tke_chat_answer){ 0 }, 1, 1, stops, 2);
        events(0, "");
        add(0, 0, 1);
        events(0, PIECE("a"));
        events(0, ""); /* nothing is new */
        add(0, 0, 2);
        events(0, "");
        add(0, 0, 3);
        events(0, ""); /* "bc": of the first string */
        add(0, 0, 3);
        events(0, PIECE("bc")); /* "c": of the last */
        if (last == 0) {
            add(0, 0, 1);
            finish(0, 0, true); /* "ca" */
            ends(&tke_openai_events, 0, NULL, 200, LAST("stop") DONE);
        } else if (last == 1) {
            finish(0, 0, false); /* by length: it is text */
            ends(&tke_openai_events, 0, NULL, 200, PIECE("c") LAST("length") DONE);
        } else {
            add(0, 0, EOS);
            finish(0, 0, true);
            events(0, PIECE("c") LAST("stop"));
            events(0, ""); /* a choice ends once */
            ends(&tke_openai_events, 0, NULL, 200, DONE);
        }
        over();
    }
}

/* The first of the stop strings ends the text, wherever it stands in their list; text of tokens
 * behind it is not sent. */
TEST(the_first_stop_counts)
{
    static const struct {
        const char *stops[2];
        const char *want;
    } rows[] = { { { "bc", "d" }, PIECE("a") },
                 { { "d", "bc" }, PIECE("a") },
                 { { "dd", "cd" }, PIECE("ab") },
                 { { "ab", "d" }, "" },
                 { { "dd", "x" }, PIECE("abcd") } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tinkc_str stops[] = { tkc_str(rows[i].stops[0]), tkc_str(rows[i].stops[1]) };
        char want[1000];
        begin((tke_chat_answer){ 0 }, 1, 1, stops, 2);
        add(0, 0, 7);
        add(0, 0, 3);
        add(0, 0, 6);
        finish(0, 0, true);
        snprintf(want, sizeof want, "%s%s", rows[i].want, LAST("stop") DONE);
        ends(&tke_openai_events, 0, NULL, 200, want);
        over();
    }
}

/* Half a character waits for its other half; at the end it is replaced. Only the token that ended
 * the sequence is left out: the same token before it, or in one that was not stopped, has its text. */
TEST(characters_are_whole)
{
    begin((tke_chat_answer){ 0 }, 1, 1, NULL, 0);
    add(0, 0, 4);
    events(0, "");
    add(0, 0, 5);
    events(0, PIECE("\xc3\xa9"));
    add(0, 0, 1);
    add(0, 0, 4);
    events(0, PIECE("a"));
    finish(0, 0, false);
    ends(&tke_openai_events, 0, NULL, 200, PIECE("\xef\xbf\xbd") LAST("length") DONE);
    over();
    begin((tke_chat_answer){ 0 }, 1, 1, NULL, 0); /* a stop token that has text */
    static const int32_t b = 2;
    w.jobs[0].in.sample.gen.stop_tokens = &b;
    add(0, 0, 2);
    add(0, 0, 2);
    finish(0, 0, true);
    ends(&tke_openai_events, 0, NULL, 200, PIECE("b") LAST("stop") DONE);
    over();
    begin((tke_chat_answer){ 0 }, 1, 1, NULL, 0);
    w.jobs[0].in.sample.gen.stop_tokens = &b;
    add(0, 0, 2);
    add(0, 0, 2);
    finish(0, 0, false);
    ends(&tke_openai_events, 0, NULL, 200, PIECE("bb") LAST("length") DONE);
    over();
}

/* Chats name the role once; a call is sent at the end, with the text before it trimmed. */
TEST(a_chats_events_name_the_role_once)
{
    begin((tke_chat_answer){ .chat = true, .usage = true }, 1, 1, NULL, 0);
    add(0, 0, 1);
    events(0, "data: " HEAD("chat.completion.chunk") "{\"index\":0,\"delta\":{\"role\":\"assistant\","
                                                     "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":"
                                                     "null}],\"usage\":null}\n\n"
                                                     "data: " HEAD("chat.completion.chunk") "{\"index\":0,\"delta\":{"
                                                                                            "\"content\":\"a\"},"
                                                                                            "\"logprobs\":null,"
                                                                                            "\"finish_reason\":null}],"
                                                                                            "\"usage\":null}\n\n");
    add(0, 0, END);
    finish(0, 0, true);
    ends(&tke_openai_events, 0, NULL, 200,
         "data: " HEAD("chat.completion.chunk") "{\"index\":0,\"delta\":{},\"logprobs\":null,"
                                                "\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
                                                "data: " HEAD("chat.completion.chunk") "],\"usage\":{\"prompt_tokens\":"
                                                                                       "3,"
                                                                                       "\"completion_tokens\":2,"
                                                                                       "\"total_tokens\":5}}\n\n" DONE);
    over();
    begin((tke_chat_answer){ .chat = true }, 1, 1, NULL, 0); /* ended by its first token */
    add(0, 0, EOS);
    finish(0, 0, true);
    ends(&tke_openai_events, 0, NULL, 200, ROLE DELTA("", "\"stop\"") DONE);
    over();
}

/* The events of a part that failed end with its error, in place of [DONE]. */
TEST(events_of_a_failed_part_end_with_its_error)
{
    tinkc_error why = { 0 }, none = { 0 };
    tkc_fail(&why, TINKC_E_SERVER, "the device broke");
    begin((tke_chat_answer){ .usage = true }, 1, 1, NULL, 0);
    ends(&tke_openai_events, 0, &why, 200,
         "data: {\"error\":{\"message\":\"the device broke\",\"type\":\"server_error\","
         "\"param\":null,\"code\":\"server_error\"}}\n\n");
    over();
    /* The first error of several parts is the answer's; no text of the others is sent with it. */
    begin((tke_chat_answer){ 0 }, 2, 1, NULL, 0);
    add(1, 0, 1);
    finish(1, 0, false);
    ends(&tke_openai_whole, 0, &none, 200, "");
    ends(&tke_openai_whole, 1, &why, 500,
         "{\"error\":{\"message\":\"the sample failed\",\"type\":\"server_error\",\"param\":null,"
         "\"code\":\"server_error\"}}");
    over();
}

/* ---- the other forms ---- */

/* The types of the events that were written, each with the place that it is about; the data of the last one that is
 * not the end of the stream. */
static tkc_tree *list_events(char *list, size_t size)
{
    tinkc_error err = { 0 };
    char *rest = NULL;
    tkc_tree *last = NULL;
    list[0] = '\0';
    assert_true(tkc_buf_terminate(&w.out, &err));
    for (char *line = strtok_r(w.out.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "data: ", 6) != 0)
            continue;
        tkc_tree *v = json_of(line + 6), *at = tkc_tree_get(v, "index");
        at = at ? at : tkc_tree_get(v, "output_index");
        const char *type = tkc_tree_get_text(v, "type");
        type += strncmp(type, "response.", 9) == 0 ? 9 : 0;
        size_t n = strlen(list);
        if (at)
            snprintf(list + n, size - n, "%s:%d ", type, (int)tkc_tree_i64(at));
        else
            snprintf(list + n, size - n, "%s ", type);
        last = v;
    }
    tkc_buf_clear(&w.out);
    return last;
}

/* A thought, what is said, and two calls: four items, each with its place in all of its events. */
TEST(each_event_names_its_item)
{
    static const struct {
        const tke_stream_style *style;
        const char *last_call, *events;
    } rows[] = {
        { &tke_responses_events, "\"call_x_3\"",
          "created in_progress "
          "output_item.added:0 content_part.added:0 reasoning_text.delta:0 reasoning_text.done:0 "
          "content_part.done:0 output_item.done:0 "
          "output_item.added:1 content_part.added:1 output_text.delta:1 output_text.done:1 "
          "content_part.done:1 output_item.done:1 "
          "output_item.added:2 function_call_arguments.delta:2 function_call_arguments.done:2 "
          "output_item.done:2 "
          "output_item.added:3 function_call_arguments.delta:3 function_call_arguments.done:3 "
          "output_item.done:3 completed " },
        { &tke_anthropic_events, "\"toolu_x_1\"",
          "message_start content_block_start:0 content_block_delta:0 content_block_stop:0 "
          "content_block_start:1 content_block_delta:1 content_block_stop:1 "
          "content_block_start:2 content_block_delta:2 content_block_stop:2 "
          "content_block_start:3 content_block_delta:3 content_block_stop:3 "
          "message_delta message_stop " },
    };
    static const int32_t said[] = { THINK, 1, THOUGHT, 2, CALL, CALL, EOS };
    for (size_t i = 0; i < 2; i++) {
        char list[1500];
        tinkc_error err = { 0 };
        begin((tke_chat_answer){ .chat = true, .calls = TKE_CALLS_TAGGED }, 1, 1, NULL, 0);
        for (size_t k = 0; k < sizeof said / sizeof *said; k++)
            add(0, 0, said[k]);
        finish(0, 0, true);
        rows[i].style->tokens(&w.answer->parts[0], &w.gens[0], &w.out, &err);
        assert_ok(err);
        assert_true(tkc_buf_terminate(&w.out, &err));
        assert_non_null(strstr(w.out.data, "\"output_tokens\":7"));
        assert_non_null(strstr(w.out.data, "\"input_tokens\":3"));
        assert_non_null(strstr(w.out.data, rows[i].last_call));
        tkc_tree *last = list_events(list, sizeof list);
        assert_string_equal(list, rows[i].events);
        const tkc_tree *items = tkc_tree_get(tkc_tree_get(last, "response"), "output");
        if (items) {
            char *all = json_print(items);
            assert_int_equal(tkc_tree_length(items), 4);
            assert_non_null(strstr(all, "\"type\":\"reasoning_text\",\"text\":\"a\""));
            assert_non_null(strstr(all, "\"type\":\"output_text\",\"text\":\"b\""));
            assert_false(tkc_tree_equal(tkc_tree_get(tkc_tree_at(items, 2), "call_id"),
                                        tkc_tree_get(tkc_tree_at(items, 3), "call_id")));
        }
        ends(rows[i].style, 0, NULL, 200, "");
        over();
    }
}

/* ---- whole answers, log-probs ---- */

#define CHOICE(index, text, logprobs, finish)                                                                          \
    "{\"index\":" index ",\"text\":\"" text "\",\"logprobs\":" logprobs ",\"finish_reason\":\"" finish "\"}"

/* The choices stand in the order of the prompts, whichever ends first; tokens of all are counted. */
TEST(order_of_choices)
{
    begin((tke_chat_answer){ 0 }, 2, 2, NULL, 0);
    add(1, 0, 3);
    add(1, 0, 3);
    add(1, 1, 6);
    add(0, 0, 1);
    add(0, 1, 2);
    for (size_t i = 0; i < 4; i++)
        finish(i / 2, i % 2, false);
    ends(&tke_openai_whole, 1, NULL, 200, "");
    ends(&tke_openai_whole, 0, NULL, 200,
         HEAD("text_completion") CHOICE("0", "a", "null", "length") "," CHOICE("1", "b", "null", "length") "," CHOICE(
             "2", "cc", "null", "length") "," CHOICE("3", "d", "null",
                                                     "length") "],\"usage\":{\"prompt_tokens\":6,"
                                                               "\"completion_tokens\":5,\"total_tokens\":11}}");
    over();
}

/* Log-probs are of the tokens whose text is sent; offsets count characters. */
TEST(logprobs_are_of_the_tokens_that_are_sent)
{
    const tinkc_str stops[] = { tkc_str("cd") };
    begin((tke_chat_answer){ .logprobs = true }, 1, 1, NULL, 0);
    add(0, 0, 7);
    add(0, 0, 4);
    add(0, 0, 5);
    add(0, 0, 3);
    w.logprobs[3] = -INFINITY;
    finish(0, 0, false);
    ends(&tke_openai_whole, 0, NULL, 200,
         HEAD("text_completion")
             CHOICE("0",
                    "ab\xc3\xa9"
                    "c",
                    "{\"tokens\":[\"ab\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\",\"c\"],\"token_logprobs\":[-0.0,"
                    "-0.25,-0.5,-9999.0],\"top_logprobs\":null,\"text_offset\":[0,2,3,3]}",
                    "length") "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,"
                              "\"total_tokens\":7}}");
    over();
    /* In pieces: each has its own, and those of a stop string are never sent. */
    begin((tke_chat_answer){ .logprobs = true, .top = TOP }, 1, 1, stops, 1);
    add(0, 0, 1);
    events(0, TEXT("0", "a",
                   "\"logprobs\":{\"tokens\":[\"a\"],\"token_logprobs\":[-0.0],"
                   "\"top_logprobs\":[{\"a\":-0.0,\"b\":-0.5}],\"text_offset\":[0]},"
                   "\"finish_reason\":null"));
    add(0, 0, 3);
    events(0, "");
    add(0, 0, 2);
    events(0, TEXT("0", "cb",
                   "\"logprobs\":{\"tokens\":[\"c\",\"b\"],\"token_logprobs\":[-0.25,-0.5],"
                   "\"top_logprobs\":[{\"b\":-0.5,\"c\":-1.0},{\"c\":-1.0,\"\xef\xbf\xbd\":-1.5}],"
                   "\"text_offset\":[1,2]},\"finish_reason\":null"));
    add(0, 0, 3);
    add(0, 0, 6);
    finish(0, 0, true);
    ends(&tke_openai_events, 0, NULL, 200, LAST("stop") DONE);
    over();
}

/* An echoed prompt comes first, in text and log-probs; its first token has neither log-prob nor
 * alternatives. */
TEST(an_echoed_prompt_comes_first)
{
    begin((tke_chat_answer){ .logprobs = true, .echo = true, .top = TOP }, 1, 1, NULL, 0);
    w.logprobs[0] = NAN;
    add(0, 0, 2);
    w.seqs[0][0].logprobs = w.logprobs + 1;
    finish(0, 0, false);
    ends(&tke_openai_whole, 0, NULL, 200,
         HEAD("text_completion")
             CHOICE("0",
                    "a\xc3\xa9"
                    "b",
                    "{\"tokens\":[\"a\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\",\"b\"],\"token_logprobs\":[null,"
                    "-0.25,-0.5,-0.25],\"top_logprobs\":[null,{\"b\":-0.5,\"c\":-1.0},{\"c\":-1.0,"
                    "\"\xef\xbf\xbd\":-1.5},{\"a\":-0.0,\"b\":-0.5}],\"text_offset\":[0,1,2,2]}",
                    "length") "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,"
                              "\"total_tokens\":4}}");
    over();
    begin((tke_chat_answer){ .echo = true }, 1, 1, NULL, 0); /* as events: once */
    add(0, 0, 2);
    events(0, PIECE("a\xc3\xa9"
                    "b"));
    add(0, 0, 2);
    events(0, PIECE("b"));
    finish(0, 0, false);
    ends(&tke_openai_events, 0, NULL, 200, LAST("length") DONE);
    over();
}

/* As events, with log-probs: a token's come with its text, which may be held back. */
TEST(echoes_in_events)
{
    static const tinkc_str stop = { "bc", 2 };
    begin((tke_chat_answer){ .logprobs = true, .echo = true }, 1, 1, &stop, 1);
#define TOLD(tokens, logprobs, offsets)                                                                                \
    "\"logprobs\":{\"tokens\":[" tokens "],\"token_logprobs\":[" logprobs                                              \
    "],\"top_logprobs\":null,\"text_offset\":[" offsets "]},\"finish_reason\":"
    w.logprobs[0] = NAN;
    w.seqs[0][0].logprobs = w.logprobs + 1;
    add(0, 0, 2); /* may begin "bc" */
    events(0,
           TEXT("0", "a\xc3\xa9", TOLD("\"a\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\"", "null,-0.25,-0.5", "0,1,2") "null"));
    add(0, 0, 1);
    events(0, TEXT("0", "ba", TOLD("\"b\",\"a\"", "-0.25,-0.5", "2,3") "null"));
    add(0, 0, 2);
    events(0, "");
    finish(0, 0, false);
    ends(&tke_openai_events, 0, NULL, 200, TEXT("0", "b", TOLD("\"b\"", "-0.75", "4") "null") LAST("length") DONE);
    over();
}

/* A chat's log-probs have the bytes of each token, special ones too. */
TEST(a_chats_logprobs_have_the_bytes_of_each_token)
{
    begin((tke_chat_answer){ .chat = true, .logprobs = true, .top = 1 }, 1, 1, NULL, 0);
    add(0, 0, END); /* not at the end: it has no text */
    add(0, 0, 4);
    add(0, 0, 5);
    finish(0, 0, false);
    ends(&tke_openai_whole, 0, NULL, 200,
         HEAD("chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                                 "\"\xc3\xa9\"},"
                                 "\"logprobs\":{\"content\":[{\"token\":\"<|end|>\",\"logprob\":-0."
                                 "0,\"bytes\":[60,124,101,110,"
                                 "100,124,62],\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.0,"
                                 "\"bytes\":[97]}]},"
                                 "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.25,\"bytes\":[195],"
                                 "\"top_logprobs\":[{\"token\":\"b\","
                                 "\"logprob\":-0.5,\"bytes\":[98]}]},{\"token\":\"\xef\xbf\xbd\","
                                 "\"logprob\":-0.5,\"bytes\":[169],"
                                 "\"top_logprobs\":[{\"token\":\"b\",\"logprob\":-0.5,\"bytes\":["
                                 "98]}]}],\"refusal\":null},"
                                 "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":3,"
                                 "\"completion_tokens\":3,"
                                 "\"total_tokens\":6}}");
    over();
}

#define CALLED_REST                                                                                                    \
    "\"id\":\"call_x_0_0\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"                          \
    "\"{\\\"x\\\":1}\"}}"
#define CALLED(id, name, arguments)                                                                                    \
    "{\"id\":\"call_x_" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":\"" arguments   \
    "\"}}"

/* Calls are numbered by the choice, over all parts, and within it. */
TEST(calls_of_choices)
{
    begin((tke_chat_answer){ .chat = true, .calls = TKE_CALLS_TAGGED }, 2, 2, NULL, 0);
    for (size_t p = 0; p < 2; p++)
        for (size_t k = 0; k < 2; k++) {
            if (p)
                add(p, k, 1);
            add(p, k, CALL);
            if (k)
                add(p, k, CALL);
            add(p, k, END);
            finish(p, k, true);
        }
    ends(&tke_openai_whole, 1, NULL, 200, "");
#define ANSWER(index, content, calls)                                                                                  \
    "{\"index\":" index ",\"message\":{\"role\":\"assistant\",\"content\":" content ",\"tool_calls\":[" calls          \
    "]},\"logprobs\":null,\"finish_reason\":\"tool_calls\"}"
#define F(id) CALLED(id, "f", "{\\\"x\\\":1}")
    ends(
        &tke_openai_whole, 0, NULL, 200,
        HEAD("chat.completion") ANSWER("0", "null", F("0_0")) "," ANSWER("1", "null", F("1_0") "," F("1_1")) "," ANSWER(
            "2", "\"a\"", F("2_0")) "," ANSWER("3", "\"a\"",
                                               F("3_0") "," F("3_1")) "],\"usage\":{\"prompt_tokens\":6,\"completion_"
                                                                      "tokens\":12,\"total_tokens\":18}}");
    over();
    /* As events: the text as it comes, the call at the end. */
    begin((tke_chat_answer){ .chat = true, .calls = TKE_CALLS_TAGGED }, 1, 1, NULL, 0);
    add(0, 0, 1);
    events(0, ROLE DELTA("\"content\":\"a\"", "null"));
    add(0, 0, CALL);
    events(0, "");
    add(0, 0, END);
    finish(0, 0, true);
    ends(&tke_openai_events, 0, NULL, 200,
         DELTA("\"tool_calls\":[{\"index\":0," CALLED_REST "]", "null") DELTA("", "\"tool_calls\"") DONE);
    over();
    /* A bare call is all of an answer. */
    begin((tke_chat_answer){ .chat = true, .calls = TKE_CALLS_BARE }, 1, 1, NULL, 0);
    add(0, 0, BARE);
    events(0, ROLE);
    add(0, 0, END);
    finish(0, 0, true);
    ends(&tke_openai_whole, 0, NULL, 200,
         HEAD("chat.completion")
             ANSWER("0", "null", CALLED("0_0", "g", "{}")) "],\"usage\":{\"prompt_tokens\":3,\"completion_"
                                                           "tokens\":2,\"total_tokens\":5}}");
    over();
}

/* Messages quote what clients send, cut to a length: also inside a character. */
TEST(errors_are_valid_utf8)
{
    tinkc_error err = { 0 };
    for (int anthropic = 0; anthropic < 2; anthropic++) {
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        if (anthropic)
            tke_anthropic_error(&out, 400, NULL, "no '\xc3\xa9\xf0\x9f\x98'", &err);
        else
            tke_openai_error(&out, 400, "c", NULL, "no '\xc3\xa9\xf0\x9f\x98'", &err);
        assert_int_equal(err.code, 0);
        assert_non_null(tkc_buf_terminate(&out, &err));
        assert_non_null(strstr(out.data, "\"no '\xc3\xa9??"
                                         "?'\""));
        tkc_buf_free(&out);
    }
}
