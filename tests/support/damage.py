"""What attacks share: a seed that is printed and can be repeated, and damage to files."""

import os

SEED = int(os.environ.get("ATTACK_SEED", "18"))
"""`make attack` takes another one each time and prints it."""


def chunks(store):
    """Files of a Zarr folder that hold numbers."""
    return sorted(p for p in store.rglob("*") if p.is_file() and not p.name.startswith("."))


def flip(file, draw):
    """Turn one bit of a file."""
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
