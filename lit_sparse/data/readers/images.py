"""Reads PNG and JPEG images with Pillow."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lit_sparse.errors import DataError
from lit_sparse.ground.stored import open_plain

__all__ = ["ENDINGS", "read_image"]

#: Supported file endings.
ENDINGS = (".png", ".jpg", ".jpeg")
#: Maximal number of pixels, more than a camera's. A small file with more could fill the memory.
LARGEST = 2**27
#: Largest number of scans of a JPEG image, each of which is a pass over all its pixels. Progressive images have about 10.
MOST_SCANS = 200
#: Number of rows of an image that are converted at once.
BAND = 256


def read_image(path: Path, shape: tuple[int, int], *, color: bool = False) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an image resized to a given shape, (H, W) in grey levels or (3, H, W) in red, green and blue.

    Photographs are rotated by their orientation tag, transparent parts become black, and animations become their first
    frame.

    Args:
        path: a file ``.png``, ``.jpg`` or ``.jpeg``.
        shape: H and W, to which the image is resized; its proportions are not kept.
        color: whether to keep the colors.

    Raises:
        DataError: if the file is broken or in another format, or the image is too large.
    """
    from PIL import Image, ImageOps
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    try:
        with warnings.catch_warnings(), open_plain(path) as file:
            warnings.simplefilter("ignore")  # about broken metadata
            kind = PngImageFile if file.read(4) == b"\x89PNG" else JpegImageFile  # Image.open has a lower limit of pixels
            file.seek(0)
            if kind is JpegImageFile and file.read().count(b"\xff\xda") > MOST_SCANS:
                raise ValueError(f"it has more than {MOST_SCANS} scans")
            file.seek(0)
            opened = kind(file)
            if opened.width * opened.height > LARGEST:
                raise Image.DecompressionBombError
            ImageOps.exif_transpose(opened, in_place=True)
            image = Image.new("RGB" if color else "L", opened.size)
            for top in range(0, opened.height, BAND):  # a copy of the whole would take much memory
                band = opened.crop((0, top, opened.width, min(top + BAND, opened.height)))
                image.paste(_opaque(band).convert(image.mode), (0, top))
            image = image.resize(shape[::-1], Image.Resampling.BILINEAR)
    except Image.DecompressionBombError as error:
        raise DataError(
            f"Expected images of at most {LARGEST:,} pixels but got more in {str(path)!r}. Scale it down, or leave it out."
        ) from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and more
        reason = "it is not a whole PNG or JPEG file" if isinstance(error, OSError | SyntaxError) else str(error)
        raise DataError(f"The image {str(path)!r} cannot be read: {reason}. Fetch it again, or leave it out.") from error
    array = np.asarray(image)
    return array.transpose(2, 0, 1) if color else array


def _opaque(image: Any) -> Any:
    """Return an image in 8 bits with transparent parts in black."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, which conversion would clip
        image = Image.fromarray((np.asarray(image, dtype=np.uint32) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
