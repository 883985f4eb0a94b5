"""The command line. Heavy imports wait until a command needs them."""

import os
import traceback
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup


class OneSentence(TyperGroup):
    """Shows an error of ours, or of the file system, as one sentence with exit code 1.

    An error that was raised elsewhere, in JAX or in the user's own file, keeps its traceback: it is needed there.
    """

    def invoke(self, ctx: typer.Context):
        try:
            return super().invoke(ctx)
        except OSError as error:
            message = f"{error.strerror}: '{error.filename}'." if error.filename else str(error)
        except (ValueError, TypeError) as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__", "").split(".")[0] != "vgp":
                raise
            message = str(error)
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
        jax.config.update("jax_compilation_cache_dir", str(_cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "vgp"


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and demo.json.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A few steps on two targets, to see it run.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of every random key.")] = 0,
    target: Annotated[list[str] | None, typer.Option(help="Only this target; may be given again.")] = None,
):
    """Fits a VGP and its rivals to built-in posteriors, compares them and draws pictures; under three minutes."""
    from .demo import run

    if not run(out, target, quick=quick, seed=seed):
        raise typer.Exit(130)
