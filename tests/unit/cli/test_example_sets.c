/* test_example_sets.c - conversations as examples: their tokens and weights, what is cut, counted and left out, sets that
 * are put together, and how an example is shown. */
#include "cli/data/examples.h"
#include "cli/sample/ask.h"
#include "support/json_trees.h"
#include "support/test_case.h"

static tinkc_tokenizer *tokenizer;

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

#define ROW(user, assistant)                                                                                           \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"" user "\"},{\"role\":\"assistant\",\"content\":\"" assistant     \
    "\"}]}"

static const char two_turns[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
    "\"b\"},"
    "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}";

static void add(cli_examples *set, const cli_example_options *how, const char *row, uint32_t line)
{
    tinkc_error err = { 0 };
    assert_true(cli_examples_add(set, how, (cli_span){ row, strlen(row) }, line, &err));
    assert_int_equal(err.code, 0);
}

/* nano's template knows no tools. */
TEST(tools_that_a_template_leaves_out_are_refused)
{
    const cli_asked asked = { .tokenizer = tokenizer };
    const tkc_tree *messages = json_of("[{\"role\":\"user\",\"content\":\"a\"}]");
    for (int i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        tinkc_tokens ids = { 0 };
        const tkc_tree *tools = i ? json_of("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]") : NULL;
        assert_int_equal(cli_render_prompt(&asked, messages, tools, &ids, &err), i == 0);
        assert_string_equal(err.message, i ? "tools: the model's chat template leaves them out" : "");
        tinkc_tokens_free(&ids);
    }
}

/* 4094 is <|im_start|>, 4095 <|im_end|>, 198 the end of a line: user a, assistant b. */
TEST(a_row_becomes_tokens_with_weights_on_the_answer)
{
    cli_examples set = { 0 };
    const cli_example_options how = { .tokenizer = tokenizer };
    add(&set, &how, ROW("a", "12"), 5);
    assert_int_equal(set.n, 1);
    const cli_example *e = &set.items[0];
    size_t trained = 0, bytes = 0;
    assert_true(e->line == 5 && e->file == 0 && !e->cut && e->weights[0] == 0);
    assert_true(e->ids[0] == 4094 && e->ids[e->len - 2] == 4095 && e->ids[e->len - 1] == 198);
    for (size_t i = 0; i < e->len; i++) {
        assert_true(e->weights[i] == 0 || e->weights[i] == 1);
        trained += e->weights[i] > 0;
        if (e->weights[i] > 0 && e->ids[i] < 4094)
            bytes += tinkc_tokenizer_bytes(tokenizer, e->ids[i]).len;
    }
    assert_true(trained > 0 && bytes >= 2 && e->trained_bytes == bytes);
    assert_true(set.n_tokens == e->len - 1 && set.n_trained == trained && set.n_cut == 0 && set.n_empty == 0 &&
                set.n_longest == e->len);
    cli_examples_free(&set);
    assert_true(!set.items && set.n == 0);
}

TEST(means_and_cuts)
{
    cli_examples whole = { 0 }, mean = { 0 }, cut = { 0 };
    cli_example_options how = { .tokenizer = tokenizer };
    add(&whole, &how, ROW("a", "b c d e"), 1);
    how.mean = true;
    add(&mean, &how, ROW("a", "b c d e"), 1);
    size_t len = whole.items[0].len;
    double sum = 0;
    for (size_t i = 0; i < len; i++) {
        assert_true((mean.items[0].weights[i] > 0) == (whole.items[0].weights[i] > 0));
        sum += (double)mean.items[0].weights[i];
    }
    assert_true(sum > 0.999 && sum < 1.001);
    how.mean = false;
    how.max_length = len; /* just fits */
    add(&cut, &how, ROW("a", "b c d e"), 1);
    assert_true(!cut.items[0].cut && cut.items[0].len == len && cut.n_cut == 0);
    how.max_length = len - 1;
    add(&cut, &how, ROW("a", "b c d e"), 2);
    assert_true(cut.n == 2 && cut.items[1].cut && cut.items[1].len == len - 1 && cut.n_cut == 1);
    assert_true(cut.n_tokens == len - 1 + len - 2 && cut.n_longest == len);
    assert_memory_equal(cut.items[1].ids, whole.items[0].ids, (len - 1) * sizeof(int32_t));
    assert_memory_equal(cut.items[1].weights, whole.items[0].weights, (len - 1) * sizeof(float));
    how.max_length = len - 2; /* the last token is learnt */
    add(&cut, &how, ROW("a", "b c d e"), 3);
    assert_true(cut.items[2].weights[len - 3] > 0 && cut.items[2].trained_bytes < whole.items[0].trained_bytes + 1);
    size_t trained = 0, bytes = 0;
    for (size_t i = 0; i < len - 2; i++)
        if (cut.items[2].weights[i] > 0) {
            trained++;
            bytes += cut.items[2].ids[i] < 4094 ? tinkc_tokenizer_bytes(tokenizer, cut.items[2].ids[i]).len : 0;
        }
    assert_int_equal(cut.items[2].trained_bytes, bytes);
    assert_true(trained > 0);
    how.max_length = 3; /* nothing of the answer is left */
    add(&cut, &how, ROW("a", "b c d e"), 3);
    assert_true(cut.n == 3 && cut.n_empty == 1 && cut.n_cut == 2);
    cli_examples_free(&whole);
    cli_examples_free(&mean);
    cli_examples_free(&cut);
}

TEST(turns_may_be_examples_of_their_own)
{
    cli_examples one = { 0 }, split = { 0 };
    cli_example_options how = { .tokenizer = tokenizer };
    tinkc_error err = { 0 };
    add(&one, &how, two_turns, 1);
    how.split_turns = true;
    add(&split, &how, two_turns, 1);
    assert_true(one.n == 1 && split.n == 2);
    assert_true(split.items[1].len == one.items[0].len && split.items[0].len < split.items[1].len);
    assert_memory_equal(split.items[1].ids, one.items[0].ids, one.items[0].len * sizeof(int32_t));
    assert_true(split.items[0].line == 1 && split.items[1].line == 1);
    assert_true(split.n_longest == one.items[0].len);
    const cli_example *last = &split.items[1];
    assert_true(last->weights[last->len - 2] > 0 && last->weights[last->len - 1] == 0);
    assert_true(last->weights[0] == 0 && split.items[0].weights[split.items[0].len - 2] > 0);
    assert_false(cli_examples_add(&one, &how, (cli_span){ "{}", 2 }, 2, &err));
    assert_true(err.code != 0 && one.n == 1);
    cli_examples_free(&one);
    cli_examples_free(&split);
}

/* The first token is never learnt: nothing stands before it. */
TEST(the_first_token)
{
    cli_examples set = { 0 };
    const cli_example_options how = { .tokenizer = tokenizer, .train_on = TINKC_TRAIN_ALL_TOKENS, .max_length = 2 };
    add(&set, &how, ROW("a", "b"), 1);
    assert_true(set.n == 1 && set.items[0].len == 2 && set.n_trained == 1 && set.n_tokens == 1);
    assert_true(set.items[0].weights[0] == 0 && set.items[0].weights[1] == 1);
    cli_examples_free(&set);
}

/* Sets behind one another, more than the first room. */
TEST(sets_are_appended_in_order)
{
    cli_examples all = { 0 }, part = { 0 };
    const cli_example_options how = { .tokenizer = tokenizer, .max_length = 12 };
    size_t tokens = 0, trained = 0, cuts = 0;
    for (size_t k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < 300; i++)
            add(&part, &how, i % 2 ? ROW("a", "b") : ROW("a", "b c d e f g h"), i + 1);
        part.n_empty = k + 1;
        tokens += part.n_tokens;
        trained += part.n_trained;
        cuts += part.n_cut;
        assert_true(cli_examples_move(&all, &part, 1000 * k, (uint16_t)k));
        assert_true(!part.items && part.n == 0 && part.n_tokens == 0 && part.n_longest == 0);
    }
    assert_true(all.n == 900 && all.n_tokens == tokens && all.n_trained == trained && all.n_cut == cuts &&
                cuts == 450 && all.n_empty == 6 && all.n_longest == 12);
    for (size_t i = 0; i < 900; i++)
        assert_true(all.items[i].line == 1000 * (i / 300) + i % 300 + 1 && all.items[i].file == i / 300);
    cli_examples none = { 0 };
    assert_true(cli_examples_move(&all, &none, 0, 0) && all.n == 900 && all.n_longest == 12);
    cli_examples_free(&all);
}

TEST(a_preview_marks_what_is_trained)
{
    static const struct {
        bool color;
        const char *shown;
    } rows[] = { { false, "ab[[c]]d\n" }, { true, "\033[33mab\033[0m\033[32mc\033[0m\033[31md\033[0m\n" } };
    tinkc_tokens ids = { 0 };
    tinkc_error err = { 0 };
    float weights[] = { 0, 0, 0.5f, -1 };
    for (const char *p = "abcd"; *p; p++)
        assert_true(tinkc_encode(tokenizer, (char[]){ *p, '\0' }, &ids, &err));
    assert_int_equal(ids.len, 4);
    const cli_example e = { .ids = ids.data, .weights = weights, .len = 4 };
    for (size_t i = 0; i < 2; i++) {
        char *text = NULL;
        size_t len;
        FILE *f = open_memstream(&text, &len);
        cli_preview(&(cli_app){ .color = rows[i].color }, f, tokenizer, &e);
        assert_int_equal(fclose(f), 0);
        assert_string_equal(text, rows[i].shown);
        free(text);
    }
    tinkc_tokens_free(&ids);
}

RUN_TESTS(open_model, close_model)
