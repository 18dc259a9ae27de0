/* held_output.h - what the tested code writes to stdout and stderr, as a text. */
#ifndef TINKC_TESTS_HELD_OUTPUT_H
#define TINKC_TESTS_HELD_OUTPUT_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    FILE *file;
    int before[2]; /* of stdout and stderr */
} held_output;

/* From here on both go into a file. */
static inline void hold_output(void)
{
    held_output.file = tmpfile();
    if (!held_output.file)
        abort();
    for (int i = 0; i < 2; i++) {
        fflush(i ? stderr : stdout);
        held_output.before[i] = dup(i + 1);
        if (dup2(fileno(held_output.file), i + 1) < 0)
            abort();
    }
}

/* Ends that; what was written since, yours. An escape shows as ^[, a carriage return as ^M. */
static inline char *release_output(void)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    for (int i = 0; i < 2; i++) {
        fflush(i ? stderr : stdout);
        dup2(held_output.before[i], i + 1);
        close(held_output.before[i]);
    }
    rewind(held_output.file);
    for (int c; out && (c = getc(held_output.file)) != EOF;)
        if (c == '\033' || c == '\r')
            fputs(c == '\r' ? "^M" : "^[", out);
        else
            fputc(c, out);
    fclose(held_output.file);
    if (!out || fclose(out) != 0)
        abort();
    return text;
}

#endif
