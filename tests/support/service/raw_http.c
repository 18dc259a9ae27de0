/* raw_http.c - requests and answers as bytes on a socket. */
#include "support/service/raw_http.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/check.h"

int raw_try_dial(const char *url)
{
    struct sockaddr_un local = { .sun_family = AF_UNIX };
    struct sockaddr_in inet = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    bool is_local = strncmp(url, "unix:", 5) == 0;
    if (is_local)
        snprintf(local.sun_path, sizeof local.sun_path, "%s", url + 5);
    else
        inet.sin_port = htons((uint16_t)strtol(strrchr(url, ':') + 1, NULL, 10));
    int fd = socket(is_local ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    int bad = is_local ? connect(fd, (struct sockaddr *)&local, sizeof local)
                       : connect(fd, (struct sockaddr *)&inet, sizeof inet);
    if (!bad)
        return fd;
    close(fd);
    return -1;
}

int raw_dial(const char *url)
{
    int fd = raw_try_dial(url);
    assert_true(fd >= 0);
    struct timeval limit = { 30, 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

tkc_buf raw_talk(int fd, const char *host, const char *head, const void *body, size_t len)
{
    tinkc_error err = { 0 };
    tkc_buf all;
    char chunk[4096];
    tkc_buf_init(&all, NULL, TKC_BUF_NO_MAX);
    tkc_buf request;
    tkc_buf_init(&request, NULL, TKC_BUF_NO_MAX);
    bool typed = !len || strstr(head, "\r\nContent-Type:");
    tkc_buf_printf(&request, &err, "%s\r\nHost: %s%s\r\nContent-Length: %zu\r\n\r\n", head, host,
                   typed ? "" : "\r\nContent-Type: application/json", len);
    tkc_buf_add(&request, body, len, &err);
    assert_int_equal(send(fd, request.data, request.len, MSG_NOSIGNAL), request.len);
    tkc_buf_free(&request);
    for (;;) {
        ssize_t n = recv(fd, chunk, sizeof chunk, 0);
        if (n <= 0)
            break;
        tkc_buf_add(&all, chunk, (size_t)n, &err);
        const char *text = tkc_buf_terminate(&all, &err);
        const char *end = strstr(text, "\r\n\r\n"), *length = strstr(text, "Content-Length: ");
        if (end && length && length < end &&
            all.len >= (size_t)(end + 4 - text) + (size_t)strtol(length + 16, NULL, 10))
            break;
        if (end && strstr(text, "\r\n0\r\n\r\n"))
            break;
        if (end && strncmp(text, "HTTP/1.1 204", 12) == 0)
            break;
    }
    tkc_buf_terminate(&all, &err);
    return all;
}
