/* download_scene.h - downloads from the mock into a folder of the test's own. A download's thread waits on the mock's clock, so its
 * pauses cost nothing. Says in one line (client_scene.h) what was requested, how it ended and what is on the disk then:
 *
 *     /x; done; ./x: 10 bytes, 1 file; x=0123456789
 *
 * A folder shows what is in it in brackets, a file its text (if short) or its size, and the state of a download that can be
 * resumed ETag, total length, offset behind the last whole file, and these files with the first digits of their digests:
 *
 *     r_weights_c.partial/[first=1] r_weights_c.partial.state{e 3072 1024 first:6b86b2}
 *
 * Of each download that succeeds, sizes and digests are compared with the files on the disk; no string has to show them.
 */
#ifndef TESTS_DOWNLOAD_SCENE_H
#define TESTS_DOWNLOAD_SCENE_H

#include "support/client/client_scene.h"
#include "support/client/tar_write.h"

#define CHECKPOINT "tinker://r/weights/c"
#define EXTERNAL   "tinker://r/external_weights/c"
#define URL        "https://files.test/x"
#define LINKS      API "training_runs/r/checkpoints/external_weights/c/external_weights_urls"
/* A state as a run leaves it beside what it has fetched. */
#define STATE(what, etag, total, offset, files)                                                                        \
    "{\"what\":\"" what "\",\"etag\":\"" etag "\",\"total\":" total ",\"offset\":" offset ",\"files\":[" files "]}"

/* A client that has started, in an empty folder; the address of the checkpoint's archive is URL. */
scene *download_begin(void);
void download_end(scene *);
void clean_folder(void);
void put_file(const char *path, const char *text);
void show_folder(scene *);

/* What URL answers next. cut_after: the connection breaks after so many bytes of the body; 0 = never. */
void serve_once(scene *, int32_t status, const char *const *headers, const void *body, size_t len);
void serve_cut(scene *, int32_t status, const char *const *headers, const void *body, size_t len, int64_t cut_after);
void serve_gone(scene *, size_t times);

/* Each to its end, from pause to pause. */
void fetch(scene *, tinkc_download_options); /* the checkpoint */
void fetch_external(scene *, tinkc_download_options);
void fetch_url(scene *, const char *url, tinkc_download_options);
/* Nothing is shown but its error. True if there is none. */
bool fetch_quietly(scene *, const char *path, tinkc_download_options);

#endif
