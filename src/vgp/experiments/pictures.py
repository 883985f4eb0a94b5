"""Pictures of a trained model: images from the prior, reconstructions beside their originals, and DRAW at work."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ..data import Images
from ..models import DRAW
from .rows import Learner

FRAME, LAST = 80, 2000  # milliseconds for which a frame of an animation stands


@eqx.filter_jit
def _drawn(learner: Learner, key, n: int):
    return learner.model.probabilities(learner.model.sample_prior(key, n))


@eqx.filter_jit
def _reconstructed(learner: Learner, x, key):
    return learner.model.probabilities(learner.encoder.at(x, learner.model).sample(key, len(x)))


def draw(learner: Learner, images: Images, key, n: int, path: Path) -> list[Path]:
    """Writes a grid of n images from the prior to `path`, and pairs of test images and reconstructions beside it."""
    from matplotlib import image

    drawn_key, row_key, key = jr.split(key, 3)
    rows = jr.choice(row_key, len(images.test), (min(n, len(images.test)),), replace=False)
    x = images.test(rows, key)
    again = _reconstructed(learner, x, key)
    pairs = jnp.stack([x, again], axis=1).reshape(-1, x.shape[1])
    beside = path.with_name(f"{path.stem}-reconstructions{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    for pixels, where in ((_drawn(learner, drawn_key, n), path), (pairs, beside)):
        image.imsave(
            where, np.kron(grid(np.asarray(pixels), images.shape), np.ones((2, 2))), cmap="gray", vmin=0, vmax=1
        )
    return [path, beside]


@eqx.filter_jit
def _stages(model: DRAW, key, n: int):
    return jax.nn.sigmoid(model.canvases(model.sample_prior(key, n)))


def animate(model: DRAW, images: Images, key, n: int, path: Path) -> Path:
    """Writes n images as they are drawn, a frame per glimpse, to the GIF `path`: the same images as `draw` makes."""
    from PIL import Image

    stages = np.asarray(_stages(model, jr.split(key, 3)[0], n))
    sheets = [np.kron(grid(stage, images.shape), np.ones((2, 2))) for stage in stages]
    first, *rest = (Image.fromarray((255 * sheet).astype(np.uint8)) for sheet in sheets)
    durations = [FRAME] * len(rest) + [LAST]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0)
    return path


def grid(pixels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images side by side in a near-square grid, a line of grey between them; an even number of columns."""
    height, width = shape if len(shape) == 2 else (1, shape[0])
    columns = 2 * max(1, round(np.sqrt(len(pixels)) / 2))
    lines = -(-len(pixels) // columns)
    sheet = np.full((lines * (height + 1) + 1, columns * (width + 1) + 1), 0.5)
    for i, picture in enumerate(pixels.reshape(-1, height, width)):
        y, x = (i // columns) * (height + 1) + 1, (i % columns) * (width + 1) + 1
        sheet[y : y + height, x : x + width] = picture
    return sheet
