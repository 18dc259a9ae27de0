/* tar_write.h - a tar, written by hand: also one that no decent program would write. */
#ifndef TESTS_TAR_WRITE_H
#define TESTS_TAR_WRITE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tar {
    char *data;
    size_t len;
} tar;

static inline void tar_raw(tar *t, const char *name, char type, const char *link, const void *data,
                           size_t len)
{
    size_t padded = (len + 511) / 512 * 512;
    t->data = realloc(t->data, t->len + 512 + padded);
    char *h = t->data + t->len;
    memset(h, 0, 512 + padded);
    snprintf(h, 100, "%s", name);
    snprintf(h + 100, 8, "%07o", 0644);
    snprintf(h + 108, 8, "%07o", 0);
    snprintf(h + 116, 8, "%07o", 0);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)len);
    snprintf(h + 136, 12, "%011o", 0);
    h[156] = type;
    snprintf(h + 157, 100, "%s", link ? link : "");
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    unsigned sum = 8 * ' ';
    for (int i = 0; i < 512; i++)
        sum += i >= 148 && i < 156 ? 0 : (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    h[155] = ' ';
    if (len)
        memcpy(h + 512, data, len);
    t->len += 512 + padded;
}

static inline void tar_end(tar *t)
{
    t->data = realloc(t->data, t->len + 1024);
    memset(t->data + t->len, 0, 1024);
    t->len += 1024;
}

#endif
