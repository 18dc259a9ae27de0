/* test_preference_files.c - files of preferences as tokens: both sides, what is cut, ties and bad rows; and single answers
 * that are crossed with those of other prompts. */
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/data/pairs.h"
#include "support/cli/held_output.h"
#include "support/test_case.h"

static tinkc_tokenizer *tokenizer;
static cli_app app;

static int open_model(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    tokenizer = tinkc_tokenizer_open("models/nano", NULL, &err);
    return tokenizer ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    tinkc_tokenizer_free(tokenizer);
    return 0;
}

/* Reads these lines with --max-length; the exit code, and what was said. */
static int take(const char *lines, const char *most, bool unpaired, cli_pairs *out, char **said)
{
    char path[] = "/tmp/tinkc-pairs-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, lines, strlen(lines)), strlen(lines));
    close(fd);
    app = (cli_app){ .command = cli_find("train", "dpo") };
    assert_int_equal(cli_set_value(&app, "max-length", most, CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(cli_set_value(&app, "data", path, CLI_FROM_PROGRAM, "test"), 0);
    hold_output();
    int code = cli_pairs_read(&app, tokenizer, NULL, unpaired, out);
    *said = release_output();
    cli_parse_free(&app);
    unlink(path);
    return code;
}

/* The text of a side; what is learnt stands in brackets. */
static void assert_side(const cli_side *s, const char *wanted)
{
    tinkc_text text = { 0 };
    for (size_t i = 0, to = 0; i < s->len; i = to) {
        bool learnt = s->weights[i] > 0;
        while (to < s->len && (s->weights[to] > 0) == learnt)
            to++;
        tinkc_text_append(&text, "[", learnt, NULL);
        tinkc_decode_span(tokenizer, s->ids + i, to - i, NULL, &text, NULL);
        tinkc_text_append(&text, "]", learnt, NULL);
    }
    assert_string_equal(text.data, wanted);
    tinkc_text_free(&text);
}

#define HEAD(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"

TEST(a_pair_has_a_chosen_and_a_rejected_answer)
{
    cli_pairs p;
    char *said;
    assert_int_equal(take("{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n"
                          "{\"prompt\":\"d\",\"chosen\":\"e f\",\"rejected\":\"g\"}\n",
                          "100", false, &p, &said),
                     0);
    assert_string_equal(said, "");
    free(said);
    assert_true(p.n == 2 && !p.unpaired && p.n_cut == 0 && p.n_paths == 1);
    assert_side(&p.items[0].chosen, HEAD("a") "[b<|im_end|>]\n");
    assert_side(&p.items[0].rejected, HEAD("a") "[c<|im_end|>]\n");
    assert_side(&p.items[1].chosen, HEAD("d") "[e f<|im_end|>]\n");
    size_t tokens = 0;
    for (size_t i = 0; i < 2; i++)
        tokens += p.items[i].chosen.len + p.items[i].rejected.len;
    assert_int_equal(p.n_tokens, tokens);
    cli_pairs_free(&p);
    assert_true(!p.items && !p.paths && p.n == 0);
}

TEST(a_long_pair_is_cut)
{
    static const char row[] = "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n";
    cli_pairs p;
    char *said, most[20];
    assert_int_equal(take(row, "100", false, &p, &said), 0);
    free(said);
    size_t len = p.items[0].chosen.len, head = 0;
    while (!(p.items[0].chosen.weights[head] > 0))
        head++;
    cli_pairs_free(&p);
    (void)snprintf(most, sizeof most, "%zu", len);
    assert_int_equal(take(row, most, false, &p, &said), 0);
    assert_true(p.n_cut == 0 && p.items[0].chosen.len == len);
    free(said);
    cli_pairs_free(&p);
    (void)snprintf(most, sizeof most, "%zu", head + 1); /* one token of each answer */
    assert_int_equal(take(row, most, false, &p, &said), 0);
    assert_true(p.n_cut == 2 && p.n_tokens == 2 * (head + 1) && p.items[0].chosen.len == head + 1);
    free(said);
    cli_pairs_free(&p);
    (void)snprintf(most, sizeof most, "%zu", head);
    assert_int_equal(take(row, most, false, &p, &said), CLI_EXIT_INPUT);
    assert_non_null(strstr(said, ":1: the answer has no token within --max-length\n"));
    free(said);
    cli_pairs_free(&p);
}

TEST(rows_that_are_not_pairs)
{
    cli_pairs p;
    char *said;
    assert_int_equal(take("{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"b\"}\n{\"prompt\":"
                          "\"a\",\"chosen\":\"b\"}\n",
                          "100", false, &p, &said),
                     CLI_EXIT_INPUT);
    assert_non_null(strstr(said, ":1: chosen and rejected are equal: there is nothing to prefer\n"));
    assert_non_null(strstr(said, ":2: needs \"chosen\" and \"rejected\""));
    assert_non_null(strstr(said, "2 lines cannot be used\nhint: nothing was sent\n"));
    free(said);
    cli_pairs_free(&p);
    /* A tie says nothing and is left out. */
    assert_int_equal(take("{\"comparison\":{\"prompt_conversation\":\"a\",\"completion_A\":\"b\",\"completion_"
                          "B\":\"c\"},"
                          "\"label\":\"Tie\"}\n{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n",
                          "100", false, &p, &said),
                     0);
    assert_int_equal(p.n, 1);
    free(said);
    cli_pairs_free(&p);
    assert_int_equal(take("{\"comparison\":{\"prompt_conversation\":\"a\",\"completion_A\":\"b\","
                          "\"completion_B\":\"c\"},"
                          "\"label\":\"Tie\"}\n",
                          "100", false, &p, &said),
                     CLI_EXIT_INPUT);
    assert_non_null(strstr(said, "holds no preferences"));
    free(said);
    cli_pairs_free(&p);
    app = (cli_app){ .command = cli_find("train", "dpo") };
    hold_output();
    int code = cli_pairs_read(&app, tokenizer, NULL, false, &p);
    said = release_output();
    assert_string_equal(said, "error: no pairs were given\nhint: tinkc train dpo PAIRS.jsonl\n");
    assert_int_equal(code, CLI_EXIT_USAGE);
    free(said);
    cli_pairs_free(&p);
}

#define MARK(ask, answer, label) "{\"prompt\":\"" ask "\",\"completion\":\"" answer "\",\"label\":" label "}\n"

TEST(marked_answers_are_paired)
{
    cli_pairs p;
    char *said;
    assert_int_equal(
        take(MARK("a", "b", "true") MARK("c", "d e f", "false") MARK("g", "h", "true"), "100", true, &p, &said), 0);
    assert_string_equal(said, "");
    free(said);
    assert_true(p.n == 3 && p.unpaired);
    assert_true(p.items[0].good && !p.items[1].good && p.items[2].good);
    assert_side(&p.items[0].chosen, HEAD("a") "[b<|im_end|>]\n");
    assert_side(&p.items[0].rejected, HEAD("a") "[d e f<|im_end|>]\n");
    assert_side(&p.items[1].rejected, HEAD("c") "[h<|im_end|>]\n");
    assert_side(&p.items[2].rejected, HEAD("g") "[b<|im_end|>]\n"); /* the last takes the first's */
    size_t tokens = 0, most = p.items[0].chosen.len;
    for (size_t i = 0; i < 3; i++)
        tokens += p.items[i].chosen.len + p.items[i].rejected.len;
    assert_int_equal(p.n_tokens, tokens);
    cli_pairs_free(&p);
    /* The longest length holds for answers of others too. */
    char limit[20];
    (void)snprintf(limit, sizeof limit, "%zu", most);
    assert_int_equal(take(MARK("a", "b", "true") MARK("c", "d e f", "false"), limit, true, &p, &said), 0);
    free(said);
    assert_true(p.items[0].rejected.len == most && p.items[1].rejected.len <= most && p.n_cut == 1);
    cli_pairs_free(&p);
    assert_int_equal(take(MARK("a", "b", "true"), "100", true, &p, &said), CLI_EXIT_INPUT);
    assert_non_null(strstr(said, "KTO needs at least two answers"));
    free(said);
    cli_pairs_free(&p);
    assert_int_equal(take(MARK("a", "b", "5"), "100", true, &p, &said), CLI_EXIT_INPUT);
    assert_non_null(strstr(said, ":1: \"label\" is neither true nor false (nor 1 or 0)\n"));
    free(said);
    cli_pairs_free(&p);
}

/* More than the first room. */
TEST(more_pairs_than_the_first_room_are_kept)
{
    char *said, lines[20000] = "";
    cli_pairs p;
    size_t at = 0;
    for (int i = 0; i < 150; i++)
        at += (size_t)snprintf(lines + at, sizeof lines - at,
                               "{\"prompt\":\"%d\",\"chosen\":\"b\",\"rejected\":\"c\"}\n", i);
    assert_int_equal(take(lines, "100", false, &p, &said), 0);
    assert_int_equal(p.n, 150);
    assert_side(&p.items[149].chosen, HEAD("149") "[b<|im_end|>]\n");
    assert_side(&p.items[0].rejected, HEAD("0") "[c<|im_end|>]\n");
    free(said);
    cli_pairs_free(&p);
}

RUN_TESTS(open_model, close_model)
