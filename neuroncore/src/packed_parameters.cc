// SPDX-License-Identifier: Apache-2.0
#include "packed_parameters.h"

#include <algorithm>

#include "program_text.h"
#include "program_work.h"

namespace neuroncore {
namespace {

// A parameter up to this size is copied sooner than passed.
constexpr size_t kLargest = 4096;
// XLA takes longer to compile slices of a vector, and more memory for it. Above this, some half a millisecond, the time
// that it takes to pass parameters does not count.
constexpr double kLargestWork = 1 << 24;
// Fewer parameters of a type are not worth a vector.
constexpr size_t kFewest = 4;
// Where parameters begin, so that XLA's vector instructions find them as aligned as before.
constexpr size_t kAlignment = 64;

// The position behind the bracket that opens the body of @main, or npos if the text cannot be read.
size_t BodyOf(std::string_view program, const ProgramSignature& signature) {
  Cursor cursor(program, signature.parameters_end);
  std::string_view skipped;
  if (!cursor.Take(")")) return std::string_view::npos;
  if (cursor.Take("->")) {
    cursor.SkipSpace();
    TensorType type;
    if (cursor.peek() == '(' ? !cursor.TakeBalanced(&skipped) : !ParseType(&cursor, &type)) {
      return std::string_view::npos;
    }
  }
  if (cursor.Take("attributes")) {
    cursor.SkipSpace();
    if (cursor.peek() != '{' || !cursor.TakeBalanced(&skipped)) return std::string_view::npos;
  }
  return cursor.Take("{") ? cursor.position() : std::string_view::npos;
}

size_t Elements(const TensorType& type) {
  size_t elements = 1;
  for (int64_t extent : type.dims) elements *= static_cast<size_t>(extent);
  return elements;
}

bool IsSmall(const Parameter& parameter) {
  const TensorType& type = parameter.type;
  return !parameter.scratch && parameter.aliased_output < 0 && type.bytes > 0 && type.bytes <= kLargest &&
         type.text.find(',') == std::string::npos;  // an encoding says more than shape and type
}

std::string VectorName(size_t vector) { return "%neuroncore_packed" + std::to_string(vector); }

std::string VectorType(size_t elements, const std::string& element_name) {
  return "tensor<" + std::to_string(elements) + "x" + element_name + ">";
}

}  // namespace

PackedParameters PackParameters(std::string_view program, const ProgramSignature& signature) {
  PackedParameters packed;
  const std::vector<Parameter>& parameters = signature.parameters;
  packed.places.resize(parameters.size());
  const bool pays = parameters.size() >= kFewest && BodyOf(program, signature) != std::string_view::npos &&
                    ProgramWork(program, signature) < kLargestWork;
  for (size_t i = 0; pays && i < parameters.size(); ++i) {
    if (!IsSmall(parameters[i]) || packed.places[i].vector >= 0) continue;
    std::vector<size_t> alike;
    for (size_t j = i; j < parameters.size(); ++j) {
      if (IsSmall(parameters[j]) && parameters[j].type.element_name == parameters[i].type.element_name) {
        alike.push_back(j);
      }
    }
    if (alike.size() < kFewest || alike.front() != i) continue;
    const TensorType& type = parameters[i].type;
    PackedParameters::Vector vector{type.element_name, type.bytes / Elements(type), 0};
    for (size_t j : alike) {
      packed.places[j].vector = static_cast<int>(packed.vectors.size());
      packed.places[j].offset = vector.bytes;
      vector.bytes += (parameters[j].type.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    packed.vectors.push_back(std::move(vector));
  }
  packed.num_arguments = packed.vectors.size();
  for (PackedParameters::Place& place : packed.places) {
    place.argument = place.vector < 0 ? packed.num_arguments++ : static_cast<size_t>(place.vector);
  }
  return packed;
}

std::string PackedProgram(std::string_view program, const ProgramSignature& signature, const PackedParameters& packed) {
  if (packed.vectors.empty()) return std::string(program);
  const std::vector<Parameter>& parameters = signature.parameters;
  std::string list, slices;
  const auto add = [&](std::string_view parameter) { (list += list.empty() ? "" : ", ") += parameter; };
  for (size_t v = 0; v < packed.vectors.size(); ++v) {
    const PackedParameters::Vector& vector = packed.vectors[v];
    add(VectorName(v) + ": " + VectorType(vector.bytes / vector.element_bytes, vector.element_name));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const PackedParameters::Place& place = packed.places[i];
    if (place.vector < 0) {
      add(program.substr(parameter.begin, parameter.end - parameter.begin));
      continue;
    }
    const PackedParameters::Vector& vector = packed.vectors[static_cast<size_t>(place.vector)];
    const size_t begin = place.offset / vector.element_bytes, count = Elements(parameter.type);
    const std::string slice = "%neuroncore_slice" + std::to_string(i), type = VectorType(count, vector.element_name);
    slices += "\n    " + slice + " = \"stablehlo.slice\"(" + VectorName(static_cast<size_t>(place.vector)) +
              ") {start_indices = array<i64: " + std::to_string(begin) +
              ">, limit_indices = array<i64: " + std::to_string(begin + count) + ">, strides = array<i64: 1>} : (" +
              VectorType(vector.bytes / vector.element_bytes, vector.element_name) + ") -> " + type;
    slices += "\n    %" + parameter.name + " = \"stablehlo.reshape\"(" + slice + ") : (" + type + ") -> " +
              parameter.type.text;
  }
  const size_t body = BodyOf(program, signature);
  std::string changed(program.substr(0, parameters.front().begin));
  changed += list;
  changed += program.substr(signature.parameters_end, body - signature.parameters_end);
  changed += slices;
  changed += program.substr(body);
  return changed;
}

}  // namespace neuroncore
