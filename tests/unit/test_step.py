"""The words of the step buffer: Python and GLSL have the same names in the same places, and one place each."""

import re
from pathlib import Path

from vkprefill.engine.step import STEP_WORDS, StepWord
from vkprefill.vulkan.shaders import manifest

SHADERS = Path(__file__).resolve().parents[2] / "shaders"
INCLUDE = SHADERS / "include" / "step.glsl"


def words_of_glsl() -> list[tuple[str, str]]:
    """(type, name) of each member of the block, in order."""
    (block,) = re.findall(r"layout\(binding = 0\) readonly buffer Step \{(.*?)\} step;", INCLUDE.read_text(), re.S)
    statements = [line for line in re.sub(r"//.*", "", block).split(";") if line.strip()]
    return [tuple(statement.split()) for statement in statements]


def test_names_and_places_are_the_same():
    """Members of 32 bits each: the n-th is the word n."""
    words = words_of_glsl()
    assert [name for _, name in words] == [word.name.lower() for word in sorted(StepWord)]
    assert sorted(StepWord) == list(range(len(words)))
    assert len(words) <= STEP_WORDS
    assert {kind for kind, _ in words} <= {"uint", "float"}


def test_the_penalty_alone_is_a_float():
    """The host writes its bits; every other word is a count."""
    assert [name for kind, name in words_of_glsl() if kind == "float"] == [StepWord.PENALTY.name.lower()]


def test_no_shader_has_a_declaration_of_its_own():
    """And each that includes it binds it first, which is where programs put it."""
    readers = set()
    for path in sorted(SHADERS.rglob("*.comp")):
        source = path.read_text()
        assert "buffer Step" not in source, f"{path.name}: include step.glsl"
        if '#include "step.glsl"' in source:
            readers.add(path.stem)
    assert readers
    bound = {name: [b["name"] for b in entry["bindings"]] for name, entry in manifest().items()}
    for name, bindings in bound.items():
        of_reader = any(name == stem or name.startswith(f"{stem}_") for stem in readers)
        assert ("Step" in bindings) == of_reader, name
        assert "Step" not in bindings[1:], name


def test_every_word_is_read_by_some_shader():
    sources = "".join(path.read_text() for path in SHADERS.rglob("*.*") if path.suffix in (".comp", ".glsl"))
    assert [name for _, name in words_of_glsl() if f"step.{name}" not in sources] == []
