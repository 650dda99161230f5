"""BoTorch's and GPyTorch's own tests of regression models, with ``DerivedGP`` in the place of theirs.

    python tests/peers.py botorch FOLDER [PATTERN ...]
    python tests/peers.py gpytorch FOLDER [PATTERN ...]

FOLDER is a checkout of the library's repository (BoTorch's wheels and archives have no tests, GPyTorch's archive has),
at the version nearest to the installed one; nothing of it is copied. Each file is run twice, with the library's own
model and with ours, and only what fails with ours alone counts; what is right to fail is named with the reason.
PATTERNs choose among the files.

In BoTorch's tests ``DerivedGP`` stands for ``SingleTaskGP`` wherever that is imported. In GPyTorch's examples, whose
models derive from ``ExactGP`` and set their kernel afterwards, ``ExactGPByUs`` stands for it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

GPYTORCH = (
    "test/examples/test_simple_gp_regression.py",
    "test/examples/test_batch_gp_regression.py",
    "test/examples/test_white_noise_regression.py",
    "test/examples/test_fixed_noise_fanatasy_updates.py",
    "test/examples/test_spectral_mixture_gp_regression.py",
    "test/examples/test_model_list_gp_regression.py",
)
_STALE = "changes the noise after a prediction and expects the next one to come from the old cache, which it does not"
KNOWN = {
    "test_simple_gp_regression.py::TestSimpleGPRegression::"
    "test_posterior_latent_gp_and_likelihood_fast_pred_var": _STALE,
    "test_white_noise_regression.py::TestWhiteNoiseGPRegression::"
    "test_posterior_latent_gp_and_likelihood_fast_pred_var": _STALE,
    "test_acquisition_utils.py::TestGetXBaseline::test_get_X_baseline": "has 2 outcomes for 20 points",
    "test_simple_gp_regression.py::TestSimpleGPRegression::test_prior": "has no data, as SingleTaskGP cannot",
}
"""Failures that are ours alone and right, with the reason."""


def files_of(peer: str, folder: Path) -> list[str]:
    """BoTorch's files that name ``SingleTaskGP``; of GPyTorch's examples those of exact regression."""
    if peer == "gpytorch":
        return list(GPYTORCH)
    paths = sorted((folder / "test").rglob("test_*.py"))
    return [str(path.relative_to(folder)) for path in paths if "SingleTaskGP" in path.read_text()]


def stand_in_for_botorch() -> None:
    """Puts ``DerivedGP`` wherever BoTorch has ``SingleTaskGP``, so that tests import it."""
    import botorch.models
    from botorch.models.gp_regression import SingleTaskGP

    from surrogates import DerivedGP

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("botorch") and vars(module).get("SingleTaskGP") is SingleTaskGP:
            vars(module)["SingleTaskGP"] = DerivedGP
    assert botorch.models.SingleTaskGP is DerivedGP


def stand_in_for_gpytorch() -> None:
    """Puts a ``DerivedGP`` with ``ExactGP``'s constructor where GPyTorch's examples take ``ExactGP`` from."""
    import gpytorch
    from torch import Tensor

    from surrogates import DerivedGP

    class ExactGPByUs(DerivedGP):
        def __init__(self, train_inputs: Tensor, train_targets: Tensor, likelihood: Any) -> None:
            X = train_inputs[0] if isinstance(train_inputs, tuple) else train_inputs
            X = X.unsqueeze(-1) if X.dim() == 1 else X
            super().__init__(X, train_targets.unsqueeze(-1), likelihood=likelihood, outcome_transform=None)
            del self.mean_module, self.covar_module

    gpytorch.models.ExactGP = gpytorch.models.exact_gp.ExactGP = ExactGPByUs


class Outcomes:
    """A pytest plugin that notes how each test ended."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.passed: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def run_here(peer: str, ours: bool, folder: Path, files: list[str], into: Path) -> None:
    """Runs files of tests in this process and writes how they ended."""
    import botorch  # noqa: F401  (the installed one, not the folder's)

    if ours:
        {"botorch": stand_in_for_botorch, "gpytorch": stand_in_for_gpytorch}[peer]()
    sys.path.insert(0, str(folder))
    sys.modules.pop("test", None)
    outcomes = Outcomes()
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:warnings", "--import-mode=importlib"]
    options += [f"--rootdir={folder}", "-c", os.devnull]
    pytest.main([*options, *(str(folder / file) for file in files)], [outcomes])
    into.write_text(json.dumps({"failed": outcomes.failed, "passed": outcomes.passed}))


def run(peer: str, ours: bool, folder: Path, files: list[str]) -> dict[str, Any]:
    """Runs files of tests in a process of their own.

    Returns:
        ``failed``, from names to tracebacks, and ``passed``, names.
    """
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch) / "outcomes.json"
        options = ["--in-process", str(into), "--ours", str(int(ours))]
        # As a module of the root's, whose own packages this folder's would else hide.
        command = [sys.executable, "-m", "tests.peers", peer, str(folder), *files, *options]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, cwd=scratch)
        result: dict[str, Any] = json.loads(into.read_text())
        return result


def main() -> None:
    """Prints, a file to a line, how many tests pass with either model, and every failure that is ours alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("botorch", "gpytorch"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*", default=[])
    parser.add_argument("--in-process", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--ours", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="print the tracebacks too")
    arguments = parser.parse_args()
    if arguments.in_process:
        run_here(arguments.peer, bool(arguments.ours), arguments.folder, arguments.patterns, arguments.in_process)
        return
    chosen = [
        file
        for file in files_of(arguments.peer, arguments.folder)
        if not arguments.patterns or any(fnmatch(file, f"*{pattern}*") for pattern in arguments.patterns)
    ]
    alone = 0
    for file in chosen:
        theirs, ours = (run(arguments.peer, which, arguments.folder.resolve(), [file]) for which in (False, True))
        new = {name: why for name, why in ours["failed"].items() if name not in theirs["failed"]}
        known = {name: why for name in new for end, why in KNOWN.items() if name.endswith(end)}
        alone += len(new) - len(known)
        lines = [
            f"{file}: {len(theirs['passed'])} pass and {len(theirs['failed'])} fail with the library's model, "
            f"{len(ours['passed'])} and {len(ours['failed'])} with ours; ours alone: {len(new)}",
            *(
                f"    {name}\n        {known.get(name) or (why if arguments.verbose else why.strip().splitlines()[-1])}"
                for name, why in new.items()
            ),
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    sys.exit(bool(alone))


if __name__ == "__main__":
    main()
