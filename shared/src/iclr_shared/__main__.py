"""``python -m iclr_shared``: the `iclr` command."""

from iclr_shared.cli import entry

if __name__ == "__main__":
    entry()
