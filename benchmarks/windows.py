"""Where a DRAW writes, glimpse by glimpse: the means of its windows over test images, for every seed of some runs.

    VGP_DATA=... python benchmarks/windows.py NAME RUN [RUN ...] [--images 64]

Leaves results/windows-NAME.json and a picture, docs/images/windows-NAME.png: the centre of the writing window after
every glimpse, from the first one (dark) to the last (light), each as wide as the window's filters lie apart. On a CPU.

Expected: on sketches, by a DRAW without a path, a round over the image with the seeds that learn well, and a line from
corner to corner, with windows that are wide in the middle, with those that do not.
"""

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
import record
from matplotlib.patches import Rectangle

from vgp.experiments.begun import epochs_before
from vgp.experiments.folder import open_run
from vgp.experiments.records import some_of
from vgp.models.attention import RAW, bent

PICTURES = Path(__file__).parent.parent / "docs" / "images"


@eqx.filter_jit
def places(model: Any, encoder: Any, x, key) -> jax.Array:
    """Centre across and down, in halves of the image from its middle, and how far apart the outer filters lie."""
    xi_key, key = jr.split(key)
    view = encoder.at(x, model).view()
    drawing = view.conditional(view.sample_latent(xi_key, len(x))).sample(key)
    each = drawing.z.reshape(len(x), model.glimpses, -1).swapaxes(0, 1)

    def step(canvas, inputs):
        canvas = model.advance(canvas, *inputs)
        raw = model.writer(canvas.memory.h)[:, :RAW]
        told = bent(raw if inputs[1] is None else raw + inputs[1])
        return canvas, jnp.stack([told[:, 0], told[:, 1], 2 * jnp.exp(told[:, 3])]).mean(1)

    return jax.lax.scan(step, model.begin(len(x)), (each, model.path))[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--images", type=int, default=64)
    options = parser.parse_args()
    figures = []
    for run in map(open_run, options.runs):
        progress, together = run.load()
        x = some_of(run.images.test, options.images)(jnp.arange(options.images), jr.key(0)).astype(jnp.float32)
        for i, params in enumerate(progress.best):
            learner: Any = together(params)
            found = np.round(np.asarray(places(learner.model, learner.encoder, x, jr.key(1)), float), 4)
            epochs = epochs_before(run.row.begun) + len(progress.history)
            told = {"row": run.row.name, "begun": run.row.begun, "epochs": epochs, "seed": run.seed + i}
            figures.append({**told, **dict(zip(("across", "down", "width"), found.T.tolist(), strict=True))})
    record.write(f"windows-{options.name}", {"images": options.images}, figures)
    picture(figures, PICTURES / f"windows-{options.name}.png")


def picture(figures: list[dict], path: Path) -> None:
    """A square for each seed, with the windows in it."""
    figure, axes = plt.subplots(1, len(figures), figsize=(2.6 * len(figures), 3.3), squeeze=False)
    for axis, told in zip(axes[0], figures, strict=True):
        colours = plt.get_cmap("viridis")(np.linspace(0, 1, len(told["across"])))
        for x, y, width, colour in zip(told["across"], told["down"], told["width"], colours, strict=True):
            axis.add_patch(Rectangle((x - width / 2, y - width / 2), width, width, fill=False, ec=colour, lw=0.7))
        axis.plot(told["across"], told["down"], color="0.5", lw=0.8, zorder=0)
        axis.title.set_fontsize(10)
        axis.set(
            xlim=(-1, 1),
            ylim=(1, -1),
            xticks=[],
            yticks=[],
            aspect="equal",
            title=f"{told['row']}, seed {told['seed']}\n{told['epochs']} epochs",
        )
    figure.tight_layout()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"written: {path.name}")


if __name__ == "__main__":
    main()
