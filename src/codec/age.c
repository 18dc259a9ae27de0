/* age.c - the age format: files encrypted to X25519 recipients, and read with their identities.
 *
 * A file is a header, then the payload. The header has the file key, wrapped once for each recipient
 * with a key agreed by X25519 with an ephemeral key, and a MAC under the file key. The payload is
 * cut into chunks of 64 KiB, each sealed with ChaCha20-Poly1305 under a key derived from the file key;
 * the nonce counts chunks, and its last byte marks the last one, so that no chunk can be dropped or
 * moved. X25519 and the cipher are libcrypto's, opened on first use; HKDF and HMAC are over our SHA-256.
 * May touch: its arguments. No I/O. Secrets are wiped.
 */
#include "codec/age.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/digest.h"
#include "base/dl.h"
#include "base/platform.h"
#include "base/str.h"
#include "codec/base64.h"

enum {
    KEY = TKC_AGE_KEY,
    FILE_KEY = 16,
    TAG = TKC_AGE_TAG,
    NONCE = 12,
    BODY = FILE_KEY + TAG, /* of a recipient: the file key, sealed */
    X25519 = 1034,         /* NID_X25519 */
    GET_TAG = 0x10,
    SET_TAG = 0x11,
    MOST_OF_HEADER = 1 << 16
};

static const char version[] = "age-encryption.org/v1", info_x25519[] = "age-encryption.org/v1/X25519";

/* ---- libcrypto ---- */

typedef struct crypto {
    void *(*raw_private)(int, void *, const unsigned char *, size_t);
    void *(*raw_public)(int, void *, const unsigned char *, size_t);
    int (*get_public)(const void *, unsigned char *, size_t *);
    void (*key_free)(void *);
    void *(*key_ctx)(void *, void *);
    void (*key_ctx_free)(void *);
    int (*derive_init)(void *);
    int (*derive_peer)(void *, void *);
    int (*derive)(void *, unsigned char *, size_t *);
    const void *(*cipher)(void);
    void *(*cipher_ctx)(void);
    void (*cipher_free)(void *);
    struct {
        int (*init)(void *, const void *, void *, const unsigned char *, const unsigned char *);
        int (*update)(void *, unsigned char *, int *, const unsigned char *, int);
        int (*final)(void *, unsigned char *, int *);
    } encrypt, decrypt;
    int (*control)(void *, int, int, void *);
} crypto;

static const crypto *load(tinkc_error *err)
{
    static const tkc_dl_symbol symbols[] = {
        { "EVP_PKEY_new_raw_private_key", offsetof(crypto, raw_private) },
        { "EVP_PKEY_new_raw_public_key", offsetof(crypto, raw_public) },
        { "EVP_PKEY_get_raw_public_key", offsetof(crypto, get_public) },
        { "EVP_PKEY_free", offsetof(crypto, key_free) },
        { "EVP_PKEY_CTX_new", offsetof(crypto, key_ctx) },
        { "EVP_PKEY_CTX_free", offsetof(crypto, key_ctx_free) },
        { "EVP_PKEY_derive_init", offsetof(crypto, derive_init) },
        { "EVP_PKEY_derive_set_peer", offsetof(crypto, derive_peer) },
        { "EVP_PKEY_derive", offsetof(crypto, derive) },
        { "EVP_chacha20_poly1305", offsetof(crypto, cipher) },
        { "EVP_CIPHER_CTX_new", offsetof(crypto, cipher_ctx) },
        { "EVP_CIPHER_CTX_free", offsetof(crypto, cipher_free) },
        { "EVP_EncryptInit_ex", offsetof(crypto, encrypt.init) },
        { "EVP_EncryptUpdate", offsetof(crypto, encrypt.update) },
        { "EVP_EncryptFinal_ex", offsetof(crypto, encrypt.final) },
        { "EVP_DecryptInit_ex", offsetof(crypto, decrypt.init) },
        { "EVP_DecryptUpdate", offsetof(crypto, decrypt.update) },
        { "EVP_DecryptFinal_ex", offsetof(crypto, decrypt.final) },
        { "EVP_CIPHER_CTX_ctrl", offsetof(crypto, control) },
        { NULL, 0 },
    };
    static const char *const names[] = { "libcrypto.so.3", "libcrypto.so", NULL };
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static crypto table;
    static bool loaded;
    pthread_mutex_lock(&once);
    if (!loaded)
        loaded = tkc_dl_load(names, symbols, &table, err);
    bool ok = loaded;
    pthread_mutex_unlock(&once);
    return ok ? &table : NULL;
}

static bool no_cipher(tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_UNSUPPORTED, "age: libcrypto has no working ChaCha20-Poly1305");
}

/* out = text || tag; len up to a chunk. */
static bool seal(const crypto *c, const unsigned char key[KEY], const unsigned char nonce[NONCE],
                 const void *text, size_t len, unsigned char *out, tinkc_error *err)
{
    int n = 0, more = 0;
    void *ctx = c->cipher_ctx();
    bool ok = ctx && c->encrypt.init(ctx, c->cipher(), NULL, key, nonce) == 1 &&
              c->encrypt.update(ctx, out, &n, text, (int)len) == 1 &&
              c->encrypt.final(ctx, out + n, &more) == 1 &&
              c->control(ctx, GET_TAG, TAG, out + len) == 1;
    c->cipher_free(ctx);
    return ok || no_cipher(err);
}

/* out = the text of sealed, which has len bytes with its tag. False without err: the tag does not fit. */
static bool unseal(const crypto *c, const unsigned char key[KEY], const unsigned char nonce[NONCE],
                   const unsigned char *sealed, size_t len, unsigned char *out, tinkc_error *err)
{
    int n = 0, more = 0;
    unsigned char tag[TAG];
    void *ctx = c->cipher_ctx();
    memcpy(tag, sealed + len - TAG, TAG);
    bool ready = ctx && c->decrypt.init(ctx, c->cipher(), NULL, key, nonce) == 1 &&
                 c->control(ctx, SET_TAG, TAG, tag) == 1 &&
                 c->decrypt.update(ctx, out, &n, sealed, (int)(len - TAG)) == 1;
    bool fits = ready && c->decrypt.final(ctx, out + n, &more) == 1;
    c->cipher_free(ctx);
    if (!ready)
        no_cipher(err);
    return fits;
}

/* share = secret * base point; shared = secret * peer. */
static bool agree(const crypto *c, const unsigned char secret[KEY], const unsigned char peer[KEY],
                  unsigned char share[KEY], unsigned char shared[KEY], tinkc_error *err)
{
    size_t n = KEY, m = KEY;
    void *mine = c->raw_private(X25519, NULL, secret, KEY);
    void *theirs = c->raw_public(X25519, NULL, peer, KEY);
    void *ctx = mine ? c->key_ctx(mine, NULL) : NULL;
    bool ok = theirs && ctx && c->get_public(mine, share, &n) == 1 && c->derive_init(ctx) == 1 &&
              c->derive_peer(ctx, theirs) == 1 &&
              c->derive(ctx, shared, &m) == 1; /* not all zero */
    if (ctx)
        c->key_ctx_free(ctx);
    if (mine)
        c->key_free(mine);
    if (theirs)
        c->key_free(theirs);
    return ok || tkc_fail(err, TINKC_E_BAD_REQUEST, "age: a key that no secret can be agreed with");
}

/* ---- HMAC and HKDF with SHA-256 (RFC 2104, RFC 5869) ---- */

static void hmac(const void *key, size_t key_len, const void *a, size_t a_len, const void *b,
                 size_t b_len, unsigned char out[KEY])
{
    unsigned char pad[2][64] = { { 0 } };
    tkc_digest sum;
    memcpy(pad[0], key_len ? key : "", key_len); /* no key here is longer than a block */
    memcpy(pad[1], pad[0], sizeof pad[0]);
    for (size_t i = 0; i < 64; i++) {
        pad[0][i] ^= 0x36;
        pad[1][i] ^= 0x5c;
    }
    tkc_sha256_init(&sum);
    tkc_digest_add(&sum, pad[0], 64);
    tkc_digest_add(&sum, a, a_len);
    tkc_digest_add(&sum, b, b_len);
    (void)tkc_digest_bytes(&sum, out);
    tkc_sha256_init(&sum);
    tkc_digest_add(&sum, pad[1], 64);
    tkc_digest_add(&sum, out, KEY);
    (void)tkc_digest_bytes(&sum, out);
    tkc_wipe(pad, sizeof pad);
    tkc_wipe(&sum, sizeof sum);
}

/* One block of output is all that is needed. */
static void hkdf(const void *secret, size_t len, const void *salt, size_t salt_len,
                 const char *info, unsigned char out[KEY])
{
    unsigned char prk[KEY];
    hmac(salt, salt_len, secret, len, "", 0, prk);
    hmac(prk, KEY, info, strlen(info), "\x01", 1, out);
    tkc_wipe(prk, sizeof prk);
}

/* ---- keys as text: bech32 (BIP 173) ---- */

static uint32_t polymod_step(uint32_t check, uint32_t value)
{
    static const uint32_t generators[5] = { 0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd,
                                            0x2a1462b3 };
    uint32_t top = check >> 25;
    check = (check & 0x1ffffff) << 5 ^ value;
    for (int i = 0; i < 5; i++)
        if (top >> i & 1)
            check ^= generators[i];
    return check;
}

/* Reads PREFIX1..., all in lower case. */
static bool read_key(const char *text, const char *prefix, unsigned char out[KEY])
{
    static const char letters[] = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";
    enum { DATA = 52, SUM = 6 };
    uint32_t check = 1, bits = 0;
    int n_bits = 0;
    size_t n = 0, most = strlen(prefix);
    if (strlen(text) != most + 1 + DATA + SUM || memcmp(text, prefix, most) != 0 ||
        text[most] != '1')
        return false;
    for (size_t i = 0; i < most; i++)
        check = polymod_step(check, (unsigned char)prefix[i] >> 5);
    check = polymod_step(check, 0);
    for (size_t i = 0; i < most; i++)
        check = polymod_step(check, prefix[i] & 31);
    text += most + 1;
    for (size_t i = 0; i < DATA + SUM; i++) {
        const char *at = strchr(letters, text[i]);
        if (!at)
            return false;
        uint32_t value = (uint32_t)(at - letters);
        check = polymod_step(check, value);
        if (i >= DATA)
            continue;
        bits = (bits << 5 | value) & 0xfff;
        n_bits += 5;
        if (n_bits >= 8) {
            n_bits -= 8;
            out[n++] = (unsigned char)(bits >> n_bits);
        }
    }
    return check == 1 && n == KEY && (bits & 15) == 0; /* the last letter has four bits too many */
}

bool tkc_age_recipient(const char *text, unsigned char out[TKC_AGE_KEY])
{
    return read_key(text, "age", out);
}

/* An identity is written in upper case. */
bool tkc_age_identity(const char *text, unsigned char out[TKC_AGE_KEY])
{
    char lower[80];
    size_t n = 0;
    for (; text[n] && n < sizeof lower - 1; n++) {
        if (text[n] >= 'a' && text[n] <= 'z')
            break;
        lower[n] = (char)(text[n] >= 'A' && text[n] <= 'Z' ? text[n] + ('a' - 'A') : text[n]);
    }
    lower[n] = '\0';
    bool ok = !text[n] && read_key(lower, "age-secret-key-", out);
    tkc_wipe(lower, sizeof lower);
    return ok;
}

/* ---- writing a header ---- */

/* Without padding, as the format wants it. */
static void add_base64(tkc_buf *out, const unsigned char *bytes, size_t len, tinkc_error *err)
{
    char text[64];
    size_t n = tkc_base64_length(len);
    tkc_base64_encode(bytes, len, text);
    while (n && text[n - 1] == '=')
        n--;
    tkc_buf_add(out, text, n, err);
}

static bool fill_random(void *out, size_t len, tinkc_error *err)
{
    return tkc_random_bytes(out, len) ||
           tkc_fail(err, TINKC_E_UNSUPPORTED, "age: the system gives no random bytes");
}

static bool add_recipient(const crypto *c, const char *recipient, const unsigned char *file_key,
                          tkc_buf *out, tinkc_error *err)
{
    static const unsigned char zero[NONCE] = { 0 };
    unsigned char secret[KEY], peer[KEY], shared[KEY], wrap[KEY], salt[2 * KEY],
        body[BODY];
    if (!tkc_age_recipient(recipient, peer))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "age: '%.80s' is not a recipient", recipient);
    bool ok = fill_random(secret, sizeof secret, err) && agree(c, secret, peer, salt, shared, err);
    memcpy(salt + KEY, peer, KEY);
    if (ok) {
        hkdf(shared, KEY, salt, sizeof salt, info_x25519, wrap);
        ok = seal(c, wrap, zero, file_key, FILE_KEY, body, err);
    }
    if (ok) {
        tkc_buf_cstr(out, "-> X25519 ", err);
        add_base64(out, salt, KEY, err);
        tkc_buf_cstr(out, "\n", err);
        add_base64(out, body, sizeof body, err);
        tkc_buf_cstr(out, "\n", err);
    }
    tkc_wipe(secret, sizeof secret);
    tkc_wipe(shared, sizeof shared);
    tkc_wipe(wrap, sizeof wrap);
    return ok && !tkc_failed(err);
}

/* Of all up to the three dashes, which it follows. */
static void header_mac(const unsigned char *file_key, tinkc_str header, unsigned char mac[KEY])
{
    unsigned char key[KEY];
    hkdf(file_key, FILE_KEY, "", 0, "header", key);
    hmac(key, KEY, header.data, header.len, "", 0, mac);
    tkc_wipe(key, sizeof key);
}

static bool add_header(const crypto *c, const char *const *recipients,
                       const unsigned char *file_key, tkc_buf *out, tinkc_error *err)
{
    unsigned char mac[KEY];
    tkc_buf_cstr(out, version, err);
    tkc_buf_cstr(out, "\n", err);
    for (; *recipients; recipients++)
        if (!add_recipient(c, *recipients, file_key, out, err))
            return false;
    if (!tkc_buf_cstr(out, "---", err))
        return false;
    header_mac(file_key, tkc_buf_view(out), mac);
    tkc_buf_cstr(out, " ", err);
    add_base64(out, mac, KEY, err);
    return tkc_buf_cstr(out, "\n", err);
}

bool tkc_age_begin(tkc_age_stream *s, const char *const *recipients, tkc_buf *out, tinkc_error *err)
{
    unsigned char file_key[FILE_KEY], nonce[FILE_KEY];
    const crypto *c = load(err);
    *s = (tkc_age_stream){ 0 };
    bool ok = c && fill_random(file_key, sizeof file_key, err) &&
              fill_random(nonce, sizeof nonce, err) &&
              add_header(c, recipients, file_key, out, err) &&
              tkc_buf_add(out, nonce, sizeof nonce, err);
    if (ok)
        hkdf(file_key, FILE_KEY, nonce, sizeof nonce, "payload", s->key);
    tkc_wipe(file_key, sizeof file_key);
    return ok;
}

/* ---- reading a header ---- */

typedef struct header {
    const crypto *c;
    const char *const *identities;
    tkc_arena *arena;
    tinkc_str rest; /* behind what has been read */
    unsigned char file_key[FILE_KEY];
    bool found; /* the file key */
    tinkc_error *err;
} header;

static bool malformed(header *h, const char *why)
{
    return tkc_fail(h->err, TINKC_E_BAD_RESPONSE, "age: the header is damaged (%s)", why);
}

/* The next line, without its end; false: there is none. */
static bool take_line(header *h, tinkc_str *line)
{
    const char *end = h->rest.len ? memchr(h->rest.data, '\n', h->rest.len) : NULL;
    if (!end)
        return malformed(h, "it has no end");
    *line = tkc_strn(h->rest.data, (size_t)(end - h->rest.data));
    h->rest = tkc_strn(end + 1, h->rest.len - line->len - 1);
    return true;
}

/* Base64 without padding, of exactly so many bytes. */
static bool read_base64(const header *h, tinkc_str text, unsigned char *out, size_t len)
{
    char padded[64];
    tinkc_bytes bytes;
    size_t whole = tkc_base64_length(len), n = (len * 4 + 2) / 3;
    if (text.len != n || whole > sizeof padded)
        return false;
    memset(padded, '=', sizeof padded);
    memcpy(padded, text.data, n);
    if (!tkc_base64_decode(tkc_strn(padded, whole), h->arena, &bytes, h->err) || bytes.len != len)
        return false;
    memcpy(out, bytes.data, len);
    return true;
}

/* Tries each identity on a wrapped key. False: damaged. */
static bool try_identities(header *h, const unsigned char share[KEY], const unsigned char body[BODY])
{
    static const unsigned char zero[NONCE] = { 0 };
    unsigned char secret[KEY], shared[KEY], wrap[KEY], salt[2 * KEY];
    tinkc_error why = { 0 };
    bool ok = true;
    for (size_t i = 0; ok && h->identities[i] && !h->found; i++) {
        if (!tkc_age_identity(h->identities[i], secret))
            continue;
        memcpy(salt, share, KEY);
        if (!agree(h->c, secret, share, salt + KEY, shared, &why)) {
            ok = malformed(h, "a recipient has no usable key");
            break;
        }
        hkdf(shared, KEY, salt, sizeof salt, info_x25519, wrap);
        h->found = unseal(h->c, wrap, zero, body, BODY, h->file_key, h->err);
        ok = !tkc_failed(h->err);
    }
    tkc_wipe(secret, sizeof secret);
    tkc_wipe(shared, sizeof shared);
    tkc_wipe(wrap, sizeof wrap);
    return ok;
}

/* "-> TYPE ARGUMENT..." and its body: lines of 64 characters, then a shorter one. */
static bool read_recipient(header *h, tinkc_str line)
{
    static const char ours[] = "-> X25519 ";
    enum { LINE = 64 };
    unsigned char share[KEY], body[BODY];
    tinkc_str first, next;
    if (!take_line(h, &first))
        return false;
    for (next = first; next.len >= LINE;)
        if (next.len > LINE || !take_line(h, &next))
            return malformed(h, "a line is too long");
    if (!tkc_starts_with(line, ours))
        return true; /* of a kind that no identity here opens */
    tinkc_str argument = tkc_strn(line.data + sizeof ours - 1, line.len - sizeof ours + 1);
    if (!read_base64(h, argument, share, KEY) || !read_base64(h, first, body, BODY))
        return malformed(h, "a recipient cannot be read");
    return h->found || try_identities(h, share, body);
}

static bool read_mac(header *h, tinkc_str line, tinkc_str before)
{
    unsigned char told[KEY], mac[KEY];
    if (!read_base64(h, tkc_strn(line.data + 4, line.len - 4), told, KEY))
        return malformed(h, "its MAC cannot be read");
    if (!h->found)
        return tkc_fail(h->err, TINKC_E_ARGUMENT,
                        "age: encrypted to another key than those given; give the identity of one "
                        "of its recipients");
    header_mac(h->file_key, before, mac);
    return memcmp(mac, told, KEY) == 0 || malformed(h, "its MAC does not fit");
}

static bool read_header(header *h, tinkc_bytes file)
{
    tinkc_str line;
    h->rest = tkc_strn((const char *)file.data, file.len < MOST_OF_HEADER ? file.len : MOST_OF_HEADER);
    if (tkc_starts_with(h->rest, "-----BEGIN AGE"))
        return tkc_fail(h->err, TINKC_E_UNSUPPORTED,
                        "age: armored files are not read; decrypt this one with `age -d`");
    if (!tkc_starts_with(h->rest, version) || !take_line(h, &line) || !tkc_str_is(line, version))
        return tkc_fail(h->err, TINKC_E_BAD_RESPONSE, "age: not a file in the age format, version 1");
    while (take_line(h, &line)) {
        if (tkc_starts_with(line, "--- "))
            return read_mac(h, line, tkc_strn((const char *)file.data,
                                              (size_t)(line.data - (const char *)file.data) + 3));
        if (!tkc_starts_with(line, "-> "))
            return malformed(h, "a line is neither a recipient nor the end");
        if (!read_recipient(h, line))
            return false;
    }
    return false;
}

size_t tkc_age_open(tkc_age_stream *s, tinkc_bytes file, const char *const *identities, tinkc_error *err)
{
    tkc_arena arena;
    size_t at = 0;
    header h = { .c = load(err), .identities = identities, .arena = &arena, .err = err };
    *s = (tkc_age_stream){ 0 };
    tkc_arena_init(&arena, NULL, 0);
    if (h.c && read_header(&h, file)) {
        at = (size_t)((const unsigned char *)h.rest.data - file.data);
        if (file.len - at < FILE_KEY) {
            malformed(&h, "nothing follows it");
            at = 0;
        } else {
            hkdf(h.file_key, FILE_KEY, file.data + at, FILE_KEY, "payload", s->key);
            at += FILE_KEY;
        }
    }
    tkc_wipe(h.file_key, sizeof h.file_key);
    tkc_arena_free(&arena);
    return at;
}

/* ---- the payload ---- */

/* Nonces count chunks, big-endian; the last byte marks the last chunk. */
static void next_nonce(tkc_age_stream *s, bool last, unsigned char nonce[NONCE])
{
    memset(nonce, 0, NONCE);
    for (int i = 0; i < 8; i++)
        nonce[10 - i] = (unsigned char)(s->n_chunks >> 8 * i);
    nonce[11] = last;
    s->n_chunks++;
}

bool tkc_age_seal(tkc_age_stream *s, const void *text, size_t len, bool last, unsigned char *out,
                  tinkc_error *err)
{
    unsigned char nonce[NONCE];
    const crypto *c = load(err);
    next_nonce(s, last, nonce);
    return c && seal(c, s->key, nonce, text, len, out, err);
}

bool tkc_age_unseal(tkc_age_stream *s, const unsigned char *sealed, size_t len, bool last,
                    unsigned char *out, tinkc_error *err)
{
    unsigned char nonce[NONCE];
    const crypto *c = load(err);
    bool empty = len == TAG && s->n_chunks > 0; /* only a file that is empty has an empty chunk */
    next_nonce(s, last, nonce);
    bool ok = c && len >= TAG && !empty && unseal(c, s->key, nonce, sealed, len, out, err);
    return ok || tkc_fail(err, TINKC_E_BAD_RESPONSE,
                          "age: the file was changed or is incomplete; fetch it again");
}

void tkc_age_close(tkc_age_stream *s)
{
    tkc_wipe(s, sizeof *s);
}
