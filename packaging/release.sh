# `./dev release --dry-run`: builds and checks everything that a release consists of. Nothing leaves this machine. ./dev reads this file.
# shellcheck shell=bash

# Installed with cargo below the target folder, where they are missing.
DENY=cargo-deny==0.20.2
SEMVER=cargo-semver-checks==0.51.0
RELEASE=("${BUNDLE[@]}" python3-numpy debhelper fakeroot)

release() {
    if (($# != 1)) || [[ $1 != --dry-run ]]; then
        note "publishing is done by hand: \`./dev release --dry-run\` builds and checks everything, and says what is missing"
        wrong_usage
    fi
    : >"$scratch/artefacts"
    step ready ready
    step crates crates
    step licences licences
    step semver semver
    step msrv msrv
    step minimal minimal_versions
    step wheel release_wheel
    step debian release_debian
    step conda release_conda
    step bundle release_bundle
    printf '%sartefacts%s\n' "$bold" "$plain"
    sort "$scratch/artefacts"
    echo
    finish
}

# Notes a file for the list at the end.
artefact() { printf '%9d KiB  %s\n' $((($(stat -c %s "$1") + 1023) >> 10)) "${1#"$root"/}" >>"$scratch/artefacts"; }

# need_tool NAME==VERSION: sets `tool` to the program.
need_tool() {
    local name=${1%%==*} version=${1##*==}
    tool=$root/target/tools/bin/$name
    [[ $("$tool" --version 2>/dev/null) != *" $version" ]] || return 0
    note "installing $name $version with cargo"
    cargo install -q "$name" --version "$version" --locked --root "$root/target/tools"
}

workspace_version() { sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml; }

# What a maintainer has to do before publishing. A dry run goes on without it.
ready() {
    local version cited
    version=$(workspace_version)
    cited=$(sed -n 's/^version: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' CITATION.cff)
    [[ $version == "$cited" ]] || { echo "fail: CITATION.cff cites version $cited of $version"; return 1; }
    [[ $version != *-* ]] || echo "skip: publishing: the version is $version, and a release has no suffix"
    ! grep -q '^repository = ""' Cargo.toml || echo "skip: publishing: Cargo.toml names no repository"
    grep -q "^## ${version//./\\.} - 20" CHANGELOG.md || echo "skip: publishing: CHANGELOG.md has no dated section for $version"
    [[ -z $(git status --porcelain 2>/dev/null) ]] || echo "skip: publishing: there are changes that are not committed"
}

# Each crate is packed, and built from what was packed.
crates() {
    local dirty=() file
    [[ -z $(git status --porcelain 2>/dev/null) ]] || dirty=(--allow-dirty)
    rm -rf "${CARGO_TARGET_DIR:-target}/package"
    cargo publish --workspace --dry-run --locked "${dirty[@]}" || return
    # A dry run leaves them in the registry that it pretends to publish to.
    for file in "${CARGO_TARGET_DIR:-target}"/package/tmp-registry/*.crate; do
        [[ -e $file ]] || { echo "fail: no packed crate in ${file%/*}"; return 1; }
        artefact "$file"
    done
}

# Licences, bans and sources of all dependencies: see deny.toml.
licences() {
    local tool
    need_tool "$DENY" || { skip 1 "cargo-deny: cargo cannot install it"; return; }
    "$tool" --locked check licenses bans sources || return
    if "$tool" --locked fetch db >"$scratch/advisories" 2>&1; then "$tool" --locked check advisories; return; fi
    tail -n 3 "$scratch/advisories"
    echo "skip: advisories: the database of RustSec cannot be fetched here"
}

# Public names of the crate that users depend on, compared with the newest tagged version.
semver() {
    local tool tag
    need_tool "$SEMVER" || { skip 1 "cargo-semver-checks: cargo cannot install it"; return; }
    tag=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null) || tag=''
    if [[ -n $tag ]]; then
        "$tool" semver-checks -p onebuf --all-features --baseline-rev "$tag"
        return
    fi
    # As for a patch: for a major version nothing would be checked.
    "$tool" semver-checks -p onebuf --all-features --baseline-root "$root" --release-type patch || return
    echo "skip: semver: no version is tagged, so 0.2.0 will be the first baseline; the sources were compared with themselves"
}

# The oldest compiler that Cargo.toml promises builds what users build.
msrv() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    [[ $version == *.*.* ]] || version=$version.0
    if ! rustc "+$version" --version >/dev/null 2>&1 && ! rustup toolchain install "$version" --profile minimal; then
        skip 2 "msrv: rustup cannot install Rust $version"
        return
    fi
    cargo "+$version" build --workspace --locked --target-dir target/msrv
}

# The oldest versions of the direct dependencies that Cargo.toml allows are enough. Cargo chooses them only in its nightly mode.
minimal_versions() {
    local copy=$scratch/minimal
    mkdir -p "$copy" && git ls-files -z | xargs -0 cp --parents -t "$copy" || return
    (cd "$copy" && RUSTC_BOOTSTRAP=1 cargo update -q -Z direct-minimal-versions) || return
    (cd "$copy" && cargo build --workspace --locked --target-dir "$root/target/minimal")
}

# The Python package: installed into a new environment, where it finds the host and runs its program.
release_wheel() {
    local file at=$scratch/wheel
    file=$("$root/dev" wheel) && artefact "$file" || return
    python3 -m zipfile -l "$file" | grep -q 'sboms/.*json' || { echo "fail: the wheel has no list of what it is made of"; return 1; }
    /usr/bin/python3 -m venv --system-site-packages "$at" && "$at/bin/pip" install -q --no-index --no-deps "$file" || return
    (cd "$scratch" && "$at/bin/python" -c 'import onebuf; print(onebuf.discover()["host"])' && "$at/bin/python" -m onebuf --version)
}

# The Debian source package, and the packages built from it without a network.
release_debian() {
    local file to
    to=$(realpath -m -- "${CARGO_TARGET_DIR:-target}/debian")
    command -v dpkg-buildpackage >/dev/null || { skip 1 "debian: dpkg-buildpackage is not installed"; return; }
    rm -rf "$to" && packaging/debian.sh "$to" --binary || return
    for file in "$to"/*.{dsc,tar.*,deb}; do [[ ! -e $file ]] || artefact "$file"; done
}

release_conda() {
    local file to
    to=$(realpath -m -- "${CARGO_TARGET_DIR:-target}/conda")
    packaging/conda.sh "$to" || return
    artefact packaging/conda/recipe.yaml
    for file in "$to"/*.conda; do [[ ! -e $file ]] || artefact "$file"; done
}

release_bundle() {
    "$root/dev" bundle | tee "$scratch/bundle.said" || return
    artefact "$(realpath -- "$(tail -n 1 "$scratch/bundle.said")")"
}
