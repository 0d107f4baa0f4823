// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "../device/launch_queue.h"
#include "../eager/program.h"

namespace neuron {

using Sizes = c10::SmallVector<int64_t, 5>;
// The inputs of a call. The caller keeps them alive.
using Tensors = c10::ArrayRef<const at::Tensor*>;

// What a program was compiled for, of one input of the graph.
struct GraphInput {
  at::ScalarType dtype = at::ScalarType::Undefined;
  Sizes sizes, strides;
  bool scalar = false;     // a 0-dim CPU tensor, whose value is an operand
  int64_t window = 0;      // elements of memory that are handed over; 0: none (the tensor is empty)
  bool has_delta = false;  // where the tensor begins in it is a further operand
  size_t whole_bytes = 0;  // of a contiguous tensor that begins where its memory does; 0: described otherwise
};

// One result of the program.
struct GraphOutput {
  Sizes sizes, strides;
  at::ScalarType dtype = at::ScalarType::Undefined;
  size_t bytes = 0;
  int operand = -1;  // >= 0: written in place into that operand, the memory of an input
};

// One value that the graph returns.
struct GraphReturn {
  enum class Source : uint8_t { None, Input, Output };
  Source source = Source::None;
  int index = 0;
  bool view = false;  // of the source, with the layout below; `offset` counts from the source's first element
  Sizes sizes, strides;
  int64_t offset = 0;
};

// A program for one set of input layouts.
struct GraphProgram {
  Program* program = nullptr;  // null: nothing to compute
  std::vector<GraphInput> inputs;
  std::vector<GraphOutput> outputs;
  std::vector<GraphReturn> returns;
  std::vector<std::string> operators;  // for the operator log
  std::vector<at::Tensor> constants;   // tensors that the graph holds: operands behind the inputs
  bool is_awaited = false;             // by other ranks: it holds a collective
  uint64_t random_increment = 0;       // > 0: seed and offset are the last operands
};

// A compiled graph: its programs, one for each set of layouts that its inputs have had. Dynamo guards
// shapes and strides, but not where in its memory a tensor begins; and a graph's saved tensors may have
// other strides than the trace foresaw. Such a difference is met by another program.
class Graph {
 public:
  Graph(std::string name, size_t input_count) : name_(std::move(name)), input_count_(input_count) {}

  // The program that suits `tensors`, null if there is none yet; fills the operands of its launch.
  const GraphProgram* match(Tensors tensors, c10::SmallVector<Operand, 8>& operands, c10::DeviceIndex& device) const;
  const GraphProgram* add(std::unique_ptr<GraphProgram> program);
  // Allocates the results, enqueues the launch, and returns what the graph returns (undefined: None).
  std::vector<at::Tensor> launch(const GraphProgram& program, Tensors tensors, c10::SmallVector<Operand, 8>& operands,
                                 c10::DeviceIndex device) const;

  const std::string& name() const { return name_; }
  size_t input_count() const { return input_count_; }

 private:
  const std::string name_;
  const size_t input_count_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<GraphProgram>> programs_;
  mutable std::atomic<const GraphProgram*> latest_{nullptr};
  mutable std::atomic<uint64_t> logged_{0};  // the operator log's epoch in which this graph was entered
};

// Names of the operators of the graphs that were launched since the log was cleared.
std::vector<std::string> executed_graph_operators();
void clear_graph_operator_log();

// How `tensor` would be described as an input.
GraphInput describe_input(const at::Tensor& tensor);

}  // namespace neuron
