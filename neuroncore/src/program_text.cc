// SPDX-License-Identifier: Apache-2.0
#include "program_text.h"

#include "errors.h"

namespace neuroncore {
namespace {

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

}  // namespace

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

}  // namespace neuroncore
