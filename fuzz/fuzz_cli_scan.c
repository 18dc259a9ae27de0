/* Lines of training files: the scanner must agree with a real JSON parser on what is JSON, stay
 * within its bytes, and its conversations must be ones that the parser sees too. The command's own
 * sources are taken in here, because only parsers of the libraries are linked. */
#include "harness.h"

#include "../cli/data/json_scan.c"
#include "../cli/output/text.c"
#include "../cli/data/row_members.c"
#include "../cli/data/dataset.c"

/* What dataset.c needs of the rest of the program and never calls here. */
int cli_fail_at(const cli_app *app, const char *file, int line, const char *code, const char *hint,
                const char *format, ...)
{
    (void)app, (void)file, (void)line, (void)code, (void)hint, (void)format;
    return 2;
}
char *cli_read_all(cli_app *app, const char *path, size_t *len, int *exit_code)
{
    (void)app, (void)path, (void)len;
    *exit_code = 1;
    return NULL;
}

static void count(const char *file, size_t line, int level, const char *code, const char *message,
                  void *user)
{
    (void)file, (void)line, (void)level;
    MUST(code[0] && message[0]);
    ++*(size_t *)user;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > FUZZ_MAX_INPUT)
        return 0;
    char *copy = malloc(size + 1); /* exactly as long as the line: what reads past it is seen */
    memcpy(copy, data, size);
    cli_scan s;
    cli_scan_open(&s, copy, size);
    bool skipped = cli_scan_skip(&s) && cli_scan_close(&s);
    MUST(s.at >= s.begin && s.at <= s.end);
    tkc_arena arena = { 0 };
    const tkc_tree *v = tkc_tree_read(&arena, tkc_strn(copy, size), TKC_TREE_ANY);
    /* The parser is the stricter one (numbers beyond a double, lone surrogates), but nests
     * deeper. */
    MUST(!v || skipped || s.depth > 100);
    for (int customized = 0; customized < 2; customized++) {
        cli_convo facts;
        size_t problems = 0;
        bool good = cli_check_conversation("f", 1, (cli_span){ copy, size }, customized, &facts,
                                           count, &problems);
        MUST(good || problems);
        if (good && v) {
            MUST(tkc_tree_is_object(v));
            MUST(facts.n_messages >= tkc_tree_length(tkc_tree_get(v, "messages")));
        }
    }
    tkc_arena_free(&arena);
    free(copy);
    return 0;
}
