"""Where the tasks of vkprefill eval are run: on a device here, or by Ray's actors."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from vkprefill.cli.common import kv_type, model_path, open_pair, told_scoring
from vkprefill.cli.eval_options import budgets_of, methods_of, variants_of
from vkprefill.distributed.places import Places
from vkprefill.distributed.pool import results
from vkprefill.engine.model import Model
from vkprefill.engine.outline import Outline
from vkprefill.errors import RequestError, VkPrefillError
from vkprefill.evaluation.comparisons import Comparisons
from vkprefill.evaluation.methods import Budget, Variant, uses_of
from vkprefill.evaluation.runs import Evaluation, Outcome, Step
from vkprefill.evaluation.task import Task
from vkprefill.gguf.file import open_gguf
from vkprefill.specprefill.self_scorer import scoring_layers
from vkprefill.specprefill.unused import Use

BY_RAY = "devices of Ray"


@dataclass(frozen=True)
class Device:
    """What outcomes depend on."""

    name: str
    driver: str
    precision: str

    @classmethod
    def of(cls, model: Model) -> Device:
        return cls(model.device.info.name, model.device.info.driver, model.precision)


@dataclass(frozen=True)
class Plan:
    """What is compared."""

    methods: Sequence[str]
    budgets: Sequence[Budget]
    variants: Sequence[Variant]

    @classmethod
    def of(cls, args: argparse.Namespace) -> Plan:
        """RequestError for options that do not fit together."""
        budgets, variants = budgets_of(args), variants_of(args)
        return cls(methods_of(args), budgets, variants)

    @property
    def uses(self) -> list[Use]:
        return uses_of(self.methods, self.variants)


class Here:
    """Models that are loaded here. devices: the one that they are on; max_context: of the model."""

    def __init__(self, args: argparse.Namespace, plan: Plan) -> None:
        self._args, self._plan = args, plan

    @contextmanager
    def open(self) -> Iterator[Here]:
        args, plan = self._args, self._plan
        with open_pair(args, uses=plan.uses) as (self.model, self.draft, _):
            self._evaluation = Evaluation(
                self.model,
                self.draft,
                plan.methods,
                plan.budgets,
                plan.variants,
                self_layers=layers_of(args, self.model),
                max_tokens=args.n_predict,
                seed=args.seed,
            )
            self.comparisons, self.devices = self._evaluation.comparisons, {Device.of(self.model)}
            self.max_context: int | None = self.model.max_context
            with closing(self._evaluation):
                yield self

    @property
    def resumed_on(self) -> dict[str, object]:
        """What must be the same for outcomes to be gone on with."""
        (device,) = self.devices
        return {"device": device.name, "kv_type": self.model.kv_type, "precision": device.precision}

    @contextmanager
    def started(self, todo: Sequence[Task]) -> Iterator[Callable[[Task, Step], Iterable[Outcome]]]:
        """What gives the outcomes of each task to be done, asked for in order; RequestError for one that has none."""
        yield lambda task, step: self._evaluation.run([task], step)


class ByRay:
    """Models in actors; here their files are only looked into. devices: those that outcomes came from; max_context: the
    one that is asked for, None where each task will be told.
    """

    def __init__(self, args: argparse.Namespace, plan: Plan, places: Places) -> None:
        self._args, self._plan, self._places = args, plan, places

    @contextmanager
    def open(self) -> Iterator[ByRay]:
        args, plan = self._args, self._plan
        _, draft = told_scoring(args, plan.uses)
        self.model = Outline(open_gguf(model_path(args)))
        self.draft = None if draft is None else Outline(open_gguf(draft))
        self.comparisons = Comparisons(
            self.model.config,
            draft is not None,
            plan.methods,
            plan.budgets,
            plan.variants,
            layers_of(args, self.model),
        )
        self.max_context, self.devices = args.ctx_size, set()
        yield self

    @property
    def resumed_on(self) -> dict[str, object]:
        return {"device": BY_RAY, "kv_type": kv_type(self._args), "precision": self._args.precision}

    @contextmanager
    def started(self, todo: Sequence[Task]) -> Iterator[Callable[[Task, Step], Iterable[Outcome]]]:
        work = EvalWork(for_actors(self._args), self._plan, identity(self.model))
        with results(self._places, work, todo) as found:

            def outcomes_of(task: Task, step: Step) -> list[Outcome]:
                step(task.id)
                try:
                    one = next(found)
                except RequestError as error:
                    raise VkPrefillError(str(error)) from None  # this is of all tasks
                if isinstance(one, RequestError):
                    raise one
                outcomes, device = one
                self.devices.add(device)
                return outcomes

            yield outcomes_of


@dataclass(frozen=True)
class EvalWork:
    """An actor's: the options of the command line, and what tells the model's file."""

    args: argparse.Namespace
    plan: Plan
    identity: dict[str, object]

    @contextmanager
    def open(self, device: str | None) -> Iterator[Callable[[Task], tuple[list[Outcome], Device]]]:
        self.args.device = device
        with Here(self.args, self.plan).open() as here:
            if (found := identity(here.model)) != self.identity:
                raise RequestError(f"model: found {found}, wanted {self.identity}")
            (device,) = here.devices
            with here.started([]) as outcomes_of:
                yield lambda task: (list(outcomes_of(task, lambda what: None)), device)


def for_actors(args: argparse.Namespace) -> argparse.Namespace:
    """The options that actors need, with paths that do not depend on where they run."""
    left_out = ("run", "parser", "sorted_drafts")
    kept = argparse.Namespace(**{name: value for name, value in vars(args).items() if name not in left_out})
    if args.model is not None:
        kept.model = str(Path(args.model).absolute())
    if args.model_draft is not None:
        kept.model_draft = [str(Path(path).absolute()) for path in args.model_draft]
    return kept


def layers_of(args: argparse.Namespace, model: Outline) -> list[int] | None:
    return scoring_layers(model.config) if args.self_layers == "all" else args.self_layers


def identity(model: Outline) -> dict[str, object]:
    """What tells a model's file from others of its name."""
    return {"name": model.path.name, "bytes": model.path.stat().st_size}
