/* engine_server.c - how long the server takes to be ready, and what a small request costs.
 *
 *     build/bench/engine_server [MODEL]
 *
 * Prints the time from nothing to the first answer, then percentiles of small requests over one
 * kept connection, beside the same requests in process.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <tinkc/engine.h>
#include <tinkc/sys/transport.h>
#include <unistd.h>

enum { N = 4000 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *what, double *us)
{
    qsort(us, N, sizeof *us, by_value);
    printf("%-34s p50 %7.1f us   p90 %7.1f us   p99 %7.1f us\n", what, us[N / 2], us[N * 9 / 10],
           us[N * 99 / 100]);
}

/* The server refuses requests that it does not like and closes the connection. */
static void give_up(const char *what)
{
    fprintf(stderr, "engine_server: %s: the connection was closed\n", what);
    exit(1);
}

static void over_http(int fd, const char *what, const char *request)
{
    static double us[N];
    char answer[8192];
    for (int i = 0; i < N; i++) {
        double start = now_us();
        if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0)
            give_up(what);
        size_t n = 0;
        for (const char *end = NULL; !end;) {
            ssize_t got = recv(fd, answer + n, sizeof answer - 1 - n, 0);
            if (got <= 0)
                give_up(what);
            n += (size_t)got;
            answer[n] = '\0';
            end = strstr(answer, "\r\n\r\n");
            const char *length = strstr(answer, "Content-Length: ");
            if (end && length &&
                n < (size_t)(end + 4 - answer) + (size_t)strtol(length + 16, NULL, 10))
                end = NULL;
        }
        us[i] = now_us() - start;
    }
    if (strncmp(answer, "HTTP/1.1 200", 12) != 0)
        printf("unexpected: %s\n", answer);
    report(what, us);
}

static void nothing_status(tinkc_reply *r, int32_t status)
{
    (void)r, (void)status;
}
static void nothing_header(tinkc_reply *r, const char *name, const char *value)
{
    (void)r, (void)name, (void)value;
}
static bool nothing_write(tinkc_reply *r, const void *data, size_t len)
{
    (void)r, (void)data, (void)len;
    return true;
}
static void nothing_end(tinkc_reply *r)
{
    (void)r;
}

static void in_process(tinkc_engine *engine, const char *what, const char *method, const char *path,
                       const char *body)
{
    static double us[N];
    const char *const headers[] = { "Content-Type", "application/json", NULL };
    const tinkc_transport *t = tinkc_engine_transport(engine);
    for (int i = 0; i < N; i++) {
        tinkc_reply reply = { .status = nothing_status,
                              .header = nothing_header,
                              .write = nothing_write,
                              .end = nothing_end };
        const tinkc_request request = { .method = method,
                                        .path = path,
                                        .base_url = "",
                                        .headers = headers,
                                        .body = { (const unsigned char *)body, strlen(body) } };
        double start = now_us();
        t->send(t->self, &request, &reply);
        us[i] = now_us() - start;
    }
    report(what, us);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 };
    double start = now_us();
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", argc > 1 ? argv[1] : "models/nano", &err);
    tinkc_server *server = tinkc_engine_serve(engine, NULL, &err);
    if (err.code)
        return fprintf(stderr, "%s\n", err.message), 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    address.sin_port =
        htons((uint16_t)strtol(strrchr(tinkc_server_url(server), ':') + 1, NULL, 10));
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        return 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const char *health = "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char answer[1000];
    if (send(fd, health, strlen(health), 0) < 0 || recv(fd, answer, sizeof answer, 0) <= 0)
        give_up("healthz");
    printf("ready after %.1f ms (bound 300)\n", (now_us() - start) / 1e3);
    over_http(fd, "healthz over HTTP (bound 200)", health);
    over_http(fd, "client/config over HTTP",
              "POST /api/v1/client/config HTTP/1.1\r\nHost: localhost\r\n"
              "Content-Type: application/json\r\nContent-Length: 24\r\n\r\n"
              "{\"sdk_version\":\"0.25.0\"}");
    over_http(fd, "capabilities over HTTP",
              "GET /api/v1/get_server_capabilities HTTP/1.1\r\nHost: localhost\r\n\r\n");
    in_process(engine, "healthz in process", "GET", "/api/v1/healthz", "");
    in_process(engine, "client/config in process", "POST", "/api/v1/client/config",
               "{\"sdk_version\":\"0.25.0\"}");
    close(fd);
    tinkc_server_free(server);
    tinkc_engine_free(engine);
    return 0;
}
