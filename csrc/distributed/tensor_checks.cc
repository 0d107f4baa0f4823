// SPDX-License-Identifier: Apache-2.0
#include <distributed/tensor_checks.h>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <device/current_device.h>
#include <distributed/reduction.h>

namespace neuron::distributed {

void check_tensor(const char* name, const at::Tensor& tensor, bool any_dense) {
  TORCH_CHECK_VALUE(tensor.defined(), name, ": a tensor is missing.");
  TORCH_CHECK_VALUE(tensor.device().type() == kNeuron, name, ": the backend 'neuron' takes tensors on neuron, but got ",
                    "one on ", tensor.device(),
                    ". Move it there, or initialize the group with 'cpu:gloo,neuron:neuron'.");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, name, ": expected a dense tensor, but got one with layout ",
                    tensor.layout(), ". Call to_dense() first.");
  const bool dense = any_dense ? tensor.is_non_overlapping_and_dense() : tensor.is_contiguous();
  TORCH_CHECK_VALUE(dense, name, ": Tensors must be contiguous, but got one with sizes ", tensor.sizes(),
                    " and strides ", tensor.strides(), ". Call contiguous() first.");
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), name, ": call resolve_conj() and resolve_neg() first.");
}

void check_tensors(const char* name, const std::vector<at::Tensor>& tensors, bool any_dense) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(name, tensor, any_dense);
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(), name, ": all tensors must be on one device, but got ",
                      tensors[0].device(), " and ", tensor.device(), ".");
  }
}

const at::Tensor& single(const char* name, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, name, ": expected one tensor, but got ", tensors.size(), ".");
  return tensors[0];
}

void check_same_dtype(const char* name, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type(), name, ": inputs and outputs must have the same dtype, but got ",
                    a.scalar_type(), " and ", b.scalar_type(), ".");
  TORCH_CHECK_VALUE(a.device() == b.device(), name, ": inputs and outputs must be on one device, but got ", a.device(),
                    " and ", b.device(), ".");
}

void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int ranks) {
  check_same_dtype(name, whole, part);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * ranks, name, ": a tensor of ", part.sizes(), " from each of ",
                    ranks, " ranks makes ", part.numel() * ranks, " elements, but the other tensor is ", whole.sizes(),
                    " and has ", whole.numel(), ".");
}

void check_one_for_each_rank(const char* name, size_t tensors, int ranks) {
  TORCH_CHECK_VALUE(tensors == static_cast<size_t>(ranks), name, ": expected a tensor for each of ", ranks,
                    " ranks, but got ", tensors, ".");
}

Reduction reduction_of(const char* name, const c10d::ReduceOp& op, at::ScalarType dtype) {
  Reduction reduction = Reduction::Sum;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      reduction = Reduction::Sum;
      break;
    case c10d::ReduceOp::AVG:
      reduction = Reduction::Average;
      break;
    case c10d::ReduceOp::PRODUCT:
      reduction = Reduction::Product;
      break;
    case c10d::ReduceOp::MIN:
      reduction = Reduction::Min;
      break;
    case c10d::ReduceOp::MAX:
      reduction = Reduction::Max;
      break;
    case c10d::ReduceOp::BAND:
      reduction = Reduction::And;
      break;
    case c10d::ReduceOp::BOR:
      reduction = Reduction::Or;
      break;
    case c10d::ReduceOp::BXOR:
      reduction = Reduction::Xor;
      break;
    case c10d::ReduceOp::PREMUL_SUM:
      TORCH_CHECK_VALUE(at::isFloatingType(dtype) || at::isComplexType(dtype), name,
                        ": PREMUL_SUM multiplies by a fraction, but the tensors are ", dtype,
                        ". Use SUM, and multiply the result.");
      reduction = Reduction::Sum;
      break;
    default:
      TORCH_CHECK_VALUE(false, name, ": unknown reduction ", static_cast<int>(op.op_), ".");
  }
  check_reduction(reduction, dtype);
  return reduction;
}

at::Tensor operand_of(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  const auto& factor = static_cast<const c10d::PreMulSumSupplement&>(*op.supplement_);
  if (!factor.tensor_factor.defined()) return tensor.mul(factor.double_factor);
  return tensor.mul(factor.tensor_factor.reshape({}).to(tensor.scalar_type()));
}

}  // namespace neuron::distributed
