/* scripted_curl.h - takes libcurl's place: records every setting and lets the test play the peer.
 *
 * No socket and no time pass. A test that uses it sees exactly what the transport asks of libcurl,
 * and answers on the thread that libcurl's callbacks would run on.
 */
#ifndef TKC_TESTS_SCRIPTED_CURL_H
#define TKC_TESTS_SCRIPTED_CURL_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct scripted_multi scripted_multi;

typedef struct scripted_easy {
    char settings[4096]; /* "NAME=value\n" in the order they were set, since the last reset */
    curl_write_callback header_fn, body_fn;
    curl_read_callback read_fn;
    curl_seek_callback seek_fn;
    curl_xferinfo_callback progress_fn;
    void *header_data, *body_data, *read_data, *seek_data, *progress_data, *own;
    char *error_text;
    scripted_multi *multi; /* NULL = not added */
    /* what curl_easy_getinfo tells */
    long http_version, os_error;
    curl_off_t pretransfer, total;
    const char *redirect;
    int pauses; /* calls of curl_easy_pause with CURLPAUSE_CONT */
    CURLMsg message;
    bool done; /* the message waits to be read */
} scripted_easy;

struct scripted_multi {
    char settings[1024];
    curl_multi_timer_callback timer_fn;
    curl_socket_callback socket_fn;
    void *timer_data, *socket_data;
    char actions[256]; /* of curl_multi_socket_action: "timeout;", "7 in out;" */
    bool open;
};

/* Replaces the functions of the table that tkc_curl_get returns, and forgets everything recorded. */
void scripted_curl_start(void);

/* The next call of this function ("easy_init", "slist_append", ...) fails; NULL = none. */
extern const char *scripted_curl_fails;
/* Called by curl_multi_perform for a transfer that is not yet done; may be NULL. */
extern void (*scripted_curl_performs)(scripted_easy *);

/* Called by curl_multi_socket_action, with CURL_SOCKET_TIMEOUT for a timer; may be NULL. */
extern void (*scripted_curl_acts)(scripted_multi *, curl_socket_t);

size_t scripted_added(void);                  /* calls of multi_add_handle that succeeded */
scripted_easy *scripted_nth(size_t i);        /* the easy handle of the i-th such call */
scripted_multi *scripted_multi_nth(size_t i); /* in the order they were made */
size_t scripted_multis_open(void);
size_t scripted_easies_open(void);
size_t scripted_lists_open(void); /* header lines that are not freed */
/* What libcurl does not allow: a handle that is cleaned up or added while it is in use, taken out of
 * another multi handle than its own, a multi handle that is cleaned up with transfers in it. */
size_t scripted_misuses(void);
/* Calls of curl_multi_poll, and the sum of the time that they may take. */
size_t scripted_polls(long *total_ms);

/* One header line or more, each ended by \r\n as libcurl hands them on. False: the callback refused. */
bool scripted_head(scripted_easy *, const char *lines);
/* What the body callback returned. */
size_t scripted_body(scripted_easy *, const char *text);
/* Ends the transfer, and asks to be called so that the end is seen. */
void scripted_end(scripted_easy *, CURLcode);

#endif
