/* test_managed.c - what commands that manage things ask a service and show of its answers. Each is parsed and run here, on
 * the mock's service. */
#include "support/cli/run_line.h"
#include "support/client/api_support.h"

#define API "/api/v1/"

typedef struct told { /* an answer of the service */
    const char *path, *body;
} told;

static tinkc_mock *mock;

static void expect(const char *line, const char *key, const told *answers, const char *wanted)
{
    tinkc_error err = { 0 };
    char *shown;
    tinkc_mock_free(mock); /* of the line before; the requests of this one stay */
    mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    for (; answers->path; answers++)
        tinkc_mock_always(mock, NULL, answers->path, &(tinkc_mock_answer){ .body = answers->body }, &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .api_key = key }, &err);
    assert_ok(&err);
    int code = run_line(line, client, &shown);
    if (code || strcmp(shown, wanted) != 0)
        fail_msg("tinkc %s: %d\n%s", line, code, shown);
    free(shown);
}

#define PAGE(total) "\"cursor\":{\"offset\":0,\"limit\":20,\"total_count\":" #total "}}"
#define RUN(id)                                                                                                        \
    "{\"training_run_id\":\"" id "\",\"base_model\":\"m\",\"model_owner\":\"me\",\"is_lora\":true,\"lora_rank\":8,"    \
    "\"last_request_time\":\"2025-01-02T03:04:05Z\",\"user_metadata\":{\"why\":\"x\"}}"
#define SAVED(id, name)                                                                                                \
    "{\"checkpoint_id\":\"weights/" name "\",\"checkpoint_type\":\"training\",\"time\":\"2025-01-02T03:04:05Z\","      \
    "\"tinker_path\":\"tinker://" id "/weights/" name "\",\"size_bytes\":7,\"public\":false}"

static const told service[] = {
    { API "training_runs/r1", RUN("r1") },
    { API "training_runs/r2", RUN("r2") },
    { API "training_runs", "{\"training_runs\":[" RUN("r1") "," RUN("r2") "]," PAGE(2) },
    { API "training_runs/r1/checkpoints", "{\"checkpoints\":[" SAVED("r1", "a") "," SAVED("r1", "b") "]}" },
    { API "training_runs/r2/checkpoints", "{\"checkpoints\":[]}" },
    { API "training_runs/r1/checkpoints/weights/a", "{}" },
    { API "training_runs/r1/checkpoints/weights/b", "{}" },
    { API "checkpoints", "{\"checkpoints\":[" SAVED("r1", "a") "]," PAGE(1) },
    { API "weights_info", "{\"base_model\":\"m\",\"is_lora\":true,\"lora_rank\":8}" },
    { API "get_server_capabilities",
      "{\"supported_models\":[{\"model_name\":\"Qwen/Qwen3-8B\",\"max_context_length\":40}]}" },
    { NULL, NULL }
};

TEST(what_the_service_says_has_its_names)
{
    static const struct {
        const char *line, *wanted;
    } rows[] = {
        { "run list", "Run ID\tBase Model\tLoRA\tLast Update\tStatus\n"
                      "r1\tm\tRank 8\t2025-01-02T03:04:05Z\tOK\nr2\tm\tRank 8\t2025-01-02T03:04:05Z\tOK\n" },
        { "run info r1", "Property\tValue\nRun ID\tr1\nBase Model\tm\nOwner\tme\nLoRA\tYes (Rank 8)\nLast Update\t"
                         "2025-01-02T03:04:05Z\nStatus\tOK\nMetadata\t\n  - why\tx\n" },
        { "checkpoint list", "Checkpoint ID\tType\tSize\tPublic\tCreated\tExpires\tPath\n"
                             "weights/a\ttraining\t7\tfalse\t2025-01-02T03:04:05Z\t\ttinker://r1/weights/a\n" },
        { "checkpoint info tinker://r1/weights/a",
          "Property\tValue\nCheckpoint ID\tweights/a\nType\ttraining\nTinker Path\ttinker://r1/weights/a\nSize\t7 B\n"
          "Public\tNo\nCreated\t2025-01-02T03:04:05Z\nExpires\tNever\nTraining Run ID\tr1\nLoRA\tYes (Rank 8)\n"
          "Base Model\tm\n" },
        { "checkpoint delete tinker://r1/weights/a --json",
          "{\n  \"deleted_count\": 1,\n  \"failed\": [],\n  \"cancelled\": false,\n  \"not_attempted\": 0\n}\n" },
        { "model info Qwen/Qwen3-8B",
          "Property\tValue\nModel\tQwen/Qwen3-8B\nOffered\tYes\nContext\t40\nKind\tchat\nRenderers\tqwen3, "
          "qwen3_disable_thinking\nHidden Size\t4096\nSuggested LR (LoRA)\t0.00047297908091376354\nSuggested LR "
          "(full)\t"
          "4.729790809137635e-05\nTokenizer\tQwen/Qwen3-8B\nLoRA parameters at rank 32\t92,286,976\n"
          "Memory of its training\t1.7 GB\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect(rows[i].line, "tml-x", service, rows[i].wanted);
}

/* The credential says it itself. */
TEST(who_one_is)
{
    char jwt[400];
    (void)snprintf(
        jwt, sizeof jwt, "%s",
        token_of("{\"iss\":\"passport-x\",\"sub\":\"user:1\",\"org_id\":\"2\",\"email\":\"a@b\",\"exp\":9999999999}",
                 "s"));
    expect("whoami", jwt, service, "Property\tValue\nUser\tuser:1\nOrganization\ttml:organization:2\nEmail\ta@b\n");
}

TEST(runs_are_deleted_behind_their_checkpoints)
{
    static const char *const paths[] = { "r1/checkpoints/weights/a", "r1/checkpoints/weights/b", "r1", "r2" };
    size_t n = 0;
    expect("run delete r1 r2 --json", "tml-x", service,
           "{\n  \"deleted_runs\": [\n    \"r1\",\n    \"r2\"\n  ],\n  \"deleted_checkpoints\": 2\n}\n");
    for (size_t i = 0; tinkc_mock_request(mock, i); i++) {
        const tinkc_request *r = tinkc_mock_request(mock, i);
        if (strcmp(r->method, "DELETE") == 0) {
            assert_true(n < 4);
            assert_string_equal(r->path + strlen(API "training_runs/"), paths[n]);
            n++;
        }
    }
    assert_int_equal(n, 4);
}
