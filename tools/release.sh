#!/usr/bin/env bash
# Makes a release in dist/ and publishes nothing, as root:
#
#     tools/release.sh [--rehearse] [PYTHON ...]
#
# The tree must be clean, and CHANGELOG.md begin with the version that pyproject.toml has, with its date; --rehearse says
# what of this is not so and goes on. Then the sdist and a wheel for each Python (default: each of 3.10 to 3.14 that is found
# with its C headers), each tried in a bare root on Mesa's driver for the CPU and on SwiftShader. Prints sizes and hashes.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'release: %s\n' "$*"; }

rehearse=
if [ "${1:-}" = --rehearse ]; then
    rehearse=1
    shift
fi

# wanted WHAT: something a release must have and this tree has not.
wanted() {
    say "wanted: $*" >&2
    if [ -z "$rehearse" ]; then exit 1; fi
}

has_headers() {
    [ -e "$("$1" -c 'import os, sysconfig; print(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null)" ]
}

find_pythons() {
    local minor candidate
    for minor in 10 11 12 13 14; do
        for candidate in "$(command -v "python3.$minor" || true)" ~/.pyenv/versions/3."$minor".*/bin/python; do
            if [ -x "$candidate" ] && has_headers "$candidate"; then
                PYTHONS+=("$candidate")
                continue 2
            fi
        done
        say "no Python 3.$minor with C headers here: no wheel for it"
    done
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
heading=$(grep -m 1 '^## ' CHANGELOG.md)
say "version $version"
if [ -n "$(git status --porcelain)" ]; then wanted "a clean tree; git status shows changes"; fi
if [[ ! $heading =~ ^"## $version - "[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]]; then
    wanted "CHANGELOG.md to begin with \"## $version - DATE\", not \"$heading\""
fi
PYTHONS=("$@")
if [ $# -eq 0 ]; then find_pythons; fi
if [ ${#PYTHONS[@]} -eq 0 ]; then
    say "wanted: a Python" >&2
    exit 1
fi
rm -rf dist
tools/build_wheel.sh "${PYTHONS[@]}"
for wheel in dist/*.whl; do
    for driver in lavapipe swiftshader; do tools/try_wheel.sh "$wheel" $driver; done
done
cd dist
say "done; in dist/:"
ls -l
sha256sum ./* | tee SHA256SUMS
