#!/usr/bin/env bash
# Tests with packages that people who study models have beside vkprefill. Each group has an environment of its own,
# build/research/NAME, which also sees all of .venv: nothing is compiled again. Needs a package index; a group that has no
# packages for this Python is left out, and says so.
# tools/test_research.sh [NAME [ARGUMENTS OF PYTEST]]: one group of tests/research.
set -euo pipefail
cd "$(dirname "$0")/.."

NAMES=(ray lens)

# packages_of NAME: what a group has beside .venv
packages_of() {
    case $1 in
    ray) sed -n 's/^ray = \[\(.*\)\].*/\1/p' pyproject.toml | tr -d '",' ;;
    # pyarrow: the last that takes numpy 1, as kp does. torch: a release that indexes of processors' builds have too.
    lens) echo "torch==2.13.0 transformer-lens==4.3.0 bertviz==1.4.1 circuitsvis==1.43.3 pyarrow<24" ;;
    *) echo "test_research: found $1, wanted one of: ${NAMES[*]}" >&2; exit 1 ;;
    esac
}

say() { printf 'test_research: %s\n' "$*"; }

# make_environment FOLDER PACKAGE...
make_environment() {
    local folder=$1
    shift
    "$python" -m venv --clear "$folder" &&
        printf 'import site; site.addsitedir("%s")\n' "$(site_packages "$PWD/.venv")" \
            >"$(site_packages "$folder")/all_of_venv.pth" &&
        "$folder/bin/pip" install --disable-pip-version-check "$@" "numpy==$numpy"
}
site_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

python=$(.venv/bin/python -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
numpy=$(.venv/bin/python -c 'import numpy; print(numpy.__version__)')  # the one that .venv's packages go with
export PYTHONPATH=$PWD
failed=0
mkdir -p build/research
if [ $# -gt 0 ]; then NAMES=("$1"); fi
for name in "${NAMES[@]}"; do
    packages=$(packages_of "$name")
    folder=$PWD/build/research/$name log=$PWD/build/research/$name.log
    key="$packages $numpy $("$python" -VV)"
    if [ "$(cat "$folder/.key" 2>/dev/null)" != "$key" ]; then
        say "making $folder: $packages"
        # shellcheck disable=SC2086
        if ! make_environment "$folder" $packages >"$log" 2>&1; then
            if why=$(grep -o 'No matching distribution found.*' "$log"); then
                say "left out: $name ($why)"
            else
                tail -n 25 "$log" >&2
                failed=1
            fi
            continue
        fi
        printf '%s' "$key" >"$folder/.key"
    fi
    "$folder/bin/python" -m pytest -q "tests/research/$name" "${@:2}" || failed=1
done
exit $failed
