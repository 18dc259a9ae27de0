/* tfevents.c - TFRecord framing around Event messages.
 *
 *     length u64 | masked crc of the length u32 | message | masked crc of the message u32
 */
#include "cli/track/tfevents.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/files.h"
#include "cli/output/text.h"

enum { /* fields of Event, SessionLog, Summary and Summary.Value */
       EVENT_TIME = 1,
       EVENT_STEP = 2,
       EVENT_VERSION = 3,
       EVENT_SUMMARY = 5,
       EVENT_SESSION = 7,
       SESSION_STATUS = 1,
       SESSION_START = 1,
       SUMMARY_VALUE = 1,
       VALUE_TAG = 1,
       VALUE_NUMBER = 2
};

/* The bytes of one record are few: a table is not worth its place. */
static uint32_t crc32c(const unsigned char *p, size_t len)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    }
    return ~crc;
}

uint32_t cli_masked_crc32c(const void *data, size_t len)
{
    uint32_t crc = crc32c(data, len);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static bool put_record(cli_tfevents *t)
{
    unsigned char head[12], tail[4];
    const cli_pb *m = &t->event;
    cli_put_le(head, m->len, 8);
    cli_put_le(head + 8, cli_masked_crc32c(head, 8), 4);
    cli_put_le(tail, cli_masked_crc32c(m->data, m->len), 4);
    return !m->bad && fwrite(head, 1, 12, t->f) == 12 &&
           fwrite(m->data, 1, m->len, t->f) == m->len && fwrite(tail, 1, 4, t->f) == 4 &&
           fflush(t->f) == 0;
}

static void begin_event(cli_tfevents *t)
{
    int64_t now = cli_now_us();
    t->now_us = now > t->now_us ? now : t->now_us;
    cli_pb_clear(&t->event);
    cli_pb_double(&t->event, EVENT_TIME, (double)t->now_us / 1e6);
}

bool cli_tfevents_open(cli_tfevents *t, const char *folder, size_t step)
{
    char host[65] = "host";
    *t = (cli_tfevents){ 0 };
    (void)gethostname(host, sizeof host - 1);
    for (char *p = host; *p; p++)
        *p = *p == '/' ? '_' : *p;
    char *path = cli_printf("%s/tensorboard/events.out.tfevents.%lld.%s.%d.tinkc", folder,
                            (long long)(cli_now_us() / 1000000), host, (int)getpid());
    t->f = path && cli_make_parents(path, 0777) ? fopen(path, "we") : NULL;
    free(path);
    if (!t->f)
        return false;
    begin_event(t);
    cli_pb_text(&t->event, EVENT_VERSION, "brain.Event:2");
    bool ok = put_record(t);
    begin_event(t);
    cli_pb_int(&t->value, SESSION_STATUS, SESSION_START);
    cli_pb_int(&t->event, EVENT_STEP, (int64_t)step);
    cli_pb_message(&t->event, EVENT_SESSION, &t->value);
    return put_record(t) && ok;
}

bool cli_tfevents_row(cli_tfevents *t, const tkc_tree *row)
{
    const char *name;
    tkc_tree *v;
    begin_event(t);
    cli_pb_clear(&t->summary);
    cli_pb_int(&t->event, EVENT_STEP, tkc_tree_get_i64(row, "step"));
    TKC_TREE_EACH (row, name, v) {
        double number = tkc_tree_number(v);
        if (!tkc_tree_is_number(v) || strcmp(name, "step") == 0 || !isfinite(number))
            continue;
        cli_pb_text(&t->value, VALUE_TAG, name);
        cli_pb_float(&t->value, VALUE_NUMBER, (float)number);
        cli_pb_message(&t->summary, SUMMARY_VALUE, &t->value);
    }
    cli_pb_message(&t->event, EVENT_SUMMARY, &t->summary);
    return put_record(t);
}

static bool is_ours(const char *name)
{
    static const char begin[] = "events.out.tfevents.", end[] = ".tinkc";
    size_t n = strlen(name);
    return n > sizeof begin + sizeof end && strncmp(name, begin, sizeof begin - 1) == 0 &&
           strcmp(name + n - (sizeof end - 1), end) == 0;
}

void cli_tfevents_remove(const char *folder)
{
    char *below = cli_printf("%s/tensorboard", folder);
    DIR *d = below ? opendir(below) : NULL;
    for (const struct dirent *e; d && (e = readdir(d));) {
        char *path = is_ours(e->d_name) ? cli_printf("%s/%s", below, e->d_name) : NULL;
        if (path)
            (void)unlink(path);
        free(path);
    }
    if (d)
        closedir(d);
    if (below)
        (void)rmdir(below);
    free(below);
}

void cli_tfevents_close(cli_tfevents *t)
{
    if (t->f)
        fclose(t->f);
    cli_pb_free(&t->value);
    cli_pb_free(&t->summary);
    cli_pb_free(&t->event);
    *t = (cli_tfevents){ 0 };
}
