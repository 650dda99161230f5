import pytest

import surrogates
from optimizers import RGF, minimize
from optimizers.core.options import check_choice, nearest_name, option_names, optional, positive
from optimizers.registry import METHODS, method_class
from optimizers.testing import quadratic, start


def test_methods_by_name():
    with pytest.raises(ValueError, match="unknown method 'zordd'; did you mean 'zord'"):
        minimize(quadratic, start(), "zordd", max_queries=30)
    with pytest.raises(TypeError, match="name or a subclass of Optimizer"):
        minimize(quadratic, start(), 3, max_queries=30)
    assert method_class("rgf") is RGF is method_class(RGF)
    assert {"zord", "rgf", "prgf", "es", "gld", "least_squares_gradient", "turbo", "cobbo"} <= set(METHODS)


def test_names_of_options():
    assert {"smoothing_radius", "update_rule", "seed", "max_queries"} <= option_names(RGF)
    assert "unknown" not in option_names(RGF) and "x0" not in option_names(RGF)
    assert nearest_name("sed", ["seed", "bounds"]).startswith("; did you mean 'seed'?")
    assert "did you mean 'smoothing_radius'?" in nearest_name("radus", ["seed", "smoothing_radius"])
    for name, accepted in (
        ("zzz", "seed"),
        ("tol", "threshold"),
        ("Nelder-Mead", "accelerated_zo"),
    ):
        assert nearest_name(name, [accepted]) == f" (accepted: {accepted})"


def test_optional_numbers_and_choices():
    assert optional(positive, "radius", None) is None and optional(positive, "radius", 2) == 2.0
    with pytest.raises(ValueError, match="radius must be positive"):
        optional(positive, "radius", -1.0)
    assert check_choice("scheme", "central", ("forward", "central")) == "central"
    for wrong in ("centrl", None):
        with pytest.raises(ValueError, match=r"scheme must be one of the accepted names.*accepted: central, forward"):
            check_choice("scheme", wrong, ("forward", "central"))


def test_a_former_name_still_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="now called 'least_squares_gradient'; optimizers.least_squares"):
        assert method_class("least_squares") is method_class("least_squares_gradient")


def test_the_former_name_of_the_best_value_warns():
    optimizer = RGF(start(), max_queries=20)
    with pytest.warns(DeprecationWarning, match="now called best_fun"):
        assert optimizer.best_y == optimizer.best_fun == float("inf")


def test_the_former_name_of_map_outcomes_warns():
    with pytest.warns(DeprecationWarning, match="now called map_outcomes"):
        assert surrogates.of_each_outcome is surrogates.map_outcomes
