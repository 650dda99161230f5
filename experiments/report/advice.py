"""The advice of the guide: which method to use in which case, and the reasons for the defaults."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple


class Ground(NamedTuple):
    """A verdict that supports an advice: the id of the experiment, and how the claim begins."""

    experiment: str
    claim: str


@dataclasses.dataclass(frozen=True)
class Advice:
    """The method to use in one case.

    Attributes:
        title: dimension, budget, noise, clients, bandwidth or constraints of the case.
        use: the call.
        why: one or two sentences.
        grounds: the verdicts that support it.
    """

    title: str
    use: str
    why: str
    grounds: tuple[Ground, ...]


@dataclasses.dataclass(frozen=True)
class Default:
    """The default of a method's option.

    Attributes:
        method: name of a class.
        option: name of an argument.
        value: its default.
        why: one or two sentences.
        grounds: the verdicts that support it.
    """

    method: str
    option: str
    value: Any
    why: str
    grounds: tuple[Ground, ...]

    @property
    def title(self) -> str:
        """The option as an argument of the class."""
        return f"{self.method}({self.option}={self.value!r})"


def _advice(title: str, use: str, why: str, *grounds: Ground) -> Advice:
    return Advice(title, use, why, grounds)


def _default(method: str, option: str, value: Any, why: str, *grounds: Ground) -> Default:
    return Default(method, option, value, why, grounds)


INTRODUCTION = (
    "Each case is followed by the verdicts that support it: a claim, whether it holds (if it is our own) or was "
    "reproduced (if it is a paper's), and its statistic with a 95% interval over seeds, or over problems where stated. "
    "An undecided verdict, whose interval contains the threshold, supports nothing, and a verdict on a stand-in "
    "applies to the stand-in alone. Statistics of the loss are differences of log10, so that −1 means a tenth; those "
    "of black boxes are percentages of the possible gain that a run left. *Trust region on the GP* is the default "
    "method, and *COBYQA, our radius* is COBYQA with the initial radius of that method. If a case names two methods, "
    "begin with the first."
)


def _ours(experiment: str, *claims: str) -> list[Ground]:
    """Returns claims about the default method; ``claims`` begin after its name."""
    return [Ground(experiment, f"trust region on the GP {claim}") for claim in claims]


def _first(*dimensions: int) -> list[str]:
    return [f"is first in mean rank at d = {d}," for d in dimensions]


NEXT, COBYQA = "is ahead of the next in mean rank", "ends lower than the better COBYQA"
CMA = "ends lower than CMA-ES on the multimodal groups"
EIGHT = [f"with 8 queries at a time ends {how}" for how in ("lower than CMA-ES", "at most 0.3 above one")]
DIMENSIONS = (2, 3, 5, 10, 20, 40)
"""Dimensions of COCO's problems on the scoreboard."""

WHERE = (" on which COBYQA ran", " on which TuRBO-1 ran")
BOXES = (
    *("kernel_ridge_diabetes", "perceptron_digits", "lightgbm_breast_cancer", "rocket", "wind_farm"),
    *("swimmer_linear", "swimmer", "half_cheetah_linear", "half_cheetah", "walker2d"),
    *("attack_digits_64", "attack_digits_784", "metric_f1"),
)
"""The real black boxes."""

ADVICE = (
    _advice(
        "One machine, 2 to 40 variables, about 20 queries per variable, no noise",
        "minimize(f, x0, bounds=bounds, max_queries=20 * d)",
        "The default is a trust region on the derived GP. On average it ends lower than COBYQA (most clearly on "
        "ill-conditioned functions), TuRBO, NeST-BO's rule and our other methods, and lower than CMA-ES on "
        "multimodal functions.",
        *_ours(
            "problems-bbob",
            NEXT,
            COBYQA,
            "ends lower than ZoRD, kept information, gated",
            "ends lower than TuRBO-1",
            "ends lower than NeST-BO's rule",
            CMA,
            *_first(*DIMENSIONS),
        ),
    ),
    _advice(
        "One machine, 2 to 40 variables, about 100 queries per variable, no noise",
        "minimize(f, x0, bounds=bounds, max_queries=100 * d)",
        "The default again: after convergence it restarts elsewhere.",
        *_ours("problems-bbob-100d", NEXT, COBYQA, "ends lower than L-BFGS-B", CMA, *_first(*DIMENSIONS)),
    ),
    _advice(
        "One machine, 5 to 20 variables, noisy values",
        "minimize(f, x0, bounds=bounds, max_queries=20 * d)",
        "The default again: it detects noise and estimates its variance. Pass a known variance as ``noise``.",
        *_ours("problems-bbob-noisy", NEXT, COBYQA, CMA, *_first(5, 10, 20)),
    ),
    _advice(
        "One machine, 5 to 20 variables, several queries at a time",
        "minimize(f, x0, workers=8, bounds=bounds, max_queries=20 * d)",
        "Each step is evaluated together with points that improve the gradient estimate at its end. Runs with "
        "eight concurrent queries end slightly higher at equal queries but take about an eighth of the time. They end "
        "lower than CMA-ES, which evaluates whole generations at once. They were measured in rounds of eight.",
        *(g for suite in ("bbob", "bbob-noisy") for g in _ours(f"problems-{suite}", *EIGHT)),
    ),
    _advice(
        "One machine, a program with 10 to 2,000 inputs: tuning, control, attacks",
        "minimize(f, x0, bounds=bounds, max_queries=n)",
        "The default has the lowest mean rank among the methods that can run all of these black boxes. Up to 120 "
        "variables, COBYQA (first radius 0.2 of the box) is behind it and TuRBO ahead of it; both differences are "
        "undecided. If values are rugged, like controllers' returns, or rise steeply, like a wind farm's penalty, try "
        "other methods too; the verdicts show which is ahead on each black box.",
        *_ours("problems-real", *(f"is first in mean rank over the black boxes{on}" for on in (", ahead of", *WHERE))),
        *_ours(
            "problems-real", NEXT, *(f"ends lower than {m}" for m in ("ZoRD, kept information", "TuRBO-1", "L-BFGS-B"))
        ),
        *_ours("problems-real", *(f"on {box} ends lower than" for box in BOXES)),
    ),
    _advice(
        "One machine, 80 to 640 variables, two queries per variable",
        "minimize(f, x0, bounds=bounds, max_queries=2 * d)",
        "The default models f on the span of its queries. It is ahead of ZoRD, which ranks next, and of CMA-ES.",
        *_ours("problems-bbob-largescale", NEXT, CMA, *_first(80, 160, 320, 640)),
    ),
    _advice(
        "One machine, 2 to 10 variables, constraints that are evaluated with f",
        "minimize(f, x0, bounds=bounds, constraints=constraints, max_queries=20 * d)",
        "The default models f and each constraint, and a query gives all of them. It was measured from feasible starts "
        "with up to 54 constraints. SLSQP ends lower on functions of different powers, and COBYQA and COBYLA are ahead "
        "there after 5 d queries. On spheres and linear slopes the default is level with COBYQA and SLSQP. If "
        "constraints must hold to 1e-9 instead of 1e-6 of their size, it is level with SLSQP after 5 d queries and "
        "ahead after 10 d, because its first steps end slightly outside.",
        *_ours(
            "problems-bbob-constrained-fresh",
            *(
                f"after {k} d queries has a lower mean log10 gap than {rival}"
                for k in (10, 20)
                for rival in ("the better COBYQA", "COBYLA", "SLSQP")
            ),
        ),
    ),
    _advice(
        "One machine, 5 to 10 variables, most of them integers",
        "minimize(f, x0, bounds=Space(bounds, integrality=integrality), max_queries=20 * d)",
        "Queries are on the lattice of the integers; the model is continuous.",
        *_ours("problems-bbob-mixint-fresh", "is not behind CMA-ES", "is not behind random search"),
    ),
    _advice(
        "One machine, SciPy only, no noise",
        'scipy.optimize.minimize(f, x0, method="COBYQA", options={"initial_tr_radius": 0.2 * width})',
        "COBYQA fits quadratic models by Powell's rules. With this initial radius, which our default method uses up to "
        "d = 20, it ranks next after that method.",
        *_ours("problems-bbob", NEXT),
        Ground("beyond-zord", "ZoRD, kept information ends lower than COBYQA"),
        Ground("zord-fig3", "ZoRD ends with a smaller gap than COBYQA"),
    ),
    _advice(
        "One machine, ZoRD itself, 10 to 100 variables, curved, ill-conditioned or noisy, a few hundred queries",
        'minimize(f, x0, "zord", active="gated", bounds=bounds, max_queries=200)',
        "It is first in mean rank at 200 queries among nine methods; the trust region was not one of them.",
        Ground("beyond-zord", "gated queries end lower than none on at least 3 of the 5 problems"),
        Ground("beyond-zord", "ZoRD, kept information, gated ends lower than RGF"),
        Ground("beyond-zord", "ZoRD, kept information, gated ends lower than TuRBO-1"),
        Ground("beyond-zord", "ZoRD, kept information, gated ends lower than CMA-ES"),
        Ground("beyond-zord", "ZoRD, kept information, gated ends lower than COBYQA"),
    ),
    _advice(
        "One machine, many local minima, a budget for a global search first",
        'minimize(f, best, "zord", history=(X, y), lengthscale=3.0, uncertainty="spectral_norm", max_queries=300)',
        "Run TuRBO for about 300 queries and pass all of them as X and y. ZoRD is local and gains from the data that "
        "found its start.",
        Ground("zord-fig3", "ZoRD, with TuRBO's history ends with a smaller gap than ZoRD"),
        Ground("zord-fig3", "ZoRD ends with a smaller gap than RGF"),
        Ground("zord-fig3", "ZoRD ends with a smaller gap than TuRBO-1"),
    ),
    _advice(
        "One machine, ZoRD itself, about as many queries as variables, smooth, inside bounds (black-box attacks)",
        'minimize(f, x0, "zord", uncertainty="spectral_norm", lengthscale=0.67 * d**0.5, step_decay=1, max_queries=n)',
        "For bounds [0, 10]^d, with Adam's rate 0.5. On MNIST the paper's rule succeeds with every image, while kept "
        "information, ZoRD's default here, stops with half of them. The trust region is the first on most images.",
        Ground("zord-fig9", "ZoRD succeeds more often than RGF"),
        Ground("zord-fig9", "ZoRD succeeds more often than PRGF"),
        Ground("zord-fig9", "ZoRD, kept information succeeds more often than ZoRD"),
        Ground("zord-fig9", "trust region, the default succeeds more often than RGF"),
        Ground("zord-fig9", "trust region, the default succeeds more often than ZoRD"),
        *_ours("problems-real", "on attack_digits_64 ends lower than", "on attack_digits_784 ends lower than"),
    ),
    _advice(
        "One machine, ZoRD itself, piecewise constant values (a classifier's metric)",
        'minimize(f, x0, "zord", uncertainty="spectral_norm", lengthscale=0.67 * d**0.5, step_decay=1, max_queries=n)',
        "For bounds [0, 10]^d. ``step_decay=1`` keeps the step length, since on a piecewise constant function halved "
        "steps do not reach the next edge. With default options, ES ends lower than ZoRD and the trust region.",
        Ground("zord-fig4", "ZoRD improves the trained network"),
        Ground("zord-fig4", "ZoRD improves it more than ES"),
        Ground("zord-fig4", "ZoRD, kept information improves it more than ZoRD"),
        *_ours("problems-real", "on metric_f1 ends lower than"),
    ),
    _advice(
        "A convex sum of smooth losses with a constraint or another prox",
        'minimize(f, x0, "zo_l_katyusha", prox=prox, max_queries=...)',
        "ZO-L-Katyusha converges linearly down to rounding, while plain and accelerated two-point descent stall at "
        "the constraint.",
        Ground("katyusha-fig1", "ZO-L-Katyusha converges linearly to 1e-10"),
        Ground("katyusha-fig1", "with tuned steps ZO-L-Katyusha needs fewer queries to 1e-08"),
        Ground("katyusha-fig2", "eq. 14 stays above 0.001 in the box"),
    ),
    _advice(
        "A network with many parameters, held in memory once",
        'minimize(objective, objective.x0(), "hiso", in_place=True, max_queries=...)',
        "Use ``ModuleObjective``, which regenerates directions from their seeds. HiSo's H adapts the length of the "
        "step but does not learn the curvature; in these runs a single number does as well.",
        Ground("hiso-fig5", "HiSo ends with a lower loss than DeComFL"),
        Ground("hiso-fig5", "H is ranked like the loss's squared gradient"),
        Ground("hiso-fig5", "HiSo ends with a lower loss than a scalar H"),
    ),
    _advice(
        "Parameters or tensors in very different units, in groups that you know",
        'minimize(f, x0, "hiso", curvature=GroupProbe(groups=...), max_queries=...)',
        "Curvature measured group by group is an effective preconditioner if the groups follow the structure. "
        "For a network, double the default rate. For a function of few variables the default method takes their scales "
        "from the bounds, x0 or ``x_scale``.",
        Ground("beyond-curvature", "on the log-uniform spectrum group probes reach 1e-10"),
        Ground("beyond-curvature", "on the badly scaled MLP the loss is at most 0.75 times that of a scalar H"),
        Ground("beyond-curvature", "group probes end lower than HiSo, scalar H"),
        Ground("beyond-curvature", "no run of group probes ends above its start"),
    ),
    _advice(
        "Several clients whose functions differ, expensive queries",
        'simulate("fzoos", objectives, x0, rounds=50, local_steps=10)',
        "At equal queries FZooS is ahead of finite differences on smooth functions. On a classifier's metric with "
        "d = 2,189 it is level with them if each client has all of Covertype's classes, and behind them otherwise.",
        Ground("fzoos-fig1", "FZooS, adaptive γ is below every baseline at equal queries (C = 0.5, 5)"),
        Ground("fzoos-fig1", "FZooS, adaptive γ is below every baseline at equal queries (C = 50)"),
        Ground("beyond-gamma", "FZooS, adaptive γ ends within 0.25 of the best fixed γ, d = 50"),
        Ground("beyond-gamma", "FZooS, adaptive γ ends within 0.25 of the best fixed γ, d = 300"),
        Ground("beyond-plateau", "d = 50, no noise: FZooS with a settling rate ends below SCAFFOLD II"),
        Ground("beyond-plateau", "d = 300, no noise: FZooS with a settling rate ends below FedZO"),
        Ground("fzoos-fig8", "FZooS, adaptive γ ends with a better precision than every baseline at equal queries"),
        Ground("fzoos-fig8", "FZooS, adaptive γ ends with a better precision than FZooS, γ = 1/t"),
    ),
    _advice(
        "Several clients, expensive rounds, cheap queries",
        'simulate("scaffold2", objectives, x0, rounds=50, local_steps=10, directions=20)',
        "Without a limit on queries, finite differences end as low as FZooS or lower.",
        Ground("fzoos-fig1", "FZooS, adaptive γ is below every baseline at equal rounds (C = 0.5, 5)"),
        Ground("fzoos-fig1", "FZooS, γ = 1/t is below every baseline at equal rounds (C = 0.5, 5)"),
    ),
    _advice(
        "Several clients, little bandwidth, d of any size",
        'simulate("decomfl", objectives, x0, rounds=1000, local_steps=1)  # or "hiso"',
        "A round takes P numbers each way for any d, and a client that missed rounds replays them bitwise. HiSo "
        "saves few rounds or none.",
        Ground("hiso-bytes", "a round of HiSo or DeComFL costs 40 bytes per client for every d"),
        Ground("hiso-bytes", "a round of a vector method costs 8d bytes per client"),
        Ground("hiso-fig5", "HiSo needs fewer rounds than DeComFL to accuracy 0.6"),
        Ground("hiso-table2", "HiSo needs fewer rounds, and so fewer bytes, than DeComFL"),
    ),
)

DEFAULTS = (
    _default(
        "ZoRD",
        "uncertainty",
        "kept_information",
        "The paper's spectral norm cannot fall while there are fewer queries than variables.",
        Ground("zord-table1", "ZoRD, kept information needs fewer queries than ZoRD"),
        Ground("zord-fig9", "ZoRD, kept information succeeds more often than ZoRD"),
        Ground("zord-fig4", "ZoRD, kept information improves it more than ZoRD"),
        Ground("beyond-zord", "ZoRD, kept information ends lower than ZoRD"),
        Ground("zord-fig3", "ZoRD, kept information ends with a smaller gap than ZoRD"),
    ),
    _default(
        "ZoRD",
        "active",
        None,
        "Gated active queries gain on four of five problems, d = 20 to 50, but were not measured with fewer queries "
        "than variables.",
        Ground("beyond-zord", "gated queries end lower than none on at least 3 of the 5 problems"),
    ),
    _default(
        "FZooS",
        "gamma",
        "adaptive",
        "γ = 1/t damps good corrections and keeps bad ones. One γ per round by least squares costs one more number.",
        Ground("beyond-gamma", "FZooS, adaptive γ ends within 0.25 of the best fixed γ, d = 50"),
        Ground("beyond-gamma", "FZooS, adaptive γ ends within 0.25 of the best fixed γ, d = 300"),
        Ground("beyond-gamma", "the adaptive γ ends 1 below 1/t at C = 5, noise 0, d = 50"),
        Ground("fzoos-fig1", "FZooS, adaptive γ is below every baseline at equal queries (C = 0.5, 5)"),
    ),
    _default(
        "FZooS",
        "rate",
        "settling",
        "With the paper's constant rate the gap stagnates once a round's steps reverse direction.",
        Ground("beyond-plateau", "d = 50, no noise: a settling rate ends 2 orders of magnitude lower"),
        Ground("beyond-plateau", "d = 300, no noise: a settling rate ends 2 orders of magnitude lower"),
        Ground("beyond-plateau", "d = 50, noise 0.01: a settling rate ends no higher"),
        Ground("beyond-plateau", "d = 300, noise 0.01: a settling rate ends no higher"),
    ),
    _default(
        "HiSo",
        "curvature",
        "displacement",
        "This is the paper's curvature. Measured curvature gains if coordinates or tensors differ in scale, and is "
        "an option.",
        Ground("beyond-curvature", "group probes end lower than HiSo, scalar H"),
        Ground("beyond-curvature", "no run of group probes ends above its start"),
    ),
)
