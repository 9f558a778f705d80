"""The errors that the `iclr` command turns into one clear message and an exit code instead of a traceback."""


class InputError(ValueError):
    """What the user gave cannot be used. One or two sentences: what is wrong, where, and what to do."""


class Unavailable(RuntimeError):
    """Something this machine lacks (a GPU, a data set). A claim that raises it is skipped and says so, never passed."""


class MissingExtra(Unavailable):
    """An optional dependency is not installed.

    Args:
        module: the module that could not be imported.
        requirement: what to install, in pip's terms, such as ``iclr-hip[cuda12]``.
    """

    def __init__(self, module: str, requirement: str):
        super().__init__(f"{module} is not installed. Install it with: pip install '{requirement}'")
        self.module = module
        self.requirement = requirement


class Interrupted(KeyboardInterrupt):
    """Stopped on request (SIGINT or SIGTERM) at a point from which the work can be resumed."""


def require(module: str, requirement: str):
    """Import an optional dependency, or say how to install it.

    Args:
        module: dotted name of the module.
        requirement: what provides it, in pip's terms, such as ``iclr-shared[llm]``.

    Returns:
        The imported module.

    Raises:
        MissingExtra: if `module` itself is absent. A fault inside it propagates as it is.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(module, requirement) from None
