# Read by transcripts and by other scripts that start a program beside themselves.

# await FILE TEXT: waits until FILE is there and has a whole line with TEXT in it. A file that is not there yet, and a line whose
# end is not written yet, are waited for alike. Fails, and shows the file, after five minutes.
await() {
    local line until=$((SECONDS + 300))
    while [ $SECONDS -lt $until ]; do
        if [ -e "$1" ]; then
            while IFS= read -r line; do [[ $line != *"$2"* ]] || return 0; done < "$1"
        fi
        sleep 0.05
    done
    echo "await: waited five minutes in vain for '$2' in $1:"
    cat "$1"
    return 1
}
