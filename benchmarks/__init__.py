# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python -m benchmarks.NAME` prints a table and, as its last line, one JSON object.

What counts are ratios within one run: devices are measured in turns, and medians are compared.
"""
