"""The page of results: what it says of them, that it is whole, and that nothing in them can break it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ademamix.lab.recipes import OF_THE_PAPER, RECIPES, SUBJECTS
from ademamix.lab.report import page
from ademamix.lab.report.charts import plain
from ademamix.lab.reproduction.claims import FAILS, HOLDS, OPEN
from ademamix.lab.reproduction.engine import reproduce
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.runs.execution import Options
from ademamix.lab.runs.laboratory import Lab
from ademamix.lab.runs.record import RunError
from page_samples import Read, claim, losses, panel, write_panels


def written(out: Path, scale: str = "laptop") -> Read:
    page.write(out, scale, out / "report.html")
    return Read((out / "report.html").read_text(encoding="utf-8"))


def test_the_page_of_what_a_recipe_left(tmp_path: Path) -> None:
    """A real one, that trains nothing."""
    folder = tmp_path / "ema-weights" / "smoke"
    folder.mkdir(parents=True)
    list(reproduce("ema-weights", SCALES["smoke"], folder, Lab(Options(tmp_path))))
    verdicts = json.loads((folder / "verdict.json").read_text())["panels"]
    shown = written(tmp_path, "smoke")
    for part in verdicts:
        for decided in part["claims"]:
            assert f"{decided['claim']}." in shown.text
            assert decided["reason"] in shown.text
    assert len(shown.all("article", "claim")) == sum(len(part["claims"]) for part in verdicts)
    assert "ademamix reproduce ema-weights --scale smoke" in shown.text
    labels = [series["label"] for chart in shown.drawings["charts"] for series in chart["series"]]
    assert "β=0.9999" in labels


def test_the_first_screen_counts_the_verdicts(tmp_path: Path) -> None:
    write_panels(tmp_path)
    write_panels(tmp_path, "forgetting", panels=[panel(claims=[claim("a"), claim("b", FAILS)])])
    shown = written(tmp_path)
    assert "5 of its claims were checked: 2 hold 2 do not hold here 1 is not conclusive" in shown.text
    assert "The main claim: It is lower. holds AdEMAMix is 0.0400 below AdamW." in shown.text
    assert "1 of 2 claims holds, 1 does not hold here." in shown.text
    assert "Not run yet." in shown.text
    assert "Without results at this scale: toy-rosenbrock, " in shown.text
    assert len([row for row in shown.all("tr") if "data-verdict" in row]) == 5


def test_the_main_claim_comes_with_its_counterexample(tmp_path: Path) -> None:
    quoted = {"source": "reaches a similar loss"}
    panels = [panel(title="small", claims=[claim("It is lower", **quoted)])]
    panels.append(panel(title="0.17M parameters", claims=[claim("Ours"), claim("It is", OPEN, reason="No.", **quoted)]))
    write_panels(tmp_path, panels=panels)
    told = "The same with 0.17M parameters: It is. not conclusive at this scale No. "
    assert f"AdEMAMix is 0.0400 below AdamW. {told}" in written(tmp_path).text


def test_numbers_without_runs_say_where_they_were_computed(tmp_path: Path) -> None:
    here = {"ademamix": "0.1.0", "python": "3.11", "machine": "Linux", "processor": "a CPU", "processors": 2}
    write_panels(tmp_path, "ema-weights", panels=[panel(arms={}, environment=here)])
    write_panels(tmp_path, "step-time", panels=[panel(arms={}, environment={"processor": "another CPU"})])
    shown = written(tmp_path).text
    assert "ademamix 0.1.0, python 3.11; a CPU, Linux, 2 processors" in shown
    assert "another CPU; measured there" in shown
    assert "Not recorded" not in shown


def test_a_result_has_all_that_a_reader_needs(tmp_path: Path) -> None:
    write_panels(tmp_path)
    environment = {"torch": "9.9", "python": "3.11", "machine": "Linux", "processors": 2, "threads": 1, "device": "cpu"}
    for key in ("a" * 16, "b" * 16):
        (tmp_path / "runs" / key).mkdir(parents=True)
        carried_out = json.dumps({"data": "", "carried_out": [{"after_step": 0, **environment}]})
        (tmp_path / "runs" / key / "environment.json").write_text(carried_out)
    text = written(tmp_path).text
    assert "a sentence of the paper" in text
    assert "Numbers, seeds 1, 2, 3" in text
    assert "AdEMAMix 1.51 1.52 not finite" in text
    assert "model.width = 32" in text
    assert f"AdamW adamw, lr 0.01 {'a' * 16} (seed 1)" in text
    assert "AdamW 0.01 0.99 diverged AdamW 0.02 1.6000 AdamW 0.04 1.5500 (best)" in text
    assert "torch 9.9, python 3.11; Linux, 2 processors, 1 thread, cpu; 2 runs" in text
    assert "AdamW is trained for T steps and longer" in text  # what the recipe says of itself


def test_links_lead_somewhere_and_nothing_is_loaded(tmp_path: Path) -> None:
    write_panels(tmp_path)
    write_panels(tmp_path, "forgetting")
    shown = written(tmp_path)
    ids = [attributes["id"] for attributes in shown.all() if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {link["href"] for link in shown.all("a")}
    assert links - {f"#{place}" for place in ids} == {"https://arxiv.org/abs/2409.03137"}
    assert not [attributes for attributes in shown.all() if "src" in attributes]
    assert "@import" not in shown.html
    assert "url(http" not in shown.html


def test_every_figure_is_in_words_as_well(tmp_path: Path) -> None:
    write_panels(tmp_path)
    words = [plot["aria-label"] for plot in written(tmp_path).all(css_class="plot")]
    assert words[0].startswith(
        "Losses. Line chart, validation loss against step. AdamW: 1.5500: from 3.5 at 500 to 1.55 "
    )
    assert words[0].endswith(" to 1.55 at 20000; AdEMAMix: from 3.5 at 500 to 1.6 at 10000.")
    assert words[1].startswith("A grid. Coloured cells, beta3 against alpha. Lowest 1.5 at alpha = 4, beta3 = 0.99; ")
    assert words[1].endswith("highest 1.6 at alpha = 2, beta3 = 0.99; 1 without a finite value.")
    assert words[2] == "Points. Points, β₃ against x. all: from 1e-06 at 1 to 1 at 10."
    assert words[3] == "A path. Line chart, x₂ against x₁. Adam: from 0 at 0 to 1 at 1."


def test_text_of_results_stays_text(tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    chart = {**plain(losses(attack)), "x_label": attack, "levels": {attack: 1.5}}
    hostile = panel(title=attack, caption=attack, claims=[claim(attack, source=attack, reason=attack)], charts=[chart])
    hostile |= {"tables": [{"header": [attack], "rows": [[attack]], "title": attack}], "arms": {attack: {}}}
    write_panels(tmp_path, panels=[hostile], labels=[attack])
    shown = written(tmp_path)
    assert len(shown.all("script")) == 2
    assert not shown.all("img")
    assert shown.drawings["charts"][0]["xLabel"] == attack
    assert attack in shown.text


def test_what_is_missing_or_diverged_is_shown_as_that(tmp_path: Path) -> None:
    nothing = claim("a", numbers={"AdEMAMix": [None, None], "AdamW": []}, seeds=[1, 2])
    empty = {**plain(losses()), "series": [{"label": "AdamW", "x": [1.0, 2.0], "y": [None, None], "family": ""}]}
    unknown = {"kind": "pie", "title": "A pie"}
    bare = panel(claims=[nothing], charts=[empty, unknown], tables=[], arms={}, searched={})
    write_panels(tmp_path, panels=[bare, {"title": "Only a title"}], complete=False)
    shown = written(tmp_path)
    assert "AdEMAMix not finite not finite" in shown.text
    assert "A pie A chart of kind 'pie', which this page cannot draw." in shown.text
    assert "There are more panels to come." in shown.text
    assert "AdamW: no finite values" in shown.all(css_class="plot")[0]["aria-label"]


def test_long_tables_are_folded(tmp_path: Path) -> None:
    table = {"header": ["", "loss"], "rows": [[f"row {number}", "1"] for number in range(40)], "title": "Long"}
    write_panels(tmp_path, panels=[panel(tables=[table], claims=[])])
    shown = written(tmp_path)
    assert "Long: 40 rows" in shown.text
    assert "row 39 1" in shown.text


def test_thirty_recipes_with_long_curves_stay_far_below_five_megabytes(tmp_path: Path) -> None:
    for number in range(30):
        charts = [plain(losses(points=400, lowest=number + part / 10)) for part in range(6)]  # no two curves are equal
        claims = [claim(f"claim {each}") for each in range(20)]
        write_panels(tmp_path, f"recipe-{number}", panels=[panel(charts=charts, claims=claims)])
    written(tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 2_500_000


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"recipe": 1}', '{"recipe": "a", "scale": "b", "panels": [{}]}'])
def test_a_damaged_file_is_named(damage: str, tmp_path: Path) -> None:
    path = write_panels(tmp_path)
    path.write_text(damage)
    with pytest.raises(RunError, match=rf"^'{path}' is damaged \(.*\). Give the command that wrote it again"):
        written(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    write_panels(tmp_path, scale="smoke")
    with pytest.raises(RunError, match="there are no results at laptop scale"):
        written(tmp_path)


def test_the_recipes_of_the_paper_are_those_with_a_subject() -> None:
    subjects = {name: recipe.subject for name, recipe in RECIPES.items() if recipe.subject}
    assert set(subjects) == set(OF_THE_PAPER)
    assert set(subjects.values()) == set(SUBJECTS)


def test_claims_of_other_sources_are_shown_and_counted_apart(tmp_path: Path) -> None:
    write_panels(tmp_path, panels=[panel(claims=[claim("a first sentence")])])
    write_panels(tmp_path, "log-time", panels=[panel(claims=[claim("a second sentence")])], labels=[], source="arXiv 1")
    shown = written(tmp_path)
    assert "1 of its claims were checked" in shown.text
    assert "log-time (arXiv 1)" in shown.text
    assert shown.text.count("a first sentence") == shown.text.count("a second sentence") > 1
    write_panels(tmp_path, panels=[panel(claims=[])])
    assert "No claim of it was checked" in written(tmp_path).text


def test_claims_of_ours_are_marked_and_counted_apart(tmp_path: Path) -> None:
    write_panels(tmp_path, panels=[panel(claims=[claim("theirs"), {**claim("added"), "ours": True}])])
    shown = written(tmp_path)
    assert "1 of its claims were checked" in shown.text
    assert "1 claim of ours, marked as such, is in the list, and not counted above." in shown.text
    assert "added (ours)" in shown.text
    assert "theirs (ours)" not in shown.text


def test_verdicts_of_the_page_are_those_of_claims(tmp_path: Path) -> None:
    write_panels(tmp_path, panels=[panel(claims=[claim("a", HOLDS)])])
    path = tmp_path / "lm-comparison" / "laptop" / "panels.json"
    path.write_text(path.read_text().replace('"holds"', '"maybe"'))
    with pytest.raises(RunError, match=r"panels\.0\.claims\.0\.verdict"):
        written(tmp_path)
