#!/usr/bin/env bash
# Installs what the machine lacks: `tools.sh` what a build of outboxd and its test servers need, `tools.sh engine` a container engine,
# `tools.sh reader` PostgreSQL's own reader of a replication slot.
set -euo pipefail
source "$(dirname "$0")/env.sh"
mkdir -p "$OUTBOXD_TEST_HOME"

main() {
    if [ "${1:-}" = engine ]; then
        install_missing "docker.io:command -v dockerd"
        # Newer distributions have the client in a package of its own.
        install_missing "docker-cli:command -v docker"
        return
    fi
    if [ "${1:-}" = reader ]; then
        install_missing "postgresql-client:command -v pg_recvlogical"
        return
    fi
    check_rust
    install_missing \
        "g++:command -v c++" "make:command -v make" "pkg-config:command -v pkg-config" \
        "libssl-dev:pkg-config --exists openssl" "zlib1g-dev:pkg-config --exists zlib" \
        "default-jdk-headless:command -v jlink" "maven:command -v mvn" "npm:command -v npm" \
        "python3-pip:/usr/bin/python3 -m pip --version"
}

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$servers/../../Cargo.toml")
    found=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
    [ "$(printf '%s\n' "$wanted" "${found:-0}" | sort -V | head -n 1)" != "$wanted" ] || return 0
    cat >&2 <<MESSAGE
outboxd needs Rust $wanted or newer; found: ${found:-none}. The packages of a distribution are often older. Install rustup as
https://www.rust-lang.org/tools/install says (or run 'rustup update stable' if it is there), open a new shell and try again.
MESSAGE
    exit 1
}

# install_missing PACKAGE:COMMAND...: installs the packages whose command fails.
install_missing() {
    local missing=() want
    for want in "$@"; do bash -c "${want#*:}" >/dev/null 2>&1 || missing+=("${want%%:*}"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "Missing: ${missing[*]} (Debian's names). This is no Debian or Ubuntu; please install them by hand." >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        echo "Missing, and there is no sudo. As root: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    echo "Installing ${missing[*]}"
    apt -qq update && apt -qq install --yes --no-install-recommends "${missing[@]}"
}

# Quiet unless it fails.
apt() {
    local log=$OUTBOXD_TEST_HOME/apt.log
    as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@" >"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2 && exit 1; }
}

main "$@"
