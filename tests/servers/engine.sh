#!/usr/bin/env bash
# The container engine: `engine.sh start` starts one if none answers, `engine.sh stop` stops one that was started here.
set -euo pipefail
source "$(dirname "$0")/env.sh"
engine=$OUTBOXD_TEST_HOME/engine

# A socket file proves nothing: it outlives a killed engine.
answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

start() {
    answers && return
    if [ -S /var/run/docker.sock ] && [ ! -w /var/run/docker.sock ]; then
        echo "There is a container engine, but not for $(id -un): see the group of /var/run/docker.sock." >&2
        return 1
    fi
    # Asked here, where sudo may still ask for a password, and not in the background.
    if ! as_root true; then
        echo "No container engine runs, and to start one takes root or sudo." >&2
        return 1
    fi
    mkdir -p "$engine"
    if [ -f "$engine/pid" ] && ! running; then as_root rm -f "$engine/pid"; fi
    as_root setsid dockerd --data-root "$engine/data" --exec-root /run/outboxd-tests-engine --pidfile "$engine/pid" \
        --group "$(id -g)" >"$engine/log" 2>&1 </dev/null &
    for _ in $(seq 100); do
        if answers; then return; fi
        sleep 0.1
    done
    echo "The container engine did not come up within 10 s. Its last words ($engine/log):" >&2
    tail -n 5 "$engine/log" >&2
    return 1
}

# The recorded process may be a zombie or, after a reboot, somebody else.
running() { [ "$(cat "/proc/$(cat "$engine/pid")/comm" 2>/dev/null)" = dockerd ]; }

stop() {
    [ -f "$engine/pid" ] || return 0
    running && as_root kill "$(cat "$engine/pid")"
    # The engine removes the file at its end; a process that was killed can linger as a zombie.
    for _ in $(seq 300); do
        if [ ! -f "$engine/pid" ] || ! running; then return 0; fi
        sleep 0.1
    done
    echo "The container engine did not stop within 30 s; its pid is in $engine/pid" >&2
    return 1
}

case "${1:-}" in
    start | stop | answers) "$1" ;;
    *) echo "usage: $0 start|stop|answers" >&2 && exit 64 ;;
esac
