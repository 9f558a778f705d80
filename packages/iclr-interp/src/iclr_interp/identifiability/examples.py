"""Networks whose explanations are known exactly (spec 9)."""

from iclr_interp.identifiability.networks import MLP

#: XOR in the one possible way: OR and not AND. One circuit, one interpretation: identifiable.
UNIQUE = MLP([[[1, 1], [1, 1]], [[1, -2]]], [[0, -1], [0]], "relu")

#: The same with a third hidden neuron that nothing listens to: 4 circuits, 35 interpretations.
IDLE = MLP([[[1, 1], [1, 1], [1, 1]], [[1, -2, 0]]], [[0, -1, -1], [0]], "relu")

#: A trained XOR network, weights rounded to two decimals: 40 circuits, 3,932 interpretations.
TRAINED = MLP(
    [
        [[0.99, -0.02], [-1.32, -4.11], [0.89, 0.64]],
        [[0.89, -3.25, -0.93], [0.17, 3.68, 0.39], [0.04, 4.02, -1.07]],
        [[1.65, -2.50, -2.38]],
    ],
    [[-0.21, -0.30, -0.68], [0.47, 0.17, 0.23], [0.14]],
)
