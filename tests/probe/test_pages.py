"""Growth of ranks as a measure, figures, the page, and the commands of the probe."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import xarray as xr
from planted import planted, tiny, trained

import saddles
from saddles import cli
from saddles.core.status import Ending
from saddles.errors import SaddlesError
from saddles.figures import probe as figures
from saddles.measures import rank_growth
from saddles.report.inspection import growth_sentences


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Steps 0 to 3 of GPT-2, one planted rank more at each."""
    place = tmp_path_factory.mktemp("series")
    model = tiny("gpt2")
    for step in range(4):
        model.save_pretrained(place / "run" / f"checkpoint-{step}")
        model = planted(model, rank=1, size=1.0, bias=0.0, seed=step + 1)
    return place


@pytest.fixture(scope="module")
def tree(home):
    return saddles.probe.inspect(home / "run")


def _heads(values, floor=0.0) -> xr.Dataset:
    array = np.asarray(values, dtype=float)
    return xr.Dataset(
        {"singular_value": (("time", "index"), array), "noise_floor": ("time", np.full(len(array), floor))},
        coords={"time": np.arange(len(array))},
    )


def test_ranks_are_counted_one_by_one():
    grown = rank_growth(_heads([[1, 0, 0], [4, 2, 0], [10, 6, 3], [10, 6, 0.5]]))
    assert grown["active"].values.tolist() == [0, 2, 3, 2]
    assert grown["gain"].values.tolist() == [0, 2, 1, -1]
    assert (int(grown["rises"]), float(grown["single"]), int(grown["largest_gain"])) == (2, 0.5, 2)
    assert float(grown["falls"]) == pytest.approx(1 / 3)


def test_rounding_is_no_rank():
    values = [[0.5, 0.4, 0.3], [1.0, 0.5, 0.4]]
    assert rank_growth(_heads(values))["active"].values.tolist() == [3, 3]
    assert rank_growth(_heads(values, floor=0.45))["active"].values.tolist() == [1, 2]
    still = rank_growth(_heads(np.zeros((2, 3))))
    assert int(still["rises"]) == 0
    assert np.isnan(float(still["single"]))


def test_rows_without_spectra_are_no_falls():
    """Recordings may keep spectra now and then, and a layer may have fewer heads than another."""
    gap = [np.nan] * 3
    grown = rank_growth(_heads([gap, [4, 2, 0], gap, gap, [10, 6, 3], gap]))
    np.testing.assert_array_equal(grown["active"], [np.nan, 2, np.nan, np.nan, 3, np.nan])
    np.testing.assert_array_equal(grown["gain"], [np.nan, 2, np.nan, np.nan, 1, np.nan])
    assert (int(grown["rises"]), float(grown["single"]), float(grown["falls"])) == (2, 0.5, 0.0)
    whole = _heads([[4, 2, 0], [10, 6, 3]])
    two = xr.concat([whole, whole.where(False)], "head").transpose("time", "head", "index")
    assert growth_sentences(_as_recording(two))[0].count("2 of 2 head-rows") == 1
    assert growth_sentences(_as_recording(two.where(False)))[0] == "KQ: no row has spectra."


def _as_recording(heads):
    return xr.DataTree.from_dict({"heads": heads.expand_dims(product=["KQ"]).transpose("time", ..., "index")})


def test_growth_refuses_what_it_cannot_count():
    with pytest.raises(SaddlesError, match="time, …, index"):
        rank_growth(_heads(np.ones((2, 3))).transpose("index", "time"))
    with pytest.raises(SaddlesError, match="between 0 and 1"):
        rank_growth(_heads(np.ones((2, 3))), share=2.0)


def test_planted_ranks_grow_one_a_step_in_every_matrix(tree):
    """Each checkpoint adds one equal singular value to each linear module: the measure must find one a row."""
    modules = tree["modules"].to_dataset()
    linear = [name for name in modules["module"].values if ".h." in name]
    grown = rank_growth(modules.sel(module=linear))
    assert grown["active"].values.tolist() == [[rank] * len(linear) for rank in (1, 2, 3)]
    assert float(grown["single"]) == 1.0


@pytest.mark.parametrize(
    "draw",
    [
        figures.stable_rank,
        figures.normalised_spectra,
        figures.singular_values,
        figures.heads_that_moved,
        figures.matrices,
    ],
)
def test_figures_have_labels_and_survive_one_row(draw, tree):
    one = xr.DataTree.from_dict({name: tree[name].to_dataset().isel(time=[0]) for name in ("heads", "modules")})
    for result in (tree, one):
        drawing = draw(result)
        drawing.canvas.draw()
        seen = [axis for axis in drawing.axes if axis.get_visible()]
        assert any(axis.get_xlabel() for axis in seen)
        assert any(axis.get_ylabel() or axis.get_yticklabels() for axis in seen)


def test_the_mean_and_the_spread_are_those_of_the_heads(tree):
    axis = figures.stable_rank(tree).axes[0]
    drawn = axis.lines[0].get_ydata()
    wanted = tree["heads"]["stable_rank"].sel(layer=0, product="KQ")
    np.testing.assert_allclose(np.asarray(drawn, dtype=float), wanted.mean("head"))
    edges = np.asarray(axis.collections[0].get_paths()[0].vertices)[:, 1]
    assert edges.max() == pytest.approx(float((wanted.mean("head") + wanted.std("head")).max()))


def test_no_words_lie_on_the_curves_of_stable_ranks(tree):
    axis = figures.stable_rank(tree).axes[0]
    assert not axis.texts
    start = tree["heads"]["initial_stable_rank"].sel(layer=0).mean("head")
    words = ", ".join(f"{product} {float(start.sel(product=product)):.1f}" for product in ("KQ", "VO"))
    assert axis.get_title("right") == f"initial: {words}"


def test_ranks_by_scale_shows_the_end_of_each_run(tree):
    axis = figures.ranks_by_scale({1.0: tree, 0.1: tree.isel(time=[0])}, layers=(0, 1)).axes[0]
    ends = [
        float(t["heads"]["stable_rank"].isel(time=-1).sel(layer=0, product="KQ").mean())
        for t in (tree.isel(time=[0]), tree)
    ]
    assert [bar.get_height() for bar in axis.containers[1]] == pytest.approx(ends)
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.1", "1"]


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["saddles", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        spoken = capsys.readouterr()
        return int(left.value.code or 0), spoken.out, spoken.err

    return call


def test_inspect_writes_one_page_and_is_not_repeated(command, home, tmp_path, monkeypatch):
    code, _, err = command("inspect", home / "run", "--only", "c_fc")
    assert code == 0, err
    (folder,) = (tmp_path / "runs" / "inspect").iterdir()
    page = (folder / "report.html").read_text()
    assert page.count("<img ") == page.count('alt="') == 5
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    assert "One rank at a time?" in page
    assert {f"{name}.{end}" for name in ("stable_rank", "spectra", "heads") for end in ("png", "svg")} <= {
        file.name for file in folder.iterdir()
    }
    assert saddles.load(folder)["heads"]["step"].values.tolist() == [1, 2, 3]
    monkeypatch.setattr("saddles.probe.inspection.Work.carry_out", lambda self: pytest.fail("repeated"))
    monkeypatch.setattr("saddles.report.inspection.write_inspection", lambda tree, folder: folder / "report.html")
    assert command("inspect", home / "run", "--only", "c_fc")[0] == 0


@pytest.mark.parametrize("inside", [".", "saddles"], ids=["its folder", "the folder of a Trainer"])
def test_a_recording_has_the_page_of_an_inspection(command, tmp_path, inside):
    model = tiny("gpt2")
    with saddles.probe.record(model, every=1, out=tmp_path / "rec" / inside) as run:
        for seed in (1, 2):
            model.load_state_dict(planted(model, rank=1, size=1.0, bias=0.0, seed=seed).state_dict())
            run.step()
    code, out, _ = command("report", str(tmp_path / "rec"))
    assert code == 0
    page = (tmp_path / "rec" / inside / "report.html").read_text("utf-8")
    assert "Stable rank of the change" in page
    assert out.splitlines()[-1].endswith("report.html")
    assert run.result.plot().axes[0].get_title(loc="left") == "layer 0"
    saddles.save(saddles.trajectory({"loss": [1.0, 0.5]}, [0.0, 1.0]), tmp_path / "plain.zarr")
    code, _, err = command("report", str(tmp_path / "plain.zarr"))
    assert code == 2
    assert "holds no recording of heads" in err


def test_a_recording_with_few_spectra_has_whole_curves(tmp_path):
    model = tiny("gpt2")
    with saddles.probe.record(model, every=1, spectra=3) as run:
        for seed in range(7):
            model.load_state_dict(planted(model, rank=1, size=1.0, bias=0.0, seed=seed).state_dict())
            run.step()
    left = figures.singular_values(run.result).axes[0]
    np.testing.assert_array_equal(left.get_lines()[0].get_xdata(), [3, 6, 7])
    assert figures.normalised_spectra(run.result).axes[0].get_legend_handles_labels()[1] == [
        "initial product",
        *(f"change, step {step}" for step in (3, 6, 7)),
        "rounding, last step",
    ]


def test_a_recorded_adapter_has_a_page_with_its_ranks(command, tmp_path):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny("llama"), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with saddles.probe.record(model, every=1, out=tmp_path / "rec") as run:
        for _ in range(2):
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.data.normal_()
            run.step()
    code, _, err = command("report", str(tmp_path / "rec"))
    assert code == 0, err
    page = (tmp_path / "rec" / "report.html").read_text("utf-8")
    assert run.result.attrs["suggestion"].partition(" (")[0] in page
    assert '<th scope="col" class="number">rank used</th>' in page
    assert (tmp_path / "rec" / "used_ranks.png").is_file()


@pytest.mark.parametrize("which", ["layers.0.self_attn.q_proj", "layers"])
def test_an_adapter_that_became_nan_ends_its_recording_and_has_a_page(command, tmp_path, which):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny("llama"), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with saddles.probe.record(model, every=1, out=tmp_path / "rec") as run:
        for size in (1.0, 2.0, np.nan):
            for name, parameter in model.named_parameters():
                if "lora_B" in name and (which in name or size == 1.0):
                    parameter.data[:2] = size
            run.step()
    words = "4 of 4" if which == "layers" else "at most 1 used"
    assert words in run.result.attrs["suggestion"]
    code, _, err = command("report", str(tmp_path / "rec"))
    assert code == 0, err


def test_matrices_that_did_not_move_are_drawn(tree):
    still = tree["modules"].to_dataset().map(lambda values: values * 0, keep_attrs=True)
    figures.matrices(xr.DataTree.from_dict({"modules": still})).canvas.draw()
    with pytest.raises(SaddlesError, match="NaN throughout"):
        figures.matrices(xr.DataTree.from_dict({"modules": still.where(False)}))


def test_plan_and_extract(command, home, tmp_path):
    base, tuned = home / "run" / "checkpoint-0", home / "run" / "checkpoint-2"
    code, out, _ = command("lora", "plan", base, tuned, "--energy", "0.99", "--out", "plan.json", "--figure", "curve")
    assert code == 0
    assert out.startswith("Rank 2 everywhere carries 100 % of what LoRA can carry")
    assert "carry 100.00 % of all" in out
    assert (tmp_path / "curve.svg").is_file()
    facts = json.loads((tmp_path / "plan.json").read_text())
    assert {row["rank"] for row in facts["modules"]} == {2}
    code, out, _ = command("lora", "extract", base, tuned, "--plan", "plan.json", "--out", "adapter")
    assert code == 0
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    code, out, _ = command("lora", "extract", base, tuned, "--budget", "3000")
    assert code == 0
    assert (tmp_path / "runs" / "lora" / "checkpoint-2" / "adapter_config.json").is_file()
    code, out, _ = command("lora", "extract", base, tuned, "--for", "vllm", "--out", "served")
    assert code == 0
    assert "rank 2" in out
    assert "for vllm" in out
    assert "--max-lora-rank 8" in out
    assert "loaded back through PEFT into GPT2LMHeadModel" in out
    trained(tiny("gpt2")).save_pretrained(tmp_path / "all")
    code, out, _ = command("lora", "plan", base, "all")
    assert code == 0
    assert "not carried, an embedding: ‖Δ‖" in out
    assert "in 2 tensors (transformer.wpe.weight, transformer.wte.weight)" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["inspect", "nowhere"], "does not exist"),
        (["inspect", "{run}/checkpoint-1"], "A change needs two"),
        (["inspect", "{run}", "--out", "taken"], "already exists"),
        (["inspect", "{run}", "--only", "("], "regular expression"),
        (["inspect", "trap.pt", "--reference", "{run}/checkpoint-0"], "wants to run code"),
        (["lora", "plan", "{run}/checkpoint-0", "{run}/checkpoint-0"], "differs"),
        (["lora", "plan", "{run}/checkpoint-0", "{run}/checkpoint-1", "--energy", "2"], "above 0 and at most 1"),
        (["lora", "plan", "{run}/checkpoint-0", "{run}/checkpoint-1", "--out", "taken/file"], "already exists"),
        (["lora", "extract", "{run}/checkpoint-0", "{run}/checkpoint-1", "--out", "taken"], "already exists"),
        (["lora", "extract", "{run}/checkpoint-0", "{run}/checkpoint-1", "--plan", "taken/file"], "plan"),
        (
            ["lora", "extract", "{run}/checkpoint-0", "{run}/checkpoint-1", "--plan", "x", "--budget", "9"],
            "without --energy",
        ),
    ],
    ids=lambda words: " ".join(words).replace("{run}/", "") if isinstance(words, list) else "",
)
def test_bad_input_gets_one_sentence_and_code_2(command, home, tmp_path, words, expected):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    torch.save({"weight": torch.nn.Linear(2, 2)}, tmp_path / "trap.pt")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = command(*(word.replace("{run}", str(home / "run")) for word in words))
    assert code == 2
    assert expected in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken" / "file").read_text() == "mine"


def test_ctrl_c_keeps_pieces_and_tells_how_to_go_on(home, tmp_path):
    """A real process and a real signal: exit code 130, a valid partial result, the command that goes on."""
    slow = (
        "import sys, time; from saddles.probe import inspection; honest = inspection._module; "
        "inspection._module = lambda *a, **k: (time.sleep(0.2), honest(*a, **k))[1]; "
        "sys.argv = ['saddles', 'inspect', sys.argv[1], '--out', 'here']; from saddles.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow, str(home / "run")],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    parts, deadline = tmp_path / "here" / "parts", time.monotonic() + 120
    while time.monotonic() < deadline and not (parts / "1-module-0.npz").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "saddles inspect" in err
    assert "--out here" in err
    assert json.loads((tmp_path / "here" / "run.json").read_text())["status"] == str(Ending.INTERRUPTED)
    assert 1 <= saddles.load(tmp_path / "here")["heads"].sizes["time"] < 3
