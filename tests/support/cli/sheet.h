/* sheet.h - what tested functions make of many inputs, against tests/data/cli/NAME.txt, a line for each input.
 *
 * TINKC_UPDATE=1 writes the files again; read the difference before you commit it. */
#ifndef TINKC_TESTS_SHEET_H
#define TINKC_TESTS_SHEET_H

#include "support/test_case.h"

#define N(list) (sizeof(list) / sizeof *(list))

static FILE *sheet; /* what a test writes its lines to */
static char *written;
static size_t written_len;

static inline int open_sheet(void **state)
{
    (void)state;
    sheet = open_memstream(&written, &written_len);
    return sheet ? 0 : -1;
}

static inline int close_sheet(void **state)
{
    (void)state;
    free(written);
    written = NULL;
    return 0;
}

static inline char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t cap = 0;
    if (!f)
        return strdup("");
    if (getdelim(&text, &cap, '\0', f) < 0)
        text[0] = '\0';
    fclose(f);
    return text;
}

/* The sheet is what the file says; the first line that differs is named. */
static inline void compare(const char *name)
{
    char path[200];
    (void)snprintf(path, sizeof path, "tests/data/cli/%s.txt", name);
    assert_int_equal(fclose(sheet), 0);
    if (getenv("TINKC_UPDATE")) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(written, f);
        assert_int_equal(fclose(f), 0);
    }
    char *wanted = read_file(path), *a = wanted, *b = written;
    for (size_t line = 1; *a || *b; line++) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n) != 0)
            fail_msg("%s:%zu\nwanted %.*s\nis     %.*s", path, line, (int)n, a, (int)m, b);
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
    free(wanted);
}

/* A sheet that has its inputs in itself: of each line but comments and indented ones, `put` writes what comes of it. */
static inline void each_row(const char *name, void (*put)(const char *input))
{
    char path[200];
    size_t rows = 0;
    (void)snprintf(path, sizeof path, "tests/data/cli/%s.txt", name);
    char *text = read_file(path), *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (!*line || *line == ' ')
            continue;
        fprintf(sheet, "%s\n", line);
        if (*line == '#')
            continue;
        put(line);
        rows++;
    }
    free(text);
    assert_true(rows > 0);
    compare(name);
}

/* Text on one line, as it would stand in C. */
static inline void put_quoted(const char *text, size_t len)
{
    fputc('"', sheet);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c >= 0x7F || c == '"' || c == '\\')
            fprintf(sheet, "\\%03o", c);
        else
            fputc(c, sheet);
    }
    fputc('"', sheet);
}

static inline void put_input(const char *text)
{
    put_quoted(text, strlen(text));
    fputs(" ", sheet);
}

#endif
