/* test_download_age.c - external weights that were saved with recipients: decrypted with an identity before anything is moved into
 * place, and nothing left of a download that cannot be. */
#include "base/file.h"
#include "support/client/download_scene.h"
#include "support/age_keys.h"

#define LINK(name) "{\"urls\":{\"" name "\":\"" URL "\"},\"expires\":\"2026-01-01T01:00:00Z\"}"

/* The next file: this text for the first of the keys. */
static void serve_sealed(scene *s, const char *text, size_t cut, size_t turned)
{
    tkc_buf file;
    tkc_buf_init(&file, NULL, TKC_BUF_NO_MAX);
    age_seal_text(PAIRS(age_keys[0].recipient), text, strlen(text), &file);
    if (turned)
        file.data[file.len - turned] ^= 1;
    serve_once(s, 200, NULL, file.data, file.len - cut);
    tkc_buf_free(&file);
}

#define WITH_KEY .age_identities = PAIRS(age_keys[0].identity)

TEST(encrypted_weights_are_decrypted_into_place)
{
    tkc_buf sealed;
    char seen[300];
    scene *s = download_begin();
    answer(s, LINKS, 200, LINK("d/a.age"));
    serve_sealed(s, "12345", 0, 0);
    fetch_external(s, (tinkc_download_options){
        .age_identities = PAIRS(age_keys[1].identity, age_keys[0].identity) });
    tkc_buf_init(&sealed, NULL, TKC_BUF_NO_MAX); /* what travelled is the encrypted file */
    age_seal_text(PAIRS(age_keys[0].recipient), "12345", 5, &sealed);
    (void)snprintf(seen, sizeof seen,
                   "links; /x; done; ./r_external_weights_c: %zu bytes, 1 file; r_external_weights_c/[d/[a=12345]]",
                   sealed.len);
    EXPECT(s, seen);
    tkc_buf_free(&sealed);
    download_end(s);
}

TEST(nothing_is_left_of_weights_that_cannot_be_decrypted)
{
    static const struct {
        const char *links, *wanted;
        size_t key, cut, turned;
    } rows[] = {
        { LINK("a.age"), "/x; ARGUMENT \"a.age: age: encrypted to another key than those given; give the identity of one of its recipients\"",
          .key = 1 },
        { LINK("a.age"), "/x; BAD_RESPONSE \"a.age: age: the file was changed or is incomplete; fetch it again\"", .turned = 1 },
        { LINK("a.age"), "/x; BAD_RESPONSE \"a.age: age: the file was changed or is incomplete; fetch it again\"", .cut = 1 },
        { LINK("a.age"), "/x; BAD_RESPONSE \"a.age: age: the header is damaged (its MAC does not fit)\"", .turned = 40 },
        { LINK("a"), "BAD_RESPONSE \"external weights: 'a' is not encrypted; save them with recipients, or download them without an identity\"", .key = 0 },
        { LINK("d/.age"), "BAD_RESPONSE \"external weights: 'd/.age' is not encrypted; save them with recipients, or download them without an identity\"", .key = 0 },
    };
    scene *s = download_begin();
    for (size_t i = 0; i < LEN(rows); i++) {
        char wanted[300];
        answer(s, LINKS, 200, rows[i].links);
        serve_sealed(s, "12345", rows[i].cut, rows[i].turned);
        fetch_external(s, (tinkc_download_options){ .age_identities = PAIRS(age_keys[rows[i].key].identity) });
        (void)snprintf(wanted, sizeof wanted, "links; %s; nothing on the disk", rows[i].wanted);
        EXPECT_ROW(s, i, wanted);
        use_up(s, URL);
    }
    download_end(s);
}

TEST(a_download_that_replaces_keeps_the_old_files_until_all_are_decrypted)
{
    scene *s = download_begin();
    tkc_make_dirs("r_external_weights_c", scene_err(s));
    put_file("r_external_weights_c/a", "old");
    answer(s, LINKS, 200, LINK("a.age"));
    serve_sealed(s, "12345", 0, 1);
    fetch_external(s, (tinkc_download_options){ WITH_KEY, .replace = true });
    EXPECT(s, "links; /x; BAD_RESPONSE \"a.age: age: the file was changed or is incomplete; fetch it again\"; "
              "r_external_weights_c/[a=old]");
    download_end(s);
}

TEST(identities_are_checked_before_anything_is_sent)
{
    scene *s = download_begin();
    fetch_external(s, (tinkc_download_options){ .age_identities = PAIRS(age_keys[0].identity, age_keys[0].recipient) });
    EXPECT(s, "ARGUMENT \"age_identities[1]: not an X25519 identity (AGE-SECRET-KEY-1...)\"; nothing on the disk");
    fetch_external(s, (tinkc_download_options){ .age_identities = (const char *const[]){ NULL } });
    EXPECT(s, "ARGUMENT \"age_identities: an empty list would decrypt nothing\"; nothing on the disk");
    fetch(s, (tinkc_download_options){ WITH_KEY });
    EXPECT(s, "ARGUMENT \"age_identities: only external weights are encrypted (tinker://RUN/external_weights/NAME)\"; nothing on the disk");
    fetch_url(s, URL, (tinkc_download_options){ WITH_KEY });
    EXPECT(s, "ARGUMENT \"age_identities: only external weights are encrypted (tinker://RUN/external_weights/NAME)\"; nothing on the disk");
    download_end(s);
}
