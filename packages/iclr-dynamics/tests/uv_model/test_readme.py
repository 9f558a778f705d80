SECTIONS = ("uv-model",)


def test_block_runs(readme_block):
    readme_block()
