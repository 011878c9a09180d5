"""Stories: five steps in every room, whose settings the rooms accept and the static site has computed."""

from dataclasses import replace

import pytest
from docutils.utils.math.latex2mathml import tex2mathml

from saddles.explorer.grids import GRIDS
from saddles.explorer.site import PAGES
from saddles.explorer.stories import rooms, stories, story_html
from saddles.explorer.view import read, settings

STEPS = [(page, step) for page in PAGES for step in stories()[page.name]]


def test_every_room_has_a_story_of_five_steps_and_a_paper():
    assert set(stories()) == set(GRIDS) == {page.name for page in PAGES}
    for name, story in stories().items():
        assert len(story) == 5
        assert any(step.play for step in story)
        assert rooms()[name].address.startswith("https://arxiv.org/abs/")
        assert rooms()[name].sentence.endswith(".")


@pytest.mark.parametrize(("page", "step"), STEPS, ids=lambda part: getattr(part, "title", getattr(part, "name", "")))
def test_a_step_sets_a_view_that_both_kinds_of_room_have(page, step):
    view = replace(page.view(), **step.settings)
    page.check(view)
    for name, value in step.settings.items():
        assert read(page.view, name, value) == value
        assert settings(page.view)[name].still or value in GRIDS[page.name].values[name]
    assert all(text.endswith(".") for text in (step.do, step.notice, step.why))
    assert "<math" in tex2mathml(step.equation, as_block=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_defaults_are_one_of_the_views_computed_beforehand(page):
    grid = GRIDS[page.name]
    for name, values in grid.values.items():
        assert getattr(page.view(), name) in values
        for value in values:
            assert read(page.view, name, value) == value
    for _, view in grid.views(page):
        page.check(view)


def test_a_story_as_a_page_shows_it():
    made = story_html(stories()["diagonal"], "diagonal", "../")
    assert made.count("<article") == 5
    assert 'href="https://arxiv.org/abs/2306.07042"' in made
    assert 'href="../diagonal.html"' in made
    assert "docs/diagonal.md" in story_html(stories()["diagonal"], "diagonal")
