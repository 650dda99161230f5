"""Trust-region subproblems: least values in a ball, a box, before a plane and with a prox; they know no optimizer."""
