#!/usr/bin/env bash
# One pattern for every function of the public headers: a call that talks to the service returns a
# future and takes an error last; what waits says how long in its arguments; there are no twins.
set -eu
# One declaration a line, without comments.
declarations() {
    sed -e 's://.*::' include/tinkc/*.h include/tinkc/sys/*.h | tr '\n' ' ' |
        sed -e 's:/\*[^*]*\**\([^/*][^*]*\**\)*/: :g' -e 's/  */ /g' | grep -oE 'TINKC_API [^;]*;'
}

c25_every_submit_returns_a_future_and_takes_an_error() {
    submits=$(declarations | grep -E '^TINKC_API tinkc_future \*')
    [ "$(wc -l <<< "$submits")" -ge 40 ] || { echo "only few submits were found"; return 1; }
    ! grep -vE 'tinkc_error \*( ?err)?\);$' <<< "$submits" || { echo "the above take no error, or not last"; return 1; }
    ! grep -E 'timeout_ms' <<< "$submits" || { echo "the above wait, and return a future"; return 1; }
}

c25_every_result_is_read_in_the_same_way() {
    readers=$(declarations | grep -E 'tinkc_future_[a-z_]+\(' | grep -E 'timeout_ms')
    [ "$(wc -l <<< "$readers")" -ge 20 ] || { echo "only few readers were found"; return 1; }
    ! grep -vE '\(tinkc_future \*.*int64_t timeout_ms, ?tinkc_error \*( ?err)?\);$' <<< "$readers" ||
        { echo "the above do not end with a time and an error"; return 1; }
}

c25_there_are_no_twins() {
    ! declarations | grep -oE 'tinkc_[a-z0-9_]+_(async|sync|blocking|nb)\(' || { echo "the above are twins"; return 1; }
}

c25_every_submit_returns_a_future_and_takes_an_error
c25_every_result_is_read_in_the_same_way
c25_there_are_no_twins
echo "pattern: $(declarations | wc -l) functions"
