#!/usr/bin/env bash
# All tests of outboxd on real servers, on a Debian or Ubuntu machine that need have nothing but Rust:
#
#     tests/run.sh [--all] [FILTER] [-- ARGUMENTS OF THE TEST BINARY]
#
# --all uses PostgreSQL 14 to 18 instead of 14 and 18. OUTBOXD_TEST_SERVERS=containers|processes decides how servers run; by default in
# containers where a container engine runs or can be started. What is downloaded and built lies under OUTBOXD_TEST_HOME (as root
# /var/cache/outboxd-tests, else ~/.cache/outboxd-tests) and is used again by the next run. The exit code is that of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/servers/env.sh

main() {
    options "$@"
    mkdir -p "$OUTBOXD_TEST_HOME"
    exec 9>"$OUTBOXD_TEST_HOME/lock"
    flock --nonblock 9 || { echo "Another tests/run.sh uses $OUTBOXD_TEST_HOME; waiting for its end." && flock 9; }

    engine_is_ours=false
    trap 'leave $?' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    stage "tools" tests/servers/tools.sh
    choose_servers
    tests/servers/clean.sh
    stage "binaries of PostgreSQL ${versions[*]}, Kafka and moto" binaries
    if [ "$OUTBOXD_TEST_SERVERS" = containers ]; then
        stage "images of PostgreSQL ${versions[*]} and Kafka" tests/servers/images.sh "${versions[@]}"
    fi
    stage "build" cargo test --locked --features failpoints --no-run
    stage "tests" cargo test --locked --features failpoints --no-fail-fast "${filter[@]}" -- --show-output "${arguments[@]}"
}

options() {
    filter=() arguments=()
    local versions_wanted=${OUTBOXD_TEST_PG_VERSIONS:-14,18}
    while [ $# -gt 0 ]; do
        case "$1" in
            --all) versions_wanted=14,15,16,17,18 ;;
            --) shift && arguments=("$@") && break ;;
            -*) echo "unknown option $1; see the head of $0" >&2 && exit 64 ;;
            *) filter+=("$1") ;;
        esac
        shift
    done
    export OUTBOXD_TEST_PG_VERSIONS=$versions_wanted
    IFS=', ' read -r -a versions <<<"$versions_wanted"
}

# Says what happens, and how long it took.
stage() {
    local begin=$EPOCHREALTIME code=0
    echo "== $1"
    "${@:2}" 9>&- || code=$?
    echo "== $1: $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begin }") s"
    return $code
}

choose_servers() {
    case "${OUTBOXD_TEST_SERVERS:-}" in
        processes) ;;
        containers) stage "container engine" start_engine ;;
        "") if stage "container engine" start_engine; then OUTBOXD_TEST_SERVERS=containers; else OUTBOXD_TEST_SERVERS=processes; fi ;;
        *) echo "OUTBOXD_TEST_SERVERS is $OUTBOXD_TEST_SERVERS; it can be containers or processes" >&2 && exit 64 ;;
    esac
    export OUTBOXD_TEST_SERVERS
    echo "== servers run as $OUTBOXD_TEST_SERVERS"
}

start_engine() {
    if tests/servers/engine.sh answers; then return; fi
    tests/servers/tools.sh engine && tests/servers/engine.sh start && engine_is_ours=true
}

binaries() {
    tests/servers/binaries.sh postgres "${versions[@]}" &&
        tests/servers/binaries.sh kafka &&
        tests/servers/binaries.sh moto
}

leave() {
    trap '' INT TERM
    tests/servers/clean.sh
    if $engine_is_ours; then tests/servers/engine.sh stop || true; fi
    echo "== tests/run.sh: $SECONDS s, exit code $1"
}

main "$@"
