# `./dev deepinfer`: DeepInfer's own engine on this machine's CPU, for `./dev test --deepinfer` and `./dev bench deepinfer`.
# The source package by version and sha256, torch and the rest by hash into an environment of Python 3.12 (several GB), and
# deepinfer._C built from unchanged sources with the stubs of tests/deepinfer/cpu (once, 4 CPU-minutes).
# shellcheck shell=bash

DEEPINFER_SOURCE=$CACHE/src/deepinfer-$DEEPINFER_VERSION
DEEPINFER_REQUIREMENTS=third_party/python/deepinfer.txt

# A Python 3.12: the one in PATH, or pyenv's.
python312() {
    local candidate
    for candidate in python3.12 "$HOME"/.pyenv/versions/3.12.*/bin/python3.12; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && { command -v "$candidate"; return; }
    done
    die "no Python 3.12 was found: DeepInfer needs it" "pyenv install 3.12, or put a python3.12 on the PATH"
}

deepinfer_python() { printf '%s/bin/python\n' "$CACHE/venv/deepinfer-$(sha256sum <"$DEEPINFER_REQUIREMENTS" | cut -c1-12)"; }

deepinfer_environment() {
    local python dir
    python=$(deepinfer_python)
    dir=$(dirname "$(dirname "$python")")
    [ -f "$dir/.complete" ] && return
    need_space "$CACHE" 9
    say "   Python environment with torch (2.7 GB to download, 7 GB on the disk); log: $dir.log"
    rm -rf "$dir"
    mkdir -p "$dir"
    "$(python312)" -m venv "$dir"
    logged "$dir.log" nice "$dir/bin/pip" install --disable-pip-version-check --no-cache-dir --no-compile --require-hashes --only-binary :all: \
        -r "$DEEPINFER_REQUIREMENTS" || die "could not install $DEEPINFER_REQUIREMENTS" "a hash mismatch means the file changed upstream; else check the network"
    touch "$dir/.complete"
}

deepinfer_source() {
    [ -f "$DEEPINFER_SOURCE/PKG-INFO" ] && return
    local file=deepinfer-$DEEPINFER_VERSION.tar.gz tmp
    # pip itself would run its setup.py, which wants a device.
    fetch "$file" "$DEEPINFER_SHA256" "$(deepinfer_python)" "$ROOT/tools/dev/fetch_sdist.py" deepinfer "$DEEPINFER_VERSION"
    tmp=$(mktemp -d "$CACHE/.deepinfer.XXXXXX")
    tar -xzf "$CACHE/downloads/$file" -C "$tmp"
    mkdir -p "$CACHE/src"
    rm -rf "$DEEPINFER_SOURCE"
    mv "$tmp/deepinfer-$DEEPINFER_VERSION" "$DEEPINFER_SOURCE"
    rmdir "$tmp"
}

deepinfer_out() {
    local key
    key=$(cat tests/deepinfer/cpu/build.py tests/deepinfer/cpu/stubs/*.* python/nereid_deepinfer/csrc/*.cc "$DEEPINFER_REQUIREMENTS" \
        <(printf '%s' "$DEEPINFER_SHA256") | sha256sum | cut -c1-12)
    printf '%s/third_party/deepinfer-%s\n' "$CACHE" "$key"
}

build_deepinfer() {
    local out
    out=$(deepinfer_out)
    [ -f "$out/.complete" ] && return
    install_packages build
    logged "$out.log" nice "$(deepinfer_python)" tests/deepinfer/cpu/build.py "$DEEPINFER_SOURCE" "$out" || die "deepinfer._C did not build" "see above"
    touch "$out/.complete"
}

# Ends with KEY=VALUE lines on stdout.
deepinfer() {
    stage "Python 3.12 with torch" deepinfer_environment
    stage "DeepInfer $DEEPINFER_VERSION" deepinfer_source
    stage "deepinfer._C for the CPU" build_deepinfer
    cat <<TEXT
NEREID_DEEPINFER_PYTHON=$(deepinfer_python)
NEREID_DEEPINFER_PACKAGE=$DEEPINFER_SOURCE
NEREID_DEEPINFER_OUT=$(deepinfer_out)
PYTHONPYCACHEPREFIX=$CACHE/pycache
TEXT
}

# pytest_deepinfer NAME PYTHON FILE...: the log in build/debug/test/deepinfer-NAME.log, its last line on stdout.
pytest_deepinfer() {
    local name=$1 python=$2 log=build/debug/test/deepinfer-$1.log status=0
    shift 2
    NEREID_BINARY=$ROOT/build/debug/bin/nereid PYTHONPATH=$ROOT/python logged "$log" "$python" -m pytest -q --disable-warnings --durations=5 \
        -p no:cacheprovider "$@" || status=1
    tail -n 1 "$log"
    return $status
}

# The agent on the real LLMEngine: the cases of the fake, ranks as processes, KV between them, and `nereid serve` before them.
# About 6 minutes on 2 cores once all is built.
test_deepinfer() {
    local failed=() kind log=build/debug/test variables e2e
    mkdir -p "$log"
    variables=$(deepinfer)
    mapfile -t variables <<<"$variables"
    export "${variables[@]}"
    e2e=$(venv e2e "$ROOT/tests/e2e/requirements.txt")/bin/python
    for kind in NORMAL PROMPT COMPLETION; do
        stage "cases on LLMEngine, $kind" logged "$log/deepinfer-$kind.log" "$NEREID_DEEPINFER_PYTHON" tests/deepinfer/real_cases.py "$kind" || failed+=("$kind")
        grep -hE "^(FAILED|$kind: )" "$log/deepinfer-$kind.log" || true
    done
    stage "ffi/recipe" recipe
    stage "debug build (ASan, UBSan)" build debug nereid nereid_kv_client
    # The same cases on the fake, and the service before it: a case that only one of the two passes fails here.
    stage "cases on the fake, and its traces" pytest_deepinfer fake "$e2e" tests/deepinfer || failed+=(fake)
    stage "real libraries (EPLB, FLOPs, xgrammar)" pytest_deepinfer parts "$NEREID_DEEPINFER_PYTHON" tests/deepinfer/real_parts.py || failed+=(parts)
    stage "ranks as processes" pytest_deepinfer ranks "$e2e" tests/deepinfer/real_ranks.py || failed+=(ranks)
    stage "KV between engines" pytest_deepinfer kv "$e2e" tests/deepinfer/real_kv.py || failed+=(kv)
    stage "the service" pytest_deepinfer serve "$e2e" tests/deepinfer/real_serve.py || failed+=(serve)
    ((${#failed[@]} == 0)) || die "failed on the real engine: ${failed[*]}" "logs: $log/deepinfer-*.log"
    say "test --deepinfer: all well"
}
