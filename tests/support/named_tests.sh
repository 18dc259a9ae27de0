# named_tests.sh - whether a name in a page is a test that exists and is run: in a cmocka program its
# definition and its place in a list of tests, in a shell test its definition and a line that calls it.
# To be sourced, in the repository's root.

c_test() {
    grep -rqE "^static void $1\(void \*\*" tests --include='*.c' &&
        grep -rqE "(unit_test[a-z_]*|WITH[A-Z_]*|TEST[A-Z_]*)\($1\b" tests --include='*.c'
}
shell_test() {
    grep -rqE "^$1\(\) \{" tests --include='*.sh' && grep -rqxE "$1" tests --include='*.sh'
}

# is_run NAME: says what is wrong, and fails, if it is not.
is_run() {
    c_test "$1" || shell_test "$1" || { echo "no test function $1"; return 1; }
}
