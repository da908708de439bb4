#!/usr/bin/env bash
# The Debian source package of the committed sources, with the crates that it needs inside; with --binary the packages for users, too.
#
#   packaging/debian.sh TO [--binary]
#
# Writes the .dsc, its archives and the .changes to the folder TO, with --binary the .deb files as well. Prints the paths. Building the binary
# packages needs debhelper as well, and no network.
# DEBFULLNAME and DEBEMAIL name the maintainer, as for Debian's own tools.
set -euo pipefail

note() { printf 'debian.sh: %s\n' "$*" >&2; }
die() { note "$*"; exit 1; }
wrong_usage() { echo "usage: packaging/debian.sh TO [--binary]" >&2; exit 2; }

[[ ${1:-} && $1 != -* && $# -le 2 && (-z ${2:-} || $2 == --binary) ]] || wrong_usage
binary=${2:-}
mkdir -p -- "$1"
to=$(cd -- "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# need PACKAGE PROGRAM…: Debian's package has the programs.
need() {
    local program
    for program in "${@:2}"; do command -v "$program" >/dev/null || die "$program is not installed: apt-get install $1"; done
}

need dpkg-dev dpkg-buildpackage dpkg-source
need xz-utils xz
need python3 python3
[[ -z $binary ]] || need debhelper dh
[[ -z $(git status --porcelain) ]] || note "the package has what is committed; there are changes that are not"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
# A development version is older than the release for Debian, too. The soname's version follows the rule of `soversion` in ./dev.
upstream=${version/-/'~'}
if [[ $version == 0.* ]]; then so=$(cut -d. -f1,2 <<<"$version"); else so=${version%%.*}; fi
maintainer="${DEBFULLNAME:-The onebuf authors} <${DEBEMAIL:-onebuf@packages.invalid}>"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
tree=$scratch/onebuf-$upstream

# The committed files, the vendored crates, and a configuration in which cargo uses those and nothing else.
make_tree() {
    mkdir "$tree"
    git archive HEAD | tar -x -C "$tree"
    note "vendoring crates"
    cargo vendor --locked --versioned-dirs "$tree/vendor" >/dev/null 2>"$scratch/vendor" || { cat "$scratch/vendor" >&2; die "cargo vendor failed"; }
    # Of the crates that only tests, benchmarks or other systems need, cargo reads the manifests and no more.
    cargo tree --locked -e normal,build -p onebuf-cli -p onebuf-capi --prefix none --format '{p}' \
        --target x86_64-unknown-linux-gnu --target aarch64-unknown-linux-gnu >"$scratch/needed"
    python3 packaging/vendored.py "$tree/vendor" "$scratch/needed" >"$scratch/copyright"
    cat >>"$tree/.cargo/config.toml" <<'TOML'

# Added to the source package: crates come from its own folder, never from the network.
[source.crates-io]
replace-with = "vendored-sources"

[source.vendored-sources]
directory = "vendor"
TOML
}

# pack_upstream: the archive of everything but the folder `debian`, the same for the same commit and the same crates.
pack_upstream() {
    tar -C "$scratch" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r-w,a+X \
        -cf - "${tree##*/}" | xz -6 -T2 >"$scratch/onebuf_$upstream.orig.tar.xz"
}

# filled FILE: with the words in it replaced.
filled() { sed -e "s/@SOVERSION@/$so/g; s/@RUST@/$rust/g; s|@MAINTAINER@|$maintainer|g" "$1"; }

# The folder `debian`: the names of some files contain the soname's version.
make_debian() {
    local from=$tree/packaging/debian debian=$tree/debian file
    cp -r "$from" "$debian"
    filled "$from/control.in" >"$debian/control"
    rm "$debian/control.in"
    for file in "$debian"/libonebuf.*; do
        filled "$file" >"${file/libonebuf./libonebuf$so.}"
        rm "$file"
    done
    cat "$scratch/copyright" >>"$debian/copyright"
    cat >"$debian/changelog" <<TEXT
onebuf ($upstream-1) unstable; urgency=medium

  * Version $version. CHANGELOG.md has its changes.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
TEXT
}

# build_binary: from the unpacked source package, as anyone who has only that would.
build_binary() {
    local unpacked=$scratch/unpacked
    # debhelper gives the build a home of its own: rustup's toolchain is found by its path.
    export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} CARGO_NET_OFFLINE=true
    mkdir "$unpacked"
    dpkg-source -x "$to/onebuf_$upstream-1.dsc" "$unpacked/onebuf" >&2
    (cd "$unpacked/onebuf" && CARGO_HOME=$scratch/cargo-home dpkg-buildpackage -d -us -uc -b >&2) || die "dpkg-buildpackage failed"
    find "$unpacked" -maxdepth 1 -type f -exec cp -t "$to" {} +
}

rm -f "$to"/onebuf_* "$to"/libonebuf*.deb
make_tree
pack_upstream
make_debian
(cd "$tree" && dpkg-buildpackage -d -us -uc -S -nc >&2) || die "dpkg-buildpackage failed"
find "$scratch" -maxdepth 1 -type f -name 'onebuf_*' -exec cp -t "$to" {} +
[[ -z $binary ]] || build_binary
find "$to" -maxdepth 1 -type f \( -name 'onebuf_*' -o -name 'libonebuf*.deb' \) | sort
