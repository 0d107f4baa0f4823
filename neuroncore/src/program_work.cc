// SPDX-License-Identifier: Apache-2.0
#include "program_work.h"

#include <algorithm>
#include <limits>

#include "program_text.h"

namespace neuroncore {
namespace {

// A byte that comes from the second-level cache or beyond.
constexpr double kPerByte = 2;
// Elements of what is no vector instruction or two: a transcendental function, a division, a reduction, a gather.
constexpr double kPerElement = 30;

constexpr std::string_view kOneInstruction[] = {
    "abs",   "add",      "and",     "bitcast_convert", "broadcast_in_dim", "clamp", "compare", "constant", "convert",
    "iota",  "maximum",  "minimum", "multiply",        "negate",           "not",   "or",      "reshape",  "select",
    "slice", "subtract", "xor"};
constexpr std::string_view kThreadsOfTheirOwn[] = {"dot", "dot_general", "custom_call"};
// What they do to an element may be anything.
constexpr std::string_view kUnknown[] = {"convolution",        "while", "sort", "reduce_window",
                                         "select_and_scatter", "fft",   "case", "if"};

bool IsOneOf(std::string_view name, const auto& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Of the largest tensor type in the line.
double Elements(std::string_view line) {
  constexpr std::string_view kTensor = "tensor<";
  double largest = 0;
  for (size_t at = line.find(kTensor); at != std::string_view::npos; at = line.find(kTensor, at + 1)) {
    double elements = 1;
    size_t i = at + kTensor.size();
    while (i < line.size() && std::isdigit(static_cast<unsigned char>(line[i]))) {
      double extent = 0;
      for (; i < line.size() && std::isdigit(static_cast<unsigned char>(line[i])); ++i) {
        extent = extent * 10 + (line[i] - '0');
      }
      elements *= extent;
      ++i;  // the x
    }
    largest = std::max(largest, elements);
  }
  return largest;
}

// Of one statement; of the first or last line of one that has a region.
double LineWork(std::string_view line) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::string_view kDialect = "stablehlo.";
  const size_t dialect = line.find(kDialect);
  if (dialect == std::string_view::npos) {
    return line.find("call @") == std::string_view::npos ? kPerElement * Elements(line) : kInfinity;
  }
  const std::string_view name = Cursor(line, dialect + kDialect.size()).TakeWord();
  if (IsOneOf(name, kUnknown)) return kInfinity;
  if (IsOneOf(name, kThreadsOfTheirOwn)) return 0;
  return (IsOneOf(name, kOneInstruction) ? 1 : kPerElement) * Elements(line);
}

}  // namespace

double ProgramWork(std::string_view program, const ProgramSignature& signature) {
  double work = 0;
  for (const Parameter& parameter : signature.parameters) work += kPerByte * static_cast<double>(parameter.type.bytes);
  for (const TensorType& result : signature.results) work += kPerByte * static_cast<double>(result.bytes);
  std::string_view body = program.substr(signature.parameters_end);
  for (size_t begin = body.find('\n'); begin < body.size();) {
    const size_t end = std::min(body.find('\n', begin + 1), body.size());
    work += LineWork(body.substr(begin + 1, end - begin - 1));
    begin = end;
  }
  return work;
}

}  // namespace neuroncore
