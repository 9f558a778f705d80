from . import identifiability as identifiability
from . import orion as orion
