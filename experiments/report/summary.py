"""The main claims of each paper, their consequences for the library, and the rule of judgement.

``experiments.report.pages`` adds the outcomes of the results that it shows.
"""

from __future__ import annotations

from typing import NamedTuple

RULE = (
    "A claim is judged in each setting by the bootstrap 95% interval of its statistic over the seeds that all methods "
    "share. A setting holds if the interval lies wholly on the claimed side of the threshold, fails if it lies "
    "wholly on the other side, and is undecided if it contains the threshold. A claim is ``reproduced`` if every "
    "setting holds and ``partly`` if some do. If none holds, it is ``undecided`` if all settings are undecided or "
    "if the interval of the mean over settings contains the threshold: these seeds do not decide it. Otherwise it is "
    "``not reproduced``. By the same rule a claim of our own ``holds``, ``holds partly`` or ``does not hold``; it is "
    "not counted among the paper's claims. A verdict on a stand-in rests on data that replace the paper's, and says "
    "nothing about the paper's data. Verdicts on the paper's data with another model, or on a part of the data, are "
    "counted apart, with what differs. Scale ``paper`` repeats the paper's run; ``reduced`` runs in one night on two "
    "cores. Nothing was tuned to the claims, and failures are shown."
)
"""The rule of judgement."""


class Point(NamedTuple):
    """One main claim of a paper, and the ids of the figures and tables that show it."""

    claim: str
    experiments: tuple[str, ...]


class Summary(NamedTuple):
    """The main claims of a paper, and their consequences for the library."""

    points: tuple[Point, ...]
    doing: str


SUMMARIES = {
    "zord": Summary(
        (
            Point(
                "The gradient estimated from the queries of the trajectory is closer to the truth than finite "
                "differences with queries of their own, and its uncertainty is calibrated.",
                ("zord-fig1", "zord-fig2a", "zord-fig2b", "zord-fig6a", "zord-fig6b", "zord-fig10", "calibration"),
            ),
            Point(
                "Descent therefore needs fewer queries than RGF, PRGF, GLD, TuRBO and CobBO on test functions.",
                ("zord-fig3", "zord-fig5", "zord-fig7", "zord-fig8"),
            ),
            Point(
                "The same holds on attacks, on metrics that have no gradient, and on controllers.",
                ("zord-fig4", "zord-fig9", "zord-table1", "zord-table2", "zord-table3"),
            ),
        ),
        "By default ZoRD uses another measure of uncertainty to end virtual steps, which can fall with fewer queries "
        "than variables, and fits the lengthscale. Active queries are an option, and a trust region is a separate "
        "method. The page ``ours`` compares them with the paper's rule.",
    ),
    "fzoos": Summary(
        (
            Point(
                "Gradients of averaged Fourier surrogates are closer to the global gradient, with fewer queries.",
                ("fzoos-fig3", "fourier-features"),
            ),
            Point(
                "If the clients' functions differ, FZooS needs fewer rounds and queries than FedZO, "
                "FedProx and SCAFFOLD; more features and a falling γ help.",
                ("fzoos-fig1", "fzoos-fig4", "fzoos-fig5a", "fzoos-fig5b"),
            ),
            Point("The same holds for federated attacks on images.", ("fzoos-fig2", "fzoos-fig6", "fzoos-fig7")),
            Point(
                "The same holds for federated optimization of a classifier's metric.",
                ("fzoos-fig8", "fzoos-fig9", "fzoos-fig10", "fzoos-fig11", "fzoos-fig12"),
            ),
        ),
        "By default FZooS computes γ by least squares in each round instead of 1/t, and halves its rate when the "
        "steps of a round reverse direction. If rounds are expensive and queries cheap, the guide recommends "
        "SCAFFOLD.",
    ),
    "hiso": Summary(
        (
            Point("A round sends a few scalars in any dimension.", ("hiso-bytes",)),
            Point(
                "Whitening by the Hessian makes the rate independent of the dimension and of the condition number.",
                ("hiso-fig4",),
            ),
            Point(
                "A learned diagonal Hessian makes training faster, and less sensitive to the number of local steps.",
                ("hiso-fig5", "hiso-fig8"),
            ),
            Point(
                "Fine-tuning of language models reaches better scores with less communication.",
                ("hiso-table2", "hiso-table5", "hiso-fig6"),
            ),
        ),
        "These runs show no gain of the learned diagonal over a single number. If parameters differ in scale, "
        "curvature can be measured group by group; see the page ``ours``. The language models themselves run if "
        "``--data`` provides them.",
    ),
    "katyusha": Summary(
        (
            Point(
                "With a constraint, ZO-L-Katyusha converges linearly, faster than ZO-SVRG and projected descent.",
                ("katyusha-fig1",),
            ),
            Point("Accelerated two-point descent converges without a constraint, not with one.", ("katyusha-fig2",)),
        ),
        "The guide recommends ZO-L-Katyusha for convex sums with a constraint. Once every method's steps are tuned, "
        "its lead over ZO-SVRG is small.",
    ),
    "ours": Summary(
        (
            Point("Active queries and several queries at a time help ZoRD.", ("beyond-zord", "beyond-parallel")),
            Point("A γ that is computed in each round is close to the best fixed γ.", ("beyond-gamma",)),
            Point("Local steps that shrink once they reverse direction keep reducing the gap.", ("beyond-plateau",)),
            Point(
                "Curvature that is measured group by group speeds up descent on badly scaled problems.",
                ("beyond-curvature",),
            ),
        ),
        "These claims are our own, judged by the same rule. Rejected rules remain among these experiments and can be "
        "run again.",
    ),
}
"""The summary for each key of ``PAPERS``."""
