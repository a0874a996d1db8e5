"""The images of one environment: shown ones are stored, and those that bindings gave have numbers."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final, final

from ptc_kernel.attachments import AttachmentError, decode_base64
from ptc_kernel.protocol.events import Shown
from ptc_kernel.protocol.frames import PlacedImage, ProtocolViolationError
from ptc_kernel.protocol.lossless import LossyValueError, encode
from ptc_kernel.protocol.messages import IMAGE_TYPES, Text
from ptc_kernel.types import ImageAttachmentRef, ImageOutput, PtcImage

if TYPE_CHECKING:
    from ptc_kernel.attachments import AttachmentStore
    from ptc_kernel.protocol.messages import Picture

__all__ = ("Images",)

logger = logging.getLogger(__name__)

_SIZES: Final = ("bytes", "width", "height")


@final
class Images:
    """Numbers the images that the program may show, and stores those that it makes."""

    def __init__(self, store: AttachmentStore) -> None:
        self._store = store
        self._numbered: list[ImageAttachmentRef] = []

    def store(self, picture: Picture) -> Shown | Text:
        """The stored image, or, where it cannot be stored, its text and a note; may take a while."""
        try:
            data = decode_base64(picture.data)
            return Shown(ImageOutput(self._store.put(data, picture.media_type)))
        except Exception as error:
            if not isinstance(error, AttachmentError):
                logger.exception("an attachment store failed")
            note = f"{picture.plain}[this image is not shown: {error}]\n"
            return Text(picture.run, "display", note, picture.count, picture.ring)

    def numbered(self, number: int) -> Shown:
        """The image that the program names by this number.

        Raises:
            ProtocolViolationError: no binding of this environment gave such an image.
        """
        if not 1 <= number <= len(self._numbered):
            raise ProtocolViolationError("the program shows an image that it was never given")
        return Shown(ImageOutput(self._numbered[number - 1]))

    def encode(self, value: object) -> tuple[str, tuple[PlacedImage, ...]]:
        """The JSON text of a binding's resolution, and the images in it.

        Raises:
            LossyValueError: something in it is neither JSON nor a valid PtcImage.
        """
        placed: list[PlacedImage] = []

        def place(item: object, at: list[int | str]) -> bool:
            if type(item) is not PtcImage:
                return False
            _check(item)
            self._numbered.append(item.attachment)
            number = len(self._numbered)
            size = item.attachment.width, item.attachment.height
            placed.append(PlacedImage(tuple(at), number, item.path, *size))
            return True

        return encode(value, place), tuple(placed)


def _check(image: PtcImage) -> None:
    ref: object = image.attachment
    if type(image.path) is not str or not os.path.isabs(image.path):
        raise LossyValueError("a PtcImage must have an absolute path")
    if type(ref) is not ImageAttachmentRef or ref.media_type not in IMAGE_TYPES:
        msg = f"the attachment of a PtcImage must have one of the media types {', '.join(IMAGE_TYPES)}"
        raise LossyValueError(msg)
    if not all(type(getattr(ref, name)) is int and getattr(ref, name) > 0 for name in _SIZES):
        raise LossyValueError("the sizes of a PtcImage must be positive integers")
