#!/usr/bin/env bash
# See outboxd work, on a Debian or Ubuntu machine that need have nothing but Rust:
#
#     deploy/demo.sh [ARGUMENTS OF outboxd demo]
#
# It installs what is missing (compiler, libraries, PostgreSQL's server programs; no server is started), builds outboxd and runs
# `outboxd demo`. As root or as a user with sudo. The exit code is that of the demo.
set -euo pipefail
cd "$(dirname "$0")/.."

main() {
    check_rust
    local wants=(
        "g++:command -v c++" "make:command -v make" "pkg-config:command -v pkg-config"
        "libssl-dev:pkg-config --exists openssl" "zlib1g-dev:pkg-config --exists zlib" "util-linux:command -v setpriv"
    )
    if ! brings_postgres "$@"; then wants+=("postgresql:has_postgres"); fi
    install_missing "${wants[@]}"
    echo "Building outboxd (the first time takes some minutes)" >&2
    cargo build --release --locked --quiet
    exec "${CARGO_TARGET_DIR:-target}/release/outboxd" demo "$@"
}

check_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    # rustup puts it there and into the profile, which a shell that is open does not read again.
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then PATH=$HOME/.cargo/bin:$PATH; fi
    found=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
    [ "$(printf '%s\n' "$wanted" "${found:-0}" | sort -V | head -n 1)" != "$wanted" ] || return 0
    cat >&2 <<MESSAGE
outboxd needs Rust $wanted or newer; found: ${found:-none}. The packages of a distribution are often older. Install rustup as
https://www.rust-lang.org/tools/install says (or run 'rustup update stable' if it is there), open a new shell and try again.
MESSAGE
    exit 1
}

# Whether the arguments name a server or the programs of one.
brings_postgres() {
    local argument
    for argument; do case "$argument" in --database-url* | --postgres-bin*) return 0 ;; esac; done
    return 1
}

# Whether `outboxd demo` will find both programs.
has_postgres() {
    local bin bins
    IFS=: read -r -a bins <<<"$PATH"
    for bin in "${bins[@]}" /usr/lib/postgresql/*/bin; do
        if [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ]; then return 0; fi
    done
    return 1
}

# install_missing PACKAGE:COMMAND...: installs the packages whose command fails.
install_missing() {
    local missing=() want
    for want in "$@"; do eval "${want#*:}" >/dev/null 2>&1 || missing+=("${want%%:*}"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "Missing: ${missing[*]} (Debian's names). This is no Debian or Ubuntu; please install them by hand." >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        echo "Missing, and there is no sudo. As root: apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    echo "Installing ${missing[*]}" >&2
    log=$(mktemp)
    trap 'allow_clusters; rm -f "$log"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    apt update && forbid_clusters && apt install --yes --no-install-recommends "${missing[@]}"
    allow_clusters
    rm -f "$log"
    trap - EXIT INT TERM
}

# While it is there, the distribution's package makes and starts no server.
clusters=/etc/postgresql-common/createcluster.d/outboxd-demo.conf
forbid_clusters() {
    as_root mkdir -p "${clusters%/*}" && echo "create_main_cluster = false" | as_root tee "$clusters" >/dev/null
}
allow_clusters() { if [ -e "$clusters" ]; then as_root rm -f "$clusters"; fi; }

# Quiet unless it fails.
apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2 && exit 1; }
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

main "$@"
