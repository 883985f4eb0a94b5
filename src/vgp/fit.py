"""`vgp.fit`: a target and a family in, a `Fit` out."""

import math
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from . import loop, optimizers
from .bounds import AbstractBound, Importance
from .checkpoint import restore
from .choices import choose_families, choose_gradient, choose_start, shown
from .compiling import once
from .families import VGP, AbstractFamily, Place
from .gp import Grid
from .gradients import AbstractGradient
from .result import CHECK, PENALISE, Fit, Settings, read_run
from .target import Target, Values
from .targets import StreamTarget, target as make_target

STEPS = 12_000  # the most a default fit takes; the stopping rule usually ends it earlier


class Assemble(eqx.Module):
    """From parameters to a family. Named optimisers see one flat vector, which is quicker for small families;
    an optimiser of the user's sees the family's own tree.
    """

    static: PyTree  # the family without its parameters
    treedef: Any = eqx.field(static=True)
    leaves: tuple[tuple[tuple[int, ...], Any], ...] | None = eqx.field(static=True)  # shapes and dtypes, if flat

    def __call__(self, params: PyTree) -> AbstractFamily:
        if self.leaves is not None:
            sizes = [math.prod(shape) for shape, _ in self.leaves]
            ends = np.cumsum(sizes)
            pieces = [
                params[end - size : end].reshape(shape).astype(dtype)
                for (shape, dtype), size, end in zip(self.leaves, sizes, ends, strict=True)
            ]
            params = jax.tree.unflatten(self.treedef, pieces)
        return eqx.combine(params, self.static)

    def on_host(self, params: PyTree) -> AbstractFamily:
        """The same, its slices taken by numpy: nothing is compiled."""
        family = self(jax.tree.map(np.asarray, params))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, family)

    @staticmethod
    def taken_apart(family: AbstractFamily, flat: bool) -> tuple[PyTree, "Assemble"]:
        """The parameters of a family, and the way back."""
        params, static = eqx.partition(family, eqx.is_inexact_array)
        leaves, treedef = jax.tree.flatten(params)
        if not flat:
            return params, Assemble(static, treedef, None)
        kinds = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]), Assemble(static, treedef, kinds)


class Step(eqx.Module):
    """One pure step of a fit: draws, the bound and its gradient, the optimiser."""

    target: Target
    assemble: "Assemble"
    settings: Settings
    optimizer: optax.GradientTransformation

    def bound(self, params: PyTree, key: PRNGKeyArray, step: Int[Array, ""]) -> Float[Array, ""]:
        """The bound, averaged over this step's draws."""
        settings, family = self.settings, self.assemble(params)
        batch_key, key = (key, key) if settings.batch_size is None else jr.split(key)
        target = self.target.for_step(batch_key, settings.batch_size, step)
        return settings.bound(target, family, key, settings.draws, settings.gradient).mean()

    def __call__(self, state: loop.State) -> tuple[loop.State, Float[Array, ""]]:
        key = jr.fold_in(state.key, state.step)
        value, gradient = jax.value_and_grad(self.bound)(state.params, key, state.step)
        return loop.update(state, value, gradient, self.optimizer, self.settings.tail)


class Restarts(eqx.Module):
    """Several independent runs of one step, side by side."""

    step: Step

    def __call__(self, state: loop.State) -> tuple[loop.State, Float[Array, " restarts"]]:
        return eqx.filter_vmap(self.step)(state)


def fit(
    target: Target | Callable[..., Any],
    family: AbstractFamily | None = None,
    *,
    key: PRNGKeyArray,
    example: PyTree = None,
    constraints: PyTree = None,
    bound: AbstractBound | None = None,
    gradient: AbstractGradient | Literal["auto"] = "auto",
    optimizer: str | optax.GradientTransformation | None = None,
    steps: int | None = None,
    draws: int = 64,
    restarts: int = 1,
    batch_size: int | None = None,
    start: Literal["auto"] | Place | Values | None = "auto",
    progress: bool = True,
    checkpoint: str | os.PathLike | None = None,
) -> Fit:
    """Fits a variational family to a target by maximising a bound.

    **Main arguments:** `target`, from `vgp.target`, or a log density with its `example` (and
    `constraints`); `family`, by default a `VGP` whose Gaussian process also drives the scale; `key`, a
    typed key, `jax.random.key(0)`.

    **Other arguments:** `bound`, by default `Importance(inner=16)`; `gradient`, an estimator or "auto";
    `optimizer`, "adam" (default, with a falling tail), "rmsprop" (the paper's, with its schedule) or any
    optax optimiser, whose learning rate is then left alone; `steps`, the most that may be taken; `draws`
    per step; `restarts`, run side by side, the best one kept and their disagreement reported;
    `batch_size`, for a target with data; `start`, values to begin at (in a dict, some names are enough), "auto"
    to look for a Gaussian close to the posterior, or None to leave the family where it is; one that has been placed
    already, such as that of an earlier fit, stays; `progress`; `checkpoint`, a file that is written as the run goes
    on and continued from, bit for bit, if it is there already.

    Ctrl-C ends the run and returns what has been learned so far.
    """
    _check_key(key)
    if not isinstance(target, Target):
        if not callable(target):
            raise TypeError(f"The target must come from vgp.target or be a log density, got {type(target).__name__}.")
        if example is None:
            raise TypeError(
                "A log density needs an example of its argument: vgp.fit(log_density, example=..., key=key)."
            )
        target = make_target(target, example, constraints)
    elif example is not None or constraints is not None:
        raise TypeError("example and constraints go with a log density; a target has them already, so leave them out.")
    if target.posteriors != 1:
        raise TypeError(
            f"vgp.fit is for one posterior, got a model at {target.posteriors} datapoints, each with a z of its own; "
            "fit one of them, model.at(x[:1]), or learn an inference network (vgp.amortised)."
        )
    for name, value in (("steps", steps), ("draws", draws), ("restarts", restarts), ("batch_size", batch_size)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}.")
    total = target.num_data
    if batch_size is not None and isinstance(target, StreamTarget):
        raise ValueError(f"A stream makes its own batches, of {target.stream.batch_size} rows; leave batch_size out.")
    if batch_size is not None and (total is None or batch_size > total):
        held = "no data" if total is None else f"{total} rows of data"
        raise ValueError(
            f"batch_size={batch_size} needs a target with that much data, and this one has {held}; pass "
            "vgp.target(..., data=...), or use a plate with subsample_size in NumPyro, pm.Minibatch in PyMC."
        )
    family_key, key = jr.split(key)
    family_key, start_key = jr.split(family_key)
    families = choose_families(target, family, restarts, family_key)
    going_on = checkpoint is not None and os.path.exists(checkpoint)
    families = choose_start(target, families, start, batch_size, start_key, going_on)
    settings = Settings(
        bound=Importance() if bound is None else bound,
        gradient=choose_gradient(gradient, bound, families[0]),
        optimizer=optimizer if isinstance(optimizer, str) else ("adam" if optimizer is None else None),
        draws=draws,
        restarts=restarts,
        batch_size=batch_size,
        steps=STEPS if steps is None else steps,
        tail=optimizer in (None, "adam"),
    )
    first = families[0]
    if progress and isinstance(first, VGP) and isinstance(first.inputs, Grid):
        print(f"On a grid: {first.solver}.")
    return begin(target, families, settings, optimizer, key, progress, checkpoint)


def begin(target, families, settings, optimizer, key, progress, checkpoint) -> Fit:
    """Starts a run, or continues the one in the checkpoint."""
    transformation = optimizers.named(optimizer, target.dim)
    state = _stacked(families, transformation, jr.split(key, len(families)), settings)
    history, seconds = np.zeros((0, settings.restarts), np.float32), 0.0
    if checkpoint is not None and os.path.exists(checkpoint):
        state, history, seconds = read_run(checkpoint, families[0], state, settings)
    return proceed(target, families[0], settings, transformation, state, history, seconds, progress, checkpoint)


@once
def _stacked(families, transformation, keys, settings) -> loop.State:
    # The states of all restarts on a leading axis; of a single run, as it is. Compiled: eagerly it would be
    # a hundred small compilations.
    flat = settings.optimizer is not None
    starts = [
        loop.init(Assemble.taken_apart(family, flat)[0], transformation, key, settings.steps)
        for family, key in zip(families, keys, strict=True)
    ]
    return starts[0] if len(starts) == 1 else jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)


def proceed(target, family, settings, transformation, state, history, seconds, progress, checkpoint) -> Fit:
    """Runs the loop from a state to its end, and wraps up the result."""
    assemble = Assemble.taken_apart(family, settings.optimizer is not None)[1]
    step = Step(target, assemble, settings, transformation)
    started = time.monotonic() - seconds

    def result(state, history, ending) -> Fit:
        return Fit.make(target, assemble.on_host, settings, state, history, ending, time.monotonic() - started)

    def save(made: Fit):
        try:
            made.save(checkpoint)
        except OSError as error:
            warnings.warn(f"'{checkpoint}' could not be written ({error}); the run goes on.", stacklevel=3)

    outcome = loop.run(
        step if settings.restarts == 1 else Restarts(step),
        state,
        history,
        restarts=settings.restarts,
        tail=settings.tail,
        progress=progress,
        save=None if checkpoint is None else lambda now, past: save(result(now, past, "interrupted")),
    )
    made = result(*outcome)
    if outcome.ending == "diverged":
        made = made.because(*_culprit(step, made.family, outcome.state, settings))
    if checkpoint is not None:
        save(made)
    return made


def _check_key(key):
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()):
        got = f"{key.dtype}{list(key.shape)}" if isinstance(key, (jax.Array, np.ndarray)) else type(key).__name__
        raise TypeError(f"key must be one typed key, got {got}; write jax.random.key(0), not jax.random.PRNGKey(0).")


def _culprit(step: Step, family, state, settings) -> tuple[str, str]:
    # What was not finite, the log density at a point or the gradient of a parameter, and what to do.
    key = state.key if settings.restarts == 1 else state.key[int(np.argmax(state.streak))]
    z = family.sample(key, 4 * settings.draws)
    log_p = np.asarray(step.target.log_probs(z))
    bad = np.flatnonzero(~np.isfinite(log_p))
    if bad.size:
        discrete = any(support.is_discrete for _, support, _ in step.target.supports())
        impossible = discrete and np.isneginf(log_p[bad[0]])
        told = f"the log density is {log_p[bad[0]]} at {shown(step.target, z[bad[0]])}"
        return told, PENALISE if impossible else CHECK
    slope = np.asarray(jax.vmap(jax.grad(step.target.log_prob))(z))
    bad = np.flatnonzero(~np.isfinite(slope).all(axis=1))
    if bad.size:
        return f"the gradient of the log density is not finite at {shown(step.target, z[bad[0]])}", CHECK
    params, static = eqx.partition(family, eqx.is_inexact_array)
    step = eqx.tree_at(lambda s: s.assemble, step, Assemble(static, None, None))
    gradient = jax.grad(lambda p: step.bound(p, key, state.step.reshape(-1)[0]))(params)
    for path, leaf in jax.tree_util.tree_flatten_with_path(gradient)[0]:
        if not bool(jnp.all(jnp.isfinite(leaf))):
            return f"the gradient of the parameter 'family{jax.tree_util.keystr(path)}' is not finite", CHECK
    return "the bound is not finite now and then", CHECK


def members(fitted: Fit) -> list[AbstractFamily]:
    """The families of all restarts."""
    flat = fitted.settings.optimizer is not None
    params, assemble = Assemble.taken_apart(fitted.family, flat)
    if fitted.state is not None:
        stack = fitted.state.params
    else:
        like = jax.tree.map(lambda x: jnp.stack([x] * fitted.settings.restarts), params)
        stack = restore(like, fitted._arrays, "state.params")

    def one(r: int) -> AbstractFamily:
        return assemble.on_host(jax.tree.map(lambda x: np.asarray(x)[r], stack))

    return [one(r) for r in range(fitted.settings.restarts)]


def resume(fitted: Fit, steps, optimizer, progress, checkpoint) -> Fit:
    """`Fit.resume`: see there."""
    settings = fitted.settings
    if fitted.target is None:
        raise ValueError("A fit loaded without its target cannot go on; use vgp.load(path, target).resume().")
    if settings.optimizer is None and optimizer is None:
        raise ValueError("This fit was made with an optimiser of your own; pass it again: resume(optimizer=...).")
    transformation = optimizers.named(settings.optimizer if optimizer is None else optimizer, fitted.target.dim)
    state = fitted.state
    if state is None:
        keys = [jr.key(0, impl=fitted.key_impl)] * settings.restarts
        like = _stacked([fitted.family] * settings.restarts, transformation, keys, settings)
        state = restore(like, fitted._arrays, "state")
    if steps is not None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps must be a whole number, 1 or more, got {steps!r}.")
        state = loop.extend(state, steps)
    return proceed(
        fitted.target,
        fitted.family,
        settings,
        transformation,
        state,
        fitted.histories,
        fitted.seconds,
        progress,
        checkpoint,
    )
