"""Every mutation of ``tests/mutations.py`` fails a test, and the list is what it says."""

import ast
import re
from collections import Counter

import pytest

from federated.registry import ALGORITHMS
from optimizers.registry import METHODS
from tests.mutation_cases import MUTATIONS, ROOT
from tests.mutations import copies, needed

REGISTERED = {f"optimizers/{name}" for name in METHODS} | {f"federated/{name}" for name in ALGORITHMS}


def test_each_passage_occurs_once_and_another_program_comes_of_it():
    for mutation in MUTATIONS:
        before = (ROOT / mutation.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(mutation.text())) != ast.dump(ast.parse(before)), mutation.name


def test_there_are_at_least_60_and_every_algorithm_has_one():
    assert len(MUTATIONS) >= 60
    assert [name for name, count in Counter(m.name for m in MUTATIONS).items() if count > 1] == []
    assert {name for mutation in MUTATIONS for name in mutation.of} == REGISTERED


def test_the_tests_that_must_notice_exist():
    for test in needed(MUTATIONS):
        path, _, rest = test.partition("::")
        assert (ROOT / path).exists(), test
        if rest:
            name = re.escape(rest.partition("[")[0])
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), test


@pytest.fixture(scope="module")
def copy(request):
    """A copy in which the tests of the chosen mutations pass as it is."""
    chosen = [i for i in request.session.items if getattr(i, "originalname", "") == "test_every_mutation_fails_a_test"]
    with copies() as (made,):
        unmutated = made.run(needed(item.callspec.params["mutation"] for item in chosen))
        assert unmutated.said == "passed", unmutated
        yield made


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_mutation_fails_a_test(mutation, copy):
    if mutation.file.endswith("_numba.py"):
        pytest.importorskip("numba")
    outcome = copy.mutated(mutation)
    assert outcome.said == "failed", f"{mutation.breaks}: {outcome}"
