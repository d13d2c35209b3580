"""The words of the step buffer: Python and GLSL have the same names in the same places, and one place each."""

import re
from pathlib import Path

from vkprefill.engine.step import STEP_WORDS, StepWord
from vkprefill.vulkan.shaders import manifest

SHADERS = Path(__file__).resolve().parents[2] / "shaders"
INCLUDE = SHADERS / "include" / "step.glsl"


def words_of_glsl() -> dict[str, int]:
    """Name of each word -> its place."""
    found = re.findall(r"^const uint (\w+) = (\d+)u;", INCLUDE.read_text(), re.M)
    return {name: int(place) for name, place in found}


def test_names_and_places_are_the_same():
    assert words_of_glsl() == {word.name: int(word) for word in StepWord}
    assert sorted(StepWord) == list(range(len(StepWord)))
    assert len(StepWord) <= STEP_WORDS


def test_no_shader_has_a_declaration_of_its_own():
    """And each that includes it binds it first, which is where programs put it."""
    reads = {}
    for path in sorted(SHADERS.rglob("*.comp")):
        source = path.read_text()
        assert "buffer Step" not in source, f"{path.name}: include step.glsl"
        reads[path.stem] = '#include "step.glsl"' in source
    assert any(reads.values())
    bound = {name: [b["name"] for b in entry["bindings"]] for name, entry in manifest().items()}
    for name, bindings in bound.items():
        source = max((stem for stem in reads if f"{name}_".startswith(f"{stem}_")), key=len)
        assert ("Step" in bindings) == reads[source], name
        assert "Step" not in bindings[1:], name


def test_every_word_is_read_by_its_name():
    sources = "".join(path.read_text() for path in SHADERS.rglob("*.*") if path.suffix in (".comp", ".glsl"))
    assert set(re.findall(r"\bstep\[(\w+)\]", sources)) == {word.name for word in StepWord}
