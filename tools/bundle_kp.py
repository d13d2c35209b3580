"""Put this Python's kp into an unpacked source package of vkprefill, so that a wheel made of it needs no other.

    python tools/bundle_kp.py FOLDER

kp lies in vkprefill/_bundled/ with its metadata; the dependency on it goes from pyproject.toml. The licences of kp and
of pybind11, which is compiled into it and into the modules of native/, lie in vkprefill/_bundled/licenses/.
"""

import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

CHANGES = {
    '    "kp==0.9.0",\n': "",
    "license-files = [": 'license-files = ["vkprefill/_bundled/licenses/*", ',
}


def copy(package: str, end: str, folder: Path, name: str | None = None) -> None:
    """The one file of the installed package whose path ends so, into a folder."""
    found = [file for file in distribution(package).files if str(file).endswith(end)]
    if len(found) != 1:
        raise SystemExit(f"bundle_kp: {package}: {len(found)} files *{end}, wanted one")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(found[0].locate(), folder / (name or found[0].name))


def main(folder: Path) -> None:
    """Raises SystemExit where kp, pybind11 or the settings are not what is expected."""
    settings = folder / "pyproject.toml"
    text = settings.read_text()
    for old, new in CHANGES.items():
        if text.count(old) != 1:
            raise SystemExit(f"bundle_kp: {settings}: wanted {old.strip()} once")
        text = text.replace(old, new)
    settings.write_text(text)
    target = folder / "vkprefill" / "_bundled"
    shutil.rmtree(target, ignore_errors=True)
    copy("kp", ".so", target)
    copy("kp", "METADATA", target / f"kp-{distribution('kp').version}.dist-info")
    copy("kp", "LICENSE", target / "licenses", "kp.txt")
    copy("pybind11", "LICENSE", target / "licenses", "pybind11.txt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
