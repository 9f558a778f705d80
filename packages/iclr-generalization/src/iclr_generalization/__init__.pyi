from . import ensembles, modular
