"""The self-test of `vkprefill doctor` in this process: it passes, misses no kernel, and notices what is wrong."""

import dataclasses
import math

import numpy as np
import pytest

from vkprefill.selftest import built_in, reference
from vkprefill.selftest.checks import all_checks, not_here
from vkprefill.selftest.forms import profiles
from vkprefill.selftest.trial import EXACT, Trial, difference
from vkprefill.vulkan import program
from vkprefill.vulkan.shaders import load_shader, manifest


def findings_of(device, name: str) -> list:
    """Of the first check whose name begins so."""
    check = next(check for check in all_checks(device) if check.name.startswith(name))
    with Trial(device) as trial:
        check.run(trial)
        return trial.findings


def test_every_kernel_is_checked_and_right(device):
    before, recorded, compared, names = device.allocated.total(), set(), set(), []
    for check in all_checks(device):
        with Trial(device) as trial:
            check.run(trial)
            assert trial.findings and all(finding.ok for finding in trial.findings), check.name
            compared |= {name for finding in trial.findings for name in finding.kernels}
            recorded |= set(trial.recorded)
        names.append(check.name)
    assert compared == recorded
    assert recorded.isdisjoint(not_here(device)) and recorded | set(not_here(device)) == set(manifest())
    assert len(set(names)) == len(names)
    assert device.allocated.total() - before <= 16 << 20, "all went back but the slice for transfers"


# The checks to run for each of the reference's functions.
USED_IN = {
    "silu": ["swiglu", "causal_conv"],
    "sigmoid": ["attention_gate", "delta_gates"],
    "softplus": ["delta_gates"],
    "rms_norm": [
        "rms_norm",
        "rms_norm with halves",
        "head_norm_rope",
        "gated_norm",
        "mtp_input",
        "mtp_input as halves",
    ],
    "l2_norm": ["causal_conv"],
    "linear": ["products, ", "products of halves", "chosen rows"],
    "half_linear": ["products of halves"],
    "rotate": ["head_norm_rope"],
    "softmax_rows": ["softmax rows"],
    "attention": ["attention, "],
    "pooled": ["importance"],
    "route": ["choice of experts"],
}


def off_by_a_thousandth(result):
    """Arrays of numbers, one or some; choices stay."""
    if isinstance(result, tuple):
        return tuple(off_by_a_thousandth(part) for part in result)
    return result * 1.001 if result.dtype.kind == "f" else result


@pytest.mark.parametrize("function", USED_IN)
def test_a_result_off_by_a_thousandth_is_noticed(device, monkeypatch, function):
    right = getattr(reference, function)
    monkeypatch.setattr(reference, function, lambda *given, **more: off_by_a_thousandth(right(*given, **more)))
    for name in USED_IN[function]:
        assert not all(finding.ok for finding in findings_of(device, name)), name


@pytest.mark.parametrize(("function", "name"), [("causal_conv", "causal_conv"), ("delta_rule", "delta_rule")])
@pytest.mark.parametrize("part", [0, 1], ids=["output", "state"])
def test_outputs_and_states_are_both_looked_at(device, monkeypatch, function, name, part):
    right = getattr(reference, function)

    def wrong(*given):
        results = list(right(*given))
        results[part] = results[part] * 1.001
        return tuple(results)

    monkeypatch.setattr(reference, function, wrong)
    bad = [finding for finding in findings_of(device, name) if not finding.ok]
    assert len(bad) >= 2 and {kernel.removesuffix("_shuffle") for f in bad for kernel in f.kernels} == {name}


def test_another_best_token_is_noticed(device, monkeypatch):
    right = reference.best_tokens
    monkeypatch.setattr(reference, "best_tokens", lambda *given: (right(*given)[0][::-1], right(*given)[1]))
    ids, values, *_ = findings_of(device, "best tokens")  # the rest: where only some are allowed
    assert not ids.ok and values.ok


def test_what_is_not_written_is_noticed(device, monkeypatch):
    """A dispatch of nothing but the first workgroup."""
    dispatch = program.Program.dispatch
    monkeypatch.setattr(
        program.Program,
        "dispatch",
        lambda self, name, buffers, grid, **more: dispatch(self, name, buffers, (1, 1, 1), **more),
    )
    (bad, *_) = findings_of(device, "rms_norm")
    assert bad.error == math.inf and not bad.ok and "are not finite, first [1, 0]: nan" in bad.where


def test_the_built_in_pair_is_asked_in_both_ways_and_precisions(device, monkeypatch):
    """And speculative prefill drops tokens, or its status would be another."""
    asked, generate = [], built_in.generate

    def noted(target, *given, **options):
        asked.append((target.precision, "draft" in options))
        return generate(target, *given, **options)

    monkeypatch.setattr(built_in, "generate", noted)
    with Trial(device) as trial:
        built_in.built_in_check().run(trial)
    assert asked == [("full", False), ("full", True), ("half", False), ("half", True)]


def test_a_check_that_ends_in_an_error_gives_its_memory_back(device, monkeypatch):
    findings_of(device, "swiglu")  # the slice for transfers is there
    before = device.allocated.total()

    def broken(name: str):
        raise MemoryError(name)

    monkeypatch.setattr(program, "load_shader", broken)
    with pytest.raises(MemoryError):
        findings_of(device, "swiglu")
    assert device.allocated.total() == before


def test_own_profile_comes_first_and_forms_differ(device):
    found = profiles(device)
    assert found[0] is device.profile
    switches = [tuple(v for v in dataclasses.astuple(profile) if isinstance(v, bool)) for profile in found]
    assert len(set(switches)) == len(switches) >= 2


def test_kernels_that_need_a_feature_are_named_with_it(device, monkeypatch):
    monkeypatch.setattr(device, "abilities", dataclasses.replace(device.abilities, features=frozenset()))
    lacking = {name: ", ".join(sorted(load_shader(name).features)) for name in manifest() if load_shader(name).features}
    assert lacking and {name: not_here(device)[name] for name in lacking} == {
        name: f"needs {features}" for name, features in lacking.items()
    }


def test_difference():
    error, where = difference(np.array([1.0, 2.0, 3.5]), np.array([1.0, 2.0, 3.0]))
    assert error == pytest.approx(0.5 / np.sqrt(14 / 3)) and where == "worst at [2]: found 3.5, wanted 3"
    assert difference(np.array([[0.0], [np.inf]]), np.zeros((2, 1)))[0] == math.inf
    assert difference(np.zeros(3), np.zeros(3))[0] == 0.0 <= EXACT.error
