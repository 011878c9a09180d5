"""The stored trajectories behind the pages, as one archive that a release carries.

    python docs/stores.py pack FOLDER       docs/results/*.zarr as FOLDER/saddles-results-VERSION.zip
    python docs/stores.py unpack ARCHIVE    into docs/results/, where pages and tests look for them
    python docs/stores.py list              bring docs/stores.json up to date

docs/stores.json lists the size and SHA-256 of every store. What is packed or unpacked must agree with it, so a
checkout without stores knows exactly which ones its numbers come from. The archive has the same bytes on every machine.
"""

import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path, PurePosixPath

import saddles

RESULTS = Path(__file__).parent / "results"
LIST = Path(__file__).with_name("stores.json")
BEGINNING = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip file can hold: the same bytes whenever it is packed


def read(folder: Path) -> dict[str, bytes]:
    """The files of a store by their names."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def summary(files: dict[str, bytes]) -> dict[str, int | str]:
    """Size and SHA-256 of a store: of its files' names and SHA-256 in the order of the names."""
    lines = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return {"bytes": sum(map(len, files.values())), "sha256": hashlib.sha256(lines.encode()).hexdigest()}


def listed() -> dict[str, dict[str, int | str]]:
    """What stores.json says."""
    return json.loads(LIST.read_text("utf-8"))


def write_list(results: Path = RESULTS) -> None:
    """List the stores that are there; those that are not stay as they were listed."""
    found = listed() | {folder.name: summary(read(folder)) for folder in results.glob("*.zarr")}
    LIST.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", "utf-8")


def pack(folder: Path, results: Path = RESULTS) -> Path:
    """Write the archive of all listed stores."""
    target = folder / f"saddles-results-{saddles.__version__}.zip"
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for store, expected in listed().items():
            files = read(results / store)
            if summary(files) != expected:
                sys.exit(
                    f"{store} is missing or differs from {LIST.name}. Run python docs/stores.py list, or unpack it."
                )
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(f"{store}/{name}", BEGINNING), data, zipfile.ZIP_DEFLATED)
    target.write_bytes(content.getvalue())
    return target


def unpack(source: Path, results: Path = RESULTS) -> list[str]:
    """Write the stores that are not there yet; refuse the archive where one differs from its digest."""
    wanted, stores = listed(), {}
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            store, _, inside = name.partition("/")
            if store in wanted and inside and not {"..", ""} & set(PurePosixPath(inside).parts):
                stores.setdefault(store, {})[inside] = archive.read(name)
    for store, files in stores.items():
        if summary(files) != wanted[store]:
            sys.exit(f"{store} of {source} differs from {LIST.name}. Take the archive of this version.")
    new = [store for store in stores if not (results / store).exists()]
    for store in new:
        for inside, data in stores[store].items():
            file = results / store / inside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    return new


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["pack", place]:
            print(pack(Path(place)))
        case ["unpack", place]:
            print("\n".join(unpack(Path(place))) or "nothing was missing")
        case ["list"]:
            write_list()
        case _:
            sys.exit(__doc__)
