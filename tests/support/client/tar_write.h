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

/* Writes the sum of the header that begins at h. */
static inline void tar_sum(char *h)
{
    unsigned sum = 8 * ' ';
    for (int i = 0; i < 512; i++)
        sum += i >= 148 && i < 156 ? 0 : (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    h[155] = ' ';
}

static inline void tar_raw(tar *t, const char *name, char type, const char *link, const void *data, size_t len)
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
    tar_sum(h);
    if (len)
        memcpy(h + 512, data, len);
    t->len += 512 + padded;
}

/* A sparse file as GNU tar writes it: `data` are its pieces, each at a place of its own. */
static inline void tar_sparse(tar *t, const char *name, const unsigned (*pieces)[2], size_t n, unsigned size,
                              const void *data, size_t len)
{
    size_t at = t->len;
    tar_raw(t, name, 'S', NULL, data, len);
    char *h = t->data + at;
    memcpy(h + 257, "ustar  ", 8);
    for (size_t i = 0; i < n && i < 4; i++) {
        snprintf(h + 386 + 24 * i, 12, "%011o", pieces[i][0]);
        snprintf(h + 398 + 24 * i, 12, "%011o", pieces[i][1]);
    }
    snprintf(h + 483, 12, "%011o", size);
    tar_sum(h);
}

static inline void tar_end(tar *t)
{
    t->data = realloc(t->data, t->len + 1024);
    memset(t->data + t->len, 0, 1024);
    t->len += 1024;
}

#endif
