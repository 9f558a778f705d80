"""What training costs beside the environment, and what the missing barrier buys: `python benchmarks/afedpg.py`."""

import time

import gymnasium
import numpy as np
import torch

from iclr_afedpg import AFedPG, EventClock, FedPG, GaussianMLP, LocalAgents, Server, async_rate, sync_rate
from iclr_afedpg.federation import Federation
from iclr_afedpg.sampling import Gradient, rollout
from iclr_shared.bench import compare, print_comparisons
from iclr_shared.tables import print_table


def sampling() -> None:
    """Steps per second with the policy acting, in NumPy and as a torch module would, over the bare environment's."""
    rows = []
    for name in ("InvertedPendulum-v5", "Swimmer-v5", "Hopper-v5", "Humanoid-v5"):
        env = gymnasium.make(name, disable_env_checker=True)
        policy = GaussianMLP().bind(env.observation_space, env.action_space)
        rng = np.random.default_rng(0)
        theta = policy.initial(rng)
        weights = torch.tensor(theta)
        ours = policy.actor(theta)

        def in_torch(observation, rng, policy=policy, weights=weights):
            from iclr_afedpg.policies import mlp

            with torch.no_grad():
                seen = torch.as_tensor(observation, dtype=torch.float32)
                mean = mlp(weights, policy.sizes, seen, torch.tanh)
                return torch.normal(mean, weights[-policy.outputs :].exp()).numpy()

        still = np.zeros(policy.outputs, np.float32)

        def bare(observation, rng, still=still):
            return still

        rates = []
        for act in (bare, ours, in_torch):
            steps, start = 0, time.perf_counter()
            while time.perf_counter() - start < 1.5:
                steps += len(rollout(env, policy, act, rng, 200).rewards)
            rates.append(steps / (time.perf_counter() - start))
        rows.append((name, rates[0], rates[1], rates[1] / rates[0], rates[2] / rates[0]))
    print_table(
        ("environment", "bare (steps/s)", "with policy", "ratio (wanted ≥ 0.5)", "torch module"), rows, "sampling"
    )


def nothing(agent: int, n: int, read) -> Gradient:
    return Gradient(read.theta)


def overhead() -> None:
    """Milliseconds of server and transport for each gradient, two local processes that do no work."""
    rows = []
    for size in (10_000, 100_000, 1_000_000):
        agents = LocalAgents(2, nothing)
        federation = Federation(Server(np.ones(size, np.float32)), agents)
        federation.start()
        for _ in range(10):
            federation.step()
        start = time.perf_counter()
        for _ in range(200):
            federation.step()
        spent = (time.perf_counter() - start) / 200
        agents.close()
        rows.append((size, 1000 * spent, "≤ 2" if size == 100_000 else ""))
    print_table(("parameters", "ms per gradient", "wanted"), rows, "server and transport, local processes")


def barrier() -> None:
    """Gradients consumed at equal virtual time."""
    rows = []
    for times in ((1, 1, 1, 10), (1, 2, 3, 4), (1, 1, 1, 1)):
        options = {"policy": GaussianMLP(()), "batch_steps": 20, "horizon": 20, "clock": EventClock(times)}
        asynchronous, synchronous = (
            cls("InvertedPendulum-v5", **options).run(max_virtual_time=40).frame for cls in (AFedPG, FedPG)
        )
        consumed = len(asynchronous), 4 * len(synchronous)
        rows.append((str(times), *consumed, consumed[0] / consumed[1], async_rate(times) / sync_rate(times)))
    print_table(("t", "without barrier", "with", "ratio", "theory"), rows, "gradients in 40 virtual seconds")


def gradient() -> None:
    """One batched gradient of an agent's episodes against a backward pass for each step."""
    env = gymnasium.make("Swimmer-v5", disable_env_checker=True)
    policy = GaussianMLP().bind(env.observation_space, env.action_space)
    rng, comparisons = np.random.default_rng(0), []
    theta = policy.initial(rng)
    for steps in (100, 400):
        seen, did = rng.normal(size=(steps, 8)).astype(np.float32), rng.normal(size=(steps, 2)).astype(np.float32)
        weights = torch.tensor(rng.normal(size=steps), dtype=torch.float32)

        def batched(seen=seen, did=did, weights=weights):
            parameters = torch.tensor(theta, requires_grad=True)
            objective = (policy.log_prob(parameters, torch.tensor(seen), torch.tensor(did)) * weights).sum()
            return torch.autograd.grad(objective, parameters)[0].numpy()

        def stepwise(seen=seen, did=did, weights=weights):
            total = np.zeros_like(theta)
            for i in range(len(seen)):
                parameters = torch.tensor(theta, requires_grad=True)
                log_prob = policy.log_prob(parameters, torch.tensor(seen[i : i + 1]), torch.tensor(did[i : i + 1]))
                total += torch.autograd.grad((log_prob * weights[i]).sum(), parameters)[0].numpy()
            return total

        def same(outputs):
            np.testing.assert_allclose(outputs["ours"], outputs["a backward pass a step"], rtol=1e-2, atol=1e-2)

        comparisons.append(compare({"ours": batched, "a backward pass a step": stepwise}, check=same, reps=5))
    print_comparisons(comparisons, "policy gradient of 100 and 400 steps")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sampling()
    overhead()
    barrier()
    gradient()
