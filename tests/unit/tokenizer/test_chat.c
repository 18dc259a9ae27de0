/* test_chat.c - conversations to text, to tokens and to training examples, with a small tokenizer
 * made here (one token a byte, a few marks) and with the model that ships, where it is there. */
#include "support/check.h"

#include <pthread.h>

#include "base/file.h"
#include "base/json_write.h"
#include "tinkc/tokenizer.h"

static const char chatml[] =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static const char talk[] = "[{\"role\": \"system\", \"content\": \"S\"},"
                           " {\"role\": \"user\", \"content\": \"hi\"},"
                           " {\"role\": \"assistant\", \"content\": \"yo\"},"
                           " {\"role\": \"user\", \"content\": \"more\"},"
                           " {\"role\": \"assistant\", \"content\": \"fine\"}]";

/* ---- a tokenizer ---- */

/* The character that stands for a byte in a byte-level vocabulary. */
static size_t byte_char(unsigned byte, char out[2])
{
    static const unsigned plain[3][2] = { { 0x21, 0x7E }, { 0xA1, 0xAC }, { 0xAE, 0xFF } };
    unsigned code = 0x100;
    for (unsigned b = 0; b <= byte; b++) {
        bool same = false;
        for (int i = 0; i < 3; i++)
            same = same || (b >= plain[i][0] && b <= plain[i][1]);
        if (b == byte && same)
            code = b;
        else if (b < byte && !same)
            code++;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}

static void write_vocabulary(tkc_jsonw *w)
{
    char name[2];
    tkc_jsonw_key(w, "vocab");
    tkc_jsonw_object(w);
    for (unsigned b = 0; b < 256; b++) {
        tkc_jsonw_key_str(w, (tinkc_str){ name, byte_char(b, name) });
        tkc_jsonw_i64(w, b);
    }
    tkc_jsonw_key(w, "\xC4\x8A\xC4\x8A"); /* two newlines are one token */
    tkc_jsonw_i64(w, 256);
    tkc_jsonw_end(w);
    tkc_jsonw_key(w, "merges");
    tkc_jsonw_array(w);
    tkc_jsonw_cstr(w, "\xC4\x8A \xC4\x8A");
    tkc_jsonw_end(w);
}

/* chat_template: a text, or a JSON array of named ones. */
static tinkc_tokenizer *small_tokenizer_of(const char *chat_template, const tinkc_allocator *a)
{
    static const char *const marks[] = { "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<think>", "</think>" };
    tinkc_error err = { 0 };
    tkc_buf json, config;
    tkc_jsonw w;
    tkc_buf_init(&json, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&config, NULL, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &json, &err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "version");
    tkc_jsonw_cstr(&w, "1.0");
    tkc_jsonw_key(&w, "added_tokens");
    tkc_jsonw_array(&w);
    for (int i = 0; i < 6; i++) {
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "id");
        tkc_jsonw_i64(&w, 257 + i);
        tkc_jsonw_key(&w, "content");
        tkc_jsonw_cstr(&w, marks[i]);
        tkc_jsonw_key(&w, "special");
        tkc_jsonw_bool(&w, i < 4);
        tkc_jsonw_key(&w, "normalized");
        tkc_jsonw_bool(&w, false);
        tkc_jsonw_end(&w);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "pre_tokenizer");
    tkc_jsonw_raw(&w, tkc_str("{\"type\": \"ByteLevel\", \"add_prefix_space\": false,"
                              " \"trim_offsets\": false, \"use_regex\": false}"));
    tkc_jsonw_key(&w, "decoder");
    tkc_jsonw_raw(&w, tkc_str("{\"type\": \"ByteLevel\"}"));
    tkc_jsonw_key(&w, "model");
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "type");
    tkc_jsonw_cstr(&w, "BPE");
    write_vocabulary(&w);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    tkc_jsonw_open(&w, &config, &err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "eos_token");
    tkc_jsonw_cstr(&w, "<|im_end|>");
    tkc_jsonw_key(&w, "bos_token");
    tkc_jsonw_cstr(&w, "<s>");
    if (chat_template) {
        tkc_jsonw_key(&w, "chat_template");
        if (tkc_starts_with(tkc_str(chat_template), "[{"))
            tkc_jsonw_raw(&w, tkc_str(chat_template));
        else
            tkc_jsonw_cstr(&w, chat_template);
    }
    tkc_jsonw_end(&w);
    tinkc_tokenizer_options o = { .allocator = a };
    tinkc_tokenizer *tok = tinkc_tokenizer_parse(json.data, json.len, config.data, config.len, &o, &err);
    assert_ok(err);
    tkc_buf_free(&json);
    tkc_buf_free(&config);
    return tok;
}

static tinkc_tokenizer *small_tokenizer(const char *chat_template)
{
    return small_tokenizer_of(chat_template, NULL);
}

/* ---- training views, shown as text: trained tokens between [ and ] ---- */

static void show_view(const tinkc_tokenizer *tok, const char *messages, const tinkc_chat_options *o, tinkc_text *out,
                      tinkc_error *err)
{
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_sizes ends = { 0 };
    tinkc_error none = { 0 };
    tinkc_chat_train(tok, messages, o, &ids, &weights, &ends, err);
    assert_int_equal(ids.len, weights.len);
    size_t k = 0;
    bool inside = false;
    for (size_t i = 0; i < ids.len; i++) {
        bool trained = weights.data[i] > 0;
        if (trained != inside)
            tinkc_text_append(out, trained ? "[" : "]", 1, &none);
        inside = trained;
        tinkc_bytes b = tinkc_tokenizer_bytes(tok, ids.data[i]);
        tinkc_text_append(out, (const char *)b.data, b.len, &none);
        if (k < ends.len && ends.data[k] == i + 1) {
            tinkc_text_append(out, inside ? "]#" : "#", inside ? 2 : 1, &none);
            inside = false;
            k++;
        }
    }
    assert_ok(none);
    assert_int_equal(k, ends.len);
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    tinkc_sizes_free(&ends);
}

static void assert_view_of(const tinkc_tokenizer *tok, const char *messages, const tinkc_chat_options *o,
                           const char *wanted)
{
    tinkc_text text = { 0 };
    tinkc_error err = { 0 };
    show_view(tok, messages, o, &text, &err);
    assert_ok(err);
    assert_str(((tinkc_str){ text.data, text.len }), wanted);
    tinkc_text_free(&text);
}

static void assert_view(const char *chat_template, const char *messages, const tinkc_chat_options *o,
                        const char *wanted)
{
    tinkc_tokenizer *tok = small_tokenizer(chat_template);
    assert_view_of(tok, messages, o, wanted);
    tinkc_tokenizer_free(tok);
}

static void assert_no_view(const char *chat_template, const char *messages, const tinkc_chat_options *o, int32_t code)
{
    tinkc_tokenizer *tok = small_tokenizer(chat_template);
    tinkc_text text = { 0 };
    tinkc_error err = { 0 };
    show_view(tok, messages, o, &text, &err);
    assert_int_equal(err.code, code);
    assert_int_equal(text.len, 0);
    tinkc_tokenizer_free(tok);
}

#define HEAD "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
#define MID  "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"

TEST(rules_choose_messages)
{
    assert_view(chatml, talk, NULL, HEAD "[yo<|im_end|>]" MID "[fine<|im_end|>]\n#");
    assert_view(chatml, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_LAST_ASSISTANT },
                HEAD "yo<|im_end|>" MID "[fine<|im_end|>]\n#");
    assert_view(chatml, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_LAST_TURN },
                HEAD "yo<|im_end|>" MID "[fine<|im_end|>]\n#");
    assert_view(chatml, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_ALL_MESSAGES },
                "<|im_start|>system\n[S<|im_end|>]\n<|im_start|>user\n[hi<|im_end|>]\n"
                "<|im_start|>assistant\n[yo<|im_end|>]\n<|im_start|>user\n[more<|im_end|>]\n"
                "<|im_start|>assistant\n[fine<|im_end|>]\n#");
    assert_view(chatml, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_USER_AND_SYSTEM },
                "<|im_start|>system\n[S<|im_end|>]\n<|im_start|>user\n[hi<|im_end|>]\n"
                "<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\n[more<|im_end|>]\n"
                "<|im_start|>assistant\nfine<|im_end|>\n#");
    assert_view(chatml, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_ALL_TOKENS },
                "[" HEAD "yo<|im_end|>" MID "fine<|im_end|>\n]#");
}

TEST(last_rules_look_at_the_end)
{
    static const char asks[] = "[{\"role\": \"user\", \"content\": \"a\"},"
                               " {\"role\": \"assistant\", \"content\": \"b\"},"
                               " {\"role\": \"user\", \"content\": \"c\"}]";
    static const char turn[] = "[{\"role\": \"user\", \"content\": \"a\"},"
                               " {\"role\": \"assistant\", \"content\": \"b\"},"
                               " {\"role\": \"tool\", \"content\": \"c\"},"
                               " {\"role\": \"assistant\", \"content\": \"d\"}]";
    static const char plain[] = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
                                "<|im_start|>user\nc<|im_end|>\n#";
    assert_view(chatml, asks, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_LAST_ASSISTANT }, plain);
    assert_view(chatml, asks, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_LAST_TURN }, plain);
    assert_view(chatml, turn, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_LAST_TURN },
                "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n"
                "<|im_start|>tool\nc<|im_end|>\n<|im_start|>assistant\n[d<|im_end|>]\n#");
}

TEST(marked_messages_need_marks)
{
    static const char marked[] = "[{\"role\": \"user\", \"content\": \"a\", \"trainable\": true},"
                                 " {\"role\": \"assistant\", \"content\": \"b\", \"trainable\": false},"
                                 " {\"role\": \"assistant\", \"content\": \"c\", \"trainable\": true}]";
    tinkc_chat_options o = { .train_on = TINKC_TRAIN_MARKED };
    assert_view(chatml, marked, &o,
                "<|im_start|>user\n[a<|im_end|>]\n<|im_start|>assistant\nb<|im_end|>\n"
                "<|im_start|>assistant\n[c<|im_end|>]\n#");
    assert_no_view(chatml, talk, &o, TINKC_E_ARGUMENT);
    assert_no_view(chatml, marked, NULL, TINKC_E_ARGUMENT);
    /* the template never sees the mark */
    assert_view("{% for m in messages %}{{ m|tojson }}<|im_end|>{% endfor %}", marked,
                &(tinkc_chat_options){ .train_on = TINKC_TRAIN_MARKED },
                "{\"role\": \"user\", \"content\": \"[a\"}<|im_end|>]{\"role\": \"assistant\", "
                "\"content\": \"b\"}<|im_end|>{\"role\": \"assistant\", \"content\": \"[c\"}<|im_end|>]#");
}

/* OpenAI's rows: 0 = not learnt, whatever the rule; the template never sees it. */
TEST(messages_of_no_weight_are_not_learnt)
{
    static const char weighed[] = "[{\"role\": \"user\", \"content\": \"a\"},"
                                  " {\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0},"
                                  " {\"role\": \"assistant\", \"content\": \"c\", \"weight\": 0.0},"
                                  " {\"role\": \"assistant\", \"content\": \"d\", \"weight\": null},"
                                  " {\"role\": \"assistant\", \"content\": \"e\", \"weight\": 1}]";
    static const char both[] = "[{\"role\": \"user\", \"content\": \"a\", \"trainable\": true},"
                               " {\"role\": \"assistant\", \"content\": \"b\", \"trainable\": true, \"weight\": 0}]";
    static const char *const wrong[] = { "0.5", "2", "-1", "\"0\"", "true", "[]" };
    static const char lines[] = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.weight }}"
                                "<|im_end|>{% endfor %}";
    assert_view(lines, weighed, NULL,
                "user:a<|im_end|>assistant:b<|im_end|>assistant:c<|im_end|>"
                "assistant:[d<|im_end|>]assistant:[e<|im_end|>]#");
    assert_view(lines, weighed, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_ALL_MESSAGES },
                "user:[a<|im_end|>]assistant:b<|im_end|>assistant:c<|im_end|>"
                "assistant:[d<|im_end|>]assistant:[e<|im_end|>]#");
    assert_view(lines, both, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_MARKED },
                "user:[a<|im_end|>]assistant:b<|im_end|>#");
    assert_no_view(lines, weighed, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_ALL_TOKENS }, TINKC_E_ARGUMENT);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char row[200];
        (void)snprintf(row, sizeof row, "[{\"role\": \"assistant\", \"content\": \"b\", \"weight\": %s}]", wrong[i]);
        assert_no_view(lines, row, NULL, TINKC_E_ARGUMENT);
    }
}

TEST(turns_can_be_split)
{
    tinkc_chat_options o = { .split_turns = true };
    assert_view(chatml, talk, &o, HEAD "[yo<|im_end|>]\n#" HEAD "yo<|im_end|>" MID "[fine<|im_end|>]\n#");
    o.train_on = TINKC_TRAIN_ALL_TOKENS;
    assert_no_view(chatml, talk, &o, TINKC_E_ARGUMENT);
    /* ends must be given then */
    tinkc_tokenizer *tok = small_tokenizer(chatml);
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_error err = { 0 };
    o.train_on = TINKC_TRAIN_ALL_ASSISTANT;
    assert_false(tinkc_chat_train(tok, talk, &o, &ids, &weights, NULL, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    o.split_turns = false;
    assert_true(tinkc_chat_train(tok, talk, &o, &ids, &weights, NULL, &err));
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    tinkc_tokenizer_free(tok);
}

/* BOS is never generated: it has no weight, in the first example of an array and in those behind it. */
TEST(the_begin_mark_of_no_example_is_learnt)
{
    static const char marked[] = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}";
    tinkc_chat_options o = { .train_on = TINKC_TRAIN_ALL_TOKENS };
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_sizes ends = { 0 };
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = small_tokenizer(marked);
    int32_t bos = tinkc_tokenizer_special(tok, TINKC_TOKEN_BOS);
    for (int i = 0; i < 3; i++)
        assert_true(tinkc_chat_train(tok, "[{\"role\":\"user\",\"content\":\"ab\"}]", &o, &ids, &weights, &ends, &err));
    assert_int_equal(ids.len, 9);
    assert_int_equal(weights.len, 9);
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(ids.data[i] == bos, i % 3 == 0);
        assert_true(weights.data[i] == (ids.data[i] == bos ? 0.0f : 1.0f));
    }
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    tinkc_sizes_free(&ends);
    tinkc_tokenizer_free(tok);
}

/* Tokens are those of the whole text, unless one would reach across the prompt's end. */
TEST(tokens_do_not_cross_the_prompt)
{
    static const char newline[] = "[{\"role\": \"user\", \"content\": \"a\"},"
                                  " {\"role\": \"assistant\", \"content\": \"\\nb\"}]";
    assert_view(chatml, newline, NULL, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[\nb<|im_end|>]\n#");
    tinkc_tokenizer *tok = small_tokenizer(chatml);
    tinkc_tokens ids = { 0 }, whole = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_error err = { 0 };
    tinkc_chat_train(tok, talk, NULL, &ids, &weights, NULL, &err);
    tinkc_chat_encode(tok, talk, NULL, &whole, &err);
    assert_ok(err);
    assert_int_equal(ids.len, whole.len);
    assert_memory_equal(ids.data, whole.data, ids.len * sizeof *ids.data);
    tinkc_tokens_free(&ids);
    tinkc_tokens_free(&whole);
    tinkc_floats_free(&weights);
    tinkc_tokenizer_free(tok);
}

/* History loses its reasoning, so no prefix of the conversation is a prefix of the text. */
TEST(history_may_change)
{
    static const char text[] = "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
                               "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
                               "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
                               "{% if m.role == 'assistant' and loop.index0 > ns.last %}"
                               "{{ '<think>\\n' + m.reasoning_content|default('') + '\\n</think>\\n\\n' }}{% endif %}"
                               "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";
    static const char thought[] = "[{\"role\": \"user\", \"content\": \"hi\"},"
                                  " {\"role\": \"assistant\", \"content\": \"yo\","
                                  "  \"reasoning_content\": \"r1\"},"
                                  " {\"role\": \"user\", \"content\": \"more\"},"
                                  " {\"role\": \"assistant\", \"content\": \"fine\","
                                  "  \"reasoning_content\": \"r2\"}]";
    assert_view(text, thought, NULL,
                "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n[yo<|im_end|>]\n"
                "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>\n[r2\n</think>\n\n"
                "fine<|im_end|>]\n#");
    assert_view(text, thought, &(tinkc_chat_options){ .split_turns = true },
                "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n[r1\n</think>\n\nyo"
                "<|im_end|>]\n#"
                "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
                "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<think>\n[r2\n</think>\n\n"
                "fine<|im_end|>]\n#");
}

/* Without the prompt some templates write an end mark; some write a newline only before the prompt.
 */
TEST(prompts_may_differ_from_headers)
{
    static const char end_instead[] =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% else %}"
        "{{ '</s>' }}{% endif %}";
    static const char newline_before[] =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '\\n<|im_start|>assistant\\n' }}{% endif %}";
    /* the last answer ends with another mark, but not if the assistant is to speak again */
    static const char last_differs[] =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
        "{% if m.role == 'assistant' and loop.last and not add_generation_prompt %}{{ '</s>' }}"
        "{% else %}{{ '<|im_end|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    static const char no_prompt[] = "{% for m in messages %}{{ m.role + ': ' + m.content + '</s>' }}{% endfor %}";
    assert_view(end_instead, talk, NULL, HEAD "[yo<|im_end|>]" MID "[fine<|im_end|>]\n</s>#");
    assert_view(newline_before, talk, NULL,
                "<|im_start|>system\nS<|im_end|><|im_start|>user\nhi<|im_end|>"
                "<|im_start|>assistant\n[yo<|im_end|>]<|im_start|>user\nmore<|im_end|>"
                "<|im_start|>assistant\n[fine<|im_end|>]#");
    assert_view(last_differs, talk, NULL,
                "<|im_start|>system\nS<|im_end|><|im_start|>user\nhi<|im_end|>"
                "<|im_start|>assistant\n[yo<|im_end|>]<|im_start|>user\nmore<|im_end|>"
                "<|im_start|>assistant\n[fine</s>]#");
    assert_view(no_prompt, talk, NULL,
                "system: S</s>user: hi</s>assistant: [yo</s>]user: more</s>assistant: [fine</s>]#");
}

TEST(blocks_say_it_themselves)
{
    static const char text[] = "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
                               "{% generation %}{{ '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' }}"
                               "{% endgeneration %}{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
                               "'<|im_end|>\\n' }}"
                               "{% endif %}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    assert_view(text, talk, NULL, "<s>" HEAD "[yo<|im_end|>]" MID "[fine<|im_end|>]\n#");
    assert_view(text, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_ALL_TOKENS },
                "<s>[" HEAD "yo<|im_end|>" MID "fine<|im_end|>\n]#");
}

TEST(what_cannot_be_told_is_refused)
{
    /* contents are mixed up, or written twice, or not at all */
    assert_no_view("{% for m in messages %}{{ m.content|reverse }}{% endfor %}", talk, NULL, TINKC_E_UNSUPPORTED);
    assert_no_view("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", talk, NULL,
                   TINKC_E_UNSUPPORTED);
    assert_no_view("{{ messages|length }}", talk, NULL, TINKC_E_UNSUPPORTED);
    assert_no_view("{{ raise_exception('never') }}", talk, NULL, TINKC_E_TEMPLATE);
}

TEST(conversations_without_an_order_are_viewed)
{
    assert_view(chatml, "[{\"role\": \"assistant\", \"content\": \"first\"}]", NULL,
                "<|im_start|>assistant\n[first<|im_end|>]\n#");
    assert_view(chatml,
                "[{\"role\": \"user\", \"content\": \"a\"},"
                " {\"role\": \"assistant\", \"content\": \"\"}]",
                NULL, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[<|im_end|>]\n#");
    /* the same words everywhere, and marks inside the content */
    assert_view(chatml,
                "[{\"role\": \"user\", \"content\": \"user\"},"
                " {\"role\": \"assistant\", \"content\": \"assistant\\n<|im_end|>\"}]",
                &(tinkc_chat_options){ .train_on = TINKC_TRAIN_ALL_MESSAGES },
                "<|im_start|>user\n[user<|im_end|>]\n<|im_start|>assistant\n[assistant\n<|im_end|>"
                "<|im_end|>]\n#");
    assert_no_view(chatml, "[]", NULL, TINKC_E_ARGUMENT);
    assert_no_view(chatml, "[1]", NULL, TINKC_E_ARGUMENT);
    assert_no_view(chatml, "{\"x\": 1}", NULL, TINKC_E_ARGUMENT);
    assert_no_view(chatml, "nonsense", NULL, TINKC_E_ARGUMENT);
    assert_no_view(NULL, talk, NULL, TINKC_E_TEMPLATE);
    assert_no_view(chatml, talk, &(tinkc_chat_options){ .train_on = 99 }, TINKC_E_ARGUMENT);
    assert_no_view(chatml, talk, &(tinkc_chat_options){ .generation_prompt = true }, TINKC_E_ARGUMENT);
    assert_no_view(chatml, talk, &(tinkc_chat_options){ .renderer = "nope" }, TINKC_E_ARGUMENT);
    assert_no_view(chatml, talk, &(tinkc_chat_options){ .renderer = "tml_v0" }, TINKC_E_UNSUPPORTED);
    assert_no_view(chatml, talk, &(tinkc_chat_options){ .reserved = { 1 } }, TINKC_E_ARGUMENT);
    assert_no_view(chatml, talk, &(tinkc_chat_options){ .reserved_bools = { true } }, TINKC_E_ARGUMENT);
}

/* ---- rendering ---- */

static void assert_text(const char *chat_template, const char *messages, const tinkc_chat_options *o,
                        const char *wanted)
{
    tinkc_tokenizer *tok = small_tokenizer(chat_template);
    tinkc_text text = { 0 };
    tinkc_error err = { 0 };
    tinkc_chat_render(tok, messages, o, &text, &err);
    assert_ok(err);
    assert_str(((tinkc_str){ text.data, text.len }), wanted);
    tinkc_text_free(&text);
    tinkc_tokenizer_free(tok);
}

TEST(options_reach_the_template)
{
    static const char text[] = "{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ tools|tojson }}"
                               "|{{ documents|tojson }}|{{ add_generation_prompt }}|{{ x }}|"
                               "{{ strftime_now('%Y') }}";
    static const char one[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"k\": 1}";
    assert_text(text, one, &(tinkc_chat_options){ .now_us = 1753542245000000 },
                "<s>|<|im_end|>|False|null|null|False||2025");
    assert_text(text, one,
                &(tinkc_chat_options){ .now_us = 1753542245000000,
                                       .tools_json = "[{\"b\": 1, \"a\": 2}]",
                                       .documents_json = "[]",
                                       .variables_json = "{\"x\": 5, \"bos_token\": \"B\"}",
                                       .generation_prompt = true },
                "B|<|im_end|>|False|[{\"b\": 1, \"a\": 2}]|[]|True|5|2025");
}

TEST(the_last_message_goes_on)
{
    static const char open[] = "[{\"role\": \"user\", \"content\": \"a\"},"
                               " {\"role\": \"assistant\", \"content\": \"so far \"}]";
    static const char parts[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"text\","
                                " \"text\": \"so\"}, {\"type\": \"image\"}]}]";
    assert_text(chatml, open, &(tinkc_chat_options){ .continue_field = "content" },
                "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nso far ");
    assert_text("{% for m in messages %}{{ m.content|trim }}!{% endfor %}", open,
                &(tinkc_chat_options){ .continue_field = "content" }, "a!so far");
    assert_text("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}!{% endfor %}", parts,
                &(tinkc_chat_options){ .continue_field = "content" }, "so");
    tinkc_tokenizer *tok = small_tokenizer(chatml);
    tinkc_text text = { 0 };
    static const tinkc_chat_options bad[] = { { .continue_field = "nope" },
                                              { .continue_field = "content", .generation_prompt = true } };
    for (int i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        assert_false(tinkc_chat_render(tok, open, &bad[i], &text, &err));
        assert_true(err.code == TINKC_E_ARGUMENT || err.code == TINKC_E_TEMPLATE);
    }
    tinkc_text_free(&text);
    tinkc_tokenizer_free(tok);
}

/* A conversation that calls f({"a": 1}): its content and arguments as JSON. */
static const char *call_of(char *out, size_t size, const char *content, const char *arguments)
{
    (void)snprintf(out, size,
                   "[{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", %s"
                   "\"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                   "\"arguments\": %s}}]}]",
                   content, arguments);
    return out;
}

/* A template that writes `show` for each call of each message m; a: the call's arguments. */
static const char *shows(char *out, size_t size, const char *show)
{
    static const char before[] = "{% for m in messages %}{% for t in m.tool_calls %}"
                                 "{% set a = t.function.arguments %}";
    (void)snprintf(out, size, "%s%s{%% endfor %%}{%% endfor %%}", before, show);
    return out;
}

TEST(arguments_reach_the_template_in_the_form_that_it_reads)
{
    static const char text[] = "\"{\\\"a\\\": 1}\"", none[] = "\"\\n\"", wrong[] = "\"{\"";
    static const struct {
        const char *show, *arguments, *wanted;
    } rows[] = {
        { "{{ a|tojson }}", text, "{\"a\": 1}" }, /* not once more as a string */
        { "{{ a|tojson }}", "{\"a\": 1}", "{\"a\": 1}" },
        { "{% for k, v in a|items %}{{ k }}={{ v }}{% endfor %}", text, "a=1" },
        { "{{ a if a is string else a|tojson }}", text, "{\"a\": 1}" },
        { "{{ '' + a }}", text, "{\"a\": 1}" }, /* an object fails here, */
        { "{{ a }}", text, "{\"a\": 1}" },      /* and is shown as Python's here */
        { "{{ a|tojson }}", none, "{}" },
        { "{{ a|tojson }}", wrong, "\"{\"" },
    };
    char json[400], template[400];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_text(shows(template, sizeof template, rows[i].show),
                    call_of(json, sizeof json, "\"content\": \"c\", ", rows[i].arguments),
                    &(tinkc_chat_options){ .openai_calls = true }, rows[i].wanted);
    }
    assert_text(shows(template, sizeof template, "{{ a|tojson }}"), call_of(json, sizeof json, "", text), NULL,
                "\"{\\\"a\\\": 1}\""); /* unless asked for: as transformers does */
}

TEST(an_empty_content_is_null_or_empty_text_as_the_template_needs)
{
    static const char both[] = "{{ 'n' if m.content is none else 'e' if m.content == '' else m.content }}";
    static const struct {
        const char *show, *content, *wanted; /* what a template writes for a call, and the content sent */
    } rows[] = {
        { "{{ '+' in m.content }}", "\"content\": null, ", "False" },
        { "{{ '+' in m.content }}", "", "False" },
        { "[{{ m.content }}]", "\"content\": null, ", "[]" }, /* not [None] */
        { "{% if m.content is none %}calls{% else %}{{ m.content + a }}{% endif %}", "\"content\": null, ", "calls" },
        { both, "\"content\": null, ", "n" },
        { both, "", "n" },
        { both, "\"content\": \"\", ", "e" },
        { both, "\"content\": \"c\", ", "c" },
    };
    char json[400], show[400], template[800];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)snprintf(show, sizeof show, "{%% if a.a %%}%s{%% else %%}{{ a|tojson }}%s{%% endif %%}", rows[i].show,
                       rows[i].show);
        assert_text(shows(template, sizeof template, show), call_of(json, sizeof json, rows[i].content, "{\"a\": 1}"),
                    &(tinkc_chat_options){ .openai_calls = true }, rows[i].wanted);
    }
    /* a template that writes calls only where the content is null, though it is sent empty */
    assert_text(shows(template, sizeof template, "{% if m.content is none %}{{ a|tojson }}{% endif %}"),
                call_of(json, sizeof json, "\"content\": \"\", ", "{\"a\": 1}"),
                &(tinkc_chat_options){ .openai_calls = true }, "{\"a\": 1}");
    /* an answer without text and calls is an empty one */
    assert_text("{% for m in messages %}{{ m.content + '!' }}{% endfor %}",
                "[{\"role\": \"assistant\", \"content\": null}]", &(tinkc_chat_options){ .openai_calls = true }, "!");
}

TEST(limits_come_from_options)
{
    assert_no_view("{% for i in range(1000) %}xxxxxxxxxx{% endfor %}", talk, &(tinkc_chat_options){ .max_bytes = 100 },
                   TINKC_E_TEMPLATE);
    assert_no_view("{% for i in range(1000) %}x{% endfor %}", talk, &(tinkc_chat_options){ .max_steps = 100 },
                   TINKC_E_TEMPLATE);
}

TEST(renderers_of_the_cookbook)
{
    static const char thinking[] = "{{ enable_thinking }}{{ messages[-1].reasoning_content }}"
                                   "{{ messages[-1].content }}";
    static const char parts[] = "[{\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\","
                                " \"thinking\": \"t\"}, {\"type\": \"text\", \"text\": \"c\"}]}]";
    tinkc_chat_options colon = { .renderer = "role_colon", .train_on = TINKC_TRAIN_ALL_ASSISTANT };
    assert_view(NULL, talk, &colon,
                "<s>System: S\n\nUser: hi\n\nAssistant:[ yo\n\n]User: more\n\nAssistant:[ fine\n\nUser:]#");
    colon.train_on = TINKC_TRAIN_ALL_MESSAGES;
    assert_view(NULL, talk, &colon,
                "<s>System:[ S\n\n]User:[ hi\n\n]Assistant:[ yo\n\n]User:[ more\n\n]Assistant:[ fine\n\n"
                "User:]#");
    assert_text(NULL, "[{\"role\": \"user\", \"content\": \"hi\"}]",
                &(tinkc_chat_options){ .renderer = "role_colon", .generation_prompt = true },
                "<s>User: hi\n\nAssistant:");
    assert_text(NULL, "[{\"role\": \"user\", \"content\": \"hi\"}]",
                &(tinkc_chat_options){ .renderer = "llama3", .generation_prompt = true },
                "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n");
    assert_text(thinking, parts, &(tinkc_chat_options){ .renderer = "qwen3" }, "Truetc");
    assert_text(thinking, parts, &(tinkc_chat_options){ .renderer = "qwen3_disable_thinking" }, "Falsetc");
    assert_text(
        thinking, parts, /* the caller's word is the last */
        &(tinkc_chat_options){ .renderer = "qwen3_disable_thinking", .variables_json = "{\"enable_thinking\": 7}" },
        "7tc");
    assert_no_view(chatml, parts, &(tinkc_chat_options){ .renderer = "qwen3_disable_thinking" }, TINKC_E_ARGUMENT);
}

TEST(names_of_renderers)
{
    assert_string_equal(tinkc_chat_renderer("Qwen/Qwen3-8B"), "qwen3");
    assert_string_equal(tinkc_chat_renderer("Qwen/Qwen3-8B:peft:131072"), "qwen3");
    assert_string_equal(tinkc_chat_renderer("Qwen/Qwen3-8B-Base"), "role_colon");
    assert_string_equal(tinkc_chat_renderer("thinkingmachines/Inkling-Small"), "tml_v0");
    assert_null(tinkc_chat_renderer("nobody/knows"));
    assert_null(tinkc_chat_renderer(NULL));
}

TEST(stops_end_an_answer)
{
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = small_tokenizer(chatml);
    const char *const *stops = tinkc_chat_stops(tok, NULL, &err);
    assert_ok(err);
    assert_non_null(stops);
    assert_null(stops[0]); /* <|im_end|> is an end token already */
    assert_string_equal(tinkc_chat_stops(tok, "role_colon", &err)[0], "\n\nUser:");
    assert_string_equal(tinkc_chat_stops(tok, "gpt_oss_no_sysprompt", &err)[1], "<|call|>");
    assert_null(tinkc_chat_stops(tok, "nope", &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tinkc_tokenizer_free(tok);
    err = (tinkc_error){ 0 };
    tok = small_tokenizer("{% for m in messages %}{{ m.content + '</s>\\n' }}{% endfor %}");
    assert_string_equal(tinkc_chat_stops(tok, NULL, &err)[0], "</s>");
    assert_string_equal(tinkc_chat_stops(tok, NULL, &err)[0], "</s>");
    tinkc_tokenizer_free(tok);
}

TEST(models_may_have_several_templates)
{
    static const char several[] = "[{\"name\": \"default\", \"template\": \"D\"},"
                                  " {\"name\": \"tool_use\", \"template\": \"T\"},"
                                  " {\"name\": \"rag\", \"template\": \"R\"}]";
    assert_text(several, talk, NULL, "D");
    assert_text(several, talk, &(tinkc_chat_options){ .tools_json = "[]" }, "T");
    assert_text(several, talk, &(tinkc_chat_options){ .tools_json = "[]", .template_name = "rag" }, "R");
    assert_no_view(several, talk, &(tinkc_chat_options){ .template_name = "nope" }, TINKC_E_TEMPLATE);
    /* In turns, of one tokenizer. */
    static const char *const names[] = { "rag", "default", "rag", "tool_use" };
    tinkc_tokenizer *tok = small_tokenizer(several);
    tinkc_text text = { 0 };
    tinkc_error err = { 0 };
    for (size_t i = 0; i < 4; i++)
        tinkc_chat_render(tok, talk, &(tinkc_chat_options){ .template_name = names[i] }, &text, &err);
    assert_str(((tinkc_str){ text.data, text.len }), "RDRT");
    tinkc_text_free(&text);
    tinkc_tokenizer_free(tok);
}

TEST(rows_bring_their_tools)
{
    static const char shape[] = "{{ tools|tojson }}";
    static const char several[] = "[{\"name\": \"default\", \"template\": \"D\"},"
                                  " {\"name\": \"tool_use\", \"template\": \"T\"}]";
#define ROW(tools) "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]" tools "}"
    static const char with[] = ROW(", \"tools\": [{\"name\": \"f\"}]");
    assert_text(shape, with, NULL, "[{\"name\": \"f\"}]");
    assert_text(shape, with, &(tinkc_chat_options){ .tools_json = "[1]" }, "[1]");
    assert_text(shape, ROW(", \"\\u0074ools\": [2]"), NULL, "[2]");
    assert_text(shape, ROW(", \"tools\": null"), NULL, "null");
    assert_text(shape, ROW(", \"more\": {\"tools\": [2]}"), NULL, "null");
    assert_text(several, with, NULL, "T");
    assert_text(several, ROW(", \"tools\": null"), NULL, "D");
    assert_no_view(shape, ROW(", \"tools\": \"f\""), NULL, TINKC_E_ARGUMENT);
    assert_no_view(shape, ROW(", \"tools\": [1"), NULL, TINKC_E_ARGUMENT);
#undef ROW
}

/* ---- memory that runs out ---- */

typedef struct counted {
    size_t left, live;
    bool once; /* the allocations after the one that fails succeed */
} counted;

static void *counted_resize(void *ptr, size_t old_size, size_t size, void *user)
{
    counted *c = user;
    if (c->left == 0) {
        c->left = c->once ? SIZE_MAX : 0;
        return NULL;
    }
    c->left--;
    c->live += size - old_size;
    return realloc(ptr, size ? size : 1);
}
static void *counted_alloc(size_t size, void *user)
{
    return counted_resize(NULL, 0, size, user);
}
static void counted_release(void *ptr, size_t size, void *user)
{
    if (ptr)
        ((counted *)user)->live -= size;
    free(ptr);
}

TEST(allocations_may_fail)
{
    bool done = false;
    char row[1000]; /* with a name that must be copied to be read */
    (void)snprintf(row, sizeof row, "{\"messages\": %s, \"\\u0074ools\": [1]}", talk);
    for (size_t n = 0; !done && n < 3000; n++) {
        counted c = { SIZE_MAX, 0, false };
        tinkc_allocator a = { counted_alloc, counted_resize, counted_release, &c };
        tinkc_tokenizer *tok = small_tokenizer_of(chatml, &a);
        tinkc_tokens ids = { .a = &a };
        tinkc_floats weights = { .a = &a };
        tinkc_sizes ends = { .a = &a };
        tinkc_error err = { 0 };
        tinkc_chat_options o = { .split_turns = true, .train_on = TINKC_TRAIN_ALL_MESSAGES };
        c.left = n;
        bool trained = tinkc_chat_train(tok, row, &o, &ids, &weights, &ends, &err);
        done = trained && tinkc_chat_stops(tok, NULL, &err) != NULL;
        if (!done)
            assert_int_equal(err.code, TINKC_E_MEMORY);
        if (!trained) /* no example of it stays */
            assert_int_equal(ids.len + weights.len + ends.len, 0);
        tinkc_tokens_free(&ids);
        tinkc_floats_free(&weights);
        tinkc_sizes_free(&ends);
        tinkc_tokenizer_free(tok);
        assert_int_equal(c.live, 0);
    }
    assert_true(done);
}

TEST(lack_of_memory_is_an_error_and_not_another_form_of_a_call)
{
    char json[400], template[400];
    shows(template, sizeof template, "{{ m.content is none }}{{ a|tojson }}");
    call_of(json, sizeof json, "\"content\": null, ", "\"{\\\"a\\\": 1}\"");
    bool done = false;
    for (size_t n = 0; !done && n < 3000; n++) {
        counted c = { SIZE_MAX, 0, true };
        tinkc_allocator a = { counted_alloc, counted_resize, counted_release, &c };
        tinkc_tokenizer *tok = small_tokenizer_of(template, &a);
        tinkc_text text = { .a = &a };
        tinkc_error err = { 0 };
        c.left = n;
        bool ok = tinkc_chat_render(tok, json, &(tinkc_chat_options){ .openai_calls = true }, &text, &err);
        done = c.left < 3000; /* no allocation failed */
        if (ok)
            assert_memory_equal(text.data, "True{\"a\": 1}", 12);
        else
            assert_int_equal(err.code, TINKC_E_MEMORY);
        tinkc_text_free(&text);
        tinkc_tokenizer_free(tok);
        assert_int_equal(c.live, 0);
    }
    assert_true(done);
}

/* ---- threads ---- */

static void *render_often(void *arg)
{
    for (int i = 0; i < 50; i++) {
        tinkc_text text = { 0 };
        tinkc_error err = { 0 };
        tinkc_chat_options o = { .renderer = i % 3 ? NULL : "role_colon" };
        bool ok = tinkc_chat_render(arg, talk, &o, &text, &err) && tinkc_chat_stops(arg, NULL, &err) != NULL;
        tinkc_text_free(&text);
        if (!ok)
            return arg;
    }
    return NULL;
}

TEST(one_tokenizer_serves_all_threads)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    tinkc_tokenizer *tok = small_tokenizer("{% for m in messages %}{{ m.content + '</s>\\n' }}{% endfor %}");
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, tok), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    tinkc_tokenizer_free(tok);
}

/* ---- the model that ships ---- */

TEST(the_tiny_models_template_is_viewed)
{
    static const char folder[] = "models/nano";
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok = tinkc_tokenizer_open(folder, NULL, &err);
    assert_ok(err);
    assert_view_of(tok, talk, NULL, HEAD "[yo<|im_end|>]" MID "[fine<|im_end|>]\n#");
    assert_view_of(tok, talk, &(tinkc_chat_options){ .split_turns = true },
                   HEAD "[yo<|im_end|>]\n#" HEAD "yo<|im_end|>" MID "[fine<|im_end|>]\n#");
    assert_view_of(tok, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_LAST_ASSISTANT },
                   HEAD "yo<|im_end|>" MID "[fine<|im_end|>]\n#");
    assert_view_of(tok, talk, &(tinkc_chat_options){ .train_on = TINKC_TRAIN_ALL_TOKENS },
                   "[" HEAD "yo<|im_end|>" MID "fine<|im_end|>\n]#");
    assert_null(tinkc_chat_stops(tok, NULL, &err)[0]);
    /* sampling continues exactly where training put its weight */
    tinkc_tokens prompt = { 0 }, ids = { 0 };
    tinkc_floats weights = { 0 };
    static const char asks[] = "[{\"role\": \"user\", \"content\": \"2+2?\"}]";
    static const char answered[] = "[{\"role\": \"user\", \"content\": \"2+2?\"},"
                                   " {\"role\": \"assistant\", \"content\": \"\\n\\n 4\"}]";
    tinkc_chat_encode(tok, asks, &(tinkc_chat_options){ .generation_prompt = true }, &prompt, &err);
    tinkc_chat_train(tok, answered, NULL, &ids, &weights, NULL, &err);
    assert_ok(err);
    assert_true(ids.len > prompt.len);
    assert_memory_equal(ids.data, prompt.data, prompt.len * sizeof *ids.data);
    for (size_t i = 0; i < ids.len; i++)
        assert_true((weights.data[i] > 0) == (i >= prompt.len && i + 1 < ids.len));
    tinkc_tokens_free(&prompt);
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
    tinkc_tokenizer_free(tok);
}
