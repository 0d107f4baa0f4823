// SPDX-License-Identifier: Apache-2.0
//
// How much there is to do in a program, guessed from its text before it is compiled.
#pragma once

#include <string_view>

#include "program_signature.h"

namespace neuroncore {

// In elementwise additions of one f32, of which a processor core does some thirty a nanosecond: the work of the loops
// that XLA generates. Matrix products and custom calls do not count: they have threads of their own. Infinity where the
// text does not tell, for one because of a loop. `signature` is that of `program`.
double ProgramWork(std::string_view program, const ProgramSignature& signature);

}  // namespace neuroncore
