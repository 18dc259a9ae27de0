/* grammar.c - the automaton: one function for each kind of node, and the way to the nearest end.
 *
 * A kind's function looks at one byte and returns TAKEN, WRONG, or OVER: the value ended before the
 * byte, which belongs to the enclosing value. Numbers are limited to 15 digits before and after the
 * point and 2 in the exponent, white space to one blank, or a new line and 32 blanks: only strings,
 * lists and maps can be endless, and those can always be closed.
 *
 * May touch: the state. Must not: allocate, know of tokens.
 */
#include "constrain/grammar.h"

#include <assert.h>
#include <string.h>

enum { TAKEN, WRONG, OVER };
enum { MOST_BLANKS = 32, INT_DIGITS = 15, FRACTION_DIGITS = 15, EXPONENT_DIGITS = 2 };

static const tke_node *node_of(const tke_grammar *g, const tke_frame *f)
{
    return &g->nodes[f->node];
}

static bool has_first(const tke_node *n, uint8_t byte)
{
    return n->first[byte / 64] >> byte % 64 & 1;
}

static bool push(tke_grammar_state *s, uint32_t node)
{
    if (s->depth == TKE_GRAMMAR_DEPTH)
        return false;
    s->frames[s->depth++] = (tke_frame){ .node = node };
    return true;
}

static void go(tke_frame *f, uint16_t phase)
{
    f->phase = phase;
    f->space = 0;
}

/* White space between signs. WRONG: too much of it; OVER: the byte is something else. */
static int blank(tke_frame *f, uint8_t byte)
{
    if (byte == '\n' && f->space == 0)
        f->space = 2;
    else if (byte == ' ' && (f->space == 0 || (f->space >= 2 && f->space < 2 + MOST_BLANKS)))
        f->space++;
    else
        return byte == ' ' || byte == '\n' ? WRONG : OVER;
    return TAKEN;
}

/* ---- strings ---- */

enum { BEFORE, INSIDE, ESCAPED, CHARACTER, HEX };

static bool is_hex(uint8_t b)
{
    return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f') || (b >= 'A' && b <= 'F');
}

/* From a character's first byte: how many bytes follow, and the range of the next one. */
static bool lead(tke_frame *f, uint8_t b)
{
    uint8_t low = 0x80, high = 0xbf;
    if (b < 0xc2 || b > 0xf4)
        return false;
    f->pos = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
    low = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : low;
    high = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : high;
    f->value = low | high << 8;
    go(f, CHARACTER);
    return true;
}

static int in_string(const tke_node *n, tke_frame *f, uint8_t b)
{
    if (b < 0x20 || (int64_t)f->count >= n->max)
        return WRONG;
    if (b == '\\') {
        go(f, ESCAPED);
        return TAKEN;
    }
    f->count++;
    return b < 0x80 || lead(f, b) ? TAKEN : WRONG;
}

static int escaped(tke_frame *f, uint8_t b)
{
    if (b == 'u') {
        f->pos = 0;
        go(f, HEX);
        return TAKEN;
    }
    if (!b || !strchr("\"\\/bfnrt", b))
        return WRONG;
    f->count++;
    go(f, INSIDE);
    return TAKEN;
}

static int character(tke_frame *f, uint8_t b)
{
    if (b < (f->value & 0xff) || b > f->value >> 8)
        return WRONG;
    f->value = 0x80 | 0xbf << 8;
    if (--f->pos == 0) {
        f->value = 0;
        go(f, INSIDE);
    }
    return TAKEN;
}

/* Four hex digits, except surrogates (D800 to DFFF). */
static int hex(tke_frame *f, uint8_t b)
{
    if (!is_hex(b) || (f->pos == 1 && f->value && b >= '8'))
        return WRONG;
    f->value = f->pos == 0 && (b | 0x20) == 'd';
    if (++f->pos == 4) {
        f->pos = 0;
        f->count++;
        go(f, INSIDE);
    }
    return TAKEN;
}

static int string_step(const tke_node *n, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    if (f->phase == ESCAPED)
        return escaped(f, b);
    if (f->phase == CHARACTER)
        return character(f, b);
    if (f->phase == HEX)
        return hex(f, b);
    if (f->phase == INSIDE && b != '"')
        return in_string(n, f, b);
    if (b != '"' || (f->phase == INSIDE && (int64_t)f->count < n->min))
        return WRONG;
    if (f->phase == INSIDE)
        s->depth--;
    else
        go(f, INSIDE);
    return TAKEN;
}

static int64_t string_cost(const tke_node *n, const tke_frame *f)
{
    bool half = f->phase == ESCAPED || f->phase == HEX; /* a character that does not count yet */
    int64_t missing = n->min - (int64_t)f->count - half;
    int64_t open = f->phase == ESCAPED     ? 1
                   : f->phase == HEX       ? 4 - (int64_t)f->pos
                   : f->phase == CHARACTER ? (int64_t)f->pos
                   : f->phase == BEFORE    ? 1
                                           : 0;
    return open + (missing > 0 ? missing : 0) + 1;
}

/* ---- strings that match a pattern ---- */

static int pattern_step(const tke_node *n, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    if (f->phase == BEFORE) {
        go(f, INSIDE);
        return b == '"' ? TAKEN : WRONG;
    }
    uint16_t to = n->pattern->next[256 * f->at + b];
    if (to != TKE_PATTERN_NONE)
        f->at = to;
    else if (b == '"' && n->pattern->cost[f->at] == 0)
        s->depth--;
    else
        return WRONG;
    return TAKEN;
}

static int64_t pattern_cost(const tke_node *n, const tke_frame *f)
{
    return (f->phase == BEFORE) + (int64_t)n->pattern->cost[f->at] + 1;
}

/* ---- integers ---- */

enum { MINUS = 1, DIGITS, ZERO };

/* How many more digits bring the number into its range; -1 = impossible. */
static int more_digits(const tke_node *n, bool minus, int64_t digits)
{
    int64_t low = minus ? -n->max : n->min, high = minus ? -n->min : n->max, width = 1;
    low = low > 0 ? low : 0;
    for (int m = 0; m < 18 && digits <= high; m++) {
        if (digits + width - 1 >= low)
            return m;
        if (digits == 0 || digits > INT64_MAX / 10 / 10)
            return -1;
        digits *= 10;
        width *= 10;
    }
    return -1;
}

/* The fewest digits of a number with this sign; -1 = there is none. */
static int fewest_digits(const tke_node *n, bool minus)
{
    int best = -1;
    for (int d = 0; d <= 9; d++) {
        int m = more_digits(n, minus, d);
        if (m >= 0 && (best < 0 || m + 1 < best))
            best = m + 1;
    }
    return best;
}

static int integer_step(const tke_node *n, tke_frame *f, uint8_t b)
{
    if (f->phase == BEFORE && b == '-') {
        f->at = 1;
        go(f, MINUS);
        return n->min < 0 ? TAKEN : WRONG;
    }
    if (b < '0' || b > '9' || f->phase == ZERO)
        return (f->phase == DIGITS || f->phase == ZERO) && more_digits(n, f->at, f->value) == 0
                   ? OVER
                   : WRONG;
    f->value = f->value * 10 + b - '0';
    go(f, f->phase != DIGITS && b == '0' ? ZERO : DIGITS);
    return more_digits(n, f->at, f->value) >= 0 ? TAKEN : WRONG;
}

static int64_t integer_cost(const tke_node *n, const tke_frame *f)
{
    int plain = fewest_digits(n, false), minus = n->min < 0 ? fewest_digits(n, true) : -1;
    if (f->phase == DIGITS || f->phase == ZERO)
        return more_digits(n, f->at, f->value);
    if (f->phase == MINUS)
        return minus;
    return plain < 0 || (minus >= 0 && minus + 1 < plain) ? minus + 1 : plain;
}

/* ---- numbers ---- */

enum { POINT = 4, FRACTION, EXPONENT, SIGN, POWER };

static bool number_ends(const tke_frame *f)
{
    return f->phase == DIGITS || f->phase == ZERO || f->phase == FRACTION || f->phase == POWER;
}

/* The phase after a digit, or 0 if no digit is allowed here. */
static uint16_t after_digit(const tke_frame *f, uint8_t b)
{
    switch (f->phase) {
    case BEFORE:
    case MINUS:
        return b == '0' ? ZERO : DIGITS;
    case DIGITS:
        return f->count < INT_DIGITS ? DIGITS : 0;
    case POINT:
        return FRACTION;
    case FRACTION:
        return f->count < FRACTION_DIGITS ? FRACTION : 0;
    case EXPONENT:
    case SIGN:
        return POWER;
    case POWER:
        return f->count < EXPONENT_DIGITS ? POWER : 0;
    default:
        return 0;
    }
}

static int number_step(tke_frame *f, uint8_t b)
{
    uint16_t next = 0, was = f->phase;
    if (b >= '0' && b <= '9')
        next = after_digit(f, b);
    else if (b == '-' && was == BEFORE)
        next = MINUS;
    else if (b == '.' && (was == DIGITS || was == ZERO))
        next = POINT;
    else if ((b == 'e' || b == 'E') && (was == DIGITS || was == ZERO || was == FRACTION))
        next = EXPONENT;
    else if ((b == '+' || b == '-') && was == EXPONENT)
        next = SIGN;
    else
        return number_ends(f) ? OVER : WRONG;
    if (!next)
        return WRONG;
    f->count = next == was ? f->count + 1 : 1;
    go(f, next);
    return TAKEN;
}

/* ---- choices ---- */

enum { CHOOSING, TAIL };

static bool same_start(const tke_option *a, const tke_option *b, size_t n)
{
    return a->text.len >= n && memcmp(a->text.data, b->text.data, n) == 0;
}

static int choice_step(const tke_node *n, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    const tke_option *now = &n->options[f->at];
    if (f->phase == TAIL) {
        if (f->pos >= now->tail.len || (uint8_t)now->tail.data[f->pos] != b)
            return WRONG;
        if (++f->pos == now->tail.len)
            s->depth--;
        return TAKEN;
    }
    size_t i = f->at;
    while (i < n->n && same_start(&n->options[i], now, f->pos) &&
           (n->options[i].text.len == f->pos || (uint8_t)n->options[i].text.data[f->pos] != b))
        i++;
    if (i == n->n || !same_start(&n->options[i], now, f->pos))
        return f->pos && now->text.len == f->pos ? OVER : WRONG;
    now = &n->options[i];
    f->at = (uint32_t)i;
    if (++f->pos < now->text.len)
        return TAKEN;
    if (now->has_value) {
        go(f, TAIL);
        f->pos = 0;
        return push(s, now->node) ? TAKEN : WRONG;
    }
    if (i + 1 == n->n || !same_start(&n->options[i + 1], now, f->pos))
        s->depth--; /* no longer option has this prefix */
    return TAKEN;
}

static int64_t option_cost(const tke_grammar *g, const tke_option *o)
{
    return (int64_t)o->text.len +
           (o->has_value ? g->nodes[o->node].cost + (int64_t)o->tail.len : 0);
}

static int64_t choice_cost(const tke_grammar *g, const tke_node *n, const tke_frame *f)
{
    int64_t best = TKE_GRAMMAR_ENDLESS;
    if (f->phase == TAIL)
        return (int64_t)(n->options[f->at].tail.len - f->pos);
    for (size_t i = f->at; i < n->n && same_start(&n->options[i], &n->options[f->at], f->pos);
         i++) {
        int64_t cost = option_cost(g, &n->options[i]) - (int64_t)f->pos;
        best = cost < best ? cost : best;
    }
    return best;
}

/* ---- objects ---- */

enum { OPENED = 1, KEY, COLON, VALUE, AFTER, NEXT };

/* Members that may come next: from the next one up to the first that is required. */
static size_t candidates_end(const tke_node *n, size_t from)
{
    while (from < n->n && !n->members[from].required)
        from++;
    return from < n->n ? from + 1 : n->n;
}

static bool all_there(const tke_node *n, size_t from)
{
    while (from < n->n && !n->members[from].required)
        from++;
    return from == n->n;
}

static int key_step(const tke_node *n, tke_frame *f, uint8_t b)
{
    const tinkc_str now = n->members[f->at].key;
    for (size_t i = f->count; i < candidates_end(n, f->count); i++) {
        tinkc_str key = n->members[i].key;
        if (key.len <= f->pos || memcmp(key.data, now.data, f->pos) != 0 ||
            (uint8_t)key.data[f->pos] != b)
            continue;
        f->at = (uint32_t)i;
        if (++f->pos == key.len) {
            f->count = (uint32_t)i + 1;
            go(f, COLON);
        }
        return TAKEN;
    }
    return WRONG;
}

/* The first byte of a key. */
static int begin_key(const tke_grammar *g, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    const tke_node *n = node_of(g, f);
    if (n->kind == TKE_NODE_MAP) {
        go(f, COLON);
        return b == '"' && push(s, g->key) ? OVER : WRONG; /* the key's own frame takes the byte */
    }
    if (f->count >= n->n)
        return WRONG;
    f->at = f->count;
    f->pos = 0;
    go(f, KEY);
    return key_step(n, f, b);
}

static int close_or_more(const tke_grammar *g, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    const tke_node *n = node_of(g, f);
    bool more = (n->kind == TKE_NODE_MAP || f->count < n->n) && !f->space;
    if (b == '}' && (n->kind == TKE_NODE_MAP || all_there(n, f->count))) {
        s->depth--;
        return TAKEN;
    }
    if (f->phase == OPENED)
        return begin_key(g, s, f, b);
    if (b != ',' || !more)
        return WRONG;
    go(f, NEXT);
    return TAKEN;
}

/* White space only where people write it: not before a colon, and after a value only before the
 * closing brace. */
static bool may_blank(const tke_node *n, const tke_frame *f)
{
    return f->phase != COLON &&
           (f->phase != AFTER || n->kind == TKE_NODE_MAP || all_there(n, f->count));
}

static int object_step(const tke_grammar *g, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    const tke_node *n = node_of(g, f);
    int space;
    if (f->phase == BEFORE) {
        go(f, OPENED);
        return b == '{' ? TAKEN : WRONG;
    }
    if (f->phase == KEY)
        return key_step(n, f, b);
    if (may_blank(n, f) && (space = blank(f, b)) != OVER)
        return space;
    switch (f->phase) {
    case COLON:
        go(f, VALUE);
        return b == ':' ? TAKEN : WRONG;
    case VALUE:
        go(f, AFTER);
        return push(s, n->kind == TKE_NODE_MAP ? n->item : n->members[f->at].node) ? OVER : WRONG;
    case NEXT:
        return begin_key(g, s, f, b);
    default: /* OPENED, AFTER */
        return close_or_more(g, s, f, b);
    }
}

static int64_t member_cost(const tke_grammar *g, const tke_member *m)
{
    return (int64_t)m->key.len + 1 + g->nodes[m->node].cost;
}

/* The required members from `from`, each with a comma before it. */
static int64_t rest_cost(const tke_grammar *g, const tke_node *n, size_t from)
{
    int64_t sum = 0;
    for (size_t i = from; i < n->n; i++)
        sum += n->members[i].required ? 1 + member_cost(g, &n->members[i]) : 0;
    return sum;
}

/* The cheapest member that may come next or matches the key so far, with the required ones after
 * it. */
static int64_t next_cost(const tke_grammar *g, const tke_node *n, const tke_frame *f)
{
    int64_t best = TKE_GRAMMAR_ENDLESS;
    size_t begun = f->phase == KEY ? f->pos : 0;
    for (size_t i = f->count; i < candidates_end(n, f->count); i++) {
        tinkc_str key = n->members[i].key;
        if (begun && (key.len < begun || memcmp(key.data, n->members[f->at].key.data, begun) != 0))
            continue;
        int64_t cost = member_cost(g, &n->members[i]) + rest_cost(g, n, i + 1);
        best = cost < best ? cost : best;
    }
    return best;
}

static int64_t object_cost(const tke_grammar *g, const tke_node *n, const tke_frame *f)
{
    int64_t rest = rest_cost(g, n, f->count);
    switch (f->phase) {
    case BEFORE:
        return 2 + rest - (rest > 0);
    case OPENED:
        return 1 + rest - (rest > 0);
    case KEY:
        return next_cost(g, n, f) - f->pos + 1;
    case COLON:
        return 1 + g->nodes[n->members[f->at].node].cost + rest + 1;
    case VALUE:
        return g->nodes[n->members[f->at].node].cost + rest + 1;
    case NEXT:
        return next_cost(g, n, f) + 1;
    default:
        return rest + 1;
    }
}

static int64_t map_cost(const tke_grammar *g, const tke_node *n, const tke_frame *f)
{
    int64_t value = g->nodes[n->item].cost;
    return f->phase == BEFORE  ? 2
           : f->phase == NEXT  ? 2 + 1 + value + 1 /* "" and a value */
           : f->phase == COLON ? 1 + value + 1
           : f->phase == VALUE ? value + 1
                               : 1;
}

/* ---- lists ---- */

static int array_step(const tke_grammar *g, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    const tke_node *n = node_of(g, f);
    int space;
    if (f->phase == BEFORE) {
        go(f, OPENED);
        return b == '[' ? TAKEN : WRONG;
    }
    if ((f->phase != AFTER || (int64_t)f->count >= n->min) && (space = blank(f, b)) != OVER)
        return space;
    if (b == ']' && f->phase != NEXT && (int64_t)f->count >= n->min) {
        s->depth--;
        return TAKEN;
    }
    if (f->phase == AFTER) {
        bool spaced = f->space != 0;
        go(f, NEXT);
        return b == ',' && (int64_t)f->count < n->max && !spaced ? TAKEN : WRONG;
    }
    if ((int64_t)f->count >= n->max)
        return WRONG;
    f->count++;
    go(f, AFTER);
    return push(s, n->item) ? OVER : WRONG;
}

static int64_t array_cost(const tke_grammar *g, const tke_node *n, const tke_frame *f)
{
    int64_t each = 1 + (n->max > 0 ? g->nodes[n->item].cost : 0);
    int64_t missing = n->min - (int64_t)f->count;
    missing = missing < (f->phase == NEXT) ? f->phase == NEXT : missing;
    bool comma = f->phase != AFTER && missing > 0; /* the first of them has none */
    return (f->phase == BEFORE) + missing * each - comma + 1;
}

/* ---- all kinds ---- */

static int either_step(const tke_grammar *g, tke_frame *f, uint8_t b)
{
    const tke_node *n = node_of(g, f);
    for (size_t i = 0; i < n->n; i++)
        if (has_first(&g->nodes[n->branches[i]], b)) {
            *f = (tke_frame){ .node = n->branches[i] };
            return OVER; /* the branch takes the byte */
        }
    return WRONG;
}

static int frame_step(const tke_grammar *g, tke_grammar_state *s, tke_frame *f, uint8_t b)
{
    const tke_node *n = node_of(g, f);
    switch (n->kind) {
    case TKE_NODE_STRING:
        return string_step(n, s, f, b);
    case TKE_NODE_PATTERN:
        return pattern_step(n, s, f, b);
    case TKE_NODE_INTEGER:
        return integer_step(n, f, b);
    case TKE_NODE_NUMBER:
        return number_step(f, b);
    case TKE_NODE_CHOICE:
        return choice_step(n, s, f, b);
    case TKE_NODE_ARRAY:
        return array_step(g, s, f, b);
    case TKE_NODE_EITHER:
        return either_step(g, f, b);
    default:
        return object_step(g, s, f, b);
    }
}

static int64_t frame_cost(const tke_grammar *g, const tke_frame *f)
{
    const tke_node *n = node_of(g, f);
    int64_t best = TKE_GRAMMAR_ENDLESS;
    switch (n->kind) {
    case TKE_NODE_STRING:
        return string_cost(n, f);
    case TKE_NODE_PATTERN:
        return pattern_cost(n, f);
    case TKE_NODE_INTEGER:
        return integer_cost(n, f);
    case TKE_NODE_NUMBER:
        return number_ends(f) ? 0 : 1;
    case TKE_NODE_CHOICE:
        return choice_cost(g, n, f);
    case TKE_NODE_OBJECT:
        return object_cost(g, n, f);
    case TKE_NODE_MAP:
        return map_cost(g, n, f);
    case TKE_NODE_ARRAY:
        return array_cost(g, n, f);
    default:
        for (size_t i = 0; i < n->n; i++)
            best = g->nodes[n->branches[i]].cost < best ? g->nodes[n->branches[i]].cost : best;
        return best;
    }
}

/* Whether the value of a frame may end without another byte. */
static bool frame_may_end(const tke_grammar *g, const tke_frame *f)
{
    const tke_node *n = node_of(g, f);
    if (n->kind == TKE_NODE_INTEGER)
        return (f->phase == DIGITS || f->phase == ZERO) && more_digits(n, f->at, f->value) == 0;
    if (n->kind == TKE_NODE_NUMBER)
        return number_ends(f);
    return n->kind == TKE_NODE_CHOICE && f->phase == CHOOSING && f->pos &&
           n->options[f->at].text.len == f->pos;
}

/* A choice whose tail is empty ends with the value before it. */
static void drop_ended(const tke_grammar *g, tke_grammar_state *s)
{
    while (s->depth > 0) {
        const tke_frame *f = &s->frames[s->depth - 1];
        const tke_node *n = node_of(g, f);
        if (n->kind != TKE_NODE_CHOICE || f->phase != TAIL || n->options[f->at].tail.len)
            return;
        s->depth--;
    }
}

bool tke_grammar_step(const tke_grammar *g, tke_grammar_state *s, uint8_t byte)
{
    while (s->depth > 0) {
        size_t depth = s->depth;
        tke_frame *f = &s->frames[depth - 1];
        bool either = node_of(g, f)->kind == TKE_NODE_EITHER;
        int got = frame_step(g, s, f, byte);
        if (got == WRONG)
            return false;
        if (got == TAKEN) {
            if (s->depth < depth)
                drop_ended(g, s);
            return true;
        }
        if (s->depth == depth && !either) { /* the value ended before the byte */
            s->depth--;
            drop_ended(g, s);
        }
    }
    return false;
}

bool tke_grammar_may_end(const tke_grammar *g, const tke_grammar_state *s)
{
    return s->depth == 0 || (s->depth == 1 && frame_may_end(g, &s->frames[0]));
}

int64_t tke_grammar_cost(const tke_grammar *g, const tke_grammar_state *s)
{
    int64_t sum = 0;
    for (size_t i = 0; i < s->depth; i++)
        sum += frame_cost(g, &s->frames[i]);
    return sum;
}

void tke_grammar_start(const tke_grammar *g, tke_grammar_state *s)
{
    s->depth = 0;
    (void)push(s, g->root);
}

void tke_grammar_copy(tke_grammar_state *to, const tke_grammar_state *from)
{
    to->depth = from->depth;
    memcpy(to->frames, from->frames, from->depth * sizeof *from->frames);
}

/* ---- costs and first bytes of nodes ---- */

static void set_first(tke_node *n, uint8_t byte)
{
    n->first[byte / 64] |= UINT64_C(1) << byte % 64;
}

static void add_firsts(const tke_grammar *g, tke_node *n)
{
    switch (n->kind) {
    case TKE_NODE_STRING:
    case TKE_NODE_PATTERN:
        set_first(n, '"');
        break;
    case TKE_NODE_INTEGER:
    case TKE_NODE_NUMBER:
        for (uint8_t b = '0'; b <= '9'; b++)
            set_first(n, b);
        set_first(n, '-');
        break;
    case TKE_NODE_CHOICE:
        for (size_t i = 0; i < n->n; i++)
            set_first(n, (uint8_t)n->options[i].text.data[0]);
        break;
    case TKE_NODE_EITHER:
        for (size_t i = 0; i < n->n; i++)
            for (size_t k = 0; k < 4; k++)
                n->first[k] |= g->nodes[n->branches[i]].first[k];
        break;
    default:
        set_first(n, n->kind == TKE_NODE_ARRAY ? '[' : '{');
    }
}

/* Two branches of one node that begin alike cannot be distinguished. */
static bool check_branches(const tke_grammar *g, const tke_node *n, tinkc_error *err)
{
    uint64_t seen[4] = { 0 };
    for (size_t i = 0; n->kind == TKE_NODE_EITHER && i < n->n; i++)
        for (size_t k = 0; k < 4; k++) {
            if (seen[k] & g->nodes[n->branches[i]].first[k])
                return tkc_fail(err, TINKC_E_BAD_REQUEST,
                                "anyOf: two of the schemas begin with the same character, which is "
                                "not supported");
            seen[k] |= g->nodes[n->branches[i]].first[k];
        }
    return true;
}

bool tke_grammar_settle(tke_grammar *g, tinkc_error *err)
{
    bool changed = true;
    if (tkc_failed(err))
        return false;
    for (size_t i = 0; i < g->n; i++)
        g->nodes[i].cost = TKE_GRAMMAR_ENDLESS;
    while (changed) { /* costs only fall, and none below 1 */
        changed = false;
        for (size_t i = 0; i < g->n; i++) {
            tke_node *n = &g->nodes[i];
            uint64_t before[4];
            memcpy(before, n->first, sizeof before);
            add_firsts(g, n);
            int64_t cost = frame_cost(g, &(tke_frame){ .node = (uint32_t)i });
            changed |= memcmp(before, n->first, sizeof before) != 0 || cost < n->cost;
            n->cost = cost < n->cost ? (int32_t)cost : n->cost;
        }
    }
    for (size_t i = 0; i < g->n; i++)
        if (!check_branches(g, &g->nodes[i], err))
            return false;
    if (g->nodes[g->root].cost >= TKE_GRAMMAR_ENDLESS)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "no text of finite length fits the schema");
    return true;
}
