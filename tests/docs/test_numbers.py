"""Measured numbers on the pages come from stored results, by reference."""

import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import xarray as xr
from doc_pages import ROOT, name, pages
from measured import RESULTS, Passage, agrees, passages, record, stored

import saddles
from saddles.core.claim import check
from saddles.core.experiment import registry

derive = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "derive.py")))
collect = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "collect.py")))

PAGES = [page for page in pages() if passages(page)]
FILES = {file.name: json.loads(file.read_text("utf-8"))["records"] for file in sorted(RESULTS.glob("*.json"))}
STORES = {Path(name).stem for name in json.loads((ROOT / "docs" / "stores.json").read_text("utf-8"))}
PLACES = [f"{file}#{key}" for file, records in FILES.items() for key in records]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_measured_number_is_stored(page):
    for passage in passages(page):
        numbers = () if passage.settings else passage.numbers()
        if not numbers:
            continue
        where = f"{name(page)}:{passage.line} ({passage.text[:60]}…)"
        assert passage.records, f"{where}: {numbers} refer to no stored result, nor are they marked as settings"
        known = tuple(number for place in passage.records for number in stored(place))
        unknown = [word for word in numbers if not agrees(word, known)]
        assert not unknown, f"{where}: {unknown} are not in {passage.records}"


@pytest.mark.parametrize("place", PLACES)
def test_records_say_where_they_come_from(place):
    found = record(place)
    if place.startswith("claims"):
        assert {"claims", "skipped", "experiments"} & set(found)
        return
    assert {"command", "machine", "date", "values"} <= set(found)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert found["values"] or found["derived"]


def test_listed_times_are_about_those_of_the_commands():
    """To a factor of 1.5: `python -m benchmarks commands --full` measures them."""
    clocks = record("commands.json#all")["values"]
    measured = {words: clock[0] for words, clock in clocks.items() if isinstance(clock, list)}
    listed = {f"{row.name}, {size}": one.seconds for row in registry().values() for size, one in row.sizes.items()}
    assert set(measured) <= set(listed)
    assert not {words: first for words, first in measured.items() if not 2 / 3 <= listed[words] / first <= 1.5}


@pytest.mark.parametrize("place", derive.DERIVED)
def test_what_a_trajectory_tells_is_computed_not_typed(place):
    _need(*derive.DERIVED[place])
    assert record(place)["derived"] == derive.derived(place), "run python docs/derive.py"


def _need(*stores: str) -> None:
    """The source archive has no stores: they are in the release's archive of results."""
    if missing := [store for store in stores if not (RESULTS / f"{store}.zarr").exists()]:
        pytest.skip(f"{missing} are not here: python docs/stores.py unpack saddles-results-VERSION.zip")


def test_stored_trajectories_are_judged_anew():
    names = {name for name, _ in derive.JUDGED}
    told = {name for stores in derive.DERIVED.values() for name in stores}  # some hold less than claims need
    assert names | told == STORES, "run python docs/stores.py list"
    assert {folder.stem for folder in RESULTS.glob("*.zarr")} <= STORES
    _need(*names)
    stored_claims = json.loads((RESULTS / "claims-large.json").read_text("utf-8"))
    assert stored_claims == json.loads(json.dumps(derive.judged())), "run python docs/derive.py"


def test_every_record_is_referred_to():
    text = "".join(page.read_text("utf-8") for page in pages())
    unused = [place for place in PLACES if not place.startswith("claims") and f"results/{place})" not in text]
    assert not unused


def test_a_number_typed_by_hand_is_found():
    line = "It took 12.3 s, 4.5 times less than before (41 of 45 runs), at 1.2e-3 and 98 %; "
    line += "Figure 2, c = 0.5, (4.3) and 30 runs."
    assert Passage(1, line, (), False).numbers() == ["12.3", "4.5", "41", "45", "1.2e-3", "98"]


@pytest.mark.parametrize(
    ("word", "numbers", "right"),
    [("2.1", (2.14,), True), ("2.1", (2.16,), False), ("21", (0.2104,), True), ("3e-11", (2.9e-11,), True),
     ("1,193", (1193.0,), True), ("0.88", (-0.8812,), True), ("3e-11", (4e-11,), False)],
)  # fmt: skip
def test_numbers_agree_to_the_digits_shown(word, numbers, right):
    assert agrees(word, numbers) is right


def test_the_table_of_ranks_is_that_of_the_stored_run():
    """Numbers on the page of lab transformers, read off the stored trajectory again."""
    _need("transformers-vit-cifar10-adam")
    run = saddles.load(RESULTS / "transformers-vit-cifar10-adam.zarr").isel(seed=0).squeeze()
    ranks = run["stable_rank"].mean("head")
    table = next(p for p in passages(ROOT / "docs" / "transformers.md") if p.text.startswith("layer\ninitial KQ, VO"))
    cells = table.text.split("\n")
    width = cells.index("0")
    rows = [cells[at : at + width] for at in range(width, len(cells), width)]
    assert [row[0] for row in rows] == [str(layer) for layer in range(6)]
    for at, row in enumerate(rows):
        for column, product in ((2, "KQ"), (4, "VO")):
            shown = [float(word) for word in row[column].split(",")]
            assert shown == pytest.approx(_at_epochs(ranks.isel(layer=at).sel(product=product)), rel=5e-3)


def _at_epochs(ranks: xr.DataArray) -> list[float]:
    epochs = ranks["epoch"].values
    return [float(ranks[abs(epochs - epoch).argmin()]) for epoch in (1, 5, 126, 500)]


def test_the_claims_that_are_shown_are_those_of_the_registry():
    from saddles.core.experiment import registry

    stored_rows = set(json.loads((RESULTS / "claims.json").read_text("utf-8"))["records"]) - {"all"}
    assert stored_rows == set(registry()), (
        "run `saddles reproduce`, then `python docs/collect.py runs docs/results/claims.json`"
    )


@pytest.mark.parametrize("file", ["claims.json", "claims-large.json"])
def test_reasons_of_claims_that_fail_are_told_as_now(file):
    fails = [c for r in FILES[file].values() for c in r.get("claims", []) if c["verdict"] == "fails"]
    assert len(fails) > 10
    for claim in fails:
        value = float("nan") if claim["value"] is None else claim["value"]
        facts = {key: claim[key] for key in ("claim", "paper", "where", "relation", "threshold", "size")}
        again = check(**facts, values=[value] * claim["seeds"], sizes=(claim["size"],))
        assert claim["reason"] == again.reason, claim["claim"]


def test_a_record_from_another_machine_names_it_and_the_others_keep_theirs(tmp_path):
    before = json.loads((RESULTS / "claims.json").read_text("utf-8"))
    place = tmp_path / "margin" / "rank" / "0"
    place.mkdir(parents=True)
    facts = {"title": "", "paper": "", "size": "laptop", "seed": 0, "wall_time_s": 1.0, "versions": {}}
    for machine, named in (({"cores": 999}, True), (before["machine"], False)):
        run = facts | {"experiment": "margin/rank", "status": "finished", "machine": machine}
        (place / "run.json").write_text(json.dumps(run))
        (place / "claims.json").write_text("[]")
        found = collect.collect(tmp_path, before)
        assert found["machine"] == before["machine"]
        assert found["records"]["margin/kkt"] == before["records"]["margin/kkt"]
        assert ("machine" in found["records"]["margin/rank"]) == named
    assert collect.collect(tmp_path, {})["machine"] == before["machine"]  # of the run, where nothing is kept
