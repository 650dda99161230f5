"""TuRBO and CobBO: global Bayesian optimization in a box."""
