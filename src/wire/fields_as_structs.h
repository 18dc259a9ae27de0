/* fields_as_structs.h - turns the list of messages TKC_LIST into struct types, and declares their
 * tables. wire/fields_as_tables.h makes the tables from the same list. No include guard: included
 * once for each list.
 *
 *   #define T tkc_lora_config              the struct; its table is tkc_lora_config_type
 *   BEGIN_DEFAULTS                         BEGIN if all its defaults are zero
 *       FIELD(I64, rank, MUST)             JSON name and member, TKC_I64, TKC_MUST
 *       DEFAULT(BOOL, train_mlp, 0, true)  its value where it is absent
 *   END_DEFAULTS("lora_config")            the name in error messages
 *   #undef T
 *
 *   OBJECT(member, T2, flags)              a struct of the list; OBJECT_PTR, OBJECTS and MAP likewise
 *   DEFAULT_OBJECT(member, T2, flags, ...) with an initializer of its members
 *   NAME(member, names, flags)             TKC_NAME: one of these names
 *   CUSTOM(type, member, codec, flags)     TKC_CUSTOM: a member of this type, which the codec reads and writes
 *   RENAMED("text", kind, member, flags)   the JSON name is this text
 *   TAG("text", flags)                     "type" has this text
 *   SELF                                   `json` is the whole object as received
 *   KEY(member)                            in an item of a MAP: its key
 *   EMPTY                                  no member; C wants one
 */
/* clang-format off */
#define BEGIN                                  typedef struct T {
#define BEGIN_DEFAULTS                         BEGIN
#define END(title)                             END_OF(T)
#define END_DEFAULTS(title)                    END_OF(T)
#define END_OF(T)                              END_OF_(T)
#define END_OF_(T)                             } T; extern const tkc_message T##_type;
#define FIELD(kind, member, flags)             TKC_C_##kind member;
#define DEFAULT(kind, member, flags, value)    TKC_C_##kind member;
#define RENAMED(text, kind, member, flags)     TKC_C_##kind member;
#define NAME(member, names, flags)             tkc_name member;
#define OBJECT(member, T2, flags)              T2 member;
#define DEFAULT_OBJECT(member, T2, flags, ...) T2 member;
#define OBJECT_PTR(member, T2, flags)          const T2 *member;
#define OBJECTS(member, T2, flags)             TKC_ARRAY(T2) member;
#define MAP(member, T2, flags)                 TKC_ARRAY(T2) member;
#define CUSTOM(type, member, codec, flags)     type member;
#define TAG(text, flags)
#define SELF                                   tinkc_str json;
#define KEY(member)                            const char *member;
#define EMPTY                                  char unused;

#include TKC_LIST
#include "wire/fields_end.h"
#undef TKC_LIST
/* clang-format on */
