/* config_keys.h - the members of config.json by name, for the families that read it.
 *
 * A value that is missing or null gives the default. One of another type fails, naming the key, and
 * after a failure every function returns its default: check tkc_failed(keys->err) at the end.
 */
#ifndef TKE_MODEL_CONFIG_KEYS_H
#define TKE_MODEL_CONFIG_KEYS_H

#include "base/arena.h"

typedef struct tke_member {
    tinkc_str key, value; /* value: its JSON text */
} tke_member;

typedef struct tke_config_keys {
    const char *what; /* names the file in messages */
    tke_member *members;
    size_t n;
    tkc_arena *arena;
    tinkc_error *err;
} tke_config_keys;

/* The members of an object. Of a key that occurs twice the last counts. */
bool tke_keys_read(tke_config_keys *, tinkc_str json, const char *what, tkc_arena *,
                   tinkc_error *err);
/* The members of an object inside; false if there is none. */
bool tke_keys_inside(const tke_config_keys *, const char *name, tke_config_keys *out);

bool tke_key_given(const tke_config_keys *, const char *name); /* and not null */
int64_t tke_key_i64(const tke_config_keys *, const char *name, int64_t otherwise);
double tke_key_double(const tke_config_keys *, const char *name, double otherwise);
bool tke_key_bool(const tke_config_keys *, const char *name, bool otherwise);
/* Nothing (data NULL) if it is missing or of another type.*/
tinkc_str tke_key_str(const tke_config_keys *, const char *name);
/* Its strings, or -1 if it is missing or not a list; other items are empty. At most
 * `room` are stored; the count is of all. */
int64_t tke_key_strings(const tke_config_keys *, const char *name, tinkc_str *out, size_t room);
/* Its integers, likewise. */
int64_t tke_key_integers(const tke_config_keys *, const char *name, int64_t *out, size_t room);

/* Its numbers, likewise; null and {"__float__": "Infinity"} are infinity. */
int64_t tke_key_limits(const tke_config_keys *, const char *name, double *out, size_t room);

/* "config.json: FAULT" (MODEL); "config.json: FEATURE 'name' is not supported" (UNSUPPORTED). */
bool tke_keys_bad(const tke_config_keys *, const char *fault);
bool tke_keys_refuse(const tke_config_keys *, const char *feature, tinkc_str name);
/* A size: 1 .. max, else MODEL with the key's name. */
bool tke_keys_size(const tke_config_keys *, const char *name, int64_t value, int64_t max);

#endif
