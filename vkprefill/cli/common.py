"""Options and manners that the subcommands share: the model, sampling, the prompt, progress on stderr."""
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vkprefill.errors import RequestError
from vkprefill.memory import KV_TYPES
from vkprefill.model import Model, PrefillProgress, load
from vkprefill.sampling import SamplingConfig

DEMO_TARGET = "target.gguf"


def notice(text: str) -> None:
    """A line for the user, on stderr: stdout is the answer's."""
    if sys.stderr is not None:  # closed by the caller; print would take stdout
        print(text, file=sys.stderr, flush=True)


def add_model_options(parser: argparse.ArgumentParser, *, device: bool = True) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("-m", "--model", metavar="FILE", help="GGUF file (default: the built-in demo model)")
    group.add_argument("-c", "--ctx-size", type=int, metavar="N", help="context length in tokens (default: the file's, or what fits in memory)")
    group.add_argument("-b", "--batch-size", type=int, metavar="N", help="tokens of one step of prefill (default: by device)")
    group.add_argument("-ctk", "--cache-type-k", choices=KV_TYPES, default="f16", help="type of the KV cache (default: f16)")
    group.add_argument("-ctv", "--cache-type-v", choices=KV_TYPES, help="the same as -ctk; keys and values have one type")
    if device:
        group.add_argument("--device", metavar="DEVICE", help="index or part of the name of a Vulkan device (see: vkprefill devices)")


def kv_type(args: argparse.Namespace) -> str:
    if args.cache_type_v not in (None, args.cache_type_k):
        raise RequestError(f"-ctk {args.cache_type_k} -ctv {args.cache_type_v}: keys and values must have the same type")
    return args.cache_type_k


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling (defaults: the file's general.sampling.* keys, else Qwen3.5's model card)")
    group.add_argument("--temp", type=float, metavar="T", help="temperature; 0 takes the most probable token")
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K most probable tokens; 0 keeps all")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the most probable tokens that make up P")
    group.add_argument("--min-p", type=float, metavar="P", help="keep tokens at least P times as probable as the first")
    group.add_argument("--presence-penalty", type=float, metavar="X", help="taken once from the logits of tokens generated before")
    group.add_argument("-s", "--seed", type=int, metavar="N", help="seed; -1 or none for a new one each time")


def add_answer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--n-predict", type=int, default=-1, metavar="N", help="at most N tokens; -1: until the end of the answer or the context")
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message before the conversation")
    parser.add_argument("--chat-template-kwargs", metavar="JSON", help='variables of the chat template, such as \'{"enable_thinking": false}\'')


def sampling_config(args: argparse.Namespace) -> SamplingConfig:
    return SamplingConfig(temperature=args.temp, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p,
                          presence_penalty=args.presence_penalty, seed=None if args.seed == -1 else args.seed)


def max_tokens(args: argparse.Namespace) -> int | None:
    if args.n_predict == -1:
        return None
    if args.n_predict < 1:
        raise RequestError(f"-n: found {args.n_predict}, wanted -1 or at least 1")
    return args.n_predict


def template_kwargs(args: argparse.Namespace) -> dict[str, object]:
    if args.chat_template_kwargs is None:
        return {}
    try:
        value = json.loads(args.chat_template_kwargs)
    except ValueError as error:
        raise RequestError(f"--chat-template-kwargs: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"--chat-template-kwargs: found {type(value).__name__}, wanted a JSON object")
    return value


def demo_path(name: str) -> Path:
    return Path(str(files("vkprefill") / "data" / name))


def model_path(args: argparse.Namespace) -> Path:
    """The file to use; says so when it is the built-in one."""
    if args.model is not None:
        return Path(args.model)
    notice("no -m given: using the built-in demo model, which answers questions about facts in a long text")
    return demo_path(DEMO_TARGET)


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """A bar on a terminal, nothing when stderr is piped; it goes away when done."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


@contextmanager
def open_model(args: argparse.Namespace) -> Iterator[Model]:
    """Load the model of the options, with a progress line for each stage; closed at the end."""
    path, kind = model_path(args), kv_type(args)
    console = Console(stderr=True)
    with progress_bar(console) as bar:
        tasks: dict[str, int] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        model = load(path, args.device, args.ctx_size, kind, prefill_chunk=args.batch_size, progress=report)
    with model:
        if args.ctx_size is None:
            notice(f"{model.config.name} on {model.device.info.name}, context {model.max_context} tokens "
                   f"({'the file has' if model.max_context == model.config.max_position_embeddings else 'what fits; the file has'} "
                   f"{model.config.max_position_embeddings})")
        if args.verbose:
            for line in describe_kernels(model):
                notice(line)
        yield model


def describe_kernels(model: Model) -> list[str]:
    """What runs: nothing falls back to the CPU; the list says which shader variants a forward pass uses."""
    device = model.device
    barriers = "one memory barrier for each dependency" if device.has_barrier else "one submission for each dependency (barrier operation not built)"
    return [f"device {device.info.index}: {device.info.name} ({device.info.driver}), profile {device.profile.name}",
            f"prefill in chunks of {model.prefill_chunk} tokens, KV cache {model.kv_type}, {barriers}",
            f"kernels: {', '.join(model.kernels())}"]


@contextmanager
def prefill_bar() -> Iterator[PrefillProgress]:
    """A callback that shows prefill's progress."""
    with progress_bar(Console(stderr=True)) as bar:
        task = bar.add_task("prefill", total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=done < total)

        yield report


def speeds(timings: dict[str, object]) -> str:
    """The timings as one line."""
    line = f"prompt: {timings['prompt_n']} tokens in {timings['prompt_ms'] / 1e3:.2f} s"
    if timings["prompt_per_second"]:
        line += f" ({timings['prompt_per_second']:.1f} per second)"
    if timings["cache_n"]:
        line += f", {timings['cache_n']} from the cache"
    line += f"; answer: {timings['predicted_n']} tokens in {timings['predicted_ms'] / 1e3:.2f} s"
    if timings["predicted_per_second"]:
        line += f" ({timings['predicted_per_second']:.1f} per second)"
    return line
