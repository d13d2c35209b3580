#!/usr/bin/env bash
# Puts nginx, the proxy whose configuration in deploy/ is tested, into build/nginx/: this system's Debian package,
# unpacked and not installed. Safe to run again. Needs apt and dpkg.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$PWD/build/nginx
if command -v nginx >/dev/null || [ -x "$FOLDER/usr/sbin/nginx" ]; then exit; fi
for tool in apt-get dpkg; do
    command -v $tool >/dev/null || { echo "get_nginx: error: $tool not found; install nginx" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get download -q nginx) || { echo "get_nginx: error: apt-get cannot download nginx (apt-get update?)" >&2; exit 1; }
mkdir -p "$FOLDER"
dpkg -x "$work"/nginx_*.deb "$FOLDER"
