"""Figures of ZoRD: Shu et al., Zeroth-order optimization with trajectory-informed derivative estimation."""
