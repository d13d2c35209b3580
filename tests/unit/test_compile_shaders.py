"""tools/compile_shaders: what is compiled anew, and what is not."""

import json

import pytest

from tools import compile_shaders

SHADER = """#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef LOUD
#include "loud.glsl"
#else
#include "quiet.glsl"
#endif
layout(binding = 0) buffer X { float x[]; };
void main() { x[0] = VALUE; }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two forms of a shader, each with an include of its own."""
    shaders = tmp_path / "shaders"
    (shaders / "include").mkdir(parents=True)
    (shaders / "one.comp").write_text(SHADER)
    for name, value in (("loud", "9.0"), ("quiet", "1.0")):
        (shaders / "include" / f"{name}.glsl").write_text(f"const float VALUE = {value};\n")
    monkeypatch.setattr(compile_shaders, "SHADERS", shaders)
    monkeypatch.setattr(compile_shaders, "SPIRV", tmp_path / "spirv")
    monkeypatch.setattr(compile_shaders, "VARIANTS", {"one": {"": (), "_loud": ("LOUD",)}})
    compile_shaders.included.cache_clear()
    yield tmp_path
    compile_shaders.included.cache_clear()


@pytest.fixture
def compiled(monkeypatch):
    """Names of what went through the compiler, preprocessing apart."""
    names, run = [], compile_shaders.run

    def noted(command):
        if "-o" in command:
            names.append(command[command.index("-o") + 1].rsplit("/", 1)[1])
        return run(command)

    monkeypatch.setattr(compile_shaders, "run", noted)
    return names


def test_only_what_changed_is_compiled(folder, compiled, capsys):
    compile_shaders.main()
    assert sorted(compiled) == ["one.tmp", "one_loud.tmp"]
    compiled.clear()
    compile_shaders.main()
    assert compiled == []
    (folder / "shaders" / "include" / "loud.glsl").write_text("const float VALUE = 8.0;\n")
    compile_shaders.main()
    assert compiled == ["one_loud.tmp"]
    assert capsys.readouterr().out.endswith("2 shaders, 1 compiled anew\n")


def test_a_binary_that_is_gone_is_compiled(folder, compiled):
    compile_shaders.main()
    compiled.clear()
    (folder / "spirv" / "one.spv").unlink()
    compile_shaders.main()
    assert compiled == ["one.tmp"]


def test_another_folder_compiles_nothing(folder, compiled, monkeypatch):
    """What was compiled in one checkout is current in its copies."""
    compile_shaders.main()
    before = json.loads((folder / "spirv" / "manifest.json").read_text())
    compiled.clear()
    elsewhere = folder / "elsewhere"
    (folder / "shaders").rename(elsewhere)
    monkeypatch.setattr(compile_shaders, "SHADERS", elsewhere)
    compile_shaders.included.cache_clear()
    compile_shaders.main()
    assert compiled == [] and json.loads((folder / "spirv" / "manifest.json").read_text()) == before


def test_another_compiler_compiles_all(folder, compiled, monkeypatch):
    compile_shaders.main()
    compiled.clear()
    monkeypatch.setattr(compile_shaders, "version", lambda: "another")
    compile_shaders.main()
    assert sorted(compiled) == ["one.tmp", "one_loud.tmp"]


VALIDATOR = """#!/bin/sh
# Refuses what glslangValidator refuses; compiles nothing.
case " $* " in
    *" -E "*-V*|*-V*" -E "*) echo "can't use -E when linking is selected" >&2; exit 1 ;;
    *" -E "*) for last; do :; done; cat "$last" ;;
    *" -o "*) while [ "$1" != -o ]; do shift; done; head -c 32 /dev/zero >"$2" ;;
esac
"""


def test_by_the_other_compiler(folder, compiled, monkeypatch):
    validator = folder / "glslangValidator"
    validator.write_text(VALIDATOR)
    validator.chmod(0o755)
    monkeypatch.setattr(compile_shaders.shutil, "which", {"glslangValidator": str(validator)}.get)
    compile_shaders.version.cache_clear()
    try:
        compile_shaders.main()
    finally:
        compile_shaders.version.cache_clear()
    assert sorted(compiled) == ["one.tmp", "one_loud.tmp"]
