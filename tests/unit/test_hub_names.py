"""What USER/REPO[:QUANT] means among a repository's files."""

import pytest

from vkprefill.errors import HubError
from vkprefill.hub.names import HubName, models_among, stem, type_in

FILES = [
    "README.md",
    "Some-4B-BF16.gguf",
    "Some-4B-IQ4_XS.gguf",
    "Some-4B-Q4_K_M.gguf",
    "Some-4B-Q4_K_S.gguf",
    "Some-4B-Q8_0.gguf",
    "Some-4B-UD-Q4_K_M.gguf",
    "Some-4B-UD-Q4_K_XL.gguf",
    "imatrix_unsloth.gguf",
    "mmproj-Some-4B-Q8_0.gguf",
    *(f"F32/Some-4B-F32-0000{n}-of-00003.gguf" for n in (3, 1, 2)),
]
PARTS = [f"F32/Some-4B-F32-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("u/r", "Some-4B-Q4_K_M.gguf"),
        ("u/r:latest", "Some-4B-Q4_K_M.gguf"),
        ("u/r:q8_0", "Some-4B-Q8_0.gguf"),
        ("u/r:Q4_K_S", "Some-4B-Q4_K_S.gguf"),
        ("u/r:UD-Q4_K_M", "Some-4B-UD-Q4_K_M.gguf"),
        ("u/r:UD-Q4_K_XL", "Some-4B-UD-Q4_K_XL.gguf"),
        ("u/r:Some-4B-BF16", "Some-4B-BF16.gguf"),
        ("u/r:Some-4B-BF16.gguf", "Some-4B-BF16.gguf"),
    ],
)
def test_chosen(text, wanted):
    assert HubName.read(text).choose(FILES) == [wanted]


def test_all_parts_in_order():
    assert HubName.read("u/r:F32").choose(FILES) == PARTS
    with pytest.raises(HubError, match="u/r:F32: no such file, wanted one of BF16, IQ4_XS, "):
        HubName.read("u/r:F32").choose([name for name in FILES if name != PARTS[1]])


def test_the_first_without_the_usual_one():
    assert HubName.read("u/r").choose(["b-Q8_0.gguf", "a-Q5_K_M.gguf", "mmproj-F16.gguf"]) == ["a-Q5_K_M.gguf"]
    assert HubName.read("u/r").choose(["only.gguf"]) == ["only.gguf"]


def test_nothing_to_choose():
    with pytest.raises(HubError, match="u/r:Q4_K: no such file, wanted one of F32, BF16, IQ4_XS, Q4_K_M, Q4_K_S, Q8"):
        HubName.read("u/r:Q4_K").choose(FILES)
    for files in ([], ["model.safetensors"], ["mmproj-F16.gguf"]):
        with pytest.raises(HubError, match="u/r: has no GGUF file"):
            HubName.read("u/r").choose(files)


@pytest.mark.parametrize(
    "text", ["", "repo", "u/r/x", "u/r:", "u/r:a b", "u/..", "../r", "/r", "u/", "u--x/r", "u/r:é", "u/r\n", "u/r:../x"]
)
def test_no_name(text):
    with pytest.raises(HubError, match=r"wanted USER/REPO or USER/REPO:QUANT") as caught:
        HubName.read(text)
    assert str(caught.value).isprintable()


def test_types_and_stems():
    assert [type_in(name) for name in ("a/Q8_0/x.gguf", "x-Q4_K_M-v2.gguf", "x.IQ2_XXS.gguf", "x.gguf")] == [
        "Q8_0",
        "Q4_K_M",
        "IQ2_XXS",
        None,
    ]
    assert [stem(name) for name in (PARTS[0], "a/x.gguf")] == ["Some-4B-F32", "x"]
    assert models_among(FILES)[PARTS[0]] == PARTS
