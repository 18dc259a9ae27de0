/* schema.h - JSON Schema: whether a value conforms. */
#ifndef TKR_SCHEMA_H
#define TKR_SCHEMA_H

#include "recipes/jsontext.h"

/* Refuses keywords that are not implemented, by name, so that no constraint is silently ignored. */
bool tkr_schema_check(const tkc_tree *schema, tinkc_error *err);
/* Whether the value conforms; err is set only if memory ran out. */
bool tkr_schema_conforms(const tkc_tree *schema, const tkc_tree *value, tinkc_error *err);

#endif
