/* cmd_chat.c - `tinkc chat`: a conversation, tokens as they come, and commands with a slash. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/sample/ask.h"
#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/output/editor.h"
#include "cli/main/files.h"
#include "cli/output/lineedit.h"
#include "cli/output/out.h"
#include "cli/sample/token_text.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

typedef struct chat {
    cli_app *app;
    cli_asked asked;
    tinkc_sampling how;
    tkc_tree *messages;
    size_t n_prompt, n_answer; /* tokens of the last turn */
    double seconds;
    bool leaving;
    int exit_code;
} chat;

/* ---- answers ---- */

/* Text on its way to the terminal; what lies in <think> is dimmed or left out. */
typedef struct screen {
    const chat *c;
    bool thinking;
} screen;

static void show_piece(const char *text, size_t len, void *user)
{
    screen *s = user;
    const cli_app *app = s->c->app;
    const char *how = cli_text(app, "thinking"), *end = text + len;
    bool color = app->color && app->stdout_tty;
    if (app->format == CLI_JSON)
        return;
    for (const char *p = text; p < end;) {
        const char *word = s->thinking ? "</think>" : "<think>";
        const char *mark = memmem(p, (size_t)(end - p), word, strlen(word));
        bool hide = s->thinking && strcmp(how, "hide") == 0;
        bool dim = s->thinking && color && strcmp(how, "dim") == 0;
        fputs(dim ? "\033[2m" : "", stdout);
        if (!hide)
            cli_put_text(app, stdout, p, (size_t)((mark ? mark : end) - p));
        fputs(dim ? "\033[0m" : "", stdout);
        p = mark ? mark + strlen(word) : end;
        s->thinking ^= mark != NULL;
    }
    fflush(stdout);
}

static void ask_plain(chat *c, const tinkc_tokens *prompt, screen *s, tinkc_tokens *all,
                      int32_t *stop, tinkc_error *err)
{
    tinkc_future *f = tinkc_sample(c->asked.sampler, prompt->data, prompt->len, 1, &c->how, err);
    if (cli_wait(c->app, f, "thinking", err)) {
        const tinkc_sequence *seq = tinkc_samples_at(tinkc_future_samples(f, 0, err), 0);
        char *text = seq ? cli_answer_text(&c->asked, seq, &c->how) : NULL;
        if (text)
            show_piece(text, strlen(text), s);
        if (seq) {
            tinkc_tokens_append(all, seq->tokens.data, seq->tokens.len, err);
            *stop = seq->stop_reason;
        }
        free(text);
    }
    tinkc_future_free(f);
}

static void print_turn(chat *c, const char *text, int32_t stop)
{
    const tkc_tree *v =
        cli_pack(c->app, "{s:s,s:s,s:I,s:I,s:s}", "role", "assistant", "content", text,
                 "prompt_tokens", (int64_t)c->n_prompt, "completion_tokens", (int64_t)c->n_answer,
                 "stop_reason", stop == TINKC_STOP_LENGTH ? "length" : "stop");
    cli_write_json(stdout, v, 0);
    fputc('\n', stdout);
    fflush(stdout);
}

/* Asks with the conversation as it is and adds the answer. False: nothing was added. */
static bool answer(chat *c)
{
    tinkc_error err = { 0 };
    tinkc_tokens prompt = { 0 }, all = { 0 };
    int32_t stop = TINKC_STOP;
    int64_t begun = cli_now_ms();
    screen s = { .c = c };
    cli_forget_signal();
    bool rendered = cli_render_prompt(&c->asked, c->messages, NULL, &prompt, &err);
    if (rendered)
        cli_clamp_tokens(c->app, &c->asked, prompt.len, &c->how);
    if (rendered &&
        !cli_stream(c->app, &c->asked, &prompt, &c->how, show_piece, &s, &all, &stop, &err))
        ask_plain(c, &prompt, &s, &all, &stop, &err);
    bool interrupted = cli_stop_signal() != 0;
    if (interrupted && (cli_stop_signal() == SIGTERM || !c->app->stdin_tty)) {
        c->exit_code = cli_stop_exit(); /* the input has ended */
        c->leaving = true;
    }
    cli_forget_signal();
    c->n_prompt = prompt.len;
    c->n_answer = all.len;
    c->seconds = cli_seconds_since(begun);
    bool ok = all.len > 0 && (!err.code || interrupted);
    if (ok) {
        tinkc_sequence seq = { .tokens = { all.data, all.len }, .stop_reason = stop };
        char *text = cli_answer_text(&c->asked, &seq, &c->how);
        if (c->app->format == CLI_JSON)
            print_turn(c, text ? text : "", stop);
        else
            putchar('\n');
        if (c->app->format != CLI_JSON && !interrupted)
            cli_warn_empty(c->app, text, all.len);
        tkc_tree_add(c->messages, cli_pack(c->app, "{s:s,s:s}", "role", "assistant", "content",
                                           text ? text : ""));
        free(text);
    } else if (err.code && !interrupted) {
        c->exit_code = cli_fail_error(c->app, &err, NULL);
        if (c->app->stdin_tty && tkc_tree_length(c->messages) > 1)
            cli_note(c->app, "/undo removes the last exchange, /new starts a new conversation");
    }
    tinkc_tokens_free(&prompt);
    tinkc_tokens_free(&all);
    return ok;
}

static void say(chat *c, const char *text)
{
    tkc_tree_add(c->messages, cli_pack(c->app, "{s:s,s:s}", "role", "user", "content", text));
    if (!answer(c)) /* the question goes too, so that it can be asked again */
        tkc_tree_take_out(c->messages, tkc_tree_length(c->messages) - 1);
}

/* ---- the conversation as a file ---- */

static int save_to(chat *c, const char *path)
{
    cli_save s;
    tkc_tree *v = cli_pack(c->app, "{s:o}", "messages", c->messages);
    cli_save_begin(&s, path, 0666);
    if (s.f) {
        cli_write_json(s.f, v, 0);
        fputc('\n', s.f);
    }
    int bad = cli_save_end(&s, c->app, true);
    if (!bad)
        cli_note(c->app, "saved to %s", path);
    return bad;
}

/* 0, or an exit code after reporting. */
static int load_from(chat *c, const char *path)
{
    tinkc_error why = { 0 };
    int bad;
    size_t len;
    char *text = cli_read_all(c->app, path, &len, &bad);
    if (!text)
        return bad;
    tkc_tree *v = tkc_tree_parse(cli_arena(c->app), tkc_strn(text, len), TKC_TREE_BEGINS, &why);
    tkc_tree *messages = tkc_tree_is_array(v) ? v : tkc_tree_get(v, "messages");
    free(text);
    if (!tkc_tree_is_array(messages)) {
        bad = cli_fail(c->app, "data_invalid",
                       "the file must hold an array of {\"role\", \"content\"}", "%s: %s", path,
                       v ? "not a list of messages" : cli_json_why(&why));
        return bad;
    }
    c->messages = messages;
    cli_note(c->app, "%zu messages", tkc_tree_length(messages));
    return 0;
}

/* ---- commands ---- */

static const char *role_at(const chat *c, size_t i)
{
    const char *role = tkc_tree_get_text(tkc_tree_at(c->messages, i), "role");
    return role ? role : "";
}

static void drop_last_of(chat *c, const char *role)
{
    size_t n = tkc_tree_length(c->messages);
    if (n && strcmp(role_at(c, n - 1), role) == 0)
        tkc_tree_take_out(c->messages, n - 1);
}

static void do_help(chat *c, const char *rest);

static void do_new(chat *c, const char *rest)
{
    (void)rest;
    while (tkc_tree_length(c->messages) &&
           strcmp(role_at(c, tkc_tree_length(c->messages) - 1), "system") != 0)
        tkc_tree_take_out(c->messages, tkc_tree_length(c->messages) - 1);
    cli_note(c->app, "a new conversation");
}

static void do_system(chat *c, const char *rest)
{
    if (tkc_tree_length(c->messages) && strcmp(role_at(c, 0), "system") == 0)
        tkc_tree_take_out(c->messages, 0);
    if (*rest)
        tkc_tree_insert(c->messages, 0,
                        cli_pack(c->app, "{s:s,s:s}", "role", "system", "content", rest));
}

static void do_undo(chat *c, const char *rest)
{
    (void)rest;
    drop_last_of(c, "assistant");
    drop_last_of(c, "user");
    cli_note(c->app, "%zu messages left", tkc_tree_length(c->messages));
}

static void do_retry(chat *c, const char *rest)
{
    (void)rest;
    drop_last_of(c, "assistant");
    if (tkc_tree_length(c->messages) &&
        strcmp(role_at(c, tkc_tree_length(c->messages) - 1), "user") == 0)
        (void)answer(c);
}

static void do_edit(chat *c, const char *rest)
{
    (void)rest;
    const char *where = getenv("TMPDIR");
    char *path = cli_printf("%s/tinkc-XXXXXX", where && *where ? where : "/tmp");
    int fd = path ? mkstemp(path) : -1, bad;
    if (fd < 0) {
        cli_warn(c->app, "no temporary file: %s", tkc_errno_text(errno));
        free(path);
        return;
    }
    close(fd);
    size_t len;
    char *text = cli_edit_file(path) ? cli_read_all(c->app, path, &len, &bad) : NULL;
    (void)unlink(path);
    free(path);
    for (size_t n = text ? strlen(text) : 0; n && strchr("\r\n", text[n - 1]); n--)
        text[n - 1] = '\0';
    if (text && text[strspn(text, " \r\n\t")] && cli_check_message(c->app, text, strlen(text)) == 0)
        say(c, text);
    else if (!text)
        cli_warn(c->app, "%s failed: nothing is sent", cli_editor());
    free(text);
}

static void do_save(chat *c, const char *rest)
{
    if (*rest)
        (void)save_to(c, rest);
    else
        cli_warn(c->app, "/save FILE");
}

static void do_load(chat *c, const char *rest)
{
    if (*rest)
        (void)load_from(c, rest);
    else
        cli_warn(c->app, "/load FILE");
}

static void do_params(chat *c, const char *rest)
{
    (void)rest;
    cli_note(c->app, "max_tokens %d, temperature %g, top_p %g, top_k %d", (int)c->how.max_tokens,
             (double)c->how.temperature, (double)c->how.top_p, (int)c->how.top_k);
}

static bool known_setting(const char *key)
{
    static const char *const keys[] = { "max_tokens", "temperature", "top_p", "top_k", "seed" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static void do_set(chat *c, const char *rest)
{
    char key[32];
    size_t n = strcspn(rest, " ");
    double v;
    const char *text = rest + n + strspn(rest + n, " ");
    (void)snprintf(key, sizeof key, "%.*s", (int)n, rest);
    if (!cli_parse_number(text, &v))
        cli_warn(c->app, "/set KEY NUMBER: max_tokens, temperature, top_p, top_k, seed");
    else {
        const tkc_tree *one = cli_pack(c->app, "{s:o}", key,
                                       v == floor(v) && fabs(v) < 1e15
                                           ? tkc_tree_new_i64(cli_arena(c->app), (int64_t)v)
                                           : tkc_tree_new_real(cli_arena(c->app), v));
        char why[CLI_WHY];
        if (!known_setting(key))
            cli_warn(c->app, "there is no setting '%s'", key);
        else if (!cli_sampling_members(one, &c->how, why))
            cli_warn(c->app, "%s", why);
    }
    do_params(c, "");
}

static void do_model(chat *c, const char *rest)
{
    if (!*rest) {
        cli_note(c->app, "%s", c->asked.model_path ? c->asked.model_path : c->asked.base_model);
        return;
    }
    cli_asked other;
    int bad = 0;
    char *name = cli_add_named(c->app, rest, &bad);
    if (bad)
        free(name);
    else if (cli_give_value(c->app, "model", name, CLI_FROM_LINE, "chat") == 0 &&
             cli_open_sampler(c->app, &other) == 0) {
        cli_asked_free(&c->asked);
        c->asked = other;
        cli_note(c->app, "now %s", rest);
    }
}

static void do_tokens(chat *c, const char *rest)
{
    (void)rest;
    tinkc_tokens ids = { 0 };
    tinkc_error err = { 0 };
    if (cli_render_prompt(&c->asked, c->messages, NULL, &ids, &err)) {
        for (size_t i = 0; i < ids.len; i++) {
            char *piece = cli_piece(c->asked.tokenizer, ids.data[i]);
            fprintf(stderr, "%s%s%s", c->app->color ? i % 2 ? "\033[46;30m" : "\033[43;30m" : "|",
                    piece ? piece : "", c->app->color ? "\033[0m" : "");
            free(piece);
        }
        fprintf(stderr, "\n%zu tokens\n", ids.len);
    }
    if (err.code)
        cli_warn(c->app, "%s", err.message);
    tinkc_tokens_free(&ids);
}

static void do_stats(chat *c, const char *rest)
{
    (void)rest;
    cli_note(c->app, "last turn: %zu prompt tokens, %zu answer tokens, %.2f s, %.1f tokens/s",
             c->n_prompt, c->n_answer, c->seconds,
             c->seconds > 0 ? (double)c->n_answer / c->seconds : 0);
}

static void do_exit(chat *c, const char *rest)
{
    (void)rest;
    c->leaving = true;
}

static const struct {
    const char *name, *help;
    void (*run)(chat *, const char *);
} verbs[] = {
    { "/help", "this list", do_help },
    { "/new", "forget the conversation", do_new },
    { "/system", "TEXT  set the system message", do_system },
    { "/undo", "remove the last exchange", do_undo },
    { "/retry", "ask again", do_retry },
    { "/edit", "write the next message in $EDITOR", do_edit },
    { "/save", "FILE  save as training data", do_save },
    { "/load", "FILE  continue a saved conversation", do_load },
    { "/set", "KEY VALUE  max_tokens, temperature, top_p, top_k, seed", do_set },
    { "/params", "show them", do_params },
    { "/model", "[M]  show or change the model", do_model },
    { "/tokens", "the text that the model sees", do_tokens },
    { "/stats", "tokens and speed of the last turn", do_stats },
    { "/exit", "leave", do_exit },
};

static void do_help(chat *c, const char *rest)
{
    (void)rest;
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        cli_note(c->app, "%-9s %s", verbs[i].name, verbs[i].help);
}

static void run_verb(chat *c, const char *line)
{
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strlen(verbs[i].name) == n && memcmp(verbs[i].name, line, n) == 0) {
            verbs[i].run(c, rest);
            return;
        }
    }
    cli_warn(c->app, "unknown command %.*s; /help lists them", (int)n, line);
}

/* ---- reading ---- */

/* A line, or several: one that ends in '\' continues, and so does text that begins with three
 * quotes. */
static char *read_message(int *interrupted)
{
    char *line = cli_edit_line("> ", interrupted), *text = NULL;
    size_t size;
    if (!line)
        return NULL;
    bool quoted = strncmp(line, "\"\"\"", 3) == 0;
    if (!quoted && !(*line && line[strlen(line) - 1] == '\\'))
        return line;
    FILE *f = open_memstream(&text, &size);
    bool begun = false; /* a first or last line of quotes alone is not part of the message */
    for (char *p = quoted ? line + 3 : line; f;) {
        size_t n = strlen(p);
        bool last = quoted ? n >= 3 && strcmp(p + n - 3, "\"\"\"") == 0 : !n || p[n - 1] != '\\';
        n -= quoted ? last ? 3 : 0 : !last;
        if (n || (begun && !last))
            fprintf(f, "%s%.*s", begun ? "\n" : "", (int)n, p);
        begun = begun || n;
        free(line);
        if (last)
            break;
        p = line = cli_edit_line(". ", interrupted);
        if (!line)
            break;
    }
    return f && fclose(f) == 0 ? text : NULL;
}

/* A signal at the prompt: the first takes the line away, on an empty line it takes two to leave. */
static void note_signal(chat *c, int met, int *in_a_row)
{
    int exit_code = cli_stop_exit();
    bool leave = cli_stop_signal() == SIGTERM || (met == CLI_EDIT_EMPTY && ++*in_a_row == 2);
    cli_forget_signal(); /* before anything is said: the answer to it may be the next signal */
    fputc('\n', stderr);
    if (leave) {
        c->exit_code = exit_code;
        c->leaving = true;
    } else if (met == CLI_EDIT_EMPTY) {
        cli_note(c->app, "(press again to leave)");
    }
}

static void take_line(chat *c, const char *line)
{
    c->exit_code = 0;
    if (strcmp(line, "quit") == 0 || strcmp(line, "exit") == 0)
        c->leaving = true;
    else if (*line == '/' && !strchr(line, '\n')) /* several lines were pasted: a message */
        run_verb(c, line);
    else if (line[strspn(line, " \t\n")])
        say(c, line);
}

static void converse(chat *c)
{
    int in_a_row = 0;
    char *history = cli_flag(c->app, "no-history") ? NULL : cli_state_path("chat_history");
    cli_edit_begin(history);
    free(history);
    cli_note(c->app, "%s; /help for commands, Ctrl-D to leave",
             c->asked.model_path ? c->asked.model_path : c->asked.base_model);
    while (!c->leaving) {
        int met;
        char *line = read_message(&met);
        if (met) {
            note_signal(c, met, &in_a_row);
        } else if (!line) {
            fputc('\n', stderr);
            break;
        } else {
            in_a_row = 0;
            take_line(c, line);
        }
        free(line);
    }
    cli_edit_end();
}

/* ---- without a terminal ---- */

/* All of the input is one message. */
static int take_input(chat *c)
{
    int bad;
    size_t len;
    char *text = cli_read_all(c->app, "-", &len, &bad);
    if (text) {
        len = cli_strip_newline(text, len);
        bad = cli_check_message(c->app, text, len);
    }
    if (text && !bad)
        say(c, text);
    free(text);
    return bad;
}

/* --turns: each message is asked as it comes, until one fails. A line with a slash is a message too:
 * what a pipe brings must not write files or start programs. */
static int take_turns(chat *c)
{
    int met = CLI_EDIT_NOT, bad = 0;
    size_t asked = 0;
    while (!bad && !c->leaving && !c->exit_code) {
        char *text = read_message(&met);
        bool ended = !text || met != CLI_EDIT_NOT;
        if (!ended && text[strspn(text, " \t\n")]) {
            bad = cli_check_message(c->app, text, strlen(text));
            asked++;
            if (!bad)
                say(c, text);
        }
        free(text);
        if (ended)
            break;
    }
    if (met != CLI_EDIT_NOT)
        c->exit_code = cli_stop_exit();
    return bad || asked || c->exit_code ? bad : cli_check_message(c->app, "", 0);
}

int cli_chat(cli_app *app)
{
    chat c = { .app = app, .messages = cli_array(app) };
    int bad = cli_check_sampling(app);
    bad = bad ? bad : cli_open_sampler(app, &c.asked);
    if (bad)
        return bad;
    if (!c.asked.chat)
        bad = cli_fail(app, "unsupported", "tinkc sample --raw continues plain text",
                       "this model has no chat format");
    if (!bad)
        bad = cli_sampling_options(app, &c.asked, false, &c.how);
    if (!bad && cli_given(app, "load"))
        bad = load_from(&c, cli_text(app, "load"));
    if (!bad && cli_given(app, "system"))
        do_system(&c, cli_text(app, "system"));
    if (!bad && app->stdin_tty)
        converse(&c);
    else if (!bad)
        bad = cli_flag(app, "turns") ? take_turns(&c) : take_input(&c);
    if (!bad && cli_given(app, "save"))
        bad = save_to(&c, cli_text(app, "save"));
    cli_free_sampling(&c.how);
    cli_asked_free(&c.asked);
    return bad ? bad : c.exit_code;
}
