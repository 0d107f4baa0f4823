// SPDX-License-Identifier: Apache-2.0
//
// Objects that live behind opaque handles. Their memory is recycled but never returned, so that looking at the magic
// word of a freed handle is safe and answers "not a live object".
#pragma once

#include <new>
#include <vector>

#include "lock.h"

namespace neuroncore {

template <class T>
class Slab {
 public:
  // Constructs a T. Callers set T::magic afterwards; Free clears it first.
  T* New() {
    lock_.lock();
    if (free_.empty()) Grow();
    T* object = free_.back();
    free_.pop_back();
    lock_.unlock();
    return new (object) T();
  }

  void Free(T* object) {
    object->~T();
    object->magic = 0;
    lock_.lock();
    free_.push_back(object);
    lock_.unlock();
  }

 private:
  void Grow() {
    constexpr size_t kChunk = 64;
    T* chunk = static_cast<T*>(::operator new(kChunk * sizeof(T), std::align_val_t(64)));
    free_.reserve(free_.size() + kChunk);
    for (size_t i = kChunk; i-- > 0;) free_.push_back(chunk + i);
  }

  Lock lock_;
  std::vector<T*> free_;
};

}  // namespace neuroncore
