# SPDX-License-Identifier: Apache-2.0
# Written by CMake.
TORCH_VERSION: str
