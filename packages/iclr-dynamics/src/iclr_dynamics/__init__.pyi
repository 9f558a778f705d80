from . import late_sam, linear_network, uv_model
from .function_space import riccati, step
from .networks import MLP, Descent, Split, digits, error_rate, gradient_descent, mse_loss, network_loss
from .sharpness import Estimate, Spectrum, frobenius_norm, hvp, top_eigenvalues, trace
