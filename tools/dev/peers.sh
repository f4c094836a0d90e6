# `./dev peers`: what benchmarks compare with, installed into the cache. It ends with the paths, as KEY=VALUE lines on stdout.
# shellcheck shell=bash

# shellcheck source=tools/dev/peers_eplb.sh
source "$ROOT/tools/dev/peers_eplb.sh"

# What the KV cache is compared with (`./dev peers kv`): fio for the disk, Redis 7 and Mooncake Store for the node.
kv_peers() {
    local env_dir
    install_packages kv_peers
    env_dir=$(venv kv_peers "$ROOT/third_party/python/kv_peers.txt")
    cat <<TEXT
FIO=$(command -v fio)
REDIS_SERVER=$(command -v redis-server)
KV_PYTHON=$env_dir/bin/python
MOONCAKE_MASTER=$env_dir/bin/mooncake_master
TEXT
}

peers() {
    [ "${1:-}" != eplb ] || { eplb_peers; return; }
    [ "${1:-}" != kv ] || { kv_peers; return; }
    stage "packages, llama.cpp, model" setup
    install_packages peers
    # llama-server from the very tree and folder that our engine links.
    stage "llama-server" logged "$(llama_dir native).server.log" ninja -C "$(llama_dir native)" -j "$JOBS" llama-server ||
        die "llama-server did not build" "see above"
    mkdir -p "$CACHE/bin"
    local source=tools/peers/mock_engine.cc mock=$CACHE/bin/mock-engine env_dir
    [ "$mock" -nt "$source" ] || stage "mock engine" clang++-19 -std=c++23 -O2 -Wall -Wextra -fuse-ld=mold "$source" -o "$mock" ||
        die "the mock engine did not compile" "see above"
    env_dir=$(venv peers "$ROOT/third_party/python/peers.txt")
    cat <<TEXT
LLAMA_SERVER=$(llama_dir native)/bin/llama-server
MOCK_ENGINE=$mock
SGLANG_ROUTER=$env_dir/bin/python -m sglang_router.launch_router
VLLM_ROUTER=$env_dir/bin/vllm-router
HAPROXY=$(command -v haproxy)
WRK=$(command -v wrk)
TEXT
}
