"""A view's numbers as files: Zarr and CSV, each in one zip."""

import io
import tempfile
import zipfile
from pathlib import Path

import xarray as xr

from saddles.core.store import export, save
from saddles.explorer.page import Results


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
