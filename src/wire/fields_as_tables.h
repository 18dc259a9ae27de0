/* fields_as_tables.h - turns the list of messages TKC_LIST into tables of fields for
 * wire/message_codec.h; wire/fields_as_structs.h explains the list. No include guard: included once
 * for each list, where the names and codecs that the list mentions are known.
 *
 * The list is read twice: first for the defaults, which the tables point to.
 */
#include <stddef.h>

/* clang-format off */
#define BEGIN
#define BEGIN_DEFAULTS                         static const T OF_T(defaults) = {
#define END(title)
#define END_DEFAULTS(title)                    };
#define OF_T(what)                             OF_T_(T, what)
#define OF_T_(T, what)                         OF_T__(T, what)
#define OF_T__(T, what)                        T##_##what
#define FIELD(kind, member, flags)
#define DEFAULT(kind, member, flags, value)    .member = value,
#define RENAMED(text, kind, member, flags)
#define NAME(member, names, flags)
#define OBJECT(member, T2, flags)
#define DEFAULT_OBJECT(member, T2, flags, ...) .member = { __VA_ARGS__ },
#define OBJECT_PTR(member, T2, flags)
#define OBJECTS(member, T2, flags)
#define MAP(member, T2, flags)
#define CUSTOM(type, member, codec, flags)
#define TAG(text, flags)
#define SELF
#define KEY(member)
#define EMPTY

#include TKC_LIST
#include "wire/fields_end.h"

#define MUST                                   TKC_MUST
#define NULLABLE                               TKC_NULLABLE
#define NOCASE                                 TKC_NOCASE
#define SENT                                   TKC_SENT
#define ROW(text, kind, member, flags, type)   { text, kind, flags, offsetof(T, member), type },
#define TABLE(title, defaults)                                                                     \
    };                                                                                             \
    const tkc_message OF_T(type) = { title, sizeof(T), OF_T(fields),                               \
                                     sizeof OF_T(fields) / sizeof *OF_T(fields), defaults };
#define BEGIN                                  static const tkc_field OF_T(fields)[] = {
#define BEGIN_DEFAULTS                         BEGIN
#define END(title)                             TABLE(title, NULL)
#define END_DEFAULTS(title)                    TABLE(title, &OF_T(defaults))
#define OF_T(what)                             OF_T_(T, what)
#define OF_T_(T, what)                         OF_T__(T, what)
#define OF_T__(T, what)                        T##_##what
#define FIELD(kind, member, flags)             ROW(#member, TKC_##kind, member, flags, NULL)
#define DEFAULT(kind, member, flags, value)    ROW(#member, TKC_##kind, member, flags, NULL)
#define RENAMED(text, kind, member, flags)     ROW(text, TKC_##kind, member, flags, NULL)
#define NAME(member, names, flags)             ROW(#member, TKC_NAME, member, flags, names)
#define OBJECT(member, T2, flags)              ROW(#member, TKC_OBJECT, member, flags, &T2##_type)
#define DEFAULT_OBJECT(member, T2, flags, ...) ROW(#member, TKC_OBJECT, member, flags, &T2##_type)
#define OBJECT_PTR(member, T2, flags)          ROW(#member, TKC_OBJECT_PTR, member, flags, &T2##_type)
#define OBJECTS(member, T2, flags)             ROW(#member, TKC_OBJECTS, member, flags, &T2##_type)
#define MAP(member, T2, flags)                 ROW(#member, TKC_MAP, member, flags, &T2##_type)
#define CUSTOM(type, member, codec, flags)     ROW(#member, TKC_CUSTOM, member, flags, &codec)
#define TAG(text, flags)                       { "type", TKC_CONST, flags, 0, text },
#define SELF                                   { "", TKC_SELF, 0, offsetof(T, json), NULL },
#define KEY(member)
#define EMPTY

#include TKC_LIST
#undef ROW
#undef TABLE
#undef MUST
#undef NULLABLE
#undef NOCASE
#undef SENT
#include "wire/fields_end.h"
#undef TKC_LIST
/* clang-format on */
