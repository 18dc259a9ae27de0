/* failpoint.c - what happens at a failpoint. Empty except in test builds; see failpoint.h. */
#include "service/store/failpoint.h"

#ifdef TINKC_FAILPOINTS

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/str.h"

/* Does TINKC_FAILPOINT name it, and is the count reached? *how is what follows "=". */
static bool is_due(const char *name, tinkc_str *how)
{
    static _Atomic int64_t n_passed;
    const char *set = getenv("TINKC_FAILPOINT");
    tinkc_str rest = tkc_str(set ? set : ""), place, wanted;
    int64_t number = 1;
    if (!set || !tkc_str_cut(&rest, '=', &place))
        return false;
    *how = rest;
    rest = place;
    if (!tkc_str_cut(&rest, '@', &wanted) || !tkc_str_is(wanted, name))
        return false;
    if (rest.len)
        (void)tkc_parse_i64(rest, &number);
    return atomic_fetch_add(&n_passed, 1) + 1 == number;
}

bool tke_failpoint(const char *name, tinkc_error *err)
{
    tinkc_str how;
    if (!is_due(name, &how))
        return true;
    if (tkc_str_is(how, "crash"))
        (void)raise(SIGKILL);
    return tkc_fail(err, TINKC_E_STORE, "failpoint %s", name);
}

#else

typedef int tke_failpoint_unused; /* C forbids an empty file */

#endif
