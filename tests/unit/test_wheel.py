"""What tools/build_wheel.sh adds to the package's own files in a wheel, and what the sdist holds to make it from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bundle_kp import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path):
    """pyproject.toml and the package's first module, in a folder."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "vkprefill").mkdir()
    shutil.copy(ROOT / "vkprefill" / "__init__.py", tmp_path / "vkprefill")
    return tmp_path


def test_kp_is_brought_along(package):
    main(package)
    settings = (package / "pyproject.toml").read_text()
    assert '"kp' not in settings and '"numpy>=' in settings
    assert "_bundled/**" in settings and "vkprefill/_bundled/licenses/*" in settings
    bundled = package / "vkprefill" / "_bundled"
    assert "Apache License" in (bundled / "licenses" / "kp.txt").read_text()
    assert "Wenzel Jakob" in (bundled / "licenses" / "pybind11.txt").read_text()
    code = "import vkprefill, kp, importlib.metadata as m; print(kp.__file__, m.version('kp'), m.files('kp'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=package, capture_output=True, text=True, check=True)
    assert done.stdout == f"{next(bundled.glob('kp.*.so'))} 0.9.0 None\n", "this copy's metadata have no list of files"


def test_a_package_with_other_settings(package):
    settings = package / "pyproject.toml"
    settings.write_text(settings.read_text().replace("kp==0.9.0", "kp==0.8.0"))
    with pytest.raises(SystemExit, match='wanted "kp==0.9.0", once'):
        main(package)


def sdist_files() -> set[str]:
    """Beside the package: what MANIFEST.in adds."""
    found = set()
    for line in (ROOT / "MANIFEST.in").read_text().splitlines():
        command, *patterns = line.split()
        assert command in ("include", "graft", "global-exclude"), line
        for pattern in patterns if command != "global-exclude" else ():
            found |= set(ROOT.glob(pattern if command == "include" else f"{pattern}/**/*"))
    return {str(path.relative_to(ROOT)) for path in found if path.is_file() and "__pycache__" not in path.parts}


def test_sdist_holds_what_a_wheel_is_made_from():
    held = sdist_files()
    wanted = {f"tools/{name}" for name in ("build_wheel.sh", "try_wheel.sh")}
    for file in ("setup.py", "tools/build_wheel.sh", "tools/try_wheel.sh", "tools/install_kp.sh"):
        wanted |= set(re.findall(r"(?:tools|examples|native)/\w[\w.-]*\.\w+", (ROOT / file).read_text())) - {
            "tools/NAME.py"
        }
    wanted -= {"tools/NAME.py"}
    wanted |= {f"tools/{name}.py" for name in re.findall(r'tool\("(\w+)"\)', (ROOT / "setup.py").read_text())}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "shaders").rglob("*") if path.is_file()}
    assert len(wanted) > 80 and wanted - held == set()


def test_a_wheel_is_told_from_another_by_its_root():
    """A bare root for each Python that the package is for."""
    suites = re.findall(r"\*-cp3(\d+)-\*\) suite=\w+", (ROOT / "tools" / "try_wheel.sh").read_text())
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert [f"3.{minor}" for minor in suites] == re.findall(r'"(3\.\d+)"', workflow)


def test_newest_release_in_the_changelog_is_the_version():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
    released = re.search(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M).group(1)
    assert released == version
