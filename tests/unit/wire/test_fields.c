/* Which fields of each JSON message may be missing and which may be null, held against
 * tests/data/wire/fields.txt. Every field of every sample is taken away and set to null in turn, the
 * fields of nested messages included. */
#include "support/check.h"
#include "support/scratch.h"
#include "support/wire_samples.h"

#include <jansson.h>
#include <stdlib.h>

static _Alignas(16) char msg[4096];

static bool accepts(const tkc_message *type, const json_t *whole)
{
    tinkc_error err = { 0 };
    char *text = json_dumps(whole, JSON_COMPACT);
    assert_non_null(text);
    bool ok = tkc_message_decode(type, tkc_str(text), TINKC_E_BAD_RESPONSE, &arena, msg, &err);
    assert_true(ok || err.code == TINKC_E_BAD_RESPONSE);
    free(text);
    tkc_arena_reset(&arena);
    return ok;
}

/* Appends " path" with "!" where the message is refused without the field, and "0" where it may be
 * null. `whole` is as before when this returns. */
static void try_fields(const tkc_message *type, json_t *whole, json_t *at, const char *path)
{
    tinkc_error err = { 0 };
    json_t *copy = json_copy(at), *value;
    const char *key;
    json_object_foreach(copy, key, value)
    {
        char name[256];
        snprintf(name, sizeof name, "%s%s", path, key);
        json_object_del(at, key);
        bool may_lack = accepts(type, whole);
        json_object_set_new(at, key, json_null());
        bool may_be_null = accepts(type, whole);
        json_object_set(at, key, value);
        tkc_buf_printf(&out, &err, " %s%s%s", name, may_lack ? "" : "!", may_be_null ? "0" : "");
        strncat(name, ".", sizeof name - strlen(name) - 1);
        json_t *inner = json_is_array(value) ? json_array_get(value, 0) : value;
        if (json_is_object(inner))
            try_fields(type, whole, inner, name);
    }
    json_decref(copy);
    assert_ok(err);
}

static void missing_and_null_fields_are_as_documented(void **state)
{
    (void)state;
    char line[8192];
    FILE *file = fopen("tests/data/wire/fields.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) && line[0] == '#')
        ;
    for (size_t i = 0; i < N_WIRE_SAMPLES; i++) {
        const wire_sample *s = &wire_samples[i];
        tinkc_error err = { 0 };
        json_t *whole = json_loads(s->json, 0, NULL);
        if (!whole) /* a seed above what jansson reads; the next sample has a smaller one */
            continue;
        assert_true(accepts(s->type, whole));
        tkc_buf_clear(&out);
        tkc_buf_printf(&out, &err, "%s:", s->type->name);
        try_fields(s->type, whole, whole, "");
        json_decref(whole);
        line[strcspn(line, "\n")] = 0;
        const char *found = tkc_buf_terminate(&out, &err);
        if (strcmp(found, line) != 0)
            fprintf(stderr, "found: %s\n", found); /* cmocka cuts long lines */
        assert_string_equal(found, line);
        if (!fgets(line, sizeof line, file))
            line[0] = 0;
    }
    assert_int_equal(line[0], 0); /* no line without a sample */
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_and_null_fields_are_as_documented),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
