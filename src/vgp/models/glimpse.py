"""What a glimpse writes on the canvas and what the next one sees of it: one operation with a derivative of its own.

A window has few numbers and many filters. So the derivative is taken forwards, along each of the numbers, which does
not depend on what comes back: in `vgp.amortised.deferred` it is made for all glimpses at once. What is left for the
loop are a few sums over the image.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .attention import RAW, Layout, Window, read, write


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def glimpsed(
    layout: Layout,
    raw: Float[Array, "n r"],
    patch: Float[Array, "n k k"],
    logits: Float[Array, "n h w"],
    x: Float[Array, "n h w"],
) -> tuple[Float[Array, "n h w"], Float[Array, "n 2 j j"]]:
    """The canvas with the patch on it, and what is read of the image and of what the canvas then lacks of it.

    `layout` has a reading window and a writing one, and `raw` the numbers of both. No gradient goes to x.
    """
    return _forward(layout, raw, patch, logits, x)[0]


def _forward(layout, raw, patch, logits, x):
    reading, writing = layout.windows(raw[:, :RAW], raw[:, RAW:])
    logits = logits + write(writing, patch)
    likely = jax.nn.sigmoid(logits)
    seen = jnp.stack(read(reading, x, x - likely), axis=1)

    def windows(raw):
        return layout.windows(raw[:, :RAW], raw[:, RAW:])

    def along(direction):
        return jax.jvp(windows, (raw,), (jnp.broadcast_to(direction, raw.shape),))[1]

    # No window depends on the numbers of the other, so one direction serves both.
    moves = jax.vmap(along, out_axes=1)(jnp.tile(jnp.eye(RAW, dtype=raw.dtype), 2))
    by_place = _read_along(reading, moves[0], jnp.stack([x, x - likely], axis=1))
    by_written = _written_along(writing, moves[1], patch)
    return (logits, seen), (by_place, by_written, reading, writing, likely * (1 - likely))


def _backward(layout, kept, slopes):
    by_place, by_written, reading, writing, spread = kept
    by_logits, by_seen = slopes
    by_logits = by_logits - spread * write(reading, by_seen[:, 1])
    placed = jnp.sum(by_seen[:, None] * by_place, axis=(2, 3, 4))
    written = jnp.sum(by_logits[:, None] * by_written, axis=(2, 3))
    (by_patch,) = read(writing, by_logits)
    return jnp.concatenate([placed, written], axis=-1), by_patch, by_logits, None


glimpsed.defvjp(_forward, _backward)


# The derivatives are for all glimpses at once, where products are quicker than the sums that suit a single one. Along a
# direction d a product has two terms, one for each of its windows' sides that moves.


def _read_along(window: Window, moves: Window, images: Float[Array, "n a h w"]) -> Float[Array, "n d a k k"]:
    n, directions, size, width = moves.across.shape
    across = jnp.concatenate([window.across, moves.across.reshape(n, -1, width)], axis=1)
    seen = jnp.einsum("nahw,njw->nahj", images, across)
    still, moved = seen[..., :size], seen[..., size:].reshape(*seen.shape[:-1], directions, size)
    return jnp.einsum("ndih,nahj->ndaij", moves.down, still) + jnp.einsum("nih,nahdj->ndaij", window.down, moved)


def _written_along(window: Window, moves: Window, patch: Float[Array, "n k k"]) -> Float[Array, "n d h w"]:
    still = jnp.broadcast_to(jnp.einsum("nij,njw->niw", patch, window.across)[:, None], moves.across.shape)
    moved = jnp.einsum("nij,ndjw->ndiw", patch, moves.across)
    down = jnp.broadcast_to(window.down[:, None], moves.down.shape)
    sides = jnp.concatenate([moves.down, down], axis=2), jnp.concatenate([still, moved], axis=2)
    return jnp.einsum("ndih,ndiw->ndhw", *sides)
