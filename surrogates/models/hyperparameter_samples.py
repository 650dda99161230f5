"""Samples from the posterior of a derived GP's hyper-parameters."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import log, log2, pi
from typing import Any

import torch
from botorch import settings as botorch_settings
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from surrogates.checks import check_integer, positive_integer
from surrogates.models.derived_gp import DerivedGP
from surrogates.models.fully_bayesian import FullyBayesianDerivedGP
from surrogates.models.slice_sampling import slice_sample
from surrogates.models.unobserved import SILENT, apart


def sample_hyperparameters(
    model: DerivedGP, num_samples: int, seed: int | torch.Generator, *, warmup_steps: int = 32
) -> FullyBayesianDerivedGP:
    """Samples hyper-parameters θ from their posterior and returns the model that averages over the samples.

    The posterior is p(θ | X, y) ∝ N(y; m_θ(X), K_θ + diag(s²_θ)) p(θ), where p(θ) is the product of the registered
    priors, each a density of the constrained value. Every parameter that requires gradients is sampled and needs a
    prior, as in ``SingleTaskGP``'s default kernel and likelihood. Only a ``ConstantMean`` may have none: its prior is
    then flat, and the posterior is proper.

    Each sample is the last state of its own slice-sampling chain (Neal 2003) in log θ, or in logit θ if θ is bounded on
    both sides. All chains start at the model's current hyper-parameters; a fitted model needs the fewest warm-up steps.
    Credible intervals of the mixture include hyper-parameter uncertainty; ``python -m experiments run calibration``
    compares their coverage with the coverage of one fit.

    Args:
        model: A derived GP of one outcome, which is not changed. The models of a batch are sampled independently.
        num_samples: S, the number of samples.
        seed: An integer, or a ``torch.Generator`` on the CPU; the only source of randomness.
        warmup_steps: The steps of every chain; one step updates each hyper-parameter once.

    Returns:
        A model of batch shape ``batch x S``, whose ``gradient_posterior`` and ``posterior`` are mixtures.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If a number is not positive; the model has several outcomes or is fully Bayesian already; a
            parameter has no prior, is not a parameter of mean, kernel or likelihood, or is shared by the models of a
            batch; no parameter requires gradients; or the current hyper-parameters have density 0.

    Example:
        >>> model = DerivedGP(X, Y)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> averaged = sample_hyperparameters(model, 64, seed=0)
        >>> gradient = averaged.gradient_posterior(x)
        >>> gradient.mixture_mean, gradient.mixture_variance.sqrt()
    """
    if not isinstance(model, DerivedGP):
        raise TypeError(f"model must be a DerivedGP, got {type(model).__name__}.")
    made = torch.Generator()
    generator = seed if isinstance(seed, torch.Generator) else made.manual_seed(check_integer("seed", seed, 0, 2**63))
    num_samples = positive_integer("num_samples", num_samples)
    warmup_steps = positive_integer("warmup_steps", warmup_steps)
    if model.num_outputs != 1 or isinstance(model, FullyBayesianDerivedGP):
        have = f"{model.num_outputs} outcomes" if model.num_outputs != 1 else "hyper-parameter samples"
        raise ValueError(f"model must have one outcome and no hyper-parameter samples, got a model with {have}.")
    with torch.no_grad():
        density = HyperparameterDensity(model)
        start = density.start.repeat_interleave(num_samples, 0)
        which = torch.arange(len(density.start), device=start.device).repeat_interleave(num_samples)
        at_start = density(density.start, torch.arange(len(density.start), device=start.device))
        if not bool(at_start.isfinite().all()):
            raise ValueError("The model's hyper-parameters have density 0; set or fit them first.")
        states = slice_sample(lambda points, chains: density(points, which[chains]), start, warmup_steps, generator)
        return density.model_at(states, num_samples)


@dataclass(frozen=True)
class _Part:
    """One parameter tensor with its bounds.

    Attributes:
        parameter: The parameter of the copied model.
        constraint: Its constraint, or None.
        raw: Its raw values for every model of the batch, ``b x ...``.
        lower: The lower bounds, flattened.
        upper: The upper bounds, flattened.
        sampled: Whether the parameter is sampled.
        unit: The value of θ at u = 1 for an unbounded parameter.
    """

    parameter: torch.nn.Parameter
    constraint: Interval | None
    raw: Tensor
    lower: Tensor
    upper: Tensor
    sampled: bool
    unit: float

    @property
    def size(self) -> int:
        return self.lower.numel()

    def values(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The constrained values at u, ``k x size``, and the logarithms of dθ/du."""
        low, high = self.lower.isfinite(), self.upper.isfinite()
        width = self.upper - self.lower
        both, one = low & high, low ^ high
        values = torch.where(one & low, self.lower + u.exp(), torch.where(one, self.upper - u.exp(), self.unit * u))
        values = torch.where(both, self.lower + width * u.sigmoid(), values)
        logit_slope = width.log() + torch.nn.functional.logsigmoid(u) + torch.nn.functional.logsigmoid(-u)
        return values, torch.where(both, logit_slope, torch.where(one, u, torch.zeros_like(u)))

    def coordinates(self) -> Tensor:
        """u of the present values, ``b x size``; a value on its bound is moved inwards by 1e-6 of the bounds."""
        raw = self.raw
        values = (raw if self.constraint is None else self.constraint.transform(raw)).reshape(len(raw), -1)
        low, high = self.lower.isfinite(), self.upper.isfinite()
        unit = torch.where(low & high, self.upper - self.lower, torch.where(low, self.lower, self.upper).abs())
        least = (1e-6 * unit).clamp_min(torch.finfo(unit.dtype).tiny)
        above, below = (values - self.lower).maximum(least), (self.upper - values).maximum(least)
        single = torch.where(low, above.log(), torch.where(high, below.log(), values / self.unit))
        return torch.where(low & high, above.log() - below.log(), single)


class HyperparameterDensity:
    """The log density log p(y | θ) + log p(θ) + log |dθ/du| of unbounded coordinates u.

    The coordinate u is log(θ − a) for θ > a, log(b − θ) for θ < b, logit((θ − a)/(b − a)) for θ in (a, b), and θ
    otherwise. The constant of a ``ConstantMean`` is in units of the outcomes' standard deviation, rounded to a power of
    2. Without log |dθ/du| the log density is n times GPyTorch's ``ExactMarginalLogLikelihood``.

    Args:
        model: A derived GP of one outcome, which is copied in float64.

    Attributes:
        start: u at the model's hyper-parameters, ``b x p``, for a batch of b models (b = 1 without a batch).
    """

    def __init__(self, model: DerivedGP) -> None:
        self._like = model.train_targets
        copied: Any = copy.deepcopy(model).double().eval()
        self._model = copied
        self._batch = copied.train_targets.shape[:-1]
        self._X = copied.train_inputs[0].reshape(-1, *copied.train_inputs[0].shape[-2:])
        self._targets = copied.train_targets.reshape(len(self._X), -1)
        self._missing = None if copied._missing is None else copied._missing.reshape(self._targets.shape)
        self._fixed_noise = isinstance(copied.likelihood, FixedNoiseGaussianLikelihood)
        noise = copied.likelihood.noise_covar.noise if self._fixed_noise else self._targets
        self._noise = noise.reshape(self._targets.shape)
        self._kernels = [module for module in copied.covar_module.modules() if isinstance(module, Kernel)]
        self._priors: list[tuple[Any, Any, Any]] = [
            (module, prior, closure) for _, module, prior, closure, _ in copied.named_priors()
        ]
        for _, prior, _ in self._priors:
            prior._validate_args = False  # outside of its support a prior's density is 0, not an error
        means = copied.mean_module.modules()
        self._constants = {id(mean.raw_constant) for mean in means if isinstance(mean, ConstantMean)}
        observed = self._targets if self._missing is None else self._targets.masked_fill(self._missing, torch.nan)
        deviation = float((observed - observed.nanmean(-1, keepdim=True)).square().nanmean().sqrt())
        self._deviation = 2.0 ** round(log2(deviation)) if deviation > 0 else 1.0
        self._parts = self._made_parts()
        self.start = torch.cat([part.coordinates() for part in self._parts if part.sampled], -1)

    def __call__(self, u: Tensor, which: Tensor) -> Tensor:
        """The log density, up to a constant, ``k``.

        Args:
            u: The coordinates, ``k x p``.
            which: The index in the batch of each point's model, ``k``.
        """
        log_slope = self._set(u, which)
        X, y = self._X[which], self._targets[which]
        observed = self._model.likelihood(self._model.forward(X), [X])
        covariance, residuals = observed.lazy_covariance_matrix.to_dense(), y - observed.mean
        if self._missing is not None:
            missing = self._missing[which]
            covariance, residuals = apart(covariance, missing, SILENT), residuals.masked_fill(missing, 0.0)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        whitened = torch.linalg.solve_triangular(factor, residuals.unsqueeze(-1), upper=False)
        log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        found = -0.5 * (whitened.square().sum((-2, -1)) + log_determinant + y.shape[-1] * log(2 * pi)) + log_slope
        for module, prior, closure in self._priors:
            found = found + prior.log_prob(closure(module)).reshape(len(u), -1).sum(-1)
        return found.masked_fill(failed > 0, -torch.inf)

    def model_at(self, u: Tensor, num_samples: int) -> FullyBayesianDerivedGP:
        """Returns the model averaged over samples u, ``b·S x p``, with S consecutive rows for each model of the batch.

        Afterwards this object cannot be evaluated, because the model takes over its modules.
        """
        which = torch.arange(len(self._X), device=u.device).repeat_interleave(num_samples)
        self._set(u, which)
        batch = torch.Size((*self._batch, num_samples))
        for part in self._parts:
            part.parameter.data = part.parameter.data.reshape(*batch, *part.parameter.shape[1:])
        for kernel in self._kernels:
            kernel.batch_shape = batch
        copied = self._model
        if self._fixed_noise:
            copied.likelihood.noise_covar.noise = self._noise[which].reshape(*batch, -1)
        transforms = {name: getattr(copied, name, None) for name in ("input_transform", "outcome_transform")}
        for transform in transforms.values():
            for buffer in () if transform is None else transform.buffers():
                if buffer.dim() > 2:  # coefficients, ``batch x 1 x d``, get a dimension for the samples
                    buffer.data = buffer.data.unsqueeze(-3)
        original = copied._original_train_inputs
        data = (copied.train_inputs[0] if original is None else original, copied.train_targets.unsqueeze(-1))
        X, Y = (t.unsqueeze(-3).expand(*batch, *t.shape[-2:]).to(self._like) for t in data)
        with botorch_settings.validate_input_scaling(False):
            made = FullyBayesianDerivedGP(
                X,
                Y,
                likelihood=copied.likelihood.to(X),
                covar_module=copied.covar_module.to(X),
                mean_module=copied.mean_module.to(X),
                outcome_transform=None,
                input_transform=transforms["input_transform"],
            )
        if copied._missing is not None:
            made._missing = copied._missing.unsqueeze(-2).expand(made.train_targets.shape)
        if transforms["outcome_transform"] is not None:
            made.outcome_transform = transforms["outcome_transform"].to(X)
        return made.requires_grad_(False).eval()

    def _set(self, u: Tensor, which: Tensor) -> Tensor:
        """Gives the copied model the hyper-parameters at u; returns log |dθ/du|, ``k``."""
        log_slope = u.new_zeros(len(u))
        at = 0
        for part in self._parts:
            if not part.sampled:
                part.parameter.data = part.raw[which]
                continue
            values, slopes = part.values(u[:, at : at + part.size])
            values, constraint = values.reshape(len(u), *part.raw.shape[1:]), part.constraint
            part.parameter.data = values if constraint is None else constraint.inverse_transform(values)
            log_slope = log_slope + slopes.sum(-1)
            at += part.size
        for kernel in self._kernels:
            kernel.batch_shape = torch.Size([len(u)])
        if self._fixed_noise:
            self._model.likelihood.noise_covar.noise = self._noise[which]
        return log_slope

    def _made_parts(self) -> list[_Part]:
        copied, batch = self._model, self._batch
        modules = (copied.mean_module, copied.covar_module, copied.likelihood)
        known = {id(p) for module in modules for p in module.parameters()}
        with_prior = self._with_prior()
        parts = []
        for name, parameter, constraint in copied.named_parameters_and_constraints():
            if id(parameter) not in known:
                raise ValueError(f"{name} is not a parameter of mean, kernel or likelihood; only those can be sampled.")
            if parameter.shape[: len(batch)] != batch:
                raise ValueError(
                    f"{name}, of shape {tuple(parameter.shape)}, is shared by the models of the batch {tuple(batch)}; "
                    "pass this batch_shape to the kernel, mean and likelihood."
                )
            sampled = parameter.requires_grad
            if sampled and id(parameter) not in with_prior:
                raise ValueError(
                    f"{name} has no prior, so that its posterior may be improper. Register a prior (register_prior) "
                    "or keep the value fixed (requires_grad_(False)). SingleTaskGP's default kernel and likelihood "
                    "have priors."
                )
            raw = parameter.detach().clone().reshape(-1, *parameter.shape[len(batch) :])
            ends = (-torch.inf, torch.inf) if constraint is None else (constraint.lower_bound, constraint.upper_bound)
            low, high = (torch.as_tensor(end).to(raw).expand(raw.shape[1:]).reshape(-1) for end in ends)
            unit = self._deviation if id(parameter) in self._constants else 1.0
            parts.append(_Part(parameter, constraint, raw, low, high, sampled, unit))
        if not any(part.sampled for part in parts):
            raise ValueError("The model has no parameter that requires gradients: there is nothing to sample.")
        return parts

    def _with_prior(self) -> set[int]:
        """The ids of the parameters that have a prior or need none."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        found = set(self._constants)
        with torch.enable_grad():
            for module, _, closure in self._priors:
                of = closure(module)
                if of.requires_grad:
                    slopes = torch.autograd.grad(of.sum(), parameters, allow_unused=True)
                    found |= {id(p) for p, slope in zip(parameters, slopes, strict=True) if slope is not None}
        return found
