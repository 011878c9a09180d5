"""A Zarr folder whose files have checksums: what is written is noted, and the list itself is not part of the data."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from zarr.storage import LocalStore

from saddles.runtime.checksums import NAME, Checksums


class CheckedStore(LocalStore):
    """Zarr's folder on disk, with `.checksums`.

    Args:
        root: the folder.
        checksums: where writes are noted; None is for reading.
    """

    def __init__(self, root: Path, *, checksums: Checksums | None = None, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only or checksums is None)
        self._checksums = checksums

    def with_read_only(self, read_only: bool = False) -> "CheckedStore":
        """Zarr's way to open the same folder for reading."""
        return CheckedStore(self.root, checksums=self._checksums, read_only=read_only)

    async def set(self, key: str, value: Any) -> None:
        """Note, then write."""
        with self._changing(key, value.to_bytes()):
            await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        """Note and write what is new."""
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """Note, then remove."""
        note = self._changing(key, None) if await self.exists(key) else nullcontext()
        with note:
            await super().delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Note every file, then remove the folder."""
        home = self.root / prefix
        for file in home.rglob("*") if home.is_dir() else ():
            if file.is_file():
                self._note(file.relative_to(self.root).as_posix(), None)
        await super().delete_dir(prefix)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names in a folder, without the checksums."""
        async for name in super().list_dir(prefix):
            if name != NAME:
                yield name

    def _changing(self, key: str, data: bytes | None) -> AbstractContextManager[None]:
        assert self._checksums is not None
        return self._checksums.changing(key, data)

    def _note(self, key: str, data: bytes | None) -> None:
        assert self._checksums is not None
        self._checksums.note(key, data)
