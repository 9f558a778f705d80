"""Whole runs in virtual time: order, budgets, failures, save and resume."""

import json
from fractions import Fraction
from functools import partial

import gymnasium
import numpy as np
import pytest

from iclr_afedpg import federation, training
from iclr_afedpg.agents import AgentError, SimulatedAgents
from iclr_afedpg.clocks import EventClock, Failure, Lognormal
from iclr_afedpg.federation import Federation
from iclr_afedpg.policies import CategoricalMLP, GaussianMLP, SpaceError
from iclr_afedpg.sampling import Gradient, Sampler, rollout
from iclr_afedpg.schedules import Constant, PowerDecay
from iclr_afedpg.settings import Settings
from iclr_afedpg.training import COLUMNS, METHODS, PG, AFedPG, FedPG, evaluate, load_policy
from iclr_afedpg.updates import Rule, Server
from iclr_shared.errors import InputError

SMALL = {"policy": GaussianMLP((4,)), "batch_steps": 8, "horizon": 5}


def run(cls, env, budget, **options):
    return cls(env_fn=env, **(SMALL | options)).run(**budget)


def test_learns_the_bandit(bandit):
    trained = run(AFedPG, partial(bandit, discrete=True), {"max_updates": 60}, n_agents=3, batch_steps=40,
                  policy=CategoricalMLP((4,)))  # fmt: skip
    assert trained.frame.ret_mean.iloc[:5].mean() < 1.3
    assert trained.frame.ret_mean.iloc[-5:].mean() > 1.8
    assert trained.policy.act(np.zeros(2, np.float32)) == 1
    returns = evaluate(trained.policy, partial(bandit, discrete=True), 5)
    np.testing.assert_array_equal(returns, 2)


def test_the_frame(bandit):
    frame = run(AFedPG, bandit, {"max_virtual_time": 20}, clock=EventClock([1, 1, 1, 10])).frame
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 62  # 3.1 a second
    np.testing.assert_array_equal(frame.k, np.arange(62))
    assert frame.delay.max() == 30
    assert (frame.t_virtual.diff().dropna() >= 0).all()
    assert frame.env_steps_total.iloc[-1] == 62 * 8
    assert set(frame.agent) == {0, 1, 2, 3}


def test_a_barrier_waits_for_the_slowest(bandit):
    frame = run(FedPG, bandit, {"max_virtual_time": 20}, clock=EventClock([1, 1, 1, 10])).frame
    np.testing.assert_array_equal(frame.t_virtual, [10, 20])
    assert (frame.agent == -1).all()
    assert (frame.delay == 0).all()
    assert frame.env_steps_total.iloc[-1] == 2 * 4 * 8


def test_a_round_is_the_mean_of_its_gradients():
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    agents = SimulatedAgents(EventClock([1, 2, 3]), lambda agent, n, read: Gradient(vectors[agent]))
    server = Server(np.zeros(2), FedPG(env_id="CartPole-v1").settings.rule)
    loop = Federation(server, agents, synchronous=True)
    loop.start()
    loop.step()
    np.testing.assert_allclose(server.direction, vectors.mean(0))


def test_gradients_are_taken_at_the_lookahead_that_was_read(bandit):
    seen = []

    def work(agent, n, read):
        seen.append((read.k, read.theta.copy()))
        return Gradient(np.random.default_rng(len(seen)).normal(size=2))

    server = Server(np.zeros(2), Rule())
    loop = Federation(server, SimulatedAgents(EventClock([1, 3]), work))
    loop.start()
    expected = {0: np.zeros(2)}
    for _ in range(12):
        loop.step()
        expected[server.k] = 2 * server.theta - server.previous  # alpha = 1/2
    for k, theta in seen:
        np.testing.assert_allclose(theta, expected[k])


def test_same_seed_same_bits(bandit):
    runs = [run(AFedPG, bandit, {"max_updates": 12}, clock=EventClock([1, 2]), seed=seed) for seed in (3, 3, 4)]
    assert (runs[0].policy.theta == runs[1].policy.theta).all()
    assert (runs[0].policy.theta != runs[2].policy.theta).any()


def test_one_agent_is_never_stale(bandit):
    assert (run(PG, bandit, {"max_updates": 5}).frame.delay == 0).all()


@pytest.mark.parametrize("options", [{}, {"momentum_at": "agent"}, {"baseline": "value-net"}])
@pytest.mark.parametrize("method", ["afedpg", "fedpg"])
def test_resume_gives_the_same_sequence(bandit, tmp_path, method, options):
    clock = EventClock([1, Fraction(1, 3), Lognormal(2.0, 0.3)])
    whole = run(METHODS[method], bandit, {"max_virtual_time": 5}, clock=clock, **options)
    first = METHODS[method](env_fn=bandit, clock=clock, **(SMALL | options))
    steps = iter(range(10**9))
    original = first._row

    class Killed(BaseException):
        pass

    def row(update):
        if next(steps) == 1:
            raise Killed
        return original(update)

    first._row = row
    with pytest.raises(Killed):
        first.run(max_virtual_time=5, out=tmp_path, every_s=0)
    again = METHODS[method].resume(tmp_path, env_fn=bandit)
    rest = again.run(max_virtual_time=5)
    np.testing.assert_array_equal(rest.policy.theta, whole.policy.theta)


def test_a_killed_run_that_saved_nothing_starts_again(bandit, tmp_path):
    trainer = AFedPG(env_fn=bandit, **SMALL)
    (tmp_path / "settings.json").write_text(trainer.settings.to_json())
    half = tmp_path / "checkpoint" / "step-1.tmp"  # the kill came during the first save
    half.mkdir(parents=True)
    (half / "manifest.json").write_text("{}")
    again = AFedPG.resume(tmp_path, env_fn=bandit).run(max_updates=3)
    assert (again.policy.theta == trainer.run(max_updates=3).policy.theta).all()


def test_damaged_checkpoints(bandit, tmp_path):
    AFedPG(env_fn=bandit, **SMALL).run(max_updates=3, out=tmp_path)
    for file in (tmp_path / "checkpoint").rglob("*.npz"):
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(InputError, match=r"No checkpoint in .*checkpoint is complete"):
        AFedPG.resume(tmp_path, env_fn=bandit)
    (tmp_path / "policy.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"policy\.npz is no policy"):
        load_policy(tmp_path, bandit)


def test_resume_of_something_else(bandit, tmp_path):
    with pytest.raises(InputError, match=r"no settings\.json"):
        AFedPG.resume(tmp_path)
    AFedPG(env_fn=bandit, **SMALL).run(max_updates=3, out=tmp_path)
    with pytest.raises(InputError, match="give it again as env_fn"):
        AFedPG.resume(tmp_path)
    with pytest.raises(InputError, match="another environment or policy"):
        AFedPG.resume(tmp_path, env_fn=partial(gymnasium.make, "InvertedPendulum-v5"))
    with pytest.raises(InputError, match="parameters, the policy for"):
        load_policy(tmp_path, partial(gymnasium.make, "InvertedPendulum-v5"))
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(InputError, match="no settings of a run"):
        AFedPG.resume(tmp_path)


def test_saved_results_read_back(bandit, tmp_path):
    result = AFedPG(env_fn=bandit, n_agents=2, **SMALL).run(max_updates=4, out=tmp_path)
    assert json.loads((tmp_path / "events.json").read_text()) == []
    assert len((tmp_path / "updates.csv").read_text().splitlines()) == 5
    assert (load_policy(tmp_path, bandit).theta == result.policy.theta).all()


def test_settings_round_trip():
    settings = Settings(
        "Swimmer-v5", 2, GaussianMLP((3,)), Rule(PowerDecay(1.0, 20.0, 0.8)),
        clock=EventClock([Fraction(1, 3), Lognormal(1.0, 0.2)], [Failure(0, 2.0, 3.0)]),
    )  # fmt: skip
    assert Settings.from_json(settings.to_json()) == settings


def test_an_agent_that_dies_and_joins(bandit):
    clock = EventClock([1, 1, 1], [Failure(1, 2.5, 6), Failure(2, 3.5)])
    found = run(AFedPG, bandit, {"max_virtual_time": 10}, clock=clock)
    assert [(event.kind, event.agent, event.time) for event in found.events] == [
        ("lost", 1, 2.5), ("lost", 2, 3.5), ("joined", 1, 6.0)
    ]  # fmt: skip
    times = {agent: found.frame.t_virtual[found.frame.agent == agent].tolist() for agent in range(3)}
    assert times == {0: [*range(1, 11)], 1: [1, 2, 7, 8, 9, 10], 2: [1, 2, 3]}


def test_a_barrier_goes_on_with_those_alive(bandit):
    found = run(FedPG, bandit, {"max_virtual_time": 6}, clock=EventClock([1, 2], [Failure(1, 3)]))
    assert found.frame.t_virtual.tolist() == [2, 3, 4, 5, 6]


def test_all_agents_lost(bandit, tmp_path):
    clock = EventClock([1, 1], [Failure(0, 2.5), Failure(1, 3.5)])
    with pytest.raises(AgentError, match="All 2 agents are lost after 5 updates"):
        run(AFedPG, bandit, {"max_virtual_time": 10, "out": tmp_path}, clock=clock)
    assert any((tmp_path / "checkpoint").glob("step-*"))


def test_gradients_that_are_not_finite(monkeypatch):
    bad = {(0, 1), (0, 2), (1, 3)}

    def work(agent, n, read):
        return Gradient(np.full(2, np.nan if (agent, n) in bad else 1.0))

    loop = Federation(Server(np.zeros(2)), SimulatedAgents(EventClock([1, 1]), work))
    loop.start()
    agents = [loop.step().agents[0] for _ in range(7)]
    assert loop.dropped == 3
    assert agents == [0, 1, 1, 1, 0, 0, 1]
    bad |= {(1, n) for n in range(5, 8)}
    with pytest.raises(AgentError, match="Agent 1 sent NaN or infinity 3 times in a row"):
        any(loop.step() is None for _ in range(20))


def test_rewards_that_are_not_finite(bandit):
    with pytest.raises(AgentError, match="environment's rewards"):
        run(AFedPG, partial(bandit, reward=float("nan")), {"max_updates": 5})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_agents": 0}, InputError, "agents must be at least 1"),
        ({"batch_steps": 0}, InputError, "batch_steps"),
        ({"seed": -1}, InputError, "seed must be a whole number"),
        ({"alpha": 0.0}, InputError, "value must be a positive"),
        ({"alpha": 1.5}, InputError, r"alpha must be in \(0, 1\]"),
        ({"n_agents": 3, "clock": [1, 1]}, InputError, "times of 2 agents, the run has 3"),
        ({"clock": [1], "backend": "local"}, InputError, "runs on real time"),
        ({"clock": [1, -1]}, InputError, "time of agent 1"),
        ({"policy": CategoricalMLP()}, SpaceError, "needs Discrete actions"),
    ],
)
def test_bad_options(bandit, options, error, message):
    with pytest.raises(error, match=message):
        AFedPG(env_fn=bandit, **(SMALL | options))


def test_bad_environments_and_budgets(bandit):
    with pytest.raises(InputError, match="PG is one agent, got 2"):
        PG(env_fn=bandit, n_agents=2)
    with pytest.raises(InputError, match="episodes and horizon"):
        evaluate(run(PG, bandit, {"max_updates": 1}).policy, bandit, 0)
    with pytest.raises(InputError, match="either env_id or env_fn"):
        AFedPG()
    with pytest.raises(InputError, match="cannot be made"):
        AFedPG("NoSuchThing-v0")
    with pytest.raises(SpaceError, match="FlattenObservation"):
        AFedPG(env_fn=lambda: DictEnv())
    trainer = AFedPG(env_fn=bandit, **SMALL)
    for budget, message in (({}, "needs a positive budget"), ({"max_updates": 0}, "positive budget"),
                            ({"max_seconds": 1.0}, "seconds for real ones")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            trainer.run(**budget)


class DictEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2)})
    action_space = gymnasium.spaces.Discrete(2)


def test_the_step_length_decays_with_the_budget(bandit):
    lengths = []

    class Watched(Server):
        def push(self, read, vector, progress=0.0):
            before = self.theta.copy()
            applied = super().push(read, vector, progress)
            lengths.append(float(np.linalg.norm(self.theta - before)))
            return applied

    trainer = AFedPG(env_fn=bandit, **(SMALL | {"eta": 0.2}))
    trainer._server = Watched(trainer._server.theta, trainer.settings.rule)
    trainer.run(max_updates=10)
    np.testing.assert_allclose(lengths, [0.2 * max(1 - k / 10, 0.05) for k in range(10)], rtol=1e-4)


@pytest.mark.parametrize(
    "env", ["Swimmer-v5", "Hopper-v5", "Walker2d-v5", "Humanoid-v5", "CartPole-v1", "FrozenLake-v1"]
)
def test_environments_of_the_paper_and_others(env):
    result = AFedPG(env, n_agents=2, batch_steps=20, horizon=10).run(max_updates=3)
    assert len(result.frame) == 3
    assert np.isfinite(result.policy.theta).all()


def test_episodes_are_whole_and_cut_at_the_horizon():
    policy = CategoricalMLP((4,)).bind(
        *(lambda e: (e.observation_space, e.action_space))(gymnasium.make("CartPole-v1"))
    )
    sampler = Sampler("CartPole-v1", policy, training.Estimator(), 30, 12)
    episodes = sampler.episodes(policy.initial(np.random.default_rng(0)), np.random.default_rng(0))
    lengths = [len(episode.rewards) for episode in episodes]
    assert sum(lengths[:-1]) < 30 <= sum(lengths)
    assert max(lengths) <= 12
    assert federation.PATIENCE == 3


def test_a_barrier_is_resumed_in_the_middle_of_a_round(bandit, tmp_path):
    """The gradients that wait at the barrier are in the checkpoint."""
    trainer = partial(FedPG, env_fn=bandit, clock=EventClock([1, 10]), **SMALL)
    trainer().run(max_virtual_time=15, out=tmp_path)
    found = FedPG.resume(tmp_path, env_fn=bandit).run(max_virtual_time=40)
    assert found.frame.t_virtual.tolist() == [10, 20, 30, 40]
    assert found.frame.env_steps_total.tolist() == [16, 32, 48, 64]


def test_an_agent_dies_while_it_waits_at_the_barrier(bandit):
    clock = EventClock([1, 10], [Failure(0, 5, 12), Failure(0, 7)])  # the second finds it dead already
    found = run(FedPG, bandit, {"max_virtual_time": 30}, clock=clock)
    assert [(event.kind, event.agent, event.time) for event in found.events] == [("lost", 0, 5), ("joined", 0, 12)]
    assert found.frame.env_steps_total.diff().tolist()[1:] == [16, 16]
    assert found.frame.agent.tolist() == [1, -1, -1]


def test_an_error_in_the_environment_loses_no_agent(bandit, tmp_path):
    """The job that raised is done again after a resume, and so is one whose gradients were dropped for good."""
    whole = run(AFedPG, bandit, {"max_updates": 12}, clock=[1, 1, 1])
    trainer = AFedPG(env_fn=bandit, clock=[1, 1, 1], **SMALL)
    sample, calls = trainer._work.episodes, iter(range(10**9))

    def episodes(theta, rng):
        if next(calls) == 5:
            raise RuntimeError("the simulator exploded")
        return sample(theta, rng)

    trainer._work.episodes = episodes
    with pytest.raises(RuntimeError, match="exploded"):
        trainer.run(max_updates=12, out=tmp_path)
    again = AFedPG.resume(tmp_path, env_fn=bandit).run(max_updates=12)
    np.testing.assert_array_equal(again.policy.theta, whole.policy.theta)
    assert again.frame.agent.tolist() == whole.frame.agent.tolist()

    nan = AFedPG.resume(tmp_path, env_fn=partial(bandit, reward=float("inf")))
    with pytest.raises(AgentError, match="NaN or infinity"):
        nan.run(max_updates=30, out=tmp_path)
    assert set(AFedPG.resume(tmp_path, env_fn=bandit).run(max_updates=30).frame.agent.tail(6)) == {0, 1, 2}


def test_a_reward_that_is_not_finite_does_not_spoil_the_value_net(bandit):
    trainer = AFedPG(env_fn=bandit, baseline="value-net", **SMALL)
    sample, calls = trainer._work.episodes, iter(range(10**9))

    def episodes(theta, rng):
        found = sample(theta, rng)
        return [episode._replace(rewards=episode.rewards * np.nan) for episode in found] if next(calls) == 1 else found

    trainer._work.episodes = episodes
    assert trainer.run(max_updates=6).dropped == 1


def test_a_folder_holds_one_run(bandit, tmp_path):
    AFedPG(env_fn=bandit, **SMALL).run(max_updates=3, out=tmp_path)
    with pytest.raises(InputError, match="already holds a run"):
        AFedPG(env_fn=bandit, **SMALL).run(max_updates=2, out=tmp_path)


class OwnPolicy:
    """Any object with their ``bind``."""

    def bind(self, observations, actions):
        return GaussianMLP((3,)).bind(observations, actions)


@pytest.mark.parametrize(
    ("name", "value", "again"),
    [
        ("clock", EventClock([1, lambda agent, n, rng: 2.0]), "clock"),
        ("eta", lambda k, progress: 0.1, "eta"),
        ("policy", OwnPolicy(), "policy"),
    ],
)
def test_what_a_folder_cannot_hold_is_given_again(bandit, tmp_path, name, value, again):
    options = SMALL | {"eta": Constant(0.1)} | {name: value}  # rates that do not depend on the budget
    whole = AFedPG(env_fn=bandit, **options).run(max_updates=6)
    AFedPG(env_fn=bandit, **options).run(max_updates=3, out=tmp_path)
    with pytest.raises(InputError, match="no plain data, so its folder does not hold it: give it again"):
        AFedPG.resume(tmp_path, env_fn=bandit).run(max_updates=6)
    rest = AFedPG.resume(tmp_path, env_fn=bandit, **{again: value}).run(max_updates=6)
    np.testing.assert_array_equal(rest.policy.theta, whole.policy.theta)
    trained = load_policy(tmp_path, bandit, policy=value if name == "policy" else None)
    assert trained.policy.size == whole.policy.policy.size


def test_numpy_numbers_are_settings_too(bandit, tmp_path):
    run(AFedPG, bandit, {"max_updates": 3, "out": tmp_path}, clock=EventClock(list(np.array([1, 2]))))
    assert AFedPG.resume(tmp_path, env_fn=bandit).settings.clock == EventClock([1, 2])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04abc", b"hello", "npy", "nan"])
def test_strange_policies(bandit, tmp_path, content):
    size = AFedPG(env_fn=bandit, **SMALL).run(max_updates=1, out=tmp_path).policy.theta.shape
    with open(tmp_path / "policy.npz", "wb") as file:
        if content == "npy":
            np.save(file, np.zeros(3))
        elif content == "nan":
            np.savez(file, theta=np.full(size, np.nan))
        else:
            file.write(content)
    with pytest.raises(InputError, match=r"policy\.npz (is no policy|holds parameters)"):
        load_policy(tmp_path, bandit)


class Odd(gymnasium.Env):
    """Observations and rewards as one likes."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space, observation, reward=1.0):
        self.observation_space, self.observation, self.reward = space, observation, reward

    def reset(self, *, seed=None, options=None):
        return self.observation, {}

    def step(self, action):
        return self.observation, self.reward, False, False, {}


Box = gymnasium.spaces.Box


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (Box(0, 255, (2, 2), np.uint8), np.ones((2, 2), np.uint8)),
        (Box(-5, 5, (2,), np.int64), np.ones(2, np.int64)),
        (Box(-1, 1, (), np.float32), np.float32(0.5)),
        (Box(-1, 1, (2,), np.float32), [0.1, 0.2]),
        (gymnasium.spaces.Discrete(4, start=3), 5),
    ],
)
def test_observations_of_any_kind(space, observation):
    env = partial(Odd, space, observation)
    assert len(AFedPG(env_fn=env, batch_steps=8, horizon=4).run(max_updates=2).frame) == 2


def test_observations_in_one_array():
    """An environment may write each observation into the same array."""

    class Same(Odd):
        def step(self, action):
            self.observation += 1
            return super().step(action)

    env = Same(Box(-9, 9, (2,), np.float32), np.zeros(2, np.float32))
    policy = CategoricalMLP((2,)).bind(env.observation_space, env.action_space)
    rng = np.random.default_rng(0)
    episode = rollout(env, policy, policy.actor(policy.initial(rng)), rng, 4)
    np.testing.assert_array_equal(episode.observations[:, 0], [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("observation", "reward", "message"),
    [
        (np.zeros(3), 1.0, r"observation has shape \(3,\), its space has \(2,\)"),
        (np.zeros(2), np.ones(1), "reward must be one number"),
    ],
)
def test_environments_that_break_their_word(observation, reward, message):
    env = partial(Odd, Box(-1, 1, (2,)), observation, reward)
    with pytest.raises(InputError, match=message):
        AFedPG(env_fn=env, **(SMALL | {"policy": None})).run(max_updates=1)


def test_updates_without_a_direction_are_counted(bandit):
    """A lone episode has no advantage over its own mean."""
    assert run(AFedPG, bandit, {"max_updates": 3}, batch_steps=1).skipped == 3
    assert run(AFedPG, bandit, {"max_updates": 3}).skipped == 0


def test_a_round_of_another_policys_gradients():
    agents = SimulatedAgents(EventClock([1, 1]), lambda agent, n, read: Gradient(np.ones(2 + agent)))
    loop = Federation(Server(np.zeros(2)), agents, synchronous=True)
    loop.start()
    with pytest.raises(InputError, match=r"shape \(3,\), the policy has \(2,\)"):
        loop.step()
