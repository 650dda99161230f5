"""beyond-plateau's verdicts, from records that are made up."""

import dataclasses

import numpy as np
import pytest

from experiments.beyond import plateau

SMALL = dataclasses.replace(plateau.EXPERIMENT.scales["quick"], noises=(0.0, 0.5))
SEEDS = 4


def records(ours, constant, **baselines):
    """Last gaps 10^−x; FZooS's 100 queries, the baselines' 60 in each of three rounds, by rule."""
    rows = []
    runs = [("fzoos_adaptive", "settling", ours), ("fzoos_adaptive", "rate 0.01", constant)]
    for method in plateau.BASELINES:
        runs += [(method, rule, baselines.get(method, {}).get(rule, 1.0)) for rule in plateau.RULES]
    for noise in SMALL.noises:
        for method, rule, end in runs:
            each = 100 if method == "fzoos_adaptive" else 60
            for seed in range(SEEDS):
                key = {"seed": seed, "dim": 6, "heterogeneity": 5.0, "noise": noise, "method": method, "rule": rule}
                for r in range(2 if each == 100 else 4):
                    value = 10.0 ** -(end * min(1.0, r * each / 100) + 0.01 * seed)
                    rows.append(key | {"round": r, "num_queries": r * each, "value": value})
    return rows


def verdicts(rows):
    return {verdict.claim: verdict for verdict in plateau.claims(SMALL, rows)}


def test_baselines_have_their_best_rule_at_equal_queries():
    rows = records(5.0, 2.0, fedzo={"settling": 4.0, "rate 0.001": 9.0, "rate 0.01": 2.0})
    cell = (6, 5.0, 0.0)
    assert plateau.spent(rows, cell) == 100
    assert plateau.best_rule(rows, cell, "fedzo") == "rate 0.001"
    # After 60 of its queries, the last round within FZooS's 100.
    np.testing.assert_allclose(plateau.leads(rows, [cell], "fedzo")["d = 6, C = 5"], -0.6 * 9.0 + 5.0)


LOWER = "d = 6, no noise: a settling rate ends 2 orders of magnitude lower, C = 5"
HIGHER = "d = 6, noise 0.5: a settling rate ends no higher"


@pytest.mark.parametrize(
    ("ours", "constant", "lower", "higher"),
    [
        (5.0, 2.0, "reproduced", "reproduced"),
        (3.0, 2.0, "not reproduced", "reproduced"),
        (1.0, 2.0, "not reproduced", "not reproduced"),
    ],
)
def test_two_orders_without_noise_and_no_loss_with_it(ours, constant, lower, higher):
    found = verdicts(records(ours, constant))
    assert (found[LOWER].status, found[HIGHER].status) == (lower, higher)
    assert found[LOWER].estimate == pytest.approx(ours - constant)
