from . import identifiability as identifiability
