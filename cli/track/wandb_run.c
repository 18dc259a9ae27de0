/* wandb_run.c - Record messages in the framing of LevelDB's logs.
 *
 * The file begins with ":W&B", 0xBEE1 and a version. Then blocks of 32 KiB (the first 7 bytes count):
 * crc u32 | length u16 | type u8 | bytes, a record being one piece or a first, middle ones and a
 * last; the crc is zlib's, over type and bytes. No piece begins in the last 6 bytes of a block.
 */
#include "cli/track/wandb_run.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/files.h"
#include "cli/output/out.h"
#include "cli/output/text.h"

enum { BLOCK = 32768, HEAD = 7 };
enum { WHOLE = 1, FIRST = 2, MIDDLE = 3, LAST = 4 };
enum { /* fields of the messages in wandb_internal.proto */
       RECORD_NUM = 1,
       RECORD_HISTORY = 2,
       RECORD_SUMMARY = 3,
       RECORD_RUN = 17,
       RECORD_EXIT = 18,
       RECORD_HEADER = 21,
       HEADER_VERSION = 1,
       VERSION_PRODUCER = 1,
       VERSION_MIN_CONSUMER = 2,
       RUN_ID = 1,
       RUN_PROJECT = 3,
       RUN_CONFIG = 4,
       RUN_NAME = 8,
       RUN_HOST = 13,
       RUN_START = 17,
       UPDATE = 1, /* of a config, a summary and a history */
       ITEM_KEY = 1,
       ITEM_NESTED_KEY = 2,
       ITEM_JSON = 16,
       HISTORY_STEP = 2,
       STEP_NUM = 1,
       TIME_SECONDS = 1,
       TIME_NANOS = 2,
       EXIT_CODE = 1
};

/* ---- framing ---- */

static uint32_t crc32_zlib(uint32_t crc, const unsigned char *p, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
    return ~crc;
}

static void put(cli_wandb *w, const void *data, size_t len)
{
    w->bad |= fwrite(data, 1, len, w->f) != len;
    w->at += len;
}

static void put_piece(cli_wandb *w, int type, const unsigned char *data, size_t len)
{
    unsigned char head[HEAD];
    head[6] = (unsigned char)type;
    cli_put_le(head, crc32_zlib(crc32_zlib(0, head + 6, 1), data, len), 4);
    cli_put_le(head + 4, len, 2);
    put(w, head, HEAD);
    put(w, data, len);
}

/* Ends `record`, whose parts have been written, and empties it. */
static bool put_record(cli_wandb *w)
{
    static const unsigned char zeros[HEAD];
    const unsigned char *data = w->record.data;
    size_t left = w->record.len;
    bool first = true;
    do {
        size_t room = BLOCK - w->at % BLOCK;
        if (room < HEAD) {
            put(w, zeros, room);
            room = BLOCK;
        }
        size_t n = left < room - HEAD ? left : room - HEAD;
        put_piece(w,
                  first && n == left ? WHOLE
                  : first            ? FIRST
                  : n == left        ? LAST
                                     : MIDDLE,
                  data, n);
        data += n;
        left -= n;
        first = false;
    } while (left);
    w->bad |= w->record.bad || fflush(w->f) != 0;
    cli_pb_clear(&w->record);
    return !w->bad;
}

static void begin_record(cli_wandb *w)
{
    cli_pb_clear(&w->record);
    cli_pb_int(&w->record, RECORD_NUM, ++w->n_records);
}

/* ---- records ---- */

static void add_item(cli_wandb *w, uint32_t key_field, const char *key, const tkc_tree *v)
{
    char *text = cli_json_print(v, TKC_TREE_COMPACT);
    if (!text) { /* what JSON cannot say */
        w->bad |= errno == ENOMEM;
        return;
    }
    cli_pb_text(&w->item, key_field, key);
    cli_pb_text(&w->item, ITEM_JSON, text);
    cli_pb_message(&w->part, UPDATE, &w->item);
    free(text);
}

static bool put_header(cli_wandb *w)
{
    static const unsigned char mark[HEAD] = { ':', 'W', '&', 'B', 0xe1, 0xbe, 0 };
    put(w, mark, HEAD);
    begin_record(w);
    cli_pb_text(&w->item, VERSION_PRODUCER, "tinkc " TINKC_VERSION);
    cli_pb_text(&w->item, VERSION_MIN_CONSUMER, "0.13.0");
    cli_pb_message(&w->part, HEADER_VERSION, &w->item);
    cli_pb_message(&w->record, RECORD_HEADER, &w->part);
    return put_record(w);
}

static bool put_run(cli_wandb *w, const char *project, const char *name, const tkc_tree *config)
{
    cli_pb run = { 0 };
    char host[65] = "";
    const char *key;
    tkc_tree *v;
    (void)gethostname(host, sizeof host - 1);
    TKC_TREE_EACH (config, key, v)
        add_item(w, ITEM_KEY, key, v);
    cli_pb_text(&run, RUN_ID, w->id);
    cli_pb_text(&run, RUN_PROJECT, project);
    cli_pb_message(&run, RUN_CONFIG, &w->part);
    cli_pb_text(&run, RUN_NAME, name);
    cli_pb_text(&run, RUN_HOST, host);
    cli_pb_int(&w->item, TIME_SECONDS, w->begun_us / 1000000);
    cli_pb_int(&w->item, TIME_NANOS, w->begun_us % 1000000 * 1000);
    cli_pb_message(&run, RUN_START, &w->item);
    begin_record(w);
    cli_pb_message(&w->record, RECORD_RUN, &run);
    cli_pb_free(&run);
    return put_record(w);
}

static tkc_tree *row_items(tkc_arena *arena, const cli_wandb *w, const tkc_tree *row)
{
    tkc_tree *out = tkc_tree_object(arena), *v;
    const char *key;
    int64_t now = cli_now_us();
    TKC_TREE_EACH (row, key, v) {
        if (tkc_tree_is_number(v) && isfinite(tkc_tree_number(v)) && strcmp(key, "step") != 0)
            tkc_tree_set(out, key, v);
    }
    tkc_tree_set_i64(out, "_step", tkc_tree_get_i64(row, "step"));
    tkc_tree_set_real(out, "_timestamp", (double)now / 1e6);
    tkc_tree_set_real(out, "_runtime", (double)(now - w->begun_us) / 1e6);
    return out;
}

static void add_items(cli_wandb *w, const tkc_tree *items)
{
    const char *key;
    tkc_tree *v;
    TKC_TREE_EACH (items, key, v)
        add_item(w, ITEM_NESTED_KEY, key, v);
}

/* The summary is what the run's page shows as its last values. */
bool cli_wandb_row(cli_wandb *w, const tkc_tree *row)
{
    tkc_arena arena = { 0 };
    const tkc_tree *items = row_items(&arena, w, row);
    begin_record(w);
    add_items(w, items);
    cli_pb_int(&w->item, STEP_NUM, tkc_tree_get_i64(row, "step"));
    cli_pb_message(&w->part, HISTORY_STEP, &w->item);
    cli_pb_message(&w->record, RECORD_HISTORY, &w->part);
    bool ok = put_record(w);
    begin_record(w);
    add_items(w, items);
    cli_pb_message(&w->record, RECORD_SUMMARY, &w->part);
    tkc_arena_free(&arena);
    return put_record(w) && ok;
}

/* ---- folders ---- */

static bool is_offline_run(const char *name)
{
    static const char shape[] = "offline-run-########_######-********";
    size_t i = 0;
    for (; shape[i] && name[i]; i++) {
        unsigned char c = (unsigned char)name[i];
        bool fits = shape[i] == '#' ? isdigit(c) : shape[i] == '*' ? isalnum(c) : c == shape[i];
        if (!fits)
            return false;
    }
    return !shape[i] && !name[i];
}

/* The run that was written here before: its name in `out`, or "". */
static void find_before(const char *folder, char out[64])
{
    DIR *d = opendir(folder);
    out[0] = '\0';
    for (const struct dirent *e; d && (e = readdir(d));)
        if (is_offline_run(e->d_name) && strcmp(e->d_name, out) > 0)
            (void)snprintf(out, 64, "%.63s", e->d_name);
    if (d)
        closedir(d);
}

/* What we and `wandb sync` have put there; a folder with anything else in it stays. */
static void remove_before(const char *folder, const char *name, const char *id)
{
    static const char *const inside[] = { "%s/%s/run-%s.wandb",
                                          "%s/%s/run-%s.wandb.synced",
                                          "%s/%s/run-%s.wandb.syncstate",
                                          "%s/%s/files",
                                          "%s/%s/logs",
                                          "%s/%s" };
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        char *path = cli_printf(inside[i], folder, name, id);
        if (path)
            (void)remove(path);
        free(path);
    }
}

void cli_wandb_remove(const char *folder)
{
    char before[64], *above = cli_printf("%s/wandb", folder);
    if (!above)
        return;
    find_before(above, before);
    if (before[0])
        remove_before(above, before, before + strlen(before) - CLI_WANDB_ID);
    (void)rmdir(above);
    free(above);
}

/* Its end is there already, as before an id that is read: the run began as all zero. */
static void make_id(char id[CLI_WANDB_ID + 1])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char bytes[CLI_WANDB_ID] = { 0 };
    (void)tkc_random_bytes(bytes, sizeof bytes);
    for (size_t i = 0; i < CLI_WANDB_ID; i++)
        id[i] = letters[bytes[i] % (sizeof letters - 1)];
}

/* Makes the folders and the file. */
static bool make_file(cli_wandb *w, const char *above)
{
    char when[32];
    struct tm at;
    time_t seconds = (time_t)(w->begun_us / 1000000);
    localtime_r(&seconds, &at);
    (void)strftime(when, sizeof when, "%Y%m%d_%H%M%S", &at);
    w->folder = cli_printf("%s/offline-run-%s-%s", above, when, w->id);
    char *files = w->folder ? cli_printf("%s/files", w->folder) : NULL;
    char *logs = w->folder ? cli_printf("%s/logs", w->folder) : NULL;
    char *path = w->folder ? cli_printf("%s/run-%s.wandb", w->folder, w->id) : NULL;
    if (files && logs && path && cli_make_folder(files, 0777) && cli_make_folder(logs, 0777))
        w->f = fopen(path, "we");
    free(files);
    free(logs);
    free(path);
    return w->f != NULL;
}

bool cli_wandb_open(cli_wandb *w, const char *folder, const char *project, const char *name,
                    const tkc_tree *config)
{
    char before[64];
    *w = (cli_wandb){ .begun_us = cli_now_us() };
    char *above = cli_printf("%s/wandb", folder);
    if (!above)
        return false;
    find_before(above, before);
    if (before[0])
        memcpy(w->id, before + strlen(before) - CLI_WANDB_ID, CLI_WANDB_ID);
    else
        make_id(w->id);
    bool ok = make_file(w, above) && put_header(w) && put_run(w, project, name, config);
    if (ok && before[0] && !strstr(w->folder, before))
        remove_before(above, before, w->id);
    free(above);
    return ok;
}

bool cli_wandb_close(cli_wandb *w)
{
    if (w->f) {
        begin_record(w);
        cli_pb_int(&w->part, EXIT_CODE, 0);
        cli_pb_message(&w->record, RECORD_EXIT, &w->part);
        put_record(w);
        w->bad |= fclose(w->f) != 0;
    }
    bool ok = !w->bad;
    cli_pb_free(&w->item);
    cli_pb_free(&w->part);
    cli_pb_free(&w->record);
    free(w->folder);
    *w = (cli_wandb){ 0 };
    return ok;
}
