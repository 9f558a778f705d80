"""The verbs through the command line: every form of input, what they print and write, and what they refuse."""

import json
import re

import numpy as np
import pytest

from iclr_generalization.ensembles import decompose
from iclr_shared.testing import assert_light_import, run_cli

K, N, C = 4, 120, 3


def members(seed=0):
    """Four members that are right more often than not."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, N)
    raw = np.exp(1.5 * np.eye(C)[y] + rng.normal(size=(K, N, C)))
    return raw / raw.sum(2, keepdims=True), y


PREDS, Y = members()


def save(folder, form, preds=PREDS, y=Y):
    """Files of one form: arguments of a verb, labels included."""
    labels = folder / "labels.npy"
    np.save(labels, y)
    if form == "table":
        index = np.repeat(np.arange(len(preds)), preds.shape[1])
        rows = np.column_stack([index, np.tile(y, len(preds)), preds.reshape(-1, preds.shape[2])])
        names = ",".join(["member", "label", *(f"class{c}" for c in range(preds.shape[2]))])
        np.savetxt(folder / "table.csv", rows, delimiter=",", header=names, comments="", fmt="%.17g")
        return [folder / "table.csv"]
    if form == "npy":
        np.save(folder / "preds.npy", preds)
        return [folder / "preds.npy", "--labels", labels]
    if form == "npz":
        np.savez(folder / "preds.npz", preds=preds)
        return [folder / "preds.npz", "--labels", labels]
    if form == "npy each":
        files = [folder / f"member{k}.npy" for k in range(len(preds))]
        for file, part in zip(files, preds, strict=True):
            np.save(file, part)
        return [*files, "--labels", labels]
    files = [folder / f"member{k}.csv" for k in range(len(preds))]
    header = ",".join(f"class{c}" for c in range(preds.shape[2]))
    for file, part in zip(files, preds, strict=True):
        np.savetxt(file, part, delimiter=",", header=header, comments="", fmt="%.17g")
    np.savetxt(folder / "labels.csv", y, header="label", comments="", fmt="%d")
    return [*files, "--labels", folder / "labels.csv"]


@pytest.mark.parametrize("form", ["table", "npy", "npz", "npy each", "csv each"])
def test_every_form_of_input(tmp_path, form):
    arguments = save(tmp_path, form)
    code, shown, error = run_cli("ensembles", "capacity", *arguments, "--sizes", 2, 8, "--out", tmp_path / "out")
    assert code == 0, error
    found = json.loads((tmp_path / "out" / "forecast.json").read_text())
    law = decompose(PREDS, Y).law
    assert found["loss"] == pytest.approx([law.loss(2), law.loss(8)], rel=1e-9)
    assert found["limit"] == pytest.approx(law.limit)
    assert found["members"] == K
    assert f"forecast from {K} members on {N} points" in shown
    assert (tmp_path / "out" / "forecast.png").stat().st_size > 10_000


@pytest.mark.parametrize("metric", ["nll", "welsch", "error"])
def test_other_metrics(tmp_path, metric):
    code, shown, error = run_cli("ensembles", "capacity", *save(tmp_path, "npy"), "--metric", metric, "--sizes", 4, 8)
    assert code == 0, error
    assert metric in shown
    assert "infinitely many members" in shown


def test_logits(tmp_path):
    logits = np.log(PREDS) + 3
    found = []
    for kind, preds in (("logits", logits), ("probabilities", PREDS)):
        found.append(run_cli("ensembles", "capacity", *save(tmp_path, "npy", preds), "--kind", kind)[1])
    assert found[0] == found[1]


def test_regression(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(N, 1))
    preds = y + rng.normal(size=(K, N, 1))
    code, shown, error = run_cli(
        "ensembles", "capacity", *save(tmp_path, "npy", preds, y), "--kind", "values", "--metric", "mse", "--sizes", 2
    )
    assert code == 0, error
    assert f"{decompose(preds, y, 'values').law.limit:.6g}" in shown


@pytest.mark.parametrize("form", ["npy", "table"])
def test_one_hot_and_index_labels_agree(tmp_path, form):
    arguments = save(tmp_path, form)
    _, shown, _ = run_cli("ensembles", "capacity", *arguments)
    np.save(tmp_path / "onehot.npy", np.eye(C)[Y])
    again = run_cli("ensembles", "capacity", *save(tmp_path, "npy")[:1], "--labels", tmp_path / "onehot.npy")
    assert again == (0, shown, again[2])


def test_targets(tmp_path):
    arguments, law = save(tmp_path, "npy"), decompose(PREDS, Y).law
    target = law.limit + law.variance / 5.5
    _, shown, _ = run_cli("ensembles", "capacity", *arguments, "--target", target)
    assert re.search(r"brier <= \S+: 6 members", shown)
    _, shown, _ = run_cli("ensembles", "capacity", *arguments, "--target", law.limit / 2)
    assert "unreachable: infinitely many members give" in " ".join(shown.split())


def test_equivalence(tmp_path):
    code, shown, error = run_cli("ensembles", "equivalence", *save(tmp_path, "npy"), "--out", tmp_path / "out")
    assert code == 0, error
    found = json.loads((tmp_path / "out" / "equivalence.json").read_text())
    assert 0 < found["median_ratio"] < 0.5
    assert f"{K} members on {N} points" in shown
    shifted = PREDS.copy()
    shifted[0] = 0.2 * PREDS[0] + 0.8 * np.array([1.0, 0, 0])  # another kind
    run_cli("ensembles", "equivalence", *save(tmp_path, "npy", shifted), "--out", tmp_path / "other")
    other = json.loads((tmp_path / "other" / "equivalence.json").read_text())
    assert max(other["ratio"]) > 2 * found["median_ratio"]


def changed(change):
    preds, y = PREDS.copy(), Y.copy()
    if change == "one member":
        preds = preds[:1]
    elif change == "labels":
        y = y[1:]
    elif change == "logits":
        preds[2] = np.log(preds[2])
    elif change == "nan":
        preds[1, 5, 0] = np.nan
    elif change == "range":
        y[3] = C
    elif change == "negative":
        y[3] = -1
    elif change == "twice":
        preds[3] = preds[1]
    return preds, y


@pytest.mark.parametrize("verb", ["capacity", "equivalence"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("one member", "at least 2 members"),
        ("labels", f"{N - 1} labels for {N} points"),
        ("logits", "Member 2 is no probability"),
        ("nan", "Member 1 has predictions that are not finite"),
        ("range", f"must be in 0..{C - 1}"),
        ("negative", f"must be in 0..{C - 1}"),
        ("twice", "Members 1 and 3 are identical. The same seed twice?"),
    ],
)
def test_bad_predictions(tmp_path, verb, change, words):
    code, _, error = run_cli("ensembles", verb, *save(tmp_path, "npy", *changed(change)))
    assert code == 2
    assert words in " ".join(error.split())


def test_bad_files(tmp_path):
    arguments = save(tmp_path, "csv each")
    labels = tmp_path / "labels.npy"
    np.savetxt(tmp_path / "short.csv", PREDS[0][1:], delimiter=",")
    np.savez(tmp_path / "two.npz", a=PREDS, b=PREDS)
    np.save(tmp_path / "flat.npy", PREDS[0, :, 0])
    (tmp_path / "empty.csv").write_text("")
    np.save(tmp_path / "nothing.npy", PREDS[:, :0])
    np.save(tmp_path / "words.npy", PREDS.astype(str))
    (tmp_path / "text.csv").write_text("class0,class1\n0.5,much\n")
    table = save(tmp_path, "table")[0]
    lines = table.read_text().splitlines()
    (tmp_path / "gap.csv").write_text("\n".join(lines[:-1]) + "\n")
    for given, words in (
        ([tmp_path / "none.npy", "--labels", labels], "There is no file"),
        ([tmp_path / "none.csv"], "There is no file"),
        ([*arguments[:2], tmp_path / "short.csv", "--labels", labels], "the first file has"),
        ([tmp_path / "two.npz", "--labels", labels], "holds 2 arrays"),
        ([tmp_path / "empty.csv", "--labels", labels], "is empty"),
        ([tmp_path / "nothing.npy", "--labels", labels], "at least one point"),
        ([tmp_path / "words.npy", "--labels", labels], "must be real numbers"),
        ([tmp_path / "flat.npy", tmp_path / "flat.npy", "--labels", labels], "1 dimension(s)"),
        ([tmp_path / "text.csv", "--labels", labels], "Cannot read"),
        ([arguments[0], "--labels", labels], "One file of one member is no ensemble"),
        (arguments[:K], "Give the true labels"),
        ([tmp_path / "gap.csv"], "does not list the same points"),
    ):
        code, _, error = run_cli("ensembles", "capacity", *given)
        assert code == 2, (words, error)
        assert words in " ".join(error.split())


def test_no_files():
    code, _, error = run_cli("ensembles", "capacity")
    assert code == 2
    assert error


@pytest.mark.parametrize(("arguments", "words"), [(("--sizes", 0), "size"), (("--target", "nan"), "must be finite")])
def test_bad_options(tmp_path, arguments, words):
    code, _, error = run_cli("ensembles", "capacity", *save(tmp_path, "npy"), *arguments)
    assert code == 2
    assert words in error


def test_few_points_and_odd_members_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="error bars over points will be wide"):
        run_cli("ensembles", "capacity", *save(tmp_path, "npy", PREDS[:, :50], Y[:50]))
    rng = np.random.default_rng(0)
    many = np.concatenate([members(0)[0], 0.9 * PREDS + 0.1 / C, 0.8 * PREDS + 0.2 / C])
    odd = rng.dirichlet(np.full(C, 0.2), (1, N))
    with pytest.warns(UserWarning, match="homogeneous"):
        run_cli("ensembles", "capacity", *save(tmp_path, "npy", np.concatenate([many, odd])))


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 4)), rng.integers(0, 3, 160)
    x[:, 0] += 2 * y
    file = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(file, x=x[:40], y=y[:40], x_test=x[40:], y_test=y[40:])
    return file


QUICK = ("--width", 8, "--epochs", 5, "--batch-size", 16)


def test_train_and_go_on(split, tmp_path):
    out = tmp_path / "out"
    code, shown, error = run_cli("ensembles", "train", split, "--members", 3, *QUICK, "--out", out)
    assert code == 0, error
    assert "ensemble" in shown
    first = np.load(out / "predictions.npy")
    assert first.shape == (3, 120, 3)
    np.testing.assert_array_equal(np.load(out / "labels.npy"), np.load(split)["y_test"])
    code, _, error = run_cli("ensembles", "capacity", out / "predictions.npy", "--labels", out / "labels.npy")
    assert code == 0, error
    stamps = {file: file.stat().st_mtime_ns for file in (out / "checkpoints").rglob("*.npz")}
    assert stamps
    assert run_cli("ensembles", "train", split, "--members", 3, *QUICK, "--out", out)[:2] == (0, shown)
    assert stamps == {file: file.stat().st_mtime_ns for file in (out / "checkpoints").rglob("*.npz")}  # not again
    np.testing.assert_array_equal(np.load(out / "predictions.npy"), first)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--members", 0), "members must be at least 1"),
        (("--batch-size", 41), "batch_size must lie in 1..40"),
        (("--epochs", 0), "must be positive"),
        (("--learning-rate", -1), "must be positive"),
        (("--learning-rate", "nan"), "must be positive"),
        (("--width", 0), "width must be at least 1"),
    ],
)
def test_bad_training(split, tmp_path, arguments, words):
    code, _, error = run_cli("ensembles", "train", split, *QUICK, *arguments, "--out", tmp_path)
    assert code == 2
    assert words in " ".join(error.split())


def test_bad_arrays(split, tmp_path):
    arrays = dict(np.load(split))
    np.savez(tmp_path / "part.npz", x=arrays["x"])
    np.savez(tmp_path / "odd.npz", **{**arrays, "x_test": arrays["x_test"][:, :2]})
    for name, words in (("part.npz", "must be an .npz with"), ("odd.npz", "must be (n, D)"), ("none.npz", "must be")):
        code, _, error = run_cli("ensembles", "train", tmp_path / name, "--out", tmp_path / "out")
        assert code == 2
        assert words in " ".join(error.split())


def test_the_description_is_light():
    assert_light_import("iclr_generalization.ensembles.paper")
