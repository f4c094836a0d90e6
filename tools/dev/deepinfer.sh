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
TEXT
}

# The agent on the real LLMEngine: the cases of the fake, ranks as processes, and `nereid serve` before them.
test_deepinfer() {
    local failed=() kind log=build/debug/test variables e2e
    mkdir -p "$log"
    variables=$(deepinfer)
    mapfile -t variables <<<"$variables"
    export "${variables[@]}"
    for kind in NORMAL PROMPT COMPLETION; do
        stage "cases on LLMEngine, $kind" logged "$log/deepinfer-$kind.log" "$NEREID_DEEPINFER_PYTHON" tests/deepinfer/real_cases.py "$kind" || failed+=("$kind")
        grep -hE "^(FAILED|$kind: )" "$log/deepinfer-$kind.log" || true
    done
    stage "real libraries (EPLB, xgrammar)" logged "$log/deepinfer-parts.log" "$NEREID_DEEPINFER_PYTHON" -m pytest -q --disable-warnings -p no:cacheprovider \
        tests/deepinfer/real_parts.py || failed+=(parts)
    stage "debug build (ASan, UBSan)" build debug nereid
    e2e=$(venv e2e "$ROOT/tests/e2e/requirements.txt")
    stage "ranks and the service" logged "$log/deepinfer-ranks.log" env NEREID_BINARY="$ROOT/build/debug/bin/nereid" \
        "$e2e/bin/python" -m pytest -q -p no:cacheprovider tests/deepinfer/real_ranks.py tests/deepinfer/real_serve.py || failed+=(ranks)
    tail -n 1 "$log/deepinfer-parts.log" "$log/deepinfer-ranks.log"
    ((${#failed[@]} == 0)) || die "failed on the real engine: ${failed[*]}" "logs: $log/deepinfer-*.log"
}
