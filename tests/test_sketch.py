"""Sketches: small images by the published recipe, the same from the archive and from the packed file."""

import hashlib
import io
import os
import re
import zipfile
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import install_import_hook
from PIL import Image, ImageDraw
from scipy import ndimage

with install_import_hook("vgp.data", "beartype.beartype"):
    from vgp import data
    from vgp.data import sketch
    from vgp.data.splits import shuffled

RNG = np.random.default_rng(0)
REAL = Path(os.environ.get("VGP_DATA", "nowhere"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder in VGP_DATA; no test sees the files of whoever runs it, but for the one on the real data."""
    (tmp_path / "named").mkdir()
    monkeypatch.setenv("VGP_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "named"


def one_sentence(caught):
    return not re.search(r"\. |\n", str(caught.value))


# ---------------------------------------------------------------- from gray to small


def drawing(seed):
    """Lines on white with gray edges, of the published size."""
    image = Image.new("L", (2222, 2222), 255)
    points = np.random.default_rng(seed).integers(250, 1970, (4, 3, 2)).tolist()
    for line in points:
        ImageDraw.Draw(image).line([tuple(point) for point in line], fill=0, width=12)
    return image.resize((1111, 1111), Image.Resampling.BOX)


GRAY = [np.asarray(drawing(seed)) for seed in range(3)]


@pytest.mark.parametrize("shape", [(40, 40), (33, 57)])
def test_dilation_by_its_definition(shape):
    ink = RNG.random(shape) < 0.004
    ink[0, 3] = ink[-1, -5] = ink[9, -1] = ink[-2, 0] = True  # at all four edges
    expected = np.zeros(shape, bool)
    for i, j in np.argwhere(ink):
        expected[max(i - 8, 0) : i + 8, max(j - 8, 0) : j + 8] = True
    np.testing.assert_array_equal(sketch.dilated(ink), expected)
    np.testing.assert_array_equal(sketch.dilated(ink), ndimage.binary_dilation(ink, np.ones((16, 16))))


def test_dilation_as_in_the_recipe():
    # As scikit-image calls SciPy: an even block gets a first row and column of zeros, and is turned round.
    block = np.zeros((17, 17))
    block[1:, 1:] = 1
    ink = RNG.random((50, 61)) < 0.01
    expected = ndimage.grey_dilation(ink.astype(float), footprint=block[::-1, ::-1])
    np.testing.assert_array_equal(sketch.dilated(ink), expected == 1)


def bilinear(image):
    """Sampled one at a time, with the four weights, and cut down to an integer as in the recipe."""
    out = np.zeros((56, 56), int)
    for k in range(56):
        for m in range(56):
            y, x = (k + 0.5) * image.shape[0] / 56 - 0.5, (m + 0.5) * image.shape[1] / 56 - 0.5
            i, j = int(np.floor(y)), int(np.floor(x))
            above = (1 - (x - j)) * image[i, j] + (x - j) * image[i, j + 1]
            below = (1 - (x - j)) * image[i + 1, j] + (x - j) * image[i + 1, j + 1]
            out[k, m] = int((1 - (y - i)) * above + (y - i) * below)
    return out


@pytest.mark.parametrize("shape", [(1111, 1111), (57, 200), (127, 65)])
def test_sampling_is_bilinear(shape):
    ink = RNG.random(shape) < 0.8
    expected = bilinear(ink.astype(float))
    assert 0.2 < expected.mean() < 0.6  # all four, of 0.8 each
    np.testing.assert_array_equal(sketch.sampled(ink), expected)


def test_sampling_at_whole_numbers_takes_one_pixel():
    ink = RNG.random((56, 56)) < 0.5
    np.testing.assert_array_equal(sketch.sampled(ink), ink)
    ink = RNG.random((56 * 3, 56 * 5)) < 0.5  # the middle ones of odd blocks
    np.testing.assert_array_equal(sketch.sampled(ink), ink[1::3, 2::5])


@pytest.mark.parametrize("gray", GRAY)
def test_the_whole_recipe(gray):
    assert len(np.unique(gray)) > 2
    ink = np.where(gray > np.mean(gray), 0.0, 1.0)
    expected = bilinear(ndimage.grey_dilation(ink, size=(16, 16)))
    small = sketch.black_and_white(gray)
    np.testing.assert_array_equal(small, expected)
    assert 0.01 < small.mean() < 0.2


def test_smoothing_would_leave_nothing():
    # Why it must not: the mean over the pixels that a small one covers is hardly ever one.
    wide = sketch.dilated(GRAY[0] <= GRAY[0].mean())
    smooth = np.asarray(Image.fromarray(wide.astype(np.float32)).resize((56, 56), Image.Resampling.BILINEAR))
    assert (smooth >= 1).mean() < 0.2 * sketch.black_and_white(GRAY[0]).mean()


# ---------------------------------------------------------------- files

FILES = ["ant/1.png", "ant/2.png", "bee/3.png"]
BITS = np.stack([np.packbits(sketch.black_and_white(gray)) for gray in GRAY])


def digest(rows):
    return hashlib.sha256(rows.tobytes()).hexdigest()


@pytest.fixture
def published(monkeypatch):
    """As if these three were the published ones."""
    monkeypatch.setattr(sketch, "SHA256", digest(BITS))
    for name, number in (("NUM", 3), ("NUM_TRAIN", 2), ("NUM_VALID", 1)):
        monkeypatch.setattr(sketch, name, number)


def png(image, mode="L"):
    content = io.BytesIO()
    image.convert(mode).save(content, "png")
    return content.getvalue()


def write_archive(folder, mode="L", **others):
    """As published: in a folder `png`, not in the order of the numbers, and with a list beside."""
    with zipfile.ZipFile(folder / "sketches_png.zip", "w") as archive:
        archive.writestr("png/filelist.txt", "\n".join(FILES))
        for file, gray in reversed(list(zip(FILES, GRAY, strict=True))):
            content = others.get(Path(file).stem, png(Image.fromarray(gray), mode))
            if content is not None:
                archive.writestr(f"png/{file}", content)
        archive.writestr("__MACOSX/png/ant/1.png", b"none")


def everything(pixels):
    return np.asarray(pixels(jnp.arange(len(pixels)), jr.key(0)))


@pytest.mark.parametrize("form", ["npz", "L", "RGB"])
def test_both_files_give_the_same_sketches(folder, published, form):
    if form == "npz":
        np.savez(folder / "sketch56.npz", bits=BITS, labels=np.arange(3))
    else:
        write_archive(folder, form)
    images = data.load("sketch")
    assert (images.name, images.protocol, images.shape) == ("sketch", "fixed", (56, 56))
    rows = np.unpackbits(BITS[shuffled(3)], axis=1)
    np.testing.assert_array_equal(everything(images.train), rows[:2])
    np.testing.assert_array_equal(everything(images.valid), rows[1:2])
    np.testing.assert_array_equal(everything(images.test), rows[2:])
    assert ("sketch56.npz" if form == "npz" else "sketches_png.zip") in images.origin
    assert "PCG64 with seed 0" in images.origin and "is trained on too" in images.origin
    assert str(folder) not in images.origin


def test_what_was_made_is_kept(folder, tmp_path, published, monkeypatch):
    write_archive(folder)
    first = data.load("sketch")
    cache = tmp_path / "cache" / "vgp" / "data"
    assert os.listdir(cache) == ["sketch56.npz"]
    with np.load(cache / "sketch56.npz") as kept:
        np.testing.assert_array_equal(kept["bits"], BITS)
        assert kept["files"].tolist() == FILES and kept["classes"].tolist() == ["ant", "bee"]
        assert kept["labels"].tolist() == [0, 0, 1]
    monkeypatch.setattr(sketch, "black_and_white", None)  # not needed again
    second = data.load("sketch")
    np.testing.assert_array_equal(first.train.packed, second.train.packed)
    assert "sketch56.npz" in second.origin
    (folder / "sketches_png.zip").unlink()
    monkeypatch.delenv("VGP_DATA")
    assert len(data.load("sketch").test) == 1


def test_a_cache_that_cannot_be_written(folder, tmp_path, published):
    write_archive(folder)
    (tmp_path / "cache").write_text("in the way")
    assert len(data.load("sketch").train) == 2


def test_sketches_that_are_not_there(folder):
    with pytest.raises(FileNotFoundError) as caught:
        data.load("sketch")
    for part in ("sketch56.npz", "sketches_png.zip", str(folder), "cache", "cybertron.cg.tu-berlin.de", "set VGP_DATA"):
        assert part in str(caught.value)
    assert one_sentence(caught)


def test_sketches_are_black_and_white_already(folder, published):
    np.savez(folder / "sketch56.npz", bits=BITS)
    with pytest.raises(ValueError, match="protocol must be 'fixed', got 'dynamic'; leave it out") as caught:
        data.load("sketch", "dynamic")
    assert one_sentence(caught)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"labels": np.arange(3)}, r"must have an array 'bits' of uint8 of shape \(3, 392\), and has none; remove it"),
        ({"bits": BITS[:2]}, r"and has uint8 of shape \(2, 392\)"),
        ({"bits": BITS.astype(int)}, r"and has int64 of shape \(3, 392\)"),
        ({"bits": BITS[::-1]}, "must be the published ones, with sha256 .*, and have .*; remove it, and download"),
    ],
)
def test_packed_files_that_are_others(folder, published, arrays, sentence):
    np.savez(folder / "sketch56.npz", **arrays)
    with pytest.raises(ValueError, match=sentence) as caught:
        data.load("sketch")
    assert one_sentence(caught)


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"2": None}, r"images 1\.png to 3\.png, and has 2 with a number"),
        ({"3": b"no image"}, r"png/bee/3\.png is no image"),
        ({"3": png(drawing(2))[:-900]}, r"png/bee/3\.png is no image"),
        ({"1": png(Image.new("L", (60, 50)))}, r"png/ant/1\.png must have 1111 x 1111 pixels, and has 50 x 60"),
    ],
)
def test_archives_that_are_others(folder, tmp_path, published, others, sentence):
    write_archive(folder, **others)
    with pytest.raises(ValueError, match=rf"damaged or another \(.*{sentence}\); download it again from") as caught:
        data.load("sketch")
    assert one_sentence(caught) and not (tmp_path / "cache").exists()


def test_damaged_archives(folder, published):
    write_archive(folder)
    path = folder / "sketches_png.zip"
    content = bytearray(path.read_bytes())
    content[300:400] = bytes(100)
    for wrong in (b"", b"some words", bytes(content[:-200]), bytes(content)):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="must be the archive of the sketches, and is damaged or another"):
            data.load("sketch")


def test_other_sketches_in_the_archive(folder, tmp_path, published):
    write_archive(folder, **{"2": png(drawing(7))})
    with pytest.raises(ValueError, match=r"made from .* must be the published ones, .* 0\.08673 .*; download it again"):
        data.load("sketch")
    assert not (tmp_path / "cache").exists()


# ---------------------------------------------------------------- the split


def test_the_split(folder, monkeypatch):
    """All sizes as they are, on rows that say which they are."""
    rows = np.zeros((20_000, 392), np.uint8)
    rows[:, 0], rows[:, 1] = np.divmod(np.arange(20_000), 256)
    monkeypatch.setattr(sketch, "SHA256", digest(rows))
    np.savez(folder / "sketch56.npz", bits=rows)
    parts = sketch.read("fixed")
    train, valid, test = (
        np.packbits(part[:, :16], axis=1).astype(int) @ [256, 1] for part in (parts.train, parts.valid, parts.test)
    )
    assert (len(train), len(valid), len(test)) == (18_000, 1_000, 2_000)
    assert sorted([*train, *test]) == list(range(20_000))
    np.testing.assert_array_equal(valid, train[-1_000:])
    # Sorted by class in the file, 80 each: about 8 of them in the test, and none missing from training.
    counts = np.bincount(test // 80, minlength=250)
    assert counts.max() < 20 and (np.bincount(train // 80, minlength=250) > 55).all()
    assert abs(counts.var() / (80 * 0.1 * 0.9) - 1) < 4 * np.sqrt(2 / 250)
    assert len(np.unique(valid // 80)) > 230
    # The same on every machine.
    assert digest(test.astype("<i8"))[:16] == "c4df954a6c133e6c"


@pytest.mark.skipif(not (REAL / "sketch56.npz").is_file(), reason="VGP_DATA has no sketch56")
def test_the_real_sketches(monkeypatch):
    monkeypatch.setenv("VGP_DATA", str(REAL))
    images = data.load("sketch")
    assert [len(split) for split in (images.train, images.valid, images.test)] == [18_000, 1_000, 2_000]
    both = np.concatenate([images.train.packed, images.test.packed])
    np.testing.assert_allclose(np.unpackbits(both).mean(), sketch.INK, atol=5e-6)
    # Half a pixel of 1111 up and left, by the dilation: see the module's text.
    pixels = np.unpackbits(both, axis=1).reshape(-1, 56, 56)
    for axis in (1, 2):
        some = pixels.any(axis)
        middle = (some.argmax(1) - some[:, ::-1].argmax(1)) / 2
        assert abs(middle.mean() + 0.5 * 56 / 1111) < 4 * middle.std() / np.sqrt(len(middle))
