/* test_age_files.c - files in the age format: Debian's age decrypts what we encrypt and we decrypt what it encrypts, for each
 * recipient and every length about the size of a chunk; what is not a recipient is refused. Skipped where age is not installed. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "service/store/age_files.h"
#include "support/check.h"
#include "support/age_keys.h"

static char folder[] = "/tmp/tinkc-age-XXXXXX";
static char recipients[2][80], identities[2][80];

static void run(const char *command)
{
    if (system(command) != 0)
        fail_msg("%s", command);
}

static int setup(void **state)
{
    char command[300], path[100];
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "cd %s && age-keygen -o key%d 2> /dev/null && age-keygen -y key%d > public%d",
                 folder, i, i, i);
        run(command);
        snprintf(path, sizeof path, "%s/public%d", folder, i);
        FILE *f = fopen(path, "r");
        assert_true(f && fscanf(f, "%79s", recipients[i]) == 1);
        fclose(f);
        snprintf(path, sizeof path, "%s/key%d", folder, i);
        f = fopen(path, "r"); /* two comments, then the identity */
        assert_true(f && fscanf(f, "%*[^\n] %*[^\n] %79s", identities[i]) == 1);
        fclose(f);
    }
    return 0;
}

static int teardown(void **state)
{
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const size_t lengths[] = { 0, 1, 65535, 65536, 65537, 131072, 200000 };

TEST(age_decrypts_what_we_encrypt)
{
    const char *const to[] = { recipients[0], recipients[1], NULL };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        tinkc_error err = { 0 };
        char inner[100], path[120], command[600];
        char *bytes = malloc(lengths[i] + 1);
        for (size_t k = 0; k < lengths[i]; k++)
            bytes[k] = (char)(k * 2654435761u >> 11);
        snprintf(inner, sizeof inner, "%s/%zu", folder, i);
        assert_int_equal(mkdir(inner, 0700), 0);
        snprintf(path, sizeof path, "%s/file", inner);
        assert_true(tkc_write_file(path, bytes, lengths[i], 0600, &err));
        snprintf(command, sizeof command, "cp %s %s.plain", path, inner);
        run(command);
        assert_true(tke_age_folder(inner, to, &err));
        assert_ok(err);
        assert_int_not_equal(access(path, F_OK), 0); /* nothing stays in the clear */
        for (int key = 0; key < 2; key++) {
            snprintf(command, sizeof command, "age -d -i %s/key%d %s.age | cmp - %s.plain", folder, key, path, inner);
            run(command);
        }
        free(bytes);
    }
}

/* What age -r ... writes of so many bytes, in "file.age". */
static tinkc_bytes encrypted_by_age(const char *options, const char *bytes, size_t len, tkc_arena *arena)
{
    tinkc_error err = { 0 };
    char path[120], command[700];
    snprintf(path, sizeof path, "%s/file", folder);
    assert_true(tkc_write_file(path, bytes, len, 0600, &err));
    snprintf(command, sizeof command, "age %s -r %s -r %s -o %s.age %s", options, recipients[0], recipients[1], path, path);
    run(command);
    snprintf(path, sizeof path, "%s/file.age", folder);
    tinkc_bytes file = tkc_read_file(arena, path, 1 << 20, &err);
    assert_ok(err);
    return file;
}

TEST(we_decrypt_what_age_encrypts)
{
    char *bytes = malloc(200000);
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    for (size_t k = 0; k < 200000; k++)
        bytes[k] = (char)(k * 2654435761u >> 11);
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        tinkc_error err = { 0 };
        size_t n, len = lengths[i / 2];
        const char *const keys[] = { identities[i % 2], NULL };
        unsigned char *got = age_open_text(encrypted_by_age("", bytes, len, &arena), keys, &n, &err);
        assert_ok(err);
        assert_int_equal(n, len);
        assert_memory_equal(got, bytes, n);
        free(got);
    }
    tkc_arena_free(&arena);
    free(bytes);
}

TEST(recipients_of_other_kinds_are_passed_over)
{
    tinkc_error err = { 0 };
    size_t n;
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    const char *const keys[] = { identities[1], NULL };
    unsigned char *got = age_open_text(
        encrypted_by_age("-r 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICk8b0M1nDNp1Wc7oNnnGYyb1PRxcuIr1lxm0wsv3BbL'",
                         "secret", 6, &arena), keys, &n, &err);
    assert_ok(err);
    assert_memory_equal(got, "secret", 6);
    free(got);
    assert_null(age_open_text(encrypted_by_age("--armor", "secret", 6, &arena), keys, &n, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    tkc_arena_free(&arena);
}

/* Two encryptions of one file have nothing in common: keys and nonces are drawn for each. */
TEST(each_file_has_its_own_keys)
{
    tinkc_error err = { 0 };
    const char *const to[] = { recipients[0], NULL };
    char inner[100], path[120], command[400];
    snprintf(inner, sizeof inner, "%s/twins", folder);
    assert_int_equal(mkdir(inner, 0700), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%d", inner, i);
        assert_true(tkc_write_file(path, "same", 4, 0600, &err));
    }
    assert_true(tke_age_folder(inner, to, &err));
    for (int line = 2; line <= 4; line++) {
        snprintf(command, sizeof command, "cd %s && ! cmp -s <(sed -n %dp 0.age) <(sed -n %dp 1.age)", inner, line,
                 line);
        char shell[500];
        snprintf(shell, sizeof shell, "bash -c '%s'", command);
        run(shell);
    }
}

TEST(wrong_recipients_are_named)
{
    char cut[80], turned[80], upper[80];
    snprintf(cut, sizeof cut, "%.61s", recipients[0]);
    snprintf(turned, sizeof turned, "%s", recipients[0]);
    turned[20] = turned[20] == 'q' ? 'p' : 'q'; /* one letter: the checksum tells */
    snprintf(upper, sizeof upper, "AGE1%.70s", recipients[0] + 4);
    const char *const bad[] = { "", "age1x", "ssh-ed25519 AAAA", cut, turned, upper };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tinkc_error err = { 0 };
        const char *const list[] = { recipients[0], bad[i], NULL };
        assert_false(tke_age_check(list, &err));
        assert_non_null(strstr(err.message, "age_encryption_recipients[1]"));
    }
    const char *many[TKE_AGE_RECIPIENTS + 2] = { NULL };
    for (int i = 0; i <= TKE_AGE_RECIPIENTS; i++)
        many[i] = recipients[0];
    tinkc_error err = { 0 };
    assert_false(tke_age_check(many, &err));
    many[TKE_AGE_RECIPIENTS] = NULL;
    err = (tinkc_error){ 0 };
    assert_true(tke_age_check(many, &err));
}

int main(void)
{
    if (system("command -v age > /dev/null && command -v age-keygen > /dev/null") != 0) {
        puts("skipped: age is not installed");
        return 77;
    }
    return test_cases_run(setup, teardown);
}
