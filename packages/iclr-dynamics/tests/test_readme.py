"""The README's code blocks outside the methods' sections; `conftest.py` runs them."""

SECTIONS = ("Install", "Shared tools")


def test_block_runs(readme_block):
    readme_block()
