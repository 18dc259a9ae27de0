/* test_long_chats.c - a conversation of very many messages: the work and the memory to find what is learnt
 * have a limit. The limit is lowered here. */
#include "support/check.h"

#define TKC_TRAIN_RENDER_MAX ((size_t)64 << 10)
#include "../../../src/chat/chat_train.c"

static char *conversation(size_t turns)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    fputc('[', f);
    for (size_t i = 0; i < turns; i++)
        fprintf(f,
                "%s{\"role\":\"user\",\"content\":\"q%zu\"},"
                "{\"role\":\"assistant\",\"content\":\"a%zu\"}",
                i ? "," : "", i, i);
    fputc(']', f);
    fclose(f);
    return text;
}

static tinkc_error train(const tinkc_tokenizer *tok, size_t turns, size_t *learnt)
{
    static const char template[] = "{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + "
                                   "'<|im_end|>\n' }}{%- endfor %}"
                                   "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    char *text = conversation(turns);
    tinkc_template *parsed = tinkc_template_parse(template, sizeof template - 1, NULL, &err);
    tinkc_chat_options o = { .chat_template = parsed };
    (void)tinkc_chat_train(tok, text, &o, &ids, &weights, NULL, &err);
    *learnt = 0;
    for (size_t i = 0; i < weights.len; i++)
        *learnt += weights.data[i] > 0;
    free(text);
    tinkc_template_free(parsed);
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    return err;
}

TEST(the_work_for_one_conversation_is_limited)
{
    tinkc_error err = { 0 };
    size_t few, many;
    tinkc_tokenizer *tok = tinkc_tokenizer_open("tests/data/tokenizer/tiny", NULL, &err);
    assert_ok(err);
    err = train(tok, 20, &few);
    assert_ok(err);
    assert_true(few >= 20); /* something of each answer, also where its renderings are gone by now */
    err = train(tok, 400, &many);
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_non_null(strstr(err.message, "split the conversation"));
    tinkc_tokenizer_free(tok);
}
