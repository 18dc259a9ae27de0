/* mock_service.h - the small service behind a mock's script. */
#ifndef TKC_MOCK_MOCK_SERVICE_H
#define TKC_MOCK_MOCK_SERVICE_H

#include "base/buf.h"
#include "tinkc/sys/mock.h"

typedef struct tkc_mock_service tkc_mock_service;

tkc_mock_service *tkc_mock_service_new(tinkc_error *err);
void tkc_mock_service_free(tkc_mock_service *);

/* One answer. `body` and `type` (static text) are filled in; the return is the status. Never
 * waits. Not thread-safe: the mock serialises. */
int32_t tkc_mock_service_answer(tkc_mock_service *, const tinkc_request *, int64_t wall_us,
                                tkc_buf *body, const char **type);

#endif
