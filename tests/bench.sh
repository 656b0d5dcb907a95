#!/usr/bin/env bash
# How fast outboxd is on this machine, a Debian or Ubuntu that need have nothing but Rust:
#
#     tests/bench.sh [--quick] [--json] [--rows N] [--runs N] [--only drain|latency|start|idle] [--synchronous-commit on|off]
#
# It installs what is missing, builds the release binary, starts a PostgreSQL and a Kafka of its own as processes, measures outboxd
# beside PostgreSQL's pg_recvlogical, which reads the same log and publishes nothing, and removes all of it, also after Ctrl-C. A table
# goes to standard output, and with --json one JSON object as its last line; what happens meanwhile goes to standard error.
# tests/bench/drain/main.rs says how each figure comes about. Exit code 1: an event was lost or repeated, or a program failed.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/servers/env.sh

main() {
    case " $* " in *" --help "* | *" -h "*) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit ;; esac
    mkdir -p "$OUTBOXD_TEST_HOME"
    # Tests that run meanwhile would spoil the figures.
    exec 9>"$OUTBOXD_TEST_HOME/lock"
    flock --nonblock 9 || { echo "Tests use $OUTBOXD_TEST_HOME; waiting for their end." >&2 && flock 9; }
    trap leave EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    prepare >&2 9>&-
    local benchmark
    benchmark=$(build_benchmark 9>&-)
    # Not through Cargo: after Ctrl-C this script goes on when its child has ended, and that shall be the one that has servers.
    OUTBOXD_BENCH_KAFKA_VERSION=$kafka_version "$benchmark" --outboxd "${CARGO_TARGET_DIR:-target}/release/outboxd" "$@" 9>&-
}

prepare() {
    tests/servers/tools.sh
    tests/servers/tools.sh reader
    tests/servers/clean.sh
    tests/servers/binaries.sh postgres 18
    tests/servers/binaries.sh kafka
    echo "Building outboxd and its benchmark (the first time takes some minutes)"
    cargo build --release --locked --quiet
}

# Only what is measured is a release build: this program waits for it, and most of it is there already where tests have been run.
build_benchmark() {
    cargo bench --locked --quiet --profile dev --bench drain --no-run --message-format json |
        sed -n 's/.*"executable":"\([^"]*\/drain-[^"]*\)".*/\1/p'
}

leave() {
    trap '' INT TERM
    tests/servers/clean.sh
}

main "$@"
