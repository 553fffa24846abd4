"""``dt.td``: a thin shell over the functions that do the work, which are imported when they are needed."""

from __future__ import annotations

from typing import Any, Literal

import xarray as xr

from .core.inference import BatchDims
from .core.model import Inference, Key
from .dataset.records import Answer


class DataTreeAccessor:
    """``dt.td``: the batch of every node of a DataTree, and the ways to tensordict."""

    def __init__(self, dt: xr.DataTree) -> None:
        self._dt = dt
        self._answer = Answer()

    def infer(self) -> Inference:
        """The decision about the batch of each node."""
        from .dataset.trees import describe, infer

        return self._answer.to(describe(self._dt), lambda: infer(self._dt))

    @property
    def batch_dims(self) -> tuple[str, ...]:
        """The names of the batch dims of this node."""
        return tuple(str(dim) for dim in self.infer().batch_dims)

    @property
    def batch_size(self) -> tuple[int, ...]:
        """The size of the batch of this node."""
        return self.infer().batch_size

    def to_dataset(self) -> xr.Dataset:
        """Flatten this node and those below it into one Dataset; dims that clash are qualified (``data.demo_0.time``)."""
        from .dataset.trees import flatten

        return flatten(self._dt)

    def to_tensordict(self, batch_dims: BatchDims | None = None, **options: Any) -> Any:
        """Convert to nested TensorDicts, each node with its own batch; options as for a Dataset."""
        from .tensors.reading import tree_to_tensordict

        return tree_to_tensordict(self._dt, batch_dims, **options)

    def concat(
        self,
        dim: str,
        *,
        index: str = "episode",
        step: str = "step",
        by: str | Key | None = None,
        unbatched: Literal["drop", "expand"] = "drop",
    ) -> xr.Dataset:
        """Concatenate episodes of different lengths into one lazy Dataset.

        The episodes are the groups in this node that have a batch of their own, in natural order (``demo_2`` before
        ``demo_12``), nested keys kept; or one table in this node or in its group ``data``, cut as ``ds.td.concat`` cuts it.

        Parameters
        ----------
        dim, index, step, by
            As for ``ds.td.concat``. ``ds["episode"].attrs["names"]`` are the names of the groups; short attributes that differ between
            the groups (``num_samples``) are there too, one list each. Equal ones are attributes of the result.
        unbatched
            A single value of an episode is repeated for each of its rows. "drop" leaves arrays without the batch dim out,
            with a warning that names them; "expand" repeats them too, without copying. Coordinates of features that are
            equal in all episodes stay as they are.

        Returns
        -------
        xr.Dataset
            Backed by dask where groups were concatenated: one chunk for each episode, more for a long one, or the chunks
            that the tree was opened with.

        Raises
        ------
        ValueError
            Where there are no episodes; or where a variable is missing in one, or has another dtype or feature size.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xarray_tensordict
        >>> demos = {f"/demo_{i}": xr.Dataset({"obs": (("time", "f"), np.ones((i, 3)))}) for i in (2, 12)}
        >>> ds = xr.DataTree.from_dict(demos).td.concat("time")
        >>> ds.sizes["time"], ds["episode"].attrs["names"]
        (14, ['demo_2', 'demo_12'])
        """
        options = dict(locals())
        from .dataset.episodes import concat

        return concat(options.pop("self")._dt, **options)

    def to_zarr(self, store: Any, *, layout: Literal["tensordict", "xarray"] = "tensordict", **options: Any) -> Any:
        """Write to a zarr store, one group for each node; options as for ``Dataset.td.to_zarr``."""
        from .writing.methods import write_zarr

        return write_zarr(self._dt, store, layout=layout, **options)

    def to_h5(self, path: Any, *, layout: Literal["tensordict", "xarray"] = "tensordict", **options: Any) -> Any:
        """Write to an HDF5 file, one group for each node; options as for ``Dataset.td.to_h5``."""
        from .writing.methods import write_h5

        return write_h5(self._dt, path, layout=layout, **options)

    def to_memmap(self, path: Any, batch_dims: BatchDims | None = None, **options: Any) -> Any:
        """Write nested memory-mapped tensordicts, each node with its own batch; options as for ``Dataset.td.to_memmap``.

        Examples
        --------
        >>> import tempfile, numpy as np, tensordict, xarray as xr, xarray_tensordict
        >>> path = tempfile.mkdtemp() + "/runs"
        >>> nodes = {name: xr.Dataset({"obs": (("time", "f"), np.zeros((n, 2)))}) for name, n in [("a", 3), ("b", 5)]}
        >>> _ = xr.DataTree.from_dict(nodes).td.to_memmap(path)
        >>> tensordict.load(path)["b"].batch_size
        torch.Size([5])
        """
        from .formats.memmap.write import tree_to_memmap

        return tree_to_memmap(self._dt, path, batch_dims, **options)

    def __repr__(self) -> str:
        from .show.summary import summarize_tree, tree_text

        return tree_text(summarize_tree(self.infer()))

    def _repr_html_(self) -> str:
        from .show.summary import summarize_tree, tree_html

        return tree_html(summarize_tree(self.infer()))
