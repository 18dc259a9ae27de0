#!/usr/bin/env bash
# The command touches no network before it knows that its arguments make sense. (How quickly it starts: bench/cli.sh.)
set -eu
tinkc=$1/tinkc
[ -x "$tinkc" ] || { echo "skipped: $tinkc was not built"; exit 77; }
export TINKER_API_KEY=tml-test TINKER_BASE_URL=http://127.0.0.1:9 HOME=/nonexistent XDG_CONFIG_HOME=/nonexistent

# Without libcurl there is no way to a network.
loads_libcurl() {
    LD_DEBUG=files "$@" 2>&1 | grep -q 'file=libcurl'
}

c37_help_knows_no_network() {
    ! loads_libcurl "$tinkc" --help || { echo "--help opens libcurl"; return 1; }
    loads_libcurl "$tinkc" run list --retry-for 0 || { echo "nothing is seen of libcurl at all"; return 1; }
}

c37_bad_arguments_end_before_any_request() {
    for words in "run list --limit nine" "run get" "checkpoint delete --nonsense x" "no-such-noun"; do
        code=0
        # shellcheck disable=SC2086
        "$tinkc" $words > /dev/null 2>&1 || code=$?
        [ "$code" = 2 ] || { echo "tinkc $words: exit $code"; return 1; }
        # shellcheck disable=SC2086
        ! loads_libcurl "$tinkc" $words || { echo "tinkc $words: opens libcurl"; return 1; }
    done
}

c37_help_knows_no_network
c37_bad_arguments_end_before_any_request
echo "start: quick, and silent on the network until its arguments are checked"
