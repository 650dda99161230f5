"""Verdicts on HiSo's sentence about Figure 6: the factor by which it reduces the total bytes, per model size.

Sec. 6: "While traditional methods like FedAvg, FedZO, and FedAdam incur communication costs on the order of 10¹¹ to
10¹³, HiSo reduces this overhead by over 40 million times for 125M and 350M models, and up to 90 million times for the
1.3B model." We apply "over" to each of the three methods with either model, and "up to" to the largest of the three
ratios.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments.harness.verdicts import Verdict, judge
from surrogates import plotting

METHODS = ("fedavg", "fedzo", "fedadam")
OVER, UP_TO = 40, 90
"""Factors in millions."""
OF_OVER, OF_UP_TO = ("OPT-125M", "OPT-350M"), "OPT-1.3B"


def claims(log_ratios: Mapping[tuple[str, str], np.ndarray], where: str, *, control: bool = False) -> list[Verdict]:
    """Judges each half of the sentence for which a model ran.

    Args:
        log_ratios: log10 of a method's total bytes over HiSo's by model and method, one number per seed.
        where: origin of the bytes, which ends each claim.
        control: whether the bytes were not measured.
    """
    verdicts, others = [], "FedAvg, FedZO and FedAdam"
    if models := [model for model in OF_OVER if (model, METHODS[0]) in log_ratios]:
        claim = f"HiSo communicates over {OVER} million times less than {others} with {' and '.join(models)}, {where}"
        cells = {f"{model} {plotting.METHODS[m].label}": log_ratios[model, m] for model in models for m in METHODS}
        verdicts.append((claim, "log10 of their bytes over HiSo's", cells, OVER))
    if (OF_UP_TO, METHODS[0]) in log_ratios:
        claim = f"HiSo communicates up to {UP_TO} million times less than {others} with {OF_UP_TO}, {where}"
        cells = {"": np.max([log_ratios[OF_UP_TO, m] for m in METHODS], axis=0)}
        verdicts.append((claim, "log10 of the most bytes of the three over HiSo's", cells, UP_TO))
    return [
        judge(claim, statistic, cells, above=np.log10(1e6 * millions), control=control)
        for claim, statistic, cells, millions in verdicts
    ]
