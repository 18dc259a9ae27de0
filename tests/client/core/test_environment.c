/* test_environment.c - what a client reads from the environment, once, when it is made; what the program gives counts more. */
#include "support/client/client_scene.h"

/* A value of the environment; what the first requests of a client show of it without options, and with options that say the same
 * thing otherwise. Requests that show nothing of it are as in test_startup.c. */
TEST(each_variable_of_the_environment_stands_in_for_its_option)
{
    static const struct {
        const char *name, *value, *seen;
    } rows[] = {
        { "TINKER_API_KEY", "tml-env",
          "client/config {X-API-Key: tml-env}; healthz {X-API-Key: tml-env}; health: done" },
        { "TINKER_API_KEY", "eyJ.env", "client/config {token env}; healthz {token env}; health: done" },
        { "TINKER_API_KEY", "sk-no", "client: BAD_CREDENTIAL \"api_key: begins with neither tml- nor eyJ\"" },
        { "TINKER_API_KEY", "", "client/config; healthz; health: done" },
        { "TINKER_BASE_URL", "https://env.test/a",
          "client/config {to https://env.test/a/}; healthz {to https://env.test/a/}; health: "
          "done" },
        { "TINKER_BASE_URL", "env.test", "client: ARGUMENT \"base_url: URL: it needs a scheme, http:// or https://\"" },
        { "TINKER_BASE_URL", "ftp://x", "client: ARGUMENT \"base_url: URL: its scheme must be http or https\"" },
        { "TINKER_BASE_URL", "", "client/config; healthz; health: done" },
        { "CLOUDFLARE_ACCESS_CLIENT_ID", "cf-id",
          "client/config {CF-Access-Client-Id: cf-id}; healthz {CF-Access-Client-Id: cf-id}; "
          "health: done" },
        { "CLOUDFLARE_ACCESS_CLIENT_ID", "two\nlines",
          "client: ARGUMENT \"headers: a name or value that no header can have\"" },
        { "CLOUDFLARE_ACCESS_CLIENT_SECRET", "cf-secret",
          "client/config {CF-Access-Client-Secret: cf-secret}; healthz {CF-Access-Client-Secret: "
          "cf-secret}; health: done" },
    };
    static const char as_given[] = "client/config {to https://given.test/} {CF-Access-Client-Id: given}; healthz {to "
                                   "https://given.test/} {CF-Access-Client-Id: given}; health: done";
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++)
        for (int given = 0; given < 2; given++) {
            if (given && strchr(rows[i].value, '\n'))
                continue; /* refused even if an option replaces it */
            setenv(rows[i].name, rows[i].value, 1);
            scene_renew(s, &(tinkc_client_options){
                               .api_key = given ? "tml-given" : NULL,
                               .base_url = given ? "https://given.test" : NULL,
                               .headers = given ? PAIRS("CF-Access-Client-Id", "given", "cf-access-client-secret", "")
                                                : NULL });
            setenv(rows[i].name, "changed-later", 1); /* it is read once */
            if (scene_client(s))
                complete(s, "health", tinkc_health_check(scene_client(s), scene_err(s)));
            EXPECT_ROW(s, i, given ? as_given : rows[i].seen);
            unsetenv(rows[i].name);
        }
    scene_end(s);
}

/* The body of create_session. */
TEST(of_the_session)
{
    static const struct {
        const char *name, *value, *has, *given;
    } rows[] = {
        { "TINKER_PROJECT_ID", "p-env", "\"project_id\":\"p-env\"", "\"project_id\":\"p-given\"" },
        { "TINKER_PROJECT_ID", "", "\"sdk_version\":\"0.25.0\",\"type\"", "\"project_id\":\"p-given\"" },
        { "TINKER_TAGS", "a,b", "\"tags\":[\"a\",\"b\"]", "\"tags\":[\"given\"]" },
        { "TINKER_TAGS", " a , ,b,a,", "\"tags\":[\"a\",\"b\"]", "\"tags\":[\"given\"]" },
        { "TINKER_TAGS", ",", "\"tags\":[]", "\"tags\":[\"given\"]" },
        { "TINKER_TAGS", "", "\"tags\":[]", "\"tags\":[\"given\"]" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++)
        for (int given = 0; given < 2; given++) {
            setenv(rows[i].name, rows[i].value, 1);
            scene_renew(s, &(tinkc_client_options){ .project_id = given ? "p-given" : NULL,
                                                    .tags = given ? PAIRS("given") : NULL });
            size_t before = tinkc_mock_count(scene_mock(s), API "create_session");
            tinkc_sampler_free(open_sampler(s, NULL));
            const tinkc_request *r = nth_request(scene_mock(s), API "create_session", before);
            const char *wanted = given ? rows[i].given : rows[i].has;
            if (!memmem(r->body.data, r->body.len, wanted, strlen(wanted)))
                fail_msg("row %zu: %.*s", i, (int)r->body.len, (const char *)r->body.data);
            unsetenv(rows[i].name);
        }
    scene_end(s);
}

int main(void)
{
    static const char *const names[] = { "TINKER_API_KEY",
                                         "TINKER_BASE_URL",
                                         "TINKER_TELEMETRY",
                                         "TINKER_LOG",
                                         "TINKER_TAGS",
                                         "TINKER_PROJECT_ID",
                                         "TINKER_CREDENTIAL_CMD",
                                         "CLOUDFLARE_ACCESS_CLIENT_ID",
                                         "CLOUDFLARE_ACCESS_CLIENT_SECRET" };
    for (size_t i = 0; i < LEN(names); i++)
        unsetenv(names[i]);
    return test_cases_run(NULL, NULL);
}
