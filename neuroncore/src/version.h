// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace neuroncore {

constexpr const char* kVersion = "0.1.0";

// Raised when the content of a NEFF, or the way programs are compiled, changes: older files are then recompiled.
constexpr int kNeffFormat = 7;

}  // namespace neuroncore
