/* schema_pattern.c - regular expressions to automata: text, tree, states with empty moves, sets of states.
 *
 * Characters are written as JSON writes them: a quote, a backslash and white space that JSON escapes
 * are two bytes, others beyond ASCII two to four. All sizes are bounded, so a pattern costs at most
 * some milliseconds and 300 KiB. States that lead nowhere are taken out: from every state that is
 * left the string can be ended. Must not: know of tokens or requests.
 */
#include "constrain/schema_pattern.h"

#include <string.h>

#include "base/str.h"

enum { MOST_TREE = 512, MOST_STATES = 1024, MOST_SETS = 512, MOST_DEPTH = 32, MOST_REPEATS = 256 };
enum { WORDS = MOST_STATES / 64 };

/* ---- the tree ---- */

enum { T_EMPTY, T_SET, T_BYTES, T_CAT, T_ALT, T_REPEAT };

typedef struct tree {
    int32_t kind;
    uint64_t set[2]; /* of ASCII */
    bool wide;       /* and all beyond it */
    uint8_t bytes[4];
    size_t n_bytes;
    uint32_t left, right;
    int32_t min, max; /* max -1 = no limit */
} tree;

typedef struct parser {
    tinkc_str text;
    size_t at;
    tree *trees;
    size_t n;
    int depth;
    tinkc_error *err;
} parser;

static uint32_t bad(parser *p, const char *what)
{
    if (!tkc_failed(p->err))
        tkc_fail(p->err, TINKC_E_BAD_REQUEST, "pattern: %s (at byte %zu)", what, p->at);
    return 0;
}

static uint32_t add(parser *p, tree t)
{
    if (p->n == MOST_TREE)
        return bad(p, "it is too long");
    p->trees[p->n] = t;
    return (uint32_t)p->n++;
}

static bool more(const parser *p)
{
    return p->at < p->text.len && !tkc_failed(p->err);
}

static char peek(const parser *p)
{
    return p->at < p->text.len ? p->text.data[p->at] : '\0';
}

static void put(tree *t, unsigned char c)
{
    t->set[c / 64] |= UINT64_C(1) << c % 64;
}

static bool has(const tree *t, unsigned char c)
{
    return t->set[c / 64] >> c % 64 & 1;
}

static void put_range(tree *t, unsigned char from, unsigned char to)
{
    for (unsigned c = from; c <= to; c++)
        put(t, (unsigned char)c);
}

/* What JSON can write in two bytes at most: no other control characters. */
static void invert(tree *t)
{
    tree all = { 0 };
    put_range(&all, ' ', 0x7f);
    put(&all, '\t');
    put(&all, '\n');
    put(&all, '\r');
    for (size_t i = 0; i < 2; i++)
        t->set[i] = all.set[i] & ~t->set[i];
    t->wide = !t->wide;
}

/* \d, \w, \s and their opposites; false: another escape. */
static bool put_class(tree *t, char c)
{
    tree one = { 0 };
    char small = (char)(c | 0x20);
    if (small == 'd')
        put_range(&one, '0', '9');
    else if (small == 'w') {
        put_range(&one, '0', '9');
        put_range(&one, 'a', 'z');
        put_range(&one, 'A', 'Z');
        put(&one, '_');
    } else if (small == 's') {
        put(&one, ' ');
        put(&one, '\t');
        put(&one, '\n');
        put(&one, '\r');
    } else
        return false;
    if (c != small)
        invert(&one);
    t->set[0] |= one.set[0];
    t->set[1] |= one.set[1];
    t->wide |= one.wide;
    return true;
}

/* The character of an escape such as \. or \n; 0 with err set. */
static unsigned char escape_char(parser *p, char c)
{
    static const char marks[] = "\\^$.*+?()[]{}|/-\"' ,:;!@#%&=<>~`_";
    if (c == 'n' || c == 't' || c == 'r')
        return c == 'n' ? '\n' : c == 't' ? '\t' : '\r';
    if (c && strchr(marks, c))
        return (unsigned char)c;
    bad(p, c >= '1' && c <= '9'   ? "back references are not supported"
           : c == 'b' || c == 'B' ? "\\b is not supported"
           : c == 'p' || c == 'P' ? "\\p classes are not supported"
           : c == 'u' || c == 'x' ? "\\u and \\x are not supported; write the character"
                                  : "this escape is not supported");
    return 0;
}

/* One character of a class; 0 with err set, or after a class like \d (*whole). */
static unsigned char class_char(parser *p, tree *t, bool *whole)
{
    char c = p->text.data[p->at++];
    *whole = false;
    if ((unsigned char)c >= 0x80 || (unsigned char)c < ' ')
        return (unsigned char)bad(p, "classes take ASCII characters only");
    if (c != '\\')
        return (unsigned char)c;
    c = peek(p);
    if (p->at < p->text.len)
        p->at++;
    *whole = put_class(t, c);
    return *whole ? 0 : escape_char(p, c);
}

static uint32_t parse_class(parser *p)
{
    tree t = { .kind = T_SET };
    bool whole, negated = peek(p) == '^';
    p->at += negated;
    while (more(p) && peek(p) != ']') {
        unsigned char from = class_char(p, &t, &whole);
        if (whole || tkc_failed(p->err))
            continue;
        unsigned char to = from;
        if (peek(p) == '-' && p->at + 1 < p->text.len && p->text.data[p->at + 1] != ']') {
            p->at++;
            to = class_char(p, &t, &whole);
            if (whole || to < from)
                return bad(p, "a range of a class must go upwards");
        }
        put_range(&t, from, to);
    }
    if (!more(p))
        return bad(p, "a class is not closed");
    p->at++;
    if (negated)
        invert(&t);
    return add(p, t);
}

static uint32_t parse_alternatives(parser *p);

static uint32_t parse_group(parser *p)
{
    if (peek(p) == '?') {
        p->at++;
        if (peek(p) != ':')
            return bad(p, peek(p) == '<' ? "named groups and looking behind are not supported"
                                         : "looking ahead is not supported");
        p->at++;
    }
    if (++p->depth > MOST_DEPTH)
        return bad(p, "groups are nested too deep");
    uint32_t inside = parse_alternatives(p);
    p->depth--;
    if (peek(p) != ')')
        return bad(p, "a group is not closed");
    p->at++;
    return inside;
}

/* A character beyond ASCII: its bytes in a row. */
static uint32_t parse_wide(parser *p)
{
    tree t = { .kind = T_BYTES };
    do
        t.bytes[t.n_bytes++] = (uint8_t)p->text.data[p->at++];
    while (t.n_bytes < 4 && p->at < p->text.len && ((uint8_t)peek(p) & 0xc0) == 0x80);
    return add(p, t);
}

static uint32_t parse_atom(parser *p)
{
    tree t = { .kind = T_SET };
    char c = peek(p);
    if ((unsigned char)c >= 0x80)
        return parse_wide(p);
    p->at++;
    switch (c) {
    case '(':
        return parse_group(p);
    case '[':
        return parse_class(p);
    case '^':
    case '$':
        return bad(p, "^ and $ are supported at the ends of the pattern only");
    case '*':
    case '+':
    case '?':
    case '{':
        return bad(p, "there is nothing to repeat");
    case '.':
        put(&t, '\n');
        put(&t, '\r');
        invert(&t);
        return add(p, t);
    case '\\':
        c = peek(p);
        p->at++;
        if (!put_class(&t, c))
            put(&t, escape_char(p, c));
        return add(p, t);
    default:
        put(&t, (unsigned char)c);
        return add(p, t);
    }
}

static int32_t parse_count(parser *p)
{
    int32_t n = 0;
    if (peek(p) < '0' || peek(p) > '9')
        return (int32_t)bad(p, "a number is expected in {n,m}");
    while (peek(p) >= '0' && peek(p) <= '9' && n <= MOST_REPEATS)
        n = 10 * n + (p->text.data[p->at++] - '0');
    return n > MOST_REPEATS ? (int32_t)bad(p, "at most 256 repetitions are supported") : n;
}

static void parse_bounds(parser *p, tree *t)
{
    t->min = t->max = parse_count(p);
    if (peek(p) == ',') {
        p->at++;
        t->max = peek(p) == '}' ? -1 : parse_count(p);
    }
    if (peek(p) != '}' || (t->max >= 0 && t->max < t->min))
        bad(p, "{n,m} needs n, or n and an m that is not smaller");
    p->at++;
}

static uint32_t parse_repeat(parser *p)
{
    uint32_t atom = parse_atom(p);
    char c = peek(p);
    tree t = { .kind = T_REPEAT, .left = atom, .min = c == '+', .max = c == '?' ? 1 : -1 };
    if (!c || !strchr("*+?{", c) || tkc_failed(p->err))
        return atom;
    p->at++;
    if (c == '{')
        parse_bounds(p, &t);
    if (peek(p) && strchr("*+?{", peek(p)))
        return bad(p, "a repetition of a repetition is not supported");
    return add(p, t);
}

/* ".*", for a side without an anchor. */
static uint32_t anything(parser *p)
{
    tree any = { .kind = T_SET };
    invert(&any);
    uint32_t one = add(p, any);
    return add(p, (tree){ .kind = T_REPEAT, .left = one, .max = -1 });
}

static uint32_t parse_sequence(parser *p)
{
    bool top = p->depth == 0, begin = top && peek(p) == '^', end = false;
    p->at += begin;
    uint32_t all = top && !begin ? anything(p) : add(p, (tree){ .kind = T_EMPTY });
    while (more(p) && peek(p) != '|' && peek(p) != ')' && !end) {
        bool last = p->at + 1 == p->text.len || p->text.data[p->at + 1] == '|';
        if (top && peek(p) == '$' && last) {
            p->at++;
            end = true;
        } else
            all = add(p, (tree){ .kind = T_CAT, .left = all, .right = parse_repeat(p) });
    }
    return top && !end ? add(p, (tree){ .kind = T_CAT, .left = all, .right = anything(p) }) : all;
}

static uint32_t parse_alternatives(parser *p)
{
    uint32_t all = parse_sequence(p);
    while (more(p) && peek(p) == '|') {
        p->at++;
        all = add(p, (tree){ .kind = T_ALT, .left = all, .right = parse_sequence(p) });
    }
    return all;
}

/* ---- states with empty moves ---- */

typedef struct state {
    bool split;     /* moves to a and b without a byte */
    uint8_t lo, hi; /* else: with one of these to a */
    int32_t a, b;   /* -1 = none */
} state;

typedef struct builder {
    const tree *trees;
    state *states;
    size_t n;
    tinkc_error *err;
} builder;

static int32_t add_state(builder *b, state s)
{
    if (b->n == MOST_STATES) {
        if (!tkc_failed(b->err))
            tkc_fail(b->err, TINKC_E_BAD_REQUEST, "pattern: it is too large");
        return 0;
    }
    b->states[b->n] = s;
    return (int32_t)b->n++;
}

static int32_t either(builder *b, int32_t one, int32_t two)
{
    return one < 0 ? two : add_state(b, (state){ .split = true, .a = one, .b = two });
}

static int32_t range(builder *b, uint8_t lo, uint8_t hi, int32_t to)
{
    return add_state(b, (state){ .lo = lo, .hi = hi, .a = to, .b = -1 });
}

/* Well-formed UTF-8 of two to four bytes. */
static int32_t emit_wide(builder *b, int32_t to)
{
    static const uint8_t leads[][4] = { { 0xc2, 0xdf, 0x80, 0xbf }, { 0xe0, 0xe0, 0xa0, 0xbf },
                                        { 0xe1, 0xec, 0x80, 0xbf }, { 0xed, 0xed, 0x80, 0x9f },
                                        { 0xee, 0xef, 0x80, 0xbf }, { 0xf0, 0xf0, 0x90, 0xbf },
                                        { 0xf1, 0xf3, 0x80, 0xbf }, { 0xf4, 0xf4, 0x80, 0x8f } };
    int32_t third = range(b, 0x80, 0xbf, to), fourth = range(b, 0x80, 0xbf, third), all = -1;
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++) {
        const uint8_t *l = leads[i];
        int32_t rest = l[0] < 0xe0 ? to : l[0] < 0xf0 ? third : fourth;
        all = either(b, all, range(b, l[0], l[1], range(b, l[2], l[3], rest)));
    }
    return all;
}

static char escaped_as(unsigned char c)
{
    return c == '"' || c == '\\' ? (char)c
           : c == '\n'           ? 'n'
           : c == '\r'           ? 'r'
           : c == '\t'           ? 't'
                                 : '\0';
}

static int32_t emit_set(builder *b, const tree *t, int32_t to)
{
    int32_t all = t->wide ? emit_wide(b, to) : -1;
    for (unsigned c = 0; c < 128; c++) {
        unsigned from = c;
        char second = escaped_as((unsigned char)c);
        if (!has(t, (unsigned char)c))
            continue;
        if (second) {
            int32_t last = range(b, (uint8_t)second, (uint8_t)second, to);
            all = either(b, all, range(b, '\\', '\\', last));
            continue;
        }
        while (c + 1 < 128 && has(t, (unsigned char)(c + 1)) && !escaped_as((unsigned char)(c + 1)))
            c++;
        all = either(b, all, range(b, (uint8_t)from, (uint8_t)c, to));
    }
    return all < 0 ? range(b, 1, 0, to) : all; /* an empty class matches nothing */
}

static int32_t emit(builder *b, uint32_t at, int32_t to);

static int32_t emit_repeat(builder *b, const tree *t, int32_t to)
{
    int32_t next = to;
    if (t->max < 0) {
        int32_t loop = add_state(b, (state){ .split = true, .a = to, .b = -1 });
        int32_t body = emit(b, t->left, loop);
        b->states[loop].b = body;
        next = loop;
    }
    for (int32_t i = t->min; i < t->max && !tkc_failed(b->err); i++)
        next = either(b, emit(b, t->left, next), to);
    for (int32_t i = 0; i < t->min && !tkc_failed(b->err); i++)
        next = emit(b, t->left, next);
    return next;
}

/* The state in which what follows `at` and then `to` begins. */
static int32_t emit(builder *b, uint32_t at, int32_t to)
{
    const tree *t = &b->trees[at];
    if (tkc_failed(b->err))
        return 0;
    switch (t->kind) {
    case T_SET:
        return emit_set(b, t, to);
    case T_BYTES:
        for (size_t i = t->n_bytes; i > 0; i--)
            to = range(b, t->bytes[i - 1], t->bytes[i - 1], to);
        return to;
    case T_CAT:
        return emit(b, t->left, emit(b, t->right, to));
    case T_ALT: {
        int32_t left = emit(b, t->left, to), right = emit(b, t->right, to);
        return either(b, left, right);
    }
    case T_REPEAT:
        return emit_repeat(b, t, to);
    default:
        return to;
    }
}

/* ---- sets of states ---- */

typedef struct set {
    uint64_t bits[WORDS];
} set;

typedef struct sets {
    const builder *b;
    set *all;
    size_t n;
    uint8_t class_of[256]; /* bytes that no state tells apart */
    uint8_t sample[256];   /* a byte of each class */
    size_t n_classes;
} sets;

static void close_set(const builder *b, set *s, int32_t from)
{
    int32_t stack[2 * MOST_STATES + 1]; /* each state adds two at most, once */
    size_t n = 0;
    if (from >= 0 && !(s->bits[from / 64] >> from % 64 & 1))
        stack[n++] = from;
    while (n > 0) {
        int32_t at = stack[--n];
        if (s->bits[at / 64] >> at % 64 & 1)
            continue;
        s->bits[at / 64] |= UINT64_C(1) << at % 64;
        const state *q = &b->states[at];
        if (q->split && q->a >= 0)
            stack[n++] = q->a;
        if (q->split && q->b >= 0)
            stack[n++] = q->b;
    }
}

static void find_classes(sets *s)
{
    bool edge[257] = { false };
    for (size_t i = 1; i < s->b->n; i++) {
        const state *q = &s->b->states[i];
        if (!q->split && q->lo <= q->hi)
            edge[q->lo] = edge[q->hi + 1] = true;
    }
    for (size_t c = 0; c < 256; c++) {
        if (c == 0 || edge[c])
            s->sample[s->n_classes++] = (uint8_t)c;
        s->class_of[c] = (uint8_t)(s->n_classes - 1);
    }
}

/* The number of this set; MOST_SETS = there is no room for it. */
static size_t number_of(sets *s, const set *one)
{
    for (size_t i = 0; i < s->n; i++)
        if (memcmp(&s->all[i], one, sizeof *one) == 0)
            return i;
    if (s->n == MOST_SETS)
        return MOST_SETS;
    s->all[s->n] = *one;
    return s->n++;
}

static bool is_empty(const set *one)
{
    for (size_t i = 0; i < WORDS; i++)
        if (one->bits[i])
            return false;
    return true;
}

static set move(const sets *s, size_t from, uint8_t byte)
{
    set to = { { 0 } };
    for (size_t w = 0; w < WORDS; w++)
        for (uint64_t bits = s->all[from].bits[w]; bits; bits &= bits - 1) {
            const state *q = &s->b->states[64 * w + (size_t)__builtin_ctzll(bits)];
            if (!q->split && q->lo <= byte && byte <= q->hi)
                close_set(s->b, &to, q->a);
        }
    return to;
}

static bool fill_rows(sets *s, uint16_t *next, tinkc_error *err)
{
    for (size_t i = 0; i < s->n; i++) {
        uint16_t by_class[256];
        for (size_t k = 0; k < s->n_classes; k++) {
            set to = move(s, i, s->sample[k]);
            size_t at = is_empty(&to) ? TKE_PATTERN_NONE : number_of(s, &to);
            if (at == MOST_SETS)
                return tkc_fail(err, TINKC_E_BAD_REQUEST, "pattern: it is too large");
            by_class[k] = (uint16_t)at;
        }
        for (size_t c = 0; c < 256; c++)
            next[256 * i + c] = by_class[s->class_of[c]];
    }
    return true;
}

/* ---- the automaton ---- */

/* The shortest ways to an end; what has none is taken out. */
static void settle(tke_pattern *p, const sets *s)
{
    bool changed = true;
    for (size_t i = 0; i < p->n; i++)
        p->cost[i] = s->all[i].bits[0] & 1 ? 0 : INT32_MAX; /* state 0 is the end */
    while (changed) {
        changed = false;
        for (size_t i = 0; i < p->n; i++)
            for (size_t c = 0; c < 256; c++) {
                uint16_t to = p->next[256 * i + c];
                if (to == TKE_PATTERN_NONE || p->cost[to] == INT32_MAX ||
                    p->cost[to] + 1 >= p->cost[i])
                    continue;
                p->cost[i] = p->cost[to] + 1;
                changed = true;
            }
    }
    for (size_t i = 0; i < 256 * p->n; i++)
        if (p->next[i] != TKE_PATTERN_NONE && p->cost[p->next[i]] == INT32_MAX)
            p->next[i] = TKE_PATTERN_NONE;
}

static bool determine(tke_pattern *out, const builder *b, int32_t first, tkc_arena *arena,
                      tinkc_error *err)
{
    sets s = { .b = b, .all = tkc_arena_array(arena, MOST_SETS, sizeof *s.all, err) };
    uint16_t *next = tkc_arena_array(arena, 256 * (size_t)MOST_SETS, sizeof *next, err);
    if (!s.all || !next)
        return false;
    find_classes(&s);
    close_set(b, &s.all[0], first);
    s.n = 1;
    if (!fill_rows(&s, next, err))
        return false;
    *out = (tke_pattern){ .n = s.n,
                          .next = next,
                          .cost = tkc_arena_array(arena, s.n, sizeof *out->cost, err) };
    if (!out->cost)
        return false;
    settle(out, &s);
    return out->cost[0] < INT32_MAX ||
           tkc_fail(err, TINKC_E_BAD_REQUEST, "pattern: no string matches it");
}

bool tke_pattern_compile(tke_pattern *out, tkc_arena *arena, tinkc_str text, tinkc_error *err)
{
    parser p = { .text = text, .err = err };
    builder b = { .err = err };
    p.trees = tkc_arena_array(arena, MOST_TREE, sizeof *p.trees, err);
    b.states = tkc_arena_array(arena, MOST_STATES, sizeof *b.states, err);
    if (!p.trees || !b.states)
        return false;
    uint32_t root = parse_alternatives(&p);
    if (!tkc_failed(err) && p.at < text.len)
        bad(&p, "a ) closes no group");
    if (tkc_failed(err))
        return false;
    b.trees = p.trees;
    int32_t end = add_state(&b, (state){ .split = true, .a = -1, .b = -1 });
    int32_t first = emit(&b, root, end);
    return !tkc_failed(err) && determine(out, &b, first, arena, err);
}
