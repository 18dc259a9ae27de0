# Read by transcripts of training at the service of stub_trainer.py, which always says the same: requests and figures are exact.
mask() { python3 "$TESTS/run_folder.py" mask; }
show() { python3 "$TESTS/run_folder.py" show "$@"; }
# What the service was asked since the last time.
said() {
    exec 3<> "/dev/tcp/127.0.0.1/${URL##*:}"
    printf 'GET /said HTTP/1.0\r\n\r\n' >&3
    sed '1,/^\r$/d' <&3
    exec 3>&-
}
# Conversations of sums.
sums() { for i in "$@"; do echo "{\"messages\":[{\"role\":\"user\",\"content\":\"What is $i + 1?\"},{\"role\":\"assistant\",\"content\":\"$((i + 1))!\"}]}"; done; }
