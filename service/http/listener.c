/* listener.c - the socket that a server listens on: an address or a path. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/platform.h"
#include "service/http/http_server.h"

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
    return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr); /* getaddrinfo knows no other family */
}

static bool listen_unix(tke_http *h, const char *path, tinkc_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct stat st;
    if (strlen(path) >= sizeof address.sun_path)
        return tkc_fail(err, TINKC_E_ARGUMENT, "unix_socket: the path is too long");
    memcpy(address.sun_path, path, strlen(path) + 1);
    h->listen_fd = tkc_socket(AF_UNIX, SOCK_STREAM, 0);
    if (h->listen_fd < 0 || !tkc_set_nonblocking(h->listen_fd))
        return tkc_fail_errno(err, "%s", path);
    /* A socket file without a listener was left by a process that has ended. */
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        int probe_fd = tkc_socket(AF_UNIX, SOCK_STREAM, 0);
        bool alive = probe_fd >= 0 &&
                     connect(probe_fd, (struct sockaddr *)(void *)&address, sizeof address) == 0;
        if (probe_fd >= 0)
            close(probe_fd);
        /* Removing the file of a server that runs would cut it off from new clients. */
        if (alive)
            return tkc_fail(err, TINKC_E_CONNECTION, "%s: a server is listening there", path);
        (void)unlink(path);
    }
    char *kept = tkc_copy_str(h->a, tkc_str(path), err);
    if (!kept)
        return false;
    /* The file is created private: between bind and a chmod others could connect. */
    mode_t before = umask(0077);
    int bad = bind(h->listen_fd, (struct sockaddr *)(void *)&address, sizeof address);
    umask(before);
    if (bad || listen(h->listen_fd, SOMAXCONN) != 0) {
        tkc_release_str(h->a, kept);
        return tkc_fail(err, TINKC_E_CONNECTION, "%s: cannot listen there", path);
    }
    h->socket_path = kept; /* from now on the file is ours to remove */
    (void)snprintf(h->url, sizeof h->url, "unix:%.140s", path);
    return true;
}

static bool listen_tcp(tke_http *h, const char *host, int32_t port, tinkc_error *err)
{
    char service[16];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *found = NULL;
    const char *name = host && *host ? host : "127.0.0.1";
    int one = 1;
    (void)snprintf(service, sizeof service, "%d", (int)port);
    if (getaddrinfo(name, service, &hints, &found) != 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "host '%.100s' cannot be resolved", name);
    bool loopback = is_loopback(found->ai_addr);
    h->listen_fd = tkc_socket(found->ai_family, SOCK_STREAM, found->ai_protocol);
    if (h->listen_fd >= 0)
        setsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool bound = h->listen_fd >= 0 && tkc_set_nonblocking(h->listen_fd) &&
                 bind(h->listen_fd, found->ai_addr, found->ai_addrlen) == 0 &&
                 listen(h->listen_fd, SOMAXCONN) == 0;
    int why = errno;
    bool v6 = found->ai_family == AF_INET6;
    freeaddrinfo(found);
    /* Checked before a failure to bind is reported: with that fixed, this would be the next one. */
    if (!loopback && tke_key_ring_is_empty(h->keys)) {
        tkc_fail(err, TINKC_E_ARGUMENT,
                 "host '%.100s' can be reached from other machines: api_keys are required", name);
        err->cause = TINKC_E_NO_CREDENTIAL;
        return false;
    }
    if (!bound && port == 0 && why == EADDRINUSE)
        return tkc_fail(err, TINKC_E_CONNECTION, "%.100s: no port is free; wait, or name one", name);
    if (!bound)
        return tkc_fail(err, TINKC_E_CONNECTION, "%.100s:%d: %s", name, (int)port,
                        why == EADDRINUSE ? "the address is in use" : "cannot listen there");
    struct sockaddr_storage bound_to;
    socklen_t len = sizeof bound_to;
    if (getsockname(h->listen_fd, (struct sockaddr *)(void *)&bound_to, &len) == 0)
        port = ntohs(v6 ? ((struct sockaddr_in6 *)(void *)&bound_to)->sin6_port
                        : ((struct sockaddr_in *)(void *)&bound_to)->sin_port);
    (void)snprintf(h->url, sizeof h->url, v6 ? "http://[%.100s]:%d" : "http://%.100s:%d", name,
                   (int)port);
    return true;
}

bool tke_listen(tke_http *h, const tinkc_serve_options *o, tinkc_error *err)
{
    return o->unix_socket ? listen_unix(h, o->unix_socket, err)
                          : listen_tcp(h, o->host, o->port, err);
}

void tke_local_url(const tke_http *h, int fd, char *out, size_t size)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char host[INET6_ADDRSTRLEN], port[16];
    bool known = !h->socket_path && getsockname(fd, (struct sockaddr *)(void *)&at, &len) == 0 &&
                 getnameinfo((struct sockaddr *)(void *)&at, len, host, sizeof host, port,
                             sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0;
    if (!known)
        (void)snprintf(out, size, "http://localhost");
    else
        (void)snprintf(out, size, at.ss_family == AF_INET6 ? "http://[%s]:%s" : "http://%s:%s",
                       host, port);
}
