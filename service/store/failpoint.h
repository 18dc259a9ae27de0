/* failpoint.h - places inside commits at which a test build ends the process or fails.
 *
 * They exist only in files compiled with TINKC_FAILPOINTS, for one test program
 * (tests/torture/test_failpoints.c). The libraries and the command contain neither the calls nor
 * the name of the environment variable; tests/torture/test_no_failpoints.sh checks this.
 *
 *     TINKC_FAILPOINT=NAME=crash     the process is killed when it reaches NAME
 *     TINKC_FAILPOINT=NAME=error     the step there fails
 *     TINKC_FAILPOINT=NAME@3=crash   at the third time
 *
 * Add a place: a line below, and TKE_FAILPOINT where it is. The test goes through the list.
 */
#ifndef TKE_SERVICE_FAILPOINT_H
#define TKE_SERVICE_FAILPOINT_H

#include "base/err.h"

/* X(name, may it fail there (false: the step before it cannot be undone), what is done by then) */
#define TKE_FAILPOINTS(X)                                                                          \
    X("store.begun", true, "a transaction has begun and has no statement yet")                     \
    X("store.written", true, "its statements have run, it is not committed")                       \
    X("store.committed", false, "it is committed, nobody has been answered")                       \
    X("journal.begun", true, "a request is about to be appended to the journal")                   \
    X("journal.written", true, "it is appended, not synced")                                       \
    X("journal.kept", true, "what a trim keeps is read, the journal is not replaced")              \
    X("folder.begun", true, "a folder below tmp/ is there, and empty")                             \
    X("folder.tensors", true, "it has its tensors, no checksums")                                  \
    X("folder.marked", true, "it is complete, not synced")                                         \
    X("place.begun", true, "a synced folder is about to be moved to its name")                     \
    X("place.moved", true, "it is moved, its parent is not synced")                                \
    X("checkpoint.placed", false, "a checkpoint is in its place, its row is not written")          \
    X("checkpoint.source", false, "it is recorded; images and journal before it are still there")   \
    X("source.linked", true, "a checkpoint that is replaced is also below tmp/, as an image")      \
    X("image.placed", true, "an image is in its place, the journal is not trimmed")                \
    X("spill.placed", false, "an ephemeral sampler is in its place, its row is not written")       \
    X("delete.moved", false, "a deleted checkpoint is moved away, its row is still there")

#ifdef TINKC_FAILPOINTS
/* True: continue. False: err (STORE) says that this is a test. */
bool tke_failpoint(const char *name, tinkc_error *err);
#define TKE_FAILPOINT(name, err) tke_failpoint(name, err)
#else
#define TKE_FAILPOINT(name, err) ((void)(err), true)
#endif

#endif
