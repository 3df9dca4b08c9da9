"""Pools of experts: what there may be in one."""
