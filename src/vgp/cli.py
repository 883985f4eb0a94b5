"""The command line. Heavy imports wait until a command needs them."""

import os
import traceback
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from .cache import cache_folder

MODEL_FILE = "__vgp_model__"  # the user's file, as a module


class OneSentence(TyperGroup):
    """Shows an error of ours, or of the file system, as one sentence with exit code 1.

    An error that was raised elsewhere, in JAX or in the user's own file, keeps its traceback: it is needed there.
    """

    def invoke(self, ctx: typer.Context):
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read what we print has enough
            raise typer.Exit(0) from None
        except (OSError, ValueError, TypeError) as error:
            modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
            filed = isinstance(error, OSError)
            if MODEL_FILE in modules or not (filed or modules[-1].split(".")[0] == "vgp"):
                raise
            message = f"{error.strerror}: '{error.filename}'." if filed and error.filename else str(error)
        typer.echo(f"vgp: {message}", err=True)
        raise typer.Exit(1)


app = typer.Typer(
    cls=OneSentence,
    help="The variational Gaussian process: a variational family for posterior approximation, not GP regression.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool):
    if wanted:
        typer.echo(f"vgp {installed_version('vgp')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
):
    import jax

    # Compiled steps are kept between runs of the command; a library must not decide that for its users. A folder
    # that the user has set for JAX stays.
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and demo.json.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A few steps on two targets, to see it run.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of every random key.")] = 0,
    target: Annotated[list[str] | None, typer.Option(help="Only this target; may be given again.")] = None,
):
    """Fits a VGP and its rivals to built-in posteriors, compares them and draws pictures; about three minutes."""
    from .demo import run

    if not run(out, target, quick=quick, seed=seed):
        raise typer.Exit(130)


@app.command()
def fit(
    model: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="Where the model is.")],
    data: Annotated[Path | None, typer.Option(help="Data by name: a .json object or an .npz file.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path("fit"),
    seed: Annotated[int, typer.Option(help="Seed of every random key.")] = 0,
    steps: Annotated[int | None, typer.Option(help="The most steps that may be taken.")] = None,
    restarts: Annotated[int, typer.Option(help="Starts side by side; combined if they disagree.")] = 1,
    draws: Annotated[int, typer.Option(help="Draws from the posterior to write.")] = 4000,
    batch_size: Annotated[int | None, typer.Option(help="Rows of data per step, for a model with batches.")] = None,
    resample: Annotated[bool, typer.Option("--resample", help="Correct the draws by their weights.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, even if OUT holds a fit.")] = False,
):
    """Fits a VGP to the posterior of a model in a Python file.

    Prints a summary and writes draws.nc (for ArviZ), summary.txt, fit.png and fit.vgp (for vgp.load) to OUT. Ctrl-C
    keeps what was learned, and the same command goes on from there.

    \b
    For example, with a file coin.py:
        import numpyro, numpyro.distributions as dist
        def model(n, heads):
            p = numpyro.sample("p", dist.Beta(1, 1))
            numpyro.sample("heads", dist.Binomial(n, p), obs=heads)
    and a file coin.json:
        {"n": 10, "heads": 7}
    run
        vgp fit coin.py:model --data coin.json -o coin

    \b
    NAME is one of
      - a NumPyro model, called with the data by name;
      - a PyMC model, or a function of the data that returns one;
      - a vgp.Target, or a function of the data that returns one;
      - a log density: a function of the values and then the data by name. The
        file also defines `example`, and `constraints` if any, as for vgp.target.

    Lists in the data become arrays; single numbers stay Python numbers, so that they can be sizes.
    """
    from .fit_command import run

    settings = {"seed": seed, "steps": steps, "restarts": restarts, "batch_size": batch_size}
    if code := run(model, data, out, draws=draws, resample=resample, fresh=fresh, **settings):
        raise typer.Exit(code)


@app.command()
def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="mnist|sketch|discrete", help="Which table: the paper's two, or that of binary latents."
        ),
    ],
    results: Annotated[Path, typer.Option(help="Folder of the results; the records are in its folder train.")] = Path(
        "results"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print our records as a JSON list.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for GitHub.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List every record on its own.")] = False,
):
    """Prints a table: the paper's figures, other published ones, and ours from the records of evaluated runs."""
    from .experiments.table import show

    show(name, results, as_json=as_json, as_markdown=as_markdown, every=every)


@app.command()
def train(
    row: Annotated[str, typer.Argument(help="The row of the table, for example dlgm1-vgp.")],
    data: Annotated[str | None, typer.Option(help="digits, mnist, sketch, or the path of an .npz file.")] = None,
    protocol: Annotated[str | None, typer.Option(help="fixed or dynamic binarization.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How long; by default the row's own number.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder; by default under runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, even if the folder holds a run.")] = False,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds, side by side.")] = 1,
    batch: Annotated[int | None, typer.Option(help="Images per step.")] = None,
    rate: Annotated[float | None, typer.Option(help="The learning rate.")] = None,
    tail: Annotated[
        float | None, typer.Option(help="Share of the run in which the rate falls to zero; 0 to branch from it later.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam, muon or rmsprop.")] = None,
    decay: Annotated[float | None, typer.Option(help="Muon's weight decay, in units of the rate.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Epochs in which the KL's weight rises to one.")] = None,
    flip: Annotated[
        float | None, typer.Option(help="Share of pixels turned over in what the inference network sees in training.")
    ] = None,
    dreams: Annotated[
        float | None, typer.Option(help="Weight of images that the model draws, for the inference network to learn on.")
    ] = None,
    architecture: Annotated[str | None, typer.Option(help="deep (2×200, 2×100 units) or literal (100).")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another setting of the row, such as num_data=32."),
    ] = None,
    early: Annotated[bool, typer.Option(help="Stop when the validation bound no longer improves.")] = True,
    start: Annotated[Path | None, typer.Option(help="A run to begin with the parameters of, where they fit.")] = None,
):
    """Trains a row of the paper's table: a deep model with its inference network.

    Progress, checkpoints and the best parameters by validation go to the run's folder; Ctrl-C keeps what was learned,
    and --resume goes on from there, also with more --epochs. Then: vgp evaluate RUN, vgp sample RUN.

    \b
    For example
        vgp train dlgm1-vgp
    learns scikit-learn's digits on a laptop, and
        VGP_DATA=folder vgp train dlgm1-vgp --data mnist --protocol fixed --seeds 3
    is for a GPU.
    """
    from .experiments.commands import run_train

    changes = {"epochs": epochs, "batch": batch, "rate": rate, "warmup": warmup, "architecture": architecture}
    changes |= {"tail": tail, "optimizer": optimizer, "decay": decay, "flip": flip, "dreams": dreams}
    folder = {"data": data, "protocol": protocol, "out": out, "resume": resume, "fresh": fresh}
    if code := run_train(
        row, **folder, settings=settings or [], seed=seed, seeds=seeds, early=early, start=start, **changes
    ):
        raise typer.Exit(code)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    samples: Annotated[int, typer.Option(help="Importance samples per image.")] = 5000,
    inner: Annotated[int, typer.Option(help="K of the bound of a hierarchical family.")] = 64,
    images: Annotated[int | None, typer.Option(help="Only so many test images, evenly spaced; no record then.")] = None,
    results: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the records.")] = False,
):
    """Measures a trained run on the test set: bound, sandwich, and log p(x) by importance sampling."""
    from .experiments.commands import run_evaluate

    run_evaluate(run, results=results, samples=samples, inner=inner, images=images, as_json=as_json)


@app.command()
def keep(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the copy.")],
):
    """Copies a run without its optimiser, its parameters in half precision: an eighth of the size.

    The copy can be evaluated, drawn from, and begun or gone on with; only not bit for bit.
    """
    from .experiments.commands import run_keep

    run_keep(run, out)


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The picture; by default RUN/samples.png.")] = None,
    n: Annotated[int, typer.Option("-n", help="How many images.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
):
    """Draws images from a trained model, and reconstructions of test images beside the originals."""
    from .experiments.commands import run_sample

    run_sample(run, out=out, n=n, seed=seed)


bench_app = typer.Typer(cls=OneSentence, help="Measures what the library costs on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.command()
def solvers(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for solvers.png and solvers.json.")] = Path("bench"),
    only: Annotated[str | None, typer.Option(help="One part: step, growth, crossing or gpytorch.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see it run; no record is written.")] = False,
):
    """Time and memory of dense, Toeplitz and Kronecker algebra against the number of variational data.

    On the default device, with fitted exponents, beside GPyTorch where it is installed. Takes about ten minutes.
    """
    from .bench.solvers import run

    run(out, only, quick=quick)


@bench_app.command()
def gradients(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for gradients.png and gradients.json.")] = Path(
        "bench"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, to see it run; no record is written.")] = False,
):
    """Variance of every estimator for discrete variables at equal cost, and how a VGP trains with it.

    On posteriors of binary variables that can be enumerated, beside a mean-field q. Takes about eight minutes.
    """
    from .bench.gradients import run

    run(out, quick=quick)
