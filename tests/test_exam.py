"""The common exam: every installed method sits it. A new paper takes part by being installed."""

import inspect
import json
import re
from pathlib import Path

import jsonschema
import pytest

from iclr_shared import records, registry
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.testing import assert_light_import, run_cli, timeless

ENTRIES = registry.entries()
METHODS = [pytest.param(entry, id=entry.name) for entry in ENTRIES]

pytestmark = pytest.mark.parametrize("entry", METHODS)


def quickest(entry):
    """The exact claim that takes least time."""
    exact = [claim for claim in entry.method.claims if claim.tier == "exact"]
    assert exact, "no claim of tier 'exact'"
    return min(exact, key=lambda claim: claim.seconds)


def test_it_loads_and_says_who_wrote_it(entry):
    assert entry.error is None
    paper = entry.method.paper
    assert paper.arxiv or paper.openreview or paper.proceedings
    assert re.fullmatch(r"ICLR 2025.*", paper.venue)
    assert paper.year == 2025
    assert re.match(r"\s*@\w+\{[\w:-]+,", paper.bibtex)
    for author in paper.authors:
        assert author.split()[-1] in paper.bibtex, f"{author} is not in the BibTeX entry"
    assert entry.method.commands, "a method has at least one verb"


def test_its_description_is_light(entry):
    assert_light_import(entry.reference.partition(":")[0])


def test_every_check_can_be_called(entry):
    for claim in entry.method.claims:
        check = registry.resolve(claim.check)
        first, *sizes = inspect.signature(check).parameters.values()
        assert first.name == "run", claim.id
        assert first.annotation in (ClaimRun, "ClaimRun"), claim.id
        assert inspect.signature(check).return_annotation in (Measurement, "Measurement"), claim.id
        assert all(size.kind is size.VAR_KEYWORD or size.default is not size.empty for size in sizes), (
            f"{claim.id}: a size has no default"
        )
        assert check.__doc__, claim.id
        assert 0 < claim.seconds <= 180 or claim.tier == "full", claim.id


def test_every_verb_explains_itself(entry):
    for command in entry.method.commands:
        function = registry.resolve(command.function)
        assert function.__doc__, command.verb
        code, out, _ = run_cli(entry.method.slug, command.verb, "--help")
        assert code == 0
        assert len(out) > 100
    code, out, _ = run_cli(entry.method.slug, "--help")
    assert code == 0
    assert all(command.verb in out for command in entry.method.commands)


def test_a_seeded_run_is_reproducible_and_recorded(entry, tmp_path):
    claim, found = quickest(entry), []
    for out in ("one", "other"):
        code, _, err = run_cli("run", entry.name, "--claim", claim.id, "--seed", 3, "--out", tmp_path / out, "--quiet")
        assert code in (0, 1), err
        path = next(Path(tmp_path / out).rglob(f"claims/{claim.id}.json"))
        record = records.read(path)
        jsonschema.validate(record, records.json_schema())
        for artifact in record["artifacts"]:
            assert (path.parent.parent / artifact["path"]).exists()
        assert (path.parent.parent / "report.html").stat().st_size > 1000
        found.append(timeless(record))
    assert json.dumps(found[0]) == json.dumps(found[1])


def test_an_unknown_claim_is_refused(entry, tmp_path):
    code, _, err = run_cli("run", entry.name, "--claim", "no-such-claim", "--out", tmp_path)
    assert code == 2
    assert "no claim 'no-such-claim'" in err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_verb_is_refused(entry):
    code, _, err = run_cli(entry.method.slug, "no-such-verb")
    assert code == 2
    assert "no verb 'no-such-verb'" in err
