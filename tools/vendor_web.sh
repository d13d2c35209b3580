#!/usr/bin/env bash
# Fetches the libraries of the chat page again: marked (Markdown) and DOMPurify (what may become a node), as they are
# published, pinned by version and by the hash of the package. Without their source map lines, since those files are not
# served. `--check`: compare only.
set -euo pipefail
cd "$(dirname "$0")/.."

VENDOR=vkprefill/web/vendor
PACKAGES=(  # name, version, SHA-256 of the package; file in it and its name here, licence and its name here
    "marked 18.2.1 d66c5213fc203466186060105b01f51896764ba64b3797d2620d02e28e34b8ca lib/marked.esm.js marked.js LICENSE LICENSE-marked.txt"
    "dompurify 3.5.0 faa5f2bfe2814384b83d6edb4ed66812fbfdb2a654b4d59edd4b12304058ec20 dist/purify.es.mjs purify.js LICENSE LICENSE-dompurify.txt"
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/new"
for package in "${PACKAGES[@]}"; do
    read -r name version hash script as licence licence_as <<<"$package"
    curl -fsS "https://registry.npmjs.org/$name/-/$name-$version.tgz" -o "$work/$name.tgz"
    echo "$hash  $work/$name.tgz" | sha256sum --check --quiet
    mkdir "$work/$name"
    tar -xzf "$work/$name.tgz" -C "$work/$name" --strip-components=1
    grep -v '^//# sourceMappingURL=' "$work/$name/$script" >"$work/new/$as"
    cp "$work/$name/$licence" "$work/new/$licence_as"
    chmod 644 "$work/new/"*
done
if [ "${1:-}" = --check ]; then
    diff -r "$work/new" "$VENDOR"
else
    rm -rf "$VENDOR"
    cp -r "$work/new" "$VENDOR"
fi
