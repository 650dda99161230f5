import difflib

from tests import public_api


def test_public_names_and_signatures_are_those_of_the_snapshot():
    kept, found = public_api.FILE.read_text().splitlines(), public_api.lines()
    changes = "\n".join(difflib.unified_diff(kept, found, "public_api.txt", "now", lineterm="", n=0))
    renew = (
        "run `python -m tests.public_api`, describe the change in CHANGELOG.md, and deprecate as CONTRIBUTING.md says"
    )
    assert found == kept, f"the public names have changed:\n{changes}\nIf that is intended, {renew}."
