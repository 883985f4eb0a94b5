"""Which mean-field suits a support, and does the one that was chosen?"""

import itertools

import numpy as np
from numpyro.distributions import constraints

from .base import AbstractMeanField
from .continuous import Beta, Gamma
from .discrete import Bernoulli, Categorical, Poisson
from .mixed import Mixed
from .normal import Normal

Support = constraints.Constraint
UNNAMED = "the values"  # of an example without names
CLASSES = 1000  # the most that a variable may have for a mean-field to be chosen: each is an output of the process


def matching(supports: list[tuple[str, Support, int]]) -> AbstractMeanField:
    """A mean-field for variables with these names, supports and numbers, in their order."""
    groups = [list(group) for _, group in itertools.groupby(supports, key=lambda each: _kind(each[1]))]
    sizes = [sum(size for *_, size in group) for group in groups]
    parts = [(_suitable(*group[0][:2], size), size) for group, size in zip(groups, sizes, strict=True)]
    return parts[0][0] if len(parts) == 1 else Mixed(*parts)


def check(
    meanfield: AbstractMeanField,
    supports: list[tuple[str, Support, int]],
    advice: str = "use a vgp.VGP or vgp.families.Factorised with a mean-field of that support (vgp.meanfield), or "
    "leave the family out to have one chosen",
) -> None:
    """Refuses a mean-field whose support is not that of the variables it would be of, by their name.

    A `Categorical` may stand for counts all the same. It leaves out those beyond its classes, and what is inside the
    support is as good a bound; it is there because no mean-field of all counts is narrower than a Poisson. Elsewhere
    there is one of the whole support that is as narrow as need be, and one that leaves values out is a slip.
    """
    total = sum(size for *_, size in supports)
    own = [support for support, size in meanfield.supports for _ in range(total if size is None else size)]
    wanted = [(name, support) for name, support, size in supports for _ in range(size)]
    for (name, support), given in zip(wanted, own, strict=True):
        if _kind(support) != _kind(given) and not _few_of(support, given):
            lost = _loses(name, support, given)
            kept = f"; to keep it on a support of its own: target.kept({name!r})" if lost else ""
            raise ValueError(f"{_lie(name)} in {told(support)}, and the family in {told(given)}; {advice}{kept}.")


def told(support: Support) -> str:
    """A support in words."""
    kind, *limits = _kind(support)
    return f"{kind} {limits[0]} to {limits[1]}" if limits else kind


def _few_of(support: Support, given: Support) -> bool:
    # The classes of a Categorical for counts, which have no limit: q gives no mass to what lies beyond.
    classes = isinstance(given, type(constraints.integer_interval(0, 1))) and _limit(given, "lower_bound") == 0
    return support is constraints.nonnegative_integer and classes


def _loses(name: str, support: Support, given: Support) -> bool:
    # May it have had this support before it was taken to the real line?
    return support is constraints.real and not given.is_discrete and name != UNNAMED


def _lie(name: str) -> str:
    return "The values lie" if name == UNNAMED else f"'{name}' lies"


def _limit(support: Support, name: str) -> float | None:
    # The same for all values, or None.
    found = np.unique(np.asarray(getattr(support, name, np.nan), float))
    return float(found[0]) if found.size == 1 else None


def _kind(support: Support) -> tuple:
    # What tells supports apart: constraints that are made anew each time, as those of an interval are, do not compare.
    low, high = _limit(support, "lower_bound"), _limit(support, "upper_bound")
    if support is constraints.boolean:
        return ("{0, 1}",)
    if isinstance(support, type(constraints.integer_interval(0, 1))) and low is not None and high is not None:
        return ("{0, 1}",) if (low, high) == (0, 1) else ("the whole numbers", int(low), int(high))
    if support is constraints.nonnegative_integer:
        return ("the whole numbers from 0 on",)
    if isinstance(support, type(constraints.greater_than(0.0))) and low == 0:
        return ("the positive numbers",)
    if isinstance(support, type(constraints.interval(0.0, 1.0))) and (low, high) == (0, 1):
        return ("the unit interval",)
    if support is constraints.real:
        return ("the real line",)
    return (str(support),)


def _suitable(name: str, support: Support, size: int) -> AbstractMeanField:
    kind, *limits = _kind(support)
    if kind == "the whole numbers" and limits[0] == 0 and 0 < limits[1] < CLASSES:
        return Categorical(limits[1] + 1)
    made = {
        "{0, 1}": lambda: Bernoulli(),
        "the whole numbers from 0 on": lambda: Poisson(),
        "the positive numbers": lambda: Gamma(size),
        "the unit interval": lambda: Beta(size),
        "the real line": lambda: Normal(size, "gp", 1.0),
    }.get(kind)
    if made is None:
        advice = "leave it out of kept(...)"
        if support.is_discrete:
            advice = (
                "write it as whole numbers from 0 on (nonnegative_integer) or from 0 to one limit less than "
                f"{CLASSES} (integer_interval(0, n)), or sum it out of the model"
            )
        raise ValueError(f"{_lie(name)} in {told(support)}, for which there is no mean-field; {advice}.")
    return made()
