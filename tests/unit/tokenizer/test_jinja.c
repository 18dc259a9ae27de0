/* test_jinja.c - the template engine: what it refuses, where its limits are, what errors say. What
 * it renders is compared with Jinja2 itself by test_template_data.sh. */
#include "support/check.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tinkc/tokenizer.h"
#include "jinja/jinja.h"
#include "chat/template.h"

typedef struct outcome {
    tinkc_error err;
    tinkc_text text;
} outcome;

static outcome render_span(const char *text, size_t len, const char *variables)
{
    outcome o = { 0 };
    tinkc_template *t = tinkc_template_parse(text, len, NULL, &o.err);
    tinkc_template_render(t, variables, 1753542245000000, &o.text, &o.err);
    tinkc_template_free(t);
    return o;
}

static void assert_renders(const char *text, const char *variables, const char *wanted)
{
    outcome o = render_span(text, strlen(text), variables);
    assert_ok(o.err);
    assert_str(((tinkc_str){ o.text.data, o.text.len }), wanted);
    tinkc_text_free(&o.text);
}

static void assert_refuses(const char *text, size_t len, const char *part)
{
    int64_t begin = tkc_monotonic_ns();
    outcome o = render_span(text, len, "{}");
    assert_int_equal(o.err.code, TINKC_E_TEMPLATE);
    if (!strstr(o.err.message, part))
        fail_msg("\"%s\" does not say \"%s\"", o.err.message, part);
    /* generous: sanitizers and a busy machine; without limits these would run forever */
    assert_true(tkc_monotonic_ns() - begin < 20 * 1000000000LL);
    tinkc_text_free(&o.text);
}

/* As Jinja2 3.1 renders them; test_template_data.sh has many more, but takes longer. */
TEST(what_filters_and_loops_give)
{
    static const char *const rows[][2] = {
        { "{{ \"\\u20ac\\u0394\" }}", "\xE2\x82\xAC\xCE\x94" },
        { "{{ 'a\\nb'|indent(2) }}", "a\n  b" },
        { "{{ 'a\\n'|indent(2, true) }}", "  a\n" },
        { "{{ 'a\\n\\nb'|indent('> ', true, true) }}", "> a\n> \n> b" },
        { "{{ 'a\\n\\nb'|indent(2, false, false) }}", "a\n\n  b" },
        { "{{ ''|indent(2, true) }}|", "  |" },
        { "{{ ['a','A','b','a']|unique|join(',') }}", "a,b" },
        { "{{ ['a','A','a']|unique(true)|join(',') }}", "a,A" },
        { "{{ [{'n':1,'m':2},{'n':1,'m':3}]|unique(attribute='n')|map(attribute='m')|join }}", "2" },
        { "{{ [0,1,'',2]|select|list }}", "[1, 2]" },
        { "{{ [0,1,2]|reject('equalto', 1)|list }}", "[0, 2]" },
        { "{{ [1,2,3]|select('odd')|list }}", "[1, 3]" },
        { "{{ [{'a':1},{'a':0}]|selectattr('a')|list }}", "[{'a': 1}]" },
        { "{% for x in [1,2,3,4]|select %}{% if loop.index == 2 %}{{ loop.length }}{% endif %}{% endfor %}", "4" },
        { "{% for x in [1,2,3]|select %}{{ loop.length }}{{ loop.revindex }}{{ loop.last }} {% endfor %}",
          "33False 32False 31True " },
        { "{{ 'abc'.count('') }}{{ 'aaa'.count('aa') }}{{ ''.count('') }}", "411" },
        { "{% for x in [1,1,'1',none,none,true,1.5,1.5] %}{{ loop.changed(x) }} {% endfor %}",
          "True False True True False True True False " },
        { "{{ 1 is sameas('1') }}{{ true is sameas(1) }}{{ none is sameas(none) }}{{ 'a' is sameas('a') }}", "FalseFalseTrueTrue" },
        { "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}", "12" },
        { "{{ '{:>5}|{:<4}|{:.2f}|{:05d}'.format('a', 'b', 1.5, 42) }}", "    a|b   |1.50|00042" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_renders(rows[i][0], "{}", rows[i][1]);
}

#define REFUSES(text, part) assert_refuses(text, strlen(text), part)

TEST(errors_name_the_line)
{
    REFUSES("a\nb\n{{ 1 + }}", "line 3");
    REFUSES("a\n{% if %}", "line 2");
    REFUSES("\n\n{% for a in 5 %}{% endfor %}", "line 3");
    REFUSES("\n{{ nope.x }}", "line 2: 'nope' is undefined");
    REFUSES("{{ 'x'|nosuch }}", "no filter named 'nosuch'");
    REFUSES("{% include 'x' %}", "the tag 'include' is not supported");
    REFUSES("{{ {}.a.b }}", "'dict object' has no attribute 'a'");
    REFUSES("{{ [].append(1) }}", "unsafe");
    REFUSES("{{ ''.__class__.__mro__ }}", "unsafe");
    REFUSES("{{ 'a b'|wordwrap(1) }}", "the filter 'wordwrap' is not supported");
    REFUSES("{{ 'a'.casefold() }}", "the string method 'casefold' is not supported");
    REFUSES("{{ cycler(1) }}", "the function 'cycler' is not supported");
}

TEST(raised_text_comes_as_it_is)
{
    static const char text[] = "\n{{ raise_exception('No: \xC3\xA9 ' ~ 5) }}";
    outcome o = render_span(text, sizeof text - 1, "{}");
    assert_string_equal(o.err.message, "No: \xC3\xA9 5");
    tinkc_text_free(&o.text);
}

/* `times` copies of a, then middle, then as many of b. */
static char *nested(const char *a, const char *middle, const char *b, size_t times, size_t *len)
{
    size_t na = strlen(a), nm = strlen(middle), nb = strlen(b);
    tinkc_error err = { 0 };
    *len = times * (na + nb) + nm;
    char *text = tkc_alloc(NULL, *len, &err), *at = text;
    assert_non_null(text);
    for (size_t i = 0; i < times; i++, at += na)
        memcpy(at, a, na);
    memcpy(at, middle, nm);
    at += nm;
    for (size_t i = 0; i < times; i++, at += nb)
        memcpy(at, b, nb);
    return text;
}

TEST(deep_nesting_is_refused)
{
    static const struct {
        const char *a, *middle, *b;
    } forms[] = { { "{{(", "", "" },
                  { "(", "{{ 1 }}", ")" },
                  { "{% if 1 %}", "x", "{% endif %}" },
                  { "{% for a in b %}", "x", "{% endfor %}" },
                  { "{% macro m() %}", "x", "{% endmacro %}" },
                  { "{% set x %}", "x", "{% endset %}" },
                  { "{% generation %}", "x", "{% endgeneration %}" } };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t len;
        char *text = nested(forms[i].a, forms[i].middle, forms[i].b, 20000, &len);
        outcome o = render_span(text, len, "{}");
        if (i != 1) /* plain text with brackets is only text */
            assert_int_equal(o.err.code, TINKC_E_TEMPLATE);
        tinkc_text_free(&o.text);
        tkc_release(NULL, text, len);
    }
}

TEST(deep_expressions_are_refused)
{
    static const struct {
        const char *begin, *a, *b, *end;
    } forms[] = { { "{{ ", "(", ")", " }}" },     { "{{ ", "[", "]", " }}" },           { "{{ ", "not ", "", " }}" },
                  { "{{ ", "-", "", " }}" },      { "{{ x", "|upper", "", "}}" },       { "{{ x", ".a", "", "}}" },
                  { "{{ 1", "+1", "", "}}" },     { "{{ 1", " if 1 else 1", "", "}}" }, { "{{ x", "(1)", "", "}}" },
                  { "{{ x", " and 1", "", "}}" }, { "{{ {1:", "{1:", "}", "}}}" },      { "{{ x", "[0", "]", "}}" } };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t inner_len, n_begin = strlen(forms[i].begin), n_end = strlen(forms[i].end);
        char *inner = nested(forms[i].a, "", forms[i].b, 30000, &inner_len);
        tinkc_error err = { 0 };
        char *text = tkc_alloc(NULL, n_begin + inner_len + n_end, &err);
        memcpy(text, forms[i].begin, n_begin);
        memcpy(text + n_begin, inner, inner_len);
        memcpy(text + n_begin + inner_len, forms[i].end, n_end);
        assert_refuses(text, n_begin + inner_len + n_end, "line 1");
        tkc_release(NULL, text, n_begin + inner_len + n_end);
        tkc_release(NULL, inner, inner_len);
    }
}

TEST(endless_work_is_stopped)
{
    REFUSES("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "takes more than 10000000 steps");
    REFUSES("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply");
    REFUSES("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "too deeply");
    REFUSES("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "too deeply");
    REFUSES("{% macro w() %}{{ caller() }}{% endmacro %}"
            "{% macro m() %}{% call w() %}{{ m() }}{% endcall %}{% endmacro %}{{ m() }}",
            "too deeply");
    REFUSES("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}", "too deeply");
    REFUSES("{{ range(1000000) }}", "range too big");
    REFUSES("{{ range(10 ** 18)|list }}", "range too big");
}

TEST(memory_is_bounded)
{
    REFUSES("{{ 'a' * 1000000000000 }}", "memory");
    REFUSES("{{ [1] * 1000000000000 }}", "memory");
    REFUSES("{{ 'a' * (2 ** 62) }}", "memory");
    REFUSES("{{ 2 ** 200 }}", "127 bits");
    REFUSES("{{ 'x'.ljust(10 ** 15) }}", "memory");
    REFUSES("{{ '%1000000d' % 1 }}", "too large");
    REFUSES("{{ '{:1000000}'.format(1) }}", "format");
    REFUSES("{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for a in range(99) %}"
            "{% set ns.s = ns.s + ns.s %}{% endfor %}",
            "memory");
    REFUSES("{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = ns.l + ns.l %}"
            "{% endfor %}",
            "more than");
    REFUSES("{% set x = 'a' * 1000000 %}{% for a in range(1000) %}{{ x }}{% endfor %}",
            "writes more than 67108864 bytes");
}

TEST(deep_values_are_refused)
{
#define BUILD "{% set ns = namespace(l=[]) %}{% for a in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}"
    REFUSES(BUILD "{{ ns.l }}", "nested");
    REFUSES(BUILD "{{ ns.l|tojson }}", "nested");
    REFUSES(BUILD "{{ ns.l == [ns.l] }}", "nested");
    REFUSES(BUILD "{{ ns.l < [ns.l] }}", "nested");
    REFUSES("{% set ns = namespace(l=[1]) %}{% for a in range(5000) %}"
            "{% set ns.l = ns.l|map('string') %}{% endfor %}{{ ns.l|list }}",
            "stand on each other");
#undef BUILD
}

TEST(variables_must_be_an_object)
{
    outcome o = render_span("x", 1, "[1]");
    assert_int_equal(o.err.code, TINKC_E_ARGUMENT);
    o = render_span("x", 1, "{\"a\": }");
    assert_int_equal(o.err.code, TINKC_E_ARGUMENT);
    o = render_span("\xFF", 1, "{}");
    assert_int_equal(o.err.code, TINKC_E_TEMPLATE);
    assert_renders("{{ a }}", NULL, "");
}

TEST(keys_keep_their_order)
{
    assert_renders("{{ d|tojson }} {{ d.k11 }}",
                   "{\"d\": {\"z\": 1, \"a\": 2, \"k1\": 0, \"k2\": 0, \"k3\": 0, \"k4\": 0, \"k5\": 0,"
                   " \"k6\": 0, \"k7\": 0, \"k8\": 0, \"k9\": 0, \"k10\": 0, \"k11\": 7, \"a\": 3}}",
                   "{\"z\": 1, \"a\": 3, \"k1\": 0, \"k2\": 0, \"k3\": 0, \"k4\": 0, \"k5\": 0, "
                   "\"k6\": 0, \"k7\": 0, \"k8\": 0, \"k9\": 0, \"k10\": 0, \"k11\": 7} 7");
}

TEST(the_clock_is_handed_in)
{
    assert_renders("{{ strftime_now('%d %b %Y, %-d/%-m, %H:%M:%S %f') }}", "{}", "26 Jul 2025, 26/7, 15:04:05 000000");
    REFUSES("{{ strftime_now('%Q') }}", "%Q");
}

/* Generation blocks: where they lie in the text. */
TEST(generation_blocks_are_noted)
{
    static const char text[] = "ab{% for a in [1, 2] %}{% generation %}c{{ a }}{% endgeneration %}-"
                               "{% endfor %}";
    tinkc_error err = { 0 };
    tkc_arena arena = { 0 };
    tkc_jev ev;
    tinkc_template *t = tinkc_template_parse(text, sizeof text - 1, NULL, &err);
    assert_ok(err);
    tkc_jev_init(&ev, &t->jinja, &arena, NULL, &err);
    assert_true(tkc_jev_run(&ev, tkc_jv_dict(&ev, TKC_JV_DICT).d));
    assert_str(tkc_buf_view(&ev.out), "abc1-c2-");
    assert_int_equal(ev.n_spans, 2);
    assert_int_equal(ev.spans[0].begin, 2);
    assert_int_equal(ev.spans[0].end, 4);
    assert_int_equal(ev.spans[1].begin, 5);
    assert_int_equal(ev.spans[1].end, 7);
    tkc_jev_free(&ev);
    tkc_arena_free(&arena);
    tinkc_template_free(t);
}

/* Every allocation may fail; nothing leaks and nothing crashes. */
typedef struct counted {
    size_t left, live;
} counted;

static void *counted_resize(void *ptr, size_t old_size, size_t size, void *user)
{
    counted *c = user;
    if (c->left == 0)
        return NULL;
    c->left--;
    void *grown = realloc(ptr, size ? size : 1);
    c->live += size - old_size;
    return grown;
}
static void *counted_alloc(size_t size, void *user)
{
    return counted_resize(NULL, 0, size, user);
}
static void counted_release(void *ptr, size_t size, void *user)
{
    if (ptr)
        ((counted *)user)->live -= size;
    free(ptr);
}

TEST(allocations_may_fail)
{
    static const char text[] = "{% macro m(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{% for x in l %}{{ m(x) }}"
                               "{{ d|tojson }}{% set ns = namespace(k=x) %}{% set ns.k = ns.k ~ 'z' %}{{ ns.k|upper }}"
                               "{% endfor %}{{ l|map('string')|join(',') }}{{ l|sort }}";
    static const char vars[] = "{\"l\": [3, 1, 2], \"d\": {\"a\": [1, \"\\u00e9\"]}}";
    bool done = false;
    for (size_t n = 0; !done && n < 5000; n++) {
        counted c = { n, 0 };
        tinkc_allocator a = { counted_alloc, counted_resize, counted_release, &c };
        tinkc_error err = { 0 };
        tinkc_text out = { .a = &a };
        tinkc_template *t = tinkc_template_parse(text, sizeof text - 1, &a, &err);
        tinkc_template_render(t, vars, 0, &out, &err);
        done = !err.code;
        if (!done)
            assert_int_equal(err.code, TINKC_E_MEMORY);
        tinkc_text_free(&out);
        tinkc_template_free(t);
        assert_int_equal(c.live, 0);
    }
    assert_true(done);
}

/* What a thread with little stack does: recursion without end, deep brackets, and a plain one. */
static void *on_small_stack(void *failed)
{
    static const char *const texts[] = {
        "{% macro m(x) %}{{ m((x + 1)) }}{% endmacro %}{{ m(1) }}",
        "{% for a in [1] recursive %}{% if 1 %}{{ loop([1]) }}{% endif %}{% endfor %}",
        "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{% endif %}{{ x }}{% endmacro %}{{ m(20) }}",
    };
    char deep[400];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{{ ", 3);
    for (size_t i = 0; i < 4; i++) {
        tinkc_error err = { 0 };
        tinkc_text out = { 0 };
        tinkc_template *t = i < 3 ? tinkc_template_parse(texts[i], strlen(texts[i]), NULL, &err)
                                  : tinkc_template_parse(deep, sizeof deep, NULL, &err);
        tinkc_template_render(t, "{}", 0, &out, &err);
        if ((err.code == TINKC_E_TEMPLATE) != (i != 2))
            *(int *)failed = (int)i + 1;
        tinkc_text_free(&out);
        tinkc_template_free(t);
    }
    return NULL;
}

TEST(small_stacks_are_enough)
{
    static const size_t sizes[] = { 192 << 10, 256 << 10, 1 << 20 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pthread_attr_t attr;
        pthread_t thread;
        int failed = 0;
        assert_int_equal(pthread_attr_init(&attr), 0);
        assert_int_equal(pthread_attr_setstacksize(&attr, sizes[i]), 0);
        assert_int_equal(pthread_create(&thread, &attr, on_small_stack, &failed), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        pthread_attr_destroy(&attr);
        assert_int_equal(failed, 0);
    }
}

/* ---- what an operation touches is what it costs ---- */

enum { LONG = 1 << 20, MANY = 100000, FEW_STEPS = 10000 };

typedef struct big_values {
    tkc_arena arena;
    tkc_jdict variables;
    uint64_t seed; /* of the hashes in it */
} big_values;

/* s: blanks; t: text; u: upper case Greek; tags: "<"; comments: "<!--"; n, m: equal lists of
 * numbers; w: a list of words; d: a dict. */
static void make_big(big_values *b)
{
    static const char *const texts[][2] = { { "s", " " },    { "t", "abcdefg " },    { "u", "\xCE\xA3" },
                                            { "tags", "<" }, { "comments", "<!--" }, { "a", "a" } };
    tinkc_error err = { 0 };
    tkc_jtemplate t = { 0 };
    tkc_jev ev;
    *b = (big_values){ 0 };
    tkc_jev_init(&ev, &t, &b->arena, &(tkc_jlimits){ .max_steps = INT64_MAX }, &err);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t n = strlen(texts[i][1]);
        char *text = tkc_arena_alloc(&b->arena, LONG, &err);
        for (size_t at = 0; at < LONG; at++)
            text[at] = texts[i][1][at % n];
        tkc_jdict_set(&ev, &b->variables, tkc_jv_cstr(&ev, texts[i][0]), tkc_jv_view(&ev, text, LONG));
    }
    for (int which = 0; which < 3; which++) {
        tkc_jv list = tkc_jv_list(&ev, TKC_JV_LIST, MANY);
        for (int i = 0; i < MANY; i++)
            tkc_jv_push(&ev, list.l, which == 2 ? tkc_jv_cstr(&ev, "word") : tkc_jv_int(i));
        tkc_jdict_set(&ev, &b->variables, tkc_jv_cstr(&ev, (const char *[]){ "n", "m", "w" }[which]), list);
    }
    tkc_jv dict = tkc_jv_dict(&ev, TKC_JV_DICT);
    for (int i = 0; i < MANY; i++)
        tkc_jdict_set(&ev, dict.d, tkc_jv_int(i), tkc_jv_int(i));
    tkc_jdict_set(&ev, &b->variables, tkc_jv_cstr(&ev, "d"), dict);
    assert_ok(err);
    b->seed = ev.seed;
    tkc_jev_free(&ev);
}

/* Renders {{ expression }} with few steps; true if they did not suffice. */
static bool costs(const big_values *b, const char *expression)
{
    char text[200];
    tinkc_error err = { 0 };
    tkc_jtemplate t = { 0 };
    tkc_arena arena = { 0 };
    tkc_jev ev;
    snprintf(text, sizeof text, "{%% if %s %%}{%% endif %%}", expression);
    if (!tkc_jinja_parse(&t, tkc_str(text), &err))
        fail_msg("%s: %s", expression, err.message);
    tkc_jev_init(&ev, &t, &arena, &(tkc_jlimits){ .max_steps = FEW_STEPS }, &err);
    ev.seed = b->seed;
    tkc_jev_run(&ev, &b->variables);
    bool costly = err.code == TINKC_E_TEMPLATE && strstr(err.message, "steps");
    if (err.code && !costly)
        fail_msg("%s: %s", expression, err.message);
    tkc_jev_free(&ev);
    tkc_arena_free(&arena);
    tkc_arena_free(&t.arena);
    return costly;
}

TEST(the_clock_has_the_last_word)
{
    static const char text[] = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    tinkc_error err = { 0 };
    tkc_jtemplate t = { 0 };
    tkc_arena arena = { 0 };
    tkc_jdict none = { 0 };
    tkc_jev ev;
    assert_true(tkc_jinja_parse(&t, tkc_str(text), &err));
    int64_t own = tkc_thread_cpu_ns(); /* not the machine's: others may be busy */
    tkc_jev_init(&ev, &t, &arena, &(tkc_jlimits){ .max_steps = INT64_MAX, .max_bytes = 1 << 30, .max_ms = 5 }, &err);
    assert_in_range(ev.deadline_ns - own, 5000000, 5000000 + tkc_thread_cpu_ns() - own);
    assert_false(tkc_jev_run(&ev, &none));
    assert_int_equal(err.code, TINKC_E_TEMPLATE);
    assert_non_null(strstr(err.message, "runs for more than 5 ms"));
    tkc_jev_free(&ev);
    tkc_arena_free(&arena);
    tkc_arena_free(&t.arena);
}

/* A value whose parts are shared is small to build and large to walk. */
TEST(shared_parts_are_charged)
{
    REFUSES("{% set ns = namespace(t=(1, 1)) %}{% for i in range(18) %}{% set ns.t = (ns.t,) * 9 "
            "%}{% endfor %}"
            "{{ {ns.t: 1} }}",
            "steps");
    REFUSES("{% set ns = namespace(t=(1, 1)) %}{% for i in range(30) %}{% set ns.t = (ns.t, ns.t) "
            "%}{% endfor %}"
            "{% set u = (ns.t,) %}{{ u == (ns.t,) }}",
            "steps");
}

TEST(work_is_charged)
{
    static const char *const expressions[] = {
        "s.strip()",
        "s.lstrip()",
        "s.rstrip()",
        "s|trim",
        "s.strip(' ')",
        "t.upper()",
        "t.lower()",
        "t.title()",
        "t.capitalize()",
        "t.swapcase()",
        "u.lower()",
        "t.find('x')",
        "t.rfind('x')",
        "t.count('x')",
        "t.replace('x', '')",
        "t|replace('x', '')",
        "t.split()",
        "t.split('x')",
        "t.rsplit()",
        "t.rsplit('x')",
        "t.splitlines()",
        "t.partition('x')",
        "t.rpartition('x')",
        "t.isspace()",
        "a.isalpha()",
        "a.isalnum()",
        "a.islower()",
        "a.isascii()",
        "t is lower",
        "a.startswith(a)",
        "a.endswith(a)",
        "a.removeprefix(a)",
        "a.removesuffix(a)",
        "a == a ~ ''",
        "a != a ~ ''",
        "a < a ~ ''",
        "a <= a ~ ''",
        "'x' in t",
        "a in [a ~ '']",
        "t ~ t",
        "t + t",
        "t * 2",
        "t[::-1]",
        "t[1:]",
        "u[1:3]",
        "t|list",
        "t|last",
        "t|reverse",
        "t|wordcount",
        "t|striptags",
        "tags|striptags",
        "comments|striptags",
        "t|escape",
        "t|urlencode",
        "t|tojson",
        "t|center(80)",
        "t|indent",
        "t|int",
        "s|int",
        "s|float",
        "t|format",
        "'%s' % t",
        "'{}'.format(t)",
        "t.format()",
        "t|title",
        "t|capitalize",
        "t|upper",
        "t|lower",
        "t.zfill(9)",
        "t.ljust(9)",
        "t.center(9)",
        "u[400000]",
        "strftime_now(a)",
        "a in d",
        "d.get(a)",
        "[a]|unique|list",
        "n == m",
        "n != m",
        "n < m",
        "n in [m]",
        "n|list",
        "n|length == 1 or n + m",
        "n * 2",
        "n[1:]",
        "n[::-1]",
        "n|sum",
        "n|max",
        "n|min",
        "n|sort",
        "n|unique|list",
        "n|reverse|list",
        "n|last",
        "n|join",
        "n|map('string')|list",
        "n|select('odd')|list",
        "n|reject('odd')|list",
        "n|batch(3)|list",
        "n|slice(3)|list",
        "n|tojson",
        "n|string",
        "-1 in n",
        "n.count(-1)",
        "n.index(99999)",
        "n.copy()",
        "w|join",
        "w|map('upper')|list",
        "'x'.join(w)",
        "w|sort",
        "w|unique|list",
        "w|groupby('x')|list",
        "d|dictsort",
        "d|items|list",
        "d.items()|list",
        "d.keys()|list",
        "d.values()|list",
        "d == d.copy()",
        "d|tojson",
        "d|list",
        "dict(d)",
        "range(99999)|list",
        "range(99999)|sum",
    };
    static const char *const cheap[] = { "a is string", "n is iterable", "d.get(7)", "n[7]",
                                         "n|first",     "a is defined",  "n|length" };
    big_values b;
    make_big(&b);
    size_t n_free = 0;
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++)
        if (!costs(&b, expressions[i]))
            print_message("costs nothing: %s\n", expressions[i]), n_free++;
    for (size_t i = 0; i < sizeof cheap / sizeof *cheap; i++)
        if (costs(&b, cheap[i]))
            fail_msg("costs too much: %s", cheap[i]);
    tkc_arena_free(&b.arena);
    assert_int_equal(n_free, 0);
}
