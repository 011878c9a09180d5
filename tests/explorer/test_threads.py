"""What the threads of the explorer share."""

import subprocess
import sys


def test_modules_that_several_threads_import_at_their_first_use_are_loaded_before():
    code = (
        "import sys; from saddles.explorer.serve import import_for_threads; before = 'dask.base' in sys.modules; "
        "import_for_threads(); print(before, 'dask.base' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True"]
