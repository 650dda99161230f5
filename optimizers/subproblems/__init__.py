"""Trust-region subproblems: minimization in a ball, a box and a half-space, also with a prox."""
