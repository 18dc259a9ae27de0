/* fuzz_adapter_names.c - adapter files of other programs: names and shapes into our form and back. */
#include "fuzz/harness.h"
#include "train/adapter_names.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_room *room = fuzz_begin();
    tke_tensor_file f = { 0 };
    size_t rank = size ? data[size - 1] % 8 + 1u : 1, n;
    if (size > FUZZ_MAX_INPUT ||
        !tke_tensor_file_read(&f, (tinkc_bytes){ data, size }, "x", &room->err))
        return 0;
    if (tke_names_read(&f, NULL, rank, "x", &room->err))
        for (int32_t names = TKE_NAMES_PEFT; names <= TKE_NAMES_HOSTED; names++) {
            tke_spelling s = { .names = names };
            room->err = (tinkc_error){ 0 };
            tke_file_tensor *list =
                tke_names_write(f.tensors, f.n_tensors, &s, &n, &room->arena, &room->err);
            MUST(list || room->err.code);
        }
    else
        MUST(room->err.code && room->err.message[0]);
    tke_tensor_file_close(&f);
    tkc_arena_free(&room->arena);
    return 0;
}
