"""Attacks: the bound holds at every query, queries are counted to the first success, budgets are kept."""

import dataclasses

import pytest
import torch

from experiments import registry
from experiments.papers.zord import fig9_table1 as attacks
from experiments.workloads.victims import predict


class Recorded:
    """An attack that keeps every δ it is asked for and the margins there."""

    def __init__(self, attack):
        self.attack, self.asked, self.values = attack, [], []

    def __call__(self, delta):
        self.asked.append(delta.clone())
        self.values.append(self.attack(delta))
        return self.values[-1]

    def __getattr__(self, name):
        return getattr(self.attack, name)


TABLE1 = registry.get("zord-table1")
SETTINGS = dataclasses.replace(TABLE1.settings("quick"), max_queries=30)


@pytest.mark.parametrize("method", ["zord", "zord_kept", "rgf", "prgf", "gld", "turbo1", "turbom"])
def test_every_query_keeps_the_bound_and_the_first_success_is_counted(method):
    for bound in (0.05, 0.3):
        attack = Recorded(dataclasses.replace(attacks.attacks(SETTINGS, "mnist", 0)[0], bound=bound))
        optimizer = attacks.attacker(SETTINGS, method, attack, attacks.KNOBS[method][1], 0)
        queries, success = attacks.queries_to_success(optimizer, attack)
        asked, values = torch.cat(attack.asked), torch.cat(attack.values)
        assert len(asked) == optimizer.queries <= SETTINGS.max_queries
        assert float(asked.abs().max()) <= bound * (1 + 1e-12)
        assert success == bool((values <= 0).any())
        assert queries == (1 + int((values <= 0).int().argmax()) if success else SETTINGS.max_queries)
        predicted = predict(attack.victim, attack.perturbed(asked[queries - 1 : queries]))
        assert success == (int(predicted) != attack.label)


def test_all_methods_attack_the_same_recognized_images_from_zero():
    settings = dataclasses.replace(SETTINGS, images=3)
    first, again = (attacks.attacks(settings, "mnist", 4) for _ in range(2))
    assert all(torch.equal(a.image, b.image) for a, b in zip(first, again, strict=True))
    for attack in first:
        assert float(attack(torch.zeros(64).double())) > 0 and attack.dimension == 64
    big = attacks.attacks(dataclasses.replace(settings, side=28), "mnist", 0)[0]
    assert big.dimension == 784


def test_success_rates_are_shares_of_the_images():
    rows = [
        {"seed": s, "dataset": "mnist", "method": "rgf", "image": i, "success": int(q < 16), "value": q}
        for s, found in ((0, (3, 16)), (1, (4, 9)))
        for i, q in enumerate(found)
    ]
    settings = registry.get("zord-fig9").settings("quick")
    counts, shares = attacks.success_rates(settings, rows, "mnist", "rgf")
    assert counts.tolist() == [0, 4, 8, 12, 16]
    assert shares.tolist() == [[0, 0.5, 0.5, 0.5, 0.5], [0, 0.5, 0.5, 1, 1]]


def test_a_table_names_the_papers_numbers_beside_ours():
    few = dataclasses.replace(SETTINGS, methods=("zord", "rgf"))
    table = attacks.table(few, TABLE1.run(few, [0]))
    zord = next(row for row in table.rows if row[0] == "ZoRD")
    rgf = next(row for row in table.rows if row[0] == "RGF")
    assert (zord[3], zord[6]) == ("248 ± 50", "384 ± 59") and (rgf[3], rgf[6]) == ("1192 ± 260", "3622 ± 1155")
    tuned = dataclasses.replace(SETTINGS, knobs=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    assert tuned.knob("rgf") == 3.0 and SETTINGS.knob("rgf") == 0.5


def test_data_that_are_not_there_are_refused_before_any_seed(tmp_path):
    settings = dataclasses.replace(SETTINGS, data=str(tmp_path))
    with pytest.raises(ValueError, match="mnist"):
        TABLE1.check(settings)
    assert TABLE1.stands_in(settings) == ""
    assert "digits" in TABLE1.stands_in(SETTINGS)


def test_uniform_draws_stop_at_the_first_success_within_the_bound():
    drawn = []

    class Late:
        """Succeeds with the draw of one number."""

        bound, dimension = 0.3, 7

        def __init__(self, number):
            self.number = number

        def __call__(self, delta):
            drawn.extend(delta)
            numbers = torch.arange(len(drawn) - len(delta), len(drawn))
            return torch.where(numbers == self.number - 1, -1.0, 1.0)

    assert attacks.draws_to_success(Late(73), 120, [0]) == (73, True)
    drawn.clear()
    assert attacks.draws_to_success(Late(500), 120, [0]) == (120, False)
    assert len(drawn) == 120 and 0.299 < float(torch.stack(drawn).abs().max()) <= 0.3
