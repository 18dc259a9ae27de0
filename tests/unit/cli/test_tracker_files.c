/* test_tracker_files.c - what --tensorboard and --wandb write, byte by byte. That the packages read it
 * is what tests/interop/test_trackers.sh shows. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/track/metric_exports.h"
#include "support/cli/held_output.h"
#include "support/json_trees.h"
#include "cli/output/text.h"
#include "cli/track/tfevents.h"
#include "cli/track/wandb_run.h"

static char *folder;

static int setup(void **state)
{
    (void)state;
    folder = tiny_folder();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_model_remove(folder);
    return 0;
}

static uint64_t le(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = n; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

/* Path of the only entry of a folder that begins so. */
static void only_entry(const char *in, const char *begin, char out[700])
{
    DIR *d = opendir(in);
    assert_non_null(d);
    size_t n = 0;
    for (const struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, begin, strlen(begin)) == 0) {
            snprintf(out, 700, "%.400s/%.250s", in, e->d_name);
            n++;
        }
    closedir(d);
    assert_int_equal(n, 1);
}

static unsigned char *read_whole(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    unsigned char *data = malloc(1 << 20);
    *len = fread(data, 1, 1 << 20, f);
    fclose(f);
    return data;
}

TEST(a_number_of_the_standard)
{
    uint32_t crc = 0xe3069283; /* of "123456789" */
    assert_int_equal(cli_masked_crc32c("123456789", 9), (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8));
}

TEST_WITH(event_records_are_framed, setup, teardown)
{
    cli_tfevents t;
    char path[700], below[600];
    tkc_tree *row =
        tkc_tree_pack(&json_arena, "{s:i,s:f,s:s,s:o}", "step", 3, "loss", 1.5, "text", "x", "null", tkc_tree_null());
    assert_true(cli_tfevents_open(&t, folder, 3));
    assert_true(cli_tfevents_row(&t, row));
    tkc_tree *next = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 4, "acc", 0.5);
    assert_true(cli_tfevents_row(&t, next));
    cli_tfevents_close(&t);
    snprintf(below, sizeof below, "%s/tensorboard", folder);
    only_entry(below, "events.out.tfevents.", path);
    size_t len, n = 0, at = 0;
    unsigned char *data = read_whole(path, &len);
    for (; at < len; n++) {
        size_t size = (size_t)le(data + at, 8);
        assert_int_equal(le(data + at + 8, 4), cli_masked_crc32c(data + at, 8));
        assert_int_equal(le(data + at + 12 + size, 4), cli_masked_crc32c(data + at + 12, size));
        double written_s;
        memcpy(&written_s, data + at + 13, sizeof written_s); /* the first field: seconds since 1970 */
        assert_true(written_s > (double)time(NULL) - 1000 && written_s < (double)time(NULL) + 1000);
        if (n == 0)
            assert_non_null(memmem(data + at + 12, size, "brain.Event:2", 13));
        if (n == 1) /* the session begins at this step */
            assert_memory_equal(data + at + 12 + 9, "\x10\x03", 2);
        if (n == 2) { /* tag "loss", 1.5 as a float; nothing of the others */
            assert_non_null(memmem(data + at + 12, size, "\x0a\x04loss\x15\x00\x00\xc0\x3f", 11));
            assert_null(memmem(data + at + 12, size, "text", 4));
            assert_null(memmem(data + at + 12, size, "step", 4));
            assert_null(memmem(data + at + 12, size, "null", 4));
        }
        if (n == 3) /* nothing of the row before */
            assert_null(memmem(data + at + 12, size, "loss", 4));
        at += 12 + size + 4;
    }
    assert_int_equal(n, 4);
    free(data);
    char other[300]; /* not ours: it stays, and the folder with it */
    snprintf(other, sizeof other, "%.200s/events.out.tfeventsX1234567.tinkc", below);
    FILE *f = fopen(other, "w");
    assert_non_null(f);
    fclose(f);
    cli_tfevents_remove(folder);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(unlink(other), 0);
    cli_tfevents_remove(folder);
    assert_int_equal(access(below, F_OK), -1);
}

/* Walks the pieces of a file; how many records are whole. No piece may begin where none fits. */
static size_t count_records(const unsigned char *data, size_t len, size_t *pieces)
{
    size_t n = 0, at = 7;
    bool inside = false;
    for (*pieces = 0; at + 7 <= len;) {
        size_t room = 32768 - at % 32768;
        if (room < 7) {
            at += room;
            continue;
        }
        size_t size = (size_t)le(data + at + 4, 2);
        int type = data[at + 6];
        assert_true(type >= 1 && type <= 4 && size + 7 <= room);
        assert_true(inside == (type == 3 || type == 4));
        inside = type == 2 || type == 3;
        n += !inside;
        ++*pieces;
        at += 7 + size;
    }
    assert_int_equal(at, len);
    assert_false(inside);
    return n;
}

TEST_WITH(long_records_are_cut_into_blocks, setup, teardown)
{
    cli_wandb w;
    char below[600], run[700], path[700], text[700];
    size_t len, pieces;
    tkc_tree *config = tkc_tree_object(&json_arena),
             *row = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 0, "loss", 1.5);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 200; i++) { /* 140 KB: a first, three middle ones, a last */
        char key[20];
        snprintf(key, sizeof key, "k%d", i);
        tkc_tree_set_text(config, key, text);
    }
    assert_true(cli_wandb_open(&w, folder, "p", "n", config));
    for (int i = 0; i < 400; i++)
        assert_true(cli_wandb_row(&w, row));
    assert_true(cli_wandb_close(&w));
    snprintf(below, sizeof below, "%s/wandb", folder);
    only_entry(below, "offline-run-", run);
    only_entry(run, "run-", path);
    unsigned char *data = read_whole(path, &len);
    assert_memory_equal(data, ":W&B\xe1\xbe\0", 7);
    assert_int_equal(count_records(data, len, &pieces), 2 + 2 * 400 + 1);
    assert_true(pieces >= 2 + 2 * 400 + 1 + 4);
    free(data);
}

TEST_WITH(a_continued_run_keeps_its_id, setup, teardown)
{
    cli_wandb w;
    char below[600], run[700], id[CLI_WANDB_ID + 1];
    tkc_tree *config = tkc_tree_object(&json_arena);
    assert_true(cli_wandb_open(&w, folder, NULL, NULL, config));
    memcpy(id, w.id, sizeof id);
    assert_true(cli_wandb_close(&w));
    snprintf(below, sizeof below, "%s/other", folder);
    assert_true(cli_wandb_open(&w, below, NULL, NULL, config));
    assert_string_not_equal(w.id, id);
    assert_true(cli_wandb_close(&w));
    assert_true(cli_wandb_open(&w, folder, NULL, NULL, config));
    assert_string_equal(w.id, id);
    assert_true(cli_wandb_close(&w));
    snprintf(below, sizeof below, "%s/wandb", folder);
    only_entry(below, "offline-run-", run);
    cli_wandb_remove(folder);
    assert_int_equal(access(below, F_OK), -1);
}

/* Folders of several runs, of which the last by name is continued and replaced; others, and what is not a run, stay. */
TEST_WITH(the_last_of_several_runs_is_continued, setup, teardown)
{
    static const char *const other[] = { "offline-run-20990101_000000-aaaaaaa", "offline-run-20990101_000000-aaaaaaaaa",
                                         "offline-run-20990101_000000-aaaaaa_a", "offline-run-2099010a_000000-aaaaaaaa",
                                         "Offline-run-20990101_000000-aaaaaaaa" };
    cli_wandb w;
    char path[700];
    for (int i = 0; i < 13; i++) {
        if (i < 8)
            snprintf(path, sizeof path, "%s/wandb/offline-run-20260101_00000%d-abcdefg%d", folder, i, i);
        else
            snprintf(path, sizeof path, "%s/wandb/%s", folder, other[i - 8]);
        assert_true(cli_make_folder(path, 0700));
    }
    tkc_tree *config = tkc_tree_object(&json_arena);
    assert_true(cli_wandb_open(&w, folder, NULL, NULL, config));
    assert_string_equal(w.id, "abcdefg7");
    assert_true(cli_wandb_close(&w));
    for (int i = 0; i < 8; i++) {
        snprintf(path, sizeof path, "%s/wandb/offline-run-20260101_00000%d-abcdefg%d", folder, i, i);
        assert_int_equal(access(path, F_OK), i == 7 ? -1 : 0);
    }
    cli_wandb_remove(folder);
    for (int i = 8; i < 13; i++) {
        snprintf(path, sizeof path, "%s/wandb/%s", folder, other[i - 8]);
        assert_int_equal(access(path, F_OK), 0);
    }
}

/* ---- what an offline run says ---- */

/* zlib's checksum, bit by bit. */
static uint32_t crc_of(const unsigned char *p, size_t len)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < len; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t odd = (crc ^ (uint32_t)p[i] >> bit) & 1u;
            crc = crc >> 1 ^ (odd ? 0xedb88320u : 0);
        }
    return ~crc;
}

/* All records of a file, one behind the other; every checksum is right, gaps are zero. */
static unsigned char *join_records(const unsigned char *data, size_t len, size_t ends[], size_t *n)
{
    unsigned char *out = malloc(len);
    size_t at = 7, used = 0;
    for (*n = 0; at + 7 <= len;) {
        size_t room = 32768 - at % 32768;
        if (room < 7) {
            for (; room; room--)
                assert_int_equal(data[at++], 0);
            continue;
        }
        size_t size = (size_t)le(data + at + 4, 2);
        assert_int_equal(le(data + at, 4), crc_of(data + at + 6, size + 1));
        memcpy(out + used, data + at + 7, size);
        used += size;
        if (data[at + 6] == 1 || data[at + 6] == 4)
            ends[(*n)++] = used;
        at += 7 + size;
    }
    assert_int_equal(at, len);
    return out;
}

static uint64_t varint_at(const unsigned char **p)
{
    uint64_t v = 0;
    int shift = 0;
    do
        v |= (uint64_t)(**p & 0x7f) << shift;
    while (shift += 7, *(*p)++ & 0x80);
    return v;
}

/* The fields that are messages, by the numbers on the way to them. */
static bool is_message(const char *field)
{
    static const char *const all[] = { "2",    "2.1",    "2.2",   "3",  "3.1", "17",
                                       "17.4", "17.4.1", "17.17", "18", "21",  "21.1" };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i], field) == 0)
            return true;
    return false;
}

/* A line for each number and text: its fields and its value. */
static void show_message(FILE *out, const char *above, const unsigned char *p, size_t len)
{
    for (const unsigned char *end = p + len; p < end;) {
        uint64_t tag = varint_at(&p);
        char field[40];
        snprintf(field, sizeof field, "%s%s%u", above, *above ? "." : "", (unsigned)(tag >> 3));
        if ((tag & 7) == 0) {
            fprintf(out, "%s %llu\n", field, (unsigned long long)varint_at(&p));
            continue;
        }
        assert_int_equal(tag & 7, 2);
        size_t size = (size_t)varint_at(&p);
        assert_true(size <= (size_t)(end - p));
        if (is_message(field))
            show_message(out, field, p, size);
        else
            fprintf(out, "%s %.*s\n", field, (int)size, (const char *)p);
        p += size;
    }
}

/* The text of the run that lies in the folder, a blank line behind each record. */
static char *shown_run(size_t *records)
{
    char below[600], run[700], path[700], *text = NULL;
    size_t len, ends[2000];
    snprintf(below, sizeof below, "%s/wandb", folder);
    only_entry(below, "offline-run-", run);
    only_entry(run, "run-", path);
    unsigned char *data = read_whole(path, &len), *all = join_records(data, len, ends, records);
    FILE *out = open_memstream(&text, &len);
    for (size_t i = 0; i < *records; i++) {
        size_t from = i ? ends[i - 1] : 0;
        show_message(out, "", all + from, ends[i] - from);
        fputc('\n', out);
    }
    assert_int_equal(fclose(out), 0);
    free(data);
    free(all);
    return text;
}

/* Puts NAME in the place of a number behind `before`; the number. */
static double take_number(char *text, const char *before)
{
    char *at = strstr(text, before), *end;
    assert_non_null(at);
    at += strlen(before);
    double v = strtod(at, &end);
    assert_true(end > at);
    *at = 'T';
    memmove(at + 1, end, strlen(end) + 1);
    return v;
}

TEST_WITH(an_offline_run_says_everything, setup, teardown)
{
    cli_wandb w;
    char path[700], host[65] = "", wanted[2000];
    size_t n;
    snprintf(path, sizeof path, "%s/wandb/offline-run-20200101_000000-abcdefg7", folder);
    assert_true(cli_make_folder(path, 0700));
    tkc_tree *config = tkc_tree_pack(&json_arena, "{s:i,s:{s:[b]},s:s}", "a", 1, "b", "c", 1, "d", "\xc3\xa9");
    tkc_tree *row =
        tkc_tree_pack(&json_arena, "{s:i,s:f,s:s,s:n,s:i}", "step", 3, "loss", 1.5, "text", "x", "none", "n", 7);
    int64_t before = cli_now_us();
    assert_true(cli_wandb_open(&w, folder, "p", "run 1", config));
    int64_t begun = w.begun_us;
    assert_true(cli_wandb_row(&w, row));
    int64_t after = cli_now_us();
    assert_true(cli_wandb_close(&w));
    assert_true(before <= begun && begun <= after);
    char *text = shown_run(&n);
    double at = take_number(text, "_timestamp\n2.1.16 "), since = take_number(text, "_runtime\n2.1.16 ");
    assert_true(at * 1e6 >= (double)begun - 1 && at * 1e6 <= (double)after + 1);
    assert_true(since >= 0 && since * 1e6 <= (double)(after - begun) + 1 &&
                since * 1e6 >= at * 1e6 - (double)begun - 1);
    (void)take_number(text, "_timestamp\n3.1.16 ");
    (void)take_number(text, "_runtime\n3.1.16 ");
    (void)gethostname(host, sizeof host - 1);
    snprintf(wanted, sizeof wanted,
             "1 1\n21.1.1 tinkc " TINKC_VERSION "\n21.1.2 0.13.0\n\n"
             "1 2\n17.1 abcdefg7\n17.3 p\n17.4.1.1 a\n17.4.1.16 1\n17.4.1.1 b\n17.4.1.16 "
             "{\"c\":[true]}\n"
             "17.4.1.1 d\n17.4.1.16 \"\xc3\xa9\"\n17.8 run 1\n17.13 %s\n17.17.1 %lld\n17.17.2 %lld\n\n"
             "1 3\n2.1.2 loss\n2.1.16 1.5\n2.1.2 n\n2.1.16 7\n2.1.2 _step\n2.1.16 3\n2.1.2 "
             "_timestamp\n2.1.16 T\n"
             "2.1.2 _runtime\n2.1.16 T\n2.2.1 3\n\n"
             "1 4\n3.1.2 loss\n3.1.16 1.5\n3.1.2 n\n3.1.16 7\n3.1.2 _step\n3.1.16 3\n3.1.2 "
             "_timestamp\n3.1.16 T\n"
             "3.1.2 _runtime\n3.1.16 T\n\n"
             "1 5\n18.1 0\n\n",
             host, (long long)(begun / 1000000), (long long)(begun % 1000000 * 1000));
    assert_string_equal(text, wanted);
    assert_int_equal(n, 5);
    free(text);
}

/* A run with settings of this size, and a row; where the row began. */
static size_t write_run(size_t size)
{
    static char text[60000];
    size_t n;
    cli_wandb w;
    memset(text, 'x', size);
    text[size] = '\0';
    tkc_tree *config = tkc_tree_pack(&json_arena, "{s:s}", "a", text),
             *row = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 1, "loss", 2.5);
    assert_true(cli_wandb_open(&w, folder, "p", "n", config));
    size_t at = w.at;
    assert_true(cli_wandb_row(&w, row));
    assert_true(cli_wandb_close(&w));
    char *shown = shown_run(&n);
    assert_int_equal(n, 5);
    assert_non_null(strstr(shown, "2.1.2 loss\n2.1.16 2.5\n"));
    free(shown);
    return at;
}

/* Settings of many sizes, so that the next record begins around the end of a block; the time of the begin takes
 * more or fewer bytes. */
TEST_WITH(no_piece_begins_in_the_last_bytes, setup, teardown)
{
    size_t size = 20000 + 32768 - write_run(20000) % 32768;
    for (size_t less = 0; less < 24; less++)
        (void)write_run(size + 4 - less);
}

/* ---- both, by the options ---- */

TEST_WITH(exported_runs_are_named_after_their_folder, setup, teardown)
{
    static const struct {
        const char *below, *name;
    } rows[] = { { "deep/run", "run" }, { "deep/end/", NULL } };
    tkc_tree *config = tkc_tree_pack(&json_arena, "{s:i}", "a", 1),
             *row = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 1, "loss", 2.5);
    for (size_t i = 0; i < 2; i++) {
        cli_app app = { .command = cli_find("train", "sft") };
        cli_exports *e = NULL;
        char at[700], path[900];
        snprintf(at, sizeof at, "%s/%s", folder, rows[i].below);
        assert_true(cli_make_folder(at, 0700));
        assert_int_equal(cli_exports_open(&app, at, config, 0, &e), 0);
        assert_null(e); /* nothing was asked for */
        cli_exports_row(e, row);
        cli_exports_close(e);
        assert_int_equal(cli_set_value(&app, "wandb-project", i ? "" : "sums", CLI_FROM_PROGRAM, "test"), 0);
        /* Rows that the run has already are written again. */
        snprintf(path, sizeof path, "%s/metrics.jsonl", at);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs("{\"step\":0,\"loss\":7.5}\n[1]\nnot JSON\n", f);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(cli_exports_open(&app, at, config, 1, &e), 0);
        assert_non_null(e);
        cli_exports_row(e, row);
        cli_exports_close(e);
        char *before = folder;
        size_t n;
        folder = at;
        char *text = shown_run(&n);
        folder = before;
        assert_int_equal(n, 2 + 2 * 2 + 1);
        assert_non_null(strstr(text, i ? "17.3 tinkc\n" : "17.3 sums\n"));
        snprintf(path, sizeof path, "17.8 %s\n", rows[i].name ? rows[i].name : at);
        assert_non_null(strstr(text, path));
        const char *first = strstr(text, "2.1.16 7.5\n"), *second = strstr(text, "2.1.16 2.5\n");
        assert_true(first && second && first < second);
        free(text);
        snprintf(path, sizeof path, "%s/tensorboard", at);
        assert_int_equal(access(path, F_OK), -1);
        cli_exports_remove(at);
        snprintf(path, sizeof path, "%s/wandb", at);
        assert_int_equal(access(path, F_OK), -1);
        cli_parse_free(&app);
    }
}

/* A folder that cannot be written into is said at once. */
TEST_WITH(exports_that_cannot_begin, setup, teardown)
{
    cli_app app = { .command = cli_find("train", "sft") };
    cli_exports *e = NULL;
    char path[700], wanted[900];
    tkc_tree *config = tkc_tree_object(&json_arena);
    snprintf(path, sizeof path, "%s/wandb", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(cli_set_value(&app, "wandb-project", "p", CLI_FROM_PROGRAM, "test"), 0);
    hold_output();
    int code = cli_exports_open(&app, folder, config, 0, &e);
    char *said = release_output();
    snprintf(wanted, sizeof wanted, "error: %s/wandb: Not a directory\n", folder);
    assert_string_equal(said, wanted);
    assert_int_equal(code, CLI_EXIT_FAILED);
    assert_null(e);
    free(said);
    assert_int_equal(unlink(path), 0);
    cli_parse_free(&app);
}

/* No file of this process may become longer. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* How many warnings a log has; all are about this. */
static size_t warnings(const char *log, const char *wanted)
{
    size_t n = 0;
    for (const char *p = log; (p = strstr(p, "[WARNING] ")); n++) {
        p += strlen("[WARNING] ");
        assert_int_equal(strncmp(p, wanted, strlen(wanted)), 0);
    }
    return n;
}

/* A full disk ends an export with one warning, not the training: while rows are written again, at a row, and at the end. */
TEST_WITH(exports_on_a_full_disk, setup, teardown)
{
    enum { AGAIN, ROW, BOARD, END, ALL };
    tkc_tree *config = tkc_tree_object(&json_arena),
             *row = tkc_tree_pack(&json_arena, "{s:i,s:f}", "step", 1, "loss", 2.5);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (int when = AGAIN; when < ALL; when++) {
        char *log = NULL, path[700];
        size_t len;
        cli_app app = { .command = cli_find("train", "sft"), .quiet = true, .log_file = open_memstream(&log, &len) };
        cli_exports *e = NULL;
        assert_non_null(app.log_file);
        assert_int_equal(cli_set_value(&app, when == BOARD ? "tensorboard" : "wandb", "true", CLI_FROM_PROGRAM, "test"),
                         0);
        snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        for (int i = 0; when == AGAIN && i < 100; i++)
            fprintf(f, "{\"step\":%d,\"loss\":7.5}\n", i);
        assert_int_equal(fclose(f), 0);
        limit_files(when == AGAIN ? 4096 : RLIM_INFINITY);
        assert_int_equal(cli_exports_open(&app, folder, config, 0, &e), 0);
        const char *wanted =
            when == BOARD ? "--tensorboard: File too large; continuing" : "--wandb: File too large; continuing";
        fflush(app.log_file);
        assert_int_equal(warnings(log, wanted), when == AGAIN);
        limit_files(when == END ? RLIM_INFINITY : 0);
        cli_exports_row(e, row);
        fflush(app.log_file);
        assert_int_equal(warnings(log, wanted), when != END);
        cli_exports_row(e, row);
        limit_files(0);
        cli_exports_close(e);
        limit_files(RLIM_INFINITY);
        fclose(app.log_file);
        assert_int_equal(warnings(log, wanted), 1);
        free(log);
        cli_exports_remove(folder);
        cli_parse_free(&app);
    }
    (void)signal(SIGXFSZ, handler);
}
