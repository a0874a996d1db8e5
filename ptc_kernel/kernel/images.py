"""`Image` and `inspect`: the host's images inside the program.

Both live in the builtins layer: `import inspect` and `from PIL import Image` shadow them, and
`del` brings them back. An image carries a number that means something to its host only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from IPython.display import display

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Image", "make_inspect", "new_image", "place_images")

_own = object.__getattribute__
_set = object.__setattr__


class Image:
    """A stored image that a host function returned; `inspect(image)` shows it.

    Attributes:
        path: a file that the program can read.
        width: of the stored image, in pixels.
        height: of the stored image, in pixels.
    """

    __slots__ = ("_number", "height", "path", "width")

    path: str
    width: int
    height: int
    _number: int

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        raise TypeError("only a host function can return an Image; to show a picture of your own, display it")

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("Image cannot be subclassed")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("an Image is read-only")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("an Image is read-only")

    def __repr__(self) -> str:
        return f"<Image {self.width}x{self.height} {self.path}>"


def new_image(number: int, path: str, width: int, height: int) -> Image:
    """The image that the host numbered so."""
    image = object.__new__(Image)
    for name, value in (("_number", number), ("path", path), ("width", width), ("height", height)):
        _set(image, name, value)
    return image


def place_images(value: Any, images: list[list[Any]]) -> Any:
    """Put the images of an answer where they belong in its value."""
    for place, number, path, width, height in images:
        image = new_image(number, path, width, height)
        if not place:
            return image
        container = value
        for key in place[:-1]:
            container = container[key]
        container[place[-1]] = image
    return value


def make_inspect(show: Callable[[int], None]) -> Callable[[object], None]:
    """The `inspect` of a kernel; `show` tells the host the number of an image."""

    def inspect(value: object, /) -> None:
        """Show an image, or anything else as a notebook would, at this place of the output."""
        if type(value) is Image:
            show(_own(value, "_number"))
        else:
            display(value)  # type: ignore[no-untyped-call]

    return inspect
