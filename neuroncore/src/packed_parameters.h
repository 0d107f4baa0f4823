// SPDX-License-Identifier: Apache-2.0
//
// Many small parameters as one: PJRT takes longer to pass a buffer than to copy a few hundred bytes. What XLA compiles
// has the small parameters of a type in one vector, of which they are slices; the launch copies them there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program_signature.h"

namespace neuroncore {

struct PackedParameters {
  // Parameters of one element type, in one.
  struct Vector {
    std::string element_name;
    size_t element_bytes = 0;
    size_t bytes = 0;
  };
  // Where a parameter is.
  struct Place {
    int vector = -1;      // -1: on its own
    size_t offset = 0;    // in bytes, in the vector
    size_t argument = 0;  // of the executable; the vectors come first
  };
  std::vector<Vector> vectors;
  std::vector<Place> places;  // by parameter of the program
  size_t num_arguments = 0;
};

// Which parameters are packed. `signature` is that of `program`.
PackedParameters PackParameters(std::string_view program, const ProgramSignature& signature);

// The program that takes them so.
std::string PackedProgram(std::string_view program, const ProgramSignature& signature, const PackedParameters& packed);

}  // namespace neuroncore
