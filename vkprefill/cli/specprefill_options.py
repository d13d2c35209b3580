"""Flags of speculative prefill, one for each field of SpecPrefillConfig: keep_ratio has --specprefill-keep-ratio."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields

from vkprefill.errors import RequestError
from vkprefill.specprefill.plan import SpecPrefillReport
from vkprefill.specprefill.setting_types import Switch, read
from vkprefill.specprefill.settings import DRAFT, PRESETS, SELF, VARIABLES, SpecPrefillConfig, variable_of
from vkprefill.specprefill.unused import Use, unused, unused_by_all

PREFIX = "--specprefill"
CHECKS = ("check", "on_mismatch", "check_share", "check_idle")


def flag(name: str) -> str:
    """The flag of a setting."""
    return f"{PREFIX}-{name.replace('_', '-')}"


def add_specprefill_options(parser: argparse.ArgumentParser, defaults: SpecPrefillConfig | None = None) -> None:
    """Add the flags in a group of their own; `defaults` where a subcommand has others than SpecPrefillConfig."""
    defaults = defaults or SpecPrefillConfig()
    group = parser.add_argument_group(
        "speculative prefill",
        "A draft model, or the model itself in its early layers, finds the prompt tokens that matter; only those are "
        "prefilled.",
    )
    switch = argparse.BooleanOptionalAction
    group.add_argument(
        PREFIX,
        action=switch,
        help="switch it on or off (default: on where there is a draft model, or scorer self is chosen; switched on "
        "without a draft, the model scores itself)",
    )
    group.add_argument(
        flag("preset"), choices=tuple(PRESETS), help="start from these settings in place of the defaults and variables"
    )
    for setting in fields(SpecPrefillConfig):
        kind, variable = setting.metadata["kind"], setting.metadata["variable"]
        default = kind.text(getattr(defaults, setting.name))
        source = f"; variable {variable}" if variable else ""
        text = f"{setting.metadata['help']} (default: {default}{source})".replace("%", "%%")
        if isinstance(kind, Switch):
            group.add_argument(flag(setting.name), action=switch, help=text)
        else:
            bare = setting.metadata["bare"]
            more = {"nargs": "?", "const": bare} if bare else {}
            group.add_argument(flag(setting.name), metavar=kind.metavar, help=text, **more)
    parser.set_defaults(specprefill_defaults=defaults)


def refuse_checks(args: argparse.Namespace, why: str = "not for this subcommand, which checks no answers") -> None:
    """RequestError for flags of checked answers where a subcommand gives no answer that they check."""
    for name in CHECKS:
        if getattr(args, f"specprefill_{name}") is not None:
            raise RequestError(f"{flag(name)}: {why}")


def given_settings(args: argparse.Namespace) -> list[str]:
    """The flags of settings that were given."""
    names = ["preset", *(setting.name for setting in fields(SpecPrefillConfig))]
    return [flag(name) for name in names if _is_flag(args, name)]


def _is_flag(args: argparse.Namespace, name: str) -> bool:
    return getattr(args, f"specprefill_{name}", None) is not None


def asked_by(args: argparse.Namespace, name: str, env: Mapping[str, str] = os.environ) -> str | None:
    """How a setting was asked for: by its flag or its variable; None: it was not."""
    if _is_flag(args, name):
        return flag(name)
    variable = variable_of(name)
    return variable if variable is not None and variable in env else None


def unused_settings(
    args: argparse.Namespace, config: SpecPrefillConfig, uses: Sequence[Use], env: Mapping[str, str] = os.environ
) -> list[str]:
    """A line for each reason why flags and variables that were given have no part in any of these uses."""
    reasons: dict[str, list[str]] = {}
    if args.specprefill_preset is not None and (variables := [name for name in VARIABLES if name in env]):
        reasons[f"{flag('preset')} stands in place of variables"] = variables
    for name, why in unused_by_all(config, uses).items():
        if asked := asked_by(args, name, env):
            reasons.setdefault(why, []).append(asked)
    return [f"{', '.join(names)}: not used, {why}" for why, names in reasons.items()]


def specprefill_config(args: argparse.Namespace, env: Mapping[str, str] = os.environ) -> SpecPrefillConfig | None:
    """The settings that the flags ask for; None with --no-specprefill. See all_settings."""
    config = all_settings(args, env)
    return None if args.specprefill is False else config


def all_settings(args: argparse.Namespace, env: Mapping[str, str] = os.environ) -> SpecPrefillConfig:
    """The settings that the flags give, with --no-specprefill too. A flag beats a variable beats a default.

    With --specprefill-preset the preset's settings hold exactly, but for those that have a flag: no variable counts.

    Raises:
        RequestError: a bad value, naming the flag or variable.
    """
    given = {}
    for setting in fields(SpecPrefillConfig):
        value = getattr(args, f"specprefill_{setting.name}")
        if value is not None:
            kind = setting.metadata["kind"]
            given[setting.name] = value if isinstance(kind, Switch) else read(flag(setting.name), kind, value)
    if args.specprefill_preset is not None:
        return SpecPrefillConfig.preset(args.specprefill_preset).having(given, given=given)
    return SpecPrefillConfig.from_environment(env, args.specprefill_defaults, **given)


def use_of(draft: object) -> Use:
    """What settings are used for with this draft; None: the model scores prompts itself."""
    return Use(SELF if draft is None else DRAFT)


def describe_specprefill(report: SpecPrefillReport, spec: SpecPrefillConfig, draft: object) -> str:
    """What speculative prefill did, as one line. spec, draft: the settings and the draft, if there is one: what
    has no part for these has been said before."""
    line = f"speculative prefill: {report.status}: {report.reason}"
    if report.status == "active" and report.score_ms:
        line += (
            f"; first token after {report.ttft_ms / 1e3:.2f} s (scoring {report.score_ms / 1e3:.2f}, look-ahead "
            f"{report.lookahead_ms / 1e3:.2f}, prefill {report.sparse_prefill_ms / 1e3:.2f})"
        )
    if report.dense_estimate_ms:
        line += f"; dense prefill would take about {report.dense_estimate_ms / 1e3:.2f} s"
    said = unused(spec, use_of(draft))
    return line + "".join(f"; {name}: not used, {why}" for name, why in report.unused.items() if name not in said)
