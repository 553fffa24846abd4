"""Compute what dask is to write, on whichever scheduler is set, with a bar if one is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dask.base


def distributed_client() -> Any:
    """The client of ``dask.distributed`` that ``dask.compute`` would use; None with another scheduler."""
    get_scheduler: Any = dask.base.get_scheduler
    owner = getattr(get_scheduler(), "__self__", None)
    return owner if type(owner).__module__.partition(".")[0] == "distributed" else None


def compute_all(delayed: Sequence[Any], *, progress: bool = False) -> None:
    """Compute ``Delayed`` objects as one graph, for what they do and not for what they give."""
    if not delayed:
        return
    compute: Any = dask.base.compute
    client = distributed_client() if progress else None
    if client is None:
        with progress_bar(shown=progress):
            compute(*delayed)
        return
    futures = client.compute(list(delayed))
    _show_progress(futures)
    client.gather(futures)


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[None]:
    """Show a bar for what a local scheduler of dask computes inside: tqdm's where it is installed, else dask's."""
    if not shown:
        yield
        return
    bar: Any
    try:
        from tqdm.auto import tqdm
        from tqdm.dask import TqdmCallback

        bar = TqdmCallback(tqdm_class=tqdm, desc="writing", unit="task")
    except ImportError:
        from dask.diagnostics.progress import ProgressBar

        make: Any = ProgressBar
        bar = make()
    with bar:
        yield


def _show_progress(futures: list[Any]) -> None:
    """The bar of a cluster: text that blocks until the end in a terminal, a widget in a notebook."""
    import distributed
    import distributed.utils

    show: Any = distributed.progress
    is_notebook: Any = distributed.utils.is_kernel
    shown = show(futures)
    if is_notebook():
        from IPython import display

        put: Any = display.display
        put(shown)
