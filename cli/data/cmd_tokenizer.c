/* cmd_tokenizer.c - `tinkc tokenizer`: text, tokens, chat templates. */
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/data/ordered_pool.h"
#include "cli/output/out.h"
#include "cli/sample/token_text.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_on.h"

/* -m, or the profile's model, or nano. */
static const char *model_name(const cli_app *app)
{
    const char *model = cli_model(app);
    return model ? model : "nano";
}

/* Its tokenizer. NULL after reporting in *bad. */
static tinkc_tokenizer *open_tokenizer(cli_app *app, int *bad)
{
    tinkc_error err = { 0 };
    const char *model = model_name(app);
    tinkc_tokenizer *t = cli_tokenizer(app, model, &err);
    *bad = t ? 0 : cli_fail_error(app, &err, model);
    return t;
}

/* The text of the argument, of --file, or of stdin. */
static char *input_text(cli_app *app, size_t *len, int *bad)
{
    const char *file = cli_find_option(app->command, "file", 4) ? cli_text(app, "file") : NULL;
    if (!file && app->n_args && strcmp(app->args[0], "-") != 0) {
        *len = strlen(app->args[0]);
        *bad = 0;
        return strdup(app->args[0]);
    }
    return cli_read_all(app, file ? file : "-", len, bad);
}

static tkc_tree *text_json(const cli_app *app, const tinkc_text *text)
{
    return tkc_tree_new_str(cli_arena(app), tkc_strn(text->data ? text->data : "", text->len));
}

static tkc_tree *ids_json(const cli_app *app, const int32_t *ids, size_t n)
{
    tkc_tree *out = cli_array(app);
    for (size_t i = 0; i < n; i++)
        tkc_tree_add_i64(out, ids[i]);
    return out;
}

static void print_ids(const cli_app *app, const tinkc_tokenizer *t, const tinkc_tokens *ids)
{
    bool lines = cli_flag(app, "lines"), pieces = cli_flag(app, "pieces");
    for (size_t i = 0; i < ids->len; i++) {
        if (pieces) {
            char *piece = cli_piece(t, ids->data[i]);
            printf("%d\t%s\n", (int)ids->data[i], piece ? piece : "");
            free(piece);
        } else {
            printf("%d%s", (int)ids->data[i], lines ? "\n" : i + 1 < ids->len ? " " : "");
        }
    }
    if (!lines && !pieces)
        putchar('\n');
}

int cli_tokenizer_encode(cli_app *app)
{
    int bad;
    size_t len = 0;
    tinkc_error err = { 0 };
    tinkc_tokenizer *t = open_tokenizer(app, &bad);
    char *text = t ? input_text(app, &len, &bad) : NULL;
    tinkc_tokens ids = { 0 };
    tinkc_encode_options how = { .special = cli_flag(app, "special") ? TINKC_SPECIAL_ALL
                                                                     : TINKC_SPECIAL_NONE,
                                 .add_special = cli_flag(app, "bos") };
    if (text && !tinkc_encode_span(t, text, len, &how, &ids, NULL, &err))
        bad = cli_fail_error(app, &err, NULL);
    if (!bad && (app->format == CLI_JSON || app->format == CLI_JSONL)) {
        tkc_tree *v = cli_pack(app, "{s:o,s:I}", "tokens", ids_json(app, ids.data, ids.len),
                               "count", (int64_t)ids.len);
        bad = cli_print_json(app, v);
    } else if (!bad) {
        print_ids(app, t, &ids);
    }
    tinkc_tokens_free(&ids);
    free(text);
    tinkc_tokenizer_free(t);
    return bad;
}

/* Numbers separated by blanks, commas or brackets. False at anything else. */
static bool read_ids(const char *text, tinkc_tokens *out)
{
    for (const char *p = text + strspn(text, " ,[]\t\r\n"); *p;) {
        char word[24];
        int64_t id;
        size_t n = strcspn(p, " ,[]\t\r\n");
        if (n >= sizeof word)
            return false;
        memcpy(word, p, n);
        word[n] = '\0';
        if (!cli_parse_int(word, &id) || id < INT32_MIN || id > INT32_MAX ||
            !tinkc_tokens_append(out, &(int32_t){ (int32_t)id }, 1, NULL))
            return false;
        p += n;
        p += strspn(p, " ,[]\t\r\n");
    }
    return true;
}

static int check_ids(cli_app *app, const tinkc_tokenizer *t, const tinkc_tokens *ids)
{
    for (size_t i = 0; i < ids->len; i++)
        if (ids->data[i] < 0 || ids->data[i] >= tinkc_tokenizer_size(t))
            return cli_fail(app, "data_invalid", NULL,
                            "token id %d is out of range: ids must be 0 or more and below %d",
                            (int)ids->data[i], (int)tinkc_tokenizer_size(t));
    return 0;
}

int cli_tokenizer_decode(cli_app *app)
{
    int bad;
    tinkc_error err = { 0 };
    tinkc_tokenizer *t = open_tokenizer(app, &bad);
    tinkc_tokens ids = { 0 };
    tinkc_text text = { 0 };
    bool from_input = app->n_args == 0 || strcmp(app->args[0], "-") == 0;
    size_t len;
    char *input = t && from_input ? cli_read_all(app, "-", &len, &bad) : NULL;
    bool ok = !input || read_ids(input, &ids);
    for (size_t i = 0; !from_input && i < app->n_args; i++)
        ok = ok && read_ids(app->args[i], &ids);
    if (!bad && !ok)
        bad = cli_fail(app, "data_invalid", "ids are whole numbers", "the input is not token ids");
    if (!bad)
        bad = check_ids(app, t, &ids);
    tinkc_decode_options how = { .skip_special = cli_flag(app, "skip-special"),
                                 .raw_bytes = cli_flag(app, "bytes") };
    if (!bad && !tinkc_decode_span(t, ids.data, ids.len, &how, &text, &err))
        bad = cli_fail_error(app, &err, NULL);
    if (!bad && app->format == CLI_JSON) {
        tkc_tree *v =
            cli_pack(app, "{s:o,s:I}", "text", text_json(app, &text), "count", (int64_t)ids.len);
        bad = v ? cli_print_json(app, v) : cli_fail(app, "data_invalid", NULL, "not UTF-8");
    } else if (!bad) {
        fwrite(text.data ? text.data : "", 1, text.len, stdout);
        if (app->stdout_tty)
            putchar('\n');
    }
    free(input);
    tinkc_text_free(&text);
    tinkc_tokens_free(&ids);
    tinkc_tokenizer_free(t);
    return bad;
}

int cli_tokenizer_count(cli_app *app)
{
    static const cli_column columns[] = {
        { .name = "tokens", .header = "Tokens", .path = "tokens", .is_default = true },
        { .name = "file", .header = "File", .path = "file", .is_default = true },
        { 0 }
    };
    int bad;
    tinkc_tokenizer *t = open_tokenizer(app, &bad);
    tkc_tree *items = cli_array(app);
    int64_t total = 0;
    size_t n = app->n_args ? app->n_args : 1;
    for (size_t i = 0; t && !bad && i < n; i++) {
        const char *file = app->n_args ? app->args[i] : "-";
        tinkc_error err = { 0 };
        tinkc_encode_options how = { .special = TINKC_SPECIAL_NONE,
                                     .any_bytes = true,
                                     .threads = (int32_t)cli_cores() };
        size_t len;
        char *text = cli_read_all(app, file, &len, &bad);
        size_t count = text ? tinkc_encode_count(t, text, len, &how, &err) : 0;
        free(text);
        if (err.code)
            bad = cli_fail_error(app, &err, file);
        total += (int64_t)count;
        tkc_tree_add(items, cli_pack(app, "{s:I,s:o}", "tokens", (int64_t)count, "file",
                                     cli_json_text(cli_arena(app), file)));
    }
    if (!bad && n > 1 && app->format != CLI_JSON)
        tkc_tree_add(items, cli_pack(app, "{s:I,s:s}", "tokens", (int64_t)total, "file", "total"));
    tkc_tree *head = cli_pack(app, "{s:I}", "total", (int64_t)total);
    cli_list list = { .key = "files", .columns = columns, .head = head, .no_counts = true };
    if (!bad)
        bad = cli_print_list(app, &list, items);
    tinkc_tokenizer_free(t);
    return bad;
}

/* ---- chat templates ---- */

static tkc_tree *floats_json(const cli_app *app, const tinkc_floats *f)
{
    tkc_tree *out = cli_array(app);
    for (size_t i = 0; i < f->len; i++)
        tkc_tree_add_real(out, (double)f->data[i]);
    return out;
}

typedef struct rendered {
    tinkc_text text;
    tinkc_tokens ids;
    tinkc_floats weights;
} rendered;

/* What ends an answer: the chat format's own, else the tokens that the model ends with. */
static tkc_tree *stops_json(const cli_app *app, const tinkc_tokenizer *t, const char *renderer)
{
    tkc_tree *out = cli_array(app);
    tinkc_i32s ends = tinkc_tokenizer_ends(t);
    for (const char *const *s = tinkc_chat_stops(t, renderer, NULL); s && *s; s++)
        tkc_tree_add_text(out, *s);
    for (size_t i = 0; tkc_tree_length(out) == 0 && i < ends.len; i++) {
        char *piece = cli_piece(t, ends.data[i]);
        tkc_tree_add(out, cli_json_text(cli_arena(app), piece));
        free(piece);
    }
    return out;
}

static void print_weights(const tinkc_tokenizer *t, const rendered *r)
{
    for (size_t i = 0; i < r->ids.len; i++) {
        char *piece = cli_piece(t, r->ids.data[i]);
        printf("%d\t%g\t%s\n", (int)r->ids.data[i], (double)r->weights.data[i], piece ? piece : "");
        free(piece);
    }
}

static int show_rendered(cli_app *app, const tinkc_tokenizer *t, const rendered *r)
{
    if (app->format == CLI_JSON || app->format == CLI_JSONL) {
        tkc_tree *v = cli_pack(app, "{s:o,s:o,s:o}", "text", text_json(app, &r->text), "tokens",
                               ids_json(app, r->ids.data, r->ids.len), "stop",
                               stops_json(app, t, cli_renderer(app, model_name(app))));
        if (r->weights.len)
            tkc_tree_set(v, "weights", floats_json(app, &r->weights));
        return cli_print_json(app, v);
    }
    if (cli_flag(app, "text") + cli_flag(app, "weights") + cli_flag(app, "ids") > 1)
        return cli_fail(app, "usage", NULL, "give one of --text, --ids and --weights");
    if (cli_flag(app, "weights"))
        print_weights(t, r);
    else if (cli_flag(app, "ids"))
        print_ids(app, t, &r->ids);
    else {
        fwrite(r->text.data ? r->text.data : "", 1, r->text.len, stdout);
        if (app->stdout_tty)
            putchar('\n');
    }
    return 0;
}

int cli_tokenizer_chat_template(cli_app *app)
{
    int bad;
    size_t len;
    tinkc_error err = { 0 };
    rendered r = { 0 };
    tinkc_tokenizer *t = open_tokenizer(app, &bad);
    char *messages = t ? cli_read_all(app, app->n_args ? app->args[0] : "-", &len, &bad) : NULL;
    char *tools = NULL;
    if (!bad && cli_given(app, "tools"))
        tools = cli_read_all(app, cli_text(app, "tools"), &len, &bad);
    tinkc_chat_options how = { .renderer = cli_renderer(app, model_name(app)),
                               .tools_json = tools,
                               .openai_calls = true };
    bool weights = cli_flag(app, "weights");
    how.generation_prompt = !weights && !cli_flag(app, "no-generation-prompt");
    if (!bad && cli_given(app, "train-on"))
        bad = cli_train_on(app, cli_text(app, "train-on"), &how.train_on);
    if (!bad) {
        tinkc_chat_render(t, messages, &how, &r.text, &err);
        if (weights)
            tinkc_chat_train(t, messages, &how, &r.ids, &r.weights, NULL, &err);
        else
            tinkc_chat_encode(t, messages, &how, &r.ids, &err);
        bad = err.code ? cli_fail_error(app, &err, NULL) : show_rendered(app, t, &r);
    }
    tinkc_text_free(&r.text);
    tinkc_tokens_free(&r.ids);
    tinkc_floats_free(&r.weights);
    free(tools);
    free(messages);
    tinkc_tokenizer_free(t);
    return bad;
}

int cli_tokenizer_info(cli_app *app)
{
    static const struct {
        const char *label, *key;
        int32_t which;
    } marks[] = { { "Begin", "bos_token_id", TINKC_TOKEN_BOS },
                  { "End", "eos_token_id", TINKC_TOKEN_EOS },
                  { "Padding", "pad_token_id", TINKC_TOKEN_PAD } };
    int bad;
    char text[CLI_SHORT_TEXT];
    tinkc_tokenizer *t = open_tokenizer(app, &bad);
    if (!t)
        return bad;
    tkc_tree *rows = cli_array(app);
    tkc_tree *v = cli_pack(app, "{s:o,s:i}", "source",
                           cli_json_text(cli_arena(app), tinkc_tokenizer_source(t)), "vocabulary",
                           (int)tinkc_tokenizer_size(t));
    cli_row(app, rows, "Source", tinkc_tokenizer_source(t));
    cli_format_count(tinkc_tokenizer_size(t), text);
    cli_row(app, rows, "Vocabulary", text);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        int32_t id = tinkc_tokenizer_special(t, marks[i].which);
        char *piece = id < 0 ? NULL : cli_piece(t, id);
        char *mark = piece ? cli_printf("%d  %s", (int)id, piece) : NULL;
        tkc_tree_set(v, marks[i].key,
                     id < 0 ? tkc_tree_null() : tkc_tree_new_i64(cli_arena(app), id));
        cli_row(app, rows, marks[i].label, mark);
        free(mark);
        free(piece);
    }
    bool chat = tinkc_tokenizer_template(t, NULL) != NULL;
    tkc_tree_set_bool(v, "chat_template", chat);
    cli_row(app, rows, "Chat template", chat ? "Yes" : "No");
    bad = cli_show_record(app, NULL, rows, v);
    tinkc_tokenizer_free(t);
    return bad;
}
