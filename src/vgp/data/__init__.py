"""Black-and-white images to learn from: scikit-learn's digits, MNIST, sketches, or a user's own file."""

from .images import Images as Images, load as load
from .pixels import AbstractPixels as AbstractPixels, Bits as Bits, Grays as Grays
