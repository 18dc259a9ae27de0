/* tar.c - ustar archives of regular files at the top level. Touches the files it is given. */
#include "service/store/tar.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

enum { BLOCK = 512, CHUNK = 256 * 1024 };

static int64_t padded(int64_t bytes)
{
    return (bytes + BLOCK - 1) / BLOCK * BLOCK;
}

bool tke_tar_plan(tke_tar *tar, const char *folder, const char *const *names, tinkc_error *err)
{
    *tar = (tke_tar){ .folder = folder };
    struct stat st;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", folder);
    for (; *names && tar->n_files < TKE_TAR_MAX; names++) {
        if (fstatat(fd, *names, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        tar->files[tar->n_files++] = (tke_tar_file){ *names, st.st_size };
        tar->total += BLOCK + padded(st.st_size);
        tar->mtime = st.st_mtime;
    }
    tar->total += 2 * BLOCK;
    close(fd);
    return true;
}

/* Octal digits and a NUL that fill the field; sizes above eight gigabytes in base 256. */
static void put_number(char *field, size_t width, int64_t value)
{
    if (value >= (int64_t)1 << (3 * (width - 1))) {
        for (size_t i = width - 1; i > 0; i--, value >>= 8)
            field[i] = (char)(value & 0xff);
        field[0] = (char)0x80;
        return;
    }
    field[width - 1] = '\0';
    for (size_t i = width - 1; i-- > 0; value >>= 3)
        field[i] = (char)('0' + (value & 7));
}

static void make_header(const tke_tar *tar, const tke_tar_file *file, char h[BLOCK])
{
    memset(h, 0, BLOCK);
    (void)snprintf(h, 100, "%s", file->name);
    put_number(h + 100, 8, 0644);
    put_number(h + 108, 8, 0);
    put_number(h + 116, 8, 0);
    put_number(h + 124, 12, file->bytes);
    put_number(h + 136, 12, tar->mtime);
    h[156] = '0';
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    memset(h + 148, ' ', 8);
    int64_t sum = 0;
    for (size_t i = 0; i < BLOCK; i++)
        sum += (unsigned char)h[i];
    put_number(h + 148, 7, sum);
    h[155] = ' ';
}

typedef struct sending {
    int64_t at, from, until; /* position in the archive; the wanted range */
    tke_tar_write *write;
    void *user;
    bool stopped;
} sending;

/* Sends the wanted part of the bytes at s->at, and advances. */
static void send_bytes(sending *s, const char *data, int64_t len)
{
    int64_t first = s->from > s->at ? s->from - s->at : 0;
    int64_t end = s->until - s->at < len ? s->until - s->at : len;
    if (!s->stopped && first < end)
        s->stopped = !s->write(s->user, data + first, (size_t)(end - first));
    s->at += len;
}

static bool send_file(sending *s, const tke_tar *tar, const tke_tar_file *file, tkc_arena *arena,
                      tinkc_error *err)
{
    int64_t skip = s->from > s->at ? s->from - s->at : 0;
    skip = skip < file->bytes ? skip : file->bytes;
    s->at += skip;
    char *path = tkc_path_join(arena, tar->folder, file->name, err);
    char *chunk = tkc_arena_alloc(arena, CHUNK, err);
    int fd = path && chunk ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0)
        return tkc_fail_errno(err, "%s", file->name);
    for (int64_t done = skip; done < file->bytes && s->at < s->until && !s->stopped;) {
        int64_t want = file->bytes - done < CHUNK ? file->bytes - done : CHUNK;
        ssize_t n = pread(fd, chunk, (size_t)want, done);
        if (n <= 0) {
            tkc_fail(err, TINKC_E_FILE, "%s: changed while it was read", path);
            break;
        }
        send_bytes(s, chunk, n);
        done += n;
    }
    close(fd);
    return !tkc_failed(err);
}

bool tke_tar_send(const tke_tar *tar, int64_t from, int64_t until, tke_tar_write *write, void *user,
                  tinkc_error *err)
{
    sending s = { 0, from, until, write, user, false };
    char block[2 * BLOCK];
    for (size_t i = 0; i < tar->n_files && !s.stopped && s.at < until; i++) {
        const tke_tar_file *file = &tar->files[i];
        tkc_arena arena;
        make_header(tar, file, block);
        send_bytes(&s, block, BLOCK);
        tkc_arena_init(&arena, NULL, 0);
        bool ok = s.at >= until || send_file(&s, tar, file, &arena, err);
        tkc_arena_free(&arena);
        if (!ok)
            return false;
        memset(block, 0, BLOCK);
        send_bytes(&s, block, padded(file->bytes) - file->bytes);
    }
    memset(block, 0, sizeof block);
    send_bytes(&s, block, sizeof block);
    return true;
}
