/* test_service_transcripts.c - conversations with a service, word for word.
 *
 * Each file in tests/data/transcripts is a script and what was answered:
 *
 *     > POST /api/v1/create_session {"tags":[]}      a request
 *     < 200 application/json {"session_id":"$s"}     its answer; other headers follow the type
 *     * POST /api/v1/optim_step ...                  a request, and then its result
 *     : name text                                    $name is this text
 *     = s session_id                                 $s is that field of the last answer from here on
 *     ~ X-Header: value                              a header of the next request
 *     @ owner KEY_ID                                 who asks from here on
 *     + SECONDS                                      time passes; a second does before each request
 *     ? NAME NAME                                    these numbers of the status
 *     ! quota REQUESTS TOKENS BYTES                  what the owner may use; 0 = all
 *     ! openai                                       a restart with models/nano, and texts for it
 *     ! set NAME VALUE                               a restart with this setting
 *     ! restart                                      the service ends and starts again on its store
 *     ! SELECT ...                                   rows of its database, after an end; then a start
 *     # a comment
 *
 * Time and random numbers are the script's, every request waits for its answer, and polls are held
 * until there is one: so all of it is the same in every run. What depends on the machine's
 * arithmetic is not compared: results of longer sums are written as #, sampled tokens as their number.
 * TINKC_WRITE_TRANSCRIPTS=1 writes the answers into the files; read them before you keep them.
 */
#include <ctype.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/thread.h"
#include "service/service.h"
#include "support/check.h"
#include "support/counting.h"
#include "support/tiny_model.h"

/* ---- time and chance ---- */

static _Atomic int64_t now_us;
static _Atomic uint64_t n_random;
static struct {
    pthread_mutex_t lock;
    void (*wake)(void *arg);
    void *arg;
} sleeper = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void nothing(void *self)
{
    (void)self;
}
static int64_t script_ms(void *self)
{
    (void)self;
    return atomic_load(&now_us) / 1000;
}
static int64_t script_us(void *self)
{
    (void)self;
    return atomic_load(&now_us);
}
static uint64_t script_random(void *self)
{
    (void)self;
    return (atomic_fetch_add(&n_random, 1) + 1) * 0x9E3779B97F4A7C15u;
}
static void script_attach(void *self, void (*wake)(void *arg), void *arg)
{
    (void)self;
    pthread_mutex_lock(&sleeper.lock);
    sleeper.wake = wake;
    sleeper.arg = arg;
    pthread_mutex_unlock(&sleeper.lock);
}
static void script_detach(void *self, void *arg)
{
    (void)arg;
    script_attach(self, NULL, NULL);
}

static const tinkc_clock script_clock = { .acquire = nothing,
                                          .release = nothing,
                                          .now_ms = script_ms,
                                          .wall_us = script_us,
                                          .random = script_random,
                                          .attach = script_attach,
                                          .detach = script_detach };

static void pass_time(const char *seconds)
{
    atomic_fetch_add(&now_us, (int64_t)(strtod(seconds, NULL) * 1e6));
    pthread_mutex_lock(&sleeper.lock);
    if (sleeper.wake)
        sleeper.wake(sleeper.arg);
    pthread_mutex_unlock(&sleeper.lock);
}

/* ---- the world ---- */

enum { MAX_NAMES = 64 };

static struct {
    char *model, *store;
    tinkc_engine *engine;
    char owner[64], key_id[TKE_KEY_ID];
    bool openai;      /* models/nano too, and its texts */
    char set[2][100]; /* a setting, or "" */
    counting memory;  /* of the service */
    tinkc_allocator allocator;
    struct {
        char name[16], value[400];
    } names[MAX_NAMES];
    size_t n_names;
    char header[2][200]; /* of the next request */
    tkc_buf last;        /* the last answer's headers and body */
} world;

/* All of its memory comes back, in the sizes in which it was taken. */
static void end_service(void)
{
    tinkc_engine_free(world.engine);
    assert_int_equal(atomic_load(&world.memory.bytes), 0);
    assert_null(sleeper.wake);
}

static void start_service(void)
{
    tinkc_error err = { 0 };
    const char *const settings[] = { "disk_reserve",
                                     "0",
                                     "jwt_auth",
                                     "on",
                                     "autosave_s",
                                     "1000000",
                                     "openai",
                                     world.openai ? "on" : "off",
                                     world.set[0][0] ? world.set[0] : NULL,
                                     world.set[1],
                                     NULL };
    world.engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1,
                                                             .store = world.store,
                                                             .durability = TINKC_DURABILITY_JOURNAL,
                                                             .memory_bytes = 1 << 30,
                                                             .clock = &script_clock,
                                                             .allocator = &world.allocator,
                                                             .settings = settings },
                                    &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(world.engine, "org/tiny", world.model, &err));
    assert_true(!world.openai || tinkc_engine_add_model(world.engine, "nano", "models/nano", &err));
}

static int open_world(void **state)
{
    (void)state;
    atomic_store(&now_us, 1700000000000000);
    atomic_store(&n_random, 0);
    world.n_names = 0;
    world.openai = false;
    world.set[0][0] = '\0';
    world.allocator = counting_allocator(&world.memory);
    strcpy(world.owner, "default");
    world.key_id[0] = world.header[0][0] = '\0';
    world.model = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 32 });
    world.store = tiny_folder();
    tkc_buf_init(&world.last, NULL, TKC_BUF_NO_MAX);
    start_service();
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    end_service();
    tkc_buf_free(&world.last);
    tiny_model_remove(world.model);
    tiny_model_remove(world.store);
    return 0;
}

/* ---- names for values ---- */

/* "$s" -> its value */
static void expand(const char *text, tkc_buf *out)
{
    tinkc_error err = { 0 };
    while (*text) {
        size_t best = MAX_NAMES, len = 0;
        for (size_t i = 0; *text == '$' && i < world.n_names; i++)
            if (strncmp(text + 1, world.names[i].name, strlen(world.names[i].name)) == 0 &&
                strlen(world.names[i].name) > len)
                best = i, len = strlen(world.names[i].name);
        if (best < MAX_NAMES)
            tkc_buf_cstr(out, world.names[best].value, &err);
        else
            tkc_buf_char(out, *text, &err);
        text += best < MAX_NAMES ? len + 1 : 1;
    }
    assert_non_null(tkc_buf_terminate(out, &err));
}

static bool put_if(const char **at, const char *value, const char *sign, tkc_buf *out)
{
    tinkc_error err = { 0 };
    if (!*value || strncmp(*at, value, strlen(value)) != 0)
        return false;
    tkc_buf_cstr(out, sign, &err);
    *at += strlen(value);
    return true;
}

/* A number that is the result of a longer sum, with more than four digits and a fraction or an
 * exponent: where it ends, or NULL. */
static const char *fraction(const char *at)
{
    bool odd = false;
    int digits = 0;
    const char *p = at + (*at == '-');
    if (!isdigit((unsigned char)*p))
        return NULL;
    for (; isdigit((unsigned char)*p) || *p == '.' || *p == 'e' || *p == '-' || *p == '+'; p++) {
        odd |= *p == '.' || *p == 'e';
        digits += isdigit((unsigned char)*p) && (digits || *p != '0');
    }
    return odd && digits > 4 && strchr(",]}", *p) ? p : NULL;
}

/* Values become names again, and what machines disagree about is left out. */
static void contract(const char *text, tkc_buf *out)
{
    static const char sampled[] = "\"tokens\":[";
    tinkc_error err = { 0 };
    for (const char *at = text; *at;) {
        char sign[20];
        size_t i = 0, best = MAX_NAMES, len = 0;
        for (; i < world.n_names; i++) /* the longest */
            if (strncmp(at, world.names[i].value, strlen(world.names[i].value)) == 0 &&
                strlen(world.names[i].value) > len)
                best = i, len = strlen(world.names[i].value);
        if (best < MAX_NAMES) {
            snprintf(sign, sizeof sign, "$%s", world.names[best].name);
            put_if(&at, world.names[best].value, sign, out);
            continue;
        }
        if (put_if(&at, world.model, "MODEL", out) || put_if(&at, world.store, "STORE", out))
            continue;
        if (strncmp(at, sampled, sizeof sampled - 1) == 0) {
            size_t n = 1;
            for (at += sizeof sampled - 1; *at && *at != ']'; at++)
                n += *at == ',';
            tkc_buf_printf(out, &err, "\"tokens\":[%zu of them", n);
            continue;
        }
        if (put_if(&at, "\"token_id\":", "\"token_id\":#", out) ||
            put_if(&at, "\"fingerprint\":\"", "\"fingerprint\":\"#", out)) {
            at += strspn(at, "0123456789abcdef");
            continue;
        }
        size_t id = *at == '[' ? strspn(at + 1, "0123456789") : 0;
        if (id && at[id + 1] == ',' && fraction(at + id + 2)) { /* a token and its log-prob */
            tkc_buf_cstr(out, "[?", &err);
            at += id + 1;
            continue;
        }
        bool value = at > text && strchr(":[,", at[-1]);
        const char *end = value ? fraction(at) : NULL;
        tkc_buf_char(out, end ? '#' : *at, &err);
        at = end ? end : at + 1;
    }
    assert_non_null(tkc_buf_terminate(out, &err));
}

static void name_it(const char *name, const char *value, size_t len)
{
    size_t i = 0;
    while (i < world.n_names && strcmp(world.names[i].name, name) != 0)
        i++;
    assert_true(i < MAX_NAMES && strlen(name) < sizeof world.names[0].name &&
                len < sizeof world.names[0].value);
    snprintf(world.names[i].name, sizeof world.names[i].name, "%s", name);
    snprintf(world.names[i].value, sizeof world.names[i].value, "%.*s", (int)len, value);
    world.n_names += i == world.n_names;
}

/* The text or number behind "field": in the last answer, or the digits behind the bare field. */
static void remember(const char *name, const char *field)
{
    char mark[80];
    snprintf(mark, sizeof mark, "\"%s\":", field);
    const char *at = strstr(world.last.data, mark);
    if (at) {
        at += strlen(mark);
        at += *at == '"';
        name_it(name, at, strcspn(at, "\",}"));
        return;
    }
    at = strstr(world.last.data, field); /* digits behind a text, as in a link */
    if (!at)
        fail_msg("no %s in %s", field, world.last.data);
    at += strlen(field);
    name_it(name, at, strspn(at, "0123456789abcdef"));
}

/* ---- requests ---- */

typedef struct waiting {
    tinkc_reply reply;
    pthread_mutex_t lock;
    pthread_cond_t over;
    int32_t status;
    tkc_buf head, body;
    bool done;
} waiting;

static waiting *of(tinkc_reply *r)
{
    return (waiting *)(void *)r;
}
static void on_status(tinkc_reply *r, int32_t status)
{
    of(r)->status = status;
}
static void on_header(tinkc_reply *r, const char *name, const char *value)
{
    tinkc_error err = { 0 };
    bool type = strcmp(name, "Content-Type") == 0;
    tkc_buf_printf(&of(r)->head, &err, type ? " %s%s" : " %s: %s", type ? "" : name, value);
}
static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    tinkc_error err = { 0 };
    return tkc_buf_add(&of(r)->body, data, len, &err);
}
static void on_end(tinkc_reply *r)
{
    waiting *w = of(r);
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->over);
    pthread_mutex_unlock(&w->lock);
}
static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    (void)code, (void)message;
    of(r)->status = 0;
    on_end(r);
}

static void send_and_wait(waiting *w, const tinkc_request *request)
{
    tinkc_error err = { 0 };
    const tke_caller caller = { .owner = world.owner, .key_id = world.key_id };
    *w = (waiting){ .reply = { .status = on_status,
                               .header = on_header,
                               .write = on_write,
                               .end = on_end,
                               .fail = on_fail } };
    pthread_mutex_init(&w->lock, NULL);
    assert_true(tkc_cond_init(&w->over, &err));
    tkc_buf_init(&w->head, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&w->body, NULL, TKC_BUF_NO_MAX);
    tke_service_handle(tke_engine_service(world.engine), request, &w->reply, &caller,
                       world.openai ? TKE_CALL_OPENAI : 0);
    int64_t deadline = tkc_deadline_ns(120000);
    pthread_mutex_lock(&w->lock);
    while (!w->done && tkc_cond_wait_until(&w->over, &w->lock, deadline))
        ;
    bool done = w->done;
    pthread_mutex_unlock(&w->lock);
    if (!done)
        fail_msg("%s %s: no answer", request->method, request->path);
    assert_non_null(tkc_buf_terminate(&w->head, &err));
    assert_non_null(tkc_buf_terminate(&w->body, &err));
}

/* "METHOD PATH BODY" -> the line of its answer */
static void ask(const char *line, tkc_buf *out)
{
    tinkc_error err = { 0 };
    tkc_buf text, answer;
    waiting w;
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&answer, NULL, TKC_BUF_NO_MAX);
    expand(line, &text);
    char *method = text.data, *path = strchr(method, ' '), *body;
    assert_non_null(path);
    *path++ = '\0';
    body = path + strcspn(path, " ");
    if (*body)
        *body++ = '\0';
    const char *headers[] = { "Content-Type", "application/json", world.header[0], world.header[1],
                              NULL };
    if (!world.header[0][0])
        headers[2] = NULL;
    send_and_wait(&w, &(tinkc_request){ .method = method,
                                        .path = path,
                                        .base_url = "http://here",
                                        .headers = headers,
                                        .body = { (const unsigned char *)body, strlen(body) } });
    bool is_text = strlen(w.body.data) == w.body.len;
    tkc_buf_printf(&answer, &err, "%d%s", (int)w.status, w.head.data);
    if (is_text && w.body.len)
        tkc_buf_printf(&answer, &err, " %s", w.body.data);
    else if (w.body.len)
        tkc_buf_printf(&answer, &err, " (%zu bytes)", w.body.len);
    for (size_t i = 0; i < answer.len; i++)
        answer.data[i] = answer.data[i] == '\n' || answer.data[i] == '\r' ? '|' : answer.data[i];
    assert_non_null(tkc_buf_terminate(&answer, &err));
    contract(answer.data, out);
    tkc_buf_clear(&world.last);
    tkc_buf_printf(&world.last, &err, "%s %s", w.head.data, w.body.data);
    assert_non_null(tkc_buf_terminate(&world.last, &err));
    world.header[0][0] = '\0';
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.over);
    tkc_buf_free(&w.head);
    tkc_buf_free(&w.body);
    tkc_buf_free(&text);
    tkc_buf_free(&answer);
}

/* ---- rows ---- */

static void put_row(sqlite3_stmt *row, tkc_buf *out)
{
    tinkc_error err = { 0 };
    tkc_buf text;
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    for (int i = 0; i < sqlite3_column_count(row); i++) {
        if (i)
            tkc_buf_cstr(&text, " | ", &err);
        if (sqlite3_column_type(row, i) == SQLITE_BLOB) {
            const unsigned char *bytes = sqlite3_column_blob(row, i);
            for (int k = 0; k < sqlite3_column_bytes(row, i); k++)
                tkc_buf_printf(&text, &err, "%02x", bytes[k]);
            continue;
        }
        const char *cell = (const char *)sqlite3_column_text(row, i);
        tkc_buf_cstr(&text, cell ? cell : "-", &err);
    }
    assert_non_null(tkc_buf_terminate(&text, &err));
    tkc_buf_cstr(out, "< ", &err);
    contract(text.data, out);
    tkc_buf_char(out, '\n', &err);
    tkc_buf_free(&text);
}

static void dump(const char *sql, tkc_buf *out)
{
    char path[500];
    sqlite3 *db = NULL;
    sqlite3_stmt *rows = NULL;
    snprintf(path, sizeof path, "%s/meta.db", world.store);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &rows, NULL), SQLITE_OK);
    while (sqlite3_step(rows) == SQLITE_ROW)
        put_row(rows, out);
    sqlite3_finalize(rows);
    sqlite3_close(db);
}

/* ---- the script ---- */

/* "requests tokens storage" */
static void set_quota(const char *text)
{
    char *rest;
    tke_quota q = { .requests_per_minute = strtoll(text, &rest, 10) };
    q.tokens_per_day = strtoll(rest, &rest, 10);
    q.storage_bytes = strtoll(rest, NULL, 10);
    tke_service_set_quota(tke_engine_service(world.engine), world.owner, &q);
}

static void command(const char *what, tkc_buf *out)
{
    if (strncmp(what, "quota ", 6) == 0) {
        set_quota(what + 6);
        return;
    }
    end_service();
    if (strncmp(what, "SELECT ", 7) == 0)
        dump(what, out);
    else if (strcmp(what, "openai") == 0)
        world.openai = true;
    else if (strncmp(what, "set ", 4) == 0)
        assert_int_equal(sscanf(what, "set %99s %99s", world.set[0], world.set[1]), 2);
    else
        assert_string_equal(what, "restart");
    start_service();
}

/* Some numbers of the status: "a b" -> "a=1 b=2" */
static void show_status(char *names, tkc_buf *out)
{
    tinkc_error err = { 0 };
    tinkc_text text = { 0 };
    char mark[80], *rest = NULL;
    const char *status = tinkc_engine_status(world.engine, &text, &err);
    tkc_buf_char(out, '<', &err);
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        snprintf(mark, sizeof mark, "\"%s\":", name);
        const char *at = strstr(status, mark);
        assert_non_null(at);
        at += strlen(mark);
        tkc_buf_printf(out, &err, " %s=%.*s", name, (int)strcspn(at, ",}"), at);
    }
    tkc_buf_char(out, '\n', &err);
    tinkc_text_free(&text);
}

/* Does what a line says; what is answered is appended. */
static void act(char *line, tkc_buf *out)
{
    tinkc_error err = { 0 };
    char *rest = line[0] && line[1] ? line + 2 : line, *space = strchr(rest, ' ');
    switch (line[0]) {
    case '>':
        pass_time("1");
        tkc_buf_cstr(out, "< ", &err);
        ask(rest, out);
        tkc_buf_char(out, '\n', &err);
        break;
    case '*': {
        pass_time("1");
        tkc_buf_cstr(out, "< ", &err);
        ask(rest, out);
        tkc_buf_cstr(out, "\n", &err);
        if (!strstr(world.last.data, "\"request_id\":"))
            break; /* refused at once */
        tkc_buf_cstr(out, "< ", &err);
        remember("future", "request_id");
        ask("POST /api/v1/retrieve_future {\"request_id\":\"$future\"}", out);
        world.n_names -= strcmp(world.names[world.n_names - 1].name, "future") == 0;
        tkc_buf_char(out, '\n', &err);
        break;
    }
    case ':':
        *space = '\0';
        name_it(rest, space + 1, strlen(space + 1));
        break;
    case '=':
        *space = '\0';
        remember(rest, space + 1);
        break;
    case '~': {
        char *colon = strchr(rest, ':');
        snprintf(world.header[0], sizeof world.header[0], "%.*s", (int)(colon - rest), rest);
        snprintf(world.header[1], sizeof world.header[1], "%s", colon + 2);
        break;
    }
    case '@':
        snprintf(world.owner, sizeof world.owner, "%.*s", (int)strcspn(rest, " "), rest);
        snprintf(world.key_id, sizeof world.key_id, "%s", space ? space + 1 : "");
        break;
    case '+':
        pass_time(rest);
        break;
    case '?': {
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        show_status(tkc_arena_cstr(&arena, rest, &err), out);
        tkc_arena_free(&arena);
        break;
    }
    case '!':
        command(rest, out);
        break;
    default:
        assert_true(line[0] == '#' || line[0] == '\0');
    }
}

static void play(void **state)
{
    const char *name = *state;
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_buf now;
    char path[300];
    size_t number = 0;
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_init(&now, NULL, TKC_BUF_NO_MAX);
    snprintf(path, sizeof path, "tests/data/transcripts/%s.txt", name);
    open_world(state);
    tinkc_bytes file = tkc_read_file(&arena, path, 1 << 22, &err);
    assert_ok(err);
    tinkc_str rest = tkc_strn((const char *)file.data, file.len), line;
    bool write = getenv("TINKC_WRITE_TRANSCRIPTS") != NULL;
    while (rest.len && tkc_str_cut(&rest, '\n', &line)) {
        number++;
        if (tkc_starts_with(line, "<"))
            continue;
        char *text = tkc_arena_str(&arena, line, &err);
        tkc_buf_printf(&now, &err, "%s\n", text);
        size_t from = now.len;
        act(text, &now);
        bool same = rest.len >= now.len - from &&
                    (now.len == from || memcmp(rest.data, now.data + from, now.len - from) == 0) &&
                    (rest.len == now.len - from || rest.data[now.len - from] != '<');
        if (!same && !write)
            fail_msg("%s:%zu: %s\n%.*s---\n%.*s", path, number, text, (int)(now.len - from),
                     now.data + from, (int)(rest.len < 1500 ? rest.len : 1500), rest.data);
    }
    if (write)
        assert_true(tkc_write_file(path, now.data, now.len, 0644, &err));
    close_world(state);
    tkc_buf_free(&now);
    tkc_arena_free(&arena);
}

#define TRANSCRIPT(name)                                                                           \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        play(&(void *){ #name });                                                                  \
    }
TRANSCRIPT(small)
TRANSCRIPT(training)
TRANSCRIPT(checkpoints)
TRANSCRIPT(sessions)
TRANSCRIPT(sampling)
TRANSCRIPT(owners)
TRANSCRIPT(downloads)
TRANSCRIPT(order)
TRANSCRIPT(quotas)
TRANSCRIPT(settings)

static void openai(void **state)
{
    tinkc_error err = { 0 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    bool on, possible = tke_service_openai(tke_engine_service(engine), true, &on, &err);
    (void)state;
    tinkc_engine_free(engine);
    if (!possible) /* built without tokenizers */
        skip();
    play(&(void *){ "openai" });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small),     cmocka_unit_test(training), cmocka_unit_test(checkpoints),
        cmocka_unit_test(sessions),  cmocka_unit_test(sampling), cmocka_unit_test(owners),
        cmocka_unit_test(downloads), cmocka_unit_test(order),    cmocka_unit_test(quotas),
        cmocka_unit_test(settings),  cmocka_unit_test(openai),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
