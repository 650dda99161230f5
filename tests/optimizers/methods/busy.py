"""Runs with several points out, told in any order."""

import io

import numpy as np
import torch


def out(opt):
    """The points that are out, the oldest first."""
    return [(batch, i) for batch in opt.pending for i in opt.untold(batch)]


def keep_busy(opt, fun, workers, answers, seed=0):
    """Has ``workers`` points out and tells so many answers, each of one of them at random; gives the points told.

    The order is a function of the seed and the number of queries, and so the same after a state was loaded.
    """
    told = []
    for _ in range(answers):
        while len(out(opt)) < workers and opt.ask_another() is not None:
            pass
        if not out(opt):
            break
        running = out(opt)[:workers]
        batch, i = running[int(np.random.default_rng([seed, opt.queries]).integers(len(running)))]
        x = batch.points([i])
        opt.tell(batch, fun(x), which=[i])
        told.append(x)
    return torch.cat(told)


def reloaded(opt, make):
    """Another optimizer with the state of this one, which goes through a file."""
    file, again = io.BytesIO(), make()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    return again


def check_resumes(make, fun, workers, first, last):
    """A run that is saved and loaded with several batches out goes on bitwise, and asking changes no state."""
    whole = make()
    points = keep_busy(whole, fun, workers, first + last)
    opt = make()
    start = keep_busy(opt, fun, workers, first)
    while len(out(opt)) < workers and opt.ask_another() is not None:
        pass
    again = reloaded(opt, make)
    assert len(again.pending) == len(opt.pending) > 1
    rest = keep_busy(again, fun, workers, last)
    assert torch.equal(torch.cat([start, rest]), points) and again.best_fun == whole.best_fun
    assert again.queries == whole.queries == first + last
