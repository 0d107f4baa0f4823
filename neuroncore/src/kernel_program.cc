// SPDX-License-Identifier: Apache-2.0
#include "kernel_program.h"

#include <cstdlib>
#include <map>

#include "program_text.h"

namespace neuroncore {
namespace {

// "..." without escapes, the quotes taken off.
bool TakeString(Cursor* cursor, std::string_view* text) {
  if (!cursor->Take("\"")) return false;
  return cursor->TakeUntil('"', text) && text->find('\\') == std::string_view::npos;
}

// The string attribute `name` in the text of a dictionary.
bool StringAttribute(std::string_view dictionary, std::string_view name, std::string* value) {
  const size_t found = dictionary.find(name);
  if (found == std::string_view::npos) return false;
  Cursor cursor(dictionary, found + name.size());
  std::string_view text;
  if (!cursor.Take("=") || !TakeString(&cursor, &text)) return false;
  *value = text;
  return true;
}

// The body of @main, statement by statement.
class Parser {
 public:
  Parser(std::string_view program, const ProgramSignature& signature, KernelProgram* kernel)
      : cursor_(program, signature.parameters_end), signature_(signature), kernel_(*kernel) {}

  bool Parse() {
    for (size_t i = 0; i < signature_.num_inputs; ++i) {
      const Parameter& parameter = signature_.parameters[i];
      values_[parameter.name] = {Value::kParameter, i, parameter.type};
    }
    std::string_view results;
    if (!cursor_.Take(")") || !cursor_.Take("->")) return false;
    cursor_.SkipSpace();
    if (cursor_.peek() != '(' || !cursor_.TakeBalanced(&results) || !cursor_.Take("{")) return false;
    while (!cursor_.Take("func.return")) {
      if (!ParseStatement()) return false;
    }
    const Value* returned = TakeValue();
    return returned != nullptr && returned->kind == Value::kResult && cursor_.Take(":");
  }

 private:
  struct Value {
    enum Kind { kParameter, kResult } kind;
    size_t parameter;
    TensorType type;
  };

  const Value* TakeValue() {
    if (!cursor_.Take("%")) return nullptr;
    auto found = values_.find(cursor_.TakeWord());
    return found == values_.end() ? nullptr : &found->second;
  }

  // %1 = "stablehlo.name"(%0, %arg1) {attributes} : (types) -> type
  bool ParseStatement() {
    if (!cursor_.Take("%")) return false;
    const std::string name(cursor_.TakeWord());
    std::string_view operation, attributes, types;
    if (!cursor_.Take("=") || !TakeString(&cursor_, &operation) || !cursor_.Take("(")) return false;
    std::vector<Value> operands;
    while (!cursor_.Take(")")) {
      if (!operands.empty() && !cursor_.Take(",")) return false;
      const Value* value = TakeValue();
      if (value == nullptr) return false;
      operands.push_back(*value);
    }
    cursor_.SkipSpace();
    if (cursor_.peek() == '{' && !cursor_.TakeBalanced(&attributes)) return false;
    if (!cursor_.Take(":")) return false;
    cursor_.SkipSpace();
    if (cursor_.peek() != '(' || !cursor_.TakeBalanced(&types) || !cursor_.Take("->")) return false;
    Value result{Value::kResult, 0, {}};
    cursor_.SkipSpace();
    if (cursor_.peek() == '(' || !ParseType(&cursor_, &result.type)) return false;  // several results, or none
    std::string_view location;
    if (cursor_.Take("loc") && (cursor_.peek() != '(' || !cursor_.TakeBalanced(&location))) return false;
    if (operation == "stablehlo.reshape" && operands.size() == 1) {
      result.kind = operands[0].kind;
      result.parameter = operands[0].parameter;
    } else if (operation != "stablehlo.custom_call" || !ParseCall(attributes, operands, result.type)) {
      return false;
    }
    values_[name] = std::move(result);
    return true;
  }

  bool ParseCall(std::string_view attributes, const std::vector<Value>& operands, const TensorType& result) {
    if (!kernel_.name.empty() || !StringAttribute(attributes, "call_target_name", &kernel_.name)) return false;
    const size_t backend = attributes.find("backend_config");
    if (backend != std::string_view::npos &&
        !StringAttribute(attributes.substr(backend + strlen("backend_config")), "config", &kernel_.config)) {
      return false;
    }
    constexpr std::string_view kAlias = "operand_index = ";
    if (const size_t alias = attributes.find(kAlias); alias != std::string_view::npos) {
      kernel_.updated_operand = atoi(std::string(attributes.substr(alias + kAlias.size(), 8)).c_str());
    }
    for (const Value& operand : operands) {
      if (operand.kind != Value::kParameter) return false;
      kernel_.operands.push_back({operand.parameter, operand.type});
    }
    kernel_.result = result;
    return kernel_.updated_operand < static_cast<int>(operands.size());
  }

  Cursor cursor_;
  const ProgramSignature& signature_;
  KernelProgram& kernel_;
  std::map<std::string, Value, std::less<>> values_;
};

}  // namespace

std::optional<KernelProgram> ParseKernelProgram(std::string_view program, const ProgramSignature& signature) {
  if (signature.results.size() != 1 || program.find("stablehlo.custom_call") == std::string_view::npos) return {};
  KernelProgram kernel;
  if (!Parser(program, signature, &kernel).Parse()) return {};
  return kernel;
}

}  // namespace neuroncore
