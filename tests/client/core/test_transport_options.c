/* test_transport_options.c - options of a client that its own transport gets: the socket, the proxy, the certificates, the
 * number of connections. */
#include <unistd.h>

#include "client/core/client_priv.h"
#include "net/http_internal.h"
#include "support/client/api_support.h"
#include "support/client/stub_server.h"

typedef struct seen {
    char path[200]; /* of the last health check */
} seen;

static void serve(const stub_request *r, stub_answer *a, void *user)
{
    seen *s = user;
    a->body = "{}";
    if (!strstr(r->path, "/healthz"))
        return;
    (void)snprintf(s->path, sizeof s->path, "%s", r->path);
    a->body = "{\"status\":\"ok\"}";
}

static tinkc_client *make(tinkc_client_options o, tinkc_error *err)
{
    o.api_key = "tml-key";
    o.telemetry = TINKC_TELEMETRY_OFF;
    o.no_retries = true;
    tinkc_client *client = tinkc_client_new(&o, err);
    assert_ok(err);
    return client;
}

/* Asks for the service's health; true if it answered. */
static bool ask(tinkc_client_options o, tinkc_error *err)
{
    tinkc_client *client = make(o, err);
    tinkc_future *f = tinkc_health_check(client, err);
    bool ok = tinkc_future_wait(f, PATIENCE_MS, err);
    tinkc_future_free(f);
    tinkc_client_free(client);
    return ok;
}

TEST(through_a_socket)
{
    seen s = { 0 };
    tinkc_error err = { 0 };
    char folder[] = "/tmp/tinkc-socket-XXXXXX", path[60];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/s", folder);
    stub_server *server = stub_start(path, serve, &s);
    assert_true(
        ask((tinkc_client_options){ .base_url = "http://service.invalid", .proxy = "", .unix_socket = path }, &err));
    assert_ok(&err);
    assert_string_equal(s.path, "/api/v1/healthz");
    stub_stop(server);
    (void)unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

TEST(through_a_proxy)
{
    seen s = { 0 };
    tinkc_error err = { 0 };
    stub_server *server = stub_start(NULL, serve, &s);
    assert_true(ask((tinkc_client_options){ .base_url = "http://service.invalid", .proxy = stub_url(server) }, &err));
    assert_ok(&err);
    assert_string_equal(s.path, "http://service.invalid/api/v1/healthz");
    stub_stop(server);
}

/* A file with certificates that is not there is found out before anything is sent. */
TEST(with_other_certificates)
{
    seen s = { 0 };
    tinkc_error err = { 0 };
    char url[60];
    stub_server *server = stub_start(NULL, serve, &s);
    (void)snprintf(url, sizeof url, "https://127.0.0.1:%d", stub_port(server));
    assert_false(
        ask((tinkc_client_options){ .base_url = url, .proxy = "", .ca_file = "/tmp/tinkc-no-such-file.pem" }, &err));
    assert_non_null(strstr(err.message, "the file of authorities is unusable"));
    assert_non_null(strstr(err.message, "tinkc-no-such-file.pem"));
    assert_int_equal(stub_requests(server), 0);
    stub_stop(server);
}

TEST(so_many_connections)
{
    tinkc_error err = { 0 };
    tinkc_client *client = make((tinkc_client_options){ .base_url = "http://127.0.0.1:1", .max_connections = 7 }, &err);
    assert_int_equal(client->http->max_connections, 7);
    tinkc_client_free(client);
}
