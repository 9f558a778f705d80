from . import theory
from .dictionaries import grid_features, modular_features, monolithic_features, smallest_sample
from .kernel_rule import KERNELS, additive_residual, gram, objective, orthonormal
from .networks import ModularNet, Monolithic, Training, count, equal_width, fit, initialise, with_projections
from .recovery import module_recovery, principal_cosines
from .regressor import ModularRegressor
from .search import Modules, NoModuleFound, Search, find_modules
from .tasks import Compositional, SineTask, digit_images
from .theory import sample_complexity, simulate, test_loss, train_loss
