# Shared by ./dev and its parts: messages, stages with times, pins, checked downloads. Sourced, not run.
# shellcheck shell=bash disable=SC2034

CACHE=${NEREID_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nereid}
JOBS=${NEREID_JOBS:-$(nproc)}
export CCACHE_DIR=$CACHE/ccache

say() { printf '%s\n' "$*" >&2; }
# die REASON MEND
die() {
    printf '\n./dev: %s\n  mend: %s\n' "$1" "${2:-see the lines above}" >&2
    exit 1
}

# shellcheck source=third_party/pins.env
source "$ROOT/third_party/pins.env"

# stage TITLE COMMAND...: runs a step and says how long it took; returns what the step returned.
stage() {
    local title=$1 start=$EPOCHREALTIME status
    shift
    say "== $title"
    "$@" # where the caller does not look at the result, a failure ends the script here (set -e)
    status=$?
    say "== $title: $(seconds_since "$start") s$([ $status = 0 ] || echo ", FAILED")"
    return $status
}
seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# logged LOG COMMAND...: runs a long command with its output in LOG; shows ninja's [n/m] now and then; on failure the end of
# the log, and 1 is returned.
logged() {
    local log=$1 pid start=$SECONDS last=$SECONDS line status=0 every=20
    shift
    mkdir -p "$(dirname "$log")"
    [ -t 2 ] && every=2
    "$@" >"$log" 2>&1 &
    pid=$!
    # An interrupt must not leave the compiler running behind the prompt.
    trap 'kill $pid 2>/dev/null; exit 130' INT TERM
    while kill -0 $pid 2>/dev/null; do
        sleep 0.2
        if ((SECONDS - last >= every)); then
            last=$SECONDS
            line=$(tail -n 1 "$log" | grep -oE '^\[[0-9]+/[0-9]+\]' || true)
            say "   ${line:-...} $((SECONDS - start)) s"
        fi
    done
    wait $pid || status=$?
    trap - INT TERM
    if ((status != 0)); then
        say "-- the end of $log:"
        grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" | tail -n 60 >&2
        explain_failure "$log"
        return 1
    fi
}

# Adds the mend of the failures that are not about the code.
explain_failure() {
    if grep -q 'No space left on device' "$1"; then
        die "the disk is full" "free some space: \`du -sh $CACHE build\`; both can be deleted and come back"
    elif grep -qE 'Killed|out of memory|Cannot allocate memory' "$1"; then
        die "the compiler ran out of memory" "build with fewer jobs: NEREID_JOBS=1 ./dev ..."
    fi
}

need_space() { # FOLDER GIB
    mkdir -p "$1"
    local free
    free=$(df --output=avail -BM "$1" | tail -n 1 | tr -dc 0-9)
    ((free >= $2 * 1024)) || die "$1 has $free MiB free; this step needs about $2 GiB" \
        "free some space, or put the cache elsewhere: NEREID_CACHE=/big/disk ./dev ..."
}

checked() { # FILE SHA256: true when FILE exists and matches
    [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$2  -" ]
}

# fetch FILE SHA256 COMMAND...: COMMAND must leave FILE in the folder it runs in. Kept in $CACHE/downloads.
fetch() {
    local file=$1 sum=$2 dir=$CACHE/downloads tmp
    shift 2
    checked "$dir/$file" "$sum" && return
    mkdir -p "$dir"
    tmp=$(mktemp -d "$dir/.fetch.XXXXXX")
    say "   download: $*"
    if ! (cd "$tmp" && "$@") >"$dir/$file.log" 2>&1; then
        tail -n 15 "$dir/$file.log" >&2
        rm -rf "$tmp"
        explain_failure "$dir/$file.log"
        die "could not download $file" "check the network and the client's configuration (npm config list, pip config list), then run this again"
    fi
    [ -f "$tmp/$file" ] || die "\`$*\` did not leave $file" "see $dir/$file.log"
    checked "$tmp/$file" "$sum" || die "$file has sha256 $(sha256sum <"$tmp/$file" | cut -d' ' -f1), expected $sum; not used (left in $tmp)" \
        "a proxy or mirror may have changed it; if the new content is right, change third_party/pins.env"
    mv "$tmp/$file" "$dir/$file"
    rm -rf "$tmp" "$dir/$file.log"
}

# venv NAME REQUIREMENTS: prints the folder of a virtual environment holding exactly REQUIREMENTS (with hashes).
venv() {
    local dir
    dir=$CACHE/venv/$1-$(sha256sum <"$2" | cut -c1-12)
    if [ ! -f "$dir/.complete" ]; then
        say "   Python environment for $1 (pinned: ${2#"$ROOT"/})"
        rm -rf "$dir"
        mkdir -p "$dir"
        { /usr/bin/python3 -m venv "$dir" &&
            "$dir/bin/pip" install --disable-pip-version-check --quiet --require-hashes --only-binary :all: -r "$2"; } >"$dir.log" 2>&1 || {
            tail -n 20 "$dir.log" >&2
            die "could not install $2" "a hash mismatch means the file changed upstream; else check the network (\`pip config list\`)"
        }
        touch "$dir/.complete"
    fi
    printf '%s\n' "$dir"
}
