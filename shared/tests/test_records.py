import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iclr_shared import records
from iclr_shared.claims import Measurement
from iclr_shared.spec import Claim, Command, Method, Paper

PAPER = Paper("T", ("A B",), 2025, "ICLR 2025", bibtex="@misc{x}")


def claim(direction=">=", threshold=0.5, **changes):
    fields = {
        "id": "C1",
        "statement": "s",
        "figure": None,
        "metric": "m",
        "unit": None,
        "tier": "exact",
        "seconds": 1.0,
    }
    return Claim(**{**fields, "check": "a.b:c", "direction": direction, "threshold": threshold, **changes})


def make(measurement, folder, stated=None):
    return records.make(
        stated or claim(),
        "toy",
        measurement=measurement,
        failure=None,
        seed=0,
        started="2026-01-01T00:00:00Z",
        seconds=1.0,
        env={},
        folder=folder,
    )


@pytest.mark.parametrize(
    ("direction", "threshold", "measured", "expected"),
    [
        (">=", 1, 1.0, "pass"),
        (">=", 1, math.nextafter(1, 0), "fail"),
        ("<=", 1, 1.0, "pass"),
        ("<=", 1, math.nextafter(1, 2), "fail"),
        ("in", (0, 1), 0.0, "pass"),
        ("in", (0, 1), 1.0, "pass"),
        ("in", (0, 1), 1.1, "fail"),
        ("report", None, 7.0, "reported"),
        ("report", None, math.nan, "fail"),
        ("<=", 1, math.nan, "fail"),
        (">=", 1, math.inf, "fail"),
        ("<=", 1, -math.inf, "fail"),
        ("<=", 1, None, "fail"),
    ],
)
def test_verdicts(direction, threshold, measured, expected):
    assert records.verdict(direction, threshold, measured)[0] == expected


@given(st.floats(), st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_that_is_not_finite_never_passes(measured, threshold):
    for direction in (">=", "<="):
        if not math.isfinite(measured):
            assert records.verdict(direction, threshold, measured)[0] == "fail"


@pytest.mark.parametrize("one", [np.float32(0.75), np.array(0.75), jnp.float32(0.75), torch.tensor(0.75)])
def test_scalars_of_every_framework_are_recorded(one, tmp_path):
    record = make(Measurement(one, ("c", one), (one, one), 2, {"x": [one, 1]}, {"d": {"e": one}, "f": True}), tmp_path)
    assert record["measured"] == 0.75
    assert record["series"] == {"x": [0.75, 1]}
    assert record["details"] == {"d": {"e": 0.75}, "f": True}
    path = tmp_path / "r.json"
    records.write(path, record)
    assert records.read(path) == record


def test_long_series_go_to_a_file(tmp_path):
    record = make(Measurement(1.0, series={"x": np.arange(20_000)}), tmp_path)
    assert record["series"] == {}
    assert np.load(tmp_path / record["artifacts"][0]["path"])["x"].shape == (20_000,)
    assert len(record["artifacts"][0]["sha256"]) == 64


def test_what_no_record_can_hold_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"details\.model\.0 holds a function"):
        make(Measurement(1.0, details={"model": [make]}), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "iclr.claim/2"}, "unknown schema"),
        ({"measured": "1"}, "'measured' is a str"),
        ({"n": True}, "'n' is a bool"),
        ({"extra": 1}, "'extra' is unknown"),
        ({"verdict": "great"}, "'great' is unknown"),
        ({"measured": 0.1}, "'fail' follows from the numbers"),
    ],
)
def test_validate(change, message, tmp_path):
    record = make(Measurement(1.0), tmp_path)
    assert records.validate(record) is record
    with pytest.raises(ValueError, match=message):
        records.validate({**record, **change})
    with pytest.raises(ValueError, match="'seed' is missing"):
        records.validate({key: value for key, value in record.items() if key != "seed"})
    with pytest.raises(ValueError, match="no schema"):
        records.validate([])


def test_the_schema_is_json():
    json.dumps(records.json_schema())


@pytest.mark.parametrize(
    "change",
    [
        {"id": "a b"},
        {"statement": ""},
        {"check": "nowhere"},
        {"threshold": None},
        {"threshold": (0, 1)},
        {"direction": "in", "threshold": (1, 0)},
        {"direction": "in", "threshold": 1},
        {"direction": "report", "threshold": 1},
    ],
)
def test_a_claim_checks_itself(change):
    with pytest.raises(ValueError, match=r"claim|direction|tier"):
        claim(**{"direction": ">=", "threshold": 1, **change})


def test_a_method_checks_itself():
    def method(**changes):
        fields = {"name": "x_y", "title": "t", "summary": "s", "paper": PAPER, "claims": (claim(),)}
        return Method(**{**fields, **changes})

    assert method().slug == "x-y"
    for change in (
        {"name": "X"},
        {"name": "x-y"},
        {"summary": "x" * 101},
        {"claims": (claim(), claim(id="c1"))},
        {"commands": (Command("a", "s", "m:f"), Command("a", "s", "m:f"))},
    ):
        with pytest.raises(ValueError, match=r"name|summary|twice"):
            method(**change)
    with pytest.raises(ValueError, match="verb"):
        Command("Not_a_verb", "s", "m:f")
    with pytest.raises(ValueError, match="BibTeX"):
        Paper("T", ("A",), 2025, "v")


def test_how_a_paper_is_named():
    def short(*authors):
        return Paper("T", authors, 2025, "ICLR 2025", bibtex="@misc{x}").short

    assert short("Ada Lovelace") == "Lovelace, ICLR 2025"
    assert short("Ada Lovelace", "Alan Turing") == "Lovelace and Turing, ICLR 2025"
    assert short("A L", "A T", "C S") == "L et al., ICLR 2025"


def test_criterion_in_words():
    assert claim("in", (0, 1), unit="m").criterion == "m in [0, 1] m"
    assert claim("<=", 1e-10).criterion == "m <= 1e-10"
    assert claim("report", None).criterion == "m: reported"
