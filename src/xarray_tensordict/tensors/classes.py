"""From a tensordict to a tensorclass that the caller names, or an error that names the fields."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from tensordict import TensorDictBase, TypedTensorDict, is_tensor_collection, is_tensorclass

from ..core.model import Key


def as_class(td: TensorDictBase, cls: Any, dropped: AbstractSet[Key] = frozenset()) -> Any:
    """Make an instance of `cls` from a tensordict; nested tensordicts become the classes in the annotations of `cls`.

    Fields that are not there get their default, or None where their annotation allows it; those whose values were
    `dropped`, since they have no batch dim, do not.

    Raises
    ------
    TypeError
        If `cls` is no tensorclass.
    ValueError
        If the entries are not its fields; both are named.
    """
    if not _is_class(cls):
        raise TypeError(f"cls: expected a tensorclass or a TypedTensorDict, got {cls!r}")
    if issubclass(cls, TypedTensorDict):
        _check(cls.__required_keys__, set(cls.__expected_keys__) | set(td.keys()), td, cls, (), dropped)
        return cls.from_tensordict(td)
    return _made(td, cls, (), dropped)


def _is_class(cls: Any) -> bool:
    return isinstance(cls, type) and (is_tensorclass(cls) or issubclass(cls, TypedTensorDict))


def _made(td: TensorDictBase, cls: Any, where: Key, dropped: AbstractSet[Key]) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = _hints(cls)
    _check({name for name in fields if not _may_lack(fields[name], hints)}, set(fields), td, cls, where, dropped)
    made = cls.from_tensordict(td)
    present = list(td.keys())
    for name, field in fields.items():
        value = td.get(name) if name in present else None
        nested = _nested_class(hints.get(name))
        if nested is not None and value is not None and is_tensor_collection(value):
            setattr(made, name, _made(value, nested, (*where, name), dropped))
        elif name not in present and field.default is not dataclasses.MISSING:
            setattr(made, name, field.default)
        elif name not in present and field.default_factory is not dataclasses.MISSING:
            setattr(made, name, field.default_factory())
    return made


def _check(
    required: Any, known: set[str], td: TensorDictBase, cls: type, where: Key, dropped: AbstractSet[Key]
) -> None:
    present = set(td.keys())
    lost = sorted(name for name in known - present if (*where, name) in dropped)
    lacking, unknown = sorted(set(required) - present - set(lost)), sorted(present - known)
    if not lacking and not unknown and not lost:
        return
    place = f" at {'/'.join(where)!r}" if where else ""
    misfits = [f"its fields {lacking} are not there"] * bool(lacking)
    misfits += [f"its fields {lost} have no batch dim and were dropped (unbatched='expand' keeps them)"] * bool(lost)
    misfits += [f"the entries {unknown} are none of its fields"] * bool(unknown)
    raise ValueError(
        f"cls: {cls.__qualname__}{place} does not fit: {' and '.join(misfits)}. It has the fields {sorted(known)}, and the "
        f"tensordict has {sorted(present)}; drop or add variables, or pass another class"
    )


def _hints(cls: type) -> Mapping[str, Any]:
    """The annotations as types; as texts where they name what cannot be found, a class local to a function."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        return {field.name: field.type for field in dataclasses.fields(cls)}


def _may_lack(field: Any, hints: Mapping[str, Any]) -> bool:
    if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
        return True
    hint = hints.get(field.name)
    if isinstance(hint, str):
        return "Optional[" in hint or "None" in hint.replace(" ", "").split("|")
    return type(None) in typing.get_args(hint)


def _nested_class(hint: Any) -> Any:
    """The tensorclass that an annotation asks for, ``Inner`` of ``Inner | None``."""
    return next((found for found in (hint, *typing.get_args(hint)) if _is_class(found)), None)
