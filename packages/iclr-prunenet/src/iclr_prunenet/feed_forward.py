"""The feed-forward blocks of a causal language model, found by their structure and cut by hidden unit."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from iclr_shared.errors import InputError

# Child modules that produce hidden units (the first is scored), and the one that consumes them.
_SHAPES = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("gate_up_proj",), "down_proj"),
    (("up_proj",), "down_proj"),
    (("fc1",), "fc2"),
    (("c_fc",), "c_proj"),
    (("dense_h_to_4h",), "dense_4h_to_h"),
    (("fc_in",), "fc_out"),
)
_FUSED = "gate_up_proj"
# Where configurations say how many hidden units there are.
_WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_ff")


class UnsupportedModel(InputError, NotImplementedError):
    """The model's feed-forward blocks cannot be cut; the message names the module."""


@dataclass(frozen=True)
class Cut:
    """One parameter that loses hidden units.

    Args:
        parameter: its name in the model.
        dim: the dimension of the hidden units.
        copies: how many blocks of n units lie along it (2 where gate and up are one matrix).
    """

    parameter: str
    dim: int
    copies: int = 1


@dataclass(frozen=True)
class FeedForward:
    """One block: hidden = act(W x), output = V hidden.

    Args:
        name: of the module that holds the matrices.
        hidden_size: h, width of the residual stream.
        intermediate_size: n, number of hidden units.
        scored: the parameter whose rows are scored: the gate of gated blocks, else the first matrix.
        transposed: whether it is stored as (h, n), as in GPT-2.
        cuts: all parameters that lose units, `scored` first.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    scored: str
    transposed: bool
    cuts: tuple[Cut, ...]

    def rows(self, parameter: Tensor) -> Float[Tensor, "n h"]:
        """The scored matrix W, one row for each hidden unit, from the parameter called `scored`."""
        return (parameter.T if self.transposed else parameter)[: self.intermediate_size]


def find_feed_forwards(model: nn.Module) -> list[FeedForward]:
    """The feed-forward blocks of `model` in the order of its layers; works on the meta device too.

    Raises:
        UnsupportedModel: if there is none, or a block has experts, quantised or shared weights, or another size than
            the others.
    """
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in ("experts", "router") or hasattr(module, "experts"):
            raise UnsupportedModel(f"{name} is a mixture of experts; only dense feed-forward blocks can be pruned.")
    blocks = [block for name, module in model.named_modules() if (block := _block(name, module)) is not None]
    if not blocks:
        known = ", ".join("/".join((*producers, consumer)) for producers, consumer in _SHAPES)
        raise UnsupportedModel(f"{type(model).__name__} has no feed-forward block of a known shape ({known}).")
    _refuse_shared(model, blocks)
    sizes = {(block.hidden_size, block.intermediate_size): block.name for block in blocks}
    if len(sizes) > 1:
        (first, a), (second, b) = list(sizes.items())[:2]
        raise UnsupportedModel(f"Feed-forward blocks differ in (h, n): {a} has {first}, {b} has {second}.")
    return blocks


def cut(tensor: Tensor, cut: Cut, rows: Int[Tensor, " m"], intermediate_size: int) -> Tensor:
    """`tensor` with only the hidden units `rows` (m,) along the cut's dimension, as a new contiguous tensor."""
    index = torch.cat([rows + copy * intermediate_size for copy in range(cut.copies)])
    return tensor.index_select(cut.dim, index.to(tensor.device)).contiguous()


def slice_block(model: nn.Module, block: FeedForward, rows: Int[Tensor, " m"]) -> None:
    """Keep the hidden units `rows` of one block, in place (section 2.3): exactly the function of the masked block."""
    for part in block.cuts:
        path, name = part.parameter.rsplit(".", 1)
        module = model.get_submodule(path)
        old = getattr(module, name)
        new = nn.Parameter(cut(old.detach(), part, rows, block.intermediate_size), requires_grad=old.requires_grad)
        setattr(module, name, new)
        if name == "weight":
            _update_sizes(module)


def mask_block(model: nn.Module, block: FeedForward, rows: Int[Tensor, " m"]) -> None:
    """Set the activations of all hidden units but `rows` to zero, in place: the consumer no longer reads them."""
    consumer = next(part for part in reversed(block.cuts))
    weight = model.get_parameter(consumer.parameter)
    kept = torch.zeros(block.intermediate_size, dtype=torch.bool, device=weight.device)
    kept[rows.to(weight.device)] = True
    shape = [1, 1]
    shape[consumer.dim] = -1
    with torch.no_grad():
        weight.mul_(kept.view(shape))


def set_width(config: PretrainedConfig, before: int, after: int) -> None:
    """Write the new number of hidden units into a configuration, in place.

    Raises:
        UnsupportedModel: if the configuration has no entry for it, so that a pruned model could not be loaded.
    """
    text = config.get_text_config()
    names = [name for name in _WIDTHS if getattr(text, name, None) == before]
    # GPT-2 and others leave it at None for four times the hidden size.
    names = names or [name for name in _WIDTHS if hasattr(text, name) and getattr(text, name) is None]
    if not names:
        raise UnsupportedModel(
            f"The configuration of {config.model_type!r} does not hold the width {before} of its feed-forward blocks, "
            f"so a pruned model could not be loaded."
        )
    for name in names:
        setattr(text, name, after)


def scored_matrices(model: PreTrainedModel) -> list[Float[Tensor, "n h"]]:
    """The matrices W_l that the policy sees, one (n, h) view for each layer."""
    return [block.rows(model.get_parameter(block.scored).detach()) for block in find_feed_forwards(model)]


def _block(name: str, module: nn.Module) -> FeedForward | None:
    children = dict(module.named_children())
    for producers, consumer in _SHAPES:
        if all(child in children for child in (*producers, consumer)):
            break
    else:
        return None
    linears = [f"{name}.{child}" for child in (*producers, consumer)]
    for path, child in zip(linears, (*producers, consumer), strict=True):
        _check_linear(path, children[child])
    first, last = children[producers[0]], children[consumer]
    copies = 2 if producers[0] == _FUSED else 1
    units, hidden = _out_in(first)
    units //= copies
    if _out_in(last)[1] != units:
        raise UnsupportedModel(f"{linears[-1]} reads {_out_in(last)[1]} units but {linears[0]} makes {units}.")
    cuts = []
    for path, child in zip(linears[:-1], producers, strict=True):
        cuts.append(Cut(f"{path}.weight", 1 if isinstance(children[child], Conv1D) else 0, copies))
        if children[child].bias is not None:
            cuts.append(Cut(f"{path}.bias", 0, copies))
    cuts.append(Cut(f"{linears[-1]}.weight", 0 if isinstance(last, Conv1D) else 1))
    return FeedForward(name, hidden, units, f"{linears[0]}.weight", isinstance(first, Conv1D), tuple(cuts))


def _check_linear(path: str, module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    if not isinstance(module, nn.Linear | Conv1D) or not isinstance(weight, Tensor):
        raise UnsupportedModel(
            f"{path} is a {type(module).__name__}, not a linear layer: load the model unquantised and without adapters."
        )
    if not weight.is_floating_point() or weight.element_size() < 2 or weight.ndim != 2:
        raise UnsupportedModel(f"{path} holds {weight.dtype} weights: load the model unquantised.")


def _refuse_shared(model: nn.Module, blocks: list[FeedForward]) -> None:
    cuts = {part.parameter for block in blocks for part in block.cuts}
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = owners.setdefault(id(parameter), name)
        if other != name and (name in cuts or other in cuts):
            raise UnsupportedModel(
                f"{other} and {name} are one tied matrix; it cannot be cut differently in two places."
            )


def _out_in(module: nn.Module) -> tuple[int, int]:
    rows, columns = module.weight.shape
    return (columns, rows) if isinstance(module, Conv1D) else (rows, columns)


def _update_sizes(module: nn.Module) -> None:
    out, into = _out_in(module)
    sizes = {"nf": out, "nx": into} if isinstance(module, Conv1D) else {"out_features": out, "in_features": into}
    for name, value in sizes.items():
        setattr(module, name, value)


def all_finite(name: str, weights: Tensor) -> None:
    """Refuse weights that are no numbers.

    Raises:
        InputError: naming those that hold NaN or infinity.
    """
    if not torch.isfinite(weights).all():
        raise InputError(f"{name} holds NaN or infinite weights: repair the checkpoint before pruning it.")
