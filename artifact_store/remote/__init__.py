"""Tiers beyond this machine: where shared artifacts live, how they get into the local store and out of it, without a call's waiting."""
