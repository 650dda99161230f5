"""The runs whose digests ``tests/digests.py`` takes: a line each, in today's spelling of the options."""

from typing import Any

import torch

from experiments.beyond.gamma_rules import AdaptiveAlong, EmpiricalBayes

UNIT_BOX = [(0.0, 1.5)] * 5
WIDE_BOX = [(-3.0, 4.0)] * 5
GROUPS = [range(2), range(2, 5)]

METHOD_CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "rgf": ("rgf", 5, {}),
    "rgf-box": ("rgf", 5, {"bounds": WIDE_BOX}),
    "rgf-corner": ("rgf", 5, {"bounds": [(0.7, 1.1)] * 5, "rescale": False}),
    "rgf-prox": ("rgf", 5, {"prox": "l1", "directions": 3}),
    "rgf-float32": ("rgf", 5, {"dtype": torch.float32}),
    "rgf-many": ("rgf", 5, {"directions": 12, "smoothing_radius": 0.1}),
    "prgf": ("prgf", 8, {"directions": 4}),
    "prgf-unbiased": ("prgf", 8, {"directions": 4, "scaling": "unbiased"}),
    "prgf-box": ("prgf", 5, {"bounds": WIDE_BOX}),
    "es": ("es", 5, {}),
    "es-antithetic": ("es", 5, {"antithetic": True}),
    "es-raw": ("es", 5, {"shaping": "none", "antithetic": True}),
    "es-prox": ("es", 5, {"prox": "box"}),
    "es-box": ("es", 5, {"bounds": WIDE_BOX}),
    "gld": ("gld", 5, {}),
    "gld-box": ("gld", 5, {"bounds": UNIT_BOX}),
    "gld-prox": ("gld", 5, {"prox": "ball"}),
    "gradient_descent": ("gradient_descent", 5, {"jac": True}),
    "least_squares": ("least_squares_gradient", 5, {}),
    "least_squares-box": ("least_squares_gradient", 5, {"bounds": WIDE_BOX, "ridge": 1e-3, "steps": 2}),
    "zord": ("zord", 5, {}),
    "zord-box": ("zord", 5, {"bounds": WIDE_BOX}),
    "zord-gated": ("zord", 5, {"bounds": WIDE_BOX, "active": "gated"}),
    "zord-gated-high": ("zord", 40, {"active": "gated"}),
    "zord-noise": ("zord", 5, {"bounds": WIDE_BOX, "noise": 1e-4}),
    "zord-paper": ("zord", 5, {"lengthscale": 3.0, "uncertainty": "spectral_norm", "start": "last"}),
    "zord-descent": ("zord", 5, {"uncertainty": "descent", "bounds": WIDE_BOX}),
    "zord-relative": ("zord", 12, {"uncertainty": "relative", "max_virtual_steps": 4}),
    "zord-mean-variance": ("zord", 12, {"uncertainty": "mean_variance", "lengthscale": 2.0}),
    "zord-window": ("zord", 5, {"window": 12, "reselect": False, "bounds": WIDE_BOX}),
    "zord-small-window": ("zord", 5, {"window": 12, "queries_per_step": 2}),
    "zord-design": ("zord", 5, {"design": "latin_hypercube", "bounds": WIDE_BOX, "initial_points": 9}),
    "zord-span": (
        "zord",
        60,
        {"update_rule": lambda p: torch.optim.SGD([p], lr=0.05), "lengthscale": 4.0, "max_queries": 30},
    ),
    "zord-prox": ("zord", 5, {"prox": "l1"}),
    "zord-float32": ("zord", 5, {"dtype": torch.float32}),
    "trust_region": ("trust_region", 5, {"bounds": WIDE_BOX}),
    "trust_region-free": ("trust_region", 5, {"radius": 0.5, "window": 12}),
    "turbo": ("turbo", 5, {"bounds": WIDE_BOX, "max_queries": 24}),
    "turbo-regions": ("turbo", 5, {"bounds": WIDE_BOX, "max_queries": 40, "regions": 2, "initial_points": 6}),
    "cobbo": ("cobbo", 5, {"bounds": WIDE_BOX, "max_queries": 30}),
    "zo_l_katyusha": ("zo_l_katyusha", 5, {}),
    "zo_l_katyusha-II": ("zo_l_katyusha", 5, {"option": "II"}),
    "zo_l_katyusha-full": ("zo_l_katyusha", 5, {"batch_size": "full", "prox": "box-ridge"}),
    "zo_l_katyusha-given": (
        "zo_l_katyusha",
        5,
        {"smoothness": 20.0, "strong_convexity": 1.0, "prox": "ridge", "max_queries": 120},
    ),
    "zo_l_katyusha-box": ("zo_l_katyusha", 5, {"bounds": UNIT_BOX, "smoothness": 20.0, "batch_size": 2}),
    "zo_svrg": ("zo_svrg", 5, {}),
    "zo_svrg-given": ("zo_svrg", 5, {"smoothness": 20.0, "prox": "box-ridge"}),
    "projected_zo": ("projected_zo", 5, {}),
    "projected_zo-given": ("projected_zo", 5, {"smoothness": 20.0, "prox": "ridge"}),
    "projected_zo-coordinates": ("projected_zo", 5, {"estimator": "coordinates", "step_schedule": "constant"}),
    "projected_zo-corner": (
        "projected_zo",
        5,
        {"estimator": "coordinates", "bounds": [(0.7, 1.1)] * 5, "smoothness": 20.0},
    ),
    "accelerated_zo": ("accelerated_zo", 5, {"strong_convexity": 1.0}),
    "accelerated_zo-printed": (
        "accelerated_zo",
        5,
        {"smoothness": 20.0, "strong_convexity": 1.0, "printed_sign": True},
    ),
    "nesterov_spokoiny": ("nesterov_spokoiny", 5, {}),
    "nesterov_spokoiny-given": ("nesterov_spokoiny", 5, {"smoothness": 20.0, "strong_convexity": 1.0}),
    "hiso": ("hiso", 5, {}),
    "hiso-round": (
        "hiso",
        5,
        {"curvature": {"name": "displacement", "update": "per_round"}, "local_steps": 3, "rate": 0.01},
    ),
    "hiso-central": ("hiso", 5, {"scheme": "central", "momentum": 0.5, "perturbations": 2}),
    "hiso-projection": ("hiso", 5, {"projection": True}),
    "hiso-signs": ("hiso", 5, {"distribution": "rademacher", "prox": "l1"}),
    "hiso-clipped": (
        "hiso",
        5,
        {"curvature": {"name": "displacement", "lower": 0.5, "upper": 2.0, "initial": 1.5}, "rate": 0.02},
    ),
    "hiso-box": ("hiso", 5, {"bounds": WIDE_BOX}),
    "hiso-float32": ("hiso", 5, {"dtype": torch.float32}),
    "hiso-probe": ("hiso", 5, {"curvature": "group_probe", "max_queries": 150}),
    "hiso-probe-groups": (
        "hiso",
        5,
        {
            "curvature": {"name": "group_probe", "groups": GROUPS, "warmup": 3},
            "max_queries": 150,
            "perturbations": 2,
        },
    ),
    "hiso-probe-options": (
        "hiso",
        5,
        {
            "curvature": {
                "name": "group_probe",
                "groups": GROUPS,
                "initial_probes": 2,
                "probe_every": 3,
                "probe_weight": 0.3,
                "rise_weight": 0.6,
                "shared_weight": 0.2,
                "clip": 2.0,
            },
            "max_queries": 150,
            "bounds": WIDE_BOX,
            "distribution": "rademacher",
        },
    ),
    "decomfl": ("decomfl", 5, {}),
    "decomfl-central": ("decomfl", 5, {"scheme": "central", "rate": 0.02}),
    "decomfl-prox": ("decomfl", 5, {"prox": "simplex", "momentum": 0.3}),
}
"""Name: method, dimension, options; ``max_queries`` is 60 unless given, ``prox`` one of ``digests.PROXES``."""

SMALL = {"rate_schedule": "constant", "num_features": 64, "initial_queries": 3, "active_queries": 2, "candidates": 8}
UNIT = [(0.0, 1.0)] * 5
DIFFERENCES = {"directions": 4, "smoothing_radius": 1e-3}
PART = {"participation": 2, "rounds": 6}

ALGORITHM_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedzo": ("fedzo", DIFFERENCES),
    "fedzo-part": ("fedzo", DIFFERENCES | PART | {"weights": [1.0, 2.0, 3.0, 4.0]}),
    "fedzo-sphere": ("fedzo", DIFFERENCES | {"distribution": "sphere", "redraw": "round", "reset_rule": False}),
    "fedzo-normal": ("fedzo", DIFFERENCES | {"distribution": "normal", "redraw": "never", "accept": "monotone"}),
    "fedzo-bounds": ("fedzo", DIFFERENCES | {"bounds": UNIT, "server_rate": 0.5}),
    "fedzo-prox": ("fedzo", DIFFERENCES | {"prox": "l1", "aggregation": "median"}),
    "fedprox": ("fedprox", DIFFERENCES | {"pull": 2.0}),
    "scaffold1": ("scaffold1", DIFFERENCES),
    "scaffold1-part": ("scaffold1", DIFFERENCES | PART),
    "scaffold2": ("scaffold2", DIFFERENCES),
    "scaffold2-part": ("scaffold2", DIFFERENCES | PART),
    "fedavg": ("fedavg", {}),
    "fedadam": ("fedadam", {}),
    "fedyogi": ("fedyogi", {"accept": "monotone"}),
    "fedadagrad": ("fedadagrad", PART),
    "fzoos": ("fzoos", SMALL | {"bounds": UNIT}),
    "fzoos-free": ("fzoos", SMALL),
    "fzoos-part": ("fzoos", SMALL | PART | {"bounds": UNIT}),
    "fzoos-inverse": ("fzoos", SMALL | {"gamma": "inverse"}),
    "fzoos-fixed": ("fzoos", SMALL | {"gamma": 1.0, "correction_at": "start", "feature_kind": "cosine"}),
    "fzoos-none": ("fzoos", SMALL | {"gamma": 0.0, "active": None}),
    "fzoos-round": ("fzoos", SMALL | {"active": "round", "gamma": "inverse", "feature_kernel": "matern52"}),
    "fzoos-settling": ("fzoos", SMALL | {"rate_schedule": "settling", "bounds": UNIT}),
    "fzoos-monotone": ("fzoos", SMALL | {"accept": "monotone", "bounds": UNIT}),
    "fzoos-matern": ("fzoos", SMALL | {"kernel": "matern52", "window": 10, "feature_window": 12}),
    "fzoos-prox": ("fzoos", SMALL | {"prox": "l1", "lengthscale": 2.0, "nugget": 1e-5, "reset_rule": False}),
    "fzoos-points": ("fzoos", SMALL | {"gamma": AdaptiveAlong(2), "bounds": UNIT}),
    "fzoos-one-way": ("fzoos", SMALL | {"gamma": EmpiricalBayes(margin=True), "active": None}),
    "decomfl": ("decomfl", {"rate": 0.03}),
    "decomfl-prox": ("decomfl", {"rate": 0.03, "prox": "simplex", "scheme": "central", "server_rate": 0.5}),
    "decomfl-faults": ("decomfl", {"rate": 0.03, "rounds": 6, "faults": [("crash", 2, 1), ("drop", 3, 2)]}),
    "hiso": ("hiso", {"rate": 0.03}),
    "hiso-part": ("hiso", {"rate": 0.03} | PART),
    "hiso-round": (
        "hiso",
        {
            "rate": 0.03,
            "curvature": {"name": "displacement", "update": "per_round", "reset": 2},
            "momentum": 0.5,
            "scheme": "central",
        },
    ),
    "hiso-wide": ("hiso", {"rate": 0.02, "scalar_dtype": "float64", "projection": True, "distribution": "rademacher"}),
    "hiso-float32": ("hiso", {"rate": 0.03, "dtype": torch.float32, "bounds": UNIT}),
    "hiso-gappy": ("hiso", {"rate": 0.03, "log_rounds": 1, "rounds": 8, "participation": 1}),
    "hiso-probe": ("hiso", {"curvature": "group_probe", "rounds": 12}),
    "hiso-probe-groups": (
        "hiso",
        {
            "curvature": {
                "name": "group_probe",
                "groups": GROUPS,
                "initial_probes": 2,
                "probe_every": 3,
                "warmup": 2,
            },
            "rounds": 16,
        },
    ),
}
"""Name: algorithm, options; 4 rounds of 3 steps over 4 clients in 5 dimensions unless given."""
