"""The collector of objects in circles, in processes of commands and elsewhere."""

import subprocess
import sys

CODE = """
import atexit, gc, sys
# What is registered later runs before this.
atexit.register(lambda: print("frozen" if gc.get_freeze_count() else "free"))
if sys.argv[1] == "command":
    from saddles.runtime.collector import collect_seldom
    collect_seldom()
import saddles
print(gc.get_threshold()[0])
"""


def told(how: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True).stdout.split()


def test_a_command_collects_seldom_and_not_at_its_end():
    assert told("command") == ["10000", "frozen"]


def test_a_program_of_the_user_collects_as_it_did():
    plain = subprocess.run(
        [sys.executable, "-c", "import gc; print(gc.get_threshold()[0])"], capture_output=True, text=True, check=True
    )
    assert told("import") == [plain.stdout.strip(), "free"]


def test_the_command_asks_for_it():
    code = "import gc, sys; from saddles.cli import main; sys.argv = ['saddles', '--version']\n"
    code += "try: main()\nexcept SystemExit: print(gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "10000"
