"""What a benchmark refuses; what it measures is no matter of tests."""

import runpy
from pathlib import Path

import pytest

main = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "versions.py"))["main"]


def test_a_folder_without_another_version_is_refused(tmp_path, monkeypatch):
    """It would be compared with itself."""
    monkeypatch.setenv("SADDLES_AGAINST", str(tmp_path))
    monkeypatch.setitem(main.__globals__, "_cost", lambda *_: (1.0, 1.0))
    with pytest.raises(SystemExit, match="must be a checkout with src/saddles in it"):
        main()
    (tmp_path / "src" / "saddles").mkdir(parents=True)
    main()
