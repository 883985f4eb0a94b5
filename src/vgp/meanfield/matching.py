"""Which mean-field suits a support, and does the one that was chosen?"""

import itertools

from numpyro.distributions import constraints

from .base import AbstractMeanField
from .continuous import Beta, Gamma
from .discrete import Bernoulli, Categorical, Poisson
from .mixed import Mixed
from .normal import Normal

Support = constraints.Constraint


def matching(supports: list[tuple[str, Support, int]]) -> AbstractMeanField:
    """A mean-field for variables with these names, supports and numbers, in their order."""
    blocks = [
        (support, names, sum(size for *_, size in group))
        for (support, names, group) in (
            (group[0][1], [name for name, *_ in group], group)
            for group in (list(g) for _, g in itertools.groupby(supports, key=lambda each: _kind(each[1])))
        )
    ]
    parts = [(_suitable(names, support, size), size) for support, names, size in blocks]
    return parts[0][0] if len(parts) == 1 else Mixed(*parts)


def check(meanfield: AbstractMeanField, supports: list[tuple[str, Support, int]]) -> None:
    """Refuses a mean-field whose support is not that of the variables it would be of, by their name."""
    total = sum(size for *_, size in supports)
    own = [support for support, size in meanfield.supports for _ in range(total if size is None else size)]
    wanted = [(name, support) for name, support, size in supports for _ in range(size)]
    for (name, support), given in zip(wanted, own, strict=True):
        if _kind(support) != _kind(given):
            raise ValueError(
                f"'{name}' lies in {told(support)}, and its mean-field in {told(given)}; use a mean-field of that "
                "support (vgp.meanfield), or leave the family out to have one chosen."
            )


def told(support: Support) -> str:
    """A support in words."""
    kind, *limits = _kind(support)
    return f"{kind} {limits[0]} to {limits[1]}" if limits else kind


def _kind(support: Support) -> tuple:
    # What tells supports apart: constraints that are made anew each time, as those of an interval are, do not compare.
    if support is constraints.boolean:
        return ("{0, 1}",)
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        return ("the whole numbers", int(support.lower_bound), int(support.upper_bound))
    if support is constraints.nonnegative_integer:
        return ("the whole numbers from 0 on",)
    if support is constraints.positive or support is constraints.nonnegative:
        return ("the positive numbers",)
    if support is constraints.unit_interval or support is constraints.open_interval(0, 1):
        return ("the unit interval",)
    if support is constraints.real:
        return ("the real line",)
    return (str(support),)


def _suitable(names: list[str], support: Support, size: int) -> AbstractMeanField:
    kind, *limits = _kind(support)
    if kind == "the whole numbers" and limits[0] == 0:
        return Categorical(limits[1] + 1)
    made = {
        "{0, 1}": lambda: Bernoulli(),
        "the whole numbers from 0 on": lambda: Poisson(),
        "the positive numbers": lambda: Gamma(size),
        "the unit interval": lambda: Beta(size),
        "the real line": lambda: Normal(size, "gp", 1.0),
    }.get(kind)
    if made is None:
        raise ValueError(
            f"No mean-field is known for '{names[0]}', which lies in {told(support)}; shift or transform it so that it "
            "begins at 0, or enumerate it in the model."
        )
    return made()
