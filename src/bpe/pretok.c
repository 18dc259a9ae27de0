/* pretok.c - reading and running the pre-tokenizer chain. May touch: scanners and regexes. */
#include "bpe/pretok.h"

#include <assert.h>

#include "base/str.h"

/* ---- reading ---- */

static bool unsupported(tkc_json *j, const char *what, tinkc_str value)
{
    return tkc_fail(j->err, TINKC_E_TOKENIZER, "pre_tokenizer: %s%s%.*s is not supported", what,
                    value.len ? " " : "", (int)(value.len < 100 ? value.len : 100), value.data);
}

static tkc_step *add_step(tkc_pretok *p, tkc_json *j)
{
    if (p->n == TKC_MAX_STEPS) {
        unsupported(j, "a chain of so many steps", tkc_str(""));
        return NULL;
    }
    p->steps[p->n] = (tkc_step){ 0 };
    return &p->steps[p->n++];
}

typedef struct raw_step {
    tinkc_str type, behavior, pattern, steps; /* steps: raw JSON */
    bool literal, invert, prefix_space, use_regex, individual;
} raw_step;

static void read_pattern(tkc_json *j, raw_step *raw)
{
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        raw->literal = tkc_str_is(key, "String");
        if (!raw->literal && !tkc_str_is(key, "Regex"))
            unsupported(j, "pattern", key);
        raw->pattern = tkc_json_string(j);
    }
}

static void read_fields(tkc_json *j, raw_step *raw)
{
    tinkc_str key;
    *raw = (raw_step){ .prefix_space = true, .use_regex = true };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "type"))
            raw->type = tkc_json_string(j);
        else if (tkc_str_is(key, "pattern"))
            read_pattern(j, raw);
        else if (tkc_str_is(key, "behavior"))
            raw->behavior = tkc_json_string(j);
        else if (tkc_str_is(key, "invert"))
            raw->invert = tkc_json_bool(j);
        else if (tkc_str_is(key, "add_prefix_space"))
            raw->prefix_space = tkc_json_bool(j);
        else if (tkc_str_is(key, "use_regex"))
            raw->use_regex = tkc_json_bool(j);
        else if (tkc_str_is(key, "individual_digits"))
            raw->individual = tkc_json_bool(j);
        else if (tkc_str_is(key, "pretokenizers"))
            raw->steps = tkc_json_skip(j);
        else if (tkc_str_is(key, "trim_offsets"))
            tkc_json_skip(j);
        else
            unsupported(j, "option", key);
    }
}

static bool add_split(tkc_pretok *p, tkc_json *j, const raw_step *raw)
{
    tkc_step *step = add_step(p, j);
    if (!step)
        return false;
    bool removed = tkc_str_is(raw->behavior, "Removed");
    if (!removed && !tkc_str_is(raw->behavior, "Isolated"))
        return unsupported(j, "behavior", raw->behavior);
    step->drop_matches = removed && !raw->invert;
    step->drop_gaps = removed && raw->invert;
    if (!raw->literal && !step->drop_matches)
        step->scanner = tkc_scanner_of_pattern(raw->pattern.data, raw->pattern.len);
    /* Scanners do not distinguish matches from gaps, so scanners that leave gaps cannot drop
     * them. */
    if (step->drop_gaps && step->scanner >= TKC_SCAN_DEEPSEEK)
        step->scanner = TKC_SCAN_NONE;
    if (raw->pattern.len == 0)
        return unsupported(j, "an empty pattern", tkc_str(""));
    if (step->scanner == TKC_SCAN_NONE)
        step->regex = tkc_regex_new(raw->pattern, raw->literal, j->err);
    return !tkc_failed(j->err);
}

static bool add_byte_level(tkc_pretok *p, tkc_json *j, const raw_step *raw)
{
    if (!raw->prefix_space && !raw->use_regex)
        return true;
    tkc_step *step = add_step(p, j);
    if (!step)
        return false;
    step->prefix_space = raw->prefix_space;
    step->scanner = TKC_SCAN_GPT2;
    step->joined = !raw->use_regex;
    return true;
}

/* True if the step was the last one: ByteLevel, after which no step sees text. */
static bool add_raw(tkc_pretok *p, tkc_json *j, const raw_step *raw)
{
    if (tkc_str_is(raw->type, "Split"))
        return add_split(p, j, raw), false;
    if (tkc_str_is(raw->type, "ByteLevel"))
        return add_byte_level(p, j, raw);
    if (tkc_str_is(raw->type, "Digits")) {
        tkc_step *step = add_step(p, j);
        if (step && raw->individual)
            step->scanner = TKC_SCAN_NUMBER;
        else if (step)
            step->regex = tkc_regex_new(tkc_str("\\p{N}+"), false, j->err);
        return false;
    }
    unsupported(j, "type", raw->type);
    return false;
}

static bool read_sequence(tkc_pretok *p, tkc_json *outer, tinkc_str steps)
{
    tkc_json j;
    raw_step raw;
    bool last = false;
    tkc_json_open(&j, steps, outer->arena, outer->err);
    j.code = outer->code;
    if (tkc_json_array(&j))
        while (tkc_json_item(&j)) {
            read_fields(&j, &raw);
            if (last)
                unsupported(&j, "a step behind ByteLevel", raw.type);
            else if (!tkc_failed(j.err))
                last = add_raw(p, &j, &raw);
        }
    return last;
}

/* DeepSeek's three patterns share one scanner. */
static void join_deepseek(tkc_pretok *p)
{
    static const int chain[] = { TKC_SCAN_NUMBERS3, TKC_SCAN_CJK, TKC_SCAN_DEEPSEEK_WORD };
    if (p->n != 3)
        return;
    for (size_t i = 0; i < 3; i++)
        if (p->steps[i].scanner != chain[i] || p->steps[i].regex)
            return;
    tkc_pretok_scanner(p, TKC_SCAN_DEEPSEEK);
}

bool tkc_pretok_read(tkc_pretok *p, tkc_json *j)
{
    raw_step raw;
    *p = (tkc_pretok){ 0 };
    if (tkc_json_null(j))
        return tkc_fail(j->err, TINKC_E_TOKENIZER,
                        "pre_tokenizer: a tokenizer without ByteLevel is not supported");
    read_fields(j, &raw);
    if (tkc_failed(j->err))
        return false;
    bool last =
        tkc_str_is(raw.type, "Sequence") ? read_sequence(p, j, raw.steps) : add_raw(p, j, &raw);
    if (!tkc_failed(j->err) && !last)
        tkc_fail(j->err, TINKC_E_TOKENIZER,
                 "pre_tokenizer: a tokenizer without ByteLevel is not supported");
    if (tkc_failed(j->err)) {
        tkc_pretok_free(p);
        return false;
    }
    join_deepseek(p);
    if (p->n == 1 && !p->steps[0].regex && !p->steps[0].prefix_space && !p->steps[0].joined)
        p->fast = p->steps[0].scanner;
    return true;
}

void tkc_pretok_scanner(tkc_pretok *p, int scanner)
{
    *p = (tkc_pretok){ .n = 1, .fast = scanner };
    p->steps[0].scanner = scanner;
}

void tkc_pretok_spaces(tkc_pretok *p, int scanner)
{
    tkc_pretok_scanner(p, scanner);
    p->fast = TKC_SCAN_NONE;
}

void tkc_pretok_free(tkc_pretok *p)
{
    for (size_t i = 0; i < p->n; i++)
        tkc_regex_free(p->steps[i].regex);
    *p = (tkc_pretok){ 0 };
}

bool tkc_pretok_has_regex(const tkc_pretok *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->steps[i].regex)
            return true;
    return false;
}

/* ---- running ---- */

typedef struct run {
    const tkc_pretok *p;
    tkc_piece_fn *fn;
    void *self;
    const tkc_regex_budget *budget;
    tinkc_error *err;
} run;

/* A span that passes through the chain: see tkc_piece_fn. */
typedef struct span {
    const unsigned char *p;
    size_t len, skew, origin;
} span;

static bool run_step(const run *r, size_t k, span s);

/* The part [from, to) of a span. */
static span part_of(span s, size_t from, size_t to)
{
    assert(from <= to && to <= s.len);
    size_t skew = from < s.skew ? s.skew - from : 0;
    return (span){ s.p + from, to - from, skew,
                   from > s.skew ? s.origin + from - s.skew : s.origin };
}

static bool run_scanner(const run *r, size_t k, span s)
{
    tkc_scan_fn *scan = tkc_scanners[r->p->steps[k].scanner];
    for (size_t at = 0, next; at < s.len; at = next) {
        next = (size_t)(scan(s.p + at, s.p + s.len) - s.p);
        if (!run_step(r, k + 1, part_of(s, at, next)))
            return false;
    }
    return true;
}

/* Matches and the text between them; an empty match is not a piece, but it cuts. */
static bool run_regex(const run *r, size_t k, span s)
{
    const tkc_step *step = &r->p->steps[k];
    tkc_regex_walk w = { 0 };
    size_t at = 0;
    for (int found = 1; found; at = w.end) {
        found = tkc_regex_next(step->regex, s.p, s.len, &w, r->budget, r->err);
        if (found < 0)
            return false;
        size_t start = found ? w.start : s.len;
        if (start > at && !step->drop_gaps && !run_step(r, k + 1, part_of(s, at, start)))
            return false;
        if (found && w.end > start && !step->drop_matches &&
            !run_step(r, k + 1, part_of(s, start, w.end)))
            return false;
    }
    return true;
}

static bool run_prefixed(const run *r, size_t k, span s)
{
    unsigned char *copy = tkc_alloc(NULL, s.len + 1, r->err);
    if (!copy)
        return false;
    copy[0] = ' ';
    memcpy(copy + 1, s.p, s.len);
    span longer = { copy, s.len + 1, s.skew + 1, s.origin };
    bool ok = r->p->steps[k].joined ? run_step(r, k + 1, longer) : run_scanner(r, k, longer);
    tkc_release(NULL, copy, s.len + 1);
    return ok;
}

/* Recursion is as deep as the chain. */
static bool run_step(const run *r, size_t k, span s)
{
    if (s.len == 0)
        return true;
    if (k == r->p->n)
        return r->fn(r->self, s.p, s.len, s.skew, s.origin);
    const tkc_step *step = &r->p->steps[k];
    if (step->prefix_space && s.p[0] != ' ')
        return run_prefixed(r, k, s);
    if (step->joined)
        return run_step(r, k + 1, s);
    return step->regex ? run_regex(r, k, s) : run_scanner(r, k, s);
}

bool tkc_pretok_run(const tkc_pretok *p, const unsigned char *text, size_t len, tkc_piece_fn *fn,
                    void *self, const tkc_regex_budget *budget, tinkc_error *err)
{
    run r = { p, fn, self, budget, err };
    return run_step(&r, 0, (span){ text, len, 0, 0 });
}
