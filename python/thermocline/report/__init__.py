"""Reproduction of the papers' figures on generated fleets and VMs."""
