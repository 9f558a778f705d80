"""Each claim's check at reduced size, and once with its effect removed."""

import pytest

from iclr_interp.identifiability import claims
from iclr_interp.identifiability.paper import METHOD
from iclr_interp.identifiability.training import Training
from iclr_shared.errors import InputError
from iclr_shared.testing import assert_light_import, claim_run, holds

QUICK = Training(repeats=25, lr=0.02, epochs=150, batch=20)
CASES = {
    "C1a": (claims.many_circuits, {"networks": 3}, {"unique": True}),
    "C1b": (claims.mean_circuits, {"networks": 3}, {"include_all_nodes": True}),
    "C2a": (claims.many_interpretations, {"networks": 2}, {"unique": True}),
    "C3": (claims.several_algorithms, {"networks": 8}, {"trained": False}),
    "C4": (claims.several_subspaces, {"networks": 8}, {"trained": False}),
    "C5": (claims.circuits_grow_with_width, {"networks": 3, "widths": (2, 3)}, {"widths": (3, 2)}),
    "C7": (claims.no_setting_is_unique, {"networks": 2, "settings": {"quick": QUICK}}, {"unique": True}),
    "C8": (claims.digits_head, {"epochs": 30}, {"shuffled": True}),
    "C9": (claims.known_counts, {}, {"tilt": -0.9}),
    "C10": (claims.fast_is_exact, {"stride": 60}, {"scale": 1.1}),
}


@pytest.fixture(autouse=True, scope="module")
def _quick():
    """Networks that converge in a second."""
    original = claims.converged
    patch = pytest.MonkeyPatch()

    def converged(root, number, gates=("XOR",), hidden=(3, 3), training=QUICK):
        return original(root, number, gates, hidden, training)

    patch.setattr(claims, "converged", converged)
    yield
    patch.undo()


def test_the_paper_is_light():
    assert_light_import("iclr_interp.identifiability.paper")


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, tmp_path):
    check, sizes, removed = CASES[claim]
    measured = check(claim_run(tmp_path, claim), **sizes)
    assert holds(METHOD, claim, measured), measured
    assert measured.baseline is not None
    assert not holds(METHOD, claim, check(claim_run(tmp_path / "removed", claim), **sizes | removed))


def test_variation_between_networks(tmp_path):
    found = claims.interpretations_vary(claim_run(tmp_path, "C2b"), networks=8)
    assert found.measured >= 1
    assert not holds(METHOD, "C2b", claims.interpretations_vary(claim_run(tmp_path, "C2b"), networks=8, same=True))


def test_more_gates(tmp_path):
    found = claims.more_gates(claim_run(tmp_path, "C6"), networks=2, most=2)
    low, high = found.ci
    assert low <= found.measured <= high
    assert len(found.series["XOR circuits"]) == 2


def test_too_few_converge():
    with pytest.raises(InputError, match=r"only 0 converged; 1 are needed"):
        claims.converged(0, 1, training=Training(repeats=2, epochs=1))
