"""The order of the rooms, and how light `import saddles` is."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "saddles"
LABS = {"linear", "diagonal", "concepts", "margin", "incontext", "transformers", "diffusion"}
ORDER = [
    {"errors", "protocols"}, {"runtime"}, {"core"}, {"solvers"}, {"measures"}, {"figures"}, {"probe"}, {"training"},
    LABS, {"networks"}, {"studies", "sweeps"}, {"report"}, {"explorer"}, {"cli"},
]  # fmt: skip
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}


def _room(name: str) -> str:
    return name.split(".")[1] if name.startswith("saddles.") else ""


def _imports(file: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            found += [node.module or ""]
    return found


def _home(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


FILES = [file for file in sorted(SOURCE.rglob("*.py")) if file.parent != SOURCE]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_imports_go_one_way(file):
    home = _home(file)
    assert home in RANK, f"{home} has no place in the order of the rooms"
    for name in _imports(file):
        room = _room(name)
        if not room or room == home:
            continue
        allowed = RANK[room] < RANK[home]
        assert allowed, f"{file.name} of {home} imports {name}"


@pytest.mark.parametrize(
    "lab", sorted(p.name for p in SOURCE.iterdir() if p.name in LABS | {"networks"} and (p / "theory.py").exists())
)
def test_theory_and_simulation_share_nothing(lab):
    assert f"saddles.{lab}.simulate" not in _imports(SOURCE / lab / "theory.py")
    assert f"saddles.{lab}.theory" not in _imports(SOURCE / lab / "simulate.py")


def test_no_module_imports_both_halves():
    for file in FILES:
        tops = {name.split(".")[0] for name in _imports(file)}
        assert not {"jax", "torch"} <= tops, file


def test_import_is_light():
    """Under 0.3 processor seconds by the best of five, and nothing heavy comes along."""
    code = (
        "import time, sys; began = time.process_time(); import saddles; spent = time.process_time() - began; "
        "heavy = {'jax', 'torch', 'xarray', 'numpy', 'matplotlib', 'pandas', 'diffrax'} & set(sys.modules); "
        "print(spent, *heavy)"
    )
    rows = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    words = [row.stdout.split() for row in rows]
    assert all(len(row) == 1 for row in words), words[0]
    assert min(float(row[0]) for row in words) < 0.3


def test_help_needs_no_numbers():
    """`saddles --help` answers before anything that computes is loaded."""
    code = (
        "import sys; import saddles.cli; print(*{'jax', 'torch', 'xarray', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_files_are_short(file):
    assert len(file.read_text("utf-8").splitlines()) <= 400


def test_lists_of_names_need_no_jax():
    code = (
        "import sys; from saddles.core.experiment import registry; registry(); "
        "print(*{'jax', 'scipy.optimize', 'scipy.special', 'scipy.stats'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_descent_needs_no_solver_of_flows():
    """`diffrax` takes as long to import as JAX itself."""
    code = (
        "import sys; from saddles.linear import Denoising, GradientDescent, SelfConsistent, TwoLayer, cell; "
        "import saddles.linear.slots; print('diffrax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_lists_of_the_probe_need_no_torch():
    code = (
        "import sys; from saddles.probe import find_layout, fused, register; from saddles import measures;"
        "find_layout({'a.qkv.weight': (72, 24), 'a.proj.weight': (24, 24)}, {'num_heads': 4}); measures.spectrum;"
        "print({'torch', 'transformers', 'lightning', 'jax'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def _without(packages: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python in which these packages cannot be imported."""
    block = f"""
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True)


def test_probe_works_without_jax():
    code = (
        "import torch, saddles, saddles.cli; from saddles import probe; from saddles.probe import find_layout, spectra;"
        "block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True);"
        "heads = probe.heads(block); print(len(heads.heads)); import saddles.sweeps.api, saddles.probe.inspection;"
        "import saddles.probe.lora.plan, saddles.transformers.training"
    )
    done = _without(["jax", "jaxlib", "diffrax", "equinox", "cvxpy"], code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_labs_work_without_torch():
    code = (
        "import saddles; from saddles import linear;"
        "run = saddles.simulate(linear.TwoLayer(9, 0.1), linear.Denoising(4, 1), linear.GradientDescent(0.1, 3));"
        "print(run.sizes['time'])"
    )
    done = _without(["torch", "transformers", "peft", "safetensors", "accelerate"], code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4"


def test_a_missing_half_names_its_extra():
    told = _without(["jax"], "from saddles import linear; linear.TwoLayer; linear.GradientFlow")
    assert "pip install 'saddles[labs]'" in told.stderr
    told = _without(["torch"], "from saddles import probe; probe.SaddlesCallback; probe.recorded('x')")
    assert told.returncode != 0
