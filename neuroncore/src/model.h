// SPDX-License-Identifier: Apache-2.0
//
// A program loaded on a core, with the arrays that its launches reuse.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <neuroncore/neuroncore.h>

#include "core.h"
#include "kernel_program.h"
#include "packed_parameters.h"
#include "pjrt_api.h"
#include "program_signature.h"
#include "tensor.h"

namespace neuroncore {

constexpr uint64_t kModelMagic = 0x6e726d6f64656c31;

struct Model {
  uint64_t magic = 0;
  Core* core = nullptr;
  pjrt::LoadedExecutable* executable = nullptr;
  ProgramSignature signature;
  // Instead of the executable, where the program is one kernel.
  struct KernelCall {
    KernelProgram program;
    size_t kernel = 0;  // as FindKernel says
    std::vector<neuroncore_buffer_t> operands;
    neuroncore_buffer_t result = {};
  };
  std::optional<KernelCall> kernel;
  PackedParameters packed;
  std::vector<Storage*> vectors;  // of packed parameters

  // Per launch; guarded by core->execution. Sized once, so that a launch allocates nothing.
  struct Operand {
    Storage* storage = nullptr;
    Buffer* donor = nullptr;  // the buffer whose memory is donated, if it came from one
    bool donated = false;
    char* data = nullptr;               // of a kernel's operand
    pjrt::Buffer* temporary = nullptr;  // to destroy afterwards
  };
  std::vector<Operand> operands;         // by parameter
  std::vector<Tensor*> output_tensors;   // by result
  std::vector<int> donor_of_output;      // parameter that aliases the result, or -1
  std::vector<pjrt::Buffer*> arguments;  // of the executable, the vectors first
  std::vector<pjrt::Buffer*> results;
  std::vector<int64_t> non_donatable;
};

// The executable of a program, with its small parameters packed. Null after Fail().
pjrt::LoadedExecutable* CompileProgram(const Plugin& plugin, const std::string& program,
                                       const ProgramSignature& signature, int optimize_level);

// The live model behind a handle, or null after Fail().
Model* GetModel(const char* function, const void* handle);

}  // namespace neuroncore
