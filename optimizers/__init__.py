"""Zeroth-order optimizers behind one ask/tell interface."""

from importlib.metadata import version as _version

from optimizers.adapters.candidate_generator import CandidateGenerator
from optimizers.adapters.module_objective import ModuleObjective
from optimizers.adapters.ray_executor import RayExecutor
from optimizers.adapters.scipy_method import scipy_method
from optimizers.comparison.compare import compare
from optimizers.comparison.comparison import Comparison
from optimizers.core.batch import Batch
from optimizers.core.constraints import CheapConstraint, ReturnedConstraints
from optimizers.core.history import History
from optimizers.core.optimizer import Optimizer
from optimizers.core.options import CommonOptions
from optimizers.core.result import Result
from optimizers.core.space import Space
from optimizers.core.stopping import StopReason
from optimizers.designs import latin_hypercube, local_cloud, sobol
from optimizers.directions.directions import Directions
from optimizers.estimators.coordinate_differences import CoordinateDifferences
from optimizers.estimators.estimator import AllQueriesFailedError, GradientEstimate, GradientEstimator
from optimizers.estimators.finite_differences import FiniteDifferences
from optimizers.estimators.least_squares import LeastSquaresDifferences
from optimizers.estimators.prior_guided import PriorGuidedDifferences
from optimizers.estimators.search_gradient import SearchGradient
from optimizers.evaluation import Evaluator, FailedQueryError
from optimizers.first_order import FirstOrder
from optimizers.least_squares import least_squares
from optimizers.methods.bayesian.cobbo import CobBO
from optimizers.methods.bayesian.turbo import TuRBO
from optimizers.methods.estimated_descent import EstimatedDescent
from optimizers.methods.evolution_strategies import ES
from optimizers.methods.gld import GLD
from optimizers.methods.gradient_descent import GradientDescent
from optimizers.methods.hiso.displacement import Displacement
from optimizers.methods.hiso.group_probe import GroupProbe
from optimizers.methods.hiso.hiso import DeComFL, HiSo
from optimizers.methods.katyusha.accelerated_zo import AcceleratedZO
from optimizers.methods.katyusha.nesterov_spokoiny import NesterovSpokoiny
from optimizers.methods.katyusha.parameters import KatyushaParameters
from optimizers.methods.katyusha.projected_zo import ProjectedZO
from optimizers.methods.katyusha.zo_l_katyusha import ZOLKatyusha
from optimizers.methods.katyusha.zo_svrg import ZOSVRG
from optimizers.methods.prgf import PRGF
from optimizers.methods.rgf import RGF
from optimizers.methods.trust_region.surrogate_trust_region import SurrogateTrustRegion
from optimizers.methods.zord.least_squares_gradient import LeastSquaresGradient
from optimizers.methods.zord.zord import ZoRD
from optimizers.minimize import minimize, run
from optimizers.prox import L1, Box, BoxRidge, ElasticNet, L2Ball, NoProx, Prox, Ridge, Simplex
from optimizers.registry import METHODS, method_class
from optimizers.running.interrupts import follow_parent

__all__ = [
    "ES",
    "GLD",
    "L1",
    "METHODS",
    "PRGF",
    "RGF",
    "ZOSVRG",
    "AcceleratedZO",
    "AllQueriesFailedError",
    "Batch",
    "Box",
    "BoxRidge",
    "CandidateGenerator",
    "CheapConstraint",
    "CobBO",
    "CommonOptions",
    "Comparison",
    "CoordinateDifferences",
    "DeComFL",
    "Directions",
    "Displacement",
    "ElasticNet",
    "EstimatedDescent",
    "Evaluator",
    "FailedQueryError",
    "FiniteDifferences",
    "FirstOrder",
    "GradientDescent",
    "GradientEstimate",
    "GradientEstimator",
    "GroupProbe",
    "HiSo",
    "History",
    "KatyushaParameters",
    "L2Ball",
    "LeastSquaresDifferences",
    "LeastSquaresGradient",
    "ModuleObjective",
    "NesterovSpokoiny",
    "NoProx",
    "Optimizer",
    "PriorGuidedDifferences",
    "ProjectedZO",
    "Prox",
    "RayExecutor",
    "Result",
    "ReturnedConstraints",
    "Ridge",
    "SearchGradient",
    "Simplex",
    "Space",
    "StopReason",
    "SurrogateTrustRegion",
    "TuRBO",
    "ZOLKatyusha",
    "ZoRD",
    "compare",
    "follow_parent",
    "latin_hypercube",
    "least_squares",
    "local_cloud",
    "method_class",
    "minimize",
    "run",
    "scipy_method",
    "sobol",
]

__version__ = _version("gradient-surrogates")
