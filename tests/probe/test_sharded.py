"""Sharded parameters: gathered with FSDP2 and ZeRO-3, refused with a reason where that cannot be."""

import contextlib
import json
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
import small_models
import torch

from saddles import probe
from saddles.core.store import load
from saddles.errors import SaddlesError
from saddles.probe import heads

spectra: Any = probe.spectra
record: Any = probe.record

_PROCESS = """
import sys; sys.path[:0] = {path!r}
import torch, torch.distributed as dist
import small_models
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from saddles.core.store import save
from saddles.probe import spectra, record

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 2), rank=rank, world_size=2)
model = small_models.timm_like()
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
start = {{name: tensor.full_tensor().clone() for name, tensor in model.named_parameters()}}
assert model.blocks[0]["attn"].qkv.weight.to_local().shape[0] == 36
with record(model, every=1, out=folder + "/live") as run:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    run.step()
tree = spectra(model, start, step=1)
if rank == 0:
    save(tree, folder + "/after")
with record(model, every=1, out=folder + "/restart", step=1, reference=start) as run:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    run.step()
dist.destroy_process_group()
"""


def test_two_processes_gather_their_shards(tmp_path):
    code = _PROCESS.format(path=sys.path)
    both = [subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path)]) for rank in (0, 1)]
    assert [process.wait(120) for process in both] == [0, 0]
    torch.manual_seed(0)
    start = small_models.timm_like()
    model = small_models.timm_like()
    model.load_state_dict({name: 1.5 * tensor for name, tensor in start.state_dict().items()})
    whole = spectra(model, start, step=1)["heads"]["singular_value"].values
    for name in ("live", "after"):
        np.testing.assert_allclose(load(tmp_path / name)["heads"]["singular_value"].values, whole, rtol=1e-5)
    _joined(tmp_path, start)


def _joined(folder: Any, start: Any) -> None:
    """A training that one process began and two went on with."""
    torch.manual_seed(0)
    model = small_models.timm_like()
    with record(model, every=1, out=folder / "alone") as run:
        model.load_state_dict({name: 1.5 * tensor for name, tensor in start.state_dict().items()})
        run.step()
    model.load_state_dict({name: 2.25 * tensor for name, tensor in start.state_dict().items()})
    both: Any = probe.recorded(folder / "alone", folder / "restart")["heads"]
    assert both["step"].values.tolist() == [1, 2]
    last = spectra(model, start, step=2)["heads"]["singular_value"].values
    np.testing.assert_allclose(both["singular_value"].values[1:], last, rtol=1e-5, atol=1e-6)


def emptied() -> Any:
    """A model of which one parameter is elsewhere, as outside a gather."""
    model = small_models.timm_like()
    parameter = model.blocks[1]["attn"].proj.weight
    kept, parameter.data = parameter.data, torch.empty(0)
    return model, parameter, kept


def test_an_empty_parameter_is_refused():
    model, _, _ = emptied()
    for work in (heads, record, lambda m: spectra(m, m.state_dict())):
        with pytest.raises(SaddlesError, match=r"blocks.1.attn.proj.weight is empty here"):
            work(model)


def test_a_parameter_emptied_later_is_a_gap_of_the_recording():
    model = small_models.timm_like()
    with record(model, every=1) as run:
        model.blocks[0]["attn"].qkv.weight.data = torch.empty(0)
        with pytest.warns(UserWarning, match=r"gap at step 1 .*has shape \(0,\)"):
            run.step()
    assert list(json.loads(run.result.attrs["gaps"])) == ["1"]


def test_zero_3_needs_deepspeed(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    model, parameter, _ = emptied()
    parameter.ds_id, parameter.ds_shape = 1, torch.Size((24, 24))
    with pytest.raises(SaddlesError, match="sharded by ZeRO-3 and DeepSpeed cannot be imported"):
        heads(model)


def test_zero_3_is_gathered_by_deepspeed(monkeypatch):
    """A stand-in with the one name of DeepSpeed that is used; DeepSpeed itself needs a GPU."""
    model, parameter, kept = emptied()
    parameter.ds_id, parameter.ds_shape = 1, kept.shape

    @contextlib.contextmanager
    def gather(parameters):
        parameters[0].data = kept
        yield
        parameters[0].data = torch.empty(0)

    fake = types.SimpleNamespace(zero=types.SimpleNamespace(GatheredParameters=gather))
    monkeypatch.setitem(sys.modules, "deepspeed", fake)
    with record(model, every=1) as run:
        kept = 2 * kept
        run.step()
    norms = run.result["heads"]["frobenius_norm"].values[0]
    assert norms[1, :, 1].min() > 0
    assert norms[0].max() == norms[1, :, 0].max() == 0
    assert parameter.numel() == 0


def test_flattened_parameters_are_refused():
    model = small_models.timm_like()
    model.register_parameter("_flat_param", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(SaddlesError, match="flattened by FSDP1"):
        heads(model)
