"""PTX that the driver compiles: once, kept in the store by text, device and driver. The driver is stood for: there is no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store import Store
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.maintenance.garbage import recorded
from precast.artifact_store.trust.trusted import Trusted, made_here
from precast.runtime.common.errors import LoadError
from precast.runtime.executable import ptx
from precast.runtime.executable.blob_source import MemoryBlobs
from precast.runtime.targets import nvidia_devices

TEXTS = [b"//\n.version 8.0 a\0", b"//\n.version 8.0 b\0"]
IMAGE = b"\x7fELF an image"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine with one GPU; what its driver was asked to compile."""
    state: dict[str, Any] = {"kinds": ((9, 0),), "asked": [], "driver": "580.1"}
    monkeypatch.setattr(nvidia_devices, "capabilities", lambda: state["kinds"])
    monkeypatch.setattr(nvidia_devices, "machine", lambda: nvidia_devices.Machine(nvidia_devices.Driver(state["driver"], (13, 0)), ()))

    def compiled(texts: list[Trusted[bytes]]) -> list[bytes]:
        state["asked"] += [text.content for text in texts]
        return [b"\x7fELF of " + text.content for text in texts]

    monkeypatch.setattr(ptx, "_compiled", compiled)
    return state


def loadable(images: list[bytes], source: Any) -> list[bytes]:
    """What becomes of images that the test has made."""
    return [image.content for image in ptx.loadable([made_here(image) for image in images], source)]


def test_compiled_once_and_kept(tmp_path: Path, gpu: dict[str, Any]) -> None:
    store = Store.open(tmp_path)
    wanted = [b"\x7fELF of " + TEXTS[0], IMAGE, b"\x7fELF of " + TEXTS[1]]
    given = [TEXTS[0], IMAGE, TEXTS[1]]
    assert loadable(given, store) == wanted and gpu["asked"] == TEXTS
    assert loadable(given, Store.open(tmp_path)) == wanted and gpu["asked"] == TEXTS
    assert recorded(store) == {digest(wanted[0]), digest(wanted[2])}  # prune spares them
    gpu["driver"] = "590.2"
    loadable(given, store)
    gpu["kinds"] = ((10, 0),)
    loadable(given, store)
    assert gpu["asked"] == TEXTS * 3 and len(store.record_names(ptx.KIND)) == 6


def test_a_damaged_image_is_made_again(tmp_path: Path, gpu: dict[str, Any]) -> None:
    loadable(TEXTS[:1], Store.open(tmp_path))
    (blob,) = [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]
    blob.chmod(0o600)
    blob.write_bytes(b"\x7fELF of something else")
    store = Store.open(tmp_path)
    assert loadable(TEXTS[:1], store) == loadable(TEXTS[:1], store) == [b"\x7fELF of " + TEXTS[0]]
    assert len(gpu["asked"]) == 2


def test_where_nothing_can_be_kept(tmp_path: Path, gpu: dict[str, Any]) -> None:
    for source in (MemoryBlobs({}), Store.open(tmp_path, readonly=True)):
        assert loadable(TEXTS[:1], source) == [b"\x7fELF of " + TEXTS[0]]
    assert len(gpu["asked"]) == 2


def test_gpus_of_several_kinds_get_the_text(tmp_path: Path, gpu: dict[str, Any]) -> None:
    gpu["kinds"] = ((9, 0), (8, 9))
    assert loadable(TEXTS, Store.open(tmp_path)) == TEXTS and not gpu["asked"]


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "driver_library", lambda: None)
    with pytest.raises(LoadError, match="no NVIDIA driver here"):
        ptx.link(made_here(TEXTS[0]), ptx.ctypes.c_void_p())
