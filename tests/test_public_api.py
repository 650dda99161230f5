import difflib

from tests.public_api import FILE, lines


def test_public_names_and_signatures_are_those_of_the_snapshot():
    changes = list(difflib.unified_diff(FILE.read_text().splitlines(), lines(), lineterm="", n=0))
    renew = "run `python -m tests.public_api` and add a line to CHANGELOG.md; for deprecations see CONTRIBUTING.md"
    assert not changes, "\n".join(["the public names have changed:", *changes, f"If that is intended, {renew}."])
