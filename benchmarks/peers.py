#!/usr/bin/env python3
"""vkprefill beside llama.cpp on the same file and device: python benchmarks/peers.py MODEL.gguf [--json FILE]

Runs, each in a process of its own: vkprefill; llama.cpp's CPU backend with weights repacked for the processor, its
default, and without; llama.cpp's Vulkan backend on the same Vulkan device. All get the same random tokens. The first
prefill of each length is not counted (it compiles shaders). Rates are tokens per second and, on CPU devices, per second
of process CPU time. --before runs another checkout of vkprefill too, set up with the same Python.

Needs llama-cpp-python: pip install 'vkprefill[peers]', with CMAKE_ARGS=-DGGML_VULKAN=on in the environment for the
Vulkan backend. What is not there is left out, with a message. LLAMA_CPP_LIB_PATH may name a folder with another build
of libllama.so, of the same version; its backends may be files of their own. (Repacking may crash where a virtual
machine masks AMX.)
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np

from vkprefill.benchmark.record import Figure, Record, about, commit, describe, figures_table
from vkprefill.benchmark.speed import rates, timed
from vkprefill.errors import VkPrefillError
from vkprefill.vulkan.probe import choose

ENGINES = {
    "before": "vkprefill before",
    "vkprefill": "vkprefill",
    "cpu": "llama.cpp CPU",
    "cpu-plain": "llama.cpp CPU, not repacked",
    "vulkan": "llama.cpp Vulkan",
}
OWN = ("before", "vkprefill")
SEED = 1
LOGITS_STEP = 97  # every so many logits are compared
SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument(
        "-p", "--prefill", type=int, nargs="+", default=[64, 256], metavar="N", help="prompt lengths (default: 64 256)"
    )
    parser.add_argument(
        "-n",
        "--decode",
        type=int,
        default=8,
        metavar="N",
        help="tokens decoded after the first length (default: 8; 0: none)",
    )
    parser.add_argument("-r", "--repetitions", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument(
        "--slow",
        type=int,
        default=None,
        metavar="N",
        help="for CPU devices: llama.cpp's Vulkan backend runs the first length alone, once, and decodes N tokens",
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--device", type=int, default=None, metavar="INDEX", help="Vulkan device (see: vkprefill devices)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        metavar="N",
        help="of llama.cpp's CPU backend (default: all); on a busy machine its threads spend CPU time waiting for each "
        "other: take 1",
    )
    parser.add_argument("--before", metavar="FOLDER", help="another checkout of vkprefill, to be measured too")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(run_engine(args)))
        return 0
    try:
        info = choose(args.device)
    except VkPrefillError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    arguments = sys.argv[1:] if argv is None else argv
    figures, logits, versions = [], {}, {}
    for engine in args.engines:
        if engine == "before" and not args.before:
            continue
        result = in_child(engine, arguments, info.index, args.before)
        if result is None:
            continue
        figures += [Figure(f"{ENGINES[engine]}: {f['name']}", f["unit"], tuple(f["values"])) for f in result["figures"]]
        logits[ENGINES[engine]], versions[engine] = result["logits"], result["version"]
    command = shlex.join(["python", "benchmarks/peers.py", *arguments])
    record = Record(
        about(command, info, models=[Path(args.model).name], versions=versions, threads=args.threads),
        figures,
        {"logits_correlation": correlations(logits)},
    )
    print(describe(record.about), figures_table(figures), ratios(figures), sep="\n\n")
    for engine, value in record.details["logits_correlation"].items():
        print(f"- logits after {args.prefill[0]} tokens: correlation of vkprefill's and {engine}'s {value:.4f}")
    if args.json:
        record.write(args.json)
    return 0


def in_child(engine: str, arguments: list[str], device: int, before: str | None) -> dict | None:
    """The result of an engine, or None and a message where it is not there or crashes. before: folder of that one."""
    environment = dict(os.environ)
    if engine == "before":
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (before, environment.get("PYTHONPATH"))))
    if engine == "vulkan":  # else it takes no CPU device
        environment["GGML_VK_VISIBLE_DEVICES"] = str(device)
    command = [sys.executable, __file__, *arguments, "--child", engine]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        print(f"{ENGINES[engine]}: left out (exit status {result.returncode})", file=sys.stderr)
        return None
    return json.loads(result.stdout.splitlines()[-1])


def run_engine(args: argparse.Namespace) -> dict:
    longest = max(args.prefill) + args.decode
    context = -(-longest // 256) * 256
    prefill, decode, vocab_size, program = (open_vkprefill if args.child in OWN else open_llama)(args, context)
    tokens = np.random.Generator(np.random.PCG64(SEED)).integers(0, vocab_size, max(args.prefill)).tolist()
    slow = args.slow if args.child == "vulkan" else None
    num_decodes, repetitions = (args.decode, args.repetitions) if slow is None else (slow, 1)
    figures, logits, cpu = [], [], choose(args.device).type == "cpu"
    for position, length in enumerate(args.prefill if slow is None else args.prefill[:1]):
        values = prefill(tokens[:length])
        logits = logits or values[::LOGITS_STEP].tolist()
        figures += measured(f"prefill {length}", length, [lambda n=length: prefill(tokens[:n])] * repetitions, cpu)
        if position == 0 and num_decodes:
            if slow is None:
                decode(tokens[0])
            works = [lambda: [decode(token) for token in tokens[:num_decodes]]] * repetitions
            figures += measured(f"decode at {length}", num_decodes, works, cpu)
    return {"figures": figures, "logits": logits, "version": program}


def measured(name: str, num_tokens: int, works: list[Callable[[], object]], cpu: bool) -> list[dict]:
    times = []
    for work in works:
        times.append(timed(work))
        print(f"{name}: {num_tokens / times[-1].wall_s:.3g} tokens/s", file=sys.stderr, flush=True)
    return [asdict(figure) for figure in rates(name, num_tokens, times, cpu)]


def open_vkprefill(args: argparse.Namespace, context: int) -> tuple:
    import vkprefill

    model = vkprefill.load(args.model, args.device, max_context=context)
    cache = model.new_cache()

    def prefill(tokens: list[int]) -> np.ndarray:
        cache.reset()
        return model.prefill(tokens, cache=cache)

    def decode(token: int) -> np.ndarray:
        return model.decode(token, cache)

    return prefill, decode, model.config.vocab_size, f"vkprefill {version('vkprefill')}, commit {commit()}"


def open_llama(args: argparse.Namespace, context: int) -> tuple:
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as api
    except ImportError as error:
        sys.exit(f"llama-cpp-python cannot be imported: {error}")
    library = api._lib
    api.llama_log_set(SILENT, None)
    if folder := os.environ.get("LLAMA_CPP_LIB_PATH"):  # has no effect on backends that are built in
        library.ggml_backend_load_all_from_path(folder.encode())
    api.llama_backend_init()
    parameters = api.llama_model_default_params()
    parameters.use_extra_bufts = args.child != "cpu-plain"
    no_device = (ctypes.c_void_p * 1)()
    if args.child != "vulkan":
        parameters.devices = ctypes.cast(no_device, ctypes.c_void_p)
        parameters.n_gpu_layers = 0
    else:
        if not any(name.startswith("Vulkan") for name in device_names(library)):
            sys.exit("llama-cpp-python was built without the Vulkan backend, or it sees no device")
        parameters.n_gpu_layers = 999
    model = api.llama_model_load_from_file(args.model.encode(), parameters)
    if not model:
        sys.exit("the model cannot be loaded")
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_batch = context, context
    settings.n_threads = settings.n_threads_batch = args.threads
    llama = api.llama_init_from_model(model, settings)
    if not llama:
        sys.exit("no context can be made")
    vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    memory = api.llama_get_memory(llama)

    def run(tokens: list[int]) -> np.ndarray:
        array = (ctypes.c_int32 * len(tokens))(*tokens)  # the batch only points to it
        batch = api.llama_batch_get_one(array, len(tokens))
        if code := api.llama_decode(llama, batch):
            sys.exit(f"llama_decode gave {code}")
        return np.ctypeslib.as_array(api.llama_get_logits_ith(llama, -1), (vocab_size,)).copy()

    def prefill(tokens: list[int]) -> np.ndarray:
        api.llama_memory_clear(memory, True)
        return run(tokens)

    return (
        prefill,
        lambda token: run([token]),
        vocab_size,
        f"llama-cpp-python {llama_cpp.__version__}: {about_llama(api)}",
    )


def about_llama(api: object) -> str:
    """What it was built for and found, in its own words, what is on alone."""
    words = api.llama_print_system_info().decode().split("|")
    return ", ".join(word.strip().removesuffix(" = 1") for word in words if " = 0" not in word and word.strip())


def device_names(library: ctypes.CDLL) -> list[str]:
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.restype, library.ggml_backend_dev_get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.ggml_backend_dev_name.restype, library.ggml_backend_dev_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    devices = [library.ggml_backend_dev_get(i) for i in range(library.ggml_backend_dev_count())]
    return [library.ggml_backend_dev_name(device).decode() for device in devices]


def correlations(logits: dict[str, list[float]]) -> dict[str, float]:
    """Of vkprefill's logits with those of each other engine: near 1 where all compute the same model."""
    own = logits.pop(ENGINES["vkprefill"], None)
    return {} if own is None else {engine: float(np.corrcoef(own, theirs)[0, 1]) for engine, theirs in logits.items()}


def ratios(figures: list[Figure]) -> str:
    """How many times as fast vkprefill is as each of the others."""
    medians = {(f.name, f.unit): f.median for f in figures}
    lines = []
    for (name, unit), value in medians.items():
        engine, test = name.split(": ", 1)
        own = medians.get((f"{ENGINES['vkprefill']}: {test}", unit))
        if engine != ENGINES["vkprefill"] and own:
            lines.append(f"- {test}, {unit}: vkprefill is {own / value:.3g} times {engine}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
