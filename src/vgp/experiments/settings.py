"""Settings of a row as they are told on the command line, and what they can be."""

import ast
import dataclasses
import itertools
import typing
from types import NoneType, UnionType
from typing import Any

from ..gradients import AbstractScore
from .rows import Row

FIXED = ("name", "family", "model", "data", "layers", "begun")  # what makes a row that row
LEAST = {
    **{"num_data": 1, "latent_dim": 1, "rank": 1, "linearised": 0, "auxiliary_width": 0, "outer": 1, "draws": 1},
    **{"glimpses": 0, "reading": 1, "writing": 1, "unroll": 1, "start": 0.0},
}
POSITIVE = ("noise", "reach", "clip")
# What only some families, models, or rows of several layers read.
_HVM = ("latent_dim", "scale", "auxiliary_width", "linearised")
_VGP = (*_HVM, "num_data", "rank", "inputs", "mean", "noise", "project", "start", "reach", "sees")
FAMILIES = {"vgp": _VGP, "vgp-paper": _VGP, "hvm": _HVM, "planar": ("length",), "hvi": ("length",)}
MODELS = {"draw": ("glimpses", "reading", "writing", "normalised", "path", "unroll")}
LAYERED = ("joint", "above")


def setting(text: str) -> tuple[str, Any]:
    """A field of a row and its value, from a text such as "rank=8" or "inputs=shared"."""
    key, equals, told = text.partition("=")
    kinds = {name: kind for name, kind in typing.get_type_hints(Row).items() if name not in FIXED}
    if not equals or key not in kinds:
        raise ValueError(f"A setting is NAME=VALUE with a name among {', '.join(kinds)}, got '{text}'.")
    try:
        value = ast.literal_eval(told)
    except (ValueError, SyntaxError):
        value = told  # a word
    return key, _of_kind(key, value)


def _of_kind(key: str, value: Any) -> Any:
    kinds = typing.get_type_hints(Row)
    possible = [typing.get_origin(kind) or kind for kind in _alternatives(kinds[key])]
    if float in possible and type(value) is int:
        value = float(value)
    if type(value) not in possible:
        names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in possible)
        like = f", such as {key}='{Row.inner}'" if key == "inner" else ""
        raise ValueError(f"The setting {key} is of the kind {names}{like}, got '{value}'.")
    return value


def applies(row: Row, key: str) -> None:
    """Refuses a setting that a row of this family and model would not read."""
    owners = [(FAMILIES, row.family, f"family is {row.family}"), (MODELS, row.model, f"model is {row.model}")]
    for table, own, told in owners:
        if key in itertools.chain(*table.values()) and key not in table.get(own, ()):
            raise ValueError(f"The setting {key} does nothing in {row.name}, whose {told}; leave it out.")
    if key in LAYERED and row.layers == 1:
        raise ValueError(f"The setting {key} does nothing in {row.name}, which has one layer; leave it out.")


def check(row: Row) -> None:
    """Refuses what no row can be trained with, in one sentence."""
    for key, least in LEAST.items():
        value = getattr(row, key)
        if value is not None and value < least:
            raise ValueError(f"The setting {key} must be {least} or more, got {value}.")
    for key in POSITIVE:
        value = getattr(row, key)
        if value is not None and not value > 0:
            raise ValueError(f"The setting {key} must be positive, got {value}.")
    if row.mean != "zero" and row.noise >= 1:
        raise ValueError(f"The setting noise must be less than 1, the scale of all of z, got {row.noise}.")
    if row.family in ("planar", "hvi") and row.length < 1:
        raise ValueError(f"The setting length must be 1 or more for {row.name}, got {row.length}.")
    if row.model == "draw" and row.glimpses < 1:
        raise ValueError(f"The setting glimpses must be 1 or more for {row.name}, got {row.glimpses}.")
    if not _schedule(row.inner):
        raise ValueError(
            "The setting inner must be pairs of a share of the run, rising from 0.0, and the K from there on, such as "
            f"((0.0, 1), (0.5, 8)), got {row.inner}."
        )
    names = [part[0] if isinstance(part, tuple) and len(part) == 2 else None for part in row.above]
    if not all(name in _VGP for name in names):
        raise ValueError(f"The setting above must be pairs of one of {', '.join(_VGP)} and its value, got {row.above}.")
    if row.above:
        check(dataclasses.replace(row, above=(), **{key: _of_kind(key, value) for key, value in row.above}))
    gradient, _ = row.make_gradient(), row.make_bound(row.inner[-1][1])  # these say what is wrong with a name
    if isinstance(gradient, AbstractScore) and row.model != "sbn":
        raise ValueError(
            f"gradient={row.gradient} is for discrete variables, and those of {row.name} are continuous; take "
            "Pathwise, StickingTheLanding or DoublyReparameterised."
        )


def _schedule(inner: Any) -> bool:
    pairs = all(isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], int) for part in inner)
    if not inner or not pairs or inner[0][0] != 0:
        return False
    shares = [share for share, _ in inner]
    return all(a < b < 1 for a, b in itertools.pairwise(shares)) and all(k >= 0 for _, k in inner)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, UnionType) else (kind,)
