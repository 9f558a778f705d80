from .alignment import Alignment, noise_alignment
from .architectures import architecture
from .attack import Attack, pgd, robust_error
from .augmentation import crop_flip, crop_flip_cutout
from .connectivity import Path, linear_mode_connectivity, reestimate_batch_norm, with_batch_norm
from .escape import EscapeCurve, Growth, escape_curve, exponential_growth
from .images import Images, read_cifar, read_npz
from .objective import Model, evaluate, flax_model, function_model, one_hot, training_loss
from .sam import TrainState, base_optimizer, make_step, sam
from .schedule import LearningRate, SwitchSchedule
from .stability import (
    gd_stability_threshold,
    sam_amplitude,
    sam_stability_threshold,
    sgd_frobenius_bound,
    usam_factor,
    usam_frobenius_bound,
)
from .sweep import switch_sweep
from .training import RunResult, Training, fit
