#!/usr/bin/env bash
# Puts axe-core, which finds what keeps people from using a page, into build/axe-core/axe.min.js, for the tests. Pinned
# by the package's hash.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=4.14.1
HASH=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
FOLDER=build/axe-core

if [ "$(cat $FOLDER/version 2>/dev/null)" = $VERSION ]; then exit; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
curl -fsS "https://registry.npmjs.org/axe-core/-/axe-core-$VERSION.tgz" -o "$work/axe.tgz"
echo "$HASH  $work/axe.tgz" | sha256sum --check --quiet
tar -xzf "$work/axe.tgz" -C "$work" package/axe.min.js
mkdir -p $FOLDER
cp "$work/package/axe.min.js" $FOLDER/
printf '%s' $VERSION >$FOLDER/version
