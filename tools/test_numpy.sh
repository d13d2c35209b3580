#!/usr/bin/env bash
# The tests that numpy's version may touch, under the major version of numpy that .venv has not: in an environment of its
# own under build/. Run by `make test-all`. PYTHON=/path/to/python chooses its Python; what follows goes to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

TESTS=(tests/unit tests/model/test_equivalence.py tests/model/test_capture.py tests/model/test_cache.py
    tests/model/test_scorer*.py tests/model/test_specprefill*.py tests/shaders/test_program.py
    tests/shaders/test_matmul.py)

say() { printf 'test_numpy: %s\n' "$*"; }
major() { "$1" -c 'import numpy; print(numpy.__version__.split(".")[0])'; }

python=${PYTHON:-$(.venv/bin/python -c 'import os, sys; print(os.path.realpath(sys._base_executable))')}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$(major .venv/bin/python)" = 1 ]; then wanted=2; else wanted=1; fi
if [ $wanted = 1 ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then
    say "there is no numpy 1 for Python $version: nothing to test (PYTHON=... chooses another)"
    exit
fi

environment=$PWD/build/python$version-numpy$wanted
key=$(cat pyproject.toml setup.py tools/install_kp.sh native/* 2>/dev/null | sha256sum | cut -c1-16)
log=$environment.log
if [ "$(cat "$environment/.key" 2>/dev/null)" != "$key" ]; then
    say "creating $environment (two minutes; its log is $log)"
    mkdir -p build
    {
        "$python" -m venv --clear "$environment"
        "$environment/bin/pip" install "numpy==$wanted.*"
        tools/install_kp.sh "$environment/bin/python"
        "$environment/bin/pip" install --editable '.[test]'
    } >"$log" 2>&1 || { tail -n 25 "$log" >&2; exit 1; }
    printf '%s' "$key" >"$environment/.key"
fi
if [ "$(major "$environment/bin/python")" != $wanted ]; then say "error: $environment has not numpy $wanted"; exit 1; fi
say "Python $version, numpy $("$environment/bin/python" -c 'import numpy; print(numpy.__version__)')"
"$environment/bin/python" -m pytest -q "${TESTS[@]}" "$@"
