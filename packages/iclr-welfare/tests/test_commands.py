import json

import jax
import numpy as np
import pandas
import pytest

import iclr_welfare as iw
from iclr_shared.testing import Killed, run_cli
from iclr_welfare import simulation

T = 800
"""Long enough for a long-run statement on `mixed`."""

SIMULATED = ("--seeds", 2, "--horizon", T, "--policies", "rawlsian,util_gain", "--quiet")


@pytest.fixture
def file(tmp_path, mixed):
    columns = {"welfare": mixed.U0, "f_minus": mixed.f_minus, "f_plus": mixed.f_plus}
    columns |= {"g_plus": mixed.g_plus, "g_minus": mixed.g_minus}
    path = tmp_path / "people.csv"
    pandas.DataFrame(columns).to_csv(path, index=False)
    return path


def test_simulate(file, tmp_path, mixed):
    out = tmp_path / "out"
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints" / "my-model.pt").touch()  # the user's own, which stays
    code, text, error = run_cli(
        "welfare",
        "simulate",
        file,
        *SIMULATED,
        "--budget",
        2,
        "--out",
        out,
        "--gini-shift",
        1e6,
        "--policies",
        "rawlsian",
    )
    assert code == 0, error
    assert "regime: survival" in text
    assert "Gini(T)" in text
    trajectories = pandas.read_csv(out / "trajectories.csv")
    people = iw.read_population(file)
    options = {"key": jax.random.key(0), "seeds": 2, "noise": iw.Noise.official(people, 2)}
    result = iw.simulate(people, "rawlsian", 2, T, **options)
    ours = trajectories[trajectories.policy == "rawlsian"]
    np.testing.assert_allclose(ours["mean"], result.mean.mean(0), rtol=1e-12)
    np.testing.assert_allclose(ours["R"][1:], result.growth.mean(0)[1:], rtol=1e-12)
    table = pandas.read_csv(out / "people.csv")
    np.testing.assert_allclose(table.rawlsian_helped_share, result.selected_counts.mean(0) / T)
    assert table.filter(like="helped_share").sum().to_numpy() == pytest.approx([2.0])
    assert json.loads((out / "run.json").read_text())["rawlsian"]["noise_variance"] == [options["noise"].variance]
    assert (out / "simulate.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "checkpoints" / "rawlsian").exists()
    assert (out / "checkpoints" / "my-model.pt").exists()


def test_simulate_grouped_incomes(tmp_path):
    path = tmp_path / "incomes.csv"
    pandas.DataFrame({"INCOME": np.repeat([5_000, 60_000, 120_000], [900, 500, 100])}).to_csv(path, index=False)
    arguments = (
        "--column",
        "INCOME",
        "--group",
        100,
        "--policies",
        "rawlsian",
        "--noise",
        0,
        "--out",
        tmp_path / "out",
    )
    code, text, error = run_cli("welfare", "simulate", path, *SIMULATED, *arguments)
    assert code == 0, error
    assert "15 people" in text


def test_condition(file, tmp_path, mixed):
    out = tmp_path / "out"
    code, text, error = run_cli("welfare", "condition", file, "--budget", 2, "--helped", "1,4", "--out", out)
    assert code == 0, error
    verdict = iw.who_wins(mixed, 2, [1, 4])
    assert f"winner in the long run: {verdict.winner}" in text
    facts = json.loads((out / "conditions.json").read_text())
    assert facts["R rawlsian"] == pytest.approx(verdict.rawls)
    assert facts["R utilitarian, S given"] == pytest.approx(verdict.locked)
    assert facts["regime"] == "survival"
    regions = pandas.read_csv(out / "regions.csv")
    assert len(regions) == 61 * 9
    assert (out / "regions.png").exists()
    assert "over all sets S" in run_cli("welfare", "condition", file, "--out", out)[1]


def test_condition_outside_the_assumptions_says_which_fails(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("welfare\n1\n2\n3\n4\n")
    limits = ("--f-minus", 1, "--f-plus", 9, "--g-plus", 2, "--g-minus", 1, "--out", tmp_path / "out")
    code, text, error = run_cli("welfare", "condition", path, *limits)
    assert code == 0, error
    assert (
        "no closed-form answer: survival condition or ruin condition fails (survival: Σ g⁺/(f⁻+g⁺) = 2.66667 ≥ M = 1"
        in text
    )
    assert "R rawlsian, if all rise" in text
    swapped = ("--f-minus", 9, "--f-plus", 1, "--g-plus", 2, "--g-minus", 1, "--out", tmp_path / "out")
    code, _, error = run_cli("welfare", "condition", path, *swapped)
    assert (code, "Matthew effect fails: the return f falls" in error) == (2, True)
    code, text, _ = run_cli("welfare", "condition", path, *swapped, "--no-matthew")
    assert code == 0
    assert "Matthew effect: the return f does not fall with welfare fails (fails for persons 0, 1, 2, 3)" in text


def test_compare(file, tmp_path):
    out = tmp_path / "out"
    code, text, error = run_cli("welfare", "compare", file, *SIMULATED, "--horizons", "10,100,9999", "--out", out)
    assert code == 0, error
    assert "exact condition with the sets S that util_gain helped" in text
    assert "at T* =" in text or "does not overtake" in text
    ranks = pandas.read_csv(out / "ranks.csv")
    assert sorted(ranks["T"].unique()) == [10, 100, T]
    assert (ranks.groupby("T")["rank"].min() == 1).all()
    assert (out / "compare.png").exists()
    known = ranks[(ranks.policy == "rawlsian") & (ranks["T"] == T)].closed_form.item()
    assert known == pytest.approx(iw.rate_rawls(iw.read_population(file), 1))


def test_a_short_horizon_makes_no_long_run_statement(file, tmp_path):
    arguments = (*SIMULATED, "--horizon", 20, "--out", tmp_path / "out")
    code, text, _ = run_cli("welfare", "compare", file, *arguments)
    assert code == 0
    assert "horizon too short for a long-run statement: the burn-in alone is about" in text
    assert "exact condition over all sets S, winner in the long run: " in text
    assert "simulated late slopes agree" not in text
    ranks = pandas.read_csv(tmp_path / "out" / "ranks.csv")
    assert ranks[ranks.policy == "util_gain"].closed_form.isna().all()  # which S it will be does not show yet


def test_interrupted_and_resumed(file, tmp_path, monkeypatch):
    arguments = ("welfare", "simulate", file, *SIMULATED)
    assert run_cli(*arguments, "--out", tmp_path / "whole")[0] == 0
    real, calls = simulation.advance_many, []

    def killed(*args, **kwargs):
        calls.append(kwargs["policy"])
        if calls.count("util_gain") == 3:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(simulation, "advance_many", killed)
    with pytest.raises(Killed):
        run_cli(*arguments, "--out", tmp_path / "cut")
    calls.clear()
    monkeypatch.setattr(simulation, "advance_many", lambda *a, **k: calls.append(k["policy"]) or real(*a, **k))
    assert run_cli(*arguments, "--out", tmp_path / "cut", "--resume")[0] == 0
    assert "rawlsian" not in calls
    for name in ("trajectories.csv", "people.csv"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "--budget", 10), "M = 10 must be at least 1 and smaller than the number of people N = 10"),
        (("simulate", "--policies", "rawlsian,maximin"), "no policy 'maximin'"),
        (("simulate", "--policies", ","), "No policy was named"),
        (("simulate", "--noise", "loud"), "--noise must be a variance"),
        (("simulate", "--noise", -1), "variance must be a number >= 0"),
        (("simulate", "--seeds", 0), "At least one seed"),
        (("simulate", "--column", "income"), "no column 'income', only welfare, f_minus"),
        (("simulate", "--group", 5), "do not go with grouped incomes"),
        (("compare", "--policies", "rawlsian"), "at least two policies"),
        (("compare", "--horizons", "10,soon"), "whole numbers"),
        (("condition", "--helped", "1,2"), "names 2 people but the budget is 1"),
        (("condition", "--helped", "77"), "names person 77"),
        (("condition", "--scales", 2, 1), "ascending"),
        (("condition", "--scales", 1, "inf"), "ascending"),
        (("condition", "--seed", -1), "--seed must not be negative"),
        (("simulate", "--seed", -1), "--seed must not be negative"),
        (("simulate", "--record-every", 0), "between 1 and 10000, not 0"),
        (("simulate", "--gini-shift", "nan"), "finite number, not nan"),
        (("compare", "--horizons", "-3"), "--horizons must be positive, not -3"),
    ],
)
def test_bad_usage_is_explained(file, tmp_path, arguments, message):
    verb, *rest = arguments
    code, _, error = run_cli("welfare", verb, file, *rest, "--out", tmp_path / "out")
    assert code == 2
    assert message in error


def test_levels_without_sense_are_named(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("welfare,f_x_minus,f_x_plus\n1,0,5\n2,3,3\n")
    code, _, error = run_cli("welfare", "condition", path, "--out", tmp_path / "out")
    assert (code, "f_x_minus and f_x_plus coincide in row 2" in error) == (2, True)
    path.write_text("welfare\n1\n2\n")
    code, _, error = run_cli("welfare", "condition", path, "--g-plus", -1, "--out", tmp_path / "out")
    assert (code, "g_plus must be a positive number, but is -1." in error) == (2, True)


def test_an_output_that_is_a_file(file, tmp_path):
    for verb in ("simulate", "condition", "compare"):
        code, _, error = run_cli("welfare", verb, file, "--out", file)
        assert (code, "Choose another --out" in error) == (2, True)
    assert file.read_text().startswith("welfare")


def test_horizons_between_records_are_left_out(file, tmp_path):
    arguments = ("--record-every", 8, "--horizons", "10,16", "--out", tmp_path / "out")
    code, _, error = run_cli("welfare", "compare", file, *SIMULATED, *arguments)
    assert code == 0, error
    assert sorted(pandas.read_csv(tmp_path / "out" / "ranks.csv")["T"].unique()) == [16, T]


def test_a_missing_file(tmp_path):
    code, _, error = run_cli("welfare", "condition", tmp_path / "absent.csv")
    assert (code, "There is no file" in error) == (2, True)
