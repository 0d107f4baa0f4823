// SPDX-License-Identifier: Apache-2.0
#include "tensor.h"

#include <neuroncore/neuroncore.h>
#include <nrt/nrt.h>

#include <cstring>

#include "errors.h"
#include "slab.h"

namespace neuroncore {
namespace {

Slab<Buffer>& Buffers() {
  static auto* slab = new Slab<Buffer>;
  return *slab;
}

Slab<Tensor>& Tensors() {
  static auto* slab = new Slab<Tensor>;
  return *slab;
}

std::atomic<uint64_t> next_serial{1};

Tensor* NewTensor(Buffer* buffer, size_t offset, size_t size) {
  Tensor* tensor = Tensors().New();
  tensor->serial = next_serial.fetch_add(1, std::memory_order_relaxed);
  tensor->buffer = buffer;
  tensor->offset = offset;
  tensor->size = size;
  tensor->magic = kTensorMagic;
  buffer->core->tensors.fetch_add(1, std::memory_order_relaxed);
  return tensor;
}

nrt_tensor_t* Handle(Tensor* tensor) { return reinterpret_cast<nrt_tensor_t*>(tensor); }

// Checks a handle and a range of its bytes.
NRT_STATUS CheckRange(const char* function, const void* handle, size_t offset, size_t size, Tensor** tensor) {
  if (NRT_STATUS status = CheckRunning(function)) return status;
  *tensor = GetTensor(function, handle);
  if (*tensor == nullptr) return NRT_INVALID_HANDLE;
  if ((*tensor)->buffer->core->closed) return Fail(NRT_CLOSED, "%s: the tensor is from before nrt_close", function);
  if (offset > (*tensor)->size || size > (*tensor)->size - offset) {
    return Fail(NRT_INVALID, "%s: bytes [%zu, %zu) are not in a tensor of %zu bytes", function, offset, offset + size,
                (*tensor)->size);
  }
  return NRT_SUCCESS;
}

}  // namespace

Tensor* GetTensor(const char* function, const void* handle) {
  auto* tensor = static_cast<Tensor*>(const_cast<void*>(handle));
  if (tensor != nullptr && tensor->magic == kTensorMagic) return tensor;
  Fail(NRT_INVALID_HANDLE, tensor == nullptr ? "%s: null tensor" : "%s: not a live tensor (freed before?)", function);
  return nullptr;
}

void Buffer::Release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (storage != nullptr) storage->Release();
  core->Unreserve(size);
  Buffers().Free(this);
}

// Replaces the storage by one of `bytes` bytes that keeps the old content; zero elsewhere, except in the range that the
// caller is about to overwrite. Called with the lock held; returns an unreferenced pointer.
Storage* Buffer::Grow(size_t bytes, size_t offset, size_t written) {
  Storage* grown = Storage::Allocate(core, bytes);
  if (grown == nullptr) return nullptr;
  char* data = grown->data();
  size_t kept = storage == nullptr ? 0 : storage->bytes;
  if (kept > 0) memcpy(data, storage->data(), kept);
  size_t zero_end = std::min(std::max(offset, kept), bytes);
  if (zero_end > kept) memset(data + kept, 0, zero_end - kept);
  size_t tail = std::max(kept, offset + written);
  if (bytes > tail) memset(data + tail, 0, bytes - tail);
  if (storage != nullptr) storage->Release();
  return storage = grown;
}

bool Buffer::Read(size_t offset, size_t bytes, char* to) {
  {
    Locked locked(lock);
    if (storage != nullptr && storage->bytes >= offset + bytes) {
      memcpy(to, storage->data() + offset, bytes);
      return true;
    }
  }
  Storage* grown = ForRead(offset + bytes);
  if (grown == nullptr) return false;
  memcpy(to, grown->data() + offset, bytes);
  grown->Release();
  return true;
}

Storage* Buffer::ForRead(size_t end) {
  Locked locked(lock);
  // A first use decides the length: programs take a storage of exactly their operand's size as it is, and need a view
  // of a longer one. A second, larger use gets everything.
  if (storage == nullptr) {
    if (Grow(end, 0, 0) == nullptr) return nullptr;
  } else if (storage->bytes < end && Grow(size, 0, 0) == nullptr) {
    return nullptr;
  }
  storage->Reference();
  return storage;
}

Storage* Buffer::ForWrite(size_t offset, size_t written) {
  Locked locked(lock);
  size_t end = offset + written;
  if (storage == nullptr) {
    if (Grow(offset == 0 ? end : size, offset, written) == nullptr) return nullptr;
  } else if (storage->bytes < end) {
    // Overwriting everything there is: nothing to keep.
    if (offset == 0) {
      storage->Release();
      storage = nullptr;
      if (Grow(end, 0, end) == nullptr) return nullptr;
    } else if (Grow(size, offset, written) == nullptr) {
      return nullptr;
    }
  }
  storage->Reference();
  return storage;
}

Storage* Buffer::Pin() {
  Locked locked(lock);
  if ((storage == nullptr || storage->bytes < size) && Grow(size, 0, 0) == nullptr) return nullptr;
  pinned = true;
  storage->Reference();
  return storage;
}

Storage* Buffer::Current() {
  Locked locked(lock);
  if (storage != nullptr) storage->Reference();
  return storage;
}

bool Buffer::Adopt(Storage* result) {
  Storage* before;
  {
    Locked locked(lock);
    if (pinned) return false;
    before = storage;
    storage = result;
  }
  if (before != nullptr) before->Release();
  return true;
}

void Buffer::Drop(Storage* lost) {
  {
    Locked locked(lock);
    if (storage != lost) return;
    storage = nullptr;
  }
  lost->Release();
}

}  // namespace neuroncore

using namespace neuroncore;

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t size, const char*,
                                                 nrt_tensor_t** tensor) {
  constexpr const char* kName = "nrt_tensor_allocate";
  return Guarded(kName, [&]() -> NRT_STATUS {
    if (NRT_STATUS status = CheckRunning(kName)) return status;
    if (tensor == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
    if (placement != NRT_TENSOR_PLACEMENT_DEVICE && placement != NRT_TENSOR_PLACEMENT_HOST) {
      return Fail(NRT_INVALID, "%s: placement %d is not supported", kName, static_cast<int>(placement));
    }
    Core* core = GetCore(kName, vnc);
    if (core == nullptr) return NRT_INVALID;
    if (!core->Reserve(size)) {
      return Fail(NRT_RESOURCE, "%s: core %d has %llu of %llu bytes in use, %zu more do not fit", kName, vnc,
                  static_cast<unsigned long long>(core->bytes_allocated.load()),
                  static_cast<unsigned long long>(core->capacity), size);
    }
    Buffer* buffer = Buffers().New();
    buffer->size = size;
    buffer->core = core;
    *tensor = Handle(NewTensor(buffer, 0, size));
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT void nrt_tensor_free(nrt_tensor_t** tensor) {
  if (tensor == nullptr || *tensor == nullptr || Plugin::forked()) return;
  // Also after nrt_close: a process frees its tensors in any order.
  Tensor* object = GetTensor("nrt_tensor_free", *tensor);
  *tensor = nullptr;
  if (object == nullptr) return;
  Buffer* buffer = object->buffer;
  buffer->core->tensors.fetch_sub(1, std::memory_order_relaxed);
  Tensors().Free(object);
  buffer->Release();
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* parent, size_t offset, size_t size,
                                                       const char*, nrt_tensor_t** slice) {
  constexpr const char* kName = "nrt_tensor_allocate_slice";
  return Guarded(kName, [&]() -> NRT_STATUS {
    Tensor* whole;
    if (NRT_STATUS status = CheckRange(kName, parent, offset, size, &whole)) return status;
    if (slice == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
    whole->buffer->Reference();
    *slice = Handle(NewTensor(whole->buffer, whole->offset + offset, size));
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_allocate_empty(const char*, nrt_tensor_t**) {
  return Fail(NRT_INVALID, "nrt_tensor_allocate_empty: tensors over foreign memory are not supported");
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t*, void*, size_t) {
  return Fail(NRT_INVALID, "nrt_tensor_attach_buffer: tensors over foreign memory are not supported");
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset, size_t size) {
  constexpr const char* kName = "nrt_tensor_read";
  return Guarded(kName, [&]() -> NRT_STATUS {
    Tensor* source;
    if (NRT_STATUS status = CheckRange(kName, tensor, offset, size, &source)) return status;
    if (size == 0) return NRT_SUCCESS;
    if (buffer == nullptr) return Fail(NRT_INVALID, "%s: null buffer", kName);
    size_t start = source->offset + offset;
    Storage* storage = source->buffer->Current();
    size_t present = storage == nullptr || storage->bytes <= start ? 0 : std::min(size, storage->bytes - start);
    const char* data = present > 0 ? storage->data() : nullptr;
    if (data == nullptr) present = 0;  // lost to a failed execution
    if (present > 0) memcpy(buffer, data + start, present);
    if (present < size) memset(static_cast<char*>(buffer) + present, 0, size - present);
    if (storage != nullptr) storage->Release();
    source->buffer->core->counters.bytes_read.Add(size);
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset, size_t size) {
  constexpr const char* kName = "nrt_tensor_write";
  return Guarded(kName, [&]() -> NRT_STATUS {
    Tensor* destination;
    if (NRT_STATUS status = CheckRange(kName, tensor, offset, size, &destination)) return status;
    if (size == 0) return NRT_SUCCESS;
    if (buffer == nullptr) return Fail(NRT_INVALID, "%s: null buffer", kName);
    size_t start = destination->offset + offset;
    Storage* storage = destination->buffer->ForWrite(start, size);
    if (storage == nullptr) return NRT_RESOURCE;
    memcpy(storage->data() + start, buffer, size);
    storage->Release();
    destination->buffer->core->counters.bytes_written.Add(size);
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool) {
  if (batches == nullptr && count > 0) return Fail(NRT_INVALID, "nrt_tensor_read_batch: null argument");
  for (uint64_t i = 0; i < count; ++i) {
    for (uint32_t j = 0; j < batches[i].num_ops; ++j) {
      const nrt_tensor_batch_op_t& op = batches[i].ops[j];
      if (NRT_STATUS status = nrt_tensor_read(batches[i].tensor, op.buffer, op.offset, op.size)) return status;
    }
  }
  return NRT_SUCCESS;
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool) {
  if (batches == nullptr && count > 0) return Fail(NRT_INVALID, "nrt_tensor_write_batch: null argument");
  for (uint64_t i = 0; i < count; ++i) {
    for (uint32_t j = 0; j < batches[i].num_ops; ++j) {
      const nrt_tensor_batch_op_t& op = batches[i].ops[j];
      auto* tensor = const_cast<nrt_tensor_t*>(batches[i].tensor);
      if (NRT_STATUS status = nrt_tensor_write(tensor, op.buffer, op.offset, op.size)) return status;
    }
  }
  return NRT_SUCCESS;
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* source, size_t source_offset,
                                             nrt_tensor_t* destination, size_t destination_offset, size_t size) {
  constexpr const char* kName = "nrt_tensor_copy";
  return Guarded(kName, [&]() -> NRT_STATUS {
    Tensor *from, *to;
    if (NRT_STATUS status = CheckRange(kName, source, source_offset, size, &from)) return status;
    if (NRT_STATUS status = CheckRange(kName, destination, destination_offset, size, &to)) return status;
    if (from->buffer->core != to->buffer->core) {
      return Fail(NRT_INVALID, "%s: the tensors are on cores %d and %d; copy through the host", kName,
                  from->buffer->core->index, to->buffer->core->index);
    }
    if (size == 0) return NRT_SUCCESS;
    size_t from_start = from->offset + source_offset;
    size_t to_start = to->offset + destination_offset;
    Storage* read = from->buffer->ForRead(from_start + size);
    if (read == nullptr) return NRT_RESOURCE;
    // Within one buffer the source is part of what must survive, so nothing may be given up for the write.
    Storage* written =
        from->buffer == to->buffer ? to->buffer->ForRead(to_start + size) : to->buffer->ForWrite(to_start, size);
    if (written == nullptr) {
      read->Release();
      return NRT_RESOURCE;
    }
    memmove(written->data() + to_start, read->data() + from_start, size);
    written->Release();
    read->Release();
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t size) {
  constexpr const char* kName = "nrt_tensor_memset";
  return Guarded(kName, [&]() -> NRT_STATUS {
    Tensor* destination;
    if (NRT_STATUS status = CheckRange(kName, tensor, offset, size, &destination)) return status;
    if (size == 0) return NRT_SUCCESS;
    size_t start = destination->offset + offset;
    Storage* storage = destination->buffer->ForWrite(start, size);
    if (storage == nullptr) return NRT_RESOURCE;
    memset(storage->data() + start, value, size);
    storage->Release();
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT size_t nrt_tensor_get_size(const nrt_tensor_t* tensor) {
  Tensor* object = GetTensor("nrt_tensor_get_size", tensor);
  return object == nullptr ? 0 : object->size;
}

NEURONCORE_EXPORT void* nrt_tensor_get_va(const nrt_tensor_t* tensor) {
  constexpr const char* kName = "nrt_tensor_get_va";
  void* address = nullptr;
  Guarded(kName, [&]() -> NRT_STATUS {
    Tensor* object;
    if (NRT_STATUS status = CheckRange(kName, tensor, 0, 0, &object)) return status;
    Storage* storage = object->buffer->Pin();
    if (storage == nullptr) return NRT_RESOURCE;
    address = storage->data() + object->offset;
    storage->Release();
    return NRT_SUCCESS;
  });
  return address;
}

NEURONCORE_EXPORT NRT_STATUS neuroncore_borrow(const nrt_tensor_t* tensor, size_t offset, size_t size, bool overwrite,
                                               void** data, void** loan) {
  constexpr const char* kName = "neuroncore_borrow";
  return Guarded(kName, [&]() -> NRT_STATUS {
    if (data == nullptr || loan == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
    *data = *loan = nullptr;
    Tensor* lent;
    if (NRT_STATUS status = CheckRange(kName, tensor, offset, size, &lent)) return status;
    if (size == 0) return NRT_SUCCESS;
    size_t start = lent->offset + offset;
    Storage* storage = overwrite ? lent->buffer->ForWrite(start, size) : lent->buffer->ForRead(start + size);
    if (storage == nullptr) return NRT_RESOURCE;
    if (storage->data() == nullptr) {
      storage->Release();
      return Fail(NRT_FAILURE, "%s: the content of the tensor was lost to a failed execution", kName);
    }
    *data = storage->data() + start;
    *loan = storage;
    return NRT_SUCCESS;
  });
}

NEURONCORE_EXPORT void neuroncore_give_back(void* loan) {
  if (loan != nullptr && !Plugin::forked()) static_cast<Storage*>(loan)->Release();
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_get_device_allocation_info(const nrt_tensor_t* tensor,
                                                                   nrt_tensor_device_allocation_info_t* info) {
  constexpr const char* kName = "nrt_tensor_get_device_allocation_info";
  Tensor* object;
  if (NRT_STATUS status = CheckRange(kName, tensor, 0, 0, &object)) return status;
  if (info == nullptr) return Fail(NRT_INVALID, "%s: null argument", kName);
  Storage* storage = object->buffer->Current();
  info->physical_address = storage == nullptr ? 0 : reinterpret_cast<uint64_t>(storage->data()) + object->offset;
  info->size = object->size;
  info->hbm_index = object->buffer->core->physical_index;
  if (storage != nullptr) storage->Release();
  return NRT_SUCCESS;
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_check_output_completion(const nrt_tensor_t* tensor, int64_t, uint64_t) {
  // nrt_execute returns when the outputs are written.
  if (tensor == nullptr) return Fail(NRT_INVALID, "nrt_tensor_check_output_completion: null tensor");
  return GetTensor("nrt_tensor_check_output_completion", tensor) == nullptr ? NRT_INVALID_HANDLE : NRT_SUCCESS;
}

NEURONCORE_EXPORT NRT_STATUS nrt_tensor_reset_output_completion(nrt_tensor_t* tensor) {
  if (tensor == nullptr) return Fail(NRT_INVALID, "nrt_tensor_reset_output_completion: null tensor");
  return GetTensor("nrt_tensor_reset_output_completion", tensor) == nullptr ? NRT_INVALID_HANDLE : NRT_SUCCESS;
}
