/* dataset.c - conversation files, checked line by line. Must not: need a model or the network. */
#include "cli/data/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/data/row_members.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* ---- files of another kind ---- */

static bool ends_in(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n > m && strcasecmp(path + n - m, suffix) == 0;
}

static bool begins_with(const char *text, size_t len, const char *bytes)
{
    return len >= strlen(bytes) && memcmp(text, bytes, strlen(bytes)) == 0;
}

/* The first byte that is not white space or a mark of the encoding; 0 = none. */
static char first_byte(const char *text, size_t len)
{
    size_t i = begins_with(text, len, "\xEF\xBB\xBF") ? 3 : 0;
    while (i < len && strchr(" \t\r\n", text[i]) && text[i])
        i++;
    return i < len ? text[i] : '\0';
}

int cli_data_refuse(cli_app *app, const char *path, const char *text, size_t len)
{
#define LINES(read)                                                                                \
    "write it as JSON lines: python3 -c 'import pandas, sys; pandas." read                         \
    "(sys.argv[1]).to_json(\"data.jsonl\", orient=\"records\", lines=True)'"
    static const struct {
        const char *bytes, *suffix, *what, *hint;
    } kinds[] = {
        { "PAR1", NULL, "a Parquet file", LINES("read_parquet") },
        { "ARROW1", NULL, "an Arrow file", LINES("read_feather") },
        { "\x1f\x8b", NULL, "compressed (gzip)", "unpack it: gunzip" },
        { "\x28\xb5\x2f\xfd", NULL, "compressed (zstd)", "unpack it: unzstd" },
        { "PK\x03\x04", NULL, "a zip archive", "unpack it: unzip" },
        { NULL, ".csv", "a table (CSV)", LINES("read_csv") },
        { NULL, ".tsv", "a table (TSV)", LINES("read_table") },
    };
#undef LINES
    char first = first_byte(text, len);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        bool fits = kinds[i].bytes ? begins_with(text, len, kinds[i].bytes)
                                   : ends_in(path, kinds[i].suffix) && first != '{' && first != '[';
        if (!fits)
            continue;
        char *hint = cli_printf("%s %s", kinds[i].hint, path);
        int bad =
            cli_fail(app, "data_invalid", hint, "%s is %s, not JSON lines", path, kinds[i].what);
        free(hint);
        return bad;
    }
    return 0;
}

/* Only `data convert` takes one JSON array. */
static int refuse_array(cli_app *app, const char *path, const char *text, size_t len)
{
    if (first_byte(text, len) != '[')
        return 0;
    char *hint = cli_printf("convert it: tinkc data convert %s -o data.jsonl", path);
    int bad = cli_fail(app, "data_invalid", hint, "%s is one JSON array, not JSON lines", path);
    free(hint);
    return bad;
}

/* ---- lines ---- */

int cli_data_open(cli_app *app, const char *path, cli_data_file *out)
{
    int bad = 0;
    struct stat st;
    *out = (cli_data_file){ .path = strdup(path) };
    int fd = strcmp(path, "-") == 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map != MAP_FAILED) {
            madvise(map, (size_t)st.st_size, MADV_SEQUENTIAL);
            *out = (cli_data_file){
                .path = out->path, .text = map, .len = (size_t)st.st_size, .mapped = true
            };
        }
    }
    if (fd >= 0)
        close(fd);
    if (!out->mapped)
        out->text = cli_read_all(app, path, &out->len, &bad);
    bad = bad ? bad : cli_data_refuse(app, path, out->text, out->len);
    bad = bad ? bad : refuse_array(app, path, out->text, out->len);
    if (bad)
        cli_data_close(out);
    return bad;
}

void cli_data_close(cli_data_file *f)
{
    if (f->mapped)
        munmap(f->text, f->len);
    else
        free(f->text);
    free(f->path);
    *f = (cli_data_file){ 0 };
}

void cli_lines_open(cli_lines *l, const cli_data_file *f)
{
    *l = (cli_lines){ f->text, f->text + f->len, 0 };
    if (f->len >= 3 && memcmp(f->text, "\xEF\xBB\xBF", 3) == 0)
        l->at += 3;
}

/* Not by strchr: a NUL is not a blank. */
static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

bool cli_lines_next(cli_lines *l, cli_span *line)
{
    while (l->at < l->end) {
        const char *stop = memchr(l->at, '\n', (size_t)(l->end - l->at));
        if (!stop)
            stop = l->end;
        *line = (cli_span){ l->at, (size_t)(stop - l->at) };
        l->at = stop < l->end ? stop + 1 : stop;
        l->number++;
        while (line->len && is_blank(line->data[line->len - 1]))
            line->len--;
        if (line->len)
            return true;
    }
    return false;
}

/* ---- one conversation ---- */

typedef struct check {
    cli_scan scan;
    cli_convo *facts;
    cli_problem_fn *fn;
    void *user;
    const char *file;
    size_t number;
    char others[96];     /* members that are not "messages", as far as they fit */
    cli_span unused[16]; /* those of them that may have a meaning */
    size_t n_unused;
    bool failed;
} check;

static void complain(check *c, int level, const char *code, const char *message)
{
    if (level == CLI_LEVEL_ERROR)
        c->failed = true;
    c->fn(c->file, c->number, level, code, message, c->user);
}

static void complain_at(check *c, int level, const char *code, const char *what, size_t i)
{
    char text[200];
    (void)snprintf(text, sizeof text, "message %zu: %s", i + 1, what);
    complain(c, level, code, text);
}

static bool holds(cli_span s, const char *word)
{
    return memmem(s.data, s.len, word, strlen(word)) != NULL;
}

/* Passes over a value: its text. */
static cli_span skipped(check *c)
{
    (void)cli_scan_peek(&c->scan); /* past white space */
    const char *from = c->scan.at;
    cli_scan_skip(&c->scan);
    return (cli_span){ from, (size_t)(c->scan.at - from) };
}

static bool is_empty(cli_span value)
{
    return cli_span_is(value, "null") || cli_span_is(value, "\"\"") || cli_span_is(value, "[]") ||
           cli_span_is(value, "{}");
}

static void complain_unused(check *c, cli_span name, const char *what)
{
    char text[160];
    (void)snprintf(text, sizeof text, "\"%.*s\" %s", (int)(name.len < 64 ? name.len : 64),
                   name.data, what);
    complain(c, CLI_LEVEL_WARNING, "unused", text);
}

/* One part of a list content: an object with a type and the member that type needs. */
static void check_part(check *c, size_t i)
{
    static const char *const kinds[] = { "text", "thinking", "image", "audio" };
    cli_span key, type = { "", 0 }, skipped;
    bool has[4] = { false };
    if (cli_scan_peek(&c->scan) != '{') {
        complain_at(c, CLI_LEVEL_ERROR, "part", "a part of the content must be an object", i);
        cli_scan_skip(&c->scan);
        return;
    }
    cli_scan_object(&c->scan);
    while (cli_scan_key(&c->scan, &key)) {
        char kind = cli_scan_peek(&c->scan);
        for (size_t k = 0; k < 4; k++)
            has[k] = has[k] || (kind == '"' && cli_span_is(key, kinds[k]));
        if (cli_span_is(key, "type") && kind == '"')
            cli_scan_string(&c->scan, &type);
        else if (kind == '"')
            cli_scan_string(&c->scan, &skipped);
        else
            cli_scan_skip(&c->scan);
    }
    for (size_t k = 0; k < 4; k++) {
        if (!cli_span_is(type, kinds[k]))
            continue;
        c->facts->reasoning = c->facts->reasoning || k == 1;
        if (!has[k])
            complain_at(c, CLI_LEVEL_ERROR, "part", "a part lacks the member its type names", i);
        return;
    }
    complain_at(c, CLI_LEVEL_ERROR, "part", "a part's type must be text, thinking, image or audio",
                i);
}

static void check_content(check *c, size_t i)
{
    cli_span text;
    char kind = cli_scan_peek(&c->scan);
    if (kind == '"') {
        if (cli_scan_string(&c->scan, &text) && holds(text, "<think>"))
            c->facts->reasoning = true;
    } else if (kind == '[') {
        cli_scan_array(&c->scan);
        while (cli_scan_item(&c->scan))
            check_part(c, i);
    } else {
        if (kind)
            complain_at(c, CLI_LEVEL_ERROR, "content", "content must be text or a list of parts",
                        i);
        cli_scan_skip(&c->scan);
    }
}

/* `text`: what is between the quotes of a JSON string. */
static bool is_json(cli_span text)
{
    tkc_arena arena = { 0 };
    const tkc_tree *string =
        tkc_tree_read(&arena, tkc_strn(text.data - 1, text.len + 2), TKC_TREE_ANY);
    bool good = tkc_tree_read(&arena, tkc_tree_str(string), TKC_TREE_ANY) != NULL;
    tkc_arena_free(&arena);
    return good;
}

static void check_tool_call(check *c, size_t i)
{
    cli_span key, text;
    bool function = false, name = false, arguments = false, parsed = false, readable = true;
    if (cli_scan_peek(&c->scan) != '{') {
        complain_at(c, CLI_LEVEL_ERROR, "tool_calls", "a tool call must be an object", i);
        cli_scan_skip(&c->scan);
        return;
    }
    cli_scan_object(&c->scan);
    while (cli_scan_key(&c->scan, &key)) {
        if (!cli_span_is(key, "function") || cli_scan_peek(&c->scan) != '{') {
            cli_scan_skip(&c->scan);
            continue;
        }
        function = true;
        cli_scan_object(&c->scan);
        while (cli_scan_key(&c->scan, &key)) {
            bool string = cli_scan_peek(&c->scan) == '"';
            name = name || (string && cli_span_is(key, "name"));
            arguments = arguments || cli_span_is(key, "arguments");
            parsed = parsed || (!string && cli_span_is(key, "arguments"));
            if (!string)
                cli_scan_skip(&c->scan);
            else if (cli_scan_string(&c->scan, &text) && cli_span_is(key, "arguments"))
                readable = is_json(text);
        }
    }
    if (!c->scan.fault && (!function || !name || !arguments))
        complain_at(c, CLI_LEVEL_ERROR, "tool_calls",
                    "a tool call needs function.name and function.arguments", i);
    else if (!c->scan.fault && !readable)
        complain_at(c, CLI_LEVEL_ERROR, "tool_calls",
                    "function.arguments is a text that is not JSON", i);
    else if (!c->scan.fault && parsed)
        complain_at(c, CLI_LEVEL_WARNING, "tool_calls",
                    "function.arguments should be a JSON text, in quotes", i);
}

static void check_tool_calls(check *c, char kind, size_t i)
{
    if (kind != '[') {
        if (kind != 'n')
            complain_at(c, CLI_LEVEL_ERROR, "tool_calls", "tool_calls must be a list", i);
        cli_scan_skip(&c->scan);
        return;
    }
    cli_scan_array(&c->scan);
    while (cli_scan_item(&c->scan))
        check_tool_call(c, i);
}

static void count_role(cli_convo *f, cli_span role)
{
    f->n_assistant += cli_span_is(role, "assistant");
    f->n_user += cli_span_is(role, "user");
    f->n_system += cli_span_is(role, "system");
    f->n_tool += cli_span_is(role, "tool");
}

/* A role that no template knows trains nothing, or the wrong thing; one that is nearly a known role
 * is a slip. */
static void check_role(check *c, cli_span role, size_t i)
{
    static const char *const known[] = { "user", "assistant", "system", "tool", "developer" };
    char name[40], text[160];
    for (size_t k = 0; k < 5; k++)
        if (cli_span_is(role, known[k]))
            return;
    (void)snprintf(name, sizeof name, "%.*s", (int)(role.len < 39 ? role.len : 39), role.data);
    const char *near = cli_nearest(name, known, 5);
    (void)snprintf(text, sizeof text, "unknown role '%s'%s%s%s", name,
                   near ? "; did you mean " : "", near ? near : "",
                   near ? "?" : "; templates know system, user, assistant and tool");
    complain_at(c, near ? CLI_LEVEL_ERROR : CLI_LEVEL_WARNING, "role", text, i);
}

/* OpenAI's: 0 = the answer is not learnt, 1 = as without it. */
static void check_weight(check *c, size_t i)
{
    static const char *const good[] = { "0", "1", "0.0", "1.0", "null" };
    cli_span given = skipped(c);
    for (size_t k = 0; k < sizeof good / sizeof *good; k++)
        if (cli_span_is(given, good[k]))
            return;
    if (!c->scan.fault)
        complain_at(c, CLI_LEVEL_ERROR, "weight", "weight must be 0 or 1", i);
}

static void check_message(check *c, size_t i)
{
    cli_span key, role = { NULL, 0 };
    bool content = false, said = false, calls = false, old_call = false;
    if (cli_scan_peek(&c->scan) != '{') {
        complain_at(c, CLI_LEVEL_ERROR, "message", "must be an object", i);
        cli_scan_skip(&c->scan);
        return;
    }
    cli_scan_object(&c->scan);
    while (cli_scan_key(&c->scan, &key)) {
        char kind = cli_scan_peek(&c->scan);
        if (cli_span_is(key, "role") && kind == '"') {
            cli_scan_string(&c->scan, &role);
        } else if (cli_span_is(key, "content") && kind == 'n') { /* beside tool calls it may be */
            cli_scan_skip(&c->scan);
        } else if (cli_span_is(key, "content")) {
            const char *from = c->scan.at;
            content = true;
            check_content(c, i);
            said = said || !is_empty((cli_span){ from, (size_t)(c->scan.at - from) });
        } else if (cli_span_is(key, "tool_calls")) {
            calls = calls || kind == '[';
            check_tool_calls(c, kind, i);
        } else if (cli_span_is(key, "trainable")) {
            c->facts->n_trainable++;
            if (kind != 't' && kind != 'f')
                complain_at(c, CLI_LEVEL_ERROR, "trainable", "trainable must be true or false", i);
            cli_scan_skip(&c->scan);
        } else if (cli_span_is(key, "weight")) {
            check_weight(c, i);
        } else {
            old_call = old_call || cli_span_is(key, "function_call");
            if (!is_empty(skipped(c)) && !cli_row_harmless_in_message(key))
                complain_unused(c, key, "of a message is used only by templates that read it");
        }
    }
    if (c->scan.fault)
        return;
    c->facts->calls = c->facts->calls || calls;
    c->facts->bare = c->facts->bare || (calls && !said);
    if (!role.data)
        complain_at(c, CLI_LEVEL_ERROR, "role", "role is missing or not a text", i);
    else {
        check_role(c, role, i);
        count_role(c->facts, role);
    }
    if (!content && !calls)
        complain_at(c, CLI_LEVEL_ERROR, "content",
                    old_call ? "function_call needs a name and arguments" : "content is missing",
                    i);
}

/* For lines of another form: what there is instead says which form. */
static void note_member(check *c, cli_span key)
{
    size_t at = strlen(c->others);
    if (key.len < 40 && at + key.len + 5 < sizeof c->others)
        (void)snprintf(c->others + at, sizeof c->others - at, "%s\"%.*s\"", at ? ", " : "",
                       (int)key.len, key.data);
}

static void note_value(check *c, cli_span key, cli_span value)
{
    if (is_empty(value) || cli_row_harmless(key))
        return;
    if (cli_span_is(key, "tools"))
        c->facts->tools = true;
    else if (c->n_unused < sizeof c->unused / sizeof *c->unused)
        c->unused[c->n_unused++] = key;
}

static const char *form_of(const char *others)
{
    return others[0] ? "; tinkc data convert --help shows the forms that are known" : "";
}

static void check_members(check *c, bool *found)
{
    cli_span key;
    while (cli_scan_key(&c->scan, &key)) {
        if (!cli_span_is(key, "messages")) {
            note_member(c, key);
            note_value(c, key, skipped(c));
            continue;
        }
        *found = true;
        if (cli_scan_peek(&c->scan) != '[') {
            complain(c, CLI_LEVEL_ERROR, "messages", "messages must be a list");
            cli_scan_skip(&c->scan);
            continue;
        }
        cli_scan_array(&c->scan);
        while (cli_scan_item(&c->scan))
            check_message(c, c->facts->n_messages++);
    }
}

bool cli_check_conversation(const char *file, size_t number, cli_span line, bool customized,
                            cli_convo *facts, cli_problem_fn *fn, void *user)
{
    check c = { .facts = facts, .fn = fn, .user = user, .file = file, .number = number };
    bool found = false;
    *facts = (cli_convo){ 0 };
    cli_scan_open(&c.scan, line.data, line.len);
    if (cli_scan_peek(&c.scan) != '{' && !c.scan.fault)
        c.scan.fault = "the line must be an object";
    else if (cli_scan_object(&c.scan))
        check_members(&c, &found);
    if (!cli_scan_close(&c.scan)) {
        char text[160];
        (void)snprintf(text, sizeof text, "not JSON: %s at column %zu", c.scan.fault,
                       (size_t)(c.scan.at - c.scan.begin) + 1);
        complain(&c, CLI_LEVEL_ERROR, "json", text);
        return false;
    }
    if (!found) {
        char text[224];
        (void)snprintf(text, sizeof text, "there is no \"messages\"%s%s%s",
                       c.others[0] ? ", but " : "", c.others, form_of(c.others));
        complain(&c, CLI_LEVEL_ERROR, "messages", text);
    } else if (facts->n_messages == 0 && !c.failed)
        complain(&c, CLI_LEVEL_ERROR, "messages", "messages is empty");
    for (size_t i = 0; found && i < c.n_unused; i++)
        complain_unused(&c, c.unused[i], "is not used");
    if (c.failed)
        return false;
    if (customized && facts->n_trainable != facts->n_messages)
        complain(&c, CLI_LEVEL_ERROR, "trainable", "every message needs \"trainable\" here");
    else if (!customized && facts->n_trainable)
        complain(&c, CLI_LEVEL_ERROR, "trainable",
                 "\"trainable\" is allowed only with --train-on customized");
    if (!customized && facts->n_assistant == 0)
        complain(&c, CLI_LEVEL_WARNING, "assistant",
                 "no assistant message: nothing is learnt from it");
    return !c.failed;
}
