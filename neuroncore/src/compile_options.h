// SPDX-License-Identifier: Apache-2.0
//
// XLA's compile options, as the serialized CompileOptionsProto that PJRT takes.
#pragma once

#include <string>
#include <string_view>

#include "program_signature.h"

namespace neuroncore {

// What a program is compiled with beyond the usual. Not every plugin has each of them.
struct CompileChoices {
  // XLA's older code generator: half the compile time, and the same code for purely elementwise programs. Its
  // transposes are four times slower and its reductions up to twice.
  bool older_emitters = false;
  // No loop is divided among threads. XLA takes a chain of sixty additions of 16 kB for 400 us of work, where it is 7;
  // meeting a second thread costs 20.
  bool single_thread = false;
  // The processor's widest vectors, as PyTorch's own kernels use them, where XLA stops at 256 bits.
  bool wide_vectors = false;

  // Takes back the one that `error` refuses. False if it refuses none.
  bool TakeBack(const std::string& error);
};

std::string CompileOptions(const CompileChoices& choices);

// For optimize_level 0 (compile fast) or 1 (run fast).
CompileChoices ChoicesFor(std::string_view program, const ProgramSignature& signature, int optimize_level);

}  // namespace neuroncore
