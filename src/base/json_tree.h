/* json_tree.h - JSON as a tree: for what is looked up by name, changed, or made before it is written.
 *
 *     tkc_tree *row = tkc_tree_parse(&arena, line, TKC_TREE_UNIQUE, err);
 *     const char *name = tkc_tree_get_text(row, "name"); // NULL: none, or not a text
 *     tkc_tree_set_i64(row, "rank", 32);
 *     char *text = tkc_tree_print(&arena, row, TKC_TREE_COMPACT);
 *
 * A tree lives in an arena and ends with it: no value is released alone, and one value may be a
 * member of several trees of its arena. To keep one for longer, clone it into another arena.
 *
 * Every function takes NULL for a value that is not there: what is looked up in it is not there
 * either, and setting or adding it does nothing. So code reads straight on and looks at its end.
 * What lacks memory is not there, and the arena says so (arena.failed).
 *
 * Members keep the order in which they were set. Integers have 64 bits and are never rounded; a
 * number with a point or an exponent is real. Texts are UTF-8; names hold no NUL byte, and other texts
 * where somebody has put one there, which tkc_tree_str alone sees behind.
 * [one thread for each arena]
 */
#ifndef TKC_BASE_JSON_TREE_H
#define TKC_BASE_JSON_TREE_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/str.h"

typedef struct tkc_tree tkc_tree;

enum {
    TKC_TREE_NULL = 1, /* 0: there is no value */
    TKC_TREE_BOOL,
    TKC_TREE_I64,
    TKC_TREE_REAL,
    TKC_TREE_TEXT,
    TKC_TREE_ARRAY,
    TKC_TREE_OBJECT
};

/* ---- reading ---- */

int tkc_tree_kind(const tkc_tree *);
bool tkc_tree_is_null(const tkc_tree *); /* there is a value, and it is null */
bool tkc_tree_is_bool(const tkc_tree *);
bool tkc_tree_is_i64(const tkc_tree *);
bool tkc_tree_is_real(const tkc_tree *);
bool tkc_tree_is_number(const tkc_tree *); /* either */
bool tkc_tree_is_text(const tkc_tree *);
bool tkc_tree_is_array(const tkc_tree *);
bool tkc_tree_is_object(const tkc_tree *);
bool tkc_tree_is_true(const tkc_tree *);
/* Terminated; NULL if it is not a text. */
const char *tkc_tree_text(const tkc_tree *);
tinkc_str tkc_tree_str(const tkc_tree *);
int64_t tkc_tree_i64(const tkc_tree *);                  /* 0 if it is not an integer */
double tkc_tree_number(const tkc_tree *);                /* 0 if it is neither integer nor real */
bool tkc_tree_equal(const tkc_tree *, const tkc_tree *); /* 1 and 1.0 are not; in any order */

/* Of an object: how many members it has, the member of a name, the i-th; NULL = none. */
size_t tkc_tree_members(const tkc_tree *object);
tkc_tree *tkc_tree_get(const tkc_tree *object, const char *key);
tkc_tree *tkc_tree_get_str(const tkc_tree *object, tinkc_str key);
const char *tkc_tree_get_text(const tkc_tree *object, const char *key);
int64_t tkc_tree_get_i64(const tkc_tree *object, const char *key);
double tkc_tree_get_number(const tkc_tree *object, const char *key);
bool tkc_tree_get_true(const tkc_tree *object, const char *key);
bool tkc_tree_member(const tkc_tree *object, size_t i, const char **key, tkc_tree **value);
/* for each member; values may be replaced meanwhile. `key` and `value` are variables. */
#define TKC_TREE_EACH(object, key, value)                                                          \
    for (size_t key##_at = 0; tkc_tree_member((object), key##_at, &(key), &(value)); key##_at++)

/* Of an array; 0 and NULL if it is none. */
size_t tkc_tree_length(const tkc_tree *array);
tkc_tree *tkc_tree_at(const tkc_tree *array, size_t i);

/* False if its arena lacked memory: something of it may not be there. */
bool tkc_tree_whole(const tkc_tree *);

/* ---- making ---- */

tkc_tree *tkc_tree_object(tkc_arena *);
tkc_tree *tkc_tree_array(tkc_arena *);
/* NULL if the text is NULL or not UTF-8, or the number not finite: JSON has no such value. */
tkc_tree *tkc_tree_new_text(tkc_arena *, const char *text);
tkc_tree *tkc_tree_new_str(tkc_arena *, tinkc_str text);
tkc_tree *tkc_tree_new_i64(tkc_arena *, int64_t value);
tkc_tree *tkc_tree_new_real(tkc_arena *, double value);
tkc_tree *tkc_tree_new_bool(bool value);
tkc_tree *tkc_tree_null(void);
/* {s:s,s:I,...}: keys are `s`; values are s (text), i (int), I (int64_t), f (double), b (int), n (null),
 * o (tree), or {...} and [...] of such. A `?` behind s or o: NULL becomes null; a `*`: NULL is left
 * out. NULL if a value is not there. */
tkc_tree *tkc_tree_pack(tkc_arena *, const char *format, ...);

/* Sets or replaces a member (which keeps its place); the value is of the object's arena, or lives
 * as long. False if it is not set. */
bool tkc_tree_set(tkc_tree *object, const char *key, const tkc_tree *value);
bool tkc_tree_set_str(tkc_tree *object, tinkc_str key, const tkc_tree *value);
bool tkc_tree_set_text(tkc_tree *object, const char *key, const char *text);
bool tkc_tree_set_i64(tkc_tree *object, const char *key, int64_t value);
bool tkc_tree_set_real(tkc_tree *object, const char *key, double value);
bool tkc_tree_set_bool(tkc_tree *object, const char *key, bool value);
void tkc_tree_remove(tkc_tree *object, const char *key);
/* Sets all members of another object, or those that are not there yet. */
void tkc_tree_update(tkc_tree *object, const tkc_tree *from);
void tkc_tree_update_missing(tkc_tree *object, const tkc_tree *from);

bool tkc_tree_add(tkc_tree *array, const tkc_tree *value);
bool tkc_tree_add_text(tkc_tree *array, const char *text);
bool tkc_tree_add_i64(tkc_tree *array, int64_t value);
bool tkc_tree_add_real(tkc_tree *array, double value);
void tkc_tree_add_all(tkc_tree *array, const tkc_tree *from);
bool tkc_tree_insert(tkc_tree *array, size_t i, const tkc_tree *value);
void tkc_tree_put(tkc_tree *array, size_t i, const tkc_tree *value); /* in place of the i-th */
void tkc_tree_take_out(tkc_tree *array, size_t i);

/* An array or object with the same members. */
tkc_tree *tkc_tree_copy(tkc_arena *, const tkc_tree *);
/* All of it is new, so that the other arena may end. */
tkc_tree *tkc_tree_clone(tkc_arena *, const tkc_tree *);

/* ---- text (json_text.c) ---- */

enum {
    TKC_TREE_ANY = 1,    /* the whole may be a text, a number, ...: not only an array or object */
    TKC_TREE_UNIQUE = 2, /* refuse two members of one name; else the last one counts */
    TKC_TREE_BEGINS = 4, /* more may follow the value */
    TKC_TREE_NULS = 8 /* take texts with \\u0000, which are refused otherwise: they look cut off */
};
/* The tree of a text, which need not stay. NULL with err set: BAD_RESPONSE names the byte. */
tkc_tree *tkc_tree_parse(tkc_arena *, tinkc_str text, int how, tinkc_error *err);
/* The same without a reason: NULL if it is not JSON. */
tkc_tree *tkc_tree_read(tkc_arena *, tinkc_str text, int how);

/* How it is written: numbers below 16 are the spaces that a level is set in, on lines of its own. */
enum {
    TKC_TREE_COMPACT = 0,
    TKC_TREE_SPACED = 16, /* a space behind every comma and colon */
    TKC_TREE_SORTED = 32, /* members by name */
    TKC_TREE_ASCII = 64   /* \uXXXX for what is beyond */
};
bool tkc_tree_write(tkc_buf *, const tkc_tree *, int how, tinkc_error *err);
/* Terminated, in the arena; NULL = there is no value, or no memory. */
char *tkc_tree_print(tkc_arena *, const tkc_tree *, int how);

#endif
