"""`python -m vkprefill.selftest.worker`: the process of `vkprefill doctor` that touches the driver, which may crash it.

Reads its job from its argument as JSON: the device that is asked for, the number of the first check to run. Writes a
line of JSON for each piece of news (see run.py, which reads them).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict

from vkprefill.errors import DeviceError, VkPrefillError
from vkprefill.selftest.built_in import WrongAnswer, built_in_check
from vkprefill.selftest.checks import all_checks, not_here
from vkprefill.selftest.facts import of_device, of_machine, without_device
from vkprefill.selftest.trial import Check, Trial
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.probe import choose

Tell = Callable[..., None]


def work(job: dict, tell: Tell) -> None:
    """Facts, then the checks in order. Raises VkPrefillError where there is no device to be used."""
    tell(facts=of_machine())
    try:
        info = choose(job["device"])
    except DeviceError:
        tell(facts=without_device())
        raise
    tell(facts=of_device(info))
    device = Device.open(info.index)
    checks = [*all_checks(device), built_in_check()]
    tell(checks=[check.name for check in checks], not_here=not_here(device))
    for number in range(job["first"], len(checks)):
        tell(begin=number)
        run_check(device, checks[number], tell)
        if device.lost:
            return  # the next process goes on
    tell(end=True)


def run_check(device: Device, check: Check, tell: Tell) -> None:
    with Trial(device) as trial:
        failure = ""
        try:
            check.run(trial)
        except WrongAnswer as error:
            failure = str(error)
        except Exception as error:  # whatever it is: the other checks still say something
            what = "" if isinstance(error, VkPrefillError) else f"{type(error).__name__}: "
            failure = f"cannot run: {what}{error}"
        tell(findings=[asdict(finding) for finding in trial.findings], failure=failure)


def own_stdout() -> Tell:
    """Tells on what was stdout; what drivers print there goes to stderr from now on."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(**news: object) -> None:
        stream.write(json.dumps(news) + "\n")
        stream.flush()

    return tell


if __name__ == "__main__":
    tell = own_stdout()
    try:
        work(json.loads(sys.argv[1]), tell)
    except VkPrefillError as error:
        tell(error=str(error))
