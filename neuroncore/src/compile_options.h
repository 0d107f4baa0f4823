// SPDX-License-Identifier: Apache-2.0
//
// XLA's compile options, as the serialized CompileOptionsProto that PJRT takes.
#pragma once

#include <string>

namespace neuroncore {

// For optimize_level 0 (compile fast) or 1 (run fast).
std::string CompileOptions(int optimize_level);

}  // namespace neuroncore
