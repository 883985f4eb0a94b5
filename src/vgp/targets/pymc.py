"""A target from a PyMC model: its graph as a JAX function, its data as inputs, its transforms as numpyro's."""

import functools
import threading
import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Int
from numpyro.distributions import constraints

from ..compiling import once
from ..target import Target
from .layout import Layout

Variable = Any  # of PyTensor, which is only imported when a model comes


def from_pymc(model: Any) -> "PymcTarget":
    """A target from a PyMC model.

    Its values are a dict by variable name; drawn values include the deterministic variables. `pm.Data` and
    observed arrays are inputs of the compiled code: `target.with_data(name=value)` replaces them. `pm.Minibatch`
    stands for all of its rows, and for a random batch of them if `vgp.fit` is given a `batch_size`; the scaling by
    `total_size` is PyMC's own, and happens nowhere else.
    """
    tools = _tools()
    if not isinstance(model, tools.Model):
        raise TypeError(f"from_pymc needs a pymc.Model, got {type(model).__name__}.")
    if not model.free_RVs:
        raise ValueError(
            "The model has no free random variables, so there is no posterior to approximate; its variables are "
            f"{sorted(model.named_vars) or 'none'}."
        )
    supports, kept = {}, {}
    for rv in model.free_RVs:
        if not rv.type.dtype.startswith("float"):
            raise ValueError(
                f"The variable '{rv.name}' is discrete ({rv.type.dtype}), and only continuous ones can be fitted; "
                "sum it out of the model, for example with pm.Mixture."
            )
        transform, support = _transform_and_support(model, rv)
        supports[rv.name] = constraints.real if support is None else support
        if support is None:
            kept[rv.name] = transform
    graph = _Graph(model, kept)
    layout = Layout.of(graph.example(), [supports[name] for name in graph.free])
    data = {name: jnp.asarray(value) for name, value in graph.data.items()}
    made = PymcTarget(dim=layout.dim, graph=graph, layout=layout, data=data)
    made._check_data()
    return made


class PymcTarget(Target):
    """What `vgp.from_pymc` returns."""

    dim: int = eqx.field(static=True)
    graph: "_Graph" = eqx.field(static=True)
    layout: Layout
    data: dict[str, Array]
    rows: Int[Array, " b"] | None = None  # of the data in pm.Minibatch, in a batch
    prior: dist.Distribution | None = None

    def with_data(self, **data: Any) -> "PymcTarget":
        """The same target with some of its `pm.Data` or observed arrays replaced."""
        new = dict(self.data)
        for name, value in data.items():
            if name not in new:
                raise ValueError(f"There is no data called '{name}' in the model, only {sorted(new)}.")
            old, value = new[name], np.asarray(value)
            if value.ndim != old.ndim or not np.can_cast(value.dtype, old.dtype, "same_kind"):
                raise ValueError(
                    f"The data '{name}' must have {old.ndim} axes and be {old.dtype}, got shape {value.shape} and "
                    f"{value.dtype}; convert it, or build a model for data of that kind."
                )
            new[name] = jnp.asarray(value, old.dtype)
        made = eqx.tree_at(lambda t: t.data, self, new)
        made._check_data()
        return made

    @property
    def num_data(self):
        return next((self.data[name].shape[0] for name in self.graph.batched.values()), None)

    def minibatch(self, key, size):
        if self.num_data is None:
            raise TypeError("This model has no pm.Minibatch, and so no data to take batches from.")
        rows = jr.choice(key, self.num_data, (size,), replace=False)
        return eqx.tree_at(lambda t: t.rows, self, rows, is_leaf=lambda x: x is None)

    def _run(self, part: str, values: dict[str, Array]) -> list[Array]:
        arrays = [values[name] for name in self.graph.free] + [self.data[name] for name in self.graph.sources]
        batch = [self.data[name] for name in self.graph.batched.values()]
        return self.graph(part, arrays + (batch if self.rows is None else [x[self.rows] for x in batch]))

    def log_likelihood(self, u):
        (value,) = self._run("log density", self.layout.constrain(u))
        return jnp.asarray(value, u.dtype) + self.layout.log_jacobian(u)

    def constrain(self, u):
        values = self.layout.constrain(u)
        return values | dict(zip(self.graph.derived, self._run("derived", values), strict=True))

    def unconstrain(self, z):
        missing = [name for name in self.graph.free if name not in z]
        if missing:
            raise ValueError(f"Values of all free variables are needed, and {missing} are missing.")
        values = {name: jnp.asarray(z[name], float) for name in self.graph.free}
        return self.layout.unconstrain(values | dict(zip(self.graph.kept, self._run("forward", values), strict=True)))

    def log_jacobian(self, u):
        (value,) = self._run("log jacobian", self.layout.constrain(u))
        return jnp.asarray(value, u.dtype) + self.layout.log_jacobian(u)

    def coordinates(self):
        return self.layout.coordinates()

    def observed(self):
        values = self._run("observed", self.layout.constrain(jnp.zeros(self.dim)))
        return dict(zip(self.graph.observed, values, strict=True))

    def predict(self, key, values):
        free, data = self.graph.free, [*self.graph.sources, *self.graph.batched.values()]
        seed = int(jr.randint(key, (), 0, np.iinfo(np.int32).max))
        draw = self.graph.sampler([np.asarray(self.data[name]) for name in data], seed)
        latent = [np.asarray(values[name], rv.type.dtype) for name, rv in free.items()]
        draws = zip(*(draw(*point) for point in zip(*latent, strict=True)), strict=True)
        return {name: jnp.asarray(np.stack(x)) for name, x in zip(self.graph.observed, draws, strict=True)}

    def labels(self):
        model = self.graph.model
        coords = {dim: list(values) for dim, values in model.coords.items() if values is not None}
        return coords, {name: list(dims) for name, dims in model.named_vars_to_dims.items() if None not in dims}

    def _check_data(self):
        observed = once(lambda t: t.observed())(self)
        for name, value in observed.items():
            if value.size == 0:
                raise ValueError(f"The observed variable '{name}' is empty (shape {value.shape}); give it a row.")
            if jnp.issubdtype(value.dtype, jnp.floating):
                _refuse_nan(name, "is NaN", np.isnan(value), "drop the row, or pass a plain array to have it imputed")
        # A row that is NaN at ordinary points has a NaN in its data somewhere; one point alone may be unlucky.
        points = jnp.stack([jnp.zeros(self.dim), jnp.full(self.dim, 0.3)])
        rows = once(lambda t: jax.vmap(lambda u: t._run("rows", t.layout.constrain(u)))(points))(self)
        for name, log_p in zip(observed, rows, strict=True):
            bad = np.isnan(log_p).all(axis=0)
            _refuse_nan(name, "has a log density of NaN", bad, "look for a NaN in what it depends on there")


class _Graph:
    """The parts of a model as PyTensor graphs, made into JAX functions for the shapes that come."""

    def __init__(self, model: Any, kept: dict[str, Any]):
        tools = _tools()
        self.model, self.functions = model, {}
        self.sources = {x.name: x for x in model.data_vars if isinstance(x, tools.SharedVariable)}
        self.data = {name: np.ma.filled(x.get_value(), np.nan) for name, x in self.sources.items()}
        values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
        for i, (rv, value) in enumerate(zip(model.observed_RVs, values, strict=True)):
            if isinstance(value, tools.Constant):  # as an input, it is not copied into the compiled code
                self.data[rv.name] = value.data
                values[i] = self.sources[rv.name] = value.type(name=rv.name)
        groups = [model.free_RVs, model.observed_RVs, values, model.potentials, model.deterministics]
        groups = [list(group) for group in groups]
        found = self._batches()
        rows = [x.type.clone(shape=(None, *x.type.shape[1:]))() for x in found]
        self.batched = dict(zip(rows, found.values(), strict=True))  # inputs, and the data they are rows of
        if found:  # before PyMC takes the graph apart to find densities, and copies what is random
            old, treedef = jax.tree.flatten(groups)
            new = tools.clone_replace(old, dict(zip(found, rows, strict=True)), rebuild_strict=False)
            for x, copy in zip(old, new, strict=True):
                copy.name = x.name
            groups = jax.tree.unflatten(treedef, new)
        free, observed, values, potentials, deterministics = groups
        self.free = {rv.name: rv for rv in sorted(free, key=lambda rv: rv.name)}  # as in a dict's leaves
        self.kept = {name: kept[name] for name in self.free if name in kept}  # transforms that stay PyMC's
        self.observed = {rv.name: rv for rv in observed}
        self.values = [x.type() for x in self._as_values()]
        rvs_to_values = dict(zip([*self.free.values(), *observed], [*self.values, *values], strict=True))
        maps = {
            "rvs_to_values": rvs_to_values,
            "rvs_to_transforms": {rv: self.kept.get(rv.name) for rv in rvs_to_values},
        }
        terms = tools.transformed_conditional_logp(list(rvs_to_values), jacobian=True, **maps)
        potentials = tools.replace_rvs_by_values(potentials, **maps)
        own = [(self.free[name], transform) for name, transform in self.kept.items()]
        jacobians = [transform.log_jac_det(rvs_to_values[rv], *rv.owner.inputs) for rv, transform in own]
        derived = [*(rv for rv, _ in own), *deterministics]
        self.derived = [x.name for x in derived]
        self.parts = {
            "log density": [_total([*terms, *potentials])],
            "log jacobian": [_total(tools.replace_rvs_by_values(jacobians, **maps))],
            "derived": tools.replace_rvs_by_values(derived, **maps),
            "forward": [transform.forward(rv, *rv.owner.inputs) for rv, transform in own],
            "observed": values,
            "rows": terms[len(self.free) :],
        }

    def _as_values(self) -> list[Variable]:
        own = self.kept
        return [own[n].forward(rv, *rv.owner.inputs) if n in own else rv for n, rv in self.free.items()]

    def example(self) -> dict[str, np.ndarray]:
        """Zeros in the shape in which each free variable lies in the layout."""
        shapes = _tools().function([], [x.shape for x in self._as_values()], mode="FAST_COMPILE")()
        return {name: np.zeros(tuple(map(int, shape))) for name, shape in zip(self.free, shapes, strict=True)}

    def _batches(self) -> dict[Variable, str]:
        # The outputs of pm.Minibatch, and the names of the data they are rows of.
        tools, model, found = _tools(), self.model, {}
        names = {value: rv.name for rv, value in model.rvs_to_values.items()}

        def batches(*graphs):
            above = tools.ancestors(graphs)
            return [x for x in above if x.owner is not None and isinstance(x.owner.op, tools.MinibatchOp)]

        scaled = [*model.basic_RVs, *model.potentials]
        for x in batches(*scaled, *model.rvs_to_values.values(), *model.deterministics):
            source = x.owner.inputs[x.owner.outputs.index(x)]
            found[x] = source.name if source.name in self.data else names.get(x, f"minibatch.{len(found)}")
            self.data.setdefault(found[x], source.eval(mode="FAST_COMPILE"))
        for x in scaled if found else []:
            is_scaled = x.owner is not None and isinstance(x.owner.op, tools.MinibatchRandomVariable)
            if not is_scaled and batches(x, model.rvs_to_values.get(x, x)):
                raise ValueError(
                    f"The variable '{x.name}' depends on pm.Minibatch without being scaled, so batches of it would "
                    "be biased; make it an observed variable with total_size, or leave out pm.Minibatch."
                )
        if len({len(self.data[name]) for name in found.values()}) > 1:
            raise ValueError("All arrays in pm.Minibatch need the same number of rows; pass them to it in one call.")
        return found

    def _inputs(self, part: str) -> list[Variable]:
        values = self.free.values() if part == "forward" else self.values
        return [*values, *self.sources.values(), *self.batched]

    def __call__(self, part: str, arrays: list[Array]) -> list[Array]:
        """The outputs of one part, for arrays in the order of `_inputs`."""
        if not self.parts[part]:
            return []
        key = (part, tuple(x.shape for x in arrays), jax.config.read("jax_enable_x64"))
        with warnings.catch_warnings():  # where x64 is off, each float64 in the graph would warn
            warnings.simplefilter("ignore", UserWarning)
            if key not in self.functions:
                with jax.ensure_compile_time_eval():  # constants are made here, perhaps while something is traced
                    self.functions[key] = self._function(*key[:2])
            return [jnp.asarray(x) for x in self.functions[key](*arrays)]

    def _function(self, part: str, shapes: tuple[tuple[int, ...], ...]):
        # XLA needs every shape, and PyTensor works them out once those of its inputs are known.
        tools, variables = _tools(), self._inputs(part)
        inputs = [x.type.clone(shape=shape)() for x, shape in zip(variables, shapes, strict=True)]
        fgraph = tools.FunctionGraph(inputs, _replaced(self.parts[part], variables, inputs), clone=True)
        for node in fgraph.toposort():  # a sum of zero to 1e-9, which float32 cannot keep and the transform sees to
            if "mean(value" in getattr(node.op, "msg", ""):
                fgraph.replace(node.outputs[0], node.inputs[0])
        checks = "local_check_parameter_to_ninf_switch" if self.model.check_bounds else "local_remove_check_parameter"
        tools.get_mode("JAX").including(checks).excluding("fusion").optimizer.rewrite(fgraph)
        for node in fgraph.toposort():
            function = _OURS.get(type(getattr(node.op, "scalar_op", node.op)).__name__)
            if function is not None:
                types = [x.type for x in node.inputs], [x.type for x in node.outputs]
                fgraph.replace(node.outputs[0], tools.JAXOp(*types, function)(*node.inputs))
        try:
            return tools.jax_funcify(fgraph)
        except NotImplementedError as error:
            raise ValueError(f"PyTensor cannot run a part of this model on JAX: {error}.") from error

    def sampler(self, data: list[np.ndarray], seed: int):
        """A function from values of the free variables to new values of the observed ones."""
        tools, variables = _tools(), self._inputs("forward")
        inputs = [rv.type() for rv in self.free.values()]
        given = zip(variables[len(inputs) :], data, strict=True)
        given = [tools.constant(value, dtype=x.type.dtype) for x, value in given]
        outputs = _replaced(list(self.observed.values()), variables, [*inputs, *given])
        return tools.compile(inputs, outputs, random_seed=seed, mode="FAST_COMPILE", on_unused_input="ignore")


def _replaced(graphs: list[Variable], variables: list[Variable], by: list[Variable]) -> list[Variable]:
    # What is left of shared variables, such as the lengths of dimensions, becomes constant.
    tools = _tools()
    graphs = tools.clone_replace(graphs, dict(zip(variables, by, strict=True)), rebuild_strict=False)
    left = [x for x in tools.graph_inputs(graphs) if isinstance(x, tools.SharedVariable) and hasattr(x.type, "dtype")]
    return tools.clone_replace(graphs, {x: tools.constant(x.get_value()) for x in left}, rebuild_strict=False)


def _transform_and_support(model: Any, rv: Variable) -> tuple[Any, constraints.Constraint | None]:
    # PyMC's transform, and numpyro's constraint for the same values or None. A transform that was switched off
    # still says what the support is.
    tools = _tools()
    tr = tools.transforms
    transform = model.rvs_to_transforms[rv] or tr._default_transform(rv.owner.op, rv)
    known = {
        type(None): constraints.real,
        tr.LogTransform: constraints.positive,
        tr.LogExpM1: constraints.positive,
        tr.LogOddsTransform: constraints.unit_interval,
        tr.SimplexTransform: constraints.simplex,
        tr.SumTo1: constraints.simplex,
        tr.CircularTransform: constraints.circular,
    }
    if type(transform) in known:
        return transform, known[type(transform)]
    if type(transform) is tr.Ordered and transform.ascending:
        return transform, constraints.positive_ordered_vector if transform.positive else constraints.ordered_vector
    if type(transform) is tr.ZeroSumTransform:
        count, axes = len(transform.zerosum_axes), {axis % rv.ndim for axis in transform.zerosum_axes}
        return transform, constraints.zero_sum(count) if axes == set(range(rv.ndim - count, rv.ndim)) else None
    if not isinstance(transform, tr.IntervalTransform):
        return transform, None
    bounds = [tools.as_tensor(bound) for bound in transform.get_a_and_b(rv.owner.inputs)[:2]]
    above = set(tools.ancestors(bounds))
    if above & set(model.basic_RVs):
        raise ValueError(
            f"The bounds of '{rv.name}' depend on another variable; draw a fraction from a fixed interval and "
            "multiply it by the bound, in a pm.Deterministic."
        )
    if any(isinstance(x, tools.SharedVariable) for x in above):
        return transform, None  # pm.Data may change, so its bounds stay in the graph
    low, high = (float(x) if np.ndim(x) == 0 else jnp.asarray(x) for x in tools.constant_fold(bounds))
    if np.isfinite(low).all() and np.isfinite(high).all():
        return transform, constraints.interval(low, high)
    if np.isfinite(low).all() and np.isinf(high).all():
        return transform, constraints.greater_than(low)
    if np.isinf(low).all() and np.isfinite(high).all():
        return transform, constraints.less_than(high)
    return transform, None


def _total(terms: list[Variable]) -> Variable:
    return sum((_tools().as_tensor(term).sum() for term in terms), start=_tools().constant(0.0))


def _refuse_nan(name: str, what: str, bad: np.ndarray | np.bool_, advice: str):
    if np.any(bad):
        where = f" at row {int(np.argwhere(bad)[0][0])}" if np.ndim(bad) else ""
        raise ValueError(f"The observed variable '{name}' {what}{where}; {advice}.")


def _finite(function, slope):
    # With a slope that stays finite: in the branch of a switch that is not taken, zero times infinity would be NaN.
    known = jax.custom_jvp(function)
    known.defjvps(lambda t, out, x: jnp.nan_to_num(slope(x, out)) * t)
    return lambda x: (known(jnp.asarray(x, jnp.result_type(x, float))),)


_OURS = {  # operations, by PyTensor's names, that it cannot always turn into JAX or whose slopes overflow
    "Log": _finite(jnp.log, lambda x, out: 1 / x),
    "Log1p": _finite(jnp.log1p, lambda x, out: 1 / (1 + x)),
    "PosDefMatrix": lambda x: (jnp.all(jnp.isfinite(jnp.linalg.cholesky(x))),),
}
if hasattr(jax.scipy.special, "erfcx"):
    _OURS["Erfcx"] = _finite(jax.scipy.special.erfcx, lambda x, out: 2 * x * out - 2 / jnp.pi**0.5)


@functools.cache
def _tools() -> Any:
    # What is needed of PyMC and PyTensor, imported on first use. PyTensor's JAX dispatch turns x64 on for everyone;
    # it is put back in a thread of its own, where no `with jax.enable_x64` of the caller's hides the setting.
    def dispatch():
        before = jax.config.read("jax_enable_x64")
        import_module("pytensor.link.jax.dispatch")
        jax.config.update("jax_enable_x64", before)

    try:
        core = import_module("pymc.model.core")
    except ImportError as error:
        raise ImportError("from_pymc needs PyMC, which is not installed; run `pip install pymc`.") from error
    thread = threading.Thread(target=dispatch)
    thread.start()
    thread.join()
    names = {
        "pymc.data": ["MinibatchOp"],
        "pymc.distributions": ["transforms"],
        "pymc.logprob.basic": ["transformed_conditional_logp"],
        "pymc.logprob.utils": ["replace_rvs_by_values"],
        "pymc.pytensorf": ["compile", "constant_fold"],
        "pymc.variational.minibatch_rv": ["MinibatchRandomVariable"],
        "pytensor": ["function"],
        "pytensor.compile": ["SharedVariable"],
        "pytensor.compile.mode": ["get_mode"],
        "pytensor.graph": ["Constant", "FunctionGraph"],
        "pytensor.graph.replace": ["clone_replace"],
        "pytensor.graph.traversal": ["ancestors", "graph_inputs"],
        "pytensor.link.jax.dispatch": ["jax_funcify"],
        "pytensor.link.jax.ops": ["JAXOp"],
        "pytensor.tensor": ["as_tensor", "constant"],
    }
    found = {name: getattr(import_module(module), name) for module, wanted in names.items() for name in wanted}
    return SimpleNamespace(Model=getattr(core, "BaseModel", core.Model), **found)
