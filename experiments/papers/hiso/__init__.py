"""HiSo's figures and tables: byte accounting, the spectrum behind its bounds, digits over 64 clients."""
