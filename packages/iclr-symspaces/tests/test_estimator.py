import numpy as np
import pytest
import torch
from pyriemann.estimation import Covariances
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from iclr_shared.adapters import torch_bytes
from iclr_shared.errors import InputError
from iclr_symspaces.covariances import BALL_BASELINES, SPD_BASELINES, covariances, log_vech, vech
from iclr_symspaces.estimator import SPACES, BusemannClassifier
from iclr_symspaces.manifolds import Lorentz, PoincareBall
from iclr_symspaces.simulation import noisy_tree, simulate_eeg


@pytest.fixture(scope="module")
def eeg():
    data = simulate_eeg(0, 0.0, 0.3, channels=4, time=64, classes=3, train=20, test=10)
    return covariances(data.train), data.train_labels, covariances(data.test), data.test_labels, data.train


FAST = {"epochs": 15, "lr": 0.05, "batch": 30}


def test_in_scikit_learn(eeg):
    X, y, tests, labels, recordings = eeg
    model = BusemannClassifier(**FAST, random_state=3)
    assert clone(model).get_params() == model.get_params()
    assert model.fit(X, y) is model
    assert model.score(tests, labels) > 0.9
    np.testing.assert_allclose(model.predict_proba(tests).sum(1), 1)
    pipeline = make_pipeline(Covariances("oas"), BusemannClassifier(**FAST))
    assert cross_val_score(pipeline, recordings, y, cv=3, error_score="raise").mean() > 0.9
    search = GridSearchCV(BusemannClassifier(**FAST), {"scale": [True, False]}, cv=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.9
    again = BusemannClassifier(**FAST, random_state=3).fit(X, y)
    assert again.losses_ == model.losses_


def test_labels_of_any_kind_and_the_file(eeg, tmp_path):
    X, y, tests, labels, _ = eeg
    names = np.array(["rest", "left", "right"])
    model = BusemannClassifier(**FAST).fit(X, names[y])
    assert model.score(tests, names[labels]) > 0.9
    model.save(tmp_path / "model.pt")
    loaded = BusemannClassifier.load(tmp_path / "model.pt")
    np.testing.assert_array_equal(loaded.decision_function(tests), model.decision_function(tests))
    assert loaded.predict(tests).tolist() == model.predict(tests).tolist()
    for content, message in ((b"", "no model of this package"), (b"nonsense", "no model of this package")):
        (tmp_path / "bad.pt").write_bytes(content)
        with pytest.raises(InputError, match=message):
            BusemannClassifier.load(tmp_path / "bad.pt")
    with pytest.raises(InputError, match="no model"):
        BusemannClassifier.load(tmp_path / "none.pt")


def test_the_unit_of_measurement_does_not_matter(eeg):
    """Volts squared are 1e-12 of microvolts squared; recentring starts from the data's mean."""
    X, y, tests, *_ = eeg
    one = BusemannClassifier(**FAST).fit(X, y).decision_function(tests)
    other = BusemannClassifier(**FAST).fit(1e-12 * X, y).decision_function(1e-12 * tests)
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [
    {"manifold": "spd-log-euclidean"}, {"manifold": "spd-log-cholesky"}, {"head": "geodesic"}, {"shared_flag": True},
    {"transvection": "triangular"}, {"alpha": 0.5, "beta": 0.2}, {"dtype": "float32"}, {"recenter": False},
    {"parametrization": "riemannian"},
])  # fmt: skip
def test_variants(eeg, options):
    X, y, tests, labels, _ = eeg
    model = BusemannClassifier(**FAST, **options).fit(X, y)
    assert model.losses_[-1] < 0.8 * model.losses_[0]
    assert model.score(tests, labels) > 0.6


def test_hyperbolic_points_and_features():
    x, y = noisy_tree(torch.Generator().manual_seed(0), 4)
    points, labels = x.numpy()[::4], y.numpy()[::4]
    scores = {}
    for options in ({}, {"head": "geodesic"}, {"norm": "gyro"}):
        model = BusemannClassifier("ball", **{**FAST, "epochs": 40}, **options).fit(points, labels)
        scores[str(options)] = model.score(points, labels)
    assert min(scores.values()) > 0.5  # chance is 0.25
    sheet = PoincareBall(4).convert(x, Lorentz(4)).numpy()[::4]
    assert BusemannClassifier("lorentz", **FAST).fit(sheet, labels).module_.space.d == 4
    features = np.random.default_rng(0).normal(size=(40, 3))
    hybrid = BusemannClassifier("ball", clip=1.0, **FAST).fit(features, features[:, 0] > 0)
    assert hybrid.score(features, features[:, 0] > 0) > 0.9
    assert BusemannClassifier("lorentz", clip=1.0, **FAST).fit(features, features[:, 0] > 0).module_.space.d == 3


def test_baselines(eeg):
    X, y, tests, labels, _ = eeg
    for make in SPD_BASELINES.values():
        assert make().fit(X, y).score(tests, labels) > 0.9
    x, y = noisy_tree(torch.Generator().manual_seed(0), 3)
    for make in BALL_BASELINES.values():
        assert make().fit(x.numpy(), y.numpy()).score(x.numpy(), y.numpy()) > 0.5
    np.testing.assert_allclose((vech(X) ** 2).sum(1), (X**2).sum((1, 2)))
    np.testing.assert_allclose(log_vech(np.exp(1.0) * np.eye(2)[None]), [[1, 0, 1]], atol=1e-12)


def test_covariances_of_recordings(eeg):
    X, _, _, _, recordings = eeg

    class Epochs:
        def get_data(self):
            return recordings

    np.testing.assert_array_equal(covariances(Epochs()), X)
    np.testing.assert_array_equal(covariances(X), X)
    with pytest.raises(InputError, match="fewer times than channels"):
        covariances(np.zeros((3, 5, 2)))
    with pytest.raises(InputError, match=r"shape \(trials, channels, time\)"):
        covariances(np.zeros((3, 5)))
    bad = recordings.copy()
    bad[5, 0, 0] = np.nan
    with pytest.raises(InputError, match="entry 5 holds NaN"):
        covariances(bad)


def test_bad_input(eeg):
    X, y, *_ = eeg
    singular = X.copy()
    singular[17] -= 2 * np.linalg.eigvalsh(X[17])[0] * np.eye(4)
    for recenter in (True, False):
        with pytest.raises(InputError, match="matrix 17 is not positive definite: min eigenvalue -"):
            BusemannClassifier(recenter=recenter, **FAST).fit(singular, y)
    cases = [
        ({"manifold": "sphere"}, X, y, f"manifold must be one of {SPACES[0]}"),
        ({"head": "other"}, X, y, "head must be"),
        ({"dtype": "float16"}, X, y, "dtype must be"),
        ({"clip": 1.0}, X, y, "clip is for"),
        ({}, X[0], y, r"shape \(trials, n, n\)"),
        ({"manifold": "ball"}, X, y, r"shape \(samples, d\)"),
        ({}, X, y[:-1], "one label for each"),
        ({}, X, 0 * y, "at least two classes"),
        ({"beta": -0.25}, X, y, "is no metric"),
        ({"lr": -1.0}, X, y, "learning rate"),
    ]
    for options, samples, labels, message in cases:
        with pytest.raises(InputError, match=message):
            BusemannClassifier(**{**FAST, **options}).fit(samples, labels)
    model = BusemannClassifier(**FAST).fit(X, y)
    with pytest.raises(InputError, match=r"trained on samples of shape \(4, 4\), got \(3, 3\)"):
        model.predict(X[:, :3, :3])


def test_random_states_as_in_scikit_learn(eeg, tmp_path):
    X, y, *_ = eeg
    few = {"epochs": 1}
    one, other = (BusemannClassifier(**few, random_state=None).fit(X, y) for _ in range(2))
    assert one.seed_ != other.seed_
    again = BusemannClassifier(**few, random_state=one.seed_).fit(X, y)
    np.testing.assert_array_equal(again.decision_function(X), one.decision_function(X))
    states = (np.random.RandomState(5), np.random.RandomState(5))
    seeds = [BusemannClassifier(**few, random_state=state).fit(X, y).seed_ for state in states]
    assert seeds[0] == seeds[1]
    one.save(tmp_path / "model.pt")
    assert BusemannClassifier.load(tmp_path / "model.pt").get_params()["random_state"] == one.seed_
    # options that a grid search of numpy arrays leaves are saved as plain numbers
    plain = BusemannClassifier(epochs=1, lr=np.float64(0.05), random_state=np.int64(3)).fit(X, y)
    plain.save(tmp_path / "model.pt")
    assert BusemannClassifier.load(tmp_path / "model.pt").get_params()["lr"] == 0.05
    for bad in (-1, 2**32, "seed", 1.5):
        with pytest.raises(InputError, match=r"seed must be from 0|must be an integer, None or"):
            BusemannClassifier(**few, random_state=bad).fit(X, y)


def test_samples_and_labels_that_are_none(eeg):
    X, y, *_ = eeg
    missing = y.astype(float)
    missing[4] = np.nan
    gaps = np.array(["a", None] * (len(y) // 2), dtype=object)
    cases = [
        (X * 1j, y, "X must be real numbers .* got complex128"),
        (X.astype(str), y, "X must be real numbers .* got strings"),
        (np.float64(3), y, r"got float64 of shape \(\)"),
        (X[:0], y[:0], "X: there are no samples"),
        (np.full_like(X, np.nan), y, "X: entry 0 holds NaN"),
        (X, missing, r"no label for sample 4 \(NaN or None\)"),
        (X, gaps, r"no label for sample 1 \(NaN or None\)"),
        (X, np.array(["a", 1] * (len(y) // 2), dtype=object), "cannot be sorted together"),
        (X, y * 1j, "y holds complex numbers"),
        (X, np.full(len(y), "rest"), "all labels are rest$"),
    ]
    for samples, labels, message in cases:
        with pytest.raises(InputError, match=message.replace("rest$", r"rest\.$")):
            BusemannClassifier(epochs=1).fit(samples, labels)
    model = BusemannClassifier(epochs=1).fit(X, y)
    for samples, _, message in cases[:5]:
        with pytest.raises(InputError, match=message):
            model.predict(samples)
    for manifold in ("ball", "lorentz"):
        with pytest.raises(InputError, match="got strings"):
            BusemannClassifier(manifold).fit(np.zeros((4, 2)).astype(str), [0, 1, 0, 1])
    with pytest.raises(InputError, match="no device 'foo' here"):
        BusemannClassifier(device="foo").fit(X, y)
    with pytest.raises(InputError, match="estimator 'foo' of pyriemann failed"):
        covariances(np.random.default_rng(0).normal(size=(3, 2, 9)), "foo")
    with pytest.raises(InputError, match="complex128"):
        covariances(np.zeros((3, 2, 9)) * 1j)


def test_damaged_model_files(eeg, tmp_path):
    X, y, *_ = eeg
    path = tmp_path / "model.pt"
    BusemannClassifier(epochs=1).fit(X, y).save(path)
    whole = path.read_bytes()
    for seed in range(60):
        rng, content = np.random.default_rng(seed), bytearray(whole)
        if seed % 3 == 0:
            content = content[: rng.integers(len(content))]
        else:
            for at in rng.integers(len(content), size=4):
                content[at] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(content))
        with pytest.raises(InputError, match=r"no model of this package|is damaged"):
            BusemannClassifier.load(path)
    for content in ({"format": "iclr-symspaces/1"}, {"format": "iclr-symspaces/1", "options": {"no": 1}}, [1], 5):
        path.write_bytes(torch_bytes(content))
        with pytest.raises(InputError, match="no model of this package"):
            BusemannClassifier.load(path)
