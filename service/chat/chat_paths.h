/* chat_paths.h - which paths are another API's form (service/chat), and their refusals. No locks. */
#ifndef TKE_SERVICE_CHAT_PATHS_H
#define TKE_SERVICE_CHAT_PATHS_H

#include "service/core/service_types.h"
#include "service/handlers/handlers.h"

#define TKE_CHAT_MODELS "/v1/models"

typedef void tke_handle_fn(tke_call *);
/* NULL: answered, there is no such path. */
tke_handle_fn *tke_openai_find(tke_call *, tinkc_str path);
tinkc_str tke_openai_path(tinkc_str path); /* without /oai/api or /anthropic/api */
bool tke_openai_knows(tinkc_str path);     /* with or without it */
void tke_openai_refuse(tke_call *, int32_t status, const char *code, const char *param,
                       const char *text);
/* Can this build read text? */
bool tke_openai_possible(tinkc_error *err);

#endif
