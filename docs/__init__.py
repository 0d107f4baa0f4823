# SPDX-License-Identifier: Apache-2.0
"""Documentation; `python -m docs.generate` writes the parts that come from tables."""
