// SPDX-License-Identifier: Apache-2.0
#include "program_signature.h"

#include <cctype>
#include <cstring>

#include "errors.h"

namespace neuroncore {
namespace {

constexpr std::string_view kScratchPrefix = "neuroncore_scratch";

// Below this the pages of an output are warm anyway: the C library's allocator hands larger blocks back to the system.
constexpr size_t kScratchMinimum = size_t{128} << 10;

struct ElementType {
  std::string_view name;
  pjrt::Type type;
  size_t bytes;
};

constexpr ElementType kElementTypes[] = {
    {"f32", pjrt::Type::kF32, 4},
    {"bf16", pjrt::Type::kBF16, 2},
    {"f16", pjrt::Type::kF16, 2},
    {"f64", pjrt::Type::kF64, 8},
    {"i1", pjrt::Type::kPred, 1},
    {"i8", pjrt::Type::kS8, 1},
    {"i16", pjrt::Type::kS16, 2},
    {"i32", pjrt::Type::kS32, 4},
    {"i64", pjrt::Type::kS64, 8},
    {"ui8", pjrt::Type::kU8, 1},
    {"ui16", pjrt::Type::kU16, 2},
    {"ui32", pjrt::Type::kU32, 4},
    {"ui64", pjrt::Type::kU64, 8},
    {"complex<f32>", pjrt::Type::kC64, 8},
    {"complex<f64>", pjrt::Type::kC128, 16},
    {"f8E5M2", pjrt::Type::kF8E5M2, 1},
    {"f8E4M3FN", pjrt::Type::kF8E4M3FN, 1},
    {"f8E4M3B11FNUZ", pjrt::Type::kF8E4M3B11FNUZ, 1},
    {"f8E5M2FNUZ", pjrt::Type::kF8E5M2FNUZ, 1},
    {"f8E4M3FNUZ", pjrt::Type::kF8E4M3FNUZ, 1},
    {"f8E4M3", pjrt::Type::kF8E4M3, 1},
    {"f8E3M4", pjrt::Type::kF8E3M4, 1},
};

// A cursor over the text. Methods return false on a mismatch, with the cursor anywhere.
class Cursor {
 public:
  Cursor(std::string_view text, size_t position) : text_(text), position_(position) {}

  size_t position() const { return position_; }
  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

  void SkipSpace() {
    while (position_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[position_]))) {
        ++position_;
      } else if (text_.compare(position_, 2, "//") == 0) {
        size_t end = text_.find('\n', position_);
        position_ = end == std::string_view::npos ? text_.size() : end;
      } else {
        return;
      }
    }
  }

  bool Take(std::string_view token) {
    SkipSpace();
    if (text_.compare(position_, token.size(), token) != 0) return false;
    position_ += token.size();
    return true;
  }

  std::string_view TakeWord() {
    size_t start = position_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || strchr("_.$-", peek()) != nullptr) {
      if (peek() == '\0') break;
      ++position_;
    }
    return text_.substr(start, position_ - start);
  }

  // The cursor stands on an opening bracket: takes everything up to the closing one, inclusive.
  bool TakeBalanced(std::string_view* taken) {
    size_t start = position_;
    int depth = 0;
    while (position_ < text_.size()) {
      char c = text_[position_++];
      if (c == '"') {
        while (position_ < text_.size() && text_[position_] != '"') position_ += text_[position_] == '\\' ? 2 : 1;
        ++position_;
      } else if (strchr("{[(<", c) != nullptr) {
        ++depth;
      } else if (c == '-' && peek() == '>') {
        ++position_;  // the arrow of a function type is no bracket
      } else if (strchr("}])>", c) != nullptr && --depth == 0) {
        *taken = text_.substr(start, position_ - start);
        return true;
      }
    }
    return false;
  }

 private:
  std::string_view text_;
  size_t position_;
};

bool ParseType(Cursor* cursor, TensorType* type) {
  if (!cursor->Take("tensor")) {
    Fail(NRT_INVALID, "@main takes and returns ranked tensors; found something else at offset %zu", cursor->position());
    return false;
  }
  std::string_view body;
  if (cursor->peek() != '<' || !cursor->TakeBalanced(&body)) {
    Fail(NRT_INVALID, "@main: unfinished tensor type at offset %zu", cursor->position());
    return false;
  }
  type->text = "tensor" + std::string(body);
  body = body.substr(1, body.size() - 2);
  uint64_t elements = 1;
  while (!body.empty() && (std::isdigit(static_cast<unsigned char>(body[0])) || body[0] == '?' || body[0] == '*')) {
    int64_t extent = 0;
    size_t i = 0;
    for (; i < body.size() && std::isdigit(static_cast<unsigned char>(body[i])); ++i) {
      extent = extent * 10 + (body[i] - '0');
    }
    if (i >= body.size() || body[i] != 'x') {
      Fail(NRT_INVALID, "@main: %s has a dynamic shape; shapes must be static", type->text.c_str());
      return false;
    }
    type->dims.push_back(extent);
    elements *= static_cast<uint64_t>(extent);
    body.remove_prefix(i + 1);
  }
  body = body.substr(0, body.find(','));  // an encoding may follow
  for (const ElementType& element : kElementTypes) {
    if (element.name != body) continue;
    type->element_type = element.type;
    type->element_name = element.name;
    type->bytes = elements * element.bytes;
    return true;
  }
  Fail(NRT_INVALID, "@main: %s has an unsupported element type", type->text.c_str());
  return false;
}

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
    if (!cursor.Take("%")) return Malformed(cursor);
    Parameter parameter;
    parameter.scratch = cursor.TakeWord().substr(0, kScratchPrefix.size()) == kScratchPrefix;
    if (!cursor.Take(":")) return Malformed(cursor);
    if (!ParseType(&cursor, &parameter.type)) return false;
    if (!SkipDecorations(&cursor, &parameter.aliased_output)) return Malformed(cursor);
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
