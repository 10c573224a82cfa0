"""Decides what runs next: hint windows, fairness, lost leases, due deliveries, sweeps, retention."""
