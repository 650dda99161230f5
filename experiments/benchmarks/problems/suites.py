"""The problems: COCO's suites (Hansen et al. 2021, doi 10.1080/10556788.2020.1808977) and the real black boxes.

A COCO problem is given by a function of a suite, its dimension and its instance; a real problem by a black box and its
instance, which is the seed. All are searched in [−5, 5]^d, to which the boxes of real problems are scaled. The start
depends on the problem alone: it is uniform in [−4, 4]^d, where COCO's minima are, or the black box defines it.

COCO's instances 1 to 3 are rejected: they are reserved for whoever checks these results.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from experiments.benchmarks.problems import constrained
from experiments.benchmarks.problems.coco_files import Progress, progress_in
from experiments.registry import MissingExtraError
from experiments.workloads.black_boxes import BLACK_BOXES, BlackBox
from experiments.workloads.black_boxes.tuning import WITH_INTEGERS, Tuning
from experiments.workloads.black_boxes.variables import named
from optimizers import Space

SIDE = 5.0
"""Half the side of the box."""

START_SIDE = 4.0
"""Half the side of the box in which starts are drawn."""

BOXES: dict[str, dict[str, BlackBox]] = {"real": BLACK_BOXES, "tuning": WITH_INTEGERS}
"""The suites of black boxes; each one maps names to black boxes."""

FIRST_INSTANCE = 4
LONGEST_SHIFT = 20_000

NOISELESS_GROUPS = {
    "separable": range(1, 6),
    "moderate": range(6, 10),
    "ill-conditioned": range(10, 15),
    "multimodal": range(15, 20),
    "weakly structured": range(20, 25),
}
NOISY_GROUPS = {
    "moderate noise": range(101, 107),
    "severe noise": range(107, 122),
    "severe noise, multimodal": range(122, 131),
}
CONSTRAINED_GROUPS = {
    "sphere": range(1, 7),
    "separable ellipsoid": range(7, 13),
    "linear slope": range(13, 19),
    "rotated ellipsoid": range(19, 25),
    "discus": range(25, 31),
    "bent cigar": range(31, 37),
    "different powers": range(37, 43),
    "separable Rastrigin": range(43, 49),
    "rotated Rastrigin": range(49, 55),
}
USUAL = (2, 3, 5, 10, 20, 40)
"""The dimensions of most suites."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """A set of problems.

    Attributes:
        name: COCO's name, or a key of ``BOXES``.
        dimensions: default dimensions; empty for black boxes, which have their own.
        groups: COCO's groups of functions.
        known: all dimensions of the suite.
        factor: default number of queries over d; a black box has its own budget.
        own_start: whether runs start at COCO's initial solution.
        stages: further numbers of queries over d after which methods are compared, if the budget exceeds all of them.
    """

    name: str
    dimensions: tuple[int, ...]
    groups: Mapping[str, range]
    known: tuple[int, ...]
    factor: int = 20
    own_start: bool = False
    stages: tuple[int, ...] = ()

    @property
    def functions(self) -> tuple[int | str, ...]:
        """Numbers of the functions, or names of the black boxes."""
        return tuple(BOXES.get(self.name) or (number for group in self.groups.values() for number in group))

    def group(self, function: int | str) -> str:
        """Returns the group of a function; the suite's name for a black box."""
        return next((name for name, numbers in self.groups.items() if function in numbers), self.name)


SUITES = {
    suite.name: suite
    for suite in (
        Suite("bbob", USUAL, NOISELESS_GROUPS, USUAL, stages=(2, 5, 10, 20, 50)),
        Suite("bbob-noisy", (5, 10, 20), NOISY_GROUPS, USUAL, stages=(2,)),
        Suite("bbob-largescale", (80, 160, 320, 640), NOISELESS_GROUPS, (20, 40, 80, 160, 320, 640), 2, stages=(2,)),
        Suite("bbob-constrained", USUAL, CONSTRAINED_GROUPS, USUAL, own_start=True, stages=(5, 10)),
        Suite("bbob-mixint", (5, 10, 20, 40), NOISELESS_GROUPS, (5, 10, 20, 40, 80, 160), own_start=True),
        *(Suite(name, (), {}, ()) for name in BOXES),
    )
}


@dataclasses.dataclass(frozen=True, order=True)
class Problem:
    """A problem and its budget.

    Attributes:
        suite: name of the suite.
        function: COCO's number, or the name of the black box.
        dimension: d.
        instance: COCO's instance, or the seed of the black box.
        queries: the budget.
    """

    suite: str
    function: int | str
    dimension: int
    instance: int
    queries: int

    @property
    def constraints(self) -> int:
        """The number of constraints."""
        constrained_suite = self.suite == "bbob-constrained"
        return constrained.count_of(int(self.function), self.dimension) if constrained_suite else 0

    @property
    def stages(self) -> tuple[int, ...]:
        """The suite's ``stages`` if the budget exceeds all of them, or else nothing."""
        found = SUITES[self.suite].stages
        return found if self.queries > max(found, default=math.inf) * self.dimension else ()

    @property
    def name(self) -> str:
        """The problem's name in the names of folders."""
        number = f"f{self.function:03d}" if isinstance(self.function, int) else self.function
        return f"{self.suite}_{number}_i{self.instance:02d}_d{self.dimension:02d}_q{self.queries}"


@dataclasses.dataclass
class Opened:
    """A problem that can be queried.

    Attributes:
        fun: maps a point of the space, shape ``d``, to f or, with constraints, to the pair (f, c).
        start: the start, shape ``d``.
        constraints: number of constraints c ≤ 0.
        space: bounds, integer and logarithmic variables; None: [−5, 5]^d.
        progress: the progress of the run, set when the problem is closed.
        strict: the progress with the strict tolerance of constraints.
    """

    fun: Callable[[np.ndarray], Any]
    start: np.ndarray
    constraints: int = 0
    space: Space | None = None
    progress: Progress | None = None
    strict: Progress | None = None


def chosen(
    suite: Suite,
    dimensions: Sequence[int],
    functions: Sequence[int | str],
    instances: Sequence[int],
    factor: int | None = None,
) -> list[Problem]:
    """Returns problems in the order of instance, dimension and function, so that a stopped run has whole instances.

    Args:
        suite: the suite.
        dimensions: values of d; empty: the suite's defaults. Ignored for real problems.
        functions: COCO's numbers, or names of black boxes; empty: all that can run here.
        instances: COCO's instances, from 4 on, or seeds of black boxes.
        factor: number of queries over d; None: the suite's default. Ignored for real problems.

    Raises:
        ValueError: for COCO's instances 1 to 3, or a function or dimension that the suite does not have.
        MissingExtraError: for a named black box whose packages are not installed.
    """
    if unknown := [function for function in functions if function not in suite.functions]:
        raise ValueError(f"{suite.name} has no function {unknown[0]}; it has {listed(suite.functions)}")
    names = list(functions or suite.functions)
    if known := BOXES.get(suite.name):
        boxes = [known[str(name)] for name in names]
        if missing := [box for box in boxes if box.missing and functions]:
            raise MissingExtraError(missing[0].name, missing[0].missing, "problems")
        here = [box for box in boxes if not box.missing]
        return [Problem(suite.name, box.name, box.dimension, i, box.budget) for i in instances for box in here]
    if early := [instance for instance in instances if instance < FIRST_INSTANCE]:
        raise ValueError(
            f"instances must be at least {FIRST_INSTANCE}, got {early[0]}: COCO's instances 1 to 3 are reserved for "
            "whoever checks the results"
        )
    if other := [d for d in dimensions if d not in suite.known]:
        raise ValueError(f"{suite.name} has no dimension {other[0]}; it has {listed(suite.known)}")
    return [
        Problem(suite.name, function, d, instance, (factor or suite.factor) * d)
        for instance in instances
        for d in dimensions or suite.dimensions
        for function in names
    ]


def listed(values: Iterable[object]) -> str:
    """Formats values with commas between them."""
    return ", ".join(map(str, values))


def opened(problem: Problem, method: str, folder: Path) -> AbstractContextManager[Opened]:
    """Opens a problem for one run in a ``with`` block, after which its ``progress`` is set.

    Args:
        problem: the problem.
        method: name of the method, for COCO's files.
        folder: an empty folder, into which COCO's observer writes its files; real problems write none.
    """
    return _opened_box(problem) if problem.suite in BOXES else _opened_coco(problem, method, folder)


@contextmanager
def _opened_box(problem: Problem) -> Iterator[Opened]:
    box = BOXES[problem.suite][str(problem.function)]
    found = (_in_own_units if problem.suite == "tuning" else _scaled)(box, problem.instance)
    fun, values = found.fun, list[float]()

    def recorded(x: np.ndarray) -> float:
        values.append(np.nan)
        values[-1] = float(fun(x))
        return values[-1]

    found.fun = recorded
    yield found
    found.progress = Progress.of(values)


def _scaled(box: BlackBox, seed: int) -> Opened:
    lower, upper = (np.asarray(side, dtype=float) for side in (box.lower, box.upper))
    fun, start = box.make(seed), np.asarray(box.start(seed), dtype=float)
    return Opened(
        lambda x: fun(lower + (upper - lower) * (x + SIDE) / (2 * SIDE)),
        (start - lower) / (upper - lower) * 2 * SIDE - SIDE,
    )


def _in_own_units(box: BlackBox, seed: int) -> Opened:
    task = cast(Tuning, box.draw(seed))
    space, start = task.space, named(task.variables, box.start(seed))
    return Opened(
        lambda x: task.loss(space.named(x)),
        np.array(list(start.values())),
        space=Space(space, integrality=space.integrality, log=space.log),
    )


@contextmanager
def _opened_coco(problem: Problem, method: str, folder: Path) -> Iterator[Opened]:
    import cocoex

    cocoex.log_level("warning")
    options = f"dimensions: {problem.dimension}"
    suite = cocoex.Suite(problem.suite, f"instances: {problem.instance}", options)
    coco = suite.get_problem_by_function_dimension_instance(problem.function, problem.dimension, problem.instance)
    rng = np.random.default_rng([int(problem.function), problem.dimension, problem.instance])
    start = rng.uniform(-START_SIDE, START_SIDE, problem.dimension)
    if SUITES[problem.suite].own_start:
        start = np.array(coco.initial_solution)
    if problem.suite == "bbob-noisy":
        _address_noise(coco, start, int(rng.integers(LONGEST_SHIFT)))
    told = constrained.Told(coco, start) if coco.number_of_constraints else None
    # COCO's options do not support blanks in paths.
    with tempfile.TemporaryDirectory(dir=None if " " in str(folder) else folder.parent) as place:
        files = f"result_folder: run outer_folder: {place} algorithm_name: {method}"
        coco.observe_with(cocoex.Observer(problem.suite, files))
        found = Opened(told or (lambda x: float(coco(x))), start, coco.number_of_constraints)
        if count := coco.number_of_integer_variables:
            box = np.column_stack([coco.lower_bounds, coco.upper_bounds])
            found.space = Space(box, integrality=np.arange(problem.dimension) < count)
        try:
            yield found
        finally:
            coco.free()
        if (written := Path(place) / "run").exists():
            shutil.copytree(written, folder, dirs_exist_ok=True)
    found.progress = progress_in(folder)
    if told is not None and told.values:
        found.progress, found.strict = (told.progress(folder, tolerance) for tolerance in constrained.TOLERANCES)


def _address_noise(coco: Any, x: np.ndarray, shift: int) -> None:
    """Makes the noise of the next queries a function of the shift alone.

    COCO draws noise from counters that all problems of a process share (``suite_bbob_noisy_utilities.c``), so a value
    depends on the earlier queries of the process. The counters are reset, and advanced by unrecorded queries.
    """
    import cocoex.interface

    ctypes.CDLL(cocoex.interface.__file__).coco_reset_seeds()
    for _ in range(shift):
        coco(x)
