/* jinja_wrap.c - the wordwrap filter, as Python's textwrap breaks lines. May touch: the run. */
#include "tokenizer/jinja_func.h"

#include <string.h>

/* A word, a part of one that ends with a hyphen, or the blanks between words. */
typedef struct chunk {
    size_t begin, end; /* bytes */
    int64_t chars;
    bool blank;
} chunk;

typedef struct wrapper {
    tkc_jev *ev;
    tinkc_str line, newline;
    int64_t width;
    bool break_words, break_hyphens;
    chunk *chunks;
    size_t n;
    bool wrote; /* a line of this paragraph */
} wrapper;

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_letter_at(tinkc_str s, size_t at, size_t *next)
{
    if (at >= s.len)
        return false;
    *next = at;
    uint32_t c = tkc_j_char(s, next);
    return c == '_' || tkc_j_is(c, TKC_JCHAR_ALPHA);
}

static size_t previous(tinkc_str s, size_t at)
{
    do
        at--;
    while (at > 0 && ((unsigned char)s.data[at] & 0xC0) == 0x80);
    return at;
}

/* Whether a word may be broken behind the hyphen that ends at `at`: two letters, or a letter, a
 * hyphen and a letter, before it; a letter and another one behind it. */
static bool breaks_behind(tinkc_str s, size_t word, size_t at)
{
    size_t end, next, third;
    size_t last = at - 1 > word ? previous(s, at - 1) : at;
    size_t before = last > word && last < at ? previous(s, last) : at;
    if (last == at || before == at || !is_letter_at(s, last, &end))
        return false;
    bool hyphen = s.data[before] == '-' && before > word;
    if (!is_letter_at(s, hyphen ? previous(s, before) : before, &end))
        return false;
    if (!is_letter_at(s, at, &next))
        return false;
    if (next < s.len && s.data[next] == '-')
        next++;
    return is_letter_at(s, next, &third);
}

static bool cut_chunks(wrapper *w)
{
    tinkc_str s = w->line;
    w->n = 0;
    w->chunks = tkc_j_alloc(w->ev, (s.len + 1) * sizeof *w->chunks);
    if (!w->chunks || !tkc_j_charge(w->ev, s.len / 8))
        return false;
    for (size_t i = 0; i < s.len;) {
        chunk c = { .begin = i, .blank = is_blank(s.data[i]) };
        while (i < s.len && is_blank(s.data[i]) == c.blank) {
            bool hyphen = s.data[i] == '-';
            (void)tkc_j_char(s, &i);
            c.chars++;
            if (hyphen && w->break_hyphens && breaks_behind(s, c.begin, i))
                break;
        }
        c.end = i;
        w->chunks[w->n++] = c;
    }
    return true;
}

static bool put_line(wrapper *w, size_t begin, size_t end)
{
    if (w->wrote && !tkc_j_put(w->ev, w->newline.data, w->newline.len))
        return false;
    w->wrote = true;
    return tkc_j_charge(w->ev, 1) && tkc_j_put(w->ev, w->line.data + begin, end - begin);
}

/* Takes as much of a chunk as is left of the line. */
static size_t break_chunk(wrapper *w, chunk *c, int64_t room)
{
    size_t end = c->begin;
    int64_t chars = 0;
    size_t hyphen = 0;
    int64_t hyphen_chars = 0;
    bool other = false; /* than hyphens */
    while (chars < room && end < c->end) {
        bool is_hyphen = w->line.data[end] == '-';
        (void)tkc_j_char(w->line, &end);
        chars++;
        if (is_hyphen && other && w->break_hyphens) {
            hyphen = end;
            hyphen_chars = chars;
        }
        other = other || !is_hyphen;
    }
    if (hyphen) {
        end = hyphen;
        chars = hyphen_chars;
    }
    c->begin = end;
    c->chars -= chars;
    return end;
}

static bool wrap_line(wrapper *w)
{
    w->wrote = false;
    if (!cut_chunks(w))
        return false;
    for (size_t i = 0; i < w->n;) {
        if (w->chunks[i].blank && w->wrote) /* not at the beginning of a line, but of the first */
            i++;
        if (i == w->n)
            break;
        size_t begin = w->chunks[i].begin, end = begin, first = i;
        int64_t used = 0;
        while (i < w->n && used + w->chunks[i].chars <= w->width) {
            used += w->chunks[i].chars;
            end = w->chunks[i++].end;
        }
        bool full = false;
        if (i < w->n && w->chunks[i].chars > w->width) { /* longer than any line */
            full = w->break_words && used == w->width;
            if (w->break_words && !full)
                end = break_chunk(w, &w->chunks[i], w->width - used);
            else if (!full && i == first)
                end = w->chunks[i++].end;
        }
        /* A full line before a long word ends with nothing of it, so what is blank before stays. */
        while (!full && end > begin && is_blank(w->line.data[end - 1]))
            end--;
        if (end > begin && !put_line(w, begin, end))
            return false;
    }
    return true;
}

tkc_jv tkc_jfilter_wordwrap(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "width", "break_long_words", "wrapstring",
                                          "break_on_hyphens" };
    tkc_jv a[4];
    wrapper w = { .ev = ev, .width = 79 };
    if (!tkc_j_bind(ev, args, "wordwrap", params, 4, 0, a))
        return tkc_jv_fail;
    if (v->kind != TKC_JV_STR)
        return tkc_j_fail(ev, "wordwrap: expected a string, not %s", tkc_jv_type(*v));
    if (a[0].kind != TKC_JV_MISSING && (!tkc_jv_i64(a[0], &w.width) || w.width <= 0))
        return tkc_j_fail(ev, "wordwrap: the width must be a positive integer");
    w.break_words = a[1].kind == TKC_JV_MISSING || tkc_jv_truth(a[1]);
    w.break_hyphens = a[3].kind == TKC_JV_MISSING || tkc_jv_truth(a[3]);
    w.newline = a[2].kind == TKC_JV_STR && a[2].s->len ? tkc_jv_text(a[2]) : tkc_str("\n");
    tkc_jv lines = tkc_j_splitlines(ev, *v, false);
    if (tkc_jv_failed(lines))
        return lines;
    size_t mark = ev->out.len;
    for (size_t i = 0; i < lines.l->len; i++) {
        w.line = tkc_jv_text(lines.l->items[i]);
        if ((i && !tkc_j_put(ev, w.newline.data, w.newline.len)) || !wrap_line(&w))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}
