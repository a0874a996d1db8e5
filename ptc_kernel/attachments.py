"""Where images are kept: addressed by their content, checked and scaled before they are stored."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from ptc_kernel.errors import PtcError
from ptc_kernel.types import ImageAttachmentRef

if TYPE_CHECKING:
    from PIL import Image

__all__ = ("AttachmentError", "AttachmentStore", "LocalAttachmentStore", "decode_base64")

MOST_BYTES: Final = 20 * 1024 * 1024
MOST_PIXELS: Final = 64_000_000
MOST_SIDE: Final = 8_192
STORED_SIDE: Final = 2_048
STORED_BYTES: Final = 4 * 1024 * 1024
FORMATS: Final = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
SUFFIXES: Final = {"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp", "image/gif": ".gif"}


class AttachmentError(PtcError, ValueError):
    """An image that cannot be stored: it is broken, or over an admission limit."""


class AttachmentStore(Protocol):
    """Keeps images for a runtime; methods may be called from several threads."""

    def put(self, data: bytes, media_type: str, name: str | None = None) -> ImageAttachmentRef:
        """Store an image, scaled down where it is too large.

        Raises:
            AttachmentError: the bytes are not such an image, or over an admission limit.
        """
        ...

    def get(self, ref: ImageAttachmentRef) -> bytes:
        """The stored bytes of an image.

        Raises:
            KeyError: nothing is stored under this reference.
        """
        ...

    def path(self, ref: ImageAttachmentRef) -> str:
        """The absolute path of the stored file.

        Raises:
            KeyError: nothing is stored under this reference.
        """
        ...


def decode_base64(text: str) -> bytes:
    """The bytes of a base64 text, as Jupyter sends images.

    Raises:
        AttachmentError: it is not base64.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise AttachmentError("its data is not base64") from None


@final
class LocalAttachmentStore:
    """Images as files of a folder; without a folder, of a private one that `close` removes.

    An admitted image has at most 20 MiB, 64,000,000 pixels and 8,192 pixels a side; what is
    stored has at most 2,048 pixels a side and 4 MiB. Of an animation the first frame counts.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._given = folder
        self._folder = folder

    def put(self, data: bytes, media_type: str, name: str | None = None) -> ImageAttachmentRef:
        """Store an image, scaled down where it is too large.

        Raises:
            AttachmentError: the bytes are not such an image, over an admission limit, or the
                disk does not take them.
        """
        stored, media_type, size, original = _admit(data, media_type)
        digest = hashlib.sha256(stored).hexdigest()
        ref = ImageAttachmentRef(
            attachment_id=f"sha256:{digest}",
            media_type=cast("Any", media_type),
            bytes=len(stored),
            width=size[0],
            height=size[1],
            name=name,
            original_dimensions=None if original == size else original,
        )
        try:
            self._write(os.path.join(self._open_folder(), digest + SUFFIXES[media_type]), stored)
        except OSError as error:
            msg = f"it cannot be written: {error.strerror}"
            raise AttachmentError(msg) from None
        return ref

    def _open_folder(self) -> str:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="ptc-images-")
        else:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        return self._folder

    @staticmethod
    def _write(path: str, data: bytes) -> None:
        """Write the file whole or not at all; the same content is written once."""
        if os.path.exists(path):
            return
        fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
        try:
            with open(fd, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def path(self, ref: ImageAttachmentRef) -> str:
        """The absolute path of the stored file.

        Raises:
            KeyError: nothing is stored under this reference.
        """
        name = ref.attachment_id.removeprefix("sha256:") + SUFFIXES.get(ref.media_type, "")
        path = os.path.abspath(os.path.join(self._folder or "", name))
        if self._folder is None or os.sep in name or not os.path.isfile(path):
            raise KeyError(ref.attachment_id)
        return path

    def get(self, ref: ImageAttachmentRef) -> bytes:
        """The stored bytes of an image.

        Raises:
            KeyError: nothing is stored under this reference.
        """
        with open(self.path(ref), "rb") as file:
            return file.read()

    def close(self) -> None:
        """Remove the private folder; a folder that was given stays."""
        if self._given is None and self._folder is not None:
            folder, self._folder = self._folder, None
            shutil.rmtree(folder)


_Size = tuple[int, int]


def _admit(data: bytes, media_type: str) -> tuple[bytes, str, _Size, _Size]:
    """The bytes to store, their media type, their size, and the size before scaling."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - only who stores images pays for it

    if media_type not in SUFFIXES:
        msg = f"{media_type} is not one of {', '.join(SUFFIXES)}"
        raise AttachmentError(msg)
    if len(data) > MOST_BYTES:
        msg = f"it has {len(data)} bytes; at most {MOST_BYTES} are admitted"
        raise AttachmentError(msg)
    try:
        image = Image.open(io.BytesIO(data), formats=tuple(FORMATS))
        _check_size(image, media_type)
        image.load()
        original = ImageOps.exif_transpose(image).size
        if max(image.size) <= STORED_SIDE and len(data) <= STORED_BYTES:
            return data, media_type, image.size, original if image.size == original else image.size
        upright = ImageOps.exif_transpose(image)
        return (*_reduce(upright, media_type), original)
    except AttachmentError:
        raise
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise all kinds on broken data
        msg = f"it cannot be read as {media_type}: {error}"
        raise AttachmentError(msg) from None


def _check_size(image: Image.Image, media_type: str) -> None:
    found = FORMATS.get(image.format or "")
    if found != media_type:
        msg = f"its bytes are {found}, not {media_type}"
        raise AttachmentError(msg)
    width, height = image.size
    if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
        msg = f"it has {width} x {height} pixels; {MOST_SIDE} a side and {MOST_PIXELS} together are admitted"
        raise AttachmentError(msg)


def _reduce(image: Image.Image, media_type: str) -> tuple[bytes, str, _Size]:
    """Scale down until the stored form fits; what stays too large as PNG becomes JPEG."""
    side = STORED_SIDE
    lossy = media_type in ("image/jpeg", "image/webp")
    while True:
        scaled = image.copy()
        scaled.thumbnail((side, side))
        for form in ("JPEG",) if lossy else ("PNG", "JPEG"):
            buffer = io.BytesIO()
            (scaled.convert("RGB") if form == "JPEG" else scaled).save(buffer, form)
            if buffer.tell() <= STORED_BYTES:
                return buffer.getvalue(), FORMATS[form], scaled.size
        side //= 2
