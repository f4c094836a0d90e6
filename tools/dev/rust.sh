# The Rust libraries in ffi/: built once per machine into the cache, optimised, and linked or loaded by every preset.
#   guidance   a static library that every build links: grammars, images
#   recipe     a shared library that is loaded when a DeepSeek model is opened: `./dev test` and `./dev package` build it,
#              `./dev up` does not wait for it
# Crates come through cargo as this machine configures it, held to ffi/Cargo.lock by version and hash.
# shellcheck shell=bash

RUST_MINIMUM=1.87 # llguidance's
RUST_DIR=$CACHE/third_party/rust

# rust_client: prints the folder of a cargo and rustc that are new enough, or fails. Debian's plain cargo (1.63) is not.
rust_client() {
    local dir version
    for dir in "$(dirname "$(command -v cargo || echo /nowhere/cargo)")" "$HOME/.cargo/bin" /usr/bin; do
        [ -x "$dir/cargo" ] && [ -x "$dir/rustc" ] || continue
        version=$("$dir/rustc" --version 2>/dev/null | cut -d' ' -f2)
        [ "$(printf '%s\n' "$RUST_MINIMUM" "${version%%-*}" | sort -V | head -n 1)" = "$RUST_MINIMUM" ] || continue
        printf '%s\n' "$dir"
        return
    done
    return 1
}

require_rust() {
    rust_client >/dev/null && return
    install_packages rust
    rust_client >/dev/null || die "no Rust of version $RUST_MINIMUM or newer was found" \
        "Debian bookworm has one in its security archive: apt-get install rustc-web cargo-web (check that bookworm-security is among your sources), or install rustup's"
}

# What a finished library was made from.
rust_key() { # PART
    local dir
    dir=$(rust_client) || return
    { cat "$ROOT/ffi/Cargo.lock" "$ROOT/ffi/Cargo.toml"; find "$ROOT/ffi/$1" -type f -print0 | sort -z | xargs -0 cat; "$dir/rustc" --version; } |
        sha256sum | cut -d' ' -f1
}

rust_ready() { # PART
    [ -f "$RUST_DIR/$1.stamp" ] && [ "$(<"$RUST_DIR/$1.stamp")" = "$(rust_key "$1")" ]
}

build_rust() { # PART FILE WHAT
    local part=$1 file=$2 what=$3 dir log=$CACHE/third_party/rust-$1.log
    require_rust
    need_space "$CACHE" 2
    dir=$(rust_client)
    say "   building ffi/$part: $what; log: $log"
    mkdir -p "$RUST_DIR"
    rm -f "$RUST_DIR/$part.stamp"
    logged "$log" env PATH="$dir:$PATH" CC=clang-19 CXX=clang++-19 CARGO_INCREMENTAL=0 cargo build --release --locked -j "$JOBS" --manifest-path "$ROOT/ffi/Cargo.toml" \
        -p "nereid-$part" --target-dir "$CACHE/third_party/rust-target" ||
        die "ffi/$part did not build" "see above; a download that fails: check the network and cargo's configuration, then run this again"
    cp "$CACHE/third_party/rust-target/release/$file" "$RUST_DIR/$file.part"
    mv "$RUST_DIR/$file.part" "$RUST_DIR/$file" # a build that links it meanwhile keeps the old one
    rust_key "$part" >"$RUST_DIR/$part.stamp"
}

guidance() { rust_ready guidance || build_rust guidance libnereid_guidance.a "grammars and images (once; about 2 minutes on 2 cores)"; }
recipe() { rust_ready recipe || build_rust recipe libnereid_recipe.so "DeepSeek prompts (once; about 5 minutes on 2 cores)"; }
