"""Rules of shader sources that no driver at hand would notice broken."""

import re
from pathlib import Path

SHADERS = Path(__file__).resolve().parents[2] / "shaders"


def code(text: str) -> str:
    """GLSL without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def test_no_half_is_rounded_by_packing():
    """Drivers differ in how packHalf2x16 rounds; RADV's toward zero spreads in the shader (halves.glsl)."""
    assert code("a // packHalf2x16\n/* packHalf2x16\n */ b") == "a \n b"
    sources = [path for path in SHADERS.rglob("*.*") if path.suffix in (".comp", ".glsl")]
    assert sources
    assert [
        path.name for path in sources if "packHalf2x16" in code(path.read_text()).replace("unpackHalf2x16", "")
    ] == []
