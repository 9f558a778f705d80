import inspect

import pytest

from iclr_dynamics.uv_model.paper import METHOD
from iclr_shared.registry import resolve
from iclr_shared.testing import assert_light_import


def test_metadata_is_light_and_every_reference_resolves():
    assert_light_import("iclr_dynamics.uv_model.paper")
    for command in METHOD.commands:
        assert inspect.getdoc(resolve(command.function))


@pytest.mark.parametrize("claim", METHOD.claims, ids=lambda claim: claim.id)
def test_checks_take_a_run_and_keyword_sizes(claim):
    first, *sizes = inspect.signature(resolve(claim.check)).parameters.values()
    assert first.name == "run"
    assert all(size.kind is size.KEYWORD_ONLY and size.default is not size.empty for size in sizes)
