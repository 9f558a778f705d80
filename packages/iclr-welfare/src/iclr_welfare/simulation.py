"""Simulation of thousands of trajectories at once: seeds and populations in one compiled call, in resumable chunks."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_welfare.dynamics import RECORDS, Noise, Shocks, State, advance_many, ranked_differences
from iclr_welfare.policies import POLICIES, find
from iclr_welfare.population import Population, whole
from iclr_welfare.response import Response
from iclr_welfare.trajectories import Result


def simulate(
    population: Population,
    policy: str,
    M: int,
    T: int,
    *,
    key: jax.Array,
    seeds: int | Sequence[int] | None = None,
    noise: Noise | None = None,
    record: Sequence[str] = ("mean", "average", "min"),
    record_every: int = 1,
    gini_shift: float = 0.0,
    rounded: bool = False,
    chunk: int | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] | None = None,
    checkpoint: Checkpoint | None = None,
    sharding: jax.sharding.Sharding | None = None,
) -> Result:
    """Simulate the welfare dynamics under one policy (Wu et al., ICLR 2025).

    Args:
        population: the people. The dtype of their U0 is the simulation's; for float64 no global setting is needed.
        policy: name in `POLICIES`.
        M: interventions per step, 1 <= M < N.
        T: horizon, steps, at least 2.
        key: JAX random key. The same key gives all policies the same shocks (common random numbers).
        seeds: how many seeds, or their numbers; None for a single trajectory without a seed axis (seed number 0).
        noise: shocks; None for none.
        record: names in `RECORDS`; ``"mean"`` is always recorded. ``"welfare"`` keeps N numbers per time and seed.
        record_every: steps between records; the last time is always recorded. Memory grows with seeds T/record_every.
        gini_shift: welfare added to everyone before the Gini coefficient is taken.
        rounded: whether f, g and shocks are rounded to integers, as in the official code.
        chunk: steps per compiled call, a multiple of `record_every`; None for all. It changes nothing in the result.
        progress: wraps the iterable over chunks, such as a progress bar.
        checkpoint: where the state is kept after each chunk when due, and from where it goes on after an interruption.
        sharding: how the seed axis is laid out over devices; its size must divide the number of seeds.

    Returns:
        The result, with arrays of numpy.

    Raises:
        InputError: for an unknown policy or record, M or T out of range, or a checkpoint of another run.
    """
    shocks = [noise] if noise else None
    rest = (record, record_every, gini_shift, rounded, chunk, progress, checkpoint, sharding)
    result = _simulate([population], policy, M, T, key, seeds, shocks, *rest)[0]
    return result[0] if seeds is None else result


def simulate_many(
    populations: Sequence[Population],
    policy: str,
    M: int,
    T: int,
    *,
    key: jax.Array,
    seeds: int | Sequence[int] = 1,
    noise: Sequence[Noise] | None = None,
    record: Sequence[str] = ("mean", "average", "min"),
    record_every: int = 1,
    rounded: bool = False,
) -> Result:
    """`simulate` for many populations of one size and family at once, such as the cells of a parameter sweep.

    Args:
        populations: P populations of the same number of people, families of f and g, and dtype.
        policy: name in `POLICIES`.
        M: interventions per step.
        T: horizon, steps.
        key: JAX random key; seed s has the same shocks (up to their size) in every population.
        seeds: how many seeds, or their numbers.
        noise: shocks of each population; None for none.
        record: see `simulate`.
        record_every: see `simulate`.
        rounded: see `simulate`.

    Returns:
        The result, leading axes (P, seeds).

    Raises:
        InputError: if the populations differ in size, family or dtype; otherwise as `simulate`.
    """
    if not populations:
        raise InputError("No population was given.")
    kinds = {(p.N, type(p.f).__name__, type(p.g).__name__, str(p.U0.dtype)) for p in populations}
    if len(kinds) > 1:
        raise InputError(f"Populations must share size, families and dtype, but there are: {sorted(kinds)}.")
    return _simulate(
        populations, policy, M, T, key, seeds, noise, record, record_every, 0.0, rounded, None, None, None, None
    )


def _simulate(
    populations, policy, M, T, key, seeds, noise, record, every, shift, rounded, chunk, progress, checkpoint, sharding
) -> Result:
    find(policy)
    populations[0].check_budget(M)
    M, T, every = (whole(v, n) for v, n in ((M, "M"), (T, "The horizon T"), (every, "record_every")))
    numbers = _seed_numbers(seeds)
    unknown = [name for name in record if name not in RECORDS]
    if unknown:
        raise InputError(f"Cannot record {unknown[0]!r}; choose among {', '.join(RECORDS)}.")
    if T < 2:
        raise InputError(f"The horizon must be at least two steps (T >= 2), not {T}.")
    if not 1 <= every <= T:
        raise InputError(f"The steps between records (record_every) must lie between 1 and {T}, not {every}.")
    if not np.isfinite(shift):
        raise InputError(f"The shift of the Gini coefficient must be a finite number, not {shift}.")
    if chunk is not None and (chunk < every or chunk % every):
        raise InputError(f"A chunk of {chunk} steps must be a multiple of record_every = {every}.")
    record = tuple(name for name in RECORDS if name in {*record, "mean"})
    dtype = populations[0].U0.dtype
    P = len(populations)
    parameters = describe(populations, policy, M, T, key, numbers, noise, rounded, shift)
    _check_range(np.stack([p.U0 for p in populations])[:, None], populations)

    with jax.enable_x64(dtype == np.float64):
        f, g = (_stack([getattr(p, name) for p in populations], dtype) for name in ("f", "g"))
        shocks = Shocks(
            np.array([np.sqrt(n.variance) for n in noise] if noise else np.zeros(P), dtype),
            np.array([n.bound for n in noise] if noise else np.zeros(P), dtype),
            np.full(P, T // 2, np.int32),
        )
        keys = _keys(key, np.asarray(numbers, np.uint32))
        state = _start(np.stack([p.U0 for p in populations]), len(numbers))
        observed = {name: [value[:, :, None]] for name, value in _first(state.welfare, record, shift).items()}
        t = 0
        if checkpoint is not None and (saved := checkpoint.latest()) is not None:
            t, state, observed = _restore(saved, parameters["fingerprint"], record, every)
        if sharding is not None:
            keys, state = _lay_out(keys, state, sharding)
        options = {
            "policy": policy,
            "M": M,
            "noisy": bool(noise) and any(n.variance > 0 for n in noise),
            "rounded": rounded,
        }
        options |= {"record": record, "shift": shift}
        plan = _plan(t, T, every, chunk)
        for end in progress([b for b, _ in plan]) if progress is not None else [b for b, _ in plan]:
            stride = dict(plan)[end]
            state, seen = advance_many(f, g, state, keys, shocks, steps=end - t, every=stride, **options)
            for name, value in seen.items():
                observed[name].append(np.asarray(value))
            t = end
            if checkpoint is not None and (t == T or checkpoint.due()):
                observed = {name: [np.concatenate(parts, axis=2)] for name, parts in observed.items()}
                kept = {f"state_{n}": np.asarray(v) for n, v in zip(State._fields, state, strict=True)}
                kept |= {f"record_{n}": parts[0] for n, parts in observed.items()}
                checkpoint.save(t, kept | {"fingerprint": parameters["fingerprint"], "every": every})
        end_state = State(*(np.asarray(v) for v in state))
    _check_range(end_state.welfare, populations)
    columns = {name: np.concatenate(parts, axis=2) for name, parts in observed.items()}
    times = np.union1d(np.arange(0, T + 1, every), [T]).astype(np.int64)
    return Result(
        policy=policy,
        M=M,
        T=T,
        times=times,
        **{name: columns.get(name) for name in RECORDS},
        U0=np.stack([p.U0 for p in populations]),
        U_half=end_state.middle,
        U_T=end_state.welfare,
        selected_counts=end_state.counts,
        late_counts=end_state.late_counts,
        parameters=parameters,
    )


def _seed_numbers(seeds: int | Sequence[int] | None) -> list[int]:
    if seeds is None:
        return [0]
    if np.ndim(seeds) == 0:
        numbers = list(range(whole(seeds, "The number of seeds")))
    else:
        numbers = [whole(s, "The number of a seed") for s in seeds]
    if not numbers:
        raise InputError(f"At least one seed is needed, not {seeds}.")
    if not 0 <= min(numbers) <= max(numbers) < 2**32:
        raise InputError(f"The numbers of seeds must lie between 0 and 2^32 - 1, not {min(numbers)} to {max(numbers)}.")
    return numbers


def _check_range(welfare: np.ndarray, populations: Sequence[Population]) -> None:
    """Refuse welfare (populations, seeds, people) so large that adding a step to it is mostly rounding."""
    largest = np.stack([np.maximum(p.best[0], p.worst[1]) for p in populations])[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        fine = np.spacing(np.abs(welfare)) <= 0.01 * largest
    if not fine.all():
        _, _, who = np.argwhere(~fine)[0]
        raise InputError(
            f"The welfare of person {who} reaches {welfare[~fine][0]:g}, where {welfare.dtype} cannot resolve one step "
            "of the dynamics. Use smaller values (other units)."
        )


def _stack(responses: list[Response], dtype: np.dtype) -> Response:
    """One pytree with a leading axis of populations; a parameter that is scalar for some is spread over people."""

    def join(*leaves):
        shape = np.broadcast_shapes(*(leaf.shape for leaf in leaves))
        return np.stack([np.broadcast_to(leaf, shape) for leaf in leaves]).astype(dtype)

    return jax.tree.map(join, *responses)


@jax.jit
def _keys(key: jax.Array, numbers: Array) -> tuple[jax.Array, jax.Array]:
    """Keys of the shocks and of the policy's own draws for each seed number."""
    roots = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    over_seeds = jax.vmap(jax.random.fold_in, (0, None))
    return over_seeds(roots, 0), over_seeds(roots, 1)


def _start(U0: np.ndarray, seeds: int) -> State:
    welfare = np.repeat(U0[:, None, :], seeds, axis=1)
    counts, steps = np.zeros(welfare.shape, np.int32), np.zeros(welfare.shape[:2], np.int32)
    return State(steps, welfare, welfare, counts, counts, np.zeros(welfare.shape[:2], U0.dtype))


def _first(U0: np.ndarray, record: tuple[str, ...], shift: float) -> dict[str, np.ndarray]:
    """What is recorded at t = 0; the running average starts from the initial mean."""
    mean, low = U0.mean(axis=-1), U0.min(axis=-1)
    table = {"mean": mean, "average": mean, "min": low, "welfare": U0}
    if "gini" in record:
        with np.errstate(divide="ignore", invalid="ignore"):
            table["gini"] = np.where(low + shift < 0, np.nan, ranked_differences(np, U0 + shift)).astype(U0.dtype)
    return {name: table[name] for name in record}


def _plan(t: int, T: int, every: int, chunk: int | None) -> list[tuple[int, int]]:
    """(end, stride) of each compiled call from t to T; the steps left over by `every` form a stretch of their own."""
    whole = T - T % every
    ends = list(range(t + (chunk or T), whole, chunk or T)) + ([whole] if whole > t else [])
    return [(end, every) for end in ends] + ([(T, T - whole)] if whole < T and t < T else [])


def _restore(saved, fingerprint: str, record: tuple[str, ...], every: int):
    t, kept = saved
    if kept["fingerprint"] != fingerprint or kept["every"] != every or any(f"record_{n}" not in kept for n in record):
        raise InputError(
            "The checkpoint belongs to a run with other people, parameters, seeds or records. Give another "
            "folder, or remove it."
        )
    state = State(*(kept[f"state_{name}"] for name in State._fields))
    return t, state, {name: [kept[f"record_{name}"]] for name in record}


def _lay_out(keys, state: State, sharding: jax.sharding.Sharding):
    """Put the seed axis (first of keys, second of the state) on the devices."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        raise InputError("sharding must be a jax.sharding.NamedSharding over one axis, for the seeds.")
    # The compiler lays out what lies in between (axis type Auto, the default of Mesh but not of make_mesh).
    mesh = jax.sharding.Mesh(sharding.mesh.devices, sharding.mesh.axis_names)
    of_keys, of_state = (jax.sharding.PartitionSpec(*axes, *sharding.spec) for axes in ((), (None,)))
    return (
        jax.device_put(keys, jax.sharding.NamedSharding(mesh, of_keys)),
        jax.device_put(state, jax.sharding.NamedSharding(mesh, of_state)),
    )


def describe(
    populations: Sequence[Population],
    policy: str,
    M: int,
    T: int,
    key: jax.Array,
    numbers: Sequence[int],
    noise: Sequence[Noise] | None,
    rounded: bool,
    shift: float,
) -> dict[str, Any]:
    """Everything that determines a run, JSON-able, with a fingerprint of it all.

    Args:
        populations: the people; of more than one population the parameters enter the fingerprint only.
        policy: name in `POLICIES`.
        M: interventions per step.
        T: horizon, steps.
        key: JAX random key.
        numbers: of the seeds.
        noise: shocks of each population; None for none.
        rounded: whether f, g and shocks are rounded to integers.
        shift: welfare added before the Gini coefficient is taken.
    """
    first = populations[0]
    people = [np.asarray(leaf) for p in populations for leaf in (p.U0, *jax.tree.leaves((p.f, p.g)))]
    data = np.asarray(jax.random.key_data(key))
    made: dict[str, Any] = {
        "policy": policy,
        "M": M,
        "T": T,
        "N": first.N,
        "populations": len(populations),
        "seeds": numbers,
        "rounded": rounded,
        "gini_shift": shift,
        "families": [type(first.f).__name__, type(first.g).__name__],
        "dtype": str(first.U0.dtype),
        "key": data.tolist(),
        "noise_variance": [n.variance for n in noise] if noise else None,
        "noise_bound": [n.bound for n in noise] if noise else None,
    }
    if len(populations) == 1:
        made["U0"] = first.U0.tolist()
        for name in ("f", "g"):
            response = getattr(first, name)
            values = {field.name: getattr(response, field.name).tolist() for field in dataclasses.fields(response)}
            made[name] = {"family": type(response).__name__, **values}
    digest = hashlib.blake2b(repr(sorted(made.items())).encode())
    for leaf in people:
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return made | {"fingerprint": digest.hexdigest()[:32]}


def compare(
    population: Population,
    policies: Sequence[str],
    M: int,
    T: int,
    n_seeds: int = 20,
    *,
    key: jax.Array,
    noise: Noise | None = None,
    common_noise: bool = True,
    **options: Any,
) -> dict[str, Result]:
    """Simulate several policies on the same people.

    Args:
        population: the people.
        policies: names in `POLICIES`.
        M: interventions per step.
        T: horizon, steps.
        n_seeds: number of seeds.
        key: JAX random key.
        noise: shocks; None for none.
        common_noise: whether seed s brings all policies the same shocks, so that differences between them are paired.
            Otherwise each policy has its own, which do not depend on what other policies are compared.
        options: passed on to `simulate`.

    Returns:
        Results by policy, in the order given.

    Raises:
        InputError: as `simulate`.
    """
    if not policies:
        raise InputError("No policy to compare was named.")
    for name in policies:
        find(name)
    order = list(POLICIES)
    return {
        name: simulate(
            population, name, M, T, key=key if common_noise else jax.random.fold_in(key, 1 + order.index(name)),
            seeds=n_seeds, noise=noise, **options,
        )
        for name in policies
    }  # fmt: skip
