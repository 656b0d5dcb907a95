#!/usr/bin/env bash
# Removes what test processes left behind: containers (by label), server processes (by working folder) and folders.
# `clean.sh` removes all whose test process is gone; `clean.sh --after-input SESSION` waits for the end of its input, then
# removes that session's. Each test process keeps one of the latter, which outlives it, whatever it dies of.
set -uo pipefail
source "$(dirname "$0")/env.sh"
run=$OUTBOXD_TEST_HOME/run
label=outboxd.test.session

containers() { docker ps --all --quiet --filter label=org.testcontainers.managed-by --filter "label=$label=$1" 2>/dev/null; }

clean() {
    local folder=$run/$1 process
    for _ in $(seq 50); do
        # Another process may be about to remove the same; only the outcome counts.
        containers "$1" | xargs --no-run-if-empty docker rm --force --volumes >/dev/null 2>&1
        for process in /proc/[0-9]*; do
            case "$(readlink "$process/cwd" 2>/dev/null)" in "$folder"/*) kill -KILL "${process#/proc/}" 2>/dev/null ;; esac
        done
        # Fails while a dying server still writes.
        if rm -rf "$folder" 2>/dev/null && [ -z "$(containers "$1")" ]; then return; fi
        sleep 0.1
    done
    echo "Could not remove all that test session $1 left: see $folder and docker ps" >&2
}

if [ "${1:-}" = --after-input ]; then
    cat >/dev/null
    clean "$2"
    exit
fi

# A session's name begins with the id of its test process.
{
    ls "$run" 2>/dev/null
    # No engine, no containers.
    docker ps --all --format "{{.Label \"$label\"}}" --filter "label=$label" 2>/dev/null || true
} | sort -u | while read -r session; do
    if [ ! -d "/proc/${session%%-*}" ]; then clean "$session"; fi
done
