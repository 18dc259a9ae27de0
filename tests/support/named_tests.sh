# named_tests.sh - whether a name in a page is a test that exists and is run: in a test program its
# definition, in a shell test its definition and a line that calls it.
# To be sourced, in the repository's root.

c_test() {
    grep -rqE "^(TEST(_WITH)?|RULES(_OF_TEXTS)?)\($1\b" tests --include='*.c'
}
shell_test() {
    grep -rqE "^$1\(\) \{" tests --include='*.sh' && grep -rqxE "$1" tests --include='*.sh'
}

# is_run NAME: says what is wrong, and fails, if it is not.
is_run() {
    c_test "$1" || shell_test "$1" || { echo "no test function $1"; return 1; }
}
