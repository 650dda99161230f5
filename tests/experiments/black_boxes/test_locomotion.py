"""A linear policy's return is gymnasium's, step by step."""

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="pip install '.[problems]'")
pytest.importorskip("mujoco", reason="pip install '.[problems]'")

from experiments.workloads.black_boxes.locomotion import EPISODES, LINEAR, PROBLEMS, gait
from experiments.workloads.controllers import make


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_policy_is_a_matrix_and_a_bias(name):
    fun = gait(name, (), seed=2)
    d = fun.fun.dimension
    assert d == LINEAR[name] and fun.fun.seed == 2000
    theta = np.random.default_rng(0).uniform(-1, 1, d)
    env = make(name)
    inputs, outputs = env.observation_space.shape[0], env.action_space.shape[0]
    matrix, bias = theta[: inputs * outputs].reshape(outputs, inputs), theta[inputs * outputs :]
    total = 0.0
    for episode in range(EPISODES[name]):
        (seen, _), ended = env.reset(seed=2000 + episode), False
        while not ended:
            action = np.tanh(matrix @ seen + bias) * env.action_space.high
            seen, reward, terminated, truncated, _ = env.step(action.astype(np.float32))
            total, ended = total + float(reward), terminated or truncated
    assert fun(theta) == pytest.approx(-total / EPISODES[name], rel=1e-9)


@pytest.mark.parametrize("box", PROBLEMS, ids=lambda box: box.name)
def test_the_box_has_the_controllers_size(box):
    assert box.make(0).fun.fun.dimension == box.dimension
