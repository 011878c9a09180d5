"""The page of all commands is what the commands say."""

import importlib.util

from doc_pages import ROOT


def test_the_page_of_commands_is_up_to_date():
    spec = importlib.util.spec_from_file_location("list_commands", ROOT / "docs" / "list_commands.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text("utf-8") == module.page(), "run python docs/list_commands.py"
    assert "## `saddles lora plan`" in module.page()
