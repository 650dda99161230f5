import pytest

from optimizers.testing import CHECKS, Promises, method_factory
from tests.optimizers.batteries import options_battery

METHODS = {
    "rgf": (method_factory("rgf"), Promises(convergence=1e-4, convergence_queries=600, max_queries=40)),
    "prgf": (method_factory("prgf"), Promises(convergence=1e-5, max_queries=40)),
    "es": (method_factory("es"), Promises(convergence=1e-3, max_queries=40)),
    "gld": (method_factory("gld"), Promises(convergence=1e-2, convergence_queries=400, max_queries=40)),
    "zord": (method_factory("zord"), Promises(convergence=1e-4, convergence_queries=90, max_queries=24)),
    "trust_region": (
        method_factory("trust_region"),
        Promises(convergence=1e-7, convergence_queries=40, seeded=False, max_queries=24),
    ),
    "least_squares_gradient": (
        method_factory("least_squares_gradient"),
        Promises(convergence=1e-3, convergence_queries=300, max_queries=40),
    ),
    "gradient_descent": (
        method_factory("gradient_descent", jac=True),
        Promises(convergence=1e-12, convergence_queries=400, seeded=False, max_queries=24),
    ),
    "zo_l_katyusha": (
        method_factory("zo_l_katyusha"),
        Promises(convergence=1e-6, convergence_queries=600, max_queries=40),
    ),
    "zo_svrg": (method_factory("zo_svrg"), Promises(convergence=1e-6, max_queries=40)),
    "projected_zo": (
        method_factory("projected_zo"),
        Promises(convergence=1e-2, convergence_queries=400, max_queries=40),
    ),
    "accelerated_zo": (
        method_factory("accelerated_zo", strong_convexity=1.0),
        Promises(convergence=1e-9, convergence_queries=500, max_queries=40),
    ),
    "nesterov_spokoiny": (
        method_factory("nesterov_spokoiny"),
        Promises(convergence=1e-9, convergence_queries=700, max_queries=40),
    ),
}
VARIANTS = {
    "es-antithetic": (method_factory("es", antithetic=True), Promises(convergence=1e-2, max_queries=40)),
    "es-raw": (method_factory("es", shaping="none", antithetic=True), Promises(convergence=1e-2, max_queries=40)),
    "zord-gated": (
        method_factory("zord", active="gated"),
        Promises(convergence=1e-4, convergence_queries=80, max_queries=24),
    ),
    "zord-fixed": (
        method_factory("zord", lengthscale=3.0, start="last", window=20, queries_per_step=2),
        Promises(convergence=1e-3, convergence_queries=100, max_queries=24),
    ),
    "zo_l_katyusha-II": (
        method_factory("zo_l_katyusha", option="II"),
        Promises(convergence=1e-6, convergence_queries=600, max_queries=40),
    ),
    "zo_l_katyusha-full": (
        method_factory("zo_l_katyusha", batch_size="full"),
        Promises(convergence=1e-9, convergence_queries=500, seeded=False, max_queries=40),
    ),
    "projected_zo-coordinates": (
        method_factory("projected_zo", estimator="coordinates", step_schedule="constant"),
        Promises(convergence=1e-9, convergence_queries=500, seeded=False, max_queries=40),
    ),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_battery(method, check):
    check(*METHODS[method])


@options_battery(VARIANTS)
def test_options(check, factory, promises):
    check(factory, promises)
