// SPDX-License-Identifier: Apache-2.0
//
// Programs that are one call of a host kernel, with nothing but reshapes around it: they run without XLA, whose way to
// a custom call takes as long as a small kernel.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "program_signature.h"

namespace neuroncore {

struct KernelProgram {
  std::string name;
  std::string config;
  struct Operand {
    size_t parameter;
    TensorType type;  // of the parameter or a reshape of it
  };
  std::vector<Operand> operands;
  int updated_operand = -1;  // whose memory the result may take
  TensorType result;         // of the kernel; the program's only result is that, or a reshape of it
};

// Nothing if the program is of another form. `signature` is that of `program`.
std::optional<KernelProgram> ParseKernelProgram(std::string_view program, const ProgramSignature& signature);

}  // namespace neuroncore
