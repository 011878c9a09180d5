"""A view as a file: its numbers as Zarr or CSV in a zip, itself as one HTML page, its run as a film."""

import io
import tempfile
import threading
import zipfile
from pathlib import Path

import xarray as xr

from saddles.core.store import export, save
from saddles.explorer.page import Page, Results
from saddles.explorer.view import View

TYPES = {"html": "text/html", "gif": "image/gif", "mp4": "video/mp4"}
_DRAWING = threading.Lock()
"""Matplotlib's look is one for the whole process: films are drawn one at a time."""


def film_kinds() -> list[str]:
    """The kinds of film that can be written here."""
    from saddles.figures.films import ffmpeg

    return ["gif", "mp4"] if ffmpeg() else ["gif"]


def pack(page: Page, view: View, kind: str, name: str) -> bytes:
    """Compute a view and make a file of it: zarr, csv, html, gif or mp4."""
    if kind == "html":
        from saddles.explorer.site import single

        return single(page, view).encode("utf-8")
    results = page.compute(view, False)
    return {"zarr": zarr_zip, "csv": csv_zip}[kind](results, name) if kind not in TYPES else film(results, kind)


def file_name(name: str, kind: str) -> tuple[str, str]:
    """What a file is called, and its type."""
    return (f"{name}.{kind}", TYPES[kind]) if kind in TYPES else (f"{name}-{kind}.zip", "application/zip")


def film(results: Results, kind: str) -> bytes:
    """The run as a film: of a recording its heads, of another run whatever `saddles.animate` makes of it."""
    from saddles.figures.films import animate

    run = {key.partition("/")[2]: data for key, data in results.items() if key.partition("/")[0] in ("measured", "run")}
    shown = run[""] if "" in run else _tree(run)
    with tempfile.TemporaryDirectory() as folder, _DRAWING:
        return animate(shown, Path(folder) / f"film.{kind}").read_bytes()


def _tree(results: Results) -> xr.DataTree:
    return xr.DataTree.from_dict({f"/{name}": data for name, data in results.items()})


def zarr_zip(results: Results, name: str) -> bytes:
    """NAME.zarr in a zip: unpack it and `saddles.load` it; each trajectory is a group."""
    with tempfile.TemporaryDirectory() as folder:
        save(_tree(results), Path(folder) / f"{name}.zarr")
        return _zipped(Path(folder))


def csv_zip(results: Results, name: str) -> bytes:
    """One table for each set of axes, and the attributes as JSON, in a zip."""
    with tempfile.TemporaryDirectory() as folder:
        export(_tree(results), Path(folder) / f"{name}.csv", "csv")
        return _zipped(Path(folder))


def _zipped(folder: Path) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(file, file.relative_to(folder).as_posix())
    return held.getvalue()
