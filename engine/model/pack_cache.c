/* pack_cache.c - packed matrices in a safetensors file of the user's cache folder.
 *
 * The file is called by the model's pack_key, which covers the bits and when its files were written. Inside:
 * "0.codes", "0.factors", ... of the matrices in the model's order; "source", the key once more; "sums", one for
 * each matrix. A file of another model or of other bits, of other shapes, with other sums, or that somebody
 * else may write is not believed: it is made again. One process fills the cache at a time; others wait for it and then use it.
 * May touch: the cache folder.
 */
#include "model/pack_cache.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/user_cache.h"
#include "math/format.h"

enum { NAME_LEN = 40, CHUNK = 1 << 20 /* of a sum; a task */ };

typedef struct place {
    tkc_arena arena;
    const char *folder, *path;
} place;

/* ---- sums: against damage, not against forgery ---- */

typedef struct summing {
    const uint8_t *data;
    size_t len;
    uint64_t *parts;
} summing;

static uint64_t mixed(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Four chains, so that one multiplication need not wait for the one before. */
static uint64_t sum_of(const uint8_t *p, size_t len)
{
    uint64_t h[4] = { len, 1, 2, 3 }, words[4];
    for (; len >= sizeof words; p += sizeof words, len -= sizeof words) {
        memcpy(words, p, sizeof words);
        for (int i = 0; i < 4; i++)
            h[i] = mixed(h[i], words[i]);
    }
    memset(words, 0, sizeof words);
    memcpy(words, p, len);
    for (int i = 0; i < 4; i++)
        h[0] = mixed(mixed(h[0], words[i]), h[i]);
    return h[0];
}

static void sum_task(void *arg, int64_t task, int32_t worker)
{
    const summing *s = arg;
    size_t at = (size_t)task * CHUNK, left = s->len - at;
    (void)worker;
    s->parts[task] = sum_of(s->data + at, left < CHUNK ? left : CHUNK);
}

/* Of a matrix: codes and factors. 0 with err set if memory is lacking. */
static uint64_t sum_matrix(const tke_packer *k, const tke_pack_item *item, const uint8_t *codes,
                           const float *factors)
{
    const summing of[2] = { { .data = codes, .len = item->bytes },
                            { .data = (const uint8_t *)factors,
                              .len = item->n_factors * sizeof *factors } };
    uint64_t sum = item->rows;
    for (int i = 0; i < 2; i++) {
        summing s = of[i];
        size_t n = (s.len + CHUNK - 1) / CHUNK;
        s.parts = n ? tkc_alloc(NULL, n * sizeof *s.parts, k->err) : NULL;
        if (!s.parts)
            continue;
        tke_threads_run(k->threads, (int64_t)n, sum_task, &s);
        for (size_t t = 0; t < n; t++)
            sum = mixed(sum, s.parts[t]);
        tkc_release(NULL, s.parts, n * sizeof *s.parts);
    }
    return sum;
}

/* ---- the table of a file ---- */

static tke_file_tensor tensor(const char *name, int32_t dtype, size_t n)
{
    return (tke_file_tensor){ .name = name,
                              .dtype = dtype,
                              .n_dims = 1,
                              .dims = { (int64_t)n },
                              .n_bytes = n * tke_file_dtype_size(dtype) };
}

static tke_file_tensor source_tensor(const tke_model *m)
{
    return tensor("source", TKE_FILE_U8, strlen(m->pack_key));
}

static tke_file_tensor sums_tensor(const tke_packer *k)
{
    return tensor("sums", TKE_FILE_U64, k->n);
}

static tke_file_tensor codes_tensor(const tke_packer *k, size_t i, char name[NAME_LEN])
{
    snprintf(name, NAME_LEN, "%zu.codes", i);
    return tensor(name, TKE_FILE_U8, k->items[i].bytes);
}

static tke_file_tensor factors_tensor(const tke_packer *k, size_t i, char name[NAME_LEN])
{
    snprintf(name, NAME_LEN, "%zu.factors", i);
    return tensor(name, TKE_FILE_F32, k->items[i].n_factors);
}

/* ---- reading ---- */

/* NULL = missing, or of another size. */
static const unsigned char *stored(const tke_tensor_file *f, tke_file_tensor wanted)
{
    const tke_file_tensor *t = tke_tensor_file_find(f, wanted.name);
    return t && t->dtype == wanted.dtype && t->n_bytes == wanted.n_bytes ? t->data : NULL;
}

static bool check_matrix(const tke_packer *k, const tke_tensor_file *f, size_t i, uint64_t sum)
{
    char name[2][NAME_LEN];
    const uint8_t *codes = stored(f, codes_tensor(k, i, name[0]));
    const unsigned char *factors = stored(f, factors_tensor(k, i, name[1]));
    return codes && (factors || !k->items[i].n_factors) &&
           sum == sum_matrix(k, &k->items[i], codes, (const float *)(const void *)factors);
}

static bool check(const tke_model *m, const tke_packer *k, const tke_tensor_file *f)
{
    const unsigned char *source = stored(f, source_tensor(m)), *sums = stored(f, sums_tensor(k));
    bool ok = source && sums && memcmp(source, m->pack_key, strlen(m->pack_key)) == 0;
    for (size_t i = 0; ok && i < k->n; i++) {
        uint64_t sum;
        memcpy(&sum, sums + i * sizeof sum, sizeof sum);
        ok = check_matrix(k, f, i, sum);
    }
    return ok && !tkc_failed(k->err);
}

static void attach(tke_model *m, const tke_packer *k, const tke_tensor_file *f)
{
    char name[2][NAME_LEN];
    for (size_t i = 0; i < k->n; i++)
        tke_pack_replace(m, k, &k->items[i], stored(f, codes_tensor(k, i, name[0])),
                         (const float *)(const void *)stored(f, factors_tensor(k, i, name[1])));
}

static bool take(tke_model *m, const tke_packer *k, const place *p, tke_tensor_file *cache)
{
    tinkc_error ignored = { 0 }; /* it is made again */
    if (!tkc_cache_trusted(p->path, p->folder) || !tke_tensor_file_open(cache, p->path, &ignored))
        return false;
    if (check(m, k, cache)) {
        attach(m, k, cache);
        return true;
    }
    tke_tensor_file_close(cache);
    return false;
}

/* ---- writing ---- */

static tke_file_tensor *table(const tke_model *m, const tke_packer *k, tkc_arena *arena, size_t *n)
{
    tke_file_tensor *list = tkc_arena_array(arena, 2 * k->n + 2, sizeof *list, k->err);
    char(*names)[2][NAME_LEN] = tkc_arena_array(arena, k->n, sizeof *names, k->err);
    if (!list || !names)
        return NULL;
    *n = 0;
    list[(*n)++] = source_tensor(m);
    list[(*n)++] = sums_tensor(k);
    for (size_t i = 0; i < k->n; i++) {
        list[(*n)++] = codes_tensor(k, i, names[i][0]);
        if (k->items[i].n_factors)
            list[(*n)++] = factors_tensor(k, i, names[i][1]);
    }
    return list;
}

/* Packs one matrix into memory and from there into the file. */
static bool write_matrix(const tke_packer *k, tke_tensor_writer *w, size_t i, uint64_t *sum)
{
    char name[2][NAME_LEN];
    const tke_pack_item *item = &k->items[i];
    tke_file_tensor codes = codes_tensor(k, i, name[0]), factors = factors_tensor(k, i, name[1]);
    size_t size = factors.n_bytes + codes.n_bytes;
    unsigned char *block = tkc_alloc(NULL, size, k->err);
    float *largest = (float *)(void *)block;
    uint8_t *bytes = block ? block + factors.n_bytes : NULL;
    bool ok = block && tke_pack_matrix(k, item, bytes, largest);
    *sum = ok ? sum_matrix(k, item, bytes, largest) : 0;
    ok = ok && !tkc_failed(k->err) && tke_tensor_writer_put(w, &codes, bytes) &&
         (!factors.n_bytes || tke_tensor_writer_put(w, &factors, largest));
    tkc_release(NULL, block, size);
    return ok;
}

static bool report(const tke_packer *k, int64_t done, int64_t total)
{
    return !k->progress || k->progress(done, total, k->user) ||
           tkc_fail(k->err, TINKC_E_CANCELLED, "packing was stopped");
}

static bool write_all(const tke_model *m, const tke_packer *k, tke_tensor_writer *w)
{
    tke_file_tensor source = source_tensor(m), sums = sums_tensor(k);
    uint64_t *list = tkc_arena_array(&w->arena, k->n, sizeof *list, k->err);
    int64_t done = 0, total = 0;
    for (size_t i = 0; i < k->n; i++)
        total += (int64_t)k->items[i].bytes;
    bool ok = list && report(k, 0, total);
    for (size_t i = 0; ok && i < k->n; i++) {
        done += (int64_t)k->items[i].bytes;
        ok = write_matrix(k, w, i, &list[i]) && report(k, done, total);
    }
    return ok && tke_tensor_writer_put(w, &source, m->pack_key) &&
           tke_tensor_writer_put(w, &sums, list) && tke_tensor_writer_commit(w);
}

/* A full disk, or a folder that cannot be written, leaves nothing behind, and *err stays empty. */
static bool write_file(const tke_model *m, const tke_packer *k, place *p)
{
    size_t n;
    tke_tensor_writer w;
    tke_file_tensor *list = table(m, k, &p->arena, &n);
    bool ok = list && tke_tensor_writer_open(&w, p->path, list, n, NULL, 0600, k->err);
    if (ok) {
        ok = write_all(m, k, &w);
        tke_tensor_writer_close(&w);
    }
    if (!ok && k->err->code == TINKC_E_FILE)
        *k->err = (tinkc_error){ 0 };
    return ok;
}

/* ---- the call ---- */

/* A lock that its process cannot leave behind; -1 = the folder cannot be written. */
static int lock_folder(place *p, tinkc_error *err)
{
    tinkc_error ignored = { 0 };
    char *path = tkc_path_join(&p->arena, p->folder, "lock", err);
    int fd = path && tkc_make_dirs(p->folder, &ignored)
                 ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)
                 : -1;
    if (fd >= 0 && flock(fd, LOCK_EX) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool make(tke_model *m, const tke_packer *k, place *p, tke_tensor_file *cache)
{
    int lock = lock_folder(p, k->err);
    bool ok = lock >= 0 && !tkc_failed(k->err);
    ok = ok && (take(m, k, p, cache) || /* somebody else has made it meanwhile */
                (!tkc_failed(k->err) && write_file(m, k, p) && take(m, k, p, cache)));
    if (lock >= 0)
        close(lock);
    return ok;
}

bool tke_pack_cached(tke_model *m, tke_packer *k, tke_tensor_file *cache)
{
    place p = { 0 };
    p.folder = tkc_cache_folder(&p.arena, "packed", k->err);
    bool ok = p.folder && *p.folder;
    if (ok)
        p.path = tkc_arena_printf(&p.arena, k->err, "%s/%s.safetensors", p.folder, m->pack_key);
    ok = ok && p.path && (take(m, k, &p, cache) || make(m, k, &p, cache));
    tkc_arena_free(&p.arena);
    return ok;
}
