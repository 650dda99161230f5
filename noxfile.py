"""The suite in environments of their own: ``nox -s oldest``, with the lower bounds of pyproject.toml, and ``newest``.

Versions are chosen by uv, which nox finds where it is installed. On Linux torch comes with gigabytes of CUDA's
libraries; ``UV_TORCH_BACKEND=cpu`` leaves them out. What follows ``--`` goes to pytest.
"""

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv"

WHAT = (".[fast,compare,test]", "./experiments")


def _suite(session: nox.Session, resolution: str) -> None:
    session.install(*WHAT, "--resolution", resolution)
    session.run("uv", "pip", "list", external=True)
    session.run("python", "-m", "pytest", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """The oldest versions that pyproject.toml allows, of what it names."""
    _suite(session, "lowest-direct")


@nox.session(python="3.13")
def newest(session: nox.Session) -> None:
    """The newest versions that there are."""
    _suite(session, "highest")
