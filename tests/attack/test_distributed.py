"""Checkpoints of torch.distributed.checkpoint whose .metadata, a pickle, was written by someone else."""

import pathlib
import pickle
import shutil

import pytest
import torch
from distributed_checkpoint import write

from saddles.errors import SaddlesError
from saddles.probe.weights.checkpoints import open_weights

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
NAME = "model.w"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    tensors = {"model": {"w": torch.arange(12.0).reshape(3, 4), "n": torch.arange(3)}, "step": 7}
    write(tensors, place)
    return place


@pytest.fixture
def place(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "x")


def test_a_good_one_is_read(place):
    weights = open_weights(place)
    assert dict(weights.shapes) == {"w": (3, 4), "n": (3,)}
    torch.testing.assert_close(weights.read("w"), torch.arange(12.0).reshape(3, 4))
    assert weights.read("n").tolist() == [0, 1, 2]


def _all_places(change):
    def mutate(metadata):
        for row in metadata.storage_data.values():
            change(row)

    return mutate


def _set(name, value, of=lambda metadata: metadata.state_dict_metadata[NAME]):
    return lambda metadata: setattr(of(metadata), name, value)


def _whole(metadata):
    return metadata


def _properties(metadata):
    return metadata.state_dict_metadata[NAME].properties


def _chunk(metadata):
    return metadata.state_dict_metadata[NAME].chunks[0]


HUGE = torch.Size([10**6, 10**6])
CASES = {
    "a tensor larger than its parts": _set("size", HUGE),
    "a tensor and parts that the files cannot hold": lambda m: (_set("size", HUGE)(m), _set("sizes", HUGE, _chunk)(m)),
    "less than nothing": _set("size", torch.Size([-3, -4])),
    "no shape": _set("size", None),
    "half a number": _set("size", (2.5, 4)),
    "a part outside": _set("sizes", torch.Size([30, 4]), _chunk),
    "a part too small": _set("sizes", torch.Size([2, 4]), _chunk),
    "no parts": _set("chunks", []),
    "no type": _set("dtype", "float32", _properties),
    "no properties": _set("properties", None),
    "no tensors": _set("state_dict_metadata", [1], _whole),
    "numbers for names": lambda m: setattr(m, "state_dict_metadata", {1: m.state_dict_metadata[NAME]}),
    "no path": _set("planner_data", {NAME: ()}, _whole),
    "no places": _set("storage_data", {}, _whole),
    "a place before the file": _all_places(lambda row: setattr(row, "offset", -5)),
    "a place behind the file": _all_places(lambda row: setattr(row, "offset", 10**15)),
    "another folder": _all_places(lambda row: setattr(row, "relative_path", "../y.distcp")),
    "a path": _all_places(lambda row: setattr(row, "relative_path", pathlib.PurePosixPath("/etc/passwd"))),
    "the folder itself": _all_places(lambda row: setattr(row, "relative_path", "..")),
    "a name that no file has": _all_places(lambda row: setattr(row, "relative_path", "a\0b")),
    "unknown compression": _all_places(lambda row: setattr(row, "transform_descriptors", ["pickle"])),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_metadata_is_one_sentence(place, case):
    metadata = pickle.loads((place / ".metadata").read_bytes())
    CASES[case](metadata)
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(SaddlesError) as told:
        open_weights(place).read("w")
    assert "\n" not in str(told.value)


def test_missing_and_damaged_parts_are_one_sentence(place):
    (part,) = place.glob("*.distcp")
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(SaddlesError, match="cannot be read"):
        open_weights(place).read("w")
    part.unlink()
    with pytest.raises(SaddlesError, match="would be larger than all parts together"):
        open_weights(place).read("w")


@pytest.mark.parametrize(
    "named", [b"cpathlib\nPosixPath\n", b"ctorch.distributed.checkpoint.metadata\nMetadata\n", b"ctorch\nSize\n"]
)
def test_a_pickle_cannot_change_a_class(place, named):
    """Its state would become attributes of the class itself: of paths the name, by which places are judged."""
    outside = b"../../stolen.distcp"
    state = b"(N}X\x04\0\0\0nameX" + len(outside).to_bytes(4, "little") + outside + b"stb0"
    metadata = pickle.loads((place / ".metadata").read_bytes())
    for row in metadata.storage_data.values():
        row.relative_path = outside.decode()
    (place / ".metadata").write_bytes(b"\x80\x02" + named + state + pickle.dumps(metadata, protocol=2)[2:])
    with pytest.raises(SaddlesError, match="was not opened"):
        open_weights(place)
    assert pathlib.PosixPath("a/b").name == "b"
