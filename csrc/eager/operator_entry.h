// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include "length_class.h"
#include "program.h"

namespace neuron {

using Key = c10::SmallVector<uint64_t, 48>;

// What a program yields for one key: results of this shape, to new tensors or into arguments.
struct Output {
  bool defined = false;
  c10::SmallVector<int64_t, 5> sizes, strides;
  at::ScalarType dtype = at::ScalarType::Undefined;
  int64_t numel = 0;
  size_t bytes = 0;  // of a new tensor's storage
  int target = -1;   // >= 0: written into that mutated tensor of the call; else a new tensor
};

// The decision about one key.
struct Entry {
  Key key;
  Entry* next = nullptr;       // same hash
  bool fallback = false;       // runs on the CPU
  Program* program = nullptr;  // null: nothing to compute (all results are empty)
  std::vector<Output> outputs;
  std::vector<int64_t> returns;   // of what is new: -1 one tensor, n >= 0 a list of n, -2 - n the number n
  uint64_t random_increment = 0;  // > 0: seed and offset are the last operands
};

enum class Role : uint8_t { Input, Updated, Written };  // Written: not read (an out= argument)

struct Argument {
  Role role = Role::Input;
  bool scalar = false;     // a Scalar or float whose value is an operand
  bool dtype = false;      // a ScalarType
  bool placement = false;  // device, layout, pinning: no part of the program
  bool indices = false;    // a list of index tensors, which may lie on the CPU
};

// One overload: what its schema says, and the programs compiled for it so far.
class OperatorEntry {
 public:
  // statics: arguments whose number is part of the program. mutated: arguments that the
  // operator writes; `written` those of them that it does not read. log_name: what
  // get_executed_ops shows. lengths: how its programs depend on those of short operands.
  OperatorEntry(c10::OperatorHandle handle, std::string log_name, const std::vector<std::string>& statics,
                const std::vector<std::string>& updated, const std::vector<std::string>& written,
                Lengths lengths = Lengths::Exact);

  const Entry* find(const Key& key, uint64_t hash);
  const Entry* insert(std::unique_ptr<Entry> entry, uint64_t hash);

  const c10::OperatorHandle& handle() const { return handle_; }
  const std::string& name() const { return name_; }
  const std::string& log_name() const { return log_name_; }
  const std::vector<Argument>& arguments() const { return arguments_; }
  bool takes_indices() const { return takes_indices_; }
  Lengths lengths() const { return lengths_; }
  // Argument that each schema return stands for, -1 for a new tensor.
  const std::vector<int>& return_aliases() const { return return_aliases_; }

  std::atomic<bool> executed{false};
  std::atomic<bool> fell_back{false};
  std::atomic<bool> warned{false};

 private:
  c10::OperatorHandle handle_;
  std::string name_;
  std::string log_name_;
  std::vector<Argument> arguments_;
  bool takes_indices_ = false;
  Lengths lengths_;
  std::vector<int> return_aliases_;
  std::mutex mutex_;
  ska::flat_hash_map<uint64_t, std::unique_ptr<Entry>> entries_;
};

uint64_t hash_key(const Key& key);

}  // namespace neuron
