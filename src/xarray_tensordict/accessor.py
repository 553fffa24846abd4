"""``ds.td`` and ``dt.td``, and ``da.td`` that points to the first: thin shells over the functions that do the work.

They are registered when the engine opens a store or the package is imported. The functions are imported when they are
needed: importing this module imports neither torch nor tensordict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from .core.inference import BatchDims
from .core.metadata import BATCH_DIMS_ATTR
from .core.model import Inference, Key
from .dataset.records import Answer, infer_dataset
from .loading.methods import LoadingMethods
from .warnings import warn
from .writing.methods import WritingMethods

if TYPE_CHECKING:
    from tensordict import PersistentTensorDict, TensorDict

    from .dataset.entries import Names, Unbatched

_shadow_warned = False


class Conversions(WritingMethods):
    """What ``ds.td`` and ``dt.td`` share: the ways to tensordict."""

    def _flat(self, batch_dims: BatchDims | None) -> tuple[xr.Dataset, Inference]:
        """A flat Dataset, and the decision about its batch."""
        raise NotImplementedError

    def to_tensordict(
        self,
        batch_dims: BatchDims | None = None,
        *,
        device: Any = None,
        include: Names | None = None,
        exclude: Names = (),
        coords: bool | Iterable[str] = True,
        unbatched: Unbatched = "drop",
        cls: Any = None,
        out: Any = None,
        copy: bool | None = None,
    ) -> TensorDict:
        """Convert to a TensorDict in memory; each node of a tree is a nested one with its own batch.

        Parameters
        ----------
        batch_dims
            Names of batch dims or a count, for this call; by default those of ``ds.td.batch_dims``.
        device
            The device of the result.
        include
            Names of variables or groups that become entries, coordinates included; by default all. A nested one is
            ``"next/done"`` or ``("next", "done")``.
        exclude
            Names of variables or groups that do not, of those.
        coords
            Whether coordinates become entries, or the names of those that do.
        unbatched
            What happens to numeric variables, and arrays of strings, that have no batch dim: "drop" leaves them out
            (``ds.td.unbatched`` has them), "keep" makes ``UnbatchedTensor`` of them, "expand" expands them to the batch
            without copying, "raise" raises.
        cls
            A tensorclass (or a ``TypedTensorDict``) to return instead of a TensorDict. Nested tensordicts become the
            tensorclasses that its annotations name; fields that are not there get their default, or None where the
            annotation allows it. ``ds.td`` shows the class that a store was saved from.
        out
            A tensordict whose tensors are filled, and which is returned.
        copy
            None: tensors share memory with variables that are in memory where torch allows it, never with index
            coordinates. True: they share none. False: raise rather than copy.

        Returns
        -------
        TensorDict
            Datetimes and timedeltas as int64 nanoseconds (since 1970-01-01), NaT as the smallest int64; strings as one
            ``str`` for each batch element; variables with some of the batch dims broadcast by name, without copying.
            A Dataset backed by dask is computed once, as one graph.

        Raises
        ------
        ValueError
            For unknown names, ``unbatched="raise"`` with such variables, or a `cls` that has other fields.

        Warns
        -----
        UserWarning
            Names the variables that no tensordict can hold (dates of other calendars, or outside 1678 to 2262).
        """
        options = dict(locals())
        from .tensors.reading import to_tensordict

        ds, inference = options.pop("self")._flat(options.pop("batch_dims"))
        td: TensorDict = to_tensordict(ds, **options, inference=inference)
        return td

    def to_memmap(
        self,
        path: Any,
        batch_dims: BatchDims | None = None,
        *,
        mode: Literal["w", "w-"] = "w",
        include: Names | None = None,
        exclude: Names = (),
        coords: bool | Iterable[str] = True,
        unbatched: Literal["keep", "drop", "expand", "raise"] = "keep",
        compute: bool = True,
        progress: bool = False,
    ) -> Any:
        """Write a memory-mapped tensordict, which ``tensordict.load(path)`` loads: what ``to_tensordict()`` gives, of a tree too.

        Variables backed by dask are streamed, block by block and in parallel, by the current scheduler (workers on
        other machines need to see the folder); others that are not in memory are read some rows at a time.

        Parameters
        ----------
        path
            A folder. It is written beside and renamed: an existing memory-mapped tensordict is replaced when all is
            written (it may be the one that the Dataset reads from), any other folder is refused. A path that ends in
            ``.tdz`` gives an archive.
        batch_dims, include, exclude, coords
            As in :meth:`to_tensordict`.
        mode
            "w" replaces an existing target, "w-" refuses it.
        unbatched
            What happens to numeric variables, and arrays of strings, that have no batch dim: "keep" writes them into the
            entry ``_unbatched``, from which this package restores them, as ``to_zarr`` does; "drop" leaves them out,
            "expand" writes them once for each element of the batch, "raise" raises.
        compute
            False: check everything, make a hidden folder beside with the metadata and what is small or in memory, and
            return a dask ``Delayed`` that writes the rest and renames the folder. It can be computed once, and again if
            it failed; until then the target is as it was. If it is never computed, delete ``.<name>.<number>.tmp``.
        progress
            As in :meth:`to_zarr`.

        Returns
        -------
        Written or dask.delayed.Delayed
            A summary, as of :meth:`to_zarr`. With ``compute=False`` the ``Delayed`` that writes the rest.

        Raises
        ------
        FileExistsError
            Where the path exists and is not replaced.
        TypeError, ValueError, OverflowError
            For what a memory-mapped tensordict cannot hold: dates of other calendars or outside 1678 to 2262, objects
            that are no JSON, entries called ``shape``, ``device`` or ``_type``. The target has not been touched.

        Notes
        -----
        A memory-mapped tensordict holds names of the batch dims, and neither those of other dims nor attributes;
        ``xarray_tensordict.to_dataset(td, template=ds)`` gives them back.

        Examples
        --------
        >>> import tempfile, numpy as np, tensordict, xarray as xr, xarray_tensordict
        >>> path = tempfile.mkdtemp() + "/era"
        >>> ds = xr.Dataset({"t2m": (("time", "lat"), np.zeros((4, 3), "f4"))})
        >>> _ = ds.td.to_memmap(path)
        >>> tensordict.load(path)["t2m"].shape
        torch.Size([4, 3])
        """
        options = dict(locals())
        from .formats.memmap.write import to_memmap

        ds, inference = options.pop("self")._flat(options.pop("batch_dims"))
        return to_memmap(ds, **options, inference=inference)


class DatasetAccessor(LoadingMethods, Conversions):
    """``ds.td``: the batch of a Dataset, and the ways to tensordict.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xarray_tensordict
    >>> ds = xr.Dataset({"t2m": (("time", "lat"), np.zeros((4, 3), "f4"))}, coords={"lat": [1.0, 2.0, 3.0]})
    >>> ds.td.batch_dims, ds.td.batch_size
    (('time',), (4,))
    >>> ds.td.to_tensordict()["t2m"].shape
    torch.Size([4, 3])
    """

    def __init__(self, ds: xr.Dataset) -> None:
        _warn_shadowed("dataset", "ds", ds.variables)
        self._ds = self._written = ds
        self._answer = Answer()

    def infer(self) -> Inference:
        """The decision about the batch: the batch of each group, the class of each variable, the evidence in words."""
        from .dataset.describe import describe_dataset

        # xarray keeps this accessor with a Dataset, which can be changed in place: ds["x"] = ..., ds.attrs[...] = ...
        return self._answer.to([*describe_dataset(self._ds), dict(self._ds.attrs)], lambda: infer_dataset(self._ds))

    @property
    def batch_dims(self) -> tuple[str, ...]:
        """The names of the batch dims, ``()`` where there is no batch."""
        return tuple(str(dim) for dim in self.infer().batch_dims)

    @property
    def batch_size(self) -> tuple[int, ...]:
        """The size of the batch, as ``TensorDict.batch_size`` will be."""
        return self.infer().batch_size

    def set_batch_dims(self, *batch_dims: str | Sequence[str] | None) -> xr.Dataset:
        """Choose the batch dims.

        The choice is kept in ``attrs["tensordict_batch_dims"]`` and written with the Dataset.

        Parameters
        ----------
        *batch_dims
            Names of dims, outermost first, or one list of them; ``()`` for no batch; ``None`` removes an earlier choice, so
            that the batch is inferred again. They need not be the first dims: variables are transposed when they are converted.

        Returns
        -------
        xr.Dataset
            A shallow copy with the choice. This Dataset is not changed.

        Raises
        ------
        ValueError
            For a name that is no dim of the Dataset.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xarray_tensordict
        >>> ds = xr.Dataset({"t2m": (("time", "lat", "lon"), np.zeros((4, 3, 2), "f4"))})
        >>> ds.td.set_batch_dims("time", "lat").td.batch_size
        (4, 3)
        """
        from .dataset.records import with_record

        given: Any = batch_dims[0] if len(batch_dims) == 1 else batch_dims
        if given is None:
            ds = self._ds.copy(deep=False)
            ds.attrs = {name: value for name, value in ds.attrs.items() if name != BATCH_DIMS_ATTR}
            return ds
        if not batch_dims or isinstance(batch_dims[0], Real):
            raise TypeError(
                f"set_batch_dims: expected names of dims, () or None, got {list(batch_dims) or 'nothing'}; a count works in "
                f"to_tensordict(batch_dims=...)"
            )
        names: list[Any] = [given] if isinstance(given, str) else list(given)
        infer_dataset(self._ds, given=names or 0)
        return with_record(self._ds, {(): names})

    def concat(
        self, dim: str, *, index: str = "episode", step: str = "step", by: str | Key | None = None
    ) -> xr.Dataset:
        """Label the rows of a table of consecutive episodes with the number of their episode and step.

        Parameters
        ----------
        dim
            The name that the batch dim gets. Where each env of a table of ``[time, env]`` has episodes of its own, a new name:
            the rows along it are the steps of the first env, then those of the next.
        index, step
            The names of two coordinates over `dim`: the number of the episode, and that of the row in its episode.
        by
            The variable that marks where episodes end: the row after each (``episode_ends``), one number for each row
            (``episode_index``), or flags of their last rows (booleans), or of their first rows (``is_first``, ``is_init``). Of
            ``terminated`` and ``truncated``, and of other such pairs, both are read. By default the first that is found of
            ``episode_ends``, ``index`` itself, ``episode_index``, ``collector/traj_ids``, ``terminals`` with ``timeouts``,
            ``terminated`` with ``truncated``, ``terminations`` with ``truncations``, ``is_last``, ``terminals``,
            ``next/done``, ``dones`` and ``is_first``. It is read.

        Returns
        -------
        xr.Dataset
            As lazy as this one. Rows behind the last of ``episode_ends`` belong to no episode and are left out; those
            behind the last flag are an episode. Numbers of episodes are kept where they are unique, otherwise they count from 0.

        Raises
        ------
        ValueError
            Where no variable marks the ends of episodes, or it does not fit the table.

        Examples
        --------
        >>> import numpy as np, xarray as xr, xarray_tensordict
        >>> ds = xr.Dataset({"obs": (("row", "f"), np.ones((5, 3))), "terminals": ("row", np.array([0, 0, 1, 0, 0], bool))})
        >>> ds.td.concat("time")["episode"].values.tolist()
        [0, 0, 0, 1, 1]
        """
        from .dataset.episode_tables import label_dataset

        return label_dataset(self._ds, dim, index, step, by)

    @property
    def batched(self) -> xr.Dataset:
        """The Dataset without the data variables that have no batch dim; coordinates of the dims that are left stay."""
        classes = self._classes()
        left = {dim for name, found in classes.items() if found != "unbatched" for dim in self._ds[name].dims}
        unbatched = [name for name, found in classes.items() if found == "unbatched"]
        coords = {name for name in unbatched if name in self._ds.coords and left.issuperset(self._ds[name].dims)}
        return self._ds.drop_vars([name for name in unbatched if name not in coords])

    @property
    def unbatched(self) -> xr.Dataset:
        """The variables without a batch dim, which ``to_tensordict`` leaves out by default."""
        return self._ds.drop_vars([name for name, found in self._classes().items() if found != "unbatched"])

    def _classes(self) -> dict[Any, str]:
        from .dataset.describe import key_of

        classes = self.infer().classes
        return {name: classes[key_of(name)] for name in self._ds.variables}

    def _flat(self, batch_dims: BatchDims | None) -> tuple[xr.Dataset, Inference]:
        return self._ds, self.infer() if batch_dims is None else infer_dataset(self._ds, given=batch_dims)

    def to_persistent(self, batch_dims: BatchDims | None = None, *, device: Any = None) -> PersistentTensorDict:
        """A lazy ``PersistentTensorDict`` over this Dataset; nothing is written and nothing is read yet."""
        from .lazy.persistent import persistent_from_dataset

        return persistent_from_dataset(self._ds, batch_dims, device=device)

    def __repr__(self) -> str:
        from .show.summary import summarize, summary_text

        return summary_text(summarize(self._ds, self.infer()))

    def _repr_html_(self) -> str:
        from .show.summary import summarize, summary_html

        return summary_html(summarize(self._ds, self.infer()))


class DataArrayAdvice:
    """``da.td``, which has nothing but this advice."""

    def __init__(self, da: xr.DataArray) -> None:
        _warn_shadowed("array", "da", da.coords)

    def __repr__(self) -> str:
        return "a DataArray has no td: use ds.td of the Dataset that it is from, or da.to_dataset(name='x').td"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name!r}: {self!r}")


def _warn_shadowed(what: str, short: str, variables: Mapping[Any, Any]) -> None:
    """The accessor hides a variable of its name (dewpoint is often called so) from attribute access."""
    global _shadow_warned
    if "td" in variables and not _shadow_warned:
        _shadow_warned = True

        warn(
            f"the {what} has a variable 'td', which {short}.td does not give: {short}.td is the accessor of xarray-tensordict. "
            f"Use {short}['td'] for the variable",
            UserWarning,
        )


class DataTreeAccessor(Conversions):
    """``dt.td``: the batch of every node of a DataTree, and the ways to tensordict."""

    def __init__(self, dt: xr.DataTree) -> None:
        self._dt = self._written = dt
        self._answer = Answer()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(DatasetAccessor, name):
            raise AttributeError(f"td of a DataTree has no {name!r}")
        groups = [key for key, batch in self.infer().groups.items() if batch.sizes]
        group, call = (
            groups[0] if groups else (),
            f".td.{name}{'(...)' if callable(getattr(DatasetAccessor, name)) else ''}",
        )
        one = f"dt[{'/'.join(group)!r}]" if group else "dt"
        text = (
            f"dt.td has no {name!r}, which a Dataset has: {one}.td.to_dataset(){call} is of this group and those in it"
        )
        if len([key for key in groups if group and key[:-1] == group[:-1]]) > 1:
            above = f"dt[{'/'.join(group[:-1])!r}]" if group[1:] else "dt"
            text += f", {above}.td.concat('time'){call} of all episodes beside it"
        raise AttributeError(text)

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

    def _flat(self, batch_dims: BatchDims | None) -> tuple[xr.Dataset, Inference]:
        from .dataset.trees import flat_view

        return flat_view(self._dt, batch_dims)

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
            the groups (``num_samples``) are there too, one list each, and the name of the steps (``step_variable``). Equal ones
            are attributes of the result.
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

    def __repr__(self) -> str:
        from .show.summary import summarize_tree, tree_text

        return tree_text(summarize_tree(self._dt))

    def _repr_html_(self) -> str:
        from .show.summary import summarize_tree, tree_html

        return tree_html(summarize_tree(self._dt))


def register() -> None:
    """Register the accessors, once."""
    if getattr(xr.Dataset, "td", None) is None:
        xr.register_dataset_accessor("td")(DatasetAccessor)
    if getattr(xr.DataArray, "td", None) is None:
        xr.register_dataarray_accessor("td")(DataArrayAdvice)
    if getattr(xr.DataTree, "td", None) is None:
        xr.register_datatree_accessor("td")(DataTreeAccessor)


register()
