"""Images: small on the device, the same at every load, and the same from every format."""

import gzip
import hashlib
import io
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import install_import_hook

with install_import_hook("vgp.data", "beartype.beartype"):
    from vgp import data
    from vgp.data import digits, mnist
    from vgp.data.pixels import thresholds
    from vgp.data.splits import drawn_once, shuffled

RNG = np.random.default_rng(0)
REAL = Path(os.environ.get("VGP_DATA", "nowhere"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder in VGP_DATA; no test sees the files of whoever runs it, but for the one on the real data."""
    (tmp_path / "named").mkdir()
    monkeypatch.setenv("VGP_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "named"


def everything(pixels):
    return np.asarray(pixels(jnp.arange(len(pixels)), jr.key(0)))


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


# ---------------------------------------------------------------- pixels


@pytest.mark.parametrize("dim", [1, 7, 8, 13, 64])
def test_bits_come_back(dim):
    images = RNG.integers(0, 2, (9, dim))
    bits = data.Bits.pack(images)
    assert (len(bits), bits.dim, bits.packed.dtype) == (9, dim, jnp.uint8)
    np.testing.assert_array_equal(bits.packed, np.packbits(images, axis=1))
    rows = jnp.array([4, 4, 0])
    batch = bits(rows, jr.key(0))
    assert batch.dtype == jnp.zeros(()).dtype
    np.testing.assert_array_equal(batch, images[np.asarray(rows)])
    np.testing.assert_allclose(bits.mean(), images.mean(0), rtol=1e-6)


def test_grays_are_drawn_with_their_probabilities():
    # Of all the draws that 16 bits can make, as near as they can come.
    chances = np.asarray(thresholds(jnp.arange(256, dtype=jnp.uint8))) / 2**16
    assert np.abs(chances - np.arange(256) / 255).max() <= 2.0**-17
    assert (chances[0], chances[255]) == (0, 1)

    n, p = 20_000, np.arange(1, 255) / 255
    drawn = np.asarray(data.Grays(np.arange(256, dtype=np.uint8)[None])(jnp.zeros(n, int), jr.key(1)))
    assert set(np.unique(drawn)) == {0, 1} and drawn.dtype == jnp.zeros(()).dtype
    assert (drawn[:, 0] == 0).all() and (drawn[:, 255] == 1).all()
    z = (drawn[:, 1:255].mean(0) - p) / np.sqrt(p * (1 - p) / n)
    assert np.abs(z).max() < 4.5 and abs((z**2).mean() - 1) < 4 * np.sqrt(2 / len(z))


def test_grays_are_drawn_anew():
    grays = RNG.integers(0, 256, (5, 40)).astype(np.uint8)
    pixels, rows = data.Grays(grays), jnp.array([2, 2])
    first, second = pixels(rows, jr.key(0)), pixels(rows, jr.key(1))
    assert (first != second).any() and (first[0] != first[1]).any()
    np.testing.assert_array_equal(first, pixels(rows, jr.key(0)))
    assert (len(pixels), pixels.dim) == (5, 40)
    np.testing.assert_allclose(pixels.mean(), grays.mean(0) / 255, rtol=1e-6)


@pytest.mark.parametrize("kind", ["bits", "grays"])
def test_pixels_in_compiled_code(kind):
    if kind == "bits":
        pixels = data.Bits.pack(RNG.integers(0, 2, (6, 11)))
    else:
        pixels = data.Grays(RNG.integers(0, 256, (6, 11)).astype(np.uint8))
    rows, keys = jnp.array([[0, 1], [5, 2], [3, 3]]), jr.split(jr.key(0), 3)
    one_by_one = jnp.stack([pixels(row, key) for row, key in zip(rows, keys, strict=True)])

    @jax.jit
    def both(pixels, rows, keys):
        scanned = jax.lax.scan(lambda carry, x: (carry, pixels(*x)), None, (rows, keys))[1]
        return jax.vmap(lambda row, key: pixels(row, key))(rows, keys), scanned

    both(pixels, rows, keys)
    with jax.transfer_guard("disallow"):
        mapped, scanned = both(pixels, rows, keys)
    np.testing.assert_array_equal(mapped, one_by_one)
    np.testing.assert_array_equal(scanned, one_by_one)
    assert jax.jit(lambda p: p.mean())(pixels).shape == (11,)


def test_what_are_no_pixels():
    with pytest.raises(ValueError, match=r"shape \(n, d\), got \(3,\); make each image a row"):
        data.Bits.pack(np.zeros(3))
    with pytest.raises(ValueError, match=r"zeros and ones, got 0\.5; use Grays"):
        data.Bits.pack(np.full((2, 3), 0.5))
    with pytest.raises(ValueError, match="9 pixels take 2 bytes a row, got 1; use Bits.pack"):
        data.Bits(np.zeros((2, 1), np.uint8), 9)
    with pytest.raises(ValueError, match=r"uint8 of shape \(n, d\), got float\d+ of shape \(2, 3\); make each"):
        data.Grays(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"got uint8 of shape \(0, 3\)"):
        data.Grays(np.zeros((0, 3), np.uint8))


# ---------------------------------------------------------------- digits


def test_digits_are_cut_in_three():
    from sklearn.datasets import load_digits

    parts = digits.read("dynamic")
    together = np.concatenate([parts.train, parts.valid, parts.test]).astype(float)
    whole = np.round(load_digits(return_X_y=True)[0] * 255 / 16)
    np.testing.assert_array_equal(together[np.argsort(shuffled(1797))], whole)
    assert sorted(shuffled(1797)) == list(range(1797))

    images = data.load()
    assert (images.name, images.protocol, images.shape) == ("digits", "dynamic", (8, 8))
    assert [len(split) for split in (images.train, images.valid, images.test)] == [1397, 200, 200]
    assert isinstance(images.train, data.Grays) and "seeds 1 and 2" in images.origin
    np.testing.assert_array_equal(images.train.grays, parts.train)

    fixed = data.load("digits", "fixed")
    np.testing.assert_array_equal(everything(fixed.train), parts.train >= 128)
    np.testing.assert_array_equal(everything(fixed.test), parts.test >= 128)


def test_what_is_drawn_once_stays():
    # On this machine, and, by the checksums, on every other one.
    first, second = data.load("digits"), data.load("digits", "dynamic")
    for split in ("valid", "test"):
        np.testing.assert_array_equal(getattr(first, split).packed, getattr(second, split).packed)
    assert digest(first.valid.packed)[:16] == "d33e7a6f6212f9ff"
    assert digest(first.test.packed)[:16] == "47eee448ef6879c9"


def test_draws_made_once_have_the_probabilities_of_the_grays():
    n, p = 20_000, np.arange(1, 255) / 255
    drawn = drawn_once(np.tile(np.arange(256, dtype=np.uint8), (n, 1)), 3)
    assert not drawn[:, 0].any() and drawn[:, 255].all()
    z = (drawn[:, 1:255].mean(0) - p) / np.sqrt(p * (1 - p) / n)
    assert np.abs(z).max() < 4.5 and abs((z**2).mean() - 1) < 4 * np.sqrt(2 / len(z))


# ---------------------------------------------------------------- MNIST

FIXED = {split: RNG.integers(0, 2, (n, 784)).astype(np.uint8) for split, n in (("train", 5), ("valid", 3), ("test", 2))}
GRAY = {split: RNG.integers(0, 256, (n, 28, 28)).astype(np.uint8) for split, n in (("train", 7), ("test", 3))}
PACKED = {split: np.packbits(rows, axis=1) for split, rows in FIXED.items()}


@pytest.fixture
def published(monkeypatch):
    """As if these few images were the published ones."""
    sums = {"fixed": PACKED, "dynamic": GRAY}
    sums = {protocol: {split: digest(a) for split, a in arrays.items()} for protocol, arrays in sums.items()}
    monkeypatch.setattr(mnist, "SHA256", sums)
    monkeypatch.setattr(mnist, "NUM_VALID", 2)


def idx(array):
    return np.array([2051, *array.shape], ">i4").tobytes() + array.tobytes()


def write_amat(folder):
    for split, rows in FIXED.items():
        text = "".join(" ".join(map(str, row)) + "\n" for row in rows)
        (folder / f"binarized_mnist_{split}.amat").write_text(text)


def write_idx(folder, compress=False):
    for name, split in (("train", "train"), ("t10k", "test")):
        content = idx(GRAY[split])
        file = folder / f"{name}-images-idx3-ubyte{'.gz' if compress else ''}"
        file.write_bytes(gzip.compress(content) if compress else content)


FORMS = {
    "fixed": {
        "npz": lambda folder: np.savez(folder / "binarized_mnist.npz", **PACKED),
        "amat": write_amat,
    },
    "dynamic": {
        "npz": lambda folder: np.savez(folder / "mnist.npz", train_labels=np.zeros(7), **GRAY),
        "keras": lambda folder: np.savez(folder / "mnist.npz", x_train=GRAY["train"], x_test=GRAY["test"]),
        "idx": write_idx,
        "idx.gz": lambda folder: write_idx(folder, compress=True),
    },
}


@pytest.mark.parametrize(("protocol", "form"), [(p, form) for p, forms in FORMS.items() for form in forms])
def test_every_format_gives_the_same_mnist(protocol, form, folder, published):
    FORMS[protocol][form](folder)
    images = data.load("mnist", protocol)
    assert (images.name, images.protocol, images.shape) == ("mnist", protocol, (28, 28))
    assert str(folder) not in images.origin and "mnist" in images.origin.lower()
    if protocol == "fixed":
        for split, rows in FIXED.items():
            np.testing.assert_array_equal(everything(getattr(images, split)), rows)
    else:
        rows, test = GRAY["train"].reshape(7, 784), GRAY["test"].reshape(3, 784)
        np.testing.assert_array_equal(images.train.grays, rows[:5])
        np.testing.assert_array_equal(everything(images.valid), drawn_once(rows[5:], 1))
        np.testing.assert_array_equal(everything(images.test), drawn_once(test, 2))


def test_mnist_is_also_looked_for_in_the_cache(tmp_path, monkeypatch, published):
    cache = tmp_path / "cache" / "vgp" / "data"
    cache.mkdir(parents=True)
    FORMS["fixed"]["npz"](cache)
    assert data.load("mnist").protocol == "fixed"
    monkeypatch.delenv("VGP_DATA")
    assert len(data.load("mnist").train) == 5
    assert mnist.folders() == [Path(os.environ["XDG_CACHE_HOME"]) / "vgp" / "data"]
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert mnist.folders() == [Path.home() / ".cache" / "vgp" / "data"]


@pytest.mark.parametrize(("protocol", "source"), [("fixed", "www.cs.toronto.edu"), ("dynamic", "storage.googleapis")])
def test_mnist_that_is_not_there(protocol, source, folder):
    if protocol == "fixed":
        (folder / "binarized_mnist_train.amat").write_text("0 1")  # one of three is not enough
    with pytest.raises(FileNotFoundError) as caught:
        data.load("mnist", protocol)
    for part in (
        mnist.NPZ[protocol],
        *mnist.ORIGINALS[protocol].values(),
        str(folder),
        "cache",
        source,
        "set VGP_DATA",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(("protocol", "form"), [("fixed", "amat"), ("fixed", "npz"), ("dynamic", "idx")])
def test_other_images_are_not_taken_for_mnist(protocol, form, folder):
    FORMS[protocol][form](folder)
    with pytest.raises(ValueError, match="train images in .* must be the published ones, .* download them again from"):
        data.load("mnist", protocol)


def test_damaged_files_of_mnist(folder):
    write_idx(folder)
    train = folder / "train-images-idx3-ubyte"
    content = train.read_bytes()
    for wrong in (content[:-1], content[:7], b"\0\0\0\0" + content[4:]):
        train.write_bytes(wrong)
        with pytest.raises(ValueError, match="must be a file of MNIST's images, and is damaged"):
            data.load("mnist", "dynamic")
    np.savez(folder / "mnist.npz", train=GRAY["train"], other=GRAY["test"])
    with pytest.raises(ValueError, match="as train, test, and has no such 'test'; replace it"):
        data.load("mnist", "dynamic")
    (folder / "binarized_mnist_train.amat").write_text("0 1 1\n")
    (folder / "binarized_mnist_valid.amat").write_text("")
    (folder / "binarized_mnist_test.amat").write_text("")
    with pytest.raises(ValueError, match="binarized_mnist_train.amat' must be a file of MNIST's images"):
        data.load("mnist")


@pytest.mark.skipif(
    not all((REAL / name).is_file() for name in mnist.NPZ.values()), reason="VGP_DATA has no binarized_mnist and mnist"
)
def test_the_real_mnist(monkeypatch):
    monkeypatch.setenv("VGP_DATA", str(REAL))
    images = data.load("mnist")
    splits = (images.train, images.valid, images.test)
    assert [len(split) for split in splits] == [50_000, 10_000, 10_000]
    ones = [int(np.unpackbits(np.asarray(split.packed)).sum()) for split in splits]
    assert ones == [5_118_041, 1_028_036, 1_038_896]
    images = data.load("mnist", "dynamic")
    assert [len(split) for split in (images.train, images.valid, images.test)] == [58_000, 2_000, 10_000]
    grays = np.load(REAL / "mnist.npz")["train"].reshape(60_000, 784)
    np.testing.assert_array_equal(images.train.grays[-1], grays[57_999])
    np.testing.assert_allclose(images.valid.mean().mean(), grays[58_000:].mean() / 255, rtol=0.005)


# ---------------------------------------------------------------- a user's file

BLACK = RNG.integers(0, 2, (40, 3, 5))


def saved(folder, **arrays):
    np.savez(folder / "own.npz", **arrays)
    return folder / "own.npz"


@pytest.mark.parametrize("dtype", [bool, np.int64, np.uint8, np.float32, np.float64])
def test_own_images(folder, dtype):
    images = data.load(saved(folder, train=BLACK.astype(dtype), valid=BLACK[:3], test=BLACK[:2], labels=np.arange(3)))
    assert (images.name, images.protocol, images.shape) == ("own", "fixed", (3, 5))
    np.testing.assert_array_equal(everything(images.train), BLACK.reshape(40, 15))
    assert (len(images.valid), len(images.test)) == (3, 2)
    assert images.origin.startswith("own.npz, sha256 ") and "cut" not in images.origin


def test_own_images_that_are_cut(folder):
    rows = np.unpackbits(np.arange(40, dtype=np.uint8)[:, None], axis=1)  # each row says which it is
    images = data.load(str(saved(folder, train=rows)))
    parts = [everything(split).astype(np.uint8) for split in (images.train, images.valid, images.test)]
    assert [len(part) for part in parts] == [32, 4, 4] and images.shape == (8,)
    assert sorted(np.packbits(np.concatenate(parts), axis=1)[:, 0]) == list(range(40))
    assert "valid and test cut from train, a tenth each" in images.origin
    again = data.load(folder / "own.npz")
    np.testing.assert_array_equal(again.test.packed, images.test.packed)

    images = data.load(saved(folder, train=rows[:3], valid=rows[3:]))
    assert (len(images.train), len(images.valid), len(images.test)) == (2, 37, 1)
    assert "; test cut from train" in images.origin


@pytest.mark.parametrize("form", ["floats", "integers"])
def test_own_grays(folder, form):
    grays = RNG.integers(0, 256, (20, 6)).astype(np.uint8)
    images = data.load(
        saved(folder, train=grays / 255 if form == "floats" else grays, valid=grays, test=grays), "dynamic"
    )
    np.testing.assert_array_equal(images.train.grays, grays)
    np.testing.assert_array_equal(everything(images.valid), drawn_once(grays, 1))
    np.testing.assert_array_equal(everything(images.test), drawn_once(grays, 2))


NAN = np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 1.0)
BAD = [
    ({"x": BLACK, "labels": BLACK}, "fixed", "must have an array 'train', and its keys are x, labels; save it"),
    ({}, "fixed", "its keys are none"),
    (
        {"train": np.zeros(4)},
        "fixed",
        r"'train' in .* shape \(n, d\) or \(n, h, w\), got \(4,\); make each image a row",
    ),
    ({"train": np.zeros((2, 3, 4, 1))}, "fixed", r"got \(2, 3, 4, 1\)"),
    ({"train": np.zeros((0, 4))}, "fixed", r"is empty, with shape \(0, 4\)"),
    (
        {"train": BLACK, "test": np.zeros((2, 4))},
        "fixed",
        r"one shape, got \(3, 5\) in 'train', \(4,\) in 'test'; save",
    ),
    (
        {"train": BLACK, "valid": BLACK[:2] * 3},
        "fixed",
        "'valid' in .* zeros and ones .* got 3; .*'dynamic'.*takes grays",
    ),
    ({"train": BLACK / 2}, "fixed", r"zeros and ones under protocol 'fixed', got 0\.5;"),
    ({"train": NAN}, "fixed", "'train' in .* is NaN at row 2; drop the row"),
    ({"train": NAN}, "dynamic", "is NaN at row 2"),
    ({"train": np.array([["a", "b"]])}, "fixed", "must hold numbers, got <U1"),
    (
        {"train": np.array([[None, 1]])},
        "fixed",
        "'train' in .* must be an array of numbers, .*Object arrays .* with np.savez",
    ),
    (
        {"train": BLACK[:2]},
        "fixed",
        "must have more than 2 images for valid and test to be cut from it, got 2; save more",
    ),
    ({"train": BLACK[:1], "test": BLACK}, "fixed", "more than 1 images for valid to be cut from it, got 1"),
    ({"train": BLACK * 300}, "dynamic", r"floats in \[0, 1\] or integers from 0 to 255 .* got 300 in int64; scale"),
    ({"train": BLACK * 255.0}, "dynamic", r"got 255\.0 in float64"),
    ({"train": -0.5 * BLACK}, "dynamic", r"got -0\.5 in float64"),
    ({"train": BLACK > 0}, "dynamic", "got bool; use protocol 'fixed'"),
    ({"train": BLACK}, "dynamic", "all 0 or 1, which would be black or almost so; use protocol 'fixed'"),
]


@pytest.mark.parametrize(("arrays", "protocol", "sentence"), BAD)
def test_own_images_that_cannot_be_used(folder, arrays, protocol, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        data.load(saved(folder, **arrays), protocol)
    assert not re.search(r"\. |\n", str(caught.value))  # one sentence


def test_files_that_are_no_npz(folder):
    path = folder / "own.npz"
    whole = io.BytesIO()
    np.savez_compressed(whole, train=RNG.normal(size=(50, 50)))
    array = io.BytesIO()
    np.save(array, BLACK)
    for content in (b"", b"some words", array.getvalue(), whole.getvalue()[:500]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="own.npz' must be an .npz file, and is none or is damaged; write it with"):
            data.load(path)
    content = bytearray(whole.getvalue())
    content[1000:1100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="'train' in .* must be an array of numbers, and could not be read"):
        data.load(path)


def test_names_that_are_none(folder):
    with pytest.raises(ValueError, match="must be 'fixed' or 'dynamic', got 'static'; leave it out"):
        data.load("digits", "static")
    for source in ("MNIST", folder / "digits", folder):
        with pytest.raises(
            FileNotFoundError, match=r"must be 'digits', 'mnist', 'sketch' or the path of an \.npz file, got .*;"
        ):
            data.load(source)


def test_the_page_on_data(folder, monkeypatch):
    monkeypatch.chdir(folder)
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    space = {}
    exec(first, space)
    assert space["batch"].shape == (3, 64) and space["means"].shape == (64,)
    exec(second, space)
    images = space["images"]
    assert (images.name, images.shape) == ("stripes", (12, 12))
    assert [len(split) for split in (images.train, images.valid, images.test)] == [80, 10, 10]
