"""What an adaptive γ is to minimize, the minimum found from values alone, and the floats of a round."""

import math


def corrections(gradients, shares):
    """cᵢ = Σⱼ pⱼ gⱼ − gᵢ."""
    p = (shares / shares.sum()).to(gradients)
    return (p[:, None] * gradients).sum(-2, keepdim=True) - gradients


def disparity(means, gradients, shares, truth, gamma):
    """D(γ) = Σ pᵢ ‖mᵢ + γ cᵢ − ∇F‖²."""
    p = (shares / shares.sum()).to(means)
    vectors = means + gamma * corrections(gradients, p) - truth
    return float((vectors.square().sum(-1) * p).sum())


def vertex(f):
    """Where the parabola through f(0), f(1/2), f(1) is smallest."""
    f0, f1, f2 = f(0.0), f(0.5), f(1.0)
    return (3 * f0 - 4 * f1 + f2) / (4 * (f0 - 2 * f1 + f2)) if f0 - 2 * f1 + f2 else math.nan


def floats_of_a_round(federation):
    """Phases, and float64 numbers up and down a client, of the third round."""
    for _ in range(2):
        federation.run_round()
    before, record = federation.history[-1], federation.run_round()
    size = 8 * federation.algorithm.clients
    up, down = record.payload_up - before.payload_up, record.payload_down - before.payload_down
    return len(federation.algorithm.phases), up / size, down / size
