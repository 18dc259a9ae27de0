# Read by transcripts of training at the service of stub_trainer.py, which always says the same: requests and figures are exact.
# Times and speeds read TIME where they can be right (less than 100 s, this century), long fractions end early; lines of steps that are neither first nor last go, as they depend on the time.
mask() {
    sed -E '/^(! )?step [0-9]+\/[0-9]+ /{/step 1\//!{/step ([0-9]+)\/\1 /!d}}
        s/20[0-9]{2}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8}(\.[0-9]+)?(Z|\+00:00)?/WHEN/g; s/20[0-9]{2}(-[0-9]{2}){2}[-T][0-9]{2}-[0-9]{2}(-[0-9]{2})?/STAMP/g
        s/\b[0-9.]+ tok\/s/N tok\/s/g; s/ETA ([0-9.]{1,3}s|[0-9]m[0-9]{2}s)$/ETA TIME/g; s/promise-[0-9]+/PROMISE/g; s/("version": ?)"[^"]*"/\1"VERSION"/g
        s/("time[^"]*"|"(duration|_runtime)"): ?(0|[1-9][0-9]?)(\.[0-9]+)?(e-[0-9]+)?\b/\1:TIME/g; s/("took_ms"): ?[0-9]{1,5}\b/\1:TIME/g
        s/("(wall_[a-z]+|_timestamp)"): ?[12][0-9]{9}(\.[0-9]+)?\b/\1:TIME/g; s/([0-9]\.[0-9]{5})[0-9]{4,}/\1/g
        s/(train[a-z_]*|metric_exports):[0-9]+ \[/\1:LINE [/' | sed "s#$(printf %s "${NANO#/}" | tr / -)#NANO#g"
}
show() { python3 "$TESTS/run_folder.py" "$@"; }
# What the service was asked since the last time.
said() {
    exec 3<> "/dev/tcp/127.0.0.1/${URL##*:}"
    printf 'GET /said HTTP/1.0\r\n\r\n' >&3
    sed '1,/^\r$/d; s#'"$NANO"'#NANO#g' <&3 # its length must not matter to cut
    exec 3>&-
}
# Conversations of sums.
sums() { for i in "$@"; do echo "{\"messages\":[{\"role\":\"user\",\"content\":\"What is $i + 1?\"},{\"role\":\"assistant\",\"content\":\"$((i + 1))!\"}]}"; done; }
# Requests of these kinds (a regular expression), with the rows of passes among them, without what sft.txt, dpo_served.txt and rl_served.txt show
# of all of them: their order, their model and the defaults of a step.
sent() {
    said | awk -v kinds="^(POST |GET |)($1) " '/^  / { if (on) print; next } { on = $0 ~ kinds } on' |
        sed -E 's/, "(type|model_id)": "[a-z0-9_-]*"//g; s/"model_id": "export-1", //; s/, "seq_id": [0-9]+//; s/"seq_id": [0-9]+, //
            s/, "(beta1|beta2|eps|weight_decay|grad_clip_norm)": (0\.9|0\.95|1e-08|0\.0)\b//g'
}
# What a run says, without what those three files show of every run.
brief() { mask | grep -vE "^! ((model +$NANO|adapter +rank 32)$|(log|state|sampler|to talk|steps|data|prompts|ahead) |step [0-9]+: saved)"; }
# The names of a run's states, and the rows of its steps up to this member.
states() { show "$1" checkpoints.j | sed -nE 's/.*"name": "([^"]*)".*/\1/p' | xargs; }
rows_to() { show "$1" metrics | sed -nE "s/^  (.*), \"$2\".*/\1}/p"; }
# What was asked, with samples that differ in their prompts only as one line and their number.
# Seeds of samples differ.
said_once() {
    said > "$ERRORS.asked"; grep -v ^asample "$ERRORS.asked"
    grep ^asample "$ERRORS.asked" | sed -E 's/"prompt": "[^"]*", //; s/"seed": [0-9]+/"seed": N/' | sort | uniq -c | sed 's/^ *//'
}
