/* pb_write.c - a message that grows in memory, over the wire form of codec/pb.h. */
#include "cli/track/pb_write.h"

#include <stdlib.h>
#include <string.h>

#include "codec/pb.h"

void cli_pb_free(cli_pb *m)
{
    free(m->data);
    *m = (cli_pb){ 0 };
}

void cli_pb_clear(cli_pb *m)
{
    m->len = 0;
}

static void add(cli_pb *m, const void *data, size_t len)
{
    if (m->cap - m->len < len) {
        size_t cap = (m->len + len) * 2;
        unsigned char *grown = m->bad ? NULL : realloc(m->data, cap);
        if (!grown) {
            m->bad = true;
            return;
        }
        m->data = grown;
        m->cap = cap;
    }
    if (len)
        memcpy(m->data + m->len, data, len);
    m->len += len;
}

static void varint(cli_pb *m, uint64_t v)
{
    unsigned char text[TKC_PB_MAX_VARINT];
    add(m, text, (size_t)(tkc_pb_put_varint(text, v) - text));
}

static void tag(cli_pb *m, uint32_t field, uint32_t wire)
{
    unsigned char text[TKC_PB_MAX_VARINT];
    add(m, text, (size_t)(tkc_pb_put_tag(text, field, wire) - text));
}

void cli_put_le(unsigned char *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static void fixed(cli_pb *m, uint64_t bits, size_t bytes)
{
    unsigned char text[8];
    cli_put_le(text, bits, bytes);
    add(m, text, bytes);
}

void cli_pb_int(cli_pb *m, uint32_t field, int64_t value)
{
    tag(m, field, TKC_PB_VARINT);
    varint(m, (uint64_t)value);
}

void cli_pb_double(cli_pb *m, uint32_t field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    tag(m, field, TKC_PB_FIXED64);
    fixed(m, bits, 8);
}

void cli_pb_float(cli_pb *m, uint32_t field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    tag(m, field, TKC_PB_FIXED32);
    fixed(m, bits, 4);
}

void cli_pb_bytes(cli_pb *m, uint32_t field, const void *data, size_t len)
{
    tag(m, field, TKC_PB_BYTES);
    varint(m, len);
    add(m, data, len);
}

void cli_pb_text(cli_pb *m, uint32_t field, const char *text)
{
    if (text)
        cli_pb_bytes(m, field, text, strlen(text));
}

void cli_pb_message(cli_pb *m, uint32_t field, cli_pb *inner)
{
    m->bad |= inner->bad;
    cli_pb_bytes(m, field, inner->data, inner->len);
    inner->len = 0;
}
