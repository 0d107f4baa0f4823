// SPDX-License-Identifier: Apache-2.0
#include "tensor_set.h"

#include <neuroncore/neuroncore.h>
#include <nrt/nrt.h>

#include <cstring>

#include "errors.h"
#include "slab.h"

namespace neuroncore {
namespace {

constexpr size_t kMaximumSlots = 1 << 16;

Slab<TensorSet>& Sets() {
  static auto* slab = new Slab<TensorSet>;
  return *slab;
}

// The slot number of "input12" for prefix "input"; -1 for any other name, also "input012".
ptrdiff_t SlotOf(const char* name, const char* prefix, size_t prefix_size) {
  if (strncmp(name, prefix, prefix_size) != 0) return -1;
  const char* digit = name + prefix_size;
  if (*digit < '0' || *digit > '9' || (*digit == '0' && digit[1] != '\0')) return -1;
  size_t slot = 0;
  for (; *digit >= '0' && *digit <= '9'; ++digit) {
    slot = slot * 10 + static_cast<size_t>(*digit - '0');
    if (slot >= kMaximumSlots) return -1;
  }
  return *digit == '\0' ? static_cast<ptrdiff_t>(slot) : -1;
}

// Where `name` is kept; with `create` the place is made, otherwise it may be null.
TensorSet::Entry* Find(TensorSet* set, const char* name, bool create) {
  std::vector<TensorSet::Entry>* slots = &set->inputs;
  ptrdiff_t slot = SlotOf(name, "input", 5);
  if (slot < 0) {
    slots = &set->outputs;
    slot = SlotOf(name, "output", 6);
  }
  if (slot >= 0) {
    size_t index = static_cast<size_t>(slot);
    if (index >= slots->size()) {
      if (!create) return nullptr;
      slots->resize(index + 1);
    }
    return &(*slots)[index];
  }
  if (create) return &set->others[name];
  auto found = set->others.find(name);
  return found == set->others.end() ? nullptr : &found->second;
}

}  // namespace

TensorSet* GetTensorSet(const char* function, const void* handle) {
  auto* set = static_cast<TensorSet*>(const_cast<void*>(handle));
  if (set != nullptr && set->magic == kTensorSetMagic) return set;
  Fail(NRT_INVALID_HANDLE, set == nullptr ? "%s: null tensor set" : "%s: not a live tensor set", function);
  return nullptr;
}

}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set) {
  constexpr const char* kName = "nrt_allocate_tensor_set";
  return Guarded(kName, [&]() -> NRT_STATUS {
    if (NRT_STATUS status = CheckRunning(kName)) return status;
    if (set == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
    TensorSet* created = Sets().New();
    created->magic = kTensorSetMagic;
    *set = created;
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT void nrt_destroy_tensor_set(nrt_tensor_set_t** set) {
  if (set == nullptr || *set == nullptr || Plugin::forked()) return;
  TensorSet* object = GetTensorSet("nrt_destroy_tensor_set", *set);
  *set = nullptr;
  if (object != nullptr) Sets().Free(object);
}

NEURONCORE_EXPORT NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name,
                                                          nrt_tensor_t* tensor) {
  constexpr const char* kName = "nrt_add_tensor_to_tensor_set";
  return Guarded(kName, [&]() -> NRT_STATUS {
    TensorSet* object = GetTensorSet(kName, set);
    Tensor* added = object == nullptr ? nullptr : GetTensor(kName, tensor);
    if (added == nullptr) return NRT_INVALID_HANDLE;
    if (name == nullptr || *name == '\0') return Fail(NRT_INVALID, "%s: the tensor needs a name", kName);
    *Find(object, name, true) = {added, added->serial};
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS neuroncore_fill_tensor_set(nrt_tensor_set_t* set, bool outputs,
                                                        nrt_tensor_t* const* tensors, uint64_t count) {
  constexpr const char* kName = "neuroncore_fill_tensor_set";
  return Guarded(kName, [&]() -> NRT_STATUS {
    TensorSet* object = GetTensorSet(kName, set);
    if (object == nullptr) return NRT_INVALID_HANDLE;
    if (tensors == nullptr && count > 0) return Fail(NRT_INVALID, "%s: null argument", kName);
    if (count > kMaximumSlots) return Fail(NRT_INVALID, "%s: more than %zu tensors", kName, kMaximumSlots);
    std::vector<TensorSet::Entry>& slots = outputs ? object->outputs : object->inputs;
    if (slots.size() < count) slots.resize(count);
    for (uint64_t i = 0; i < count; ++i) {
      Tensor* added = GetTensor(kName, tensors[i]);
      if (added == nullptr) return NRT_INVALID_HANDLE;
      slots[i] = {added, added->serial};
    }
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name,
                                                            nrt_tensor_t** tensor) {
  constexpr const char* kName = "nrt_get_tensor_from_tensor_set";
  TensorSet* object = GetTensorSet(kName, set);
  if (object == nullptr) return NRT_INVALID_HANDLE;
  if (name == nullptr || tensor == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
  TensorSet::Entry* entry = Find(object, name, false);
  Tensor* found = entry == nullptr ? nullptr : entry->live();
  if (found == nullptr) return Fail(NRT_FAILURE, "%s: the set has no live tensor named %s", kName, name);
  *tensor = reinterpret_cast<nrt_tensor_t*>(found);
  return NRT_SUCCESS;
}
