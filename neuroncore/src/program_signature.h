// SPDX-License-Identifier: Apache-2.0
//
// What a StableHLO program takes and returns, read from the text of its @main function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt_api.h"

namespace neuroncore {

struct TensorType {
  pjrt::Type element_type = pjrt::Type::kInvalid;
  std::string element_name;  // as in the text: "f32", "complex<f64>"
  std::string text;          // "tensor<4x4xf32>"
  std::vector<int64_t> dims;
  size_t bytes = 0;
};

struct Parameter {
  std::string name;
  TensorType type;
  int aliased_output = -1;    // tf.aliasing_output
  bool scratch = false;       // added by us: carries memory for that output, no value
  size_t begin = 0, end = 0;  // of its text, attributes included
};

struct ProgramSignature {
  std::string module_name;
  std::vector<Parameter> parameters;  // scratch ones last
  std::vector<TensorType> results;
  size_t num_inputs = 0;  // parameters that are not scratch
  // Where further parameters would be inserted.
  size_t parameters_end = 0;
};

// False after Fail().
bool ParseSignature(std::string_view program, ProgramSignature* signature);

// Adds a scratch parameter for every large result that no parameter aliases. Returns the new program.
std::string AddScratchParameters(std::string_view program, const ProgramSignature& signature);

}  // namespace neuroncore
