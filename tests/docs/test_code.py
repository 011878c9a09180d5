"""Every block of Python on a page runs and leaves what it says: numbers, words, files.

A page may take things for granted that its reader has, such as a model: it says so in a comment before the block,
`<!-- given: model, base/ -->`, and here they are made, small. `make docs` runs them; a comment `<!-- slow -->` leaves
a block to `make test-slow`.
"""

import ast
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from doc_pages import ROOT, Block, blocks, pages

BLOCKS = [block for page in pages() for block in blocks(page) if block.language == "python"]
CASES = [
    pytest.param(block, id=str(block), marks=pytest.mark.slow if block.slow else pytest.mark.docs) for block in BLOCKS
]


def _model() -> Any:
    import small_models
    import torch

    torch.manual_seed(0)
    return small_models.gpt2().train()


def _batches(model: Any, count: int = 60) -> list[Any]:
    import small_models
    import torch

    words = torch.randint(0, small_models.WORDS, (count, 4, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": batch, "labels": batch} for batch in words]


def _optimizer(model: Any) -> Any:
    import torch

    return torch.optim.Adam(model.parameters(), lr=1e-3)


def _arguments(model: Any) -> Any:
    import transformers

    return transformers.TrainingArguments("out", max_steps=60, report_to=[], use_cpu=True, disable_tqdm=True)


def _sentences(model: Any) -> Any:
    return [{key: words[0] for key, words in batch.items()} for batch in _batches(model)]


def _loader(model: Any) -> Any:
    import torch

    return torch.utils.data.DataLoader(_sentences(model), batch_size=4)


def _module(model: Any) -> Any:
    import lightning
    import torch

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    return Task()


def _adapted(model: Any) -> Any:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))


def _folder(name: str, shift: float) -> Callable[[Any], None]:
    def make(model: Any) -> None:
        import small_models

        small_models.nudge(model, shift).save_pretrained(name)

    return make


def _series(model: Any) -> None:
    for step in (500, 1000):
        _folder(f"output/checkpoint-{step}", step / 1e4)(model)


def _phase(model: Any) -> None:
    import saddles

    grid = {"gamma_w": [1.5, 2.0], "gamma_variance": [-2.0, -1.5]}
    saddles.sweep("linear/figure-1", grid, size="tiny", out="phase", on="serial")


GIVEN: dict[str, Callable[[Any], Any]] = {
    "model": lambda model: model,
    "adapted": _adapted,
    "reference": copy.deepcopy,
    "batches": _batches,
    "optimizer": _optimizer,
    "arguments": _arguments,
    "sentences": _sentences,
    "module": _module,
    "loader": _loader,
    "base/": _folder("base", 0.0),
    "tuned/": _folder("tuned", 0.1),
    "output/": _series,
    "phase/": _phase,
    "docs/": lambda model: Path("docs").symlink_to(ROOT / "docs"),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("block", CASES)
def test_block_runs(block: Block, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("saddles.probe.layouts.adapters._registry", list(_registry()))
    mpl.use("agg")
    model = _model() if block.given else None
    scope: dict[str, Any] = {"__name__": "page"}
    scope |= {given: GIVEN[given](model) for given in block.given}
    shown = _run(block, scope)
    plt.close("all")
    code = ast.parse(block.code)
    if any(isinstance(node, ast.Name) and node.id == "print" for node in ast.walk(code)):
        assert capsys.readouterr().out.strip(), "it prints, but nothing came"
    assert [name for name in _files(code) if not Path(name).exists()] == []
    made = {node.id: scope[node.id] for node in ast.walk(code) if isinstance(node, ast.Name) and node.id in scope}
    for name, value in {**made, "what is shown last": shown}.items():
        if isinstance(value, xr.DataArray | xr.Dataset | xr.DataTree):
            assert _has_numbers(value), f"{name} holds no finite number"


def _run(block: Block, scope: dict[str, Any]) -> Any:
    """Run a block; what its last line is worth, as a notebook would show it."""
    code = ast.parse(block.code)
    last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
    exec(compile(code, str(block), "exec"), scope)
    return eval(compile(ast.Expression(last.value), str(block), "eval"), scope) if isinstance(last, ast.Expr) else None


def _files(code: ast.Module) -> list[str]:
    """What a block says that it writes: `out=` and `savefig`."""
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    named = [key.value for call in calls for key in call.keywords if key.arg == "out"]
    drawn = [call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "savefig"]
    return [str(node.value) for node in (*named, *drawn) if isinstance(node, ast.Constant)]


def _has_numbers(value: Any) -> bool:
    if isinstance(value, xr.DataTree):
        return any(_has_numbers(leaf.to_dataset()) for leaf in value.leaves)
    arrays = value.data_vars.values() if isinstance(value, xr.Dataset) else [value]
    return any(np.isfinite(array).any() for array in arrays if array.dtype.kind in "fiub")


def _registry() -> Any:
    from saddles.probe.layouts import adapters

    return adapters._registry


def test_there_are_blocks() -> None:
    assert {block.page.name for block in BLOCKS} >= {"README.md", "linear.md", "probe.md", "lora.md"}
