# Read by transcripts and by scripts that start a program beside themselves.

# await FILE TEXT [TIMES]: waits until FILE is there and has whole lines with TEXT in them, one or so many. A file that is not
# there yet, and a line whose end is not written yet, are waited for alike. Fails, and shows the file, after five minutes.
await() {
    local line n until=$((SECONDS + 300))
    while [ $SECONDS -lt $until ]; do
        n=0
        if [ -e "$1" ]; then
            while IFS= read -r line; do
                [[ $line != *"$2"* ]] || n=$((n + 1))
            done < "$1"
        fi
        [ $n -lt "${3:-1}" ] || return 0
        sleep 0.05
    done
    echo "await: waited five minutes in vain for '$2' in $1:"
    cat "$1"
    return 1
}
