"""TuRBO and CobBO: Bayesian optimization of a whole box."""
