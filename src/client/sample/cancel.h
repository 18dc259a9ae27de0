/* cancel.h - telling the service that nobody waits for a sample any more. */
#ifndef TKC_API_CANCEL_H
#define TKC_API_CANCEL_H

#include "client/core/client_priv.h"

/* Says so if the service wants to know (client->io.cancels.at_once), some at a time, in the
 * background; what goes wrong is logged and no more. Thread: I/O. */
void tkc_cancel_at_service(tinkc_client *, const char *request_id);
/* Those that have not left yet never will. Thread: I/O. */
void tkc_cancels_end(tinkc_client *);

#endif
