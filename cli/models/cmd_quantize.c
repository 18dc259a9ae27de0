/* cmd_quantize.c - `tinkc quantize`: a model's weights in fewer bits, and what that costs on a text.
 *
 * The engine of --check runs in this process and keeps nothing. Touches the model's folder, the target, the text.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/option_rows.h"
#include "cli/main/files.h"
#include "cli/models/hub_models.h"
#include "cli/models/model_folder.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* clang-format off */
const cli_option cli_quantize_options[] = {
    OPT_CHOICE("bits", "N", "4|8", "default: 4. Of a folder NF4 or FP8, of a .gguf q4_0 or q8_0"),
    OPT_CHOICE("format", "FORMAT", "nf4|fp8|q8_0|q4_0|f16|bf16|f32",
               "instead of --bits: nf4 and fp8 are for folders, the others for .gguf files"),
    OPT_FILE("check", "TEXT", "score this text with both models and compare"),
    { 0 }
};
/* clang-format on */
const char *const cli_quantize_examples[] = {
    "tinkc quantize Qwen/Qwen3-8B Qwen3-8B-nf4",
    "tinkc quantize ./my-model my-model.gguf --bits 8 --check book.txt",
    "tinkc quantize nano --check book.txt", NULL
};

typedef struct quantizing {
    cli_app *app;
    char *model;        /* its folder; yours */
    const char *target; /* NULL = the user's cache */
    int bits;
    tinkc_quantize_result result;
} quantizing;

static bool show_progress(int64_t done, int64_t total, void *bar)
{
    cli_progress_step(bar, done, total, NULL);
    return !cli_stop_signal();
}

static int run(quantizing *q)
{
    tinkc_error err = { 0 };
    cli_progress bar;
    const char *format = cli_text(q->app, "format");
    tinkc_quantize_options o = { .model = q->model,
                                 .target = q->target,
                                 .format = format,
                                 .bits = format ? 0 : q->bits };
    cli_catch_signals(); /* what is half done is removed */
    cli_progress_begin(&bar, q->app, "packing the weights", -1, true);
    bool ok = tinkc_quantize(&o, show_progress, &bar, &q->result, &err);
    cli_progress_end(&bar);
    return ok ? 0 : cli_stop_signal() ? cli_stop_exit() : cli_fail_error(q->app, &err, NULL);
}

/* ---- the loss ---- */

typedef struct scored {
    tinkc_tokens ids;
    double sum;
    size_t n;
} scored;

enum { WINDOW = 512, MOST = 16 * WINDOW /* tokens of a text */ };

static int read_text(const quantizing *q, const char *path, tinkc_tokens *ids)
{
    int bad = 0;
    size_t len;
    tinkc_error err = { 0 };
    char *text = cli_read_all(q->app, path, &len, &bad);
    tinkc_tokenizer *tokenizer = text ? tinkc_tokenizer_open(q->model, NULL, &err) : NULL;
    if (tokenizer)
        tinkc_encode_span(tokenizer, text, len, NULL, ids, NULL, &err);
    tinkc_tokenizer_free(tokenizer);
    free(text);
    if (!bad && err.code)
        return cli_fail_error(q->app, &err, NULL);
    if (!bad && ids->len < 2)
        return cli_fail(q->app, "data_invalid", NULL, "%s: no two tokens to score", path);
    ids->len = ids->len > MOST ? MOST : ids->len;
    return bad;
}

/* Windows are scored one after the other: each needs little memory. */
static bool score_windows(const quantizing *q, tinkc_sampler *sampler, scored *s, tinkc_error *err)
{
    for (size_t at = 0; at + 1 < s->ids.len && !err->code; at += WINDOW) {
        size_t n = s->ids.len - at < WINDOW ? s->ids.len - at : WINDOW;
        tinkc_future *f = tinkc_logprobs(sampler, s->ids.data + at, n, err);
        if (cli_wait(q->app, f, "scoring", err)) {
            tinkc_f32s scores = tinkc_future_logprobs(f, 0, err);
            for (size_t i = 1; i < scores.len; i++, s->n++)
                s->sum -= (double)scores.data[i];
        }
        tinkc_future_free(f);
    }
    return !err->code;
}

static bool score_model(quantizing *q, const char *folder, scored *s, tinkc_error *err)
{
    cli_app *app = q->app;
    tinkc_sampler *sampler = NULL;
    s->sum = 0;
    s->n = 0;
    app->engine = tinkc_engine_new(
        &(tinkc_engine_options){ .device = cli_text(app, "device"), .dtype = "f32" }, err);
    if (app->engine && tinkc_engine_add_model(app->engine, "model", folder, err)) {
        app->client = tinkc_client_new(
            &(tinkc_client_options){ .transport = tinkc_engine_transport(app->engine),
                                     .api_key = "tml-local",
                                     .base_url = "http://localhost" },
            err);
        tinkc_future *f = err->code ? NULL
                                    : tinkc_sampler_open(
                                          app->client,
                                          &(tinkc_sampler_options){ .base_model = "model" }, err);
        if (cli_wait(app, f, "opening the model", err))
            sampler = tinkc_future_sampler(f, 0, err);
        tinkc_future_free(f);
    }
    bool ok = sampler && score_windows(q, sampler, s, err);
    tinkc_sampler_free(sampler);
    cli_disconnect(app);
    return ok;
}

/* The loss of both, to the rows and the record. */
static int compare(quantizing *q, const char *path, tkc_tree *rows, tkc_tree *record)
{
    scored s = { 0 };
    tinkc_error err = { 0 };
    int bad = read_text(q, path, &s.ids);
    char *packed = q->target ? strdup(q->target) : cli_printf("%s#%dbit", q->model, q->bits);
    bool ok = !bad && packed && score_model(q, q->model, &s, &err);
    double before = ok ? s.sum / (double)s.n : 0;
    ok = ok && score_model(q, packed, &s, &err);
    double after = ok ? s.sum / (double)s.n : 0;
    size_t n = s.n;
    free(packed);
    tinkc_tokens_free(&s.ids);
    if (!ok)
        return bad ? bad : cli_fail_error(q->app, &err, NULL);
    char *text = cli_printf("%.4f before, %.4f now (perplexity %+.2f %%); %zu tokens of %s", before,
                            after, 100 * (exp(after - before) - 1), n, path);
    cli_row(q->app, rows, "Loss", text);
    free(text);
    tkc_tree_set_i64(record, "tokens", (int64_t)n);
    tkc_tree_set_real(record, "loss_before", before);
    tkc_tree_set_real(record, "loss", after);
    return 0;
}

/* ---- the command ---- */

static int show(quantizing *q)
{
    cli_app *app = q->app;
    char before[CLI_SHORT_TEXT], after[CLI_SHORT_TEXT], bits[80];
    const tinkc_quantize_result *r = &q->result;
    const char *check = cli_text(app, "check");
    cli_format_size(r->bytes_before, before);
    cli_format_size(r->bytes, after);
    char *memory = cli_printf("%s instead of %s", after, before);
    (void)snprintf(bits, sizeof bits, "%.1f for each number of the layers, %.1f of the whole model",
                   r->matrix_bits, r->bits);
    tkc_tree *rows = cli_array(app),
             *record =
                 cli_pack(app, "{s:o,s:o,s:I,s:I,s:f,s:f}", "model",
                          cli_json_text(cli_arena(app), q->model), "destination",
                          q->target ? cli_json_text(cli_arena(app), q->target) : tkc_tree_null(),
                          "bytes_before", (int64_t)r->bytes_before, "bytes", (int64_t)r->bytes,
                          "matrix_bits", r->matrix_bits, "bits", r->bits);
    cli_row(app, rows, "Model", q->model);
    cli_row(app, rows, "Destination", q->target ? q->target : "the cache, for --base-bits");
    cli_row(app, rows, "Bits", bits);
    cli_row(app, rows, "Memory", memory);
    free(memory);
    int bad = check ? compare(q, check, rows, record) : 0;
    if (!bad)
        return cli_show_record(app, NULL, rows, record);
    return bad;
}

int cli_quantize(cli_app *app)
{
    int bad = 0;
    const char *bits = cli_text(app, "bits");
    quantizing q = { .app = app,
                     .target = app->n_args > 1 ? app->args[1] : NULL,
                     .bits = bits && strcmp(bits, "8") == 0 ? 8 : 4 };
    if (bits && cli_text(app, "format"))
        return cli_fail(app, "usage", NULL, "give either --bits or --format");
    if (!q.target && cli_text(app, "format"))
        return cli_fail(app, "usage", "name a folder or a .gguf file to make, or give --bits",
                        "--format needs a destination");
    if (cli_text(app, "check") && access(cli_text(app, "check"), R_OK) != 0)
        return cli_fail(app, "not_found", NULL, "there is no such file: %s", cli_text(app, "check"));
    q.model = cli_base_folder(app, app->args[0], &bad);
    bad = bad ? bad : run(&q);
    bad = bad ? bad : show(&q);
    free(q.model);
    return bad;
}
