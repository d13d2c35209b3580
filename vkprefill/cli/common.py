"""What the subcommands share: options of the model, the draft and sampling, loading, notices and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vkprefill.cli.draft_files import DraftFiles, sorted_drafts
from vkprefill.cli.drafting_options import may_use_block, unused_flags, window
from vkprefill.cli.parser import MODEL, PROMPT, group_of
from vkprefill.cli.specprefill_options import (
    add_specprefill_options,
    given_settings,
    specprefill_config,
    unused_settings,
    use_of,
)
from vkprefill.cli.steer_options import steers
from vkprefill.display import printable
from vkprefill.engine.halves import PRECISIONS
from vkprefill.engine.model import Model, load
from vkprefill.engine.runner import PrefillProgress
from vkprefill.engine.sizes import KV_TYPES
from vkprefill.errors import RequestError
from vkprefill.generation.generate import GenerationPart
from vkprefill.generation.prompt import template_variables
from vkprefill.hub.at_hand import DEMO_DRAFT, DEMO_TARGET, demo_path
from vkprefill.log_lines import line_of
from vkprefill.specprefill.calibration import SPEEDS
from vkprefill.specprefill.pair import draft_room, prepare_pair, self_room
from vkprefill.specprefill.settings import DRAFT, SELF, SpecPrefillConfig
from vkprefill.specprefill.unused import Use
from vkprefill.text.strict_json import loads

TEMPLATE_TOKENS = 1024  # what a chat template may add to a prompt


def notice(text: str, end: str = "\n") -> None:
    """A line for the user, on stderr: stdout is the answer's."""
    if sys.stderr is not None:  # closed by the caller; print would take stdout
        with suppress(OSError):  # a full disk behind stderr must not cost the answer
            print(line_of(text), end=end, file=sys.stderr, flush=True)


def terminal_text(text: str) -> str:
    """The value of an option that is text for the model. Raises RequestError where its bytes were none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte, encoding = ord(text[error.start]) & 0xFF, sys.getfilesystemencoding().upper()
        raise RequestError(
            f"command line: byte 0x{byte:02X} in {printable(text)} is not {encoding}, the terminal's encoding"
        ) from None
    return text


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = group_of(parser, MODEL)
    group.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        help="GGUF file, or a name that `vkprefill models` lists (default: the built-in demo model)",
    )
    group.add_argument(
        "-hf",
        "--hf-repo",
        metavar="USER/REPO[:QUANT]",
        help="fetch the model from Hugging Face into the cache that its programs share (default: Q4_K_M, else the "
        "first file)",
    )
    group.add_argument("--offline", action="store_true", help="ask no hub: -hf and -hfd take what was fetched before")
    group.add_argument(
        "-c",
        "--ctx-size",
        type=int,
        metavar="N",
        help="context length in tokens (default: the file's, or what fits in memory)",
    )
    group.add_argument(
        "-b", "--batch-size", type=int, metavar="N", help="tokens of one step of prefill (default: by device)"
    )
    group.add_argument("-ctk", "--cache-type-k", choices=KV_TYPES, help="type of the KV cache (default: f16)")
    group.add_argument(
        "-ctv", "--cache-type-v", choices=KV_TYPES, help="the same as -ctk; keys and values have one type"
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="of prefill's products: full is float32, half sums products of halves in float32, auto is half where the "
        "device has an instruction for them (default: auto)",
    )
    group.add_argument(
        "--device", metavar="DEVICE", help="index or part of the name of a Vulkan device (see: vkprefill devices)"
    )


def add_draft_options(parser: argparse.ArgumentParser, defaults: SpecPrefillConfig | None = None) -> None:
    group = group_of(parser, MODEL)
    group.add_argument(
        "-md",
        "--model-draft",
        action="append",
        metavar="FILE",
        help="draft model for speculative prefill, of the same vocabulary; auto: the best of those that `vkprefill "
        "models` lists; or the model's multi-token-prediction block in a file of its own, used in place of that in the "
        "model's file; given twice: both (default: none; with the built-in model its own)",
    )
    group.add_argument(
        "-hfd", "--hf-repo-draft", metavar="USER/REPO[:QUANT]", help="fetch the draft model from Hugging Face, as -hf"
    )
    add_specprefill_options(parser, defaults)


def kv_type(args: argparse.Namespace) -> str:
    keys, values = args.cache_type_k or KV_TYPES[0], args.cache_type_v
    if values not in (None, keys):
        given = f"-ctk {keys} -ctv {values}" if args.cache_type_k else f"-ctv {values} without -ctk, then {keys}"
        raise RequestError(f"{given}: keys and values must have the same type")
    return keys


def add_template_options(parser: argparse.ArgumentParser) -> None:
    group = group_of(parser, PROMPT)
    group.add_argument(
        "-sys",
        "--system-prompt",
        type=terminal_text,
        metavar="TEXT",
        help="system message before the conversation",
    )
    group.add_argument(
        "--chat-template-kwargs",
        type=terminal_text,
        metavar="JSON",
        help="variables of the chat template, such as '{\"enable_thinking\": false}'",
    )


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
        value = loads(args.chat_template_kwargs)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--chat-template-kwargs: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"--chat-template-kwargs: found {type(value).__name__}, wanted a JSON object")
    return template_variables(value)


def model_path(args: argparse.Namespace, *, told: bool = True) -> Path:
    """The file to use; says so when it is the built-in one, unless it is told elsewhere."""
    if args.model is not None:
        return named_file("-m", args.model)
    if told:
        notice("no -m given: using the built-in demo model, which answers questions about facts in a long text")
    return demo_path(DEMO_TARGET)


def named_file(flag: str, path: str) -> Path:
    """RequestError for an empty name, which a path would take for the folder."""
    if not path:
        raise RequestError(f"{flag}: it is empty, wanted a GGUF file")
    return Path(path)


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """A bar on a terminal, nothing when stderr is piped; it goes away when done. While it is there, nothing may be
    printed to stdout, which may be the same terminal.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not shown) as bar:
        yield bar


def model_options(args: argparse.Namespace) -> dict[str, object]:
    """Options of `load`, but the device."""
    return {
        "max_context": args.ctx_size,
        "kv_type": kv_type(args),
        "prefill_chunk": args.batch_size,
        "precision": args.precision,
        **block_wanted(args),
        "steer": steers(args),
    }


@contextmanager
def open_model(args: argparse.Namespace, *, reserve_bytes: int = 0) -> Iterator[Model]:
    """Load the model of the options, with a progress line for each stage; closed at the end."""
    with _loading() as report:
        path = model_path(args)
        model = load(path, args.device, **model_options(args), reserve_bytes=reserve_bytes, progress=report)
    with model:
        file_context = model.config.max_position_embeddings
        if args.ctx_size is not None and args.ctx_size > file_context:
            notice(f"-c {args.ctx_size}: more than the {file_context} tokens that the file was trained for")
        if args.ctx_size is None:
            notice(
                f"{model.config.name} on {model.device.info.name}, context {model.max_context} tokens "
                f"({'' if model.max_context == file_context else 'what fits; '}the file has {file_context})"
            )
        if args.verbose:
            for line in describe_kernels(model):
                notice(line)
        if not model.has_mtp and may_use_block(args) and (unused := unused_flags(args, has_block=False)):
            notice(f"{', '.join(unused)}: not used, {printable(model.path.name)} has no multi-token-prediction block")
        yield model


@contextmanager
def open_pair(
    args: argparse.Namespace, prompt_bytes: int | None = None, uses: Sequence[Use] = ()
) -> Iterator[tuple[Model, Model | None, SpecPrefillConfig | None]]:
    """The model, its draft if there is one to use, and the settings of speculative prefill (None: it is off).

    prompt_bytes: length of the only prompt there will be, which bounds its tokens; None when it is not known; uses:
    what the settings are for (none: for prompts that are scored by who is there).
    """
    spec, path = told_scoring(args, uses)
    if spec is None:
        with open_model(args) as model:
            yield model, None, None
        return
    if uses and not any(use.guarded for use in uses):
        spec = spec.having({"break_even": False})  # no guards, so no speeds to measure
    wanted = args.ctx_size or (None if prompt_bytes is None else prompt_bytes + TEMPLATE_TOKENS)
    loading = {"kv_type": kv_type(args), "prefill_chunk": args.batch_size, "precision": args.precision}
    if path is None:
        with open_model(args, reserve_bytes=self_room(model_path(args, told=False), wanted)) as model:
            prepare_pair(model, None, spec, _notice_measuring)
            yield model, None, spec
        return
    context, num_bytes = draft_room(path, spec, wanted, **loading)
    with open_model(args, reserve_bytes=num_bytes) as model:
        with _loading("draft: ") as report:
            draft = load(path, model.device, context, mtp=None, progress=report, **loading)
        with draft:
            prepare_pair(model, draft, spec, _notice_measuring)
            yield model, draft, spec


def scoring(args: argparse.Namespace) -> tuple[SpecPrefillConfig | None, Path | None]:
    """(settings of speculative prefill, None where it is off; the draft, None where the model scores itself).

    Without a draft the model does where that is asked for, by --specprefill or scorer self.
    """
    spec, path = specprefill_config(args), draft_path(args)
    if spec is None:
        return None, None
    if spec.scorer == DRAFT and path is None:
        raise RequestError("scorer draft: there is no draft model; give one with -md FILE, or take scorer self")
    if spec.scorer == SELF or path is None and args.specprefill:
        if draft_files(args).draft is not None:
            notice(f"-md {printable(str(path))}: not used, the model scores prompts itself")
        return spec.having({"scorer": SELF}), None
    return (None, None) if path is None else (spec, path)


def told_scoring(args: argparse.Namespace, uses: Sequence[Use] = ()) -> tuple[SpecPrefillConfig | None, Path | None]:
    """The same, and says which settings are not used. uses: see open_pair."""
    spec, path = scoring(args)
    if spec is None:
        if given := given_settings(args):
            notice(f"{', '.join(given)}: not used, {why_off(args)}")
    else:
        for line in unused_settings(args, spec, uses or [use_of(path)]):
            notice(line)
    return spec, path


def why_off(args: argparse.Namespace) -> str:
    """Why there is no speculative prefill."""
    why = "is off" if args.specprefill is False else "has no draft model (-md FILE, or scorer self)"
    return f"speculative prefill {why}"


def _notice_measuring(model: Model) -> None:
    path = SPEEDS.writable_file()
    once = f", once (kept in {path})" if path else ""
    notice(f"measuring the speed of {model.config.name} on this device{once}")


def draft_path(args: argparse.Namespace) -> Path | None:
    """The draft model for speculative prefill."""
    found = draft_files(args).draft
    return demo_path(DEMO_DRAFT) if found is None and args.model is None else found


def block_wanted(args: argparse.Namespace) -> dict[str, object]:
    """Options of `load`: the multi-token-prediction block, none where no tokens are drafted by it. Says what of the
    command line is not used then.
    """
    companion, unused = draft_files(args).companion, unused_flags(args)
    if may_use_block(args):
        return {"mtp": companion or "auto", "mtp_window": window(args)}
    if companion is not None:
        unused.insert(0, f"-md {printable(companion)}")
    if unused:
        why = f"with --spec-type {args.spec_type}" if "spec_type" in args else "here, where no tokens are drafted"
        notice(f"{', '.join(unused)}: not used {why}")
    return {"mtp": None}


def draft_files(args: argparse.Namespace) -> DraftFiles:
    """Those of -md; they are looked into once."""
    if "sorted_drafts" not in args:
        args.sorted_drafts = sorted_drafts(getattr(args, "model_draft", None) or ())
    return args.sorted_drafts


@contextmanager
def _loading(prefix: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """A callback that shows a bar for each stage of loading."""
    with progress_bar(Console(stderr=True)) as bar:
        tasks: dict[str, int] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(prefix + stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield report


def describe_kernels(model: Model) -> list[str]:
    """What runs: nothing falls back to the CPU; the list says which shader variants a forward pass uses."""
    device = model.device
    barriers = (
        "one memory barrier for each dependency"
        if device.has_barrier
        else "one submission for each dependency (barrier operation not built)"
    )
    return [
        f"device {device.info.index}: {device.info.name} ({device.info.driver}), profile {device.profile.name}",
        str(device.abilities),
        f"prefill in chunks of {model.prefill_chunk} tokens, precision {model.precision}, KV cache {model.kv_type}, "
        f"{barriers}",
        f"kernels: {', '.join(model.kernels())}",
    ]


@contextmanager
def prefill_bar() -> Iterator[PrefillProgress]:
    """A callback that shows prefill's progress."""
    with progress_bar(Console(stderr=True)) as bar:
        task = bar.add_task("prefill", total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=done < total)

        yield report


def show_prefill(stream: Callable[..., Iterator[GenerationPart]]) -> Iterator[GenerationPart]:
    """The parts of stream(progress=...), with a bar until the first."""
    with ExitStack() as bar:
        for part in stream(progress=bar.enter_context(prefill_bar())):
            bar.close()
            yield part


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
    if timings["draft_n"]:
        line += f", {timings['draft_n_accepted']} of {timings['draft_n']} drafted accepted"
    return line
