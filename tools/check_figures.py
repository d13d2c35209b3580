"""Checks that figures in documents are those of their records: python -m tools.check_figures (part of make lint)

Every table with figures in README.md, some pages of docs/ and benchmarks/ has a function here that knows the record of
each cell, or a reason why it has none. A cell agrees with a value that is the same when rounded to as many digits.
What documents say of compiled shaders is looked up in amd_compile.json, the tables of BOUND_780M.md are worked out
again, and counts from execution must be of the shaders that are here. Prints what differs; exits with 1 then.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.expected_780m import SPEEDS
from tools.figures import evaluations
from tools.figures.compare import BENCHMARKS, NUMBER, ROOT, Table, agrees, data, said, tables
from tools.figures.drafts import PEERS, draft_differences, drafts_beside
from tools.figures.shaders import bound_differences, compiled_differences, executed_differences
from vkprefill.benchmark.record import Record
from vkprefill.errors import RequestError

DOCUMENTS = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("choosing", "hardware", "specprefill")),
    BENCHMARKS / "README.md",
    BENCHMARKS / "eval_builtin.md",
)

Expected = list[float | str | None]  # of a row's cells: a figure, a text, or nothing to look up


# ---- the records ----------------------------------------------------------------------------------------------------


def figure(record: str, name: str, unit: str) -> float:
    """The median of a figure; the name is a pattern. Raises KeyError where there is none, or several."""
    found = [f["median"] for f in data(record)["figures"] if re.fullmatch(name, f["name"]) and f["unit"] == unit]
    if len(found) != 1:
        raise KeyError(f"{record} has {len(found)} figures {name!r} in {unit}")
    return found[0]


# ---- the tables -----------------------------------------------------------------------------------------------------


def speeds(row: tuple[str, ...]) -> Expected:
    model, name = row[0].replace("2,048", "2048").replace("decode", r"decode \d+").split(", ")
    record = {"built-in model": "built-in.json"}.get(model, f"{model}.json")
    return [figure(record, name, "tokens/s"), figure(record, name, "tokens/CPU-s"), None]


# docs/hardware.md's words for a program -> its name in peers.json.
PROGRAMS = {
    "vkprefill": "vkprefill",
    "llama.cpp's Vulkan backend on the same device": "llama.cpp Vulkan",
    "llama.cpp on the CPU itself": "llama.cpp CPU",
    "the same, weights not repacked": "llama.cpp CPU, not repacked",
}


def speeds_beside(row: tuple[str, ...]) -> Expected:
    """docs/hardware.md's summary, in tokens per CPU-second."""
    model, what = row[0].replace(", 4 of 40 layers", "").split(", ", 1)
    if model == "4B":
        return [
            figure("4B.json", "prefill 64", "tokens/CPU-s"),
            None,
            figure("4B.json", "decode 4 at 0", "tokens/CPU-s"),
        ]
    names = ("prefill 64", "prefill 256", "decode at 64")
    named = [f"{PROGRAMS[what]}: {name}" for name in names]
    record = "peers_a3b.json" if model.startswith("35B-A3B") else "peers.json"
    return [figure(record, name, "tokens/CPU-s") if cell else None for name, cell in zip(named, row[1:], strict=True)]


def peers(row: tuple[str, ...], record: str, others: tuple[str, ...] = ()) -> Expected:
    """Rates, those of others followed by how many times as fast vkprefill is. others: beside llama.cpp's."""
    names = ("vkprefill", *others, "llama.cpp Vulkan", "llama.cpp CPU", "llama.cpp CPU, not repacked")
    own, *others = (
        figure(record, f"{name}: {row[0]}", "tokens/CPU-s") if cell else None
        for name, cell in zip(names, (row[1], *row[2::2]), strict=True)
    )
    return [own, *(value for rate in others for value in (rate, rate and own / rate))]


def first_tokens(row: tuple[str, ...]) -> Expected:
    pair, tokens = row[0], int(row[1].replace(",", ""))
    (r,) = (r for r in data(f"first_token_{pair_file(pair)}.json")["rows"] if r["tokens"] == tokens)
    names = ("dense_s", "sparse_s", "score_s", "lookahead_s", "sparse_prefill_s", "predicted_s", "ratio", "cpu_ratio")
    return [None, 100 * r["kept"] / tokens, *(r[name] for name in names)]


def first_tokens_in_short(row: tuple[str, ...]) -> Expected:
    """README.md's, of the same records."""
    tokens, kept, dense, sparse, *_, ratio, _ = first_tokens(row)
    return [tokens, kept, dense, sparse, ratio]


def self_scored(row: tuple[str, ...]) -> Expected:
    """CPU-seconds; what they take of the formula's, and the memory between the layers beside its bill."""
    pair, tokens = row[0], int(row[1].replace(",", ""))
    (r,) = (r for r in data(f"self_scoring_{pair_file(pair)}.json")["rows"] if r["tokens"] == tokens)
    times = [r[f"{name}_s"] for name in ("dense", "draft", "self", "formula")]
    rows = [r[f"rows_{what}"] / 2**20 for what in ("bytes", "bill")]
    return [None, 100 * r["kept"], *times, r["self_s"] / r["formula_s"], *rows]


def check_costs(row: tuple[str, ...]) -> Expected:
    tokens, ways = int(row[0].replace(",", "")), ("dense", "sparse", "checked")
    times = [
        figure("check_cost.json", f"{what} of {tokens}, {way}", "CPU-s")
        for what in ("first token", "whole answer")
        for way in ways
    ]
    return [*times, times[-1] / times[3]]


def pair_file(pair: str) -> str:
    return "builtin" if pair == "built-in" else pair.partition(",")[0]


def first_token_of_bench(row: tuple[str, ...]) -> Expected:
    tokens = int(row[0].replace(",", ""))
    (prompt,) = (p for p in data("built-in.json")["speculative_prefill"]["prompts"] if p["tokens"] == tokens)
    return [
        prompt["kept"][0],
        *(figure("built-in.json", f"first token of {tokens}, {how}", "CPU-s") for how in ("dense", "speculative")),
    ]


STARTS = {
    "load and first token, empty shader cache": ("load and first token of {}, empty shader cache", "CPU-s"),
    "load and first token, filled shader cache": ("load and first token of {}, filled shader cache", "CPU-s"),
    "of that: header, vocabulary, tokenizer": ("load: reading the file", "CPU-s"),
    "packing and uploading weights": ("load: loading weights", "CPU-s"),
    "creating pipelines, recording": ("load: recording", "CPU-s"),
    "the prompt": ("first prompt of {}, filled shader cache", "CPU-s"),
    "first token decoded after that, empty cache": ("first decode, empty shader cache", "CPU-s"),
    "first token decoded after that, filled cache": ("first decode, filled shader cache", "CPU-s"),
    "pipelines": ("pipelines of prefill and decode", "pipelines"),
    "resident at most, MiB": ("memory: process, most at any time", "MiB"),
    "the file, MiB": ("memory: the file", "MiB"),
}


def starts(row: tuple[str, ...]) -> Expected:
    name, unit = STARTS[row[0]]
    return [
        figure("built-in-start.json", name.format(2048), unit),
        figure("0.8B-start.json", name.format(15), unit),
        figure("4B-start.json", name.format(15), unit),
    ]


def memory(row: tuple[str, ...]) -> Expected:
    name = f"{row[0]} {row[1].replace(',', '')}"
    amounts = [figure("memory.json", f"{name}: {what}", "MiB") for what in ("bill", "accounted", "process", "driver")]
    bill, _, process, driver = amounts
    return [None, *amounts, 100 * (process - driver - bill) / bill]


def kernels(row: tuple[str, ...], phase: str, rate: str) -> Expected:
    """A kernel's share of its phase, its rate, and the share of the ceiling."""
    name = {"matmul": "matmul_shuffle_", "matvec": "matvec_shuffle_"}.get(row[0].split()[0], "")
    if name:
        shader = name + row[0].split()[1].lower()
    else:
        shader = {"delta_rule": "delta_rule_shuffle", "attention": "attention_shuffle_f16"}.get(row[0], "")
    (key,) = (key for key in data("0.8B-kernels.json")["kernels"] if key.startswith(phase))
    found = [k for k in data("0.8B-kernels.json")["kernels"][key] if k["kernel"] == shader]
    if not found:
        return [None] * (len(row) - 1)  # several kernels in a row
    figures = data("0.8B-kernels.json")["figures"]
    total = sum(f["median"] for f in figures if f["name"].startswith(f"{key}: ") and "empty" not in f["name"])
    share = 100 * figure("0.8B-kernels.json", f"{key}: {shader}", "CPU-s") / total
    return [share, found[0][rate], 100 * found[0]["of_ceiling"]]


def products(row: tuple[str, ...]) -> Expected:
    expected: Expected = []
    for kernel in ("matmul", "matvec"):
        own, numpy = (
            figure("matmul-vs-numpy.json", f"{kernel} {row[0]}{who}", "GFLOP/CPU-s") for who in ("", ", numpy")
        )
        if kernel == "matvec":
            expected.append(figure("matmul-vs-numpy.json", f"matvec {row[0]}", "GB/CPU-s"))
        expected += [own, numpy, own / numpy]
    return expected


def delta_rules(row: tuple[str, ...]) -> Expected:
    tokens = row[0].replace(",", "")
    return [
        1e6 * figure(record, f"{form}, {tokens} tokens", "CPU-s per token")
        for record in ("delta-rule.json", "delta-rule-4B.json")
        for form in ("by token", "in chunks")
    ]


def emulated(row: tuple[str, ...]) -> Expected:
    chip = data("emu780m.json")[row[0]]
    return [None, chip["passed"], chip["failed"], len(chip["refused"])]


def expected_of_780m(row: tuple[str, ...]) -> Expected:
    """docs/hardware.md's part of BOUND_780M.md's table of what to expect."""
    model, phase = row[0].split(", ")
    document = BENCHMARKS / "BOUND_780M.md"
    for table in tables(document.read_text(), document.name):
        for model_there, phase_there, precision, *cells in table.rows if table.header == SPEEDS else ():
            if (model_there, phase_there, precision) == (model, phase, row[1]):
                return [None, *(float(cell.replace(",", "")) for cell in cells)]
    raise KeyError(f"{document.name} has no such speed")


TABLES: dict[tuple[str, ...], Callable[[tuple[str, ...]], Expected]] = {
    ("what", "tokens/s", "tokens/CPU-s", "record and command"): speeds,
    ("", "prefill 64", "prefill 256", "decode"): speeds_beside,
    ("", "vkprefill", "before", "times", "llama.cpp Vulkan", "times")
    + ("llama.cpp CPU", "times", "not repacked", "times"): partial(
        peers, record="peers.json", others=("vkprefill before",)
    ),
    ("35B-A3B's widths", "vkprefill", "llama.cpp Vulkan", "times", "llama.cpp CPU", "times", "not repacked", "times"): (
        partial(peers, record="peers_a3b.json")
    ),
    PEERS: drafts_beside,
    ("pair", "prompt", "kept", "dense s", "speculative s", "scoring", "look-ahead", "prefill", "predicted s", "ratio")
    + ("in CPU-s",): first_tokens,
    ("first token", "prompt", "kept", "dense", "speculative", "times as fast"): first_tokens_in_short,
    ("pair", "prompt", "kept", "dense", "by the draft", "by itself", "formula", "of it")
    + ("rows MiB", "billed"): self_scored,
    ("prompt", "first token, dense", "sparse", "checked", "whole, dense", "sparse", "checked", "of dense"): check_costs,
    ("prompt", "kept", "dense", "speculative"): first_token_of_bench,
    ("CPU-s", "built-in, 2,048 tokens", "0.8B, 15 tokens", "4B, 15 tokens"): starts,
    ("model", "context", "bill", "accounted", "process", "driver", "process - driver - bill"): memory,
    ("kernel", "share", "GFLOP/CPU-s", "of the multiply-add loop"): partial(kernels, phase="prefill", rate="gflop"),
    ("kernel", "share", "GB/CPU-s", "of the copy"): partial(kernels, phase="decode", rate="gbytes"),
    ("type", "matmul GFLOP/CPU-s", "numpy", "ratio", "matvec GB/CPU-s", "GFLOP/CPU-s", "numpy", "ratio"): products,
    ("tokens", "0.8B, by token", "in chunks", "4B, by token", "in chunks"): delta_rules,
    ("chip", "GPU", "tests passed", "failed", "refused"): emulated,
    ("Radeon 780M, not measured", *SPEEDS[2:]): expected_of_780m,
    ("prompt tokens", "dense", "chosen by the draft", "random chunks", "first and last chunks")
    + ("dense state, pruned keys", "windows of 512"): evaluations.answers_kept,
    evaluations.EARLY: evaluations.early_layers,
    evaluations.OWN: evaluations.own_layers,
    evaluations.CHECKED: evaluations.checked,
    evaluations.LINKS: evaluations.links,
}

# Tables with figures that no record has.
WITHOUT_RECORD = {
    ("kernel", "where", "before", "now", "by"): "records of what was before are not kept",
    ("to the first token of 15", "before", "after"): "the same",
}


def differences(table: Table) -> Iterator[str]:
    """What in a table is not as its record has it."""
    where = f"{table.document}:{table.line}"
    if evaluations.is_evaluation(table):
        yield from evaluations.evaluation_differences(table)
        return
    if table.header in WITHOUT_RECORD or not any(NUMBER.match(cell) for row in table.rows for cell in row[1:]):
        return
    if table.header not in TABLES:
        yield f"{where}: tools/check_figures.py does not know the table | {' | '.join(table.header)} |"
        return
    for i, row in enumerate(table.rows):
        try:
            expected = TABLES[table.header](row)
        except (KeyError, ValueError, FileNotFoundError) as error:
            yield f"{where}, row {row[0]!r}: {error}"
            continue
        for name, cell, value in zip(table.header[1:], row[1:], expected, strict=True):
            if value is not None and not agrees(cell, value):
                where = f"{table.document}:{table.line + 2 + i}, {row[0]!r}, {name!r}"
                yield f"{where}: found {cell}, the record has {value:.6g}"


# ---- README.md's sentences -----------------------------------------------------------------------------------------


def summary_differences(documents: dict[str, str]) -> Iterator[str]:
    """What README.md says in words of what tables of other documents have."""
    yield from said(
        documents,
        "README.md",
        r"answers (\d+) with the whole prompt, (\d+) with the fifth that the draft chose, (\d+) with as many",
        evaluations.answers_kept(("2,048",))[:3],
    )
    programs = ("vkprefill", "llama.cpp Vulkan", "llama.cpp CPU")
    yield from said(
        documents,
        "README.md",
        r"at ([\d.]+) tokens per CPU-second, llama.cpp's Vulkan backend on the same device at ([\d.]+), "
        r"llama.cpp on the CPU itself at ([\d.]+)\.",
        [figure("peers.json", f"{program}: prefill 64", "tokens/CPU-s") for program in programs],
    )


# ---- the records themselves -----------------------------------------------------------------------------------------


def record_differences(documents: dict[str, str]) -> Iterator[str]:
    """Records that cannot be read, or that no document names."""
    named = set(re.findall(r"[\w.-]+\.json\b", " ".join(documents.values())))
    for path in sorted(BENCHMARKS.glob("*.json")):
        if path.name not in named:
            yield f"benchmarks/{path.name}: no document names it"
        if "about" not in data(path.name):
            continue
        try:
            record = Record.read(path)
        except RequestError as error:
            yield str(error)
            continue
        if lacking := {"command", "date", "device", "driver", "commit"} - record.about.keys():
            yield f"benchmarks/{path.name}: does not say its {', '.join(sorted(lacking))}"
        if not record.figures:
            yield f"benchmarks/{path.name}: has no figures"


def main() -> int:
    documents = {str(path.relative_to(ROOT)): path.read_text() for path in DOCUMENTS}
    found = [d for name, text in documents.items() for table in tables(text, name) for d in differences(table)]
    for check in (
        summary_differences,
        compiled_differences,
        executed_differences,
        bound_differences,
        draft_differences,
        record_differences,
    ):
        found += check(documents)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
