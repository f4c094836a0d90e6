# `./dev peers eplb`: the expert placement policies that bench/eplb.py compares with, taken out of their wheels into the cache
# (two wheels, 172 MB, once), and Debian's torch and numpy, which they import. Nothing of them enters the tree.
# shellcheck shell=bash

eplb_peers() {
    local dir=$CACHE/peers/eplb-$EPLB_VLLM_SHA256 pip=(/usr/bin/python3 -m pip)
    install_packages eplb_peers
    if [ ! -f "$dir/.complete" ]; then
        "${pip[@]}" --version >/dev/null 2>&1 || pip=("$(pip_of_our_own)")
        fetch "$EPLB_SGLANG_WHEEL" "$EPLB_SGLANG_SHA256" "${pip[@]}" download --no-deps --disable-pip-version-check "$EPLB_SGLANG_PIP"
        fetch "$EPLB_VLLM_WHEEL" "$EPLB_VLLM_SHA256" "${pip[@]}" download --no-deps --disable-pip-version-check "$EPLB_VLLM_PIP"
        mkdir -p "$dir"
        /usr/bin/python3 - "$dir" "$CACHE/downloads/$EPLB_SGLANG_WHEEL" sglang/srt/eplb/eplb_algorithms/deepseek.py \
            "$CACHE/downloads/$EPLB_VLLM_WHEEL" vllm/distributed/eplb/policy/abstract.py vllm/distributed/eplb/policy/default.py <<'PY'
import pathlib, sys, zipfile
folder, wheel = pathlib.Path(sys.argv[1]), None
for name in sys.argv[2:]:
    if name.endswith(".whl"):
        wheel = zipfile.ZipFile(name)
    else:
        (folder / pathlib.Path(name).name).write_bytes(wheel.read(name))
PY
        touch "$dir/.complete"
    fi
    echo "EPLB_POLICIES=$dir"
}
