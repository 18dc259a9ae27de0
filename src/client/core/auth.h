/* auth.h - credentials and tokens, for the start-up; requests use tkc_auth_token. */
#ifndef TKC_API_AUTH_H
#define TKC_API_AUTH_H

#include "client/core/client_priv.h"

/* `needed`: a client that has neither key nor command is refused. Any thread. */
tkc_auth *tkc_auth_new(tinkc_client *, bool needed, tinkc_error *err);
void tkc_auth_free(tkc_auth *);

/* Goes by the service's settings, which must be there. True: ready now. False with err: refused.
 * False without: an exchange is under way, `done` comes. Thread: I/O. */
typedef void tkc_auth_done_fn(void *arg, const tinkc_error *err);
bool tkc_auth_begin(tkc_auth *, tkc_auth_done_fn *done, void *arg, tinkc_error *err);
/* Starts from a token that somebody kept. Before tkc_auth_begin. */
void tkc_auth_seed(tkc_auth *, const char *jwt);
/* The token in use; NULL without exchange. Thread: I/O. */
const char *tkc_auth_current_jwt(const tkc_auth *);
/* No timer and no command after it. Thread: I/O. */
void tkc_auth_stop(tkc_auth *);

#endif
