"""Nothing is counted twice among the published verdicts: no figure's records are another's, no claim is another's."""

import numpy as np
import pytest

from experiments import registry
from experiments.harness import verdicts
from experiments.harness.records import plain
from experiments.report.publish import settings_of
from experiments.running import results
from optimizers.comparison.records import seeds_of
from tests.experiments.committed import NAMES, PUBLISHED, needs_results

PART_OF = {"hiso-fig6": "hiso-table5"}
"""A figure that the paper draws of a table's runs; its verdicts have to be others."""


SEEDS = 2
"""By which claims are compared: what is the same on all seeds is the same on the first few."""


@pytest.fixture(scope="module")
def published():
    return {name: results.read_rows(PUBLISHED, name) for name in NAMES}


def of_first_seeds(rows):
    kept = set(seeds_of(rows)[:SEEDS])
    return [row for row in rows if row["seed"] in kept]


def row_set(rows):
    """Records as a set of what they say, whatever the order of their columns."""
    return {tuple(sorted(plain(row).items())) for row in rows}


def repeated(found):
    """Names whose every record is another experiment's, and of two with the same records both."""
    return {
        name
        for name, rows in found.items()
        if rows <= set().union(*(other for other_name, other in found.items() if other_name != name))
    }


def cells_of(experiment, settings, rows):
    """The counted verdicts with the numbers that each was judged by: a set of one number a seed for each cell."""
    judged, calls = [], []

    def interval(values):
        calls.append(tuple(np.asarray(values, dtype=float).tolist()))
        return float(np.min(values)), float(np.max(values))

    def made(**fields):
        # The last call was of the mean over the cells.
        judged.append((verdicts_class(**fields), frozenset(calls[:-1] or calls)))
        calls.clear()
        return judged[-1][0]

    verdicts_class = verdicts.Verdict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "bootstrap_interval", interval)
        patch.setattr(verdicts, "Verdict", made)
        kept = experiment.claims(settings, rows)
    of_claim = {verdict.statistic + str(verdict.estimate) + str(verdict.detail): cells for verdict, cells in judged}
    found = [(v, of_claim[v.statistic + str(v.estimate) + str(v.detail)]) for v in kept if not v.control]
    return [(verdict, {cell for cell in cells if len(set(cell)) > 1}) for verdict, cells in found]


def asked(verdict):
    """The thresholds of a verdict."""
    return verdict.detail.partition(";")[0]


def counted_twice(found):
    """Pairs of claims that ask for the same, the one's cells all among the other's."""
    return [
        (one.claim, other.claim)
        for i, (one, cells) in enumerate(found)
        for j, (other, others) in enumerate(found)
        if i != j and cells and cells <= others and asked(one) == asked(other)
    ]


@needs_results
@pytest.mark.slow
def test_every_published_experiment_has_records_of_its_own(published):
    found = {name: row_set(rows) for name, rows in published.items()}
    assert repeated(found) == set(PART_OF)
    assert all(found[part] <= found[whole] for part, whole in PART_OF.items())


def test_records_that_are_anothers_would_be_seen():
    rows = [{"seed": seed, "method": "a", "value": 0.1 * seed} for seed in range(4)]
    renamed = [{"value": row["value"], "method": "a", "seed": row["seed"]} for row in rows]
    assert repeated({"one": row_set(rows), "two": row_set(renamed)}) == {"one", "two"}
    more = [*rows, {"seed": 9, "method": "b", "value": 1.0}]
    assert repeated({"first": row_set(rows[:2]), "second": row_set(rows[2:]), "both": row_set(more)}) == {
        "first",
        "second",
    }


@needs_results
def test_no_claim_is_counted_twice(published):
    found = []
    for name, rows in published.items():
        experiment = registry.get(name)
        settings, _ = settings_of(experiment, results.read_json(PUBLISHED / f"{name}.settings.json"))
        found += cells_of(experiment, settings, of_first_seeds(rows))
    assert len(found) > 50
    assert counted_twice(found) == []


def test_the_same_claim_in_other_words_would_be_seen():
    cells = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 5.0])}

    class Twice:
        @staticmethod
        def claims(settings, rows):
            first = verdicts.judge("a beats b", "gap", cells, above=0.0)
            second = verdicts.judge("b loses to a", "gap", {"": cells["b"]}, above=0.0)
            more = verdicts.judge("b loses by far", "gap", {"": cells["b"]}, above=2.0)
            ours = verdicts.judge("ours", "gap", cells, above=9.0, control=True)
            return [first, second, more, ours, verdicts.at_least(ours, 1, "ours, once")]

    assert counted_twice(cells_of(Twice, None, [])) == [("b loses to a", "a beats b")]
