// SPDX-License-Identifier: Apache-2.0
//
// XLA's compile options, as the serialized CompileOptionsProto that PJRT takes.
#pragma once

#include <string>
#include <string_view>

namespace neuroncore {

enum class CompileFlavor {
  kDefault,
  // XLA's older code generator: half the compile time, and the same code for purely elementwise programs. Its
  // transposes are four times slower and its reductions up to twice. Not every plugin still has it.
  kElementwise,
};

std::string CompileOptions(CompileFlavor flavor);

// For optimize_level 0 (compile fast) or 1 (run fast).
CompileFlavor FlavorOf(std::string_view program, int optimize_level);

}  // namespace neuroncore
