"""Entry point of ``python -m experiments`` and of the script ``gradient-surrogates``."""

import os
import sys

# Linear algebra libraries read these when they load, so they are set before anything imports numpy: the
# matrices here are small, and threads that spin on a shared machine cost more than they gain.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def main() -> int:
    """Runs the command line."""
    if sys.argv[1:] == ["--version"]:  # without the seconds that importing PyTorch takes
        from experiments import __version__
        from experiments.program import SCRIPT

        print(SCRIPT, __version__)
        return 0
    from experiments.cli import main as command_line

    return command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
