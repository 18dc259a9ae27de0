/* fuzz_safetensors.c - the files of a model folder: tensor files, and (for what begins like JSON)
 * config.json. Every tensor that is handed out must lie inside the bytes. */
#include <stdlib.h>
#include <string.h>
#include "model/model_config.h"
#include "model/safetensors.h"

static void try_config(const char *text, size_t size)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tke_config c;
    double frequencies[2048], scale;
    tkc_arena_init(&arena, NULL, 64 << 20);
    if (tke_config_parse(&c, (tinkc_str){ text, size }, (tinkc_str){ 0 }, "config.json", &arena,
                         &err))
        tke_rope_frequencies(&c, frequencies, &scale);
    else if (!err.code || !err.message[0])
        abort();
    tkc_arena_free(&arena);
}

static void try_tensors(const uint8_t *data, size_t size)
{
    tinkc_error err = { 0 };
    tke_tensor_file f = { 0 };
    unsigned sum = 0;
    if (!tke_tensor_file_read(&f, (tinkc_bytes){ data, size }, "x", &err)) {
        if (!err.code)
            abort();
        return;
    }
    for (size_t i = 0; i < f.n_tensors; i++) {
        const tke_file_tensor *t = &f.tensors[i];
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += t->data[k];
        if (tke_tensor_file_find(&f, t->name) != t)
            abort();
    }
    (void)sum;
    tke_tensor_file_close(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size && data[0] == '{')
        try_config((const char *)data, size);
    else
        try_tensors(data, size);
    return 0;
}
