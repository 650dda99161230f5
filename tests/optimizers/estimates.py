import torch

from optimizers.core.optimizer import Optimizer


def sgd(p):
    return torch.optim.SGD([p], lr=1.0)


def estimate(method, x0, fun, **options):
    """The gradient estimate of a method's first step (or the one after the given ones)."""
    opt = method(x0, max_queries=10_000, update_rule=sgd, **options)
    return step(opt, fun)


def step(opt: Optimizer, fun):
    before = opt.x
    batch = opt.ask()
    opt.tell(batch, torch.stack([torch.as_tensor(fun(p)) for p in batch.points()]))
    return before - opt.x


def assert_mean(samples, expected, deviations=4.5):
    """Each coordinate's sample mean lies within so many standard errors of what is expected."""
    error = (samples.mean(0) - expected).abs()
    standard_error = samples.std(0) / len(samples) ** 0.5
    assert bool((error <= deviations * standard_error + 1e-12).all()), (error / standard_error).max()
