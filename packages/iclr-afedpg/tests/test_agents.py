"""Real processes: the same semantics as virtual time, and what happens when one dies."""

import multiprocessing
import os
import signal
import sys
import time
from functools import partial

import cloudpickle
import numpy as np
import pytest

from iclr_afedpg.agents import AgentError, LocalAgents, Pace, RayAgents, SimulatedAgents, real_agents
from iclr_afedpg.clocks import EventClock
from iclr_afedpg.federation import Federation
from iclr_afedpg.sampling import Gradient
from iclr_afedpg.training import AFedPG
from iclr_afedpg.updates import Rule, Server
from iclr_shared.errors import InputError

# Test modules cannot be imported by the agents' processes.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def work(agent, n, read, fail=None):
    """A vector that depends on everything it should depend on."""
    if fail == (agent, n):
        raise ValueError("the simulator exploded")
    rng = np.random.default_rng([agent, n])
    return Gradient(rng.normal(size=read.theta.shape) - read.theta, (float(n),), 10)


class Scripted:
    """Lets real agents' answers through in a given order."""

    def __init__(self, agents, order):
        self.agents, self.order, self.waiting = agents, iter(order), {}
        self.count = agents.count
        self.submit, self.close = agents.submit, agents.close

    @property
    def now(self):
        return self.agents.now

    upcoming = now

    def next(self):
        wanted = next(self.order)
        while wanted not in self.waiting:
            arrival = self.agents.next()
            self.waiting[arrival.agent] = arrival
        return self.waiting.pop(wanted)


def scripted(agents, order):
    loop = Federation(Server(np.zeros(5)), Scripted(agents, order))
    loop.start()
    try:
        for _ in order:
            loop.step()
    finally:
        agents.close()
    return loop.server.theta


def simulated():
    agents = SimulatedAgents(EventClock([2, 3]), work)
    loop = Federation(Server(np.zeros(5)), agents)
    loop.start()
    return [loop.step().agents[0] for _ in range(9)], loop.server.theta


def test_local_processes_give_what_virtual_time_gives():
    order, theta = simulated()
    np.testing.assert_array_equal(scripted(LocalAgents(2, work), order), theta)


def test_a_killed_process_does_not_stop_the_others():
    agents = LocalAgents(2, work, {1: Pace(seconds=0.5)})
    loop = Federation(Server(np.zeros(3)), agents)
    loop.start()
    os.kill(agents.processes[1].pid, signal.SIGKILL)
    try:
        updates = [loop.step() for _ in range(30)]
    finally:
        agents.close()
    assert {update.agents for update in updates} == {(0,)}
    assert [(event.kind, event.agent) for event in loop.events] == [("lost", 1)]
    assert all(not process.is_alive() for process in agents.processes)


def test_all_killed():
    agents = LocalAgents(1, work)
    loop = Federation(Server(np.zeros(3)), agents)
    os.kill(agents.processes[0].pid, signal.SIGKILL)
    agents.processes[0].join()
    loop.start()
    assert loop.step() is None
    assert loop.alive == set()
    agents.close()


def test_an_error_in_the_work_names_its_agent():
    agents = LocalAgents(1, partial(work, fail=(0, 2)))
    loop = Federation(Server(np.zeros(3)), agents)
    loop.start()
    assert loop.step().applied.k == 0
    loop.step()
    with pytest.raises(AgentError, match="Agent 0 failed: ValueError: the simulator exploded"):
        loop.step()
    agents.close()


def test_training_in_processes(bandit):
    paces = {0: Pace(seconds=0.02), 1: Pace(seconds=0.1)}
    trainer = AFedPG("CartPole-v1", n_agents=2, batch_steps=20, horizon=10, backend="local", paces=paces)
    frame = trainer.run(max_seconds=3).frame
    assert frame.t_virtual.isna().all()
    assert (frame.agent == 0).sum() > (frame.agent == 1).sum() > 0
    assert frame.delay.max() > 0  # no lock-step
    more = trainer.run(max_updates=len(frame) + 5).frame
    assert more.k.tolist() == list(range(len(frame) + 5))


def test_pace():
    start = time.perf_counter()
    Pace(seconds=0.05).wait(start)
    assert time.perf_counter() - start >= 0.05
    Pace().wait(0.0)
    with pytest.raises(InputError, match="factor of at least 1"):
        Pace(factor=0.5)


def test_unknown_backend():
    with pytest.raises(InputError, match="backend 'mpi' is unknown"):
        real_agents("mpi", 1, work)


@pytest.mark.slow
def test_ray_actors():
    """Same order of arrivals, same parameters; a killed actor comes back once and then is lost; errors are named."""
    import ray

    order, theta = simulated()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        np.testing.assert_array_equal(scripted(RayAgents(2, work), order), theta)
        agents = RayAgents(2, work, {1: Pace(seconds=0.3)}, cpus=0.5)
        loop = Federation(Server(np.zeros(3), Rule()), agents)
        loop.start()
        ray.kill(agents.actors[1])
        updates = [loop.step() for _ in range(40)]
        assert {update.agents for update in updates} == {(0,)}
        assert ("lost", 1) in [(event.kind, event.agent) for event in loop.events]
        agents.close()
        failing = RayAgents(1, partial(work, fail=(0, 0)), cpus=0.5)
        loop = Federation(Server(np.zeros(3)), failing)
        loop.start()
        with pytest.raises(AgentError, match="Agent 0 failed: the simulator exploded"):
            loop.step()
        failing.close()
    finally:
        ray.shutdown()


def test_a_restart_does_not_repeat_random_streams(tmp_path):
    """Also real agents count on, in this process and from a checkpoint."""
    trainer = AFedPG("MountainCarContinuous-v0", batch_steps=4, horizon=2, backend="local")
    first = trainer.run(max_updates=3, out=tmp_path)
    assert trainer._iterations == [3]
    again = AFedPG.resume(tmp_path)
    second = again.run(max_updates=6)
    assert again._iterations == [6]
    returns = second.frame.ret_mean
    assert len(set(returns)) == 6
    np.testing.assert_array_equal(returns[:3], first.frame.ret_mean)


class Suicide:
    """Ends its process at the second iteration."""

    def __call__(self, agent, n, read):
        if n:
            os.kill(os.getpid(), signal.SIGKILL)
        return Gradient(np.ones(read.theta.shape), (0.0,), 1)


def test_all_lost_before_the_time_is_up(bandit, tmp_path):
    trainer = AFedPG(env_fn=bandit, batch_steps=4, horizon=2, backend="local")
    trainer._work = Suicide()
    with pytest.raises(AgentError, match="All 1 agents are lost after 1 updates"):
        trainer.run(max_seconds=60, out=tmp_path)
    assert any((tmp_path / "checkpoint").glob("step-*"))


def test_a_place_that_cannot_be_written_starts_no_process(bandit, tmp_path):
    (tmp_path / "file").write_text("")
    before = set(multiprocessing.active_children())
    with pytest.raises(InputError, match="Cannot write"):
        AFedPG(env_fn=bandit, batch_steps=4, horizon=2, backend="local").run(max_updates=1, out=tmp_path / "file")
    assert set(multiprocessing.active_children()) == before
