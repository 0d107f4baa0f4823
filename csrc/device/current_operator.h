// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace neuron {

// The operator that this thread works for: an out-of-memory error names the operators that made
// the largest tensors. A name must live as long as the process.
void set_current_operator(const char* name);
const char* current_operator();  // "aten::empty" outside of any other

class CurrentOperator {
 public:
  explicit CurrentOperator(const char* name) : before_(current_operator()) { set_current_operator(name); }
  ~CurrentOperator() { set_current_operator(before_); }
  CurrentOperator(const CurrentOperator&) = delete;
  CurrentOperator& operator=(const CurrentOperator&) = delete;

 private:
  const char* before_;
};

}  // namespace neuron
