"""Compiled programs that are kept between processes."""

import os
import subprocess
import sys
import time
import warnings
from typing import Any

from saddles.core.engines.embedded import task_computer
from saddles.runtime import programs
from saddles.runtime.programs import DAY, environment_that_keeps_programs, forget_old_programs
from saddles.runtime.workers import Worker

CODE = """
from saddles.runtime.programs import keep_compiled_programs
keep_compiled_programs()
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(jax.jit(lambda x: 2 * x + 1)(20.5))
"""


FLOW = """
from saddles.runtime.programs import keep_compiled_programs
keep_compiled_programs()
import jax, logging
logging.getLogger("jax._src.compiler").setLevel(logging.DEBUG)
logging.basicConfig(format="%(message)s")
import saddles
from saddles.linear import Denoising, GradientFlow, TwoLayer
saddles.simulate(TwoLayer(20, 0.1), Denoising(5, 1), GradientFlow(), times=[0.0, 1.0])
"""


def test_programs_of_flows_are_kept(tmp_path):
    """They were not while diffrax called back to Python, and every command compiled them again."""
    environment = {name: value for name, value in os.environ.items() if name not in environment_that_keeps_programs()}
    told = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", FLOW], env=environment | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        told.append([line for line in done.stderr.splitlines() if "'jit__advance'" in line])
    assert "MISS" in told[0][0]
    assert told[1]
    assert all("cache hit" in line for line in told[1])


def test_a_program_that_is_half_written_is_compiled_again_without_a_word(tmp_path):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        command = [sys.executable, "-W", "error", "-c", CODE]
        found = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (found.returncode, found.stdout, found.stderr) == (0, "42.0\n", "")
        programs = [*tmp_path.glob("*-cache")]
        assert programs
        for program in programs:
            program.write_bytes(program.read_bytes()[:-20])


FULL = """
import errno
from jax._src.lru_cache import LRUCache


def put(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


LRUCache.put = put
"""


def test_a_cache_that_cannot_be_written_stops_nothing_and_says_nothing(tmp_path):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", CODE.replace("import jax\n", f"import jax\n{FULL}")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "42.0\n", "")


class _Asking:
    """In a worker: whether it speaks of a program that is half written, and what it knows of where they are."""

    def compute(self):
        with warnings.catch_warnings(record=True) as heard:
            warnings.warn("Error reading persistent compilation cache entry for 'jit_f'", UserWarning, stacklevel=1)
        return [len(heard), *(os.environ.get(name) for name in environment_that_keeps_programs())]


def test_workers_of_sweeps_keep_programs_without_a_word():
    worker = Worker(task_computer, None)
    asking: Any = _Asking()
    assert worker.call(asking) == [0, *environment_that_keeps_programs().values()]
    worker.close()


def test_programs_that_were_not_used_for_longest_go_first(tmp_path):
    folder = tmp_path / "jax"
    folder.mkdir()
    for age, name in enumerate(("new", "used", "old", "older", "oldest")):
        (folder / name).write_bytes(bytes(100))
        used = time.time() - age * DAY
        made = used if name == "old" else used - 100 * DAY  # the later of both counts
        os.utime(folder / name, (used, made))
    forget_old_programs(folder, limit=500)
    assert len([*folder.iterdir()]) == 5, "nothing is removed up to the limit"
    forget_old_programs(folder, limit=450)
    assert len([*folder.iterdir()]) == 5, "it is looked at once a day"
    before = time.time() - 2 * DAY
    os.utime(tmp_path / "jax.looked", (before, before))
    forget_old_programs(folder, limit=450)
    assert {file.name for file in folder.iterdir()} == {"new", "used"}


def test_a_folder_of_the_users_choice_is_theirs_to_empty(tmp_path, monkeypatch):
    emptied = []
    monkeypatch.setattr(programs, "forget_old_programs", emptied.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "mine"))
    programs.keep_compiled_programs()
    assert not emptied
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    programs.keep_compiled_programs()
    assert emptied == [tmp_path / "saddles" / "jax"]
