/* jinja.h - the template engine's internal header: values, nodes, the running template.
 *
 * A template is parsed once into nodes that never change (jinja_lex.c, jinja_parse.c), its names
 * are resolved to numbered slots (jinja_scope.c), and then any number of threads may run it, each
 * with its own evaluator (jinja_exec.c, jinja_eval.c). Everything that a run creates is in the
 * run's arena. Templates and variables are untrusted: depth, steps, memory and output are limited.
 */
#ifndef TKC_TOKENIZER_JINJA_H
#define TKC_TOKENIZER_JINJA_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"
#include "base/thread.h"

__extension__ typedef __int128 tkc_i128;

/* ---- values ---- */

enum {
    TKC_JV_FAIL = 0, /* an error is recorded */
    TKC_JV_MISSING,  /* an empty slot or a missing argument; never visible to templates */
    TKC_JV_UNDEFINED,
    TKC_JV_NONE,
    TKC_JV_BOOL,
    TKC_JV_INT,
    TKC_JV_BIG, /* an integer that needs more than 64 bits */
    TKC_JV_FLOAT,
    TKC_JV_STR,
    TKC_JV_BYTES,
    TKC_JV_LIST,
    TKC_JV_TUPLE,
    TKC_JV_DICT,
    TKC_JV_NAMESPACE,
    TKC_JV_RANGE,
    TKC_JV_ITER, /* a generator: can be iterated once */
    TKC_JV_VIEW, /* dict.keys(), .values(), .items() */
    TKC_JV_MACRO,
    TKC_JV_LOOP,
    TKC_JV_METHOD, /* a function bound to its object */
    TKC_JV_GLOBAL  /* a function of the environment */
};

/* flags: of a string; of an undefined; of a tuple that groupby made */
enum { TKC_JV_MARKUP = 1, TKC_JV_UNSAFE = 2, TKC_JV_GROUP = 4 };

typedef struct tkc_jv tkc_jv;
typedef struct tkc_jev tkc_jev;
typedef struct tkc_jnode tkc_jnode;
typedef struct tkc_jact tkc_jact;

/* Text of a template or a run. chars is SIZE_MAX until it is counted. */
typedef struct tkc_jstr {
    const char *data;
    size_t len, chars;
} tkc_jstr;

typedef struct tkc_jargs tkc_jargs;
typedef tkc_jv (*tkc_jfn)(tkc_jev *, const tkc_jv *self, const tkc_jargs *);
typedef struct tkc_jfunc {
    const char *name;
    tkc_jfn call;
} tkc_jfunc;

struct tkc_jv {
    uint8_t kind, flag;
    uint16_t spare;
    uint32_t aux; /* VIEW: which; UNDEFINED: kind of the object that lacks the name */
    union {
        bool b;
        int64_t i;
        double f;
        tkc_jstr *s; /* STR, BYTES; UNDEFINED: the name, or NULL */
        struct tkc_jlist *l;
        struct tkc_jdict *d; /* DICT, NAMESPACE, VIEW */
        const tkc_i128 *big;
        struct tkc_jrange *range;
        struct tkc_jiter *iter;
        struct tkc_jmacro *macro;
        struct tkc_jloop *loop;
        struct tkc_jbound *bound;
        const tkc_jfunc *global;
        void *p;
    };
};

typedef struct tkc_jlist {
    tkc_jv *items;
    size_t len, cap;
} tkc_jlist;

typedef struct tkc_jentry {
    tkc_jv key, value;
} tkc_jentry;

/* Entries in order of insertion; an index once there are more than a few. */
typedef struct tkc_jdict {
    tkc_jentry *entries;
    size_t len, cap;
    uint32_t *slots; /* entry + 1; 0 = free */
    size_t n_slots;
} tkc_jdict;

typedef struct tkc_jrange {
    int64_t start, stop, step;
    int64_t len;
} tkc_jrange;

enum { TKC_JVIEW_KEYS, TKC_JVIEW_VALUES, TKC_JVIEW_ITEMS };

/* What map, select and similar filters do to each item. */
enum {
    TKC_JSTAGE_NONE,
    TKC_JSTAGE_MAP_ATTR,
    TKC_JSTAGE_MAP_FILTER,
    TKC_JSTAGE_SELECT,     /* by a test on the item */
    TKC_JSTAGE_SELECT_ATTR /* by a test on one of its attributes */
};

typedef struct tkc_jiter {
    tkc_jv over; /* what is iterated; MISSING if `from` is used instead */
    size_t at;   /* position in it */
    struct tkc_jiter *from;
    int32_t stage;
    int32_t depth; /* length of the chain of iterators */
    bool reject, done;
    const tkc_jfunc *fn; /* filter or test; NULL = truth */
    tkc_jargs *args;
    tkc_jv path;     /* list of attribute steps */
    tkc_jv fallback; /* map(default=) */
    /* the filter of a loop: `for TARGET in ... if TEST` */
    const tkc_jnode *loop;
    tkc_jact *act;
} tkc_jiter;

typedef struct tkc_jmacro {
    const tkc_jnode *node; /* MACRO or CALL_BLOCK */
    tkc_jact *act;         /* where it was created */
} tkc_jmacro;

typedef struct tkc_jloop {
    tkc_jiter *iter;
    const tkc_jnode *recursive; /* the loop's node if it is recursive */
    tkc_jact *act;              /* the activation that contains the node */
    tkc_jv current, before, after, changed;
    tkc_jv whole; /* what is iterated, if its length is known */
    int64_t index0, length, depth0;
} tkc_jloop;

typedef struct tkc_jbound {
    tkc_jv self;
    const tkc_jfunc *fn;
} tkc_jbound;

typedef struct tkc_jkwarg {
    tkc_jstr *name;
    tkc_jv value;
} tkc_jkwarg;

struct tkc_jargs {
    tkc_jv *pos;
    size_t n_pos;
    tkc_jkwarg *kw;
    size_t n_kw;
};

/* ---- nodes ---- */

enum {
    /* expressions */
    TKC_JN_CONST,
    TKC_JN_NAME,
    TKC_JN_LIST,
    TKC_JN_TUPLE,
    TKC_JN_DICT,   /* list: key, value, key, value */
    TKC_JN_ATTR,   /* a.name */
    TKC_JN_ITEM,   /* a[b] */
    TKC_JN_SLICE,  /* a:b:c, only as b of ITEM */
    TKC_JN_CALL,   /* a(call) */
    TKC_JN_FILTER, /* a|name(call); a NULL: what a block produced */
    TKC_JN_TEST,
    TKC_JN_NOT,
    TKC_JN_NEG,
    TKC_JN_POS,
    TKC_JN_BINARY,
    TKC_JN_CONCAT,  /* list */
    TKC_JN_COMPARE, /* a, then list of OPERAND */
    TKC_JN_OPERAND, /* op a */
    TKC_JN_AND,
    TKC_JN_OR,
    TKC_JN_COND,  /* b if a else c */
    TKC_JN_NSREF, /* target of set: name.attribute */
    /* statements */
    TKC_JN_TEXT,
    TKC_JN_OUTPUT,    /* a */
    TKC_JN_IF,        /* a; body; other: the rest (an elif is an IF alone there) */
    TKC_JN_FOR,       /* target a, iter b, test c */
    TKC_JN_SET,       /* target a, value b */
    TKC_JN_SET_BLOCK, /* target a, filter b */
    TKC_JN_MACRO,
    TKC_JN_CALL_BLOCK,   /* call b */
    TKC_JN_FILTER_BLOCK, /* filter b */
    TKC_JN_WITH,         /* list: target, value, ... */
    TKC_JN_BREAK,
    TKC_JN_CONTINUE,
    TKC_JN_GENERATION
};

enum {
    TKC_JOP_ADD,
    TKC_JOP_SUB,
    TKC_JOP_MUL,
    TKC_JOP_DIV,
    TKC_JOP_FLOORDIV,
    TKC_JOP_MOD,
    TKC_JOP_POW,
    TKC_JOP_EQ,
    TKC_JOP_NE,
    TKC_JOP_LT,
    TKC_JOP_LE,
    TKC_JOP_GT,
    TKC_JOP_GE,
    TKC_JOP_IN,
    TKC_JOP_NOT_IN
};

/* Where a name's value comes from when a frame is entered. */
enum { TKC_JLOAD_RESOLVE, TKC_JLOAD_ALIAS, TKC_JLOAD_UNDEFINED };

typedef struct tkc_jload {
    int32_t action;
    int32_t slot;
    int32_t up, from; /* ALIAS: slot `from`, `up` functions out; RESOLVE: global `from` */
} tkc_jload;

typedef struct tkc_jframe {
    tkc_jload *loads;
    size_t n_loads;
} tkc_jframe;

typedef struct tkc_jlistof {
    tkc_jnode **items;
    size_t len;
} tkc_jlistof;

typedef struct tkc_jcall {
    tkc_jlistof pos;
    tkc_jlistof kw; /* OPERAND-like nodes: name, a */
    tkc_jnode *dyn_pos, *dyn_kw;
} tkc_jcall;

struct tkc_jnode {
    uint8_t kind, op;
    bool store;     /* NAME: is written */
    bool recursive; /* FOR */
    bool is_elif;   /* IF in `other` of another */
    uint16_t depth;
    int32_t line;
    tkc_jnode *a, *b, *c;
    tkc_jlistof list, body, other;
    tkc_jcall *call;
    tkc_jstr *name;        /* interned */
    tkc_jv value;          /* CONST, TEXT; ATTR: its name */
    const tkc_jfunc *func; /* FILTER, TEST: NULL = there is none with this name */
    int32_t up, slot;      /* NAME, NSREF, MACRO: where it lives */
    tkc_jframe frame;      /* of body */
    tkc_jframe frame2;     /* FOR: of other */
    tkc_jframe frame3;     /* FOR: of the test */
    tkc_jnode *target2;    /* FOR: the target as the test sees it */
    int32_t n_slots;       /* MACRO, CALL_BLOCK, recursive FOR: of the function */
    int32_t loop_slot;     /* FOR */
    int32_t *arg_slots;    /* MACRO, CALL_BLOCK: one for each of list (arguments) */
    int32_t caller_slot, varargs_slot, kwargs_slot; /* -1 = not used */
};

/* MACRO and CALL_BLOCK: list = arguments (NAME nodes), other = defaults of the last ones. */

typedef struct tkc_jtemplate {
    tkc_arena arena;
    tkc_jlistof body;
    tkc_jframe frame;
    int32_t n_slots;
    tkc_jstr **globals; /* names that come from the variables */
    int32_t n_globals;
    bool has_generation;
    tkc_jstr *special_names[4]; /* caller, varargs, kwargs, loop; interned */
    tinkc_str text;             /* as given */
} tkc_jtemplate;

/* ---- the parts ---- */

typedef struct tkc_jtoken {
    int32_t kind, line;
    tinkc_str text; /* NAME, TEXT, STRING (unescaped), numbers: as written */
} tkc_jtoken;

enum {
    TKC_JT_TEXT,
    TKC_JT_BLOCK_BEGIN,
    TKC_JT_BLOCK_END,
    TKC_JT_VAR_BEGIN,
    TKC_JT_VAR_END,
    TKC_JT_NAME,
    TKC_JT_STRING,
    TKC_JT_INT,
    TKC_JT_FLOAT,
    TKC_JT_OP, /* text: the operator */
    TKC_JT_END
};

/* Cuts a template into tokens; white space control is done here. */
bool tkc_jinja_lex(tkc_arena *, tinkc_str text, tkc_jtoken **tokens, size_t *n_tokens,
                   tinkc_error *err);
/* Parses and resolves; t->arena must be initialised. */
bool tkc_jinja_parse(tkc_jtemplate *t, tinkc_str text, tinkc_error *err);
/* Fills in slots and frames of the parsed nodes. scratch lives for the call only. */
bool tkc_jinja_scope(tkc_jtemplate *t, tkc_arena *scratch, tinkc_error *err);

enum {
    TKC_JINJA_MAX_TEXT = 8 << 20,    /* bytes of a template */
    TKC_JINJA_MAX_NESTING = 200,     /* of blocks, brackets and operators in a template */
    TKC_JINJA_MAX_DEPTH = 2500,      /* of evaluation: macros calling macros */
    TKC_JINJA_MAX_VALUE_DEPTH = 300, /* of lists in lists, printed or compared */
    TKC_JINJA_STACK = 96 << 10,      /* bytes of stack that must be left for another level */
    TKC_JINJA_BYTES_A_STEP = 64,     /* compared, copied, searched or hashed */
    TKC_JINJA_CHARS_A_STEP = 16      /* bytes decoded one character at a time */
};

/* ---- running ---- */

typedef struct tkc_jspan {
    size_t begin, end;
} tkc_jspan;

/* The variables of one function at work: the template, a macro, a recursive loop. */
struct tkc_jact {
    tkc_jact *parent;
    tkc_jv *slots;
};

struct tkc_jev {
    const tkc_jtemplate *t;
    tkc_arena *arena;
    tinkc_error *err;
    tkc_buf out; /* the result; behind it, what a macro at work has written */
    tkc_jv *globals;
    int64_t steps_left, max_steps;
    int64_t next_look, max_ms; /* the clock is looked at when steps_left gets there */
    int64_t deadline_ns;       /* of the thread's own time */
    size_t mem_left, max_mem;
    int64_t now_us; /* INT64_MIN = the machine's clock */
    int32_t depth, line;
    int32_t buffered; /* how many macros or set blocks catch the output */
    tkc_jspan *spans; /* what generation blocks wrote, in order */
    size_t n_spans, cap_spans;
    bool nested_spans; /* one was inside a macro, so its place is unknown */
    uint64_t seed;
};

typedef struct tkc_jlimits {
    int64_t max_bytes, max_steps; /* 0 = the usual */
    int64_t now_us;               /* 0 = now */
    int64_t max_ms;               /* 0 = the usual */
} tkc_jlimits;

/* Runs a template over variables (a dict). The text is then ev->out. */
void tkc_jev_init(tkc_jev *, const tkc_jtemplate *, tkc_arena *, const tkc_jlimits *,
                  tinkc_error *err);
bool tkc_jev_run(tkc_jev *, const tkc_jdict *variables);
void tkc_jev_free(tkc_jev *);

/* Counts work; false when the template has used up its steps. Code that reads or writes bytes or
 * items chosen by the template must charge for them, before or right after. */
bool tkc_j_charge(tkc_jev *, size_t steps);
static inline bool tkc_j_touch(tkc_jev *ev, size_t bytes)
{
    return bytes < TKC_JINJA_BYTES_A_STEP || tkc_j_charge(ev, bytes / TKC_JINJA_BYTES_A_STEP);
}
static inline bool tkc_j_decode(tkc_jev *ev, size_t bytes)
{
    return bytes < TKC_JINJA_CHARS_A_STEP || tkc_j_charge(ev, bytes / TKC_JINJA_CHARS_A_STEP);
}
/* Arena memory, counted. */
void *tkc_j_alloc(tkc_jev *, size_t size);
/* TINKC_E_TEMPLATE with the line; returns the failure value. */
tkc_jv tkc_j_fail(tkc_jev *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails with the reason why an undefined value cannot be used. */
tkc_jv tkc_j_fail_undefined(tkc_jev *, tkc_jv undefined);
bool tkc_j_enter(tkc_jev *); /* one level deeper; false = too deep */
static inline void tkc_j_leave(tkc_jev *ev)
{
    ev->depth--;
}

/* ---- values: jinja_value.c ---- */

extern const tkc_jv tkc_jv_fail, tkc_jv_missing, tkc_jv_none;
tkc_jv tkc_jv_bool(bool b);
tkc_jv tkc_jv_int(int64_t i);
tkc_jv tkc_jv_float(double f);
tkc_jv tkc_jv_i128(tkc_jev *, tkc_i128 i);
tkc_jv tkc_jv_undefined(void);
/* A string over bytes that live long enough (template, variables, arena). */
tkc_jv tkc_jv_view(tkc_jev *, const char *data, size_t len);
/* A copy. */
tkc_jv tkc_jv_cstr(tkc_jev *, const char *text);
/* Removes the end of the output buffer, from `mark` on, and returns it as a string. */
tkc_jv tkc_jv_take(tkc_jev *, size_t mark);
tkc_jv tkc_jv_list(tkc_jev *, uint8_t kind, size_t cap);
bool tkc_jv_push(tkc_jev *, tkc_jlist *, tkc_jv item);
tkc_jv tkc_jv_pair(tkc_jev *, tkc_jv a, tkc_jv b);
tkc_jv tkc_jv_dict(tkc_jev *, uint8_t kind);
bool tkc_jdict_set(tkc_jev *, tkc_jdict *, tkc_jv key, tkc_jv value);
tkc_jv *tkc_jdict_find(tkc_jev *, const tkc_jdict *, tkc_jv key);
tkc_jv *tkc_jdict_str(tkc_jev *, const tkc_jdict *, tinkc_str key);
bool tkc_jv_hashable(tkc_jev *, tkc_jv);

static inline bool tkc_jv_failed(tkc_jv v)
{
    return v.kind == TKC_JV_FAIL;
}
static inline tinkc_str tkc_jv_text(tkc_jv v) /* of a STR */
{
    return (tinkc_str){ v.s->data, v.s->len };
}
bool tkc_jv_is_number(tkc_jv);         /* bool, int, float */
bool tkc_jv_is_integer(tkc_jv);        /* bool, int */
bool tkc_jv_i64(tkc_jv, int64_t *out); /* integers that fit */
tkc_i128 tkc_jv_to_i128(tkc_jv);       /* of an integer */
double tkc_jv_to_double(tkc_jv);       /* of a number */
const char *tkc_jv_type(tkc_jv);       /* Python's name of the type */
size_t tkc_jstr_chars(tkc_jstr *);

bool tkc_jv_truth(tkc_jv);
bool tkc_jv_same(tkc_jv a, tkc_jv b); /* `is` */
/* Both may fail (depth, steps): then false with an error recorded. */
bool tkc_jv_equal(tkc_jev *, tkc_jv a, tkc_jv b);
bool tkc_jv_less(tkc_jev *, tkc_jv a, tkc_jv b, const char *op, bool or_equal);
bool tkc_jv_contains(tkc_jev *, tkc_jv box, tkc_jv item);
/* -1 = it has no length (an error is recorded). */
int64_t tkc_jv_length(tkc_jev *, tkc_jv);

/* ---- text of values: jinja_text.c ---- */

/* Appends str(v), repr(v) to the output buffer. */
bool tkc_j_write(tkc_jev *, tkc_jv v);
bool tkc_j_write_repr(tkc_jev *, tkc_jv v);
tkc_jv tkc_jv_str(tkc_jev *, tkc_jv v);
bool tkc_j_put(tkc_jev *, const char *data, size_t len);
size_t tkc_j_format_i128(tkc_i128 value, char out[48]);
tkc_jv tkc_jfilter_tojson(tkc_jev *, const tkc_jv *self, const tkc_jargs *);
/* JSON text to a value; the text must outlive the run. code: of errors. */
tkc_jv tkc_jv_from_json(tkc_jev *, tinkc_str json, int32_t code, const char *what);

/* ---- characters: jinja_char.c ---- */

/* Reads the character at s[*at] of valid UTF-8 and moves on. */
uint32_t tkc_j_char(tinkc_str s, size_t *at);
size_t tkc_j_encode(uint32_t c, char out[4]);
bool tkc_j_valid_utf8(tinkc_str s);
bool tkc_j_is_space(uint32_t c);
bool tkc_j_is_printable(uint32_t c);
enum {
    TKC_JCHAR_ALPHA,
    TKC_JCHAR_DECIMAL,
    TKC_JCHAR_DIGIT,
    TKC_JCHAR_NUMERIC,
    TKC_JCHAR_UPPER,
    TKC_JCHAR_LOWER,
    TKC_JCHAR_TITLE,
    TKC_JCHAR_CASED
};
bool tkc_j_is(uint32_t c, int what);
/* The value of a decimal digit of any script; -1 = not a digit. */
int tkc_j_decimal(uint32_t c);
enum { TKC_JCASE_LOWER, TKC_JCASE_UPPER, TKC_JCASE_TITLE, TKC_JCASE_SWAP, TKC_JCASE_CAPITAL };
/* Appends s in another case to the output buffer. */
bool tkc_j_write_case(tkc_jev *, tinkc_str s, int how);
tkc_jv tkc_jv_case(tkc_jev *, tkc_jv s, int how);
tinkc_str tkc_j_strip(tinkc_str s, const tinkc_str *chars, bool left, bool right);
/* Byte offset of the n-th character; past the end: len. */
size_t tkc_j_place(tkc_jstr *s, size_t n);

/* ---- operators and access: jinja_ops.c ---- */

/* Escapes & < > ' " for HTML. */
tkc_jv tkc_jv_escape(tkc_jev *, tkc_jv);
tkc_jv tkc_j_binary(tkc_jev *, int op, tkc_jv a, tkc_jv b);
tkc_jv tkc_j_attr(tkc_jev *, tkc_jv object, tkc_jstr *name);
/* An object's own attribute, without looking at its items. */
tkc_jv tkc_j_own_attr(tkc_jev *, tkc_jv object, tkc_jstr *name, bool *found);
tkc_jv tkc_j_item(tkc_jev *, tkc_jv object, tkc_jv key);
/* How many items a loop has; reads the rest if that is not known. -1 = failed. */
int64_t tkc_j_loop_length(tkc_jev *, tkc_jloop *);
tkc_jv tkc_j_slice(tkc_jev *, tkc_jv object, tkc_jv start, tkc_jv stop, tkc_jv step);
/* Walks "a.b.0" as filters with attribute= do. */
tkc_jv tkc_j_path(tkc_jev *, tkc_jv attribute);
tkc_jv tkc_j_follow(tkc_jev *, tkc_jv item, tkc_jv path, const tkc_jv *fallback);

/* ---- iteration: jinja_iter.c ---- */

tkc_jiter *tkc_j_iter(tkc_jev *, tkc_jv over);
/* An iterator that applies a stage to each item of `from`; the caller fills in its fields. */
tkc_jiter *tkc_j_stage(tkc_jev *, tkc_jv from, int stage);
/* False at the end or after a failure. */
bool tkc_j_next(tkc_jev *, tkc_jiter *, tkc_jv *item);
/* All items as a new list. */
tkc_jv tkc_j_list(tkc_jev *, tkc_jv over, uint8_t kind);
bool tkc_jv_iterable(tkc_jv);

/* ---- functions ---- */

/* Distributes arguments over parameters; those not given become MISSING. */
bool tkc_j_bind(tkc_jev *, const tkc_jargs *, const char *what, const char *const *params,
                size_t n_params, size_t n_required, tkc_jv *out);
const tkc_jfunc *tkc_j_find_filter(tinkc_str name);
const tkc_jfunc *tkc_j_find_test(tinkc_str name);
const tkc_jfunc *tkc_j_find_global(tinkc_str name);
/* A method of a value's type: NULL = no such attribute. *unsafe: it is there but forbidden. */
const tkc_jfunc *tkc_j_find_method(tkc_jv object, tinkc_str name, bool *unsafe);
tkc_jv tkc_j_call(tkc_jev *, tkc_jv callee, const tkc_jargs *);
tkc_jv tkc_j_call_macro(tkc_jev *, const tkc_jmacro *, const tkc_jargs *, const tkc_jv *caller);
tkc_jv tkc_j_call_loop(tkc_jev *, const tkc_jloop *, tkc_jv over);
/* '%s' % args and str.format. */
tkc_jv tkc_j_percent(tkc_jev *, tkc_jv format, tkc_jv args);
tkc_jv tkc_j_format(tkc_jev *, tkc_jv format, const tkc_jargs *);

/* ---- expressions and statements ---- */

tkc_jv tkc_j_eval(tkc_jev *, tkc_jact *, const tkc_jnode *);
tkc_jv tkc_j_apply_filter(tkc_jev *, tkc_jact *, const tkc_jnode *filter, const tkc_jv *input);
bool tkc_j_eval_args(tkc_jev *, tkc_jact *, const tkc_jcall *, tkc_jargs *out);
/* Writes a value to a name, a tuple of names or a namespace's attribute. */
bool tkc_j_assign(tkc_jev *, tkc_jact *, const tkc_jnode *target, tkc_jv value);
void tkc_j_enter_frame(tkc_jev *, tkc_jact *, const tkc_jframe *);
/* The test of `for ... if`. */
bool tkc_j_loop_test(tkc_jev *, const tkc_jiter *, tkc_jv item, bool *keep);

#endif
