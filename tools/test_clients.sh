#!/usr/bin/env bash
# The client libraries that people use, each in an environment of its own under build/clients, against a server with the
# built-in model. Needs a package index; Node's only where npm is there.
set -eu
cd "$(dirname "$0")/.."
root=$PWD/build/clients
mkdir -p "$root"

log=$root/server.log
.venv/bin/python -m vkprefill serve --port 0 -c 4096 2>"$log" >/dev/null &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
until url=$(sed -n 's/^listening on //p' "$log") && [ -n "$url" ] && curl -sf "$url/health" >/dev/null; do
    kill -0 $server || { cat "$log"; exit 1; }
    sleep 0.2
done

failed=0
for package in openai anthropic langchain-openai instructor "pydantic-ai-slim[openai]" llm litellm "lm-eval[api]"; do
    folder=$root/${package%%[*}
    if [ ! -e "$folder/ready" ]; then
        python3 -m venv --clear "$folder"
        "$folder/bin/pip" install -q pydantic "$package"
        touch "$folder/ready"
    fi
    "$folder/bin/python" tests/clients/python_clients.py "$url" "$package" || failed=1
done
if command -v npm >/dev/null; then
    mkdir -p "$root/node"
    cp tests/clients/node_client.mjs "$root/node/"
    [ -d "$root/node/node_modules/openai" ] || npm install --silent --prefix "$root/node" openai zod
    node "$root/node/node_client.mjs" "$url" || failed=1
else
    echo "left out: openai for Node (npm is not installed)"
fi
exit $failed
