"""Inspection of a series: numbers against dense float64 loops, resumption, and what is refused."""

import dataclasses
import errno
import json
from typing import Any

import numpy as np
import pytest
import small_models
import torch
import xarray as xr
from planted import planted, tiny, trained
from safetensors.torch import save_file
from typer.testing import CliRunner

import saddles
from saddles.cli import app
from saddles.core.status import Ending, Status, status_of
from saddles.errors import SaddlesError
from saddles.probe import inspection, pieces
from saddles.probe.inspection import inspect
from saddles.probe.layouts.adapters import adapters
from saddles.probe.layouts.find_heads import find_layout
from saddles.probe.weights.checkpoints import open_weights

RANKS = {"stable_rank", "effective_rank", "energy_rank_90", "energy_rank_99"}
NAMES = {"singular_value", "frobenius_norm", "noise_floor"} | RANKS


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A series of GPT-2: steps 0, 10 and 20, one of them in shards."""
    place = tmp_path_factory.mktemp("series")
    base = tiny("gpt2")
    models = {0: base, 10: planted(base, 1), 20: trained(base)}
    for step, model in models.items():
        model.save_pretrained(place / f"checkpoint-{step}", max_shard_size="30KB" if step == 10 else "5GB")
    return place, models


def _products(model, layer: int, head: int) -> dict[str, np.ndarray]:
    """W_K W_Qᵀ and W_V W_Oᵀ of one head of GPT-2, dense in float64."""
    block = model.transformer.h[layer].attn
    fused, out = (w.weight.detach().double().numpy() for w in (block.c_attn, block.c_proj))
    q, k, v = (fused[:, 32 * i + 16 * head : 32 * i + 16 * head + 16] for i in range(3))
    return {"KQ": k @ q.T, "VO": v @ out[16 * head : 16 * head + 16]}


def test_numbers_agree_with_a_dense_loop(home):
    place, models = home
    tree: Any = inspect(place)
    heads, modules = tree["heads"], tree["modules"]
    assert set(heads.data_vars) >= NAMES
    assert heads["singular_value"].dims == ("time", "layer", "head", "product", "index")
    assert modules["singular_value"].dims == ("time", "module", "index")
    assert heads["step"].values.tolist() == [10, 20]
    for time, step in enumerate((10, 20)):
        for layer in range(2):
            for head in range(2):
                start, now = _products(models[0], layer, head), _products(models[step], layer, head)
                for product in ("KQ", "VO"):
                    exact = np.linalg.svd(now[product] - start[product], compute_uv=False)
                    where = {"layer": layer, "head": head, "product": product}
                    found = heads["singular_value"].isel(time=time).sel(where).values
                    np.testing.assert_allclose(found, exact[: len(found)], atol=1e-6 * exact[0])
                    rank = float(heads["stable_rank"].isel(time=time).sel(where))
                    assert rank == pytest.approx((exact**2).sum() / exact[0] ** 2, rel=1e-5)
        start, now = (dict(models[s].named_parameters()) for s in (0, step))
        for name in modules["module"].values:
            exact = torch.linalg.svdvals(now[str(name)].detach().double() - start[str(name)].detach().double()).numpy()
            found = modules["singular_value"].isel(time=time).sel(module=name).dropna("index").values
            np.testing.assert_allclose(found, exact, atol=1e-8 * max(exact[0], 1e-30))
    unmoved = modules.sel(module="transformer.wte.weight").isel(time=0)
    assert float(unmoved["frobenius_norm"]) == float(unmoved["stable_rank"]) == 0.0
    assert json.loads(tree.attrs["notes"]) == []


def test_one_pair_equals_the_spectra_of_two_live_models(home):
    place, models = home
    one: Any = inspect(place / "checkpoint-20", reference=place / "checkpoint-0")
    live: Any = saddles.probe.spectra(models[20], models[0])
    for group in ("heads", "modules"):
        for name in NAMES:
            xr.testing.assert_allclose(
                one[group][name].drop_vars(["step", "time"]), live[group][name].drop_vars(["step", "time"]),
                rtol=1e-4, atol=1e-7,
            )  # fmt: skip
    torch.save(models[20].state_dict(), place / "end.pt")
    by_file: Any = inspect(place / "end.pt", reference=models[0])
    xr.testing.assert_allclose(by_file["modules"]["stable_rank"].drop_vars(["step", "time"]),
                               one["modules"]["stable_rank"].drop_vars(["step", "time"]))  # fmt: skip
    (place / "end.pt").unlink()


def test_heads_alone_are_the_same_heads(home):
    place, _ = home
    alone: Any = inspect(place, modules=False)
    whole: Any = inspect(place, only="wte")
    xr.testing.assert_allclose(alone["heads"].to_dataset(), whole["heads"].to_dataset())
    assert not alone["modules"].data_vars


def test_an_interrupted_inspection_goes_on_where_it_stopped(home, tmp_path, monkeypatch):
    place, _ = home
    honest, made = inspection._module, []

    def interrupted(module, point, start, **more):
        made.append((point.step, module.parameter))
        if len(made) == 14:
            raise KeyboardInterrupt
        return honest(module, point, start, **more)

    monkeypatch.setattr(inspection, "_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inspect(place, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == str(Ending.INTERRUPTED)
    partial = saddles.load(tmp_path / "out")
    assert partial["heads"]["step"].values.tolist() == [10]
    assert status_of(partial).ending == Ending.INTERRUPTED
    done = made[:13]
    made.clear()
    monkeypatch.setattr(
        inspection,
        "_module",
        lambda *all_, **more: made.append((all_[1].step, all_[0].parameter)) or honest(*all_, **more),
    )
    tree: Any = inspect(place, out=tmp_path / "out")
    assert not set(made) & set(done)
    fresh: Any = inspect(place)
    xr.testing.assert_allclose(tree["modules"].to_dataset(), fresh["modules"].to_dataset())
    assert not (tmp_path / "out" / "parts").exists()
    monkeypatch.setattr(inspection.Work, "carry_out", lambda self: pytest.fail("a finished run is not repeated"))
    again: Any = inspect(place, out=tmp_path / "out")
    xr.testing.assert_identical(again["heads"].to_dataset(), saddles.load(tmp_path / "out")["heads"].to_dataset())


def test_a_full_disk_is_explained_in_one_sentence_and_keeps_the_pieces(home, tmp_path, monkeypatch):
    place, _ = home
    real, real_json, written = np.savez, inspection.write_record, []  # pyright: ignore[reportPrivateImportUsage]

    def savez(file, **arrays):
        written.append(file.name)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, **arrays)

    def full(*words, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", savez)
        patch.setattr(inspection, "write_zarr", full)
        patch.setattr(inspection, "write_record", lambda *words: full() if len(written) > 3 else real_json(*words))
        with pytest.raises(SaddlesError, match=r"No space left on device.*What is measured is kept: make room"):
            inspect(place, modules=False, out=tmp_path / "out")
    assert len(list((tmp_path / "out" / "parts").glob("[!.]*.npz"))) == 3


def test_nothing_is_overwritten(home, tmp_path):
    place, _ = home
    inspect(place / "checkpoint-10", reference=place / "checkpoint-0", modules=False, out=tmp_path / "a")
    with pytest.raises(SaddlesError, match="another run"):
        inspect(place / "checkpoint-20", reference=place / "checkpoint-0", modules=False, out=tmp_path / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(SaddlesError, match="already exists"):
        inspect(place, out=tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["file"]


def test_a_checkpoint_that_is_a_link_to_nowhere_is_told(home, tmp_path):
    place, _ = home
    for step in (0, 10):
        (tmp_path / f"checkpoint-{step}").symlink_to(place / f"checkpoint-{step}")
    assert inspect(tmp_path, modules=False, out=tmp_path / "out")["heads"].sizes["time"] == 1
    (tmp_path / "checkpoint-20").symlink_to(tmp_path / "removed")
    with pytest.raises(SaddlesError, match=r"checkpoint-20 is a link to .*removed, and nothing is there"):
        inspect(tmp_path, modules=False, out=tmp_path / "more")


def test_only_some_matrices(home):
    place, _ = home
    tree: Any = inspect(place, only=r"mlp\.c_fc")
    assert tree["modules"]["module"].values.tolist() == [f"transformer.h.{i}.mlp.c_fc.weight" for i in (0, 1)]
    with pytest.raises(SaddlesError, match="matches none"):
        inspect(place, only="nothing")
    with pytest.raises(SaddlesError, match="regular expression"):
        inspect(place, only="(")
    with pytest.raises(SaddlesError, match="Leave one of them out"):
        inspect(place, only="wte", modules=False)


def test_a_model_without_attention_and_numbers_that_are_not_finite(home, tmp_path):
    _, models = home
    plain = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    torch.save(plain.state_dict(), tmp_path / "step-0.pt")
    torch.save(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)).state_dict(), tmp_path / "step-1.pt")
    with pytest.raises(SaddlesError, match="No attention head"):
        inspect(tmp_path)
    broken = trained(models[0])
    with torch.no_grad():
        broken.transformer.h[1].mlp.c_fc.weight[0, 0] = float("inf")
    with pytest.raises(SaddlesError, match="not finite"):
        inspect(broken, reference=models[0], out=tmp_path / "out")
    stored = Status.parse(json.loads((tmp_path / "out" / "run.json").read_text())["status"])
    assert stored.ending == Ending.FAILED
    assert "not finite" in stored.reason
    with torch.no_grad():
        broken.transformer.h[0].attn.c_attn.weight[0, 0] = float("nan")
    with pytest.raises(SaddlesError, match=r"transformer\.h\.0\.attn of .* not finite"):
        inspect(broken, reference=models[0], modules=False)


def test_blocks_do_not_change_the_noise_floor(monkeypatch):
    from saddles.probe.weights.weight_change import spectrum_of, weight_change

    base = tiny("gpt2").bfloat16()
    start, now = open_weights(base), open_weights(trained(base))
    whole = {
        n: spectrum_of(weight_change(n, now, start)).noise_floor
        for n in ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight")
    }
    monkeypatch.setattr("saddles.probe.weights.weight_change.BLOCK", 100)
    for name, floor in whole.items():
        assert spectrum_of(weight_change(name, now, start)).noise_floor == pytest.approx(floor, rel=1e-6)
    assert dataclasses.is_dataclass(start)


def test_heads_are_read_where_no_configuration_says_how_many(tmp_path, monkeypatch):
    """Plain weights without config.json: by Python, by --heads, by --config, and by an adapter of one's own."""
    monkeypatch.chdir(tmp_path)
    start = {name: tensor.detach().clone() for name, tensor in small_models.gpt2().named_parameters()}
    moved = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in start.items()}
    for place, weights in (("start.safetensors", start), ("end.safetensors", moved)):
        save_file(weights, tmp_path / place)
    with pytest.raises(SaddlesError, match=r"number of heads is not known .* --heads 12 or --config FILE") as refused:
        inspect("end.safetensors", reference="start.safetensors", modules=False)
    assert "register" not in str(refused.value)
    tree: Any = inspect("end.safetensors", "start.safetensors", modules=False, config={"n_head": 4})
    assert tree["heads"].sizes["head"] == 4
    (tmp_path / "config.json").write_text('{"n_head": 4}')
    (tmp_path / "mine.py").write_text(
        "from saddles.probe import fused, register\n"
        "inner = fused('mine', 'c_attn.weight', 'c_proj.weight')\n"
        "register(lambda shapes, config, counts: inner(shapes, {'n_head': 4}, counts))\n"
    )
    monkeypatch.setattr("saddles.probe.layouts.adapters._registry", list(adapters()))
    words = ["inspect", "end.safetensors", "--reference", "start.safetensors", "--no-modules", "--out"]
    for at, more in enumerate((["--heads", "4"], ["--config", "config.json"], ["--adapter", "mine.py"])):
        result = CliRunner().invoke(app, [*words, f"out{at}", *more])
        assert result.exit_code == 0, result.output
        again: Any = saddles.load(tmp_path / f"out{at}" / "trajectory.zarr")
        np.testing.assert_array_equal(again["heads"]["stable_rank"].values, tree["heads"]["stable_rank"].values)


@pytest.mark.parametrize(
    ("option", "text", "sentence"),
    [
        ("--heads", "0", "`heads` must be at least 1; got 0."),
        ("--config", "[1]", "must hold a JSON object"),
        ("--config", "{", "must be a JSON file"),
        ("--adapter", "x = 1", "registers nothing"),
        ("--adapter", "1/0", "could not be run: ZeroDivisionError"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path, option, text, sentence):
    file = tmp_path / "given"
    file.write_text(text)
    result = CliRunner().invoke(app, ["inspect", "a", "b", option, text if option == "--heads" else str(file)])
    assert sentence in str(result.exception)


def test_each_side_of_an_encoder_decoder_has_its_own_count():
    """Cross-attention belongs to the decoder, whatever its name contains."""
    ends = ("q_proj", "k_proj", "v_proj", "out_proj")
    blocks = ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn")
    shapes = {f"{block}.{end}.weight": (24, 24) for block in blocks for end in ends}
    config = {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "num_attention_heads": 4}
    counts = {block[0].attention: len(block) for block in find_layout(shapes, config).layers().values()}
    assert counts == {blocks[0]: 4, blocks[1]: 2, blocks[2]: 2}


@pytest.mark.parametrize("script", ["nanoGPT", "Lightning"])
def test_what_training_scripts_write_beside_the_weights_is_used(tmp_path, script):
    """Head counts and steps are inside the file; the names carry the prefixes of torch.compile and of a module."""
    start = small_models.gpt2().state_dict()
    for step in (0, 250):
        weights = {name: tensor + 1e-3 * step * torch.randn_like(tensor) for name, tensor in start.items()}
        stored: dict[str, Any] = {"optimizer": {"state": {}}}
        if script == "nanoGPT":
            stored |= {"model": {f"_orig_mod.{name}": value for name, value in weights.items()}, "iter_num": step}
            stored |= {"model_args": {"n_head": 4, "n_layer": 2}, "config": {"batch_size": 12, "n_head": 99}}
        else:
            stored |= {"state_dict": {f"net.{name}": value for name, value in weights.items()}, "global_step": step}
            stored |= {"hyper_parameters": {"rate": 0.1, "model": {"n_head": 4}}}
        torch.save(stored, tmp_path / f"{'ab'[step > 0]}.{'pt' if script == 'nanoGPT' else 'ckpt'}")
    tree: Any = inspect(sorted(tmp_path.iterdir()), modules=False)
    assert tree["heads"]["step"].values.tolist() == [250]
    assert tree["heads"].sizes["head"] == 4


def test_one_pair_is_no_series_and_mixed_types_are_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = tiny("gpt2")
    base.save_pretrained("start")
    planted(base, 1).to(torch.bfloat16).save_pretrained("end")
    result = CliRunner().invoke(app, ["inspect", "end", "--reference", "start", "--no-modules", "--out", "out"])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "One checkpoint against" in page
    assert "head-rows" not in page
    assert "closer checkpoints" not in result.output
    tree: Any = saddles.load("out/trajectory.zarr")
    assert any("stored as float32" in note and "bfloat16" in note for note in json.loads(tree.attrs["notes"]))


def test_worker_processes_and_a_cluster_give_the_same_numbers(home, tmp_path):
    """Pieces on two processes, on Dask, and resumed by another engine than began."""
    from distributed import LocalCluster

    place, _ = home
    here: Any = inspect(place)
    there: Any = inspect(place, on="embedded", workers=2, out=tmp_path / "embedded")
    local: Any = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", processes=False)
    with local as cluster:
        dask: Any = inspect(place, on=cluster.scheduler_address)
    for one in (there, dask):
        for group in ("heads", "modules"):
            xr.testing.assert_identical(one[group].to_dataset(), here[group].to_dataset())
    cost = json.loads(there.attrs["cost"])
    assert cost["pieces"] == json.loads(here.attrs["cost"])["pieces"] == 2 + 2 * (2 + len(here["modules"]["module"]))
    assert cost["seconds"] > 0
    assert cost["peak_mib"] > 50


def test_work_that_another_process_began_is_resumed_on_workers(home, tmp_path, monkeypatch):
    place, _ = home
    honest, kept = inspection.Store.keep, []

    def stop(self, piece):
        if len(kept) == 9:
            raise KeyboardInterrupt
        kept.append(piece.name)
        honest(self, piece)

    monkeypatch.setattr(inspection.Store, "keep", stop)
    with pytest.raises(KeyboardInterrupt):
        inspect(place, out=tmp_path / "out", on="embedded", workers=1)
    fresh: list[str] = []
    monkeypatch.setattr(inspection.Store, "keep", lambda self, piece: fresh.append(piece.name) or honest(self, piece))
    tree: Any = inspect(place, out=tmp_path / "out", on="embedded", workers=1)
    assert not set(kept) & set(fresh)
    xr.testing.assert_allclose(tree["modules"].to_dataset(), inspect(place)["modules"].to_dataset())


def test_what_cannot_travel_and_errors_of_workers_are_one_sentence(home, tmp_path):
    place, models = home
    with pytest.raises(SaddlesError, match="cannot be sent to other processes"):
        inspect(models[20], reference=models[0], on="embedded", workers=1)
    with pytest.raises(SaddlesError, match="`on` must be 'embedded' or a scheduler's address"):
        inspect(place, on="cluster")
    with pytest.raises(SaddlesError, match="`workers` must be at least 1"):
        inspect(place, on="embedded", workers=0)
    broken = trained(models[0])
    with torch.no_grad():
        broken.transformer.h[1].mlp.c_fc.weight[0, 0] = float("inf")
    broken.save_pretrained(tmp_path / "broken")
    with pytest.raises(SaddlesError, match="not finite"):
        inspect(tmp_path / "broken", reference=place / "checkpoint-0", on="embedded", workers=1)


def test_the_cost_is_estimated_from_one_piece_of_each_shape(home, tmp_path, monkeypatch):
    place, _ = home
    seen: list[str] = []
    honest = pieces.made
    monkeypatch.setattr(pieces, "made", lambda piece, *more: seen.append(piece.shape) or honest(piece, *more))
    cost = inspection.inspection_cost(place)
    assert len(seen) == len(set(seen)) == len(cost.timed)
    assert cost.pieces == 2 + 2 * (2 + 10)
    assert cost.seconds == pytest.approx(sum(count * seconds for count, seconds in cost.timed.values()))
    result = CliRunner().invoke(app, ["inspect", str(place), "--plan", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "26 pieces" in result.output
    assert not (tmp_path / "out").exists()
