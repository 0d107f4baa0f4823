// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <distributed/collective.h>

// What the tensors of a collective must be like. All raise ValueError, naming the collective.
namespace neuron::distributed {

// Strided, contiguous, on a core of this process. With `any_dense` other orders of the dimensions
// (channels_last) are fine too: they must be the same on all ranks.
void check_tensor(const char* name, const at::Tensor& tensor, bool any_dense = false);
void check_tensors(const char* name, const std::vector<at::Tensor>& tensors, bool any_dense = false);
// The one tensor of a list that c10d hands over.
const at::Tensor& single(const char* name, const std::vector<at::Tensor>& tensors);
void check_same_dtype(const char* name, const at::Tensor& a, const at::Tensor& b);
// `part` once for each rank makes `whole`.
void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int ranks);
void check_one_for_each_rank(const char* name, size_t tensors, int ranks);

// Raises for what has no meaning, or none for the dtype.
Reduction reduction_of(const char* name, const c10d::ReduceOp& op, at::ScalarType dtype);

// What a rank gives to the reduction: `tensor`, or for PREMUL_SUM its product with the factor.
at::Tensor operand_of(const c10d::ReduceOp& op, const at::Tensor& tensor);

}  // namespace neuron::distributed
