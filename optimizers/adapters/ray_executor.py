"""``RayExecutor``: a Ray cluster as the executor of a run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class RayExecutor:
    """Runs queries as Ray tasks: ``minimize(..., executor=RayExecutor(), workers=8)``.

    The tasks run on the cluster that ``ray.init`` has connected to; without it, Ray starts a cluster on this machine. A
    query whose worker dies counts as failed; Ray does not repeat it (``max_retries=0``).

    Args:
        **options: options of ``ray.remote`` for each task, such as ``num_cpus``, ``num_gpus`` and ``resources``.

    Raises:
        ImportError: if Ray is not installed.
    """

    def __init__(self, **options: Any) -> None:
        import ray

        self._remote = ray.remote(**{"max_retries": 0} | options)(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Starts ``fn(*args)`` in a worker and returns its future."""
        future: Future[Any] = self._remote.remote(fn, *args).future()
        return future


def _call(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)
