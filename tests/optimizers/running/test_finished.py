"""One format to resume from: what belongs to another computation is refused by name, and nothing of it changes."""

import json
import zlib
from contextlib import closing

import pytest

from optimizers.running.finished import FORMAT, FinishedUnits, differences

ABOUT = {"fun": "bowl", "settings": {"a": 1, "b": [2, 3]}}


def written(path, *units, about=ABOUT):
    with closing(FinishedUnits(path, "comparison", about)) as finished:
        for unit in units:
            finished.add(*unit)
        return finished.read


def line(*event):
    text = json.dumps(event, separators=(",", ":")).encode()
    return text + b"\t%08x\n" % zlib.crc32(text)


def test_units_are_read_back_and_the_first_line_comes_with_the_first_of_them(tmp_path):
    path = tmp_path / "file"
    assert written(path) == [] and path.read_bytes() == b""
    written(path, (0, "a", [0.5]), (1, "b", [None, 1e-300]))
    assert written(path, (2, "c", [])) == [[0, "a", [0.5]], [1, "b", [None, 1e-300]]]
    assert path.read_bytes().startswith(line(0, "comparison", FORMAT, ABOUT)) and len(written(path)) == 3
    assert written(None, (0, "a", [])) == []


def test_another_computation_is_refused_with_each_difference(tmp_path):
    path = tmp_path / "file"
    written(path, (0, "a", []))
    kept = path.read_bytes()
    changed = {"fun": "bowl", "settings": {"a": 1, "b": [2, 4]}, "more": None, "seed": 0}
    named = (
        r"holds another comparison, which differs in settings b \(\[2, 3\] there, \[2, 4\] here\); seed \(None there"
    )
    for _ in range(2):  # the file is free again
        with pytest.raises(ValueError, match=named):
            written(path, about=changed)
    assert path.read_bytes() == kept
    with pytest.raises(RuntimeError, match="in use"), closing(FinishedUnits(path, "comparison", ABOUT)):
        written(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line(0, "comparison", FORMAT + 1, ABOUT), rf"begins with \['comparison', {FORMAT + 1}\]"),
        (line(0, "run", {"suite": "bbob"}), "begins with .*suite.*earlier version wrote it; move it away"),
        (b'{"settings": {}}\n[0, [], 1.0]\n', "line 2 of .* is damaged|is not a journal"),
        (b"my notes", "is not a journal of a run; move it away"),
        (b'{"a": 1}\n', "is not a journal of a run; move it away"),
        (line(0, "comparison", FORMAT, ABOUT) + b"[1\n" + line(2, "run", 0), "line 2 of .* is damaged"),
    ],
    ids=["another format", "runs of before", "seeds of before", "text", "json", "damage"],
)
def test_other_files_are_refused_and_stay_as_they_are(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        written(path)
    assert path.read_bytes() == content


def test_differences_name_entries_of_nested_descriptions():
    assert differences({"v": {"torch": "2.5"}, "x": 1}, {"v": {"torch": "2.6"}, "x": 1}) == [
        "v torch ('2.5' there, '2.6' here)"
    ]
    assert differences({"v": {}}, {"v": {"a": 1}}) == ["v ({} there, None here)", "v a (None there, 1 here)"]
