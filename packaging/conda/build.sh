#!/usr/bin/env bash
# What rattler-build runs in a copy of the sources: installs into $PREFIX with the tools of the build's environment.
set -euo pipefail

# The environment's compilers have long names. And ./dev must not look at the system's packages: what it needs is in the environment.
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
for pair in "gfortran=${FC:-}" "ar=${AR:-}" "strip=${STRIP:-}" "cc=${CC:-}"; do
    path=$(command -v "${pair#*=}" || true)
    [[ -z $path ]] || ln -s "$path" "$tools/${pair%%=*}"
done
printf '#!/bin/sh\necho installed\n' >"$tools/dpkg-query"
chmod +x "$tools/dpkg-query"

PATH=$tools:$PATH ./dev install "$PREFIX"
