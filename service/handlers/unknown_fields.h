/* unknown_fields.h - nothing in a request is silently ignored: unknown, repeated and mistyped fields are refused. No locks. */
#ifndef TKE_SERVICE_UNKNOWN_FIELDS_H
#define TKE_SERVICE_UNKNOWN_FIELDS_H

#include "base/json_read.h"
#include "service/core/service_types.h"
#include "wire/messages.h"

/* Whether a forward_backward request in protobuf has unknown fields, fields of the wrong type, fields given
 * twice and, if `config` is what was decoded, names given twice. True: `out` says which. */
bool tke_bad_field_in_pass(tinkc_str body, const tkc_numbers *config, tkc_arena *, char *out,
                           size_t size, tinkc_error *err);
/* False: an endpoint that takes no body got one with fields, and the call is refused. */
bool tke_call_bodiless(tke_call *);
/* False: an object of the JSON body has two members with one name, and the call is refused. */
bool tke_call_names_unique(tke_call *);
/* False: decoding the body has found a field that is not known, and the call is refused. */
bool tke_call_fields_known(tke_call *);
/* The same for the parameters of the query: unknown ones, ones given twice, and text that is not UTF-8. */
bool tke_call_query_known(tke_call *);

#endif
