/* test_service_rules.c - rules of the service, in conversations with it.
 *
 * Each file in tests/data/service_rules is about one subject; a comment in it is a rule, and the lines below it are a
 * table of what shows it: what is sent, and what the caller gets.
 *
 *     > create_session {"tags":[]}  =>  {"session_id":"$s"}
 *                                                    a request and its answer; POST and /api/v1/ are left out,
 *                                                    and of an answer "200 application/json"
 *     > DELETE training_runs/none  =>  404 not_found: No training run 'none'
 *                                                    a refusal is its status, code and detail
 *     > $r with "seed":5 as "seed":6               the request in $r with another part
 *     * optim_step {...}                             a request that is accepted, and its result
 *     < user: adam_params is missing                 answers may stand below; a result that is an error is its
 *                                                    category and text; more lines follow a line that ends in \
 *     < {"checkpoints":[...]}                        ... stands for any text: what the rule is not about
 *     ! session s {"tags":["t"]}                     $s is a new session, made with these members or the usual ones
 *     ! model m $s 0 4 7                             $m is a new model of it: its number, rank and seed
 *     ! sampler x $s 0                               $x is a sampling session of it: its number
 *     : name text                                    $name is this text; $in, $out, $w, $p, $one, $adam, $pass: usual
 *     = s session_id                                 $s is that field of the last answer from here on
 *     ~ X-Header: value                              a header of the next request; Content-Encoding: zstd
 *                                                    compresses a body that begins with @
 *     | name retrieve_future ...                     a request whose answer is not awaited yet
 *     o asample ...                                  a request whose first allocation fails, then its second, and so
 *                                                    on: refusals for another reason, and the last status
 *     O, t, w                                        the same; all allocations from the first one on fail,
 *                                                    from the second one on; those of the threads for texts;
 *                                                    those of the worker
 *     - name                                         it has no answer
 *     , name                                         waits for more of its answer: a stream's
 *     x name                                         its client hangs up
 *     r name                                         its client has room for more, after ! full
 *     . name                                         its answer
 *     @ owner KEY_ID                                 who asks from here on
 *     + SECONDS                                      time passes; a second does before each request
 *     ? NAME NAME                                    these numbers and lists of the owner's status
 *     ! quota REQUESTS TOKENS BYTES                  what the owner may use; 0 = all
 *     ! upkeep                                       what the housekeeper does at this time, all of it
 *     ! files                                        the files of each folder in the store, (0) = empty, after an
 *                                                    end; then a start
 *     ! sql UPDATE ...                               a change of its database, after an end; then a start
 *     ! sh rm ...                                    the same of its files: a command in the store
 *     ! check, ! repair                              what tinkc_store_check reports, after an end; then a start
 *     ! expire PATH                                  the time of a checkpoint is over; a minute of the script
 *                                                    may pass until it is removed
 *     ! pending PATH                                 a checkpoint is being written; again: it is written
 *     ! hold, ! go                                   the device computes nothing; it works again
 *     ! held                                         waits until the device is asked to compute
 *     ! stall, ! flow                                the thread that writes files stops; it works again
 *     ! stop                                         a restart; files are written again when a request is answered
 *     ! now rm ...                                   a command in the store while the service runs
 *     ! flush                                        writes images of all models: what tinkc_engine_flush says
 *     ! far, ! left                                  requests come from a connection that is there; it is closed
 *     ! drain                                        the server begins to stop
 *     ! break, ! fix                                 whatever the device is asked to compute fails
 *     ! threadless, ! threads                        no thread can be started; they can again
 *     ! unplug, ! plug                               the device cannot load a model; it can again
 *     ! openai                                       a restart with models/nano, and texts for it
 *     ! ends TOKEN                                   the same; nano's tokenizer ends texts with it
 *     ! begins TOKEN                                 the same; nano's tokenizer begins texts with it
 *     ! vocab TEXT                                   the same, and TEXT is every token of org/tiny
 *     ! strict                                       a restart with the official service's rules
 *     ! full                                         clients have no room for more of a stream
 *     ! deaf BYTES                                   clients take so many bytes of an answer; 0 = all
 *     ! level N                                      a restart with this durability
 *     ! set NAME VALUE [NAME VALUE]                  a restart with these settings
 *     ! restart                                      the service ends and starts again on its store
 *     ! SELECT ...                                   rows of its database, after an end; then a start
 *     & name                                         what follows is on the service that this file leaves behind
 *     # a comment
 * In a request, $MODEL is the folder of org/tiny, and $(3 TEXT) is TEXT three times.
 *
 * What all answers share is checked for each of them (ask_end): a result names its request, an accepted request is
 * answered with its id, and one that lacks memory is refused with 503 memory.
 * Time and random numbers are the script's, every request waits for its answer, and polls are held
 * until there is one: so all of it is the same in every run. What depends on the machine's
 * arithmetic is not compared: results of longer sums are written as #, sampled tokens as their number.
 */
#include <ctype.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"
#include "base/thread.h"
#include "codec/zstd.h"
#include "service/core/housekeeping.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service.h"
#include "service/core/service_state.h"
#include "service/core/usage.h"
#include "service/handlers/downloads.h"
#include "service/handlers/long_requests.h"
#include "service/worker/worker_state.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "support/patience.h"
#include "support/scarce.h"
#include "support/service/device_gate.h"
#include "tinkc/engine.h"
#include "tinkc/sys/transport.h"
#include "tinkc/types.h"

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
    atomic_fetch_add(&now_us, (int64_t)(strtod(seconds, NULL) * 1e6 + 0.5));
    pthread_mutex_lock(&sleeper.lock);
    if (sleeper.wake)
        sleeper.wake(sleeper.arg);
    pthread_mutex_unlock(&sleeper.lock);
}

/* ---- memory ---- */

static scarce memory; /* of the service; the tester's thread is the one that runs out */

/* A thread that waits at its next allocation until it is released. */
static _Thread_local bool stops_here;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool reached, released;
} stop = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void stop_here(void)
{
    stops_here = false;
    pthread_mutex_lock(&stop.lock);
    stop.reached = true;
    pthread_cond_broadcast(&stop.changed);
    while (!stop.released)
        pthread_cond_wait(&stop.changed, &stop.lock);
    pthread_mutex_unlock(&stop.lock);
}

static void *stopping_alloc(size_t size, void *user)
{
    if (stops_here)
        stop_here();
    return scarce_alloc(size, user);
}
static void *stopping_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    if (stops_here)
        stop_here();
    return scarce_resize(ptr, old_size, new_size, user);
}
static const tinkc_allocator allocator = { stopping_alloc, stopping_resize, scarce_release, &memory };

/* ---- threads ---- */

static atomic_bool no_threads; /* none can be started */

bool __real_tkc_thread_start(pthread_t *, void *(*run)(void *), void *arg, const char *name, tinkc_error *err);
bool __wrap_tkc_thread_start(pthread_t *, void *(*run)(void *), void *arg, const char *name, tinkc_error *err);
bool __wrap_tkc_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name, tinkc_error *err)
{
    return atomic_load(&no_threads) ? tkc_fail(err, TINKC_E_MEMORY, "no thread can be started")
                                    : __real_tkc_thread_start(thread, run, arg, name, err);
}

/* ---- the thread that writes files ---- */

static struct {
    tkc_job base; /* runs while the thread is stopped */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopped, inside;
    _Atomic bool until_answer; /* an answer lets it continue */
} stalled = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void stand_still(tkc_job *job)
{
    (void)job;
    pthread_mutex_lock(&stalled.lock);
    while (stalled.stopped)
        pthread_cond_wait(&stalled.changed, &stalled.lock);
    stalled.inside = false;
    pthread_cond_broadcast(&stalled.changed);
    pthread_mutex_unlock(&stalled.lock);
}

static void stall(tkc_pool *files)
{
    tinkc_error err = { 0 };
    stalled.stopped = stalled.inside = true;
    stalled.base = (tkc_job){ .run = stand_still };
    assert_true(tkc_pool_submit(files, &stalled.base, &err));
}

static void flow(void)
{
    pthread_mutex_lock(&stalled.lock);
    stalled.stopped = false;
    pthread_cond_broadcast(&stalled.changed);
    while (stalled.inside)
        pthread_cond_wait(&stalled.changed, &stalled.lock);
    pthread_mutex_unlock(&stalled.lock);
}

/* ---- the world ---- */

enum { MAX_NAMES = 64, MAX_OPEN = 8 };

static struct {
    char *model, *store;
    tinkc_engine *engine;
    char owner[64], key_id[TKE_KEY_ID];
    bool openai; /* models/nano too, and its texts */
    char *nano;  /* a copy in its place, or NULL */
    bool strict;
    uint32_t flags;   /* TKE_CALL_* of every request */
    atomic_bool full; /* clients have no room */
    size_t deaf;      /* clients take so many bytes of an answer; 0 = all */
    char set[4][100]; /* two settings, or "" */
    int32_t durability;
    struct {
        char name[16], value[2000];
    } names[MAX_NAMES];
    size_t n_names;
    char header[2][300]; /* of the next request */
    tkc_buf last;        /* the last answer's headers and body */
    struct {
        char name[16];
        struct waiting *w; /* NULL: free */
    } open[MAX_OPEN];
    struct waiting *past; /* answered; kept until nobody can use them any more */
} world;

static void forget_past(void);

/* All of its memory comes back, in the sizes in which it was taken, and no file of it stays mapped. */
static void end_service(void)
{
    char line[1000];
    gate_set(false, false);
    if (!atomic_load(&stalled.until_answer))
        flow();
    tinkc_engine_free(world.engine);
    forget_past();
    assert_int_equal(atomic_load(&memory.all.bytes), 0);
    assert_int_equal(atomic_load(&gate.n_made), 0); /* nor is anything left on the device */
    assert_null(sleeper.wake);
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        assert_null(strstr(line, world.store));
    fclose(maps);
}

static void start_service(void)
{
    tinkc_error err = { 0 };
    const char *const settings[] = { "disk_reserve",
                                     "0",
                                     "jwt_auth",
                                     "on",
                                     "max_temperature",
                                     "9e18", /* texts of any token */
                                     "autosave_s",
                                     "1000000",
                                     "openai",
                                     world.openai ? "on" : "off",
                                     world.set[0][0] ? world.set[0] : NULL,
                                     world.set[1],
                                     world.set[2][0] ? world.set[2] : NULL,
                                     world.set[3],
                                     NULL };
    world.engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1,
                                                             .store = world.store,
                                                             .durability = world.durability,
                                                             .memory_bytes = 1 << 30,
                                                             .strict = world.strict,
                                                             .clock = &script_clock,
                                                             .allocator = &allocator,
                                                             .settings = settings },
                                    &err);
    assert_ok(err);
    gate_put(tke_engine_service(world.engine)->device);
    assert_true(tinkc_engine_add_model(world.engine, "org/tiny", world.model, &err));
    assert_true(!world.openai ||
                tinkc_engine_add_model(world.engine, "nano", world.nano ? world.nano : "models/nano", &err));
}

/* What requests are made of. */
static const char *const usual[][2] = {
    { "in", "\"model_input\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2,3]}]}" },
    { "out", "\"target_tokens\":{\"data\":[2,3,4],\"dtype\":\"int64\"}" },
    { "w", "\"weights\":{\"data\":[1,0,1],\"dtype\":\"float32\"}" },
    { "p", "\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2,3]}]}" },
    { "one", "\"sampling_params\":{\"max_tokens\":1,\"seed\":5,\"stop\":[]}" },
    { "adam", "\"adam_params\":{\"learning_rate\":0.01}" },
    { "pass", "\"forward_backward_input\":{\"loss_fn\":\"cross_entropy\",\"data\":[{\"model_input\":{"
              "\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2,3]}]},\"loss_fn_inputs\":{"
              "\"target_tokens\":{\"data\":[2,3,4],\"dtype\":\"int64\"},"
              "\"weights\":{\"data\":[1,0,1],\"dtype\":\"float32\"}}}]}" },
};

static void name_it(const char *name, const char *value, size_t len);

static void open_world(void)
{
    atomic_store(&now_us, 1700000000000000);
    atomic_store(&n_random, 0);
    world.n_names = 0;
    world.openai = world.strict = false;
    world.flags = 0;
    world.full = false;
    world.deaf = 0;
    world.set[0][0] = world.set[2][0] = '\0';
    world.durability = TINKC_DURABILITY_JOURNAL;
    memory.thread = pthread_self();
    strcpy(world.owner, "default");
    world.key_id[0] = world.header[0][0] = '\0';
    world.model = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 32 });
    world.store = tiny_folder();
    tkc_buf_init(&world.last, NULL, TKC_BUF_NO_MAX);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        name_it(usual[i][0], usual[i][1], strlen(usual[i][1]));
    start_service();
}

static void close_world(void)
{
    end_service();
    tkc_buf_free(&world.last);
    tiny_model_remove(world.model);
    tiny_model_remove(world.store);
    if (world.nano)
        tiny_model_remove(world.nano);
    world.nano = NULL;
}

/* ---- names for values ---- */

static void expand(const char *text, tkc_buf *out);

/* "$(3 TEXT)": three times what TEXT stands for. Where it ends, or NULL. */
static const char *repeat(const char *text, tkc_buf *out)
{
    char *part = NULL, *end = strchr(text, ')');
    if (text[0] != '$' || text[1] != '(' || !end)
        return NULL;
    size_t times = strtoul(text + 2, &part, 10);
    char *once = strndup(part + 1, (size_t)(end - part - 1));
    for (size_t i = 0; i < times; i++)
        expand(once, out);
    free(once);
    return end + 1;
}

/* "$s" -> its value */
static void expand(const char *text, tkc_buf *out)
{
    tinkc_error err = { 0 };
    while (*text) {
        const char *past = repeat(text, out);
        if (past) {
            text = past;
            continue;
        }
        size_t best = MAX_NAMES, len = 0;
        for (size_t i = 0; *text == '$' && i < world.n_names; i++)
            if (strncmp(text + 1, world.names[i].name, strlen(world.names[i].name)) == 0 &&
                strlen(world.names[i].name) > len)
                best = i, len = strlen(world.names[i].name);
        bool model = strncmp(text, "$MODEL", 6) == 0;
        if (model)
            tkc_buf_cstr(out, world.model, &err);
        else if (best < MAX_NAMES)
            tkc_buf_cstr(out, world.names[best].value, &err);
        else
            tkc_buf_char(out, *text, &err);
        text += model ? 6 : best < MAX_NAMES ? len + 1 : 1;
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
        if (put_if(&at, world.model, "MODEL", out) || put_if(&at, world.store, "STORE", out) ||
            put_if(&at, strrchr(world.store, '/') + 1, "STORE", out))
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
        if (put_if(&at, "\"size_gigabytes\":", "\"size_gigabytes\":", out)) {
            const char *past = at + strcspn(at, ",}");
            tkc_buf_printf(out, &err, "%.*s", (int)(past - at), at);
            at = past;
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
    assert_true(i < MAX_NAMES && strlen(name) < sizeof world.names[0].name && len < sizeof world.names[0].value);
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
    struct waiting *next; /* of those that are answered */
    int n_ends;
    pthread_mutex_t lock;
    pthread_cond_t over;
    int32_t status;
    tkc_buf head, body;
    size_t shown; /* of the body */
    bool done, asked_room;
    tkc_buf text; /* the request, which the service borrows */
    tkc_buf packed;
    char id[200]; /* of the request whose result is asked for, or "" */
    char header[2][300];
    const char *headers[5];
    tinkc_request request;
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
/* A stream looks at the room first and writes no more. */
enum { ROOM = 50 };
static size_t on_room(tinkc_reply *r)
{
    of(r)->asked_room = true;
    return atomic_load(&world.full) ? 0 : ROOM;
}
static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    tinkc_error err = { 0 };
    assert_true(len <= ROOM || !of(r)->asked_room);
    of(r)->asked_room = false;
    pthread_mutex_lock(&of(r)->lock);
    bool ok = (!world.deaf || of(r)->body.len + len <= world.deaf) && tkc_buf_add(&of(r)->body, data, len, &err);
    pthread_cond_signal(&of(r)->over);
    pthread_mutex_unlock(&of(r)->lock);
    return ok;
}
static void on_end(tinkc_reply *r)
{
    waiting *w = of(r);
    /* What outlives the answer has its own copy of the request. */
    memset((char *)(uintptr_t)w->request.body.data, '#', w->request.body.len);
    if (atomic_exchange(&stalled.until_answer, false))
        flow();
    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->n_ends++;
    pthread_cond_signal(&w->over);
    pthread_mutex_unlock(&w->lock);
}
static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    (void)code;
    of(r)->status = 0;
    tkc_buf_clear(&of(r)->body);
    on_write(r, message, strlen(message));
    on_end(r);
}

static atomic_bool clients_left;
static bool is_gone(tinkc_reply *r)
{
    (void)r;
    return atomic_load(&clients_left);
}

/* "METHOD PATH BODY"; without a method POST, and a path without a slash is below /api/v1/. */
static void write_out(const char *line, tkc_buf *out)
{
    tinkc_error err = { 0 };
    size_t method = strspn(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    bool has = method && line[method] == ' ';
    const char *path = has ? line + method + 1 : line;
    tkc_buf_printf(out, &err, "%.*s %s%s", has ? (int)method : 4, has ? line : "POST", *path == '/' ? "" : "/api/v1/",
                   path);
    assert_non_null(tkc_buf_terminate(out, &err));
}

/* "REQUEST with A as B": B in the place of A. */
static void replace_parts(tkc_buf *request, char *parts)
{
    tinkc_error err = { 0 };
    while (parts) {
        char *a = parts + strlen(" with "), *b = strstr(a, " as ");
        assert_non_null(b);
        *b = '\0';
        b += strlen(" as ");
        parts = strstr(b, " with ");
        if (parts)
            *parts = '\0';
        char *at = strstr(request->data, a), *rest = at ? strdup(at + strlen(a)) : NULL;
        if (!rest)
            fail_msg("no %s in %s", a, request->data);
        request->len = (size_t)(at - request->data);
        tkc_buf_printf(request, &err, "%s%s", b, rest);
        assert_non_null(tkc_buf_terminate(request, &err));
        free(rest);
    }
}

static void read_request(waiting *w, const char *line)
{
    tkc_buf named, whole;
    tkc_buf_init(&named, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&whole, NULL, TKC_BUF_NO_MAX);
    expand(line, &named);
    char *parts = strstr(named.data, " with "), *kept = parts ? strdup(parts) : NULL;
    if (parts)
        *parts = '\0';
    write_out(named.data, &whole);
    replace_parts(&whole, kept);
    tkc_buf_add(&w->text, whole.data, whole.len, &(tinkc_error){ 0 });
    assert_non_null(tkc_buf_terminate(&w->text, &(tinkc_error){ 0 }));
    free(kept);
    tkc_buf_free(&named);
    tkc_buf_free(&whole);
    char *method = w->text.data, *path = strchr(method, ' '), *body;
    *path++ = '\0';
    body = path + strcspn(path, " ");
    if (*body)
        *body++ = '\0';
    const char *id = strstr(body, "\"request_id\":\"");
    if (id && strcmp(path, "/api/v1/retrieve_future") == 0)
        sscanf(id, "\"request_id\":\"%199[^\"]", w->id);
    memcpy(w->header, world.header, sizeof w->header);
    bool has_type = strcmp(w->header[0], "Content-Type") == 0;
    w->headers[0] = has_type ? w->header[0] : "Content-Type";
    w->headers[1] = has_type ? w->header[1] : "application/json";
    w->headers[2] = has_type || !w->header[0][0] ? NULL : w->header[0];
    w->headers[3] = w->header[1];
    w->request = (tinkc_request){ .method = method,
                                  .path = path,
                                  .base_url = "http://here",
                                  .headers = w->headers,
                                  .body = { (const unsigned char *)body, strlen(body) } };
    world.header[0][0] = '\0';
    if (*body == '@' && strcmp(w->header[1], "zstd") == 0) {
        tinkc_error err = { 0 };
        assert_true(tkc_zstd_compress(body + 1, strlen(body + 1), &w->packed, &err));
        w->request.body = (tinkc_bytes){ (const unsigned char *)w->packed.data, w->packed.len };
    }
}

static waiting *ask_begin(const char *line)
{
    tinkc_error err = { 0 };
    char owner[64], key_id[TKE_KEY_ID];
    const tke_caller caller = { .owner = owner, .key_id = key_id };
    memcpy(owner, world.owner, sizeof owner);
    memcpy(key_id, world.key_id, sizeof key_id);
    waiting *w = tkc_zalloc(NULL, sizeof *w, &err);
    assert_non_null(w);
    w->reply = (tinkc_reply){
        .status = on_status, .header = on_header, .write = on_write, .end = on_end, .fail = on_fail, .room = on_room
    };
    pthread_mutex_init(&w->lock, NULL);
    assert_true(tkc_cond_init(&w->over, &err));
    tkc_buf_init(&w->head, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&w->body, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&w->text, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&w->packed, NULL, TKC_BUF_NO_MAX);
    read_request(w, line);
    tke_service_handle(tke_engine_service(world.engine), &w->request, &w->reply, &caller,
                       world.flags | (world.openai ? TKE_CALL_OPENAI : 0));
    /* What is not done yet has its own copy of who asks. */
    memset(owner, '#', sizeof owner - 1);
    memset(key_id, '#', sizeof key_id - 1);
    return w;
}

/* For the end, or for more of the body. */
static void wait_for(waiting *w, bool more)
{
    int64_t deadline = tkc_deadline_ns(120000);
    pthread_mutex_lock(&w->lock);
    while (!w->done && !(more && w->body.len > w->shown) && tkc_cond_wait_until(&w->over, &w->lock, deadline))
        ;
    bool there = w->done || (more && w->body.len > w->shown);
    pthread_mutex_unlock(&w->lock);
    if (!there)
        fail_msg("%s %s: no answer", w->request.method, w->request.path);
}

/* On one line. */
static void put_line(const char *text, size_t len, tkc_buf *out)
{
    tinkc_error err = { 0 };
    tkc_buf line;
    tkc_buf_init(&line, NULL, TKC_BUF_NO_MAX);
    tkc_buf_add(&line, text, len, &err);
    assert_non_null(tkc_buf_terminate(&line, &err));
    for (char *at = line.data; *at; at++)
        *at = *at == '\n' || *at == '\r' ? '|' : *at;
    contract(line.data, out);
    tkc_buf_free(&line);
}

/* A result comes with the id of its request, and nothing else does. */
static void check_id(const waiting *w)
{
    char head[250] = "";
    bool none_yet = strstr(w->body.data, "\"complete_metadata\"") || strstr(w->body.data, "\"type\":\"try_again\"");
    if (w->id[0] && w->status == 200 && !none_yet)
        snprintf(head, sizeof head, " X-Tinker-Request-Id: %s", w->id);
    const char *id = strstr(w->head.data, " X-Tinker-Request-Id: ");
    assert_string_equal(id ? id : "", head);
}

/* Waits for the answer and writes its line; frees the request. */
static void ask_end(waiting *w, tkc_buf *out)
{
    tinkc_error err = { 0 };
    tkc_buf answer;
    tkc_buf_init(&answer, NULL, TKC_BUF_NO_MAX);
    wait_for(w, false);
    assert_non_null(tkc_buf_terminate(&w->head, &err));
    assert_non_null(tkc_buf_terminate(&w->body, &err));
    bool is_text = strlen(w->body.data) == w->body.len;
    check_id(w);
    tkc_buf_printf(&answer, &err, "%d%s", (int)w->status, w->head.data);
    if (is_text && w->body.len)
        tkc_buf_printf(&answer, &err, " %s", w->body.data);
    else if (w->body.len)
        tkc_buf_printf(&answer, &err, " (%zu bytes)", w->body.len);
    put_line(answer.data, answer.len, out);
    tkc_buf_clear(&world.last);
    tkc_buf_printf(&world.last, &err, "%s %s", w->head.data, w->body.data);
    assert_non_null(tkc_buf_terminate(&world.last, &err));
    w->next = world.past;
    world.past = w;
    tkc_buf_free(&answer);
}

/* Each was answered once. */
static void forget_past(void)
{
    for (waiting *w = world.past, *next; w; w = next) {
        next = w->next;
        assert_int_equal(w->n_ends, 1);
        pthread_mutex_destroy(&w->lock);
        pthread_cond_destroy(&w->over);
        tkc_buf_free(&w->head);
        tkc_buf_free(&w->body);
        tkc_buf_free(&w->text);
        tkc_buf_free(&w->packed);
        tkc_release(NULL, w, sizeof *w);
    }
    world.past = NULL;
}

static void ask(const char *line, tkc_buf *out)
{
    ask_end(ask_begin(line), out);
}

/* The place of an open request; with "" a free one. */
static size_t open_place(const char *name)
{
    size_t i = 0;
    while (i < MAX_OPEN && strcmp(world.open[i].name, name) != 0)
        i++;
    if (i == MAX_OPEN)
        fail_msg("no request '%s'", name);
    return i;
}

static void open_act(char what, const char *name, const char *line, tkc_buf *out)
{
    tinkc_error err = { 0 };
    size_t i = open_place(what == '|' ? "" : name);
    waiting *w = world.open[i].w;
    if (what == '|') {
        snprintf(world.open[i].name, sizeof world.open[i].name, "%s", name);
        world.open[i].w = ask_begin(line);
    } else if (what == 'x') {
        tke_service_cancel(tke_engine_service(world.engine), &w->reply);
    } else if (what == 'r') {
        const tinkc_transport *t = tinkc_engine_transport(world.engine);
        atomic_store(&world.full, false);
        t->resume(t->self, &w->reply);
    } else if (what == '-') {
        pthread_mutex_lock(&w->lock);
        tkc_buf_cstr(out, w->done ? "< an answer\n" : "< none\n", &err);
        pthread_mutex_unlock(&w->lock);
    } else if (what == ',') {
        wait_for(w, true);
        tkc_buf_cstr(out, "< ", &err);
        pthread_mutex_lock(&w->lock);
        put_line(w->body.data + w->shown, w->body.len - w->shown, out);
        w->shown = w->body.len;
        pthread_mutex_unlock(&w->lock);
        tkc_buf_char(out, '\n', &err);
    } else {
        world.open[i].name[0] = '\0';
        tkc_buf_cstr(out, "< ", &err);
        ask_end(w, out);
        tkc_buf_char(out, '\n', &err);
    }
}

/* An answer for which the worker may have had no memory: all of it, or none. A stream may end early. */
static void is_whole_or_refused(const waiting *w, size_t *whole)
{
    if (strstr(w->head.data, "event-stream")) {
        assert_int_equal(w->status, 200);
    } else if (w->status != 200) {
        assert_int_equal(w->status, 503);
        assert_string_equal(w->body.data, "{\"error\":{\"message\":\"out of memory\"}}");
    } else {
        assert_true(!*whole || w->body.len == *whole); /* ids and times have the same length */
        *whole = w->body.len;
    }
}

/* As often as it has allocations: each fails once. Then it is asked with all of them. */
static void ask_scarce(char how, const char *line, tkc_buf *out)
{
    tinkc_error err = { 0 };
    static const char plain[] = "503 application/json {\"detail\":\"out of memory\",\"code\":\"memory\"}";
    tkc_buf now, before;
    size_t whole = 0;
    char header[2][300];
    tkc_buf_init(&now, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&before, NULL, TKC_BUF_NO_MAX);
    memcpy(header, world.header, sizeof header);
    for (int64_t n = 1; n == 1 || memory.failed; n++) {
        memcpy(world.header, header, sizeof header);
        memory.name = how == 't' ? "tinkc-texts" : how == 'w' ? "tinkc-worker" : NULL;
        memory.stays = how == 'O';
        memory.failed = false;
        memory.until = n;
        waiting *w = ask_begin(line);
        tkc_buf_clear(&now);
        if (memory.name)
            wait_for(w, false);
        memory.until = 0;
        ask_end(w, &now);
        if (how == 'w' && memory.failed) {
            is_whole_or_refused(w, &whole);
            continue; /* the worker needs memory for other things, too: how often it fails differs */
        }
        if (now.data[0] == '2' && !w->body.len) {
            tkc_buf_cstr(&now, " without a body", &err);
        } else if (now.len > 3 && now.data[0] != '5') {
            now.len = 3; /* what it says then is known from elsewhere */
        }
        assert_true(!whole || w->body.len == whole);
        if (n > 1 && tkc_str_eq(tkc_buf_view(&now), tkc_buf_view(&before)))
            continue;
        if (tkc_str_is(tkc_buf_view(&now), plain))
            continue; /* as every request without memory */
        tkc_buf_printf(out, &err, "< %.*s\n", (int)now.len, now.data);
        tkc_buf_clear(&before);
        tkc_buf_add(&before, now.data, now.len, &err);
    }
    tkc_buf_free(&now);
    tkc_buf_free(&before);
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

static void change_rows(const char *sql)
{
    char path[500];
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/meta.db", world.store);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void change_files(const char *command)
{
    char line[900];
    snprintf(line, sizeof line, "cd '%s' && %s", world.store, command);
    if (system(line) != 0)
        fail_msg("%s", line);
}

/* "sql STATEMENT", "sh COMMAND" or "now COMMAND" */
static void change_store(const char *what)
{
    tkc_buf text;
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    expand(strchr(what, ' ') + 1, &text);
    (what[1] == 'q' ? change_rows : change_files)(text.data);
    tkc_buf_free(&text);
}

enum { MOST_LINES = 64 };

typedef struct report {
    char lines[MOST_LINES][400];
    size_t n;
} report;

static void take_line(const char *line, bool bad, void *user)
{
    report *r = user;
    assert_true(r->n < MOST_LINES);
    snprintf(r->lines[r->n++], sizeof r->lines[0], "%s %s", bad ? "bad" : "ok", line);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Folders come in the file system's order, so the lines are sorted. */
static void check_store(bool repair, tkc_buf *out)
{
    static report r;
    tinkc_error err = { 0 }, ignored = { 0 };
    r.n = 0;
    bool good = tinkc_store_check(world.store, &(tinkc_store_check_options){ .repair = repair }, take_line, &r, &err);
    qsort(r.lines, r.n, sizeof r.lines[0], by_text);
    for (size_t i = 0; i < r.n; i++) {
        tkc_buf_cstr(out, "< ", &ignored);
        contract(r.lines[i], out);
        tkc_buf_char(out, '\n', &ignored);
    }
    tkc_buf_printf(out, &ignored, "< %s", good ? "true" : "false: ");
    contract(err.message, out);
    tkc_buf_char(out, '\n', &ignored);
}

/* Those of the database and of the process are not listed. */
static void list_files(tkc_buf *out)
{
    char line[700], folder[700] = "";
    tinkc_error err = { 0 };
    snprintf(line, sizeof line,
             "cd '%s' && find runs tmp -mindepth 1 -type f -printf '%%s %%p\n' -o -type d -empty "
             "-printf 'empty %%p\n' | LC_ALL=C sort -k 2",
             world.store);
    FILE *found = popen(line, "r");
    assert_non_null(found);
    while (fgets(line, sizeof line, found)) {
        char *path = strchr(line, ' ') + 1, *name = strrchr(path, '/') + 1;
        bool empty_folder = line[0] == 'e', sealed = strcmp(name, "checkpoint_complete\n") == 0;
        path[strcspn(path, "\n")] = '\0';
        if (empty_folder)
            name = path + strlen(path) + 1;
        name[-1] = '\0';
        if (strcmp(folder, path) != 0) {
            tkc_buf_cstr(out, folder[0] ? "\n< " : "< ", &err);
            contract(path, out);
            tkc_buf_char(out, ':', &err);
            snprintf(folder, sizeof folder, "%s", path);
        }
        tkc_buf_printf(out, &err, " %s%s", empty_folder ? "empty" : name, line[0] == '0' && !sealed ? "(0)" : "");
    }
    if (folder[0])
        tkc_buf_char(out, '\n', &err);
    assert_int_equal(pclose(found), 0);
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

/* A tokenizer.json whose 64 tokens are all the same text. */
static void write_vocab(const char *text)
{
    tinkc_error err = { 0 };
    char path[500];
    tkc_buf json;
    tkc_buf_init(&json, NULL, TKC_BUF_NO_MAX);
    tkc_buf_cstr(&json, "{\"model\":{\"vocab\":{", &err);
    for (int i = 0; i < 64; i++)
        tkc_buf_printf(&json, &err, "%s\"%s\":%d", i ? "," : "", text, i);
    tkc_buf_cstr(&json, "}}}", &err);
    snprintf(path, sizeof path, "%s/tokenizer.json", world.model);
    assert_true(tkc_write_file(path, json.data, json.len, 0644, &err));
    tkc_buf_free(&json);
}

/* A copy of models/nano whose tokenizer, but not whose model, ends texts with this token. */
static void copy_nano(const char *key, const char *token)
{
    char line[700];
    if (world.nano) /* of a command before */
        tiny_model_remove(world.nano);
    world.nano = tiny_folder();
    snprintf(line, sizeof line,
             "cp models/nano/*.json '%s' && ln -s \"$PWD\"/models/nano/*.safetensors '%s' && sed -i "
             "-e 's/\"%s_token\": [^,]*/\"%s_token\": \"%s\"/' -e 's/\"add_%s_token\": [^,]*/"
             "\"add_%s_token\": true/' '%s/tokenizer_config.json'",
             world.nano, world.nano, key, key, token, key, key, world.nano);
    assert_int_equal(system(line), 0);
}

/* "NAME VALUE" or two of them */
static void change_settings(const char *text)
{
    world.set[2][0] = '\0';
    assert_int_equal(sscanf(text, "%99s %99s %99s %99s", world.set[0], world.set[1], world.set[2], world.set[3]) % 2,
                     0);
}

static void flush_images(tkc_buf *out)
{
    tinkc_error err = { 0 }, ignored = { 0 };
    bool done = tke_service_flush(tke_engine_service(world.engine), 120000, &err);
    tkc_buf_printf(out, &ignored, "< %s%s\n", done ? "true" : "false: ", err.message);
}

static void change_checkpoint(const char *text, bool expires)
{
    tkc_buf path;
    tke_service *svc = tke_engine_service(world.engine);
    tkc_buf_init(&path, NULL, TKC_BUF_NO_MAX);
    expand(text, &path);
    pthread_mutex_lock(&svc->lock);
    tke_checkpoint *c = tke_find_checkpoint(svc, path.data, NULL);
    assert_non_null(c);
    if (expires)
        c->expires_us = atomic_load(&now_us);
    else
        c->state = c->state == TKE_CKPT_DONE ? TKE_CKPT_PENDING : TKE_CKPT_DONE;
    pthread_mutex_unlock(&svc->lock);
    tkc_buf_free(&path);
}

/* "NAME MEMBERS": a new session. */
static void make_session(const char *what)
{
    char line[1000], name[16];
    tkc_buf out;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    const char *members = strchr(what, ' ');
    snprintf(name, sizeof name, "%.*s", (int)strcspn(what, " "), what);
    snprintf(line, sizeof line, "create_session %s",
             members ? members + 1 : "{\"tags\":[],\"sdk_version\":\"0.25.0\"}");
    pass_time("1");
    ask(line, &out);
    assert_true(tkc_starts_with(tkc_buf_view(&out), "200 application/json {\"type\":\"create_session\""));
    remember(name, "session_id");
    tkc_buf_free(&out);
}

/* "NAME SESSION NUMBER RANK SEED": a new model. */
static void make_model(const char *what)
{
    char line[300], name[16], session[16];
    int number, rank, seed;
    tkc_buf out;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    assert_int_equal(sscanf(what, "%15s %15s %d %d %d", name, session, &number, &rank, &seed), 5);
    snprintf(line, sizeof line,
             "create_model {\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":\"org/tiny\","
             "\"lora_config\":{\"rank\":%d,\"seed\":%d}}",
             session, number, rank, seed);
    pass_time("1");
    ask(line, &out);
    remember("future", "request_id");
    ask("retrieve_future {\"request_id\":\"$future\"}", &out);
    world.n_names -= strcmp(world.names[world.n_names - 1].name, "future") == 0;
    assert_non_null(strstr(world.last.data, "\"type\":\"create_model\""));
    remember(name, "model_id");
    tkc_buf_free(&out);
}

/* "NAME SESSION NUMBER": a sampling session of the base model. */
static void make_sampler(const char *what)
{
    char line[300], name[16], session[16];
    int number;
    tkc_buf out;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    assert_int_equal(sscanf(what, "%15s %15s %d", name, session, &number), 3);
    snprintf(line, sizeof line,
             "create_sampling_session {\"session_id\":\"%s\",\"sampling_session_seq_id\":%d,"
             "\"base_model\":\"org/tiny\"}",
             session, number);
    pass_time("1");
    ask(line, &out);
    assert_non_null(strstr(world.last.data, "{\"type\":\"create_sampling_session\""));
    remember(name, "sampling_session_id");
    tkc_buf_free(&out);
}

static void command(const char *what, tkc_buf *out)
{
    if (strncmp(what, "sampler ", 8) == 0) {
        make_sampler(what + 8);
        return;
    }
    if (strncmp(what, "session ", 8) == 0) {
        make_session(what + 8);
        return;
    }
    if (strncmp(what, "model ", 6) == 0) {
        make_model(what + 6);
        return;
    }
    if (strncmp(what, "expire ", 7) == 0) {
        change_checkpoint(what + 7, true);
        return;
    }
    if (strncmp(what, "pending ", 8) == 0) {
        change_checkpoint(what + 8, false);
        return;
    }
    if (strncmp(what, "deaf ", 5) == 0) {
        world.deaf = strtoul(what + 5, NULL, 10);
        return;
    }
    if (strncmp(what, "quota ", 6) == 0) {
        set_quota(what + 6);
        return;
    }
    if (strcmp(what, "upkeep") == 0) {
        (void)tke_housekeep(tke_engine_service(world.engine), &(tke_due){ 0 });
        return;
    }
    if (strcmp(what, "held") == 0) {
        gate_await();
        return;
    }
    if (strcmp(what, "far") == 0 || strcmp(what, "left") == 0) {
        atomic_store(&clients_left, what[0] == 'l');
        tke_service_set_gone(tke_engine_service(world.engine), is_gone);
        world.flags |= TKE_CALL_REMOTE;
        return;
    }
    if (strcmp(what, "stall") == 0) {
        stall(tke_engine_service(world.engine)->files);
        return;
    }
    if (strcmp(what, "flow") == 0) {
        flow();
        return;
    }
    if (strncmp(what, "now ", 4) == 0) {
        change_store(what);
        return;
    }
    if (strcmp(what, "flush") == 0) {
        flush_images(out);
        return;
    }
    if (strcmp(what, "full") == 0) {
        atomic_store(&world.full, true);
        return;
    }
    if (strcmp(what, "drain") == 0) {
        tke_service_drain(tke_engine_service(world.engine));
        return;
    }
    if (strcmp(what, "hold") == 0 || strcmp(what, "go") == 0) {
        gate_set(what[0] == 'h', false);
        return;
    }
    if (strcmp(what, "threadless") == 0 || strcmp(what, "threads") == 0) {
        atomic_store(&no_threads, strcmp(what, "threads") != 0);
        return;
    }
    if (strcmp(what, "unplug") == 0 || strcmp(what, "plug") == 0) {
        atomic_store(&gate.loads_nothing, what[0] == 'u');
        return;
    }
    if (strcmp(what, "break") == 0 || strcmp(what, "fix") == 0) {
        gate_set(false, what[0] == 'b');
        return;
    }
    atomic_store(&stalled.until_answer, strcmp(what, "stop") == 0);
    end_service();
    if (strncmp(what, "SELECT ", 7) == 0)
        dump(what, out);
    else if (strncmp(what, "sql ", 4) == 0 || strncmp(what, "sh ", 3) == 0)
        change_store(what);
    else if (strcmp(what, "check") == 0 || strcmp(what, "repair") == 0)
        check_store(what[0] == 'r', out);
    else if (strcmp(what, "files") == 0)
        list_files(out);
    else if (strcmp(what, "openai") == 0)
        world.openai = true;
    else if (strncmp(what, "ends ", 5) == 0)
        copy_nano("eos", what + 5);
    else if (strncmp(what, "begins ", 7) == 0)
        copy_nano("bos", what + 7);
    else if (strcmp(what, "strict") == 0)
        world.strict = true;
    else if (strncmp(what, "vocab ", 6) == 0)
        write_vocab(what + 6);
    else if (strncmp(what, "level ", 6) == 0)
        world.durability = (int32_t)strtol(what + 6, NULL, 10);
    else if (strncmp(what, "set ", 4) == 0)
        change_settings(what + 4);
    else if (strcmp(what, "stop") != 0)
        assert_string_equal(what, "restart");
    start_service();
}

/* Some numbers of the status: "a b" -> "a=1 b=2" */
static void show_status(char *names, tkc_buf *out)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_buf text;
    char mark[80], *rest = NULL;
    tkc_arena_init(&arena, NULL, 0);
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    assert_true(tke_service_status(tke_engine_service(world.engine), world.owner, &text, &err) &&
                tkc_buf_terminate(&text, &err));
    tkc_buf_char(out, '<', &err);
    for (char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        snprintf(mark, sizeof mark, "\"%s\":", name);
        const char *at = strstr(text.data, mark);
        assert_non_null(at);
        at += strlen(mark);
        const char *value = tkc_arena_str(&arena, tkc_strn(at, strcspn(at, *at == '[' ? "]" : ",}")), &err);
        tkc_buf_printf(out, &err, " %s=", name);
        contract(value, out);
    }
    tkc_arena_free(&arena);
    tkc_buf_char(out, '\n', &err);
    tkc_buf_free(&text);
}

/* Does what a line says; what is answered is appended. */
static void act(char *line, tkc_buf *out)
{
    tinkc_error err = { 0 };
    size_t from = out->len;
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
        if (!tkc_starts_with(tkc_buf_view(&world.last), " application/json {\"request_id\":\"")) {
            tkc_buf_cstr(out, "\n", &err);
            break; /* refused at once */
        }
        out->len = from + 2; /* what is accepted is answered with its id, and with its result later */
        remember("future", "request_id");
        ask("POST /api/v1/retrieve_future {\"request_id\":\"$future\"}", out);
        world.n_names -= strcmp(world.names[world.n_names - 1].name, "future") == 0;
        tkc_buf_char(out, '\n', &err);
        break;
    }
    case 'o':
    case 'O':
    case 't':
    case 'w':
        pass_time("1");
        ask_scarce(line[0], rest, out);
        break;
    case ':': {
        tkc_buf value;
        *space = '\0';
        tkc_buf_init(&value, NULL, TKC_BUF_NO_MAX);
        expand(space + 1, &value);
        name_it(rest, value.data, value.len);
        tkc_buf_free(&value);
        break;
    }
    case '=':
        *space = '\0';
        remember(rest, space + 1);
        break;
    case '~': {
        tkc_buf value;
        char *colon = strchr(rest, ':');
        tkc_buf_init(&value, NULL, TKC_BUF_NO_MAX);
        expand(colon + 2, &value);
        snprintf(world.header[0], sizeof world.header[0], "%.*s", (int)(colon - rest), rest);
        snprintf(world.header[1], sizeof world.header[1], "%s", value.data);
        tkc_buf_free(&value);
        break;
    }
    case '@':
        snprintf(world.owner, sizeof world.owner, "%.*s", (int)strcspn(rest, " "), rest);
        snprintf(world.key_id, sizeof world.key_id, "%s", space ? space + 1 : "");
        break;
    case '|':
        *space = '\0';
        open_act('|', rest, space + 1, out);
        break;
    case '-':
    case ',':
    case 'x':
    case 'r':
    case '.':
        open_act(line[0], rest, NULL, out);
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

/* ---- answers, as rules show them ---- */

static bool skip_front(const char **at, const char *front)
{
    bool is = strncmp(*at, front, strlen(front)) == 0;
    *at += is ? strlen(front) : 0;
    return is;
}

/* {"FIRST":"text","SECOND":"word"}: "word: text" */
static bool in_words(const char *at, const char *first, const char *second, tkc_buf *out)
{
    tinkc_error err = { 0 };
    char front[40], between[40];
    snprintf(front, sizeof front, "{\"%s\":\"", first);
    snprintf(between, sizeof between, "\",\"%s\":\"", second);
    const char *text = at, *word = strstr(at, between);
    if (!skip_front(&text, front) || !word || strcmp(at + strlen(at) - 2, "\"}") != 0)
        return false;
    tkc_buf_printf(out, &err, "%.*s: %.*s", (int)(strlen(word) - strlen(between) - 2), word + strlen(between),
                   (int)(word - text), text);
    return true;
}

/* A refusal in OpenAI's form: code "parameter": text */
static bool in_openais_words(const char *at, tkc_buf *out)
{
    static const char front[] = "{\"error\":{\"message\":\"",
                      type[] = "\",\"type\":\"invalid_request_error\",\"param\":";
    tinkc_error err = { 0 };
    char param[80], code[80];
    const char *text = at, *rest = strstr(at, type);
    if (!skip_front(&text, front) || !rest ||
        sscanf(rest + sizeof type - 1, "%79[^,],\"code\":\"%79[^\"]\"}}", param, code) != 2)
        return false;
    bool has = strcmp(param, "null") != 0;
    tkc_buf_printf(out, &err, "%s%s%s: %.*s", code, has ? " " : "", has ? param : "", (int)(rest - text), text);
    return true;
}

/* An answer without what all of them have. */
static void shorten(const char *answer, tkc_buf *out)
{
    tinkc_error err = { 0 };
    const char *at = answer;
    if (skip_front(&at, "200 application/json ")) {
        if (skip_front(&at, "X-Tinker-Request-Id: "))
            at += strcspn(at, " ") + 1;
        if (in_words(at, "error", "category", out))
            return;
    } else {
        size_t status = strspn(at, "0123456789");
        const char *body = at + status;
        if (status == 3 && skip_front(&body, " application/json ")) {
            tkc_buf_printf(out, &err, "%.3s ", at);
            if (in_words(body, "detail", "code", out) || in_openais_words(body, out))
                return;
            at = body;
        }
    }
    tkc_buf_cstr(out, at, &err);
}

/* "..." in what is expected stands for any text. */
static bool is_shown(const char *got, const char *expected)
{
    const char *dots = strstr(expected, "...");
    if (!dots)
        return strcmp(got, expected) == 0;
    if (strncmp(got, expected, (size_t)(dots - expected)) != 0)
        return false;
    const char *next = dots + 3;
    for (got += dots - expected;; got++) {
        if (is_shown(got, next))
            return true;
        if (!*got)
            return false;
    }
}

typedef struct rule_lines {
    const char *path;
    tinkc_str rest;
    size_t number; /* of the line */
    tkc_arena arena;
} rule_lines;

/* The next line, with those that continue it; NULL at the end. */
static char *next_line(rule_lines *r)
{
    tinkc_error err = { 0 };
    tinkc_str part;
    char *line = NULL;
    do {
        if (!r->rest.len || !tkc_str_cut(&r->rest, '\n', &part))
            return line;
        r->number++;
        while (line && part.len && part.data[0] == ' ')
            part = tkc_strn(part.data + 1, part.len - 1);
        line = tkc_arena_printf(&r->arena, &err, "%s%.*s", line ? line : "", (int)part.len, part.data);
        assert_non_null(line);
    } while (line[0] && line[strlen(line) - 1] == '\\' && ((line[strlen(line) - 1] = '\0') == '\0'));
    return line;
}

/* What a line has brought, against what stands there: behind it, or below it. */
static void compare(rule_lines *r, char *below, char *got)
{
    tinkc_error err = { 0 };
    char *rest = NULL;
    bool first = below != NULL;
    for (char *line = strtok_r(got, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        tkc_buf shown;
        tkc_buf_init(&shown, NULL, TKC_BUF_NO_MAX);
        shorten(line + 2, &shown);
        assert_non_null(tkc_buf_terminate(&shown, &err));
        char *expected = first ? below : tkc_starts_with(r->rest, "< ") ? next_line(r) + 2 : NULL;
        first = false;
        if (!expected || !is_shown(shown.data, expected))
            fail_msg("%s:%zu\nexpected: %s\ngot:      %s", r->path, r->number, expected ? expected : "nothing",
                     shown.data);
        tkc_buf_free(&shown);
    }
    if (first || tkc_starts_with(r->rest, "< "))
        fail_msg("%s:%zu: expected more", r->path, r->number);
}

static void play_lines(const char *name)
{
    tinkc_error err = { 0 };
    char path[300], *line;
    snprintf(path, sizeof path, "tests/data/service_rules/%s.txt", name);
    rule_lines r = { .path = path };
    tkc_arena_init(&r.arena, NULL, 0);
    tinkc_bytes file = tkc_read_file(&r.arena, path, 1 << 22, &err);
    assert_ok(err);
    r.rest = tkc_strn((const char *)file.data, file.len);
    while ((line = next_line(&r))) {
        tkc_buf got;
        if (line[0] == '&') {
            play_lines(line + 2);
            continue;
        }
        tkc_buf_init(&got, NULL, TKC_BUF_NO_MAX);
        char *answer = strstr(line, "  =>  ");
        if (answer) {
            *answer = '\0';
            answer += 6;
        }
        act(line, &got);
        assert_non_null(tkc_buf_terminate(&got, &err));
        compare(&r, answer, got.data);
        tkc_buf_free(&got);
    }
    tkc_arena_free(&r.arena);
}

static void play(const char *name)
{
    open_world();
    play_lines(name);
    close_world();
}

#define RULES(name)                                                                                                    \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        play(#name);                                                                                                   \
    }
RULES(plain_endpoints)
RULES(training)
RULES(checkpoints)
RULES(sessions)
RULES(sampling)
RULES(owners)
RULES(downloads)
RULES(order)
RULES(quotas)
RULES(settings)
RULES(held)
RULES(fields)
RULES(upkeep)
RULES(store_errors)
RULES(repeated_steps)
RULES(number_limits)
RULES(refusals)
RULES(recovery)
RULES(parameters)
RULES(answers)
RULES(scarce_memory)
RULES(stalled_files)
RULES(odd_stores)
RULES(contradictions)
RULES(missing_files)
RULES(stored_results)
RULES(days)
RULES(blocked_folders)
RULES(streams)
RULES(audit_and_usage)
RULES(prompt_scores)
RULES(store_errors_sessions)
RULES(training_numbers)
RULES(recovery_files)
RULES(device_failures)
RULES(sample_repeats)
RULES(result_spill)
RULES(kept_weights)
RULES(passes_and_samples)
RULES(searches)
RULES(custom_losses)
RULES(body_forms)
RULES(numbers_awaited)
RULES(names_kept)
RULES(kept_texts)

/* Waits until the worker has looked for work once more and found none. */
static void worker_rests(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    uint64_t before = svc->counters.worker_waits;
    while (svc->counters.worker_waits == before) {
        pthread_cond_signal(&svc->work);
        pthread_mutex_unlock(&svc->lock);
        usleep(1000);
        pthread_mutex_lock(&svc->lock);
    }
    pthread_mutex_unlock(&svc->lock);
}

/* Is it, this long after the idle time has begun? */
static bool is_released_after(tke_service *svc, int64_t ms)
{
    (void)tke_housekeep(svc, &(tke_due){ 0 }); /* it begins now, if it has not */
    pthread_mutex_lock(&svc->lock);
    int64_t since = svc->worker->idle_since_ms;
    pthread_mutex_unlock(&svc->lock);
    assert_true(since > 0);
    if (ms)
        atomic_store(&now_us, (since + ms) * 1000);
    (void)tke_housekeep(svc, &(tke_due){ 0 });
    pthread_mutex_lock(&svc->lock);
    bool released = svc->worker->released;
    pthread_mutex_unlock(&svc->lock);
    return released;
}

/* What only speed needs is released after idle_release_s without work: 30 s, to the millisecond. */
TEST(what_only_speed_needs_is_released_when_idle)
{
    tinkc_error err = { 0 };
    tkc_buf out;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    open_world();
    tke_service *svc = tke_engine_service(world.engine);
    worker_rests(svc);
    assert_false(is_released_after(svc, 0));
    assert_false(is_released_after(svc, 29999));
    assert_true(is_released_after(svc, 30000));
    /* Work ends the idle time; it begins again when nothing is left to do. */
    ask("POST /api/v1/create_session {\"tags\":[],\"sdk_version\":\"0.25.0\"}", &out);
    remember("s", "session_id");
    for (int i = 0; i < 2; i++) {
        char line[300];
        snprintf(line, sizeof line,
                 "POST /api/v1/create_model {\"session_id\":\"$s\",\"model_seq_id\":%d,"
                 "\"base_model\":\"org/tiny\",\"lora_config\":{\"rank\":4,\"seed\":7}}",
                 i);
        ask(line, &out);
        remember("f", "request_id");
        ask("POST /api/v1/retrieve_future {\"request_id\":\"$f\"}", &out);
        worker_rests(svc);
        assert_false(is_released_after(svc, 0));
        assert_false(is_released_after(svc, 29999));
        assert_true(is_released_after(svc, 30000));
        /* The work space of samples is: it stays while there is work, and is then released again. */
        for (int round = 0; round < 2; round++) {
            worker_rests(svc);
            int before = atomic_load(&gate.n_made);
            ask("POST /api/v1/asample {\"base_model\":\"org/tiny\",\"num_samples\":1,"
                "\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":[1,2]}]},"
                "\"sampling_params\":{\"max_tokens\":1}}",
                &out);
            remember("f", "request_id");
            ask("POST /api/v1/retrieve_future {\"request_id\":\"$f\"}", &out);
            worker_rests(svc);
            worker_rests(svc);
            int made = atomic_load(&gate.n_made);
            assert_true(made > before);
            assert_false(is_released_after(svc, 29999));
            assert_true(is_released_after(svc, 30000));
            worker_rests(svc);
            wait_until(atomic_load(&gate.n_made) < made);
            assert_true(atomic_load(&gate.n_made) < made);
        }
    }
    tkc_buf_free(&out);
    close_world();
    assert_ok(err);
}

/* One after the other, more than may be under way at once. */
TEST(downloads_end_one_after_the_other)
{
    tkc_buf out;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    open_world();
    ask("POST /api/v1/create_session {\"tags\":[],\"sdk_version\":\"0.25.0\"}", &out);
    remember("s", "session_id");
    ask("POST /api/v1/create_model {\"session_id\":\"$s\",\"model_seq_id\":0,"
        "\"base_model\":\"org/tiny\",\"lora_config\":{\"rank\":1,\"seed\":7}}",
        &out);
    remember("m", "model_id");
    ask("POST /api/v1/save_weights_for_sampler {\"model_id\":\"$m\",\"seq_id\":1,\"path\":\"a\"}", &out);
    remember("f", "request_id");
    ask("POST /api/v1/retrieve_future {\"request_id\":\"$f\"}", &out);
    ask("GET /api/v1/training_runs/$m/checkpoints/sampler_weights/a/archive", &out);
    remember("a", "archives/");
    for (int i = 0; i < 2 * TKE_MAX_DOWNLOADS; i++) {
        tkc_buf_clear(&out);
        ask("GET /api/v1/archives/$a/adapter_config.json", &out);
        assert_true(tkc_starts_with(tkc_buf_view(&out), "200 "));
    }
    tkc_buf_free(&out);
    close_world();
}

static void *flush_usage(void *svc)
{
    while (!stop.reached) { /* the housekeeper may take them first */
        tke_usage_add(svc, "default", "s", "org/tiny", TKE_USE_SAMPLED, 5);
        stops_here = true; /* the counters are taken out, and not in the store yet */
        tke_usage_flush(svc);
        stops_here = false;
    }
    return NULL;
}

/* Who asks for the usage meanwhile waits: or what the other thread has would be missing. */
TEST(usage_is_handed_over_alone)
{
    pthread_t other;
    open_world();
    tke_service *svc = tke_engine_service(world.engine);
    assert_int_equal(pthread_create(&other, NULL, flush_usage, svc), 0);
    pthread_mutex_lock(&stop.lock);
    while (!stop.reached)
        pthread_cond_wait(&stop.changed, &stop.lock);
    pthread_mutex_unlock(&stop.lock);
    assert_int_equal(pthread_mutex_trylock(&svc->usage->flush_lock), EBUSY);
    pthread_mutex_lock(&stop.lock);
    stop.released = true;
    pthread_cond_broadcast(&stop.changed);
    pthread_mutex_unlock(&stop.lock);
    pthread_join(other, NULL);
    assert_int_equal(pthread_mutex_trylock(&svc->usage->flush_lock), 0);
    pthread_mutex_unlock(&svc->usage->flush_lock);
    close_world();
}

/* False: built without tokenizers. */
static bool openai_is_possible(void)
{
    tinkc_error err = { 0 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    bool on, possible = tke_service_openai(tke_engine_service(engine), true, &on, &err);
    tinkc_engine_free(engine);
    return possible;
}

#define RULES_OF_TEXTS(name)                                                                                           \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        if (!openai_is_possible())                                                                                     \
            skip();                                                                                                    \
        play(#name);                                                                                                   \
    }
RULES_OF_TEXTS(openai)
RULES_OF_TEXTS(openai_members)
RULES_OF_TEXTS(openai_limits)
RULES_OF_TEXTS(openai_clients)
RULES_OF_TEXTS(openai_messages)
RULES_OF_TEXTS(exhausted)
RULES_OF_TEXTS(stops)
RULES_OF_TEXTS(openai_mistakes)

/* Requests with texts whose clients hang up: two are under way and wait for a lock, the others wait
 * for a thread, as many as one owner may have. None of them is computed, and only those are cancelled. */
TEST(requests_whose_clients_hang_up_are_cancelled)
{
    static const char line[] = "POST /v1/completions {\"model\":\"nano\",\"prompt\":\"a\","
                               "\"max_tokens\":1}";
    enum { ALL = TKE_LONG_REQUESTS / 2, STAYS = 4, ENOUGH = 1 << 30 };
    static waiting *w[ALL];
    tkc_buf out;
    if (!openai_is_possible())
        skip();
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    open_world();
    command("openai", &out);
    gate_set(true, false);
    tke_service *svc = tke_engine_service(world.engine);
    pthread_mutex_lock(&svc->tokenizer_lock);
    memory.name = "tinkc-texts";
    memory.until = ENOUGH;
    for (int i = 0; i < ALL; i++)
        w[i] = ask_begin(line);
    wait_until(memory.until < ENOUGH); /* one is under way: it has needed memory */
    assert_true(memory.until < ENOUGH);
    memory.until = 0;
    ask(line, &out);
    assert_non_null(tkc_buf_terminate(&out, &(tinkc_error){ 0 }));
    assert_non_null(strstr(out.data, "429 application/json {\"error\":{\"message\":\"Too many large requests"));
    for (int i = 0; i < ALL; i++)
        if (i != STAYS)
            tke_service_cancel(svc, &w[i]->reply);
    pthread_mutex_unlock(&svc->tokenizer_lock);
    for (int i = 0; i < ALL; i++)
        if (i != STAYS) {
            tkc_buf_clear(&out);
            ask_end(w[i], &out);
            assert_true(tkc_ends_with(tkc_buf_view(&out), " was cancelled"));
            assert_int_equal(w[i]->status, 0);
        }
    gate_set(false, false);
    ask_end(w[STAYS], &out);
    assert_int_equal(w[STAYS]->status, 200);
    ask(line, &out); /* there is room again */
    assert_non_null(strstr(world.last.data, "text_completion"));
    tkc_buf_free(&out);
    close_world();
}
