"""Area K, and what area F says of images: bindings give them, programs show them, the store keeps them."""

from __future__ import annotations

import hashlib
import io
import os

import pytest
from PIL import Image as Pillow

from ptc_kernel import (
    ConfigError,
    ImageAttachmentRef,
    ImageOutput,
    OutputEvent,
    PtcImage,
    PtcRunRequest,
    StateOwner,
    TextOutput,
)
from ptc_kernel.attachments import AttachmentError, LocalAttachmentStore
from ptc_kernel.protocol.lossless import encode
from tests.support import Session, kind, namespace, text

FIGURES = """
import matplotlib.pyplot as plt
print('a')
plt.plot([1, 2])
plt.show()
print('b')
plt.plot([2, 1])
plt.show()
print('c')
"""


def png(width: int = 30, height: int = 20, form: str = "PNG") -> bytes:
    """The bytes of a small picture."""
    buffer = io.BytesIO()
    Pillow.new("RGB", (width, height), "red").save(buffer, form)
    return buffer.getvalue()


def shape(result) -> list[str]:
    """The output as texts, and `image` for an image."""
    return [item.text if isinstance(item, TextOutput) else "image" for item in result.output]


@pytest.fixture
def ref() -> ImageAttachmentRef:
    """A reference that only its host knows."""
    return ImageAttachmentRef(
        attachment_id="sha256:abc",
        media_type="image/png",
        bytes=123,
        width=30,
        height=20,
        name="shot.png",
        original_dimensions=(60, 40),
    )


@pytest.fixture
def tools(ref):
    """Bindings that give an image, alone or inside a value."""
    image = PtcImage("/pictures/shot.png", ref)

    async def shot(argument):
        return {"list": [1, {"image": image}, image]} if argument.get("nested") else image

    return namespace(shot=shot)


@pytest.mark.core
async def test_an_image_of_a_binding(session, tools):
    """K01: an image that a binding returns has a path and the stored size, and nothing can be set."""
    program = "i = await tools.shot({})\n[i.path, i.width, i.height, type(i) is Image, len(repr(i)) < 80]"
    assert ["/pictures/shot.png", 30, 20, True, True] == await session.value(program, tools)
    for change in ("i.width = 1", "del i.path", "i.other = 1", "Image()", "Image('x', 1, 2)"):
        assert "exception" == kind(await session.run(change, tools))


@pytest.mark.core
async def test_inspected_images(session, tools, ref):
    """K02, K03, K04, K05, K14: an image is shown where it is inspected, as often as it is, unchanged."""
    result = await session.run("i = await tools.shot({})\nprint('a')\ninspect(i)\nprint('b')", tools)
    assert [TextOutput("a\n", "stdout"), ImageOutput(ref), TextOutput("b\n", "stdout")] == result.output
    result = await session.run("print('a', end='')\ninspect(i)\ninspect(i)", tools)
    assert [TextOutput("a", "stdout"), ImageOutput(ref), ImageOutput(ref)] == result.output
    assert [] == (await session.run("await tools.shot({}) and None", tools)).output


async def test_images_inside_values(session, tools, ref):
    """K06, K09: images stand anywhere in a value, and can be shown in a later run."""
    program = "x = await tools.shot({'nested': 1})\ny = x['list']\n[y[0], y[1]['image'].width, y[2].height]"
    assert [1, 30, 20] == await session.value(program, tools)
    assert [ImageOutput(ref)] == (await session.run("inspect(x['list'][1]['image'])")).output


async def test_inspect_of_other_values(session):
    """K07: inspecting anything that is no image displays it."""
    result = await session.run(
        "import pandas as pd\ninspect('x')\ninspect(5)\ninspect(pd.DataFrame({'a': [1]}))"
    )
    assert "'x'\n5\n   a\n0  1\n" == text(result, "display")
    assert kind(result) is None


async def test_names_can_be_shadowed(session, tools):
    """K11: a program's own `Image` and `inspect` persist, `del` brings ours back, and both go on working."""
    await session.run("show = inspect\nImage = 3\nimport inspect\ni = await tools.shot({})", tools)
    assert [3, "module"] == await session.value("[Image, type(inspect).__name__]", tools)
    assert ["image"] == shape(
        await session.run("show(i)\ndel Image, inspect\ninspect(await tools.shot({}))", tools)
    )[:1]
    assert "type" == await session.value("type(Image).__name__", tools)


@pytest.mark.parametrize(
    "change",
    [
        {"path": "relative.png"},
        {"media_type": "image/bmp"},
        {"width": -1},
        {"height": 0},
        {"bytes": 1.5},
        {"ref": None},
    ],
    ids=str,
)
async def test_images_that_are_none(session, ref, change):
    """K12: an image with a wrong path, media type or size rejects its call; the run goes on."""
    facts = {name: getattr(ref, name) for name in ("attachment_id", "media_type", "bytes", "width", "height")}
    path = change.get("path", "/picture.png")
    broken = (
        None
        if "ref" in change
        else ImageAttachmentRef(**{**facts, **{k: v for k, v in change.items() if k != "path"}})
    )

    async def shot(_):
        return PtcImage(path, broken)

    program = "try:\n    await tools.shot({})\nexcept ToolCallError as error:\n    text = str(error)\ntext"
    assert "resolution must be lossless JSON" in await session.value(program, namespace(shot=shot))


async def test_images_count(make_session, tools, ref):
    """K13: an image weighs its reference: at the cap it is shown, one byte under it is not."""
    size = 2 + len(encode(ref.to_json()).encode())
    program = "inspect(await tools.shot({}))\ndone = True"
    result = await make_session(max_output_bytes=size).run(program, tools)
    assert (None, [ImageOutput(ref)]) == (kind(result), result.output)
    result = await make_session(max_output_bytes=size - 1).run(program, tools)
    assert ("output-limit", []) == (kind(result), result.output)


async def test_image_before_a_timeout(session, tools, ref):
    """K15, P07: what was shown before a timeout is kept, a figure as well."""
    program = f"print('early')\ninspect(await tools.shot({{}}))\n{FIGURES}while True: pass"
    result = await session.run(program, tools, timeout_ms=5_000)
    assert "timeout" == kind(result)
    assert ["early\n", "image", "a\n", "image", "b\n", "image", "c\n"] == shape(result)


async def test_image_of_another_owner(runtime, tools):
    """K16: an owner that names another one's image gets nothing of it, and loses its kernel."""
    first, second = Session(runtime, StateOwner("a")), Session(runtime, StateOwner("b"))
    await first.run("i = await tools.shot({})", tools)
    result = await second.run("get_ipython().kernel.show_image(1)")
    assert ("protocol", []) == (kind(result), list(result.output))
    assert ["image"] == shape(await first.run("inspect(i)"))


async def test_images_are_no_json(session, tools):
    """D33: an image is neither a completion nor an argument."""
    result = await session.run("i = await tools.shot({})\ni", tools)
    assert "invalid-output" == kind(result)
    program = "try:\n    await tools.shot({'i': i})\nexcept ToolCallError as e:\n    name = e.toolName\nname"
    assert "shot" == await session.value(program, tools)


# ---------------------------------------------------------------------- displayed images


async def test_figures_of_a_fresh_kernel(runtime, session):
    """P04, P21, F15: the first figures of a fresh kernel are images between the texts around them."""
    result = await session.run(FIGURES)
    assert ["a\n", "image", "b\n", "image", "c\n"] == shape(result)
    ref = result.output[1].attachment
    data = runtime.attachments.get(ref)
    picture = Pillow.open(io.BytesIO(data))
    assert (f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)) == (ref.attachment_id, ref.bytes)
    assert ("PNG", (ref.width, ref.height)) == (picture.format, picture.size)


async def test_an_open_figure_is_shown_at_the_end(session):
    """F15: a figure that nobody showed appears at the end of its run, and only there."""
    result = await session.run("import matplotlib.pyplot as plt\nplt.plot([1])\nprint('made')")
    assert ["made\n", "image"] == shape(result)
    assert [] == shape(await session.run("pass"))


async def test_displayed_pictures_and_tables(session):
    """P24, F15: a PIL image is an image, a DataFrame is its text."""
    program = (
        "from PIL import Image\nimport pandas as pd\n"
        "display(Image.new('RGB', (8, 8), 'red'))\ndisplay(pd.DataFrame({'a': [1, 2]}))"
    )
    result = await session.run(program)
    assert ["image", "   a\n0  1\n1  2\n"] == shape(result)
    assert (8, 8) == (result.output[0].attachment.width, result.output[0].attachment.height)


async def test_display_completion(session):
    """P27: with display_completion a plot or a table at the end is shown and fails nothing."""
    result = await session.run("import pandas as pd\npd.DataFrame({'a': [1]})", display_completion=True)
    assert (None, False, ["   a\n0  1\n"]) == (kind(result), result.has_value, shape(result))
    program = "from PIL import Image\nImage.new('RGB', (4, 4))"
    assert ["image"] == shape(await session.run(program, display_completion=True))


@pytest.mark.parametrize("data", ["no base64 !", "aGVsbG8="])
async def test_broken_pictures(session, data):
    """9: a picture that is none becomes its text and a note, and fails no run."""
    program = f"display({{'image/png': {data!r}, 'text/plain': 'a picture'}}, raw=True)\nprint('after')"
    result = await session.run(program)
    assert kind(result) is None
    shown, after = result.output
    assert shown.text.startswith("a picture\n[this image is not shown: ")
    assert TextOutput("after\n", "stdout") == after


async def test_many_pictures_keep_their_order(runtime, session):
    """9: pictures of different sizes stay among the texts in the order in which they were displayed."""
    program = """
from PIL import Image
for size in range(1, 40):
    display(Image.new('RGB', ((41 - size) * 30, size)))
    print(size)
"""
    result = await session.run(program)
    sizes = [
        item.attachment.height if isinstance(item, ImageOutput) else int(item.text) for item in result.output
    ]
    assert [size for size in range(1, 40) for _ in range(2)] == sizes

    request = PtcRunRequest(program=program, state_owner=session.owner)
    events = [event async for event in runtime.stream(runtime.resolve(request))]
    assert list(result.output) == [event.output for event in events if isinstance(event, OutputEvent)]


# ---------------------------------------------------------------------- the store


def test_store_keeps_by_content(tmp_path):
    """9: the same bytes are one file, named by their content; an unknown reference is a KeyError."""
    store = LocalAttachmentStore(str(tmp_path / "images"))
    first, second = store.put(png(), "image/png"), store.put(png(), "image/png", name="again.png")
    assert first.attachment_id == second.attachment_id
    assert 1 == len(os.listdir(tmp_path / "images"))
    assert (png(), "again.png") == (store.get(second), second.name)
    unknown = ImageAttachmentRef(
        attachment_id="sha256:../x", media_type="image/png", bytes=1, width=1, height=1
    )
    with pytest.raises(KeyError):
        store.path(unknown)


@pytest.mark.parametrize(
    ("form", "media_type"), [("JPEG", "image/jpeg"), ("WEBP", "image/webp"), ("GIF", "image/gif")]
)
def test_store_knows_the_formats(tmp_path, form, media_type):
    """9: PNG, JPEG, WebP and GIF are stored as they are."""
    store = LocalAttachmentStore(str(tmp_path))
    ref = store.put(png(form=form), media_type)
    assert (media_type, 30, 20, None) == (ref.media_type, ref.width, ref.height, ref.original_dimensions)
    assert png(form=form) == store.get(ref)


def test_store_scales_down(tmp_path):
    """9: what is stored has at most 2,048 pixels a side, and says what it was before."""
    ref = LocalAttachmentStore(str(tmp_path)).put(png(5_000, 1_000), "image/png")
    assert (2_048, (5_000, 1_000)) == (ref.width, ref.original_dimensions)
    assert 4 * 1024 * 1024 >= ref.bytes


@pytest.mark.parametrize(
    ("data", "media_type", "why"),
    [
        (b"hello", "image/png", "cannot be read"),
        (png(), "image/jpeg", "its bytes are image/png"),
        (png(), "image/bmp", "is not one of"),
        (png()[:-30], "image/png", "cannot be read"),
        (png(9_000, 1), "image/png", "pixels"),
        (b"x" * (20 * 1024 * 1024 + 1), "image/png", "bytes"),
    ],
    ids=["no-image", "another-type", "unknown-type", "cut", "too-wide", "too-large"],
)
def test_store_refuses(tmp_path, data, media_type, why):
    """9: what is broken, of another type, or over an admission limit is refused with the reason."""
    with pytest.raises(AttachmentError, match=why):
        LocalAttachmentStore(str(tmp_path)).put(data, media_type)


def test_store_that_is_none(make_runtime):
    """12: a store that lacks a method is refused at construction, by the name of the field."""
    with pytest.raises(ConfigError, match="attachments"):
        make_runtime(attachments=object())


async def test_private_store_ends_with_its_runtime(make_runtime):
    """9: the runtime's own folder of images is private, and gone after disposal."""
    runtime = make_runtime()
    result = await Session(runtime).run("from PIL import Image\ndisplay(Image.new('L', (3, 3)))")
    folder = os.path.dirname(runtime.attachments.path(result.output[0].attachment))
    assert 0o700 == os.stat(folder).st_mode & 0o777
    await runtime.aclose()
    assert not os.path.exists(folder)


async def test_store_that_fails(make_session):
    """9: a store that breaks fails no run."""

    class Full:
        def put(self, *_: object) -> object:
            raise OSError(28, "No space left on device")

        get = path = put

    result = await make_session(attachments=Full()).run(
        "from PIL import Image\ndisplay(Image.new('L', (3, 3)))\n1"
    )
    assert (None, 1) == (kind(result), result.value)
    assert "No space left" in text(result, "display")
