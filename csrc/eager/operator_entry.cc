// SPDX-License-Identifier: Apache-2.0
#include "operator_entry.h"

#include <algorithm>

namespace neuron {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

c10::TypeKind element_kind(const c10::TypePtr& type) {
  if (auto optional = type->cast<c10::OptionalType>()) return element_kind(optional->getElementType());
  return type->kind();
}

// Tensor?[]: only indexing operators have it.
bool is_index_list(const c10::TypePtr& type) {
  const auto list = type->cast<c10::ListType>();
  const auto optional = list ? list->getElementType()->cast<c10::OptionalType>() : nullptr;
  return optional && optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

}  // namespace

uint64_t hash_key(const Key& key) {
  uint64_t hash = 0x9E3779B97F4A7C15ull * (key.size() + 1);
  for (uint64_t word : key) {
    hash ^= word;
    hash *= 0xD6E8FEB86659FD93ull;
    hash ^= hash >> 32;
  }
  return hash;
}

OperatorEntry::OperatorEntry(c10::OperatorHandle handle, std::string log_name, const std::vector<std::string>& statics,
                             const std::vector<std::string>& updated, const std::vector<std::string>& written,
                             Lengths lengths)
    : handle_(handle), log_name_(std::move(log_name)), lengths_(lengths) {
  const c10::FunctionSchema& schema = handle_.schema();
  name_ = schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  for (const c10::Argument& given : schema.arguments()) {
    Argument argument;
    const c10::TypeKind kind = element_kind(given.real_type());
    argument.scalar =
        (kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType) && !contains(statics, given.name());
    argument.dtype = kind == c10::TypeKind::ScalarTypeType;
    argument.placement = kind == c10::TypeKind::DeviceObjType || kind == c10::TypeKind::LayoutType ||
                         kind == c10::TypeKind::GeneratorType || given.name() == "pin_memory";
    argument.indices = is_index_list(given.real_type());
    argument.role = contains(updated, given.name())   ? Role::Updated
                    : contains(written, given.name()) ? Role::Written
                                                      : Role::Input;
    takes_indices_ |= argument.indices;
    arguments_.push_back(argument);
  }
  for (const c10::Argument& result : schema.returns()) {
    int alias = -1;
    if (const c10::AliasInfo* info = result.alias_info()) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const c10::AliasInfo* other = schema.arguments()[i].alias_info();
        if (other && other->beforeSets() == info->beforeSets()) alias = static_cast<int>(i);
      }
    }
    return_aliases_.push_back(alias);
  }
}

const Entry* OperatorEntry::find(const Key& key, uint64_t hash) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = entries_.find(hash);
  if (found == entries_.end()) return nullptr;
  for (const Entry* entry = found->second.get(); entry; entry = entry->next) {
    if (entry->key == key) return entry;
  }
  return nullptr;
}

const Entry* OperatorEntry::insert(std::unique_ptr<Entry> entry, uint64_t hash) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Entry>& place = entries_[hash];
  if (!place) {
    place = std::move(entry);
    return place.get();
  }
  entry->next = place->next;
  place->next = entry.release();  // entries live as long as the process
  return place->next;
}

}  // namespace neuron
