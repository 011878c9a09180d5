"""Headline ranks in W&B (without a server) and MLflow (in a local folder), read back from what they wrote."""

import json
import struct
import warnings
from typing import Any

import pytest
from small_trainings import hugging_face, lightning_fit

from saddles import probe

LightningSaddles: Any = probe.LightningSaddles
SaddlesCallback: Any = probe.SaddlesCallback

NAMES = [f"saddles/{product}/{name}" for product in ("KQ", "VO") for name in ("stable_rank", "effective_rank")]
BLOCK, HEADER = 32768, 7


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    found = pytest.importorskip("wandb", reason="W&B is not installed: pip install wandb")
    places = dict.fromkeys(("DIR", "DATA_DIR", "CACHE_DIR", "CONFIG_DIR", "ARTIFACT_DIR"), str(tmp_path))
    for name, value in {"MODE": "offline", "SILENT": "true", **places}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield found
    put_away(found)


def put_away(wandb):
    """End the run, and the process that writes its file."""
    wandb.finish()
    wandb.teardown()


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return found


def recorded(result):
    """What a tracker must have got: means over all heads, at the steps of the measurements."""
    steps = result["heads"]["step"].values.tolist()
    assert steps == [4, 8, 10]
    found = {}
    for name in NAMES:
        _, product, rank = name.split("/")
        means = result["heads"][rank].sel(product=product).mean(("layer", "head")).values
        found[name] = pytest.approx(dict(zip(steps, means, strict=True)), rel=1e-12)
    return found


def records(file):
    """The records of a .wandb file: pieces in blocks, as in the log of LevelDB."""
    data, at, whole = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER])
        whole += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def logged_by_wandb(folder, names, clock, prefix=""):
    """Name -> step -> number, in the only run of a folder."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[import-not-found]

    (file,) = folder.rglob("run-*.wandb")
    found = {name: {} for name in names}
    for data in records(file):
        items = Record.FromString(data).history.item
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for name in names:
            if prefix + name in row:
                found[name][row[clock]] = row[prefix + name]
    return found


def logged_by_mlflow(mlflow, names):
    """Name -> step -> number, in the only run of the store."""
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return {name: {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)} for name in names}


def test_transformers_to_wandb(tmp_path, wandb):
    callback = SaddlesCallback(every=4)
    hugging_face(tmp_path, 10, [callback], ["wandb"])
    put_away(wandb)
    seen = logged_by_wandb(tmp_path, NAMES, "train/global_step", "train/")
    assert seen == recorded(callback.result)


def test_lightning_to_wandb(tmp_path, wandb):
    from lightning.pytorch.loggers import WandbLogger

    callback = LightningSaddles(every=4)
    lightning_fit(tmp_path, 10, callback, [WandbLogger(save_dir=tmp_path, offline=True)])
    put_away(wandb)
    seen = logged_by_wandb(tmp_path, NAMES, "trainer/global_step")
    assert seen == recorded(callback.result)


def test_transformers_to_mlflow(tmp_path, mlflow):
    callback = SaddlesCallback(every=4)
    hugging_face(tmp_path, 10, [callback], ["mlflow"])
    seen = logged_by_mlflow(mlflow, NAMES)
    assert seen == recorded(callback.result)


def test_lightning_to_mlflow(tmp_path, mlflow):
    from lightning.pytorch.loggers import MLFlowLogger

    callback = LightningSaddles(every=4)
    lightning_fit(tmp_path, 10, callback, [MLFlowLogger(tracking_uri=(tmp_path / "mlruns").as_uri())])
    seen = logged_by_mlflow(mlflow, NAMES)
    assert seen == recorded(callback.result)
