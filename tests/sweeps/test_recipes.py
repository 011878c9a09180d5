"""The recipes for SLURM and Kubernetes: parsed, and carried out on this machine with stubs for what it lacks."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grid_experiment
import pytest
import yaml

from saddles.core.experiment import find
from saddles.sweeps.api import read_sweep
from saddles.sweeps.plan import plan_from_words

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
SBATCH = RECIPES / "slurm" / "sweep.sbatch"
DOCUMENTS = list(yaml.safe_load_all((RECIPES / "kubernetes" / "sweep.yaml").read_text()))

SRUN = """#!/usr/bin/env bash
# As many copies as tasks; options of srun come before the command.
while [[ "$1" == --* ]]; do echo "srun option: $1" >> "$STUBS/said"; shift; done
echo "srun: $*" >> "$STUBS/said"
trap 'kill $(jobs -p)' TERM
for _ in 1 2; do "$@" & done
wait
"""
SADDLES = """#!{python}
import grid_experiment
from saddles.core.experiment import register
from saddles.cli import main
register(grid_experiment.ROW)
main()
"""


@pytest.fixture
def stubs(tmp_path, monkeypatch):
    """A machine with srun, dask and saddles on its path."""
    home = tmp_path / "bin"
    home.mkdir()
    programs = {
        "srun": SRUN,
        "dask": f'#!/usr/bin/env bash\nexec {shlex.quote(sys.executable)} -m dask "$@"\n',
        "saddles": SADDLES.format(python=sys.executable),
    }
    for name, text in programs.items():
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    with socket.socket() as place:
        place.bind(("", 0))
        port = place.getsockname()[1]
    return {
        **os.environ, "PATH": f"{home}{os.pathsep}{os.environ['PATH']}", "STUBS": str(home), "SADDLES_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "SLURM_JOB_ID": "4711",
    }  # fmt: skip


def test_the_batch_script_is_bash_with_slurm_options():
    subprocess.run(["bash", "-n", SBATCH], check=True)
    lines = SBATCH.read_text().splitlines()
    options = [line.split()[1] for line in lines if line.startswith("#SBATCH")]
    assert lines[0] == "#!/usr/bin/env bash"
    assert {"--ntasks=8", "--cpus-per-task=1", "--time=04:00:00", "--signal=B:TERM@120"} <= set(options)
    first = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(k < first for k, line in enumerate(lines) if line.startswith("#SBATCH")), "SLURM stops at a command"


@pytest.mark.slow
def test_the_batch_script_runs_a_sweep_and_goes_on_after_its_time_is_up(stubs, tmp_path):
    words = ["toy/grid", "--grid", "rate=1:24:24", "--set", "wait=0.2"]
    file = (tmp_path / "err").open("w")
    began = subprocess.Popen(["bash", SBATCH, *words], env=stubs, cwd=tmp_path, stderr=file, stdout=file)
    table = tmp_path / "sweep-4711" / "cells.jsonl"
    deadline = time.monotonic() + 90
    while not table.exists() or len(table.read_text().splitlines()) < 3:
        assert time.monotonic() < deadline
        assert began.poll() is None
        time.sleep(0.05)
    began.send_signal(signal.SIGTERM)
    assert began.wait(60) == 130
    file.close()
    assert "--resume sweep-4711" in (tmp_path / "err").read_text()
    done = len(table.read_text().splitlines())
    assert 3 <= done < 24
    with (tmp_path / "again").open("w") as said:
        again = subprocess.run(["bash", SBATCH, "--resume", "sweep-4711"], env=stubs, cwd=tmp_path, stdout=said,
                               stderr=said, timeout=120)  # fmt: skip
    assert again.returncode == 0, (tmp_path / "again").read_text()[-2000:]
    made = read_sweep(tmp_path / "sweep-4711")
    assert (made.missing, made.failed) == (0, [])
    assert len(table.read_text().splitlines()) == 24, "nothing twice"
    said = (tmp_path / "bin" / "said").read_text()
    assert "dask worker tcp://" in said
    assert "GPU" not in said


def by_kind(kind, name):
    (found,) = [d for d in DOCUMENTS if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def pods():
    return {
        d["metadata"]["name"]: d["spec"]["template"]["spec"] for d in DOCUMENTS if d["kind"] in ("Deployment", "Job")
    }


def test_the_documents_have_what_kubernetes_asks_for():
    versions = {"Service": "v1", "Deployment": "apps/v1", "Job": "batch/v1", "PersistentVolumeClaim": "v1"}
    assert {d["kind"]: d["apiVersion"] for d in DOCUMENTS} == versions
    for document in DOCUMENTS:
        if document["kind"] == "Deployment":
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"] == labels
    for pod in pods().values():
        for container in pod["containers"]:
            assert {"name", "image", "command", "resources"} <= set(container)
            assert container["image"] == pods()["saddles-worker"]["containers"][0]["image"], "one version for all"
    assert pods()["saddles-sweep"]["restartPolicy"] == "OnFailure"


def test_the_documents_fit_each_other():
    service = by_kind("Service", "saddles-scheduler")
    labels = by_kind("Deployment", "saddles-scheduler")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    address = f"tcp://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    commands = {name: pod["containers"][0]["command"] for name, pod in pods().items()}
    assert commands["saddles-worker"][2] == address
    assert commands["saddles-sweep"][-2:] == ["--on", address]
    assert commands["saddles-scheduler"][3] == str(service["spec"]["ports"][0]["targetPort"])
    volume = pods()["saddles-sweep"]["volumes"][0]
    assert by_kind("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    mount = pods()["saddles-sweep"]["containers"][0]["volumeMounts"][0]
    assert mount["name"] == volume["name"]
    assert pods()["saddles-sweep"]["containers"][0]["workingDir"] == mount["mountPath"]


def test_the_commands_of_the_documents_exist():
    from distributed.cli.dask_scheduler import main as scheduler
    from distributed.cli.dask_worker import main as worker

    for name, program in (("saddles-scheduler", scheduler), ("saddles-worker", worker)):
        command = pods()[name]["containers"][0]["command"]
        program.make_context("dask", list(command[2:]))
    words = pods()["saddles-sweep"]["containers"][0]["command"]
    assert words[:2] == ["saddles", "sweep"]
    grids = [words[k + 1] for k, word in enumerate(words) if word == "--grid"]
    plan = plan_from_words(words[2], grids, False, None, None, {}, None)
    assert plan is not None
    assert len(plan.grid.cells()) == 100
    assert find(words[2]).name == "linear/figure-1"
    assert grid_experiment.ROW.name not in words
