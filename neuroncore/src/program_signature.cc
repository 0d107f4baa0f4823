// SPDX-License-Identifier: Apache-2.0
#include "program_signature.h"

#include <cctype>
#include <cstring>

#include "errors.h"
#include "program_text.h"

namespace neuroncore {
namespace {

constexpr std::string_view kScratchPrefix = "neuroncore_scratch";

// Below this the pages of an output are warm anyway: the C library's allocator hands larger blocks back to the system.
constexpr size_t kScratchMinimum = size_t{128} << 10;

// Attributes and a location may follow a parameter or result.
bool SkipDecorations(Cursor* cursor, int* aliased_output) {
  cursor->SkipSpace();
  if (cursor->peek() == '{') {
    std::string_view attributes;
    if (!cursor->TakeBalanced(&attributes)) return false;
    constexpr std::string_view kAlias = "tf.aliasing_output";
    size_t found = attributes.find(kAlias);
    if (found != std::string_view::npos && aliased_output != nullptr) {
      Cursor value(attributes, found + kAlias.size());
      if (!value.Take("=")) return false;
      value.SkipSpace();
      *aliased_output = atoi(std::string(value.TakeWord()).c_str());
    }
    cursor->SkipSpace();
  }
  if (cursor->Take("loc")) {
    std::string_view location;
    if (cursor->peek() != '(' || !cursor->TakeBalanced(&location)) return false;
  }
  return true;
}

// The position after "@main" of its definition, or npos. Strings and comments may mention it, too.
size_t FindMain(std::string_view program) {
  size_t at = 0;
  while ((at = program.find_first_of("\"/f", at)) != std::string_view::npos) {
    if (program[at] == '"') {
      for (++at; at < program.size() && program[at] != '"'; ++at) at += program[at] == '\\' ? 1 : 0;
      ++at;
    } else if (program.compare(at, 2, "//") == 0) {
      at = program.find('\n', at);
    } else if (program.compare(at, strlen("func.func"), "func.func") == 0) {
      Cursor cursor(program, at + strlen("func.func"));
      if (!cursor.Take("public")) cursor.Take("private");
      if (cursor.Take("@main") && (cursor.peek() == '(' || std::isspace(static_cast<unsigned char>(cursor.peek())))) {
        return cursor.position();
      }
      at = cursor.position();
    } else {
      ++at;
    }
  }
  return std::string_view::npos;
}

bool Malformed(const Cursor& cursor) {
  Fail(NRT_INVALID, "@main: cannot read its signature at offset %zu", cursor.position());
  return false;
}

}  // namespace

bool ParseSignature(std::string_view program, ProgramSignature* signature) {
  size_t start = FindMain(program);
  if (start == std::string_view::npos) {
    Fail(NRT_INVALID, "the program has no function @main");
    return false;
  }
  size_t module = program.find("module @");
  if (module != std::string_view::npos && module < start) {
    signature->module_name = Cursor(program, module + strlen("module @")).TakeWord();
  }
  Cursor cursor(program, start);
  if (!cursor.Take("(")) return Malformed(cursor);
  cursor.SkipSpace();
  while (cursor.peek() != ')') {
    if (!signature->parameters.empty() && !cursor.Take(",")) return Malformed(cursor);
    cursor.SkipSpace();
    Parameter parameter;
    parameter.begin = cursor.position();
    if (!cursor.Take("%")) return Malformed(cursor);
    parameter.name = cursor.TakeWord();
    parameter.scratch = parameter.name.starts_with(kScratchPrefix);
    if (!cursor.Take(":")) return Malformed(cursor);
    if (!ParseType(&cursor, &parameter.type)) return false;
    if (!SkipDecorations(&cursor, &parameter.aliased_output)) return Malformed(cursor);
    parameter.end = cursor.position();
    if (!parameter.scratch) ++signature->num_inputs;
    signature->parameters.push_back(std::move(parameter));
    cursor.SkipSpace();
  }
  signature->parameters_end = cursor.position();
  cursor.Take(")");
  if (cursor.Take("->")) {
    bool list = cursor.Take("(");
    cursor.SkipSpace();
    while (!list || cursor.peek() != ')') {
      if (list && !signature->results.empty() && !cursor.Take(",")) return Malformed(cursor);
      TensorType type;
      if (!ParseType(&cursor, &type)) return false;
      signature->results.push_back(std::move(type));
      if (!list) break;
      if (!SkipDecorations(&cursor, nullptr)) return Malformed(cursor);
      cursor.SkipSpace();
    }
  }
  for (size_t i = 0; i < signature->parameters.size(); ++i) {
    Parameter& parameter = signature->parameters[i];
    if (parameter.aliased_output < 0) continue;
    size_t output = static_cast<size_t>(parameter.aliased_output);
    if (output >= signature->results.size() || signature->results[output].bytes != parameter.type.bytes) {
      Fail(NRT_INVALID, "@main: parameter %zu (%s) cannot alias output %zu: that output has another size", i,
           parameter.type.text.c_str(), output);
      return false;
    }
  }
  return true;
}

std::string AddScratchParameters(std::string_view program, const ProgramSignature& signature) {
  std::vector<bool> aliased(signature.results.size());
  for (const Parameter& parameter : signature.parameters) {
    if (parameter.aliased_output >= 0) aliased[static_cast<size_t>(parameter.aliased_output)] = true;
  }
  std::string added;
  bool first = signature.parameters.empty();
  for (size_t i = 0; i < signature.results.size(); ++i) {
    if (aliased[i] || signature.results[i].bytes < kScratchMinimum) continue;
    std::string number = std::to_string(i);
    added += (first ? "%" : ", %") + std::string(kScratchPrefix) + number + ": " + signature.results[i].text +
             " {tf.aliasing_output = " + number + " : i32}";
    first = false;
  }
  std::string changed(program.substr(0, signature.parameters_end));
  changed += added;
  changed += program.substr(signature.parameters_end);
  return changed;
}

}  // namespace neuroncore
