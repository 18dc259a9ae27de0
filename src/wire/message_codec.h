/* message_codec.h - JSON messages as plain structs, each described by one table of fields.
 *
 * The same table encodes and decodes, so client and server cannot drift apart. Rules that hold for
 * every message struct:
 *
 *   - All bytes zero is a valid empty message; tkc_message_init fills in the protocol's defaults.
 *   - A string is `const char *`, terminated; NULL = absent. After decoding it lies in the arena,
 *     as does everything else the message points to (the text may be dropped). U+0000 inside a
 *     string is rejected.
 *   - If absent, null and a value differ in meaning, the member is a tkc_opt_*.
 *   - An enumeration is a tkc_name: an unknown value keeps its text.
 *   - `tinkc_str json` holds the object as received, including unknown fields.
 *
 * Encoding leaves absent members out and never writes null except where a tkc_opt_* says TKC_NULL.
 * Decoding ignores unknown fields or notes the first, accepts 3.0 and "3" where an integer is declared and an integer
 * where a float is declared, rejects everything else, and names the field: "cursor.limit: ...".
 */
#ifndef TKC_WIRE_MESSAGE_CODEC_H
#define TKC_WIRE_MESSAGE_CODEC_H

#include "base/json_read.h"
#include "base/json_write.h"

/* ---- member types ---- */

enum { TKC_ABSENT = 0, TKC_NULL = 1, TKC_GIVEN = 2 };

typedef struct tkc_opt_i64 {
    int64_t value;
    uint8_t is; /* TKC_ABSENT, TKC_NULL, TKC_GIVEN */
} tkc_opt_i64;
typedef struct tkc_opt_bool {
    bool value;
    uint8_t is;
} tkc_opt_bool;
typedef struct tkc_opt_f32 {
    float value;
    uint8_t is;
} tkc_opt_f32;
typedef struct tkc_opt_f64 {
    double value;
    uint8_t is;
} tkc_opt_f64;
/* From -2^63 to 2^64 - 1: negative ones in two's complement. */
typedef struct tkc_opt_seed {
    uint64_t value;
    bool negative;
    uint8_t is;
} tkc_opt_seed;
#define TKC_SOME(v)                                                                                \
    {                                                                                              \
        .value = (v), .is = TKC_GIVEN                                                              \
    }

/* One of a table of names. value 0 = absent, TKC_UNKNOWN = a text that is not in the table; `text`
 * is as received. For encoding either is enough; text wins. */
enum { TKC_UNKNOWN = -1 };
typedef struct tkc_name {
    const char *text;
    int32_t value;
} tkc_name;

/* As sent (NULL = absent) and in microseconds since 1970 (TINKC_NO_TIME = unreadable). For encoding
 * either is enough; text wins; us 0 and TINKC_NO_TIME without text are absent. */
typedef struct tkc_time {
    const char *text;
    int64_t us;
} tkc_time;

/* A free-form map. For encoding: `json` if given, else `pairs` (NULL = absent, an empty list = {}).
 * After decoding both: json as received; in pairs a value that is not a string is its JSON text. */
typedef struct tkc_metadata {
    const char *const *pairs;
    tinkc_str json;
} tkc_metadata;

/* A map of names to numbers, each name once. names NULL = absent (give a pointer for an empty one).
 */
typedef struct tkc_numbers {
    const char *const *names;
    const double *values;
    size_t len;
} tkc_numbers;

/* The value of `name`, or if_absent. */
double tkc_numbers_get(const tkc_numbers *, const char *name, double if_absent);

/* An array of structs. */
#define TKC_ARRAY(T)                                                                               \
    struct {                                                                                       \
        const T *data;                                                                             \
        size_t len;                                                                                \
    }

/* ---- tables ---- */

/* kind            member            type points to */
enum {
    TKC_STR = 1,    /* const char *                       */
    TKC_BOOL,       /* bool                               */
    TKC_I64,        /* int64_t                            */
    TKC_F32,        /* float                              */
    TKC_F64,        /* double                             */
    TKC_OPT_I64,    /* tkc_opt_i64                        */
    TKC_OPT_BOOL,   /* tkc_opt_bool                       */
    TKC_OPT_F32,    /* tkc_opt_f32                        */
    TKC_OPT_F64,    /* tkc_opt_f64                        */
    TKC_OPT_SEED,   /* tkc_opt_seed                       */
    TKC_NAME,       /* tkc_name          tkc_name[], ended by text NULL */
    TKC_TIME,       /* tkc_time                           */
    TKC_STRS,       /* const char *const * (a list)       */
    TKC_METADATA,   /* tkc_metadata                       */
    TKC_NUMBERS,    /* tkc_numbers                        */
    TKC_RAW,        /* tinkc_str: any JSON value          */
    TKC_OBJECT,     /* T                 tkc_message of T */
    TKC_OBJECT_PTR, /* const T *         tkc_message of T */
    TKC_OBJECTS,    /* TKC_ARRAY(T)      tkc_message of T */
    TKC_MAP,        /* TKC_ARRAY(T)      tkc_message of T; T begins with const char *key */
    TKC_CONST,      /* none: the text    const char       */
    TKC_SELF,       /* tinkc_str: the whole object; not written */
    TKC_CUSTOM      /* anything          tkc_custom       */
};

/* The same members, for wire/fields_as_structs.h. */
#define TKC_C_STR      const char *
#define TKC_C_BOOL     bool
#define TKC_C_I64      int64_t
#define TKC_C_F32      float
#define TKC_C_F64      double
#define TKC_C_OPT_I64  tkc_opt_i64
#define TKC_C_OPT_BOOL tkc_opt_bool
#define TKC_C_OPT_F32  tkc_opt_f32
#define TKC_C_OPT_F64  tkc_opt_f64
#define TKC_C_OPT_SEED tkc_opt_seed
#define TKC_C_TIME     tkc_time
#define TKC_C_STRS     const char *const *
#define TKC_C_METADATA tkc_metadata
#define TKC_C_NUMBERS  tkc_numbers
#define TKC_C_RAW      tinkc_str

enum {
    TKC_MUST = 1,     /* decoding: missing is an error; encoding: an absent pointer is one */
    TKC_NULLABLE = 2, /* decoding: null counts as absent (in a tkc_opt_*: as TKC_NULL)     */
    TKC_NOCASE = 4,   /* TKC_NAME: letters of either case                                 */
    TKC_SENT = 16     /* encoding: as TKC_MUST; decoding: the caller checks for it itself  */
};

typedef struct tkc_custom {
    bool (*given)(const void *member); /* false: leave it out */
    void (*write)(tkc_jsonw *, const void *member);
    void (*read)(tkc_json *, void *member);
} tkc_custom;

typedef struct tkc_field {
    const char *name;
    uint8_t kind, flags;
    uint16_t offset;
    const void *type;
} tkc_field;

typedef struct tkc_message {
    const char *name; /* "create_model request" */
    size_t size;
    const tkc_field *fields;
    size_t n_fields;
    const void *defaults; /* an instance, or NULL for all zero */
} tkc_message;

/* ---- the one encoder and the one decoder ---- */

void tkc_message_init(const tkc_message *, void *msg);

/* Appends the object to `out`. Errors: ARGUMENT (a required member is absent, a number that is not
 * finite, text that is not UTF-8), MEMORY. */
bool tkc_message_encode(const tkc_message *, const void *msg, tkc_buf *out, tinkc_error *err);
void tkc_message_write(const tkc_message *, const void *msg, tkc_jsonw *w);

/* Initialises *msg, then fills it. `code` is the code for errors in the text: a client passes
 * TINKC_E_BAD_RESPONSE, a server TINKC_E_UNPROCESSABLE. */
bool tkc_message_decode(const tkc_message *, tinkc_str json, int32_t code, tkc_arena *arena,
                        void *msg, tinkc_error *err);
/* The same for a server, which must not ignore what a client asks for. *unknown: the first member
 * that the message, or an object inside it, does not have and whose value is not a default (null,
 * false, 0, empty); NULL = none. After a failure as well: what is missing may be there under another
 * name. "type" is known everywhere. */
bool tkc_message_decode_noting(const tkc_message *, tinkc_str json, int32_t code, tkc_arena *arena,
                               void *msg, const char **unknown, tinkc_error *err);
void tkc_message_read(const tkc_message *, tkc_json *j, void *msg);

/* ---- for TKC_CUSTOM readers and writers ---- */

/* Skips the value of a member that is not known, and notes its name if that was asked for. */
void tkc_read_unknown(tkc_json *j, tinkc_str key);
/* The next value as a terminated string in the arena; NULL after a failure. */
const char *tkc_read_cstr(tkc_json *j);
/* An array of strings as a list. */
const char *const *tkc_read_strs(tkc_json *j);
/* Makes room for one more item after the first `len` of an array in the arena, which grows by
 * doubling; new items are zero. NULL on failure. Begin with items NULL and *cap 0. */
void *tkc_read_grow(tkc_json *j, void *items, size_t len, size_t *cap, size_t size);
/* A map of numbers in which one member may be a text: it goes to *text. text_key NULL = none may. */
void tkc_read_numbers(tkc_json *j, const char *text_key, tkc_numbers *out, const char **text);
/* The same in writing; text NULL = left out. */
void tkc_write_numbers(tkc_jsonw *w, const tkc_numbers *, const char *text_key, const char *text);
/* Writes text, failing with ARGUMENT if it is not UTF-8. */
void tkc_write_text(tkc_jsonw *w, const char *text);

#endif
