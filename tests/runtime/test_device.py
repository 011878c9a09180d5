"""Compiled programs that are kept between processes."""

import os
import subprocess
import sys

CODE = """
from saddles.runtime.device import keep_compiled_programs
keep_compiled_programs()
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(jax.jit(lambda x: 2 * x + 1)(20.5))
"""


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
