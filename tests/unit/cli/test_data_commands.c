/* test_data_commands.c - files of conversations: counted, shown, split and converted. */
#include <unistd.h>

#include "base/file.h"
#include "base/platform.h"
#include "support/cli/run_line.h"

#define A                                                                                                              \
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"                    \
    "{\"role\":\"assistant\",\"content\":\"b\"}]}\n"
#define B                                                                                                              \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"c\"}]},{\"role\":\"assistant\","     \
    "\"content\":\"d\"}]}\n"
#define TURNS "{\"conversations\":[{\"from\":\"human\",\"value\":\"e\"},{\"from\":\"gpt\",\"value\":\"f\"}]}\n"

static char before[TKC_PATH], folder[] = "/tmp/tinkc-data-XXXXXX";

static int enter(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    assert_non_null(getcwd(before, sizeof before));
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    return tkc_write_file("two.jsonl", A B, strlen(A B), 0600, &err) &&
                   tkc_write_file("turns.jsonl", TURNS, strlen(TURNS), 0600, &err) &&
                   tkc_write_file("bad.jsonl", A "{\"messages\":1}\n", strlen(A) + 15, 0600, &err)
               ? 0
               : -1;
}

static int leave(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    return chdir(before) == 0 && tkc_remove_tree(folder, &err) ? 0 : -1;
}

TEST(conversations_are_counted_shown_and_converted)
{
    static const struct {
        const char *line;
        int code;
        const char *wanted;
    } rows[] = {
        { "data check two.jsonl", 0, "" },
        { "data check bad.jsonl", 12, "bad.jsonl:2: error: messages must be a list\n" },
        { "data stats two.jsonl", 0,
          "Property\tValue\nConversations\t2\nBroken lines\t0\nDuplicates\t0\nMessages\t5\n  user\t2\n  assistant\t2\n"
          "  system\t1\n  tool\t0\n" },
        { "data preview two.jsonl", 0, "system: s\nuser: a\nassistant: b\n\nuser: c\nassistant: d\n\n" },
        { "data preview two.jsonl --json -n 1", 0,
          "{\n  \"examples\": [\n    {\n      \"line\": 1,\n      \"messages\": [\n"
          "        {\n          \"role\": \"system\",\n          \"content\": \"s\"\n        },\n"
          "        {\n          \"role\": \"user\",\n          \"content\": \"a\"\n        },\n"
          "        {\n          \"role\": \"assistant\",\n          \"content\": \"b\"\n        }\n      ]\n    }\n  "
          "]\n}\n" },
        { "data convert turns.jsonl", 0,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"e\"},{\"role\":\"assistant\",\"content\":\"f\"}]}\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *shown;
        int code = run_line(rows[i].line, NULL, &shown);
        if (code != rows[i].code || strcmp(shown, rows[i].wanted) != 0)
            fail_msg("tinkc %s: %d\n%s", rows[i].line, code, shown);
        free(shown);
    }
}

RUN_TESTS(enter, leave)
