"""Measuring where the weights lie: the numbers of the host's path, on the CPU as a stand-in and on a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import small_models
import torch
import xarray as xr

from saddles import probe
from saddles.errors import SaddlesError
from saddles.probe.measuring import WITHOUT_SPECTRUM, measure_row
from saddles.probe.recording import on_device
from saddles.probe.recording.on_device import DeviceBackend
from saddles.probe.recording.recorder import Recorder
from saddles.probe.recording.snapshot import Copier
from saddles.probe.weights.live_model import parameters
from saddles.runtime.threads import torch_pool

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU, and torch sees none here")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


def moved(make, kind=torch.float32):
    """A layout, the recorded weights, and others of the same shapes."""
    torch.manual_seed(0)
    model = make().to(kind)
    layout = probe.heads(model)
    start = {name: parameters(model)[name].detach().clone() for name in layout.head_parameters()}
    return layout, start, {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in start.items()}


def measured(layout, start, now, device, whole=True):
    with torch_pool(2) as pool:
        backend = DeviceBackend(layout, Copier({name: tensor.to(device) for name, tensor in now.items()}), start, pool)
        readings = backend.readings()
        readings.whole = whole
        backend.copy_to(readings)
        readings.wait()
        return backend.measure(readings)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["gpt2", "llama", "vit", "qwen2"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_it_finds_what_the_host_finds(device, family, kind, monkeypatch):
    """Also with memory for three products at a time, and where heads share keys (llama, qwen2)."""
    layout, start, now = moved(getattr(small_models, family), kind)
    for working in (on_device.WORKING, 3 * 8 * 24 * 48):
        monkeypatch.setattr(on_device, "WORKING", working)
        found = measured(layout, start, now, device)
        host = measure_row(layout, now.__getitem__, start.__getitem__, modules=False)
        assert set(found) == set(host)
        largest = host["heads/singular_value"].max(-1, keepdims=True)
        assert np.nanmax(np.abs(found["heads/singular_value"] - host["heads/singular_value"]) / largest) < 1e-6
        for name in ("stable_rank", "effective_rank", "frobenius_norm", "noise_floor"):
            np.testing.assert_allclose(found[f"heads/{name}"], host[f"heads/{name}"], rtol=2e-6)
        light = measured(layout, start, now, device, whole=False)
        assert set(light) == {f"heads/{name}" for name in WITHOUT_SPECTRUM}
        for name, values in light.items():
            np.testing.assert_allclose(values, host[name], rtol=2e-6)


def test_layers_of_different_shapes_keep_their_places():
    layout, start, now = moved(small_models.gpt2)
    fewer = replace(layout, heads=layout.heads[:-1])  # the last layer has a head less
    found = measured(fewer, start, now, "cpu")
    host = measure_row(fewer, now.__getitem__, start.__getitem__, modules=False)
    np.testing.assert_allclose(found["heads/stable_rank"], host["heads/stable_rank"], rtol=2e-6)
    assert np.isnan(found["heads/stable_rank"][-1, -1]).all()


def recording(steps, on, monkeypatch, begin=0, **options):
    """A model that drifts, recorded every second step from step `begin` on."""
    monkeypatch.setattr(Recorder, "_measures_on_device", lambda self: on)
    torch.manual_seed(0)
    model = small_models.gpt2()

    def drift():
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.01 * torch.randn_like(weight))

    for _ in range(begin):
        drift()
    with probe.record(model, 2, step=begin, **options) as run:
        for _ in range(begin, steps):
            drift()
            run.step()
    return run.result["heads"].to_dataset()


@pytest.mark.parametrize("on", [False, True])
def test_spectra_at_some_steps_and_ranks_at_all(monkeypatch, on):
    every, some = (recording(9, on, monkeypatch, spectra=spectra) for spectra in (None, 4))
    assert some["step"].values.tolist() == [2, 4, 6, 8, 9]
    whole = some["singular_value"].notnull().all(("layer", "head", "product", "index")).values
    assert whole.tolist() == [False, True, False, True, True]
    for name in WITHOUT_SPECTRUM:
        np.testing.assert_allclose(some[name], every[name], rtol=2e-6)
    assert np.isnan(some["effective_rank"][0]).all()
    xr.testing.assert_equal(some.isel(time=whole), every.isel(time=whole))


def test_the_last_step_has_its_spectra(monkeypatch):
    some = recording(6, True, monkeypatch, spectra=4)
    assert some["step"].values.tolist() == [2, 4, 6]
    assert np.isfinite(some["singular_value"][-1]).all()


@pytest.mark.parametrize("on", [False, True])
def test_a_row_that_was_owed_is_measured_after_a_resume(monkeypatch, tmp_path, on):
    """Training died after step 4, before its row was written."""
    whole = recording(8, on, monkeypatch)
    recording(4, on, monkeypatch, out=tmp_path)
    (tmp_path / "rows" / "step-4.npz").unlink()
    again = recording(8, on, monkeypatch, out=tmp_path, begin=4)
    assert again["step"].values.tolist() == [2, 4, 6, 8]
    xr.testing.assert_equal(again, whole)


@pytest.mark.parametrize("spectra", [0, 3])
def test_spectra_are_a_multiple(spectra):
    with pytest.raises(SaddlesError, match=r"`spectra` must be a multiple of every=2"):
        probe.record(small_models.gpt2(), 2, spectra=spectra)


@needs_gpu
@pytest.mark.filterwarnings("ignore:Training waits for measurements")  # these steps take no time
def test_a_recording_on_a_gpu_is_that_of_a_process():
    """The same training twice, measured on the GPU and by a process."""
    runs = []
    for process in (None, True):
        torch.manual_seed(0)
        model = small_models.gpt2().to("cuda")
        with probe.record(model, 1, process=process, pending=1) as run:
            for _ in range(5):
                with torch.no_grad():
                    for weight in model.parameters():
                        weight.add_(0.01 * torch.randn(weight.shape).to("cuda"))
                run.step()
        runs.append(run.result["heads"].to_dataset())
    for name in ("stable_rank", "frobenius_norm", "noise_floor", "effective_rank"):
        np.testing.assert_allclose(runs[0][name], runs[1][name], rtol=2e-6)
