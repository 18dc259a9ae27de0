/* Which fields of each JSON message may be missing and which may be null, held against
 * tests/data/wire/fields.txt. Every field of every sample is taken away and set to null in turn, the
 * fields of nested messages and those that the sample lacks included. TINKC_UPDATE=1 writes the file
 * again; read the difference before you commit it. */
#include "support/check.h"
#include "support/json_trees.h"
#include "support/scratch.h"
#include "support/client/wire_samples.h"

static _Alignas(16) char msg[4096];

enum { REFUSED, READ, KEPT };

/* KEPT: what is written again is the same as what was read. */
static int read_and_write(const tkc_message *type, const tkc_tree *whole)
{
    tinkc_error err = { 0 };
    char *text = json_print(whole);
    assert_non_null(text);
    int result = REFUSED;
    if (tkc_message_decode(type, tkc_str(text), TINKC_E_BAD_RESPONSE, &arena, msg, &err)) {
        tkc_buf again;
        tkc_buf_init(&again, NULL, TKC_BUF_NO_MAX);
        tkc_message_encode(type, msg, &again, &err);
        tkc_tree *written = tkc_tree_read(&json_arena, tkc_buf_view(&again), 0);
        result = tkc_tree_equal(written, whole) ? KEPT : READ;
        tkc_buf_free(&again);
    } else {
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    }
    tkc_arena_reset(&arena);
    return result;
}

/* Appends " path" with "!" where the message is refused without the field, "0" where null is read as
 * absent and "~" where it is kept. `whole` is as before when this returns. */
static void try_field(const tkc_message *type, tkc_tree *whole, tkc_tree *at, const char *key, const char *path)
{
    tinkc_error err = { 0 };
    static const char *const marks[] = { "", "0", "~" };
    tkc_tree *value = tkc_tree_get(at, key);
    tkc_tree_remove(at, key);
    bool may_lack = read_and_write(type, whole) != REFUSED;
    tkc_tree_set(at, key, tkc_tree_null());
    int null = read_and_write(type, whole);
    if (value)
        tkc_tree_set(at, key, value);
    else
        tkc_tree_remove(at, key);
    tkc_buf_printf(&out, &err, " %s%s%s%s", path, key, may_lack ? "" : "!", marks[null]);
    assert_ok(err);
}

/* The type of the messages in a member, if their fields are all in its table. */
static const tkc_message *type_of_member(const tkc_message *type, const char *key)
{
    for (size_t i = 0; type && i < type->n_fields; i++) {
        const tkc_field *f = &type->fields[i];
        bool nests = f->kind == TKC_OBJECT || f->kind == TKC_OBJECT_PTR || f->kind == TKC_OBJECTS;
        if (nests && strcmp(f->name, key) == 0)
            return f->type;
    }
    return NULL;
}

/* All fields of the object at `at`, which is of the type `here` if that is known; then those that the
 * sample lacks. */
static void try_fields(const tkc_message *type, tkc_tree *whole, tkc_tree *at, const tkc_message *here,
                       const char *path)
{
    tkc_tree *copy = tkc_tree_copy(&json_arena, at), *value;
    const char *key;
    TKC_TREE_EACH (copy, key, value) {
        char name[256];
        try_field(type, whole, at, key, path);
        snprintf(name, sizeof name, "%s%s.", path, key);
        tkc_tree *inner = tkc_tree_is_array(value) ? tkc_tree_at(value, 0) : value;
        if (tkc_tree_is_object(inner))
            try_fields(type, whole, inner, type_of_member(here, key), name);
    }
    for (size_t i = 0; here && i < here->n_fields; i++)
        if (here->fields[i].kind != TKC_SELF && !tkc_tree_get(copy, here->fields[i].name))
            try_field(type, whole, at, here->fields[i].name, path);
}

static void line_of_sample(const wire_sample *s)
{
    tinkc_error err = { 0 };
    tkc_tree *whole = json_of(s->json);
    if (!whole) /* a seed of more than 63 bits; the next sample has a smaller one */
        return;
    assert_int_not_equal(read_and_write(s->type, whole), REFUSED);
    tkc_buf_printf(&out, &err, "%s:", s->type->name);
    try_fields(s->type, whole, whole, s->type, "");
    tkc_buf_cstr(&out, "\n", &err);
    assert_ok(err);
}

TEST(missing_and_null_fields_are_as_documented)
{
    static const char name[] = "tests/data/wire/fields.txt";
    tinkc_error err = { 0 };
    char line[8192];
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) && line[0] == '#')
        tkc_buf_cstr(&out, line, &err);
    const size_t head = out.len;
    for (size_t i = 0; i < N_WIRE_SAMPLES; i++)
        line_of_sample(&wire_samples[i]);
    const char *found = tkc_buf_terminate(&out, &err);
    if (getenv("TINKC_UPDATE")) {
        fclose(file);
        file = fopen(name, "w");
        assert_non_null(file);
        fputs(found, file);
    } else {
        for (const char *at = found + head; *at; at += strcspn(at, "\n") + 1) {
            size_t len = strlen(line);
            if (strncmp(at, line, len) != 0) /* cmocka cuts long lines */
                fprintf(stderr, "found: %.*s\n", (int)strcspn(at, "\n"), at);
            assert_int_equal(len, strcspn(at, "\n") + 1);
            assert_memory_equal(at, line, len);
            if (!fgets(line, sizeof line, file))
                line[0] = '\0';
        }
        assert_int_equal(line[0], 0); /* no line without a sample */
    }
    fclose(file);
}

RUN_TESTS(set_up, tear_down)
