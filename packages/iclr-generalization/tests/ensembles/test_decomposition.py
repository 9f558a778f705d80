import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iclr_generalization.ensembles import predictions
from iclr_generalization.ensembles.capacity import capacity_study
from iclr_generalization.ensembles.curves import METRICS, loss_curve
from iclr_generalization.ensembles.decomposition import Law, decompose, law_from_two
from iclr_generalization.ensembles.equivalence import equivalence_test
from iclr_generalization.ensembles.forecasts import binary_error, error_forecast, forecast
from iclr_shared.errors import InputError


def members(K=7, n=150, C=4, seed=0, spread=1.0):
    """Softmax members around common logits, and labels."""
    draw = np.random.default_rng(seed)
    logits = 2 * draw.normal(size=(n, C)) + spread * draw.normal(size=(K, n, C))
    p = np.exp(logits)
    return p / p.sum(2, keepdims=True), draw.integers(0, C, n)


def brute(preds, y, point_loss, size):
    subsets = itertools.combinations(range(len(preds)), size)
    with jax.enable_x64(True):
        onehot = jnp.eye(preds.shape[2])[y]
        return np.mean([point_loss(jnp.asarray(preds[list(s)].mean(0)), onehot).mean() for s in subsets])


def test_the_law_is_the_mean_over_all_subsets():
    preds, y = members()
    curve = loss_curve(preds, y, "brier")
    expected = [brute(preds, y, METRICS["brier"], M) for M in range(1, 8)]
    np.testing.assert_allclose(curve, expected, atol=1e-12)


@pytest.mark.parametrize("metric", ["nll", "error", "welsch"])
def test_other_metrics_are_enumerated(metric):
    preds, y = members(K=5)
    expected = [brute(preds, y, METRICS[metric], M) for M in range(1, 6)]
    np.testing.assert_allclose(loss_curve(preds, y, metric), expected, atol=1e-9)


def test_sampled_curves_agree_with_the_exact_one_and_at_both_ends():
    preds, y = members(K=6)
    sampled, exact = loss_curve(preds, y, mode="sampled"), loss_curve(preds, y)
    np.testing.assert_allclose(sampled, exact, rtol=0.02)
    assert sampled[-1] == pytest.approx(exact[-1], abs=1e-12)


def test_chunks_change_nothing(monkeypatch):
    preds, y = members()
    whole = decompose(preds, y), loss_curve(preds, y, "nll"), loss_curve(preds, y, "welsch", mode="sampled")
    monkeypatch.setattr(predictions, "CHUNK_BYTES", 5000)
    parts = decompose(preds, y), loss_curve(preds, y, "nll"), loss_curve(preds, y, "welsch", mode="sampled")
    np.testing.assert_allclose(parts[0].gram, whole[0].gram, atol=1e-14)
    np.testing.assert_allclose(parts[0].cross, whole[0].cross, atol=1e-14)
    np.testing.assert_allclose(parts[1], whole[1], atol=1e-12)
    np.testing.assert_allclose(parts[2], whole[2], atol=1e-12)


def test_reference_values():
    two = decompose(np.array([[[1.0]], [[-1.0]]]), np.array([[0.0]]), "values")
    assert two.law == Law(-1.0, 2.0)
    assert two.law.loss(2) == 0.0
    law = law_from_two(0.20, 0.17)
    assert law.loss(4) == pytest.approx(0.155)
    assert law.loss(10) == pytest.approx(0.146)
    assert law.limit == pytest.approx(0.14)
    assert law.required_members(0.15) == 6
    assert law.required_members(0.14) is None
    assert law.required_members(0.3) == 1
    assert law.gain_share(2) == 0.5
    for M, expected in ((1, 0.3445783), (4, 0.2118554), (16, 0.0547993)):
        assert binary_error(0.2, 0.5, M) == pytest.approx(expected, abs=1e-7)
    assert law_from_two(0.155, 0.146, (4, 10)).limit == pytest.approx(0.14)


@given(st.floats(0.0, 1.0), st.floats(1e-6, 1.0), st.integers(2, 10_000))
def test_required_members_is_the_smallest_that_does(limit, variance, M):
    law = Law(limit, variance)
    found = law.required_members(law.loss(M))
    assert found is None or law.loss(found) <= law.loss(M) * (1 + 1e-9)
    assert found is None or found <= M


@given(st.integers(0, 1000), st.integers(2, 5))
def test_every_member_added_helps_on_average(seed, K):
    preds, y = members(K=K, n=20, C=3, seed=seed)
    law = decompose(preds, y).law
    assert law.variance >= -1e-12
    M = np.arange(1.0, 10)
    np.testing.assert_allclose(law.loss(M) - law.loss(M + 1), law.variance / (M * (M + 1)), atol=1e-12)


def test_variance_and_gap_are_unbiased_over_members():
    preds, y = members(K=400, n=40)
    true = np.var(preds, axis=0, ddof=1).sum(1).mean()
    draw = np.random.default_rng(1)
    small = [decompose(preds[draw.permutation(400)[:3]], y).law.variance for _ in range(300)]
    assert abs(np.mean(small) - true) < 4 * np.std(small) / math.sqrt(300)


def test_a_zero_one_loss_may_rise_without_any_convexity():
    # 40 % of members are right: 0.6, then 0.648, then 1 (spec 2.5c iii).
    f = np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    losses = [np.mean([np.mean(s) < 0.5 for s in itertools.product(f, repeat=M)]) for M in (1, 3)]
    assert losses == pytest.approx([0.6, 0.648])


def test_forecast_of_squared_losses_is_exact_within_the_sample():
    preds, y = members(K=4)
    found = forecast(preds, y, [1, 2, 4, 8], "brier")
    np.testing.assert_allclose(found.loss[:3], loss_curve(preds, y)[[0, 1, 3]], atol=1e-12)
    assert (found.std > 0).all()
    assert found.limit < found.loss[-1]


def test_error_bars_cover():
    preds, y = members(K=64, n=400)
    truth = loss_curve(preds, y, sizes=[32])[0]
    draw = np.random.default_rng(2)
    hits = 0
    for _ in range(60):
        found = forecast(preds[draw.permutation(64)[:4]], y, [32])
        hits += abs(found.loss[0] - truth) < 2 * found.std[0]
    assert hits >= 54


def test_jackknife_matches_leaving_out_by_hand():
    preds, y = members(K=5)
    found = forecast(preds, y, [8.0], "brier")
    by_hand = np.array([decompose(np.delete(preds, j, 0), y).law.loss(8.0) for j in range(5)])
    assert found.over_members[0] == pytest.approx(np.sqrt(4 / 5 * np.square(by_hand - by_hand.mean()).sum()))


def test_bootstrap_over_points_matches_resampling():
    preds, y = members(K=3, n=300)
    parts = decompose(preds, y)
    values = parts.cross + (parts.single - parts.cross) / 8
    draw = np.random.default_rng(0)
    resampled = [values[draw.integers(0, 300, 300)].mean() for _ in range(4000)]
    assert forecast(preds, y, [8.0]).over_points[0] == pytest.approx(np.std(resampled), rel=0.05)


@pytest.mark.parametrize(("metric", "tolerance"), [("nll", 0.05), ("welsch", 0.03), ("error", 0.1)])
def test_other_forecasts_come_close(metric, tolerance):
    preds, y = members(K=40, n=600, spread=1.5)
    truth = loss_curve(preds, y, metric, sizes=[16], mode="sampled")[0]
    found = forecast(preds[:6], y, [16], metric)
    assert found.loss[0] == pytest.approx(truth, rel=tolerance)
    assert found.over_members[0] > 0


def test_the_error_forecast_agrees_with_the_closed_form_for_two_classes():
    # Margins f_1 - f_0 with mean 0.2 and deviation 0.5 at every point.
    draw = np.random.default_rng(0)
    margin = 0.2 + 0.5 * draw.normal(size=(200, 300))
    preds = np.stack([0.5 - margin / 2, 0.5 + margin / 2], -1)
    found = error_forecast(preds, np.ones(300, dtype=int), [1, 4, 16])
    np.testing.assert_allclose(found, binary_error(0.2, 0.5, np.array([1, 4, 16])), atol=0.01)


def test_points_with_a_negative_margin_get_worse():
    draw = np.random.default_rng(0)
    margin = -0.2 + 0.5 * draw.normal(size=(200, 300))
    preds = np.stack([0.5 - margin / 2, 0.5 + margin / 2], -1)
    found = error_forecast(preds, np.ones(300, dtype=int), [1, 4, 16])
    assert (np.diff(found) > 0).all()


def test_two_members_leave_out_the_bar_over_members():
    preds, y = members(K=2)
    with pytest.warns(UserWarning, match="two members"):
        found = forecast(preds, y, [4])
    assert np.isnan(found.over_members[0])
    assert found.std[0] == found.over_points[0]


def test_equivalence_of_one_law_and_of_a_shift():
    preds, y = members(K=3, n=4000, C=3)
    same = equivalence_test(preds, y)
    assert same.median_ratio < 0.1
    assert same.loss_spread < 0.05
    assert (same.loss_ratio < 0.1).all()
    shifted = np.stack([preds[0], preds[0] + 0.3])
    found = equivalence_test(shifted, np.eye(3)[y], "values")
    assert found.ratio[0] == pytest.approx(1.0)
    assert np.isnan(found.true_class_ratio[0])
    np.testing.assert_allclose(found.wasserstein, 0.3)
    assert found.squared_difference[0] == pytest.approx(3 * 0.09)


def test_distances_agree_with_scipy():
    from scipy.stats import energy_distance, wasserstein_distance

    preds, y = members(K=2, n=300, C=2)
    found = equivalence_test(preds, y)
    for c in range(2):
        assert found.wasserstein[0, c] == pytest.approx(wasserstein_distance(preds[0, :, c], preds[1, :, c]))
    line = preds[:, :, :1]
    one = equivalence_test(line, preds[0, :, :1], "values")
    # SciPy's is the square root of this one.
    assert one.energy[0] == pytest.approx(energy_distance(line[0, :, 0], line[1, :, 0]) ** 2)


def test_a_member_of_another_kind_is_noticed():
    preds, y = members(K=6)
    preds[3] = np.eye(4)[(y + 1) % 4] * 0.9 + 0.025
    with pytest.warns(UserWarning, match="member 3"):
        equivalence_test(preds, y)


def test_capacity():
    by_width = {width: members(K=5, spread=3 / width)[0] for width in (1, 2, 4)}
    y = members()[1]
    study = capacity_study(by_width, y)
    assert (np.diff(study.variance) < 0).all()
    np.testing.assert_allclose(study.single, [decompose(by_width[w], y).law.loss(1) for w in (1, 2, 4)])
    gains = study.gains()
    np.testing.assert_allclose(gains["ensembling"], 0.8 * study.variance)
    np.testing.assert_allclose(gains["widening"][:2], -np.diff(study.single))
    for index in range(3):
        assert study.equivalent_width(index, 1) == pytest.approx(study.widths[index])
    assert (study.limit_std > 0).all()


BAD = members(K=3)


@pytest.mark.parametrize(
    ("preds", "y", "message"),
    [
        (BAD[0][:1], BAD[1], "at least 2 members"),
        (BAD[0], BAD[1][:-1], "149 labels for 150 points"),
        (BAD[0], BAD[1] + 1, "must be in 0..3"),
        (BAD[0], BAD[1] + 0.5, "class indices"),
        (np.concatenate([BAD[0][:2], 3 * BAD[0][2:]]), BAD[1], "Member 2 is no probability"),
        (np.concatenate([BAD[0][:2], np.nan * BAD[0][2:]]), BAD[1], "Member 2 has predictions that are not finite"),
        (np.concatenate([BAD[0][:2], BAD[0][1:2]]), BAD[1], "Members 1 and 2 are identical. The same seed twice"),
    ],
)
def test_bad_predictions_are_named(preds, y, message):
    with pytest.raises(InputError, match=message):
        predictions.check(preds, y)


def test_few_points_are_noticed():
    preds, y = members(n=20)
    with pytest.warns(UserWarning, match="Only 20 points"):
        predictions.check(preds, y)


def test_further_bad_input():
    preds, y = members()
    with pytest.raises(InputError, match=r"1\.\.7"):
        loss_curve(preds, y, sizes=[8])
    with pytest.raises(InputError, match="Choose one of"):
        loss_curve(preds, y, "accuracy")
    with pytest.raises(InputError, match="at least 1"):
        forecast(preds, y, [0])
    for metric in ("nll", "error"):
        with pytest.raises(InputError, match="is one of classes"):
            forecast(preds, preds[0], [4], metric, "values")
    with pytest.raises(InputError, match="Two different"):
        law_from_two(1.0, 1.0, (2, 2))
    with pytest.raises(InputError, match="at least 3"):
        capacity_study({1: preds, 2: preds[:2]}, y)
    with pytest.raises(InputError, match="at least 2 widths"):
        capacity_study({1: preds}, y)
    with pytest.raises(InputError, match="not finite"):
        predictions.targets(np.array([[np.nan]]), 1, 1, "values")


def test_combining_probabilities_and_logits():
    preds, _ = members(K=3)
    np.testing.assert_allclose(predictions.combine(preds), preds.mean(0))
    geometric = np.exp(np.log(preds).mean(0))
    np.testing.assert_allclose(predictions.combine(preds, "logit"), geometric / geometric.sum(1, keepdims=True))


def test_reading(tmp_path):
    preds, y = members(K=3, n=6, C=2)
    np.save(tmp_path / "all.npy", preds)
    np.savez(tmp_path / "all.npz", preds)
    for k in range(3):
        np.savetxt(tmp_path / f"m{k}.csv", preds[k], delimiter=",", header="class0,class1", comments="")
        np.save(tmp_path / f"m{k}.npy", preds[k])
    np.savetxt(tmp_path / "y.csv", y, fmt="%d", header="label", comments="")
    for files in (["all.npy"], ["all.npz"], [f"m{k}.csv" for k in range(3)], [f"m{k}.npy" for k in range(3)]):
        np.testing.assert_allclose(predictions.read([tmp_path / file for file in files]), preds)
    np.testing.assert_array_equal(predictions.read_labels(tmp_path / "y.csv"), y)
    assert isinstance(predictions.read([tmp_path / "all.npy"]), np.memmap)
    np.save(tmp_path / "short.npy", preds[0, :3])
    with pytest.raises(InputError, match=r"short\.npy has shape"):
        predictions.read([tmp_path / "m0.npy", tmp_path / "short.npy"])
    with pytest.raises(InputError, match="no file"):
        predictions.read([tmp_path / "none.npy"])
    (tmp_path / "bad.csv").write_text("a,b\n1,x\n")
    with pytest.raises(InputError, match="Cannot read"):
        predictions.read([tmp_path / "bad.csv"])


def test_scikit_learn_members():
    from sklearn.datasets import load_iris
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    X, y = load_iris(return_X_y=True)
    trees = [DecisionTreeClassifier(max_depth=2, max_features=1, random_state=k).fit(X, y) for k in range(3)]
    preds = predictions.from_sklearn(trees, X)
    assert preds.shape == (3, 150, 3)
    predictions.check(preds, y)
    assert predictions.from_sklearn([DecisionTreeRegressor().fit(X, y)] * 2, X).shape == (2, 150, 1)
